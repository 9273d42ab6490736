//! Clients that are attached to a container's output.
//!
//! The container never waits for them. Unread output is kept up to a limit, and then the client is
//! disconnected.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The maximum number of bytes that are kept for a client that does not read.
const PENDING_MAX: usize = 1 << 20;

/// The readers of one of the container's streams.
#[derive(Default)]
pub(super) struct Watchers(Vec<Watcher>);

struct Watcher {
    fd: OwnedFd,
    pending: Vec<u8>,
}

impl Watchers {
    /// Adds a reader, which gets the output from now on.
    pub(super) fn add(&mut self, fd: OwnedFd) {
        if rustix::io::ioctl_fionbio(&fd, true).is_ok() {
            self.0.push(Watcher { fd, pending: Vec::new() });
        }
    }

    /// Distributes the container's output.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.0.retain_mut(|watcher| {
            watcher.pending.extend_from_slice(bytes);
            watcher.flush() && watcher.pending.len() <= PENDING_MAX
        });
    }

    /// Continues with readers that can take output again.
    pub(super) fn flush(&mut self) {
        self.0.retain_mut(Watcher::flush);
    }

    /// The descriptors to poll.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &OwnedFd> {
        self.0.iter().filter(|watcher| !watcher.pending.is_empty()).map(|watcher| &watcher.fd)
    }
}

impl Watcher {
    /// Writes as much as possible now. Returns `false` if the reader is gone.
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
