//! Container logs: one follower for all pods of a run, woken by the kernel when a log grows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::logfile::{LogReader, attempts, lost_text};
use outrigger_view::output::Output;

/// How much of a log is read before others get their turn.
const CHUNK: usize = 64 << 10;

/// A line longer than this is shown in pieces.
const LINE_MAX: usize = 64 << 10;

/// Says when files in some directories grow.
pub(crate) struct Watcher(AsyncFd<OwnedFd>);

impl Watcher {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: the descriptor is owned by the AsyncFd from here on, and nothing takes it out: it stays open and the
        // same for as long as it is registered.
        Ok(Watcher(unsafe { AsyncFd::register(inotify)? }))
    }

    /// Watches a directory: its number. One that is watched already keeps its own.
    pub(crate) fn watch(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(self.0.get_ref(), dir, flags)?)
    }

    /// Watches a directory for files that come, go and are complete: its number.
    pub(crate) fn watch_files(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(self.0.get_ref(), dir, flags)?)
    }

    fn forget(&self, watch: i32) {
        // One whose directory is gone is forgotten already.
        let _ = inotify::remove_watch(self.0.get_ref(), watch);
    }

    /// Waits for files that have grown: watch and name, each once.
    pub(crate) async fn grown(&self) -> io::Result<Vec<(i32, OsString)>> {
        let mut ready = self.0.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        let mut grown = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|n| OsString::from_vec(n.to_bytes().to_vec()));
                    if let Some(name) = name
                        && !grown.contains(&(event.wd(), name.clone()))
                    {
                        grown.push((event.wd(), name));
                    }
                }
                Err(rustix::io::Errno::AGAIN) => {
                    ready.clear_ready();
                    return Ok(grown);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

enum Command {
    Follow { dir: PathBuf, pod: Arc<str>, container: Arc<str> },
    Forget { below: PathBuf, done: oneshot::Sender<()> },
}

/// The follower. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Logs(mpsc::UnboundedSender<Command>);

impl Logs {
    /// Starts a follower that shows what it sees at `output`.
    pub(crate) fn start(output: Output) -> io::Result<Self> {
        let (commands, rx) = mpsc::unbounded_channel();
        let follower = Follower { watcher: Watcher::new()?, output, watches: BTreeMap::new() };
        tokio::spawn(follower.run(rx));
        Ok(Logs(commands))
    }

    /// Shows everything written to files in `dir`, from their beginning.
    pub(crate) fn follow(&self, dir: PathBuf, pod: Arc<str>, container: Arc<str>) {
        // The follower ends with the run; nobody reads logs after that.
        let _ = self.0.send(Command::Follow { dir, pod, container });
    }

    /// Shows what is left of all logs below a directory and looks at them no more.
    pub(crate) async fn forget(&self, below: PathBuf) {
        let (done, wait) = oneshot::channel();
        if self.0.send(Command::Forget { below, done }).is_ok() {
            let _ = wait.await;
        }
    }
}

struct Follower {
    watcher: Watcher,
    output: Output,
    watches: BTreeMap<i32, Watched>,
}

struct Watched {
    dir: PathBuf,
    pod: Arc<str>,
    container: Arc<str>,
    files: BTreeMap<OsString, LogReader>,
}

/// How far a file has been shown.
#[derive(Default)]
pub(crate) struct Tail {
    offset: u64,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

impl Follower {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Follow { dir, pod, container }) => self.follow(dir, pod, container).await,
                    Some(Command::Forget { below, done }) => {
                        self.forget(&below).await;
                        let _ = done.send(());
                    }
                    None => return,
                },
                grown = self.watcher.grown() => match grown {
                    Ok(grown) => {
                        for (watch, name) in grown {
                            self.show(watch, name).await;
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

    async fn follow(&mut self, dir: PathBuf, pod: Arc<str>, container: Arc<str>) {
        match self.watcher.watch(&dir) {
            Ok(watch) => {
                let watched = Watched { dir, pod, container, files: BTreeMap::new() };
                self.watches.entry(watch).or_insert(watched);
                self.show_all(watch).await;
            }
            Err(e) => tracing::warn!("cannot follow {}: {e}", dir.display()),
        }
    }

    async fn forget(&mut self, below: &Path) {
        let gone: Vec<i32> =
            self.watches.iter().filter(|(_, w)| w.dir.starts_with(below)).map(|(id, _)| *id).collect();
        for watch in gone {
            self.show_all(watch).await;
            self.watches.remove(&watch);
            self.watcher.forget(watch);
        }
    }

    /// Whatever is in the directory: a notice may be lost, a file may have been there before.
    async fn show_all(&mut self, watch: i32) {
        let Some(watched) = self.watches.get(&watch) else { return };
        for attempt in attempts(&watched.dir) {
            self.show(watch, format!("{attempt}.log").into()).await;
        }
    }

    async fn show(&mut self, watch: i32, name: OsString) {
        let Some(watched) = self.watches.get_mut(&watch) else { return };
        // What was moved out of the way is read by its reader.
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
                self.output.note(&lost_text(&watched.container, lost));
            }
            // Waits while the reader of our output is slow, so that a talkative container does not fill the memory.
            self.output.log(&watched.pod, &watched.container, lines).await;
        }
    }
}

impl Tail {
    /// A file that is of interest from here on.
    pub(crate) fn from(offset: u64) -> Self {
        Tail { offset, rest: Vec::new() }
    }

    /// Goes to the beginning of another file; the beginning of a line is kept.
    pub(crate) fn restart(&mut self) {
        self.offset = 0;
    }

    /// Reads on: how many bytes there were.
    pub(crate) fn read_from(&mut self, mut file: &File) -> io::Result<usize> {
        file.seek(SeekFrom::Start(self.offset))?;
        let before = self.rest.len();
        let read = file.take(CHUNK as u64).read_to_end(&mut self.rest)?;
        debug_assert_eq!(self.rest.len(), before + read);
        self.offset += read as u64;
        Ok(read)
    }

    /// Complete lines; what is left of an unfinished one is kept.
    pub(crate) fn lines(&mut self) -> Vec<u8> {
        match self.rest.iter().rposition(|b| *b == b'\n') {
            Some(end) => {
                let rest = self.rest.split_off(end + 1);
                std::mem::replace(&mut self.rest, rest)
            }
            None if self.rest.len() > LINE_MAX => std::mem::take(&mut self.rest),
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_view::output::Format;
    use std::io::Write as _;
    use std::time::Duration;

    #[tokio::test]
    async fn what_is_written_is_shown_before_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let logs_dir = dir.path().join("c");
        std::fs::create_dir(&logs_dir).unwrap();
        let (output, shown) = Output::captured(Format::Plain, false).unwrap();
        let logs = Logs::start(output.clone()).unwrap();
        logs.follow(logs_dir.clone(), "p".into(), "c".into());
        let mut file = File::create(logs_dir.join("0.log")).unwrap();
        writeln!(file, "2024-01-01T00:00:00Z stdout F one").unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        while !shown.text().contains("one") {
            assert!(tokio::time::Instant::now() < deadline, "{}", shown.text());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        write!(file, "2024-01-01T00:00:00Z stdout P tw").unwrap();
        write!(file, "o \n2024-01-01T00:00:00Z stdout F three\n").unwrap();
        let mut next = File::create(logs_dir.join("1.log")).unwrap();
        writeln!(next, "2024-01-01T00:00:00Z stderr F again").unwrap();
        logs.forget(dir.path().to_owned()).await;
        output.finish().await;
        let text = shown.text();
        assert_eq!(text, "c | one\nc | two three\nc | again\n");
    }
}
