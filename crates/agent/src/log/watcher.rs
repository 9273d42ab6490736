//! Watches directories for files that grow, appear or disappear.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// A change in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The watch number of the directory.
    pub watch: i32,
    /// The file; `None` if it is the directory itself.
    pub name: Option<OsString>,
    /// Whether the file was created. Its content may not have been written yet.
    pub is_new: bool,
}

/// Reports when files in the watched directories change.
pub struct Watcher(AsyncFd<OwnedFd>);

impl Watcher {
    /// Creates a watcher without any directories.
    ///
    /// # Errors
    /// Returns an error if the kernel's limit of inotify instances is reached.
    pub fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: the AsyncFd owns the descriptor from here on and nothing takes it out, so it stays open and
        // unchanged while it is registered.
        Ok(Watcher(unsafe { AsyncFd::register(inotify)? }))
    }

    /// Watches a directory and returns its watch number. Watching it again returns the same number.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist or too many are watched.
    pub fn watch(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(self.0.get_ref(), dir, flags)?)
    }

    /// Watches a directory for files that are created, linked, removed or completely written, and returns its
    /// watch number.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist or too many are watched.
    pub fn watch_files(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVE | WatchFlags::DELETE;
        Ok(inotify::add_watch(self.0.get_ref(), dir, flags | WatchFlags::ONLYDIR)?)
    }

    /// Stops watching a directory.
    pub fn forget(&self, watch: i32) {
        // The watch of a deleted directory is already removed.
        let _ = inotify::remove_watch(self.0.get_ref(), watch);
    }

    /// Waits for files that have grown. Returns pairs of watch number and file name, without duplicates.
    ///
    /// # Errors
    /// Returns an error if watching fails.
    pub async fn grown(&self) -> io::Result<Vec<(i32, OsString)>> {
        let mut grown = Vec::new();
        for Changed { watch, name, .. } in self.changed().await? {
            if let Some(name) = name
                && !grown.contains(&(watch, name.clone()))
            {
                grown.push((watch, name));
            }
        }
        Ok(grown)
    }

    /// Waits for changes.
    ///
    /// # Errors
    /// Returns an error if watching fails.
    pub async fn changed(&self) -> io::Result<Vec<Changed>> {
        let mut ready = self.0.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        let mut changed = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => changed.push(Changed {
                    watch: event.wd(),
                    name: event.file_name().map(|n| OsString::from_vec(n.to_bytes().to_vec())),
                    is_new: event.events().contains(ReadFlags::CREATE),
                }),
                Err(rustix::io::Errno::AGAIN) => {
                    ready.clear_ready();
                    return Ok(changed);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
