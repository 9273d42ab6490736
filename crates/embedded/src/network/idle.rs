//! Ends forwarded connections that are idle.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::budget::Budget;

/// How often a connection checks whether descriptors have become scarce.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a connection may be idle.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleLimits {
    /// The limit while there are enough descriptors.
    pub(super) usual: Duration,
    /// The limit while descriptors are scarce.
    pub(super) scarce: Duration,
}

/// The time when something was last sent or received.
#[derive(Debug)]
pub(super) struct Idle(Mutex<Instant>);

impl Idle {
    pub(super) fn new() -> Idle {
        Idle(Mutex::new(Instant::now()))
    }

    pub(super) fn used(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns when nothing was sent or received for too long.
    pub(super) async fn too_long(&self, limits: IdleLimits, budget: &Budget) {
        loop {
            let limit = if budget.is_scarce() { limits.scarce } else { limits.usual };
            let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            if idle >= limit {
                return;
            }
            tokio::time::sleep((limit - idle).min(LOOK_EVERY)).await;
        }
    }
}

/// A connection that records when it is used.
pub(super) struct Watched<'a> {
    pub(super) stream: TcpStream,
    pub(super) idle: &'a Idle,
}

impl AsyncRead for Watched<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if done.is_ready() {
            this.idle.used();
        }
        done
    }
}

impl AsyncWrite for Watched<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if done.is_ready() {
            this.idle.used();
        }
        done
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
