//! Whoever is attached to a container's output.
//!
//! The container never waits for them: what one does not read is kept up to a limit, then it is cut off.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// What is kept for one who does not read.
const PENDING_MAX: usize = 1 << 20;

/// Those who read one of the container's streams.
#[derive(Default)]
pub(super) struct Watchers(Vec<Watcher>);

struct Watcher {
    fd: OwnedFd,
    pending: Vec<u8>,
}

impl Watchers {
    /// Adds one, from here on.
    pub(super) fn add(&mut self, fd: OwnedFd) {
        if rustix::io::ioctl_fionbio(&fd, true).is_ok() {
            self.0.push(Watcher { fd, pending: Vec::new() });
        }
    }

    /// Hands out what the container wrote.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.0.retain_mut(|watcher| {
            watcher.pending.extend_from_slice(bytes);
            watcher.flush() && watcher.pending.len() <= PENDING_MAX
        });
    }

    /// Goes on with those who read again.
    pub(super) fn flush(&mut self) {
        self.0.retain_mut(Watcher::flush);
    }

    /// Descriptors that are waited for.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &OwnedFd> {
        self.0.iter().filter(|watcher| !watcher.pending.is_empty()).map(|watcher| &watcher.fd)
    }
}

impl Watcher {
    /// Writes what it takes now. False when it is gone.
    fn flush(&mut self) -> bool {
        let mut written = 0;
        let alive = loop {
            if written == self.pending.len() {
                break true;
            }
            match rustix::io::write(&self.fd, &self.pending[written..]) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                Err(_) => break false,
            }
        };
        self.pending.drain(..written);
        self.pending.shrink_to(4096);
        alive
    }
}
