//! The client side of the control socket.

use std::io;
use std::time::Duration;

use outrigger_runtime::WindowSize;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::place::{self, Place};
use super::wire::{
    ANSWER_MAX, Answer, Frame, Frames, Kind, REQUEST_MAX, Request, RunState, VERSION, WINDOW, Word,
};

/// How long a run may take to answer. A run that takes longer is suspended or hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The run refused the request.
    #[error("{0}")]
    Refused(String),
    /// The request was valid but could not be carried out.
    #[error("{0}")]
    Failed(String),
    /// The request is longer than a run accepts.
    #[error("the request has {0} bytes, and a run accepts {REQUEST_MAX}; pass less, for example in a file")]
    TooLong(usize),
    /// The run has ended.
    #[error("the run has ended")]
    Ended,
    /// The node has ended.
    #[error(
        "the node has ended; pods that were running keep running, and `outrigger node --state-dir {0}` takes them over"
    )]
    NodeEnded(String),
    /// Communication with the run failed.
    #[error("cannot talk to the run: {0}")]
    Broken(#[from] io::Error),
}

/// The active runs of this user.
#[derive(Debug, Default)]
pub struct Found {
    /// Runs that answered, by pid.
    pub runs: Vec<Run>,
    /// Runs that did not answer: pid and error.
    pub silent: Vec<(u32, AskError)>,
}

/// A run that has not ended.
#[derive(Debug)]
pub struct Run {
    /// The state when it was queried.
    pub state: RunState,
    place: Place,
    socket: String,
}

#[cfg(test)]
impl Run {
    /// A run in this state that takes no requests.
    pub(super) fn without_socket(state: RunState) -> Run {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        Run { state, place: Place::open_at(dir.path()).unwrap(), socket: String::new() }
    }
}

/// Finds the runs of this user. Sockets left behind by killed runs are removed.
///
/// # Errors
/// Returns an error if the directory of the sockets is not the user's own.
pub async fn runs() -> io::Result<Found> {
    let mut found = Found::default();
    let Some(place) = Place::find()? else { return Ok(found) };
    for socket in place.sockets()? {
        match timeout(PATIENCE, state(&place, &socket)).await {
            Ok(Ok(Some(state))) => found.runs.push(Run { state, place: place.clone(), socket }),
            // The run has ended.
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
    if hello.content.len() > REQUEST_MAX {
        // The run would close the connection, which would look like the end of the run.
        return Err(AskError::TooLong(hello.content.len()));
    }
    // A run that refuses without reading has already closed its end. Its answer can still be read.
    let _ = hello.write(&mut write).await;
    Ok(Some(Connection { frames: Frames::new(read, ANSWER_MAX), write, room: WINDOW, node: None }))
}

impl Run {
    /// Sends a request.
    ///
    /// # Errors
    /// Returns an error if the run has ended or communication fails.
    pub async fn ask(&self, request: &Request) -> Result<Connection, AskError> {
        let node = self.state.node.as_ref().map(|dir| dir.display().to_string());
        let Some(connection) = connect(&self.place, &self.socket, request).await? else {
            return Err(ended(node));
        };
        Ok(Connection { node, ..connection })
    }
}

/// A request in progress. Dropping it cancels the request.
pub struct Connection {
    frames: Frames<OwnedReadHalf>,
    write: OwnedWriteHalf,
    /// Bytes of input the run can accept.
    room: usize,
    /// The state directory, if the connection is to a node.
    node: Option<String>,
}

/// The error if a run, or the node with this state directory, has ended.
fn ended(node: Option<String>) -> AskError {
    node.map_or(AskError::Ended, AskError::NodeEnded)
}

impl Connection {
    /// The next answer.
    ///
    /// # Errors
    /// Returns an error if the run refused the request or has ended.
    pub async fn next(&mut self) -> Result<Answer, AskError> {
        let frame = match self.frames.next().await {
            Ok(frame) => frame.ok_or_else(|| ended(self.node.clone()))?,
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) => {
                return Err(ended(self.node.clone()));
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

    /// Bytes of input that can be sent to a command now.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Sends input to a command, at most [`Connection::room`] bytes. Empty input means the end of input.
    ///
    /// # Errors
    /// Returns an error if the run has ended.
    pub async fn input(&mut self, bytes: &[u8]) -> Result<(), AskError> {
        self.room = self.room.saturating_sub(bytes.len());
        let frame = Frame { kind: Kind::Stdin, content: bytes.to_vec() };
        self.say(frame).await
    }

    /// Sets the size of a command's terminal.
    ///
    /// # Errors
    /// Returns an error if the run has ended.
    pub async fn resize(&mut self, size: WindowSize) -> Result<(), AskError> {
        self.say(Frame::message(&Word::Resize(size))?).await
    }

    async fn say(&mut self, frame: Frame) -> Result<(), AskError> {
        match frame.write(&mut self.write).await {
            // The last answer of the run can still be read.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
