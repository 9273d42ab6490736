//! The connections of clients to the shim.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::protocol::{ATTACH_DESCRIPTORS, Reply, Request, decode, encode};
use crate::socket;

/// A client of the socket, usually an agent.
pub(super) struct Client {
    /// Identifies the connection for the lifetime of the shim.
    pub(super) token: u64,
    fd: OwnedFd,
    received: Vec<u8>,
    fds: Vec<OwnedFd>,
    open: bool,
}

impl Client {
    pub(super) fn new(token: u64, fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Client { token, fd, received: Vec::new(), fds: Vec::new(), open: true })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Sends a message. Disconnects a client that does not read, because the container has priority.
    pub(super) fn send(&mut self, reply: &Reply) {
        let sent = encode(reply).and_then(|frame| {
            let mut rest = &frame[..];
            while !rest.is_empty() {
                let count = socket::send(self.fd.as_fd(), rest, &[])?;
                rest = &rest[count..];
            }
            Ok(())
        });
        if sent.is_err() {
            self.open = false;
        }
    }

    /// Reads the bytes that have arrived.
    pub(super) fn receive(&mut self) {
        let mut chunk = [0; 8192];
        loop {
            match socket::receive(self.fd.as_fd(), &mut chunk, &mut self.fds) {
                Ok(0) => break self.open = false,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => break self.open = false,
            }
        }
    }

    /// Whether one of the received requests is to kill the container.
    pub(super) fn wants_kill(&self) -> bool {
        let mut rest = self.received.clone();
        std::iter::from_fn(|| decode::<Request>(&mut rest).ok().flatten())
            .any(|request| matches!(request, Request::Kill))
    }

    /// The next complete request, with its descriptors.
    pub(super) fn next(&mut self) -> Option<(Request, Vec<OwnedFd>)> {
        match decode::<Request>(&mut self.received) {
            Ok(Some(request)) => {
                let carries = match &request {
                    Request::Exec { streams, .. } => streams.descriptors().min(self.fds.len()),
                    Request::Attach => ATTACH_DESCRIPTORS.min(self.fds.len()),
                    _ => 0,
                };
                let fds = self.fds.drain(..carries).collect();
                Some((request, fds))
            }
            Ok(None) => None,
            Err(_) => {
                self.open = false;
                None
            }
        }
    }
}
