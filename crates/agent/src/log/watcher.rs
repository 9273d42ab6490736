//! Directories in which files grow, come and go.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Says when files in some directories grow.
pub struct Watcher(AsyncFd<OwnedFd>);

impl Watcher {
    /// One that watches nothing yet.
    ///
    /// # Errors
    /// The kernel gives no more of them.
    pub fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: the descriptor is owned by the AsyncFd from here on, and nothing takes it out: it stays open and the
        // same for as long as it is registered.
        Ok(Watcher(unsafe { AsyncFd::register(inotify)? }))
    }

    /// Watches a directory: its number. One that is watched already keeps its own.
    ///
    /// # Errors
    /// The directory is not there, or too many are watched.
    pub fn watch(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(self.0.get_ref(), dir, flags)?)
    }

    /// Watches a directory for files that come, go and are complete: its number.
    ///
    /// # Errors
    /// The directory is not there, or too many are watched.
    pub fn watch_files(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(self.0.get_ref(), dir, flags)?)
    }

    pub(crate) fn forget(&self, watch: i32) {
        // One whose directory is gone is forgotten already.
        let _ = inotify::remove_watch(self.0.get_ref(), watch);
    }

    /// Waits for files that have grown: watch and name, each once.
    ///
    /// # Errors
    /// They cannot be watched any more.
    pub async fn grown(&self) -> io::Result<Vec<(i32, OsString)>> {
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
