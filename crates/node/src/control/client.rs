//! The end of those who ask.

use std::io;
use std::time::Duration;

use outrigger_runtime::WindowSize;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::place::{self, Place};
use super::wire::{ANSWER_MAX, Answer, Frame, Frames, Kind, Request, RunState, VERSION, WINDOW, Word};

/// A run that does not answer within this time is stopped, or hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a run does not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// It could not, for a reason of its own or of the machine's.
    #[error("{0}")]
    Failed(String),
    /// It went away.
    #[error("the run has ended")]
    Ended,
    /// It cannot be talked to.
    #[error("cannot talk to the run: {0}")]
    Broken(#[from] io::Error),
}

/// The runs of this user.
#[derive(Debug, Default)]
pub struct Found {
    /// Those that answered, by process number.
    pub runs: Vec<Run>,
    /// Those that did not: process number, and why.
    pub silent: Vec<(u32, AskError)>,
}

/// A run that goes on.
#[derive(Debug)]
pub struct Run {
    /// As it was when it was asked.
    pub state: RunState,
    place: Place,
    socket: String,
}

/// Finds the runs of this user. What killed runs left behind is removed.
///
/// # Errors
/// The place where runs are found is not the user's own.
pub async fn runs() -> io::Result<Found> {
    let mut found = Found::default();
    let Some(place) = Place::find()? else { return Ok(found) };
    for socket in place.sockets()? {
        match timeout(PATIENCE, state(&place, &socket)).await {
            Ok(Ok(Some(state))) => found.runs.push(Run { state, place: place.clone(), socket }),
            // It ended just now, or long ago.
            Ok(Ok(None) | Err(AskError::Ended)) => {}
            Ok(Err(e)) => found.silent.push((place::pid(&socket).unwrap_or(0), e)),
            Err(_) => {
                let slow = AskError::Broken(io::Error::other("it does not answer; is it suspended?"));
                found.silent.push((place::pid(&socket).unwrap_or(0), slow));
            }
        }
    }
    Ok(found)
}

async fn state(place: &Place, socket: &str) -> Result<Option<RunState>, AskError> {
    let Some(mut connection) = connect(place, socket, &Request::List).await? else { return Ok(None) };
    match connection.next().await? {
        Answer::Run(state) => Ok(Some(state)),
        other => Err(AskError::Broken(io::Error::other(format!("unexpected answer: {other:?}")))),
    }
}

async fn connect(place: &Place, socket: &str, request: &Request) -> Result<Option<Connection>, AskError> {
    let Some(stream) = place.connect(socket)? else { return Ok(None) };
    let (read, mut write) = UnixStream::from_std(stream)?.into_split();
    let hello = Frame::message(&json!({"version": VERSION, "request": request}))?;
    // One that refuses without listening has closed its end already; what it said is there to be read.
    let _ = hello.write(&mut write).await;
    Ok(Some(Connection { frames: Frames::new(read, ANSWER_MAX), write, room: WINDOW }))
}

impl Run {
    /// Asks for something.
    ///
    /// # Errors
    /// The run has ended, or cannot be talked to.
    pub async fn ask(&self, request: &Request) -> Result<Connection, AskError> {
        connect(&self.place, &self.socket, request).await?.ok_or(AskError::Ended)
    }
}

/// A request on its way. Dropped, it is given up.
pub struct Connection {
    frames: Frames<OwnedReadHalf>,
    write: OwnedWriteHalf,
    /// Bytes of input the other end has room for.
    room: usize,
}

impl Connection {
    /// The next answer.
    ///
    /// # Errors
    /// The run refused, or has ended.
    pub async fn next(&mut self) -> Result<Answer, AskError> {
        let frame = match self.frames.next().await {
            Ok(frame) => frame.ok_or(AskError::Ended)?,
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) => {
                return Err(AskError::Ended);
            }
            Err(e) => return Err(e.into()),
        };
        match frame.answer()? {
            Answer::Refused(text) => Err(AskError::Refused(text)),
            Answer::Failed(text) => Err(AskError::Failed(text)),
            Answer::More(bytes) => {
                self.room += bytes;
                Ok(Answer::More(bytes))
            }
            answer => Ok(answer),
        }
    }

    /// Bytes of input a command can be given now.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Gives a command input, no more than there is room for; nothing is its end.
    ///
    /// # Errors
    /// The run has ended.
    pub async fn input(&mut self, bytes: &[u8]) -> Result<(), AskError> {
        self.room = self.room.saturating_sub(bytes.len());
        let frame = Frame { kind: Kind::Stdin, content: bytes.to_vec() };
        self.say(frame).await
    }

    /// Tells a command how large its terminal is now.
    ///
    /// # Errors
    /// The run has ended.
    pub async fn resize(&mut self, size: WindowSize) -> Result<(), AskError> {
        self.say(Frame::message(&Word::Resize(size))?).await
    }

    async fn say(&mut self, frame: Frame) -> Result<(), AskError> {
        match frame.write(&mut self.write).await {
            // What it said last is still to be read.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
