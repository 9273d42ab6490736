//! Emits the output of containers: one follower for all pods of an agent, woken by inotify when a log grows.
//!
//! A slow subscriber blocks the follower, so that a container with much output does not exhaust memory. Pods
//! are not blocked: output that was not emitted yet stays in the files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::event::{AgentEventKind, Emitter, LOG_ROOM, LogBatch};
use crate::log::{LogReader, Watcher, attempts};

enum Command {
    Follow { dir: PathBuf, container: usize, events: Emitter },
    Forget { below: PathBuf, done: oneshot::Sender<()> },
}

/// The follower. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogFollower(mpsc::UnboundedSender<Command>);

impl LogFollower {
    /// Starts a follower.
    pub(crate) fn start() -> io::Result<Self> {
        let (commands, rx) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(LOG_ROOM));
        let follower = Follower { watcher: Watcher::new()?, room, watches: BTreeMap::new() };
        tokio::spawn(follower.run(rx));
        Ok(LogFollower(commands))
    }

    /// Emits everything written to files in `dir`, from the beginning.
    pub(crate) fn follow(&self, dir: PathBuf, container: usize, events: Emitter) {
        // Fails only when the agent has ended; then no logs are read.
        let _ = self.0.send(Command::Follow { dir, container, events });
    }

    /// Emits the remaining output of all logs below a directory and stops following them.
    pub(crate) async fn forget(&self, below: PathBuf) {
        let (done, wait) = oneshot::channel();
        if self.0.send(Command::Forget { below, done }).is_ok() {
            let _ = wait.await;
        }
    }
}

struct Follower {
    watcher: Watcher,
    room: Arc<Semaphore>,
    watches: BTreeMap<i32, Watched>,
}

struct Watched {
    dir: PathBuf,
    container: usize,
    events: Emitter,
    files: BTreeMap<OsString, LogReader>,
}

impl Follower {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Follow { dir, container, events }) => self.follow(dir, container, events).await,
                    Some(Command::Forget { below, done }) => {
                        self.forget(&below).await;
                        let _ = done.send(());
                    }
                    None => return,
                },
                grown = self.watcher.grown() => match grown {
                    Ok(grown) => {
                        for (watch, name) in grown {
                            self.emit(watch, name).await;
                        }
                    }
                    Err(e) => {
                        tracing::warn!("cannot follow logs any more: {e}");
                        return;
                    }
                },
            }
        }
    }

    async fn follow(&mut self, dir: PathBuf, container: usize, events: Emitter) {
        match self.watcher.watch(&dir) {
            Ok(watch) => {
                let watched = Watched { dir, container, events, files: BTreeMap::new() };
                self.watches.entry(watch).or_insert(watched);
                self.emit_all(watch).await;
            }
            Err(e) => tracing::warn!("cannot follow {}: {e}", dir.display()),
        }
    }

    async fn forget(&mut self, below: &Path) {
        let gone: Vec<i32> =
            self.watches.iter().filter(|(_, w)| w.dir.starts_with(below)).map(|(id, _)| *id).collect();
        for watch in gone {
            self.emit_all(watch).await;
            self.watches.remove(&watch);
            self.watcher.forget(watch);
        }
    }

    /// Reads all files in the directory: a notification may be lost, and files may exist before the watch
    /// begins.
    async fn emit_all(&mut self, watch: i32) {
        let Some(watched) = self.watches.get(&watch) else { return };
        for attempt in attempts(&watched.dir) {
            self.emit(watch, format!("{attempt}.log").into()).await;
        }
    }

    async fn emit(&mut self, watch: i32, name: OsString) {
        let Some(watched) = self.watches.get_mut(&watch) else { return };
        // The reader of the current file also reads the rotated ones.
        if Path::new(&name).extension().is_none_or(|extension| extension != "log") {
            return;
        }
        let path = watched.dir.join(&name);
        let reader = match watched.files.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => match LogReader::open(&path) {
                Ok(reader) => new.insert(reader),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return,
                Err(e) => {
                    tracing::warn!("cannot read {}: {e}", path.display());
                    return;
                }
            },
        };
        loop {
            let lines = match reader.read(None) {
                Ok(Some(lines)) => lines,
                Ok(None) => return,
                Err(e) => {
                    tracing::warn!("cannot read {}: {e}", path.display());
                    return;
                }
            };
            let lost = reader.take_lost();
            if lost > 0 {
                watched.events.emit(AgentEventKind::LogsLost { container: watched.container, files: lost });
            }
            let wanted = u32::try_from(lines.len().clamp(1, LOG_ROOM)).unwrap_or(u32::MAX);
            // The semaphore is never closed.
            let Ok(room) = self.room.clone().acquire_many_owned(wanted).await else { return };
            let (lines, room) = (Arc::new(lines), Arc::new(room));
            watched.events.emit(AgentEventKind::Log(LogBatch { container: watched.container, lines, room }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;
    use crate::event::{Events, Scope, Subscribers};
    use crate::uid::PodUid;

    fn emitter() -> (Emitter, Events) {
        let subscribers: Arc<Subscribers> = Arc::default();
        let events = subscribers.subscribe(Scope::All);
        (Emitter { pod: PodUid::new("p"), group: "g".into(), subscribers }, events)
    }

    async fn batch(events: &mut Events) -> LogBatch {
        let next = tokio::time::timeout(Duration::from_secs(5), events.next()).await.expect("in time");
        match next.expect("an event").kind {
            AgentEventKind::Log(batch) => batch,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_is_written_is_said_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let logs_dir = dir.path().join("c");
        std::fs::create_dir(&logs_dir).unwrap();
        let (emitter, mut events) = emitter();
        let logs = LogFollower::start().unwrap();
        logs.follow(logs_dir.clone(), 7, emitter);
        let mut file = File::create(logs_dir.join("0.log")).unwrap();
        writeln!(file, "2024-01-01T00:00:00Z stdout F one").unwrap();
        let first = batch(&mut events).await;
        assert_eq!((first.container, &first.lines[..]), (7, &b"2024-01-01T00:00:00Z stdout F one\n"[..]));
        write!(file, "2024-01-01T00:00:00Z stdout P tw").unwrap();
        write!(file, "o \n2024-01-01T00:00:00Z stdout F three\n").unwrap();
        let mut next = File::create(logs_dir.join("1.log")).unwrap();
        writeln!(next, "2024-01-01T00:00:00Z stderr F again").unwrap();
        logs.forget(dir.path().to_owned()).await;
        let mut all = Vec::new();
        while let Some(event) = events.try_next() {
            let AgentEventKind::Log(batch) = event.kind else { panic!("{event:?}") };
            all.extend_from_slice(&batch.lines);
        }
        let text = String::from_utf8(all).unwrap();
        let said: Vec<&str> = text.lines().filter_map(|line| line.get(28..)).collect();
        assert_eq!(said, ["P two ", "F three", "F again"], "{text}");
    }

    /// A container writes much more than fits in the room, and the subscriber reads nothing.
    #[tokio::test]
    async fn a_stalled_subscriber_holds_no_more_than_the_room() {
        let dir = tempfile::tempdir().unwrap();
        let logs_dir = dir.path().join("c");
        std::fs::create_dir(&logs_dir).unwrap();
        let line = format!("2024-01-01T00:00:00Z stdout F {}\n", "x".repeat(1_000));
        let count = 8 * LOG_ROOM / line.len();
        std::fs::write(logs_dir.join("0.log"), line.repeat(count)).unwrap();
        let (emitter, mut events) = emitter();
        let logs = LogFollower::start().unwrap();
        logs.follow(logs_dir, 0, emitter);
        let mut held = vec![batch(&mut events).await];
        let bytes = |held: &[LogBatch]| held.iter().map(|batch| batch.lines.len()).sum::<usize>();
        // Nothing more arrives once the room is used up.
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(200), events.next()).await {
            let AgentEventKind::Log(batch) = event.kind else { panic!("{event:?}") };
            held.push(batch);
        }
        assert!(bytes(&held) <= LOG_ROOM, "{}", bytes(&held));
        assert!(bytes(&held) > LOG_ROOM / 2, "{}", bytes(&held));
        // Dropping batches frees room, and nothing is lost.
        let mut seen = bytes(&held);
        held.clear();
        while seen < count * line.len() {
            seen += batch(&mut events).await.lines.len();
        }
        assert_eq!(seen, count * line.len());
    }
}
