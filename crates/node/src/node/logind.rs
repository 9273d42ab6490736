//! Handles a shutdown of the machine announced by systemd-logind.
//!
//! A delay inhibitor lock is held as long as pods may run. logind announces a shutdown and waits until the
//! lock is released or `InhibitDelayMaxSec` has passed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zbus::OwnedFd;

/// Interval between attempts to reach logind.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Manager {
    /// Takes a lock. It is released when the last copy of the descriptor is closed.
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    /// Signal: the shutdown of the machine starts or is cancelled.
    #[zbus(signal)]
    fn prepare_for_shutdown(&self, is_starting: bool) -> zbus::Result<()>;

    /// The maximum delay of a shutdown by a lock.
    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;
}

/// An announcement of logind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announcement {
    /// The machine is about to shut down and waits for the lock.
    ShutdownBegins,
    /// The shutdown was cancelled.
    ShutdownCancelled,
}

/// The lock and the announcements.
pub(super) struct Logind {
    announcements: mpsc::Receiver<Announcement>,
    lock: Arc<Mutex<Option<OwnedFd>>>,
    task: JoinHandle<()>,
}

impl Logind {
    /// Watches for a shutdown. `needed` is the time that the pods may take to stop. Without logind, nothing
    /// is announced.
    pub(super) fn watch(needed: Duration) -> Self {
        let (tell, announcements) = mpsc::channel(4);
        let lock = Arc::new(Mutex::new(None));
        let task = tokio::spawn(follow(needed, lock.clone(), tell));
        Logind { announcements, lock, task }
    }

    /// Waits for the next announcement.
    pub(super) async fn next(&mut self) -> Announcement {
        match self.announcements.recv().await {
            Some(announcement) => announcement,
            None => std::future::pending().await,
        }
    }

    /// Releases the lock, so that the shutdown continues.
    pub(super) fn release(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Logind {
    fn drop(&mut self) {
        self.task.abort();
        self.release();
    }
}

/// Follows logind while it is available, and reconnects after a failure.
async fn follow(needed: Duration, lock: Arc<Mutex<Option<OwnedFd>>>, tell: mpsc::Sender<Announcement>) {
    let mut is_told = false;
    loop {
        match session(needed, &lock, &tell, &mut is_told).await {
            Ok(()) => tracing::warn!("lost the connection to systemd-logind; trying again"),
            Err(e) if !std::mem::replace(&mut is_told, true) => tracing::info!(
                "no systemd-logind here: pods are not stopped before the machine shuts down, unless the node is told by \
                 SIGPWR, or by SIGTERM with --stop-pods-on-exit ({e})"
            ),
            Err(e) => tracing::debug!("still no systemd-logind: {e}"),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// One connection, until it ends.
async fn session(
    needed: Duration,
    lock: &Mutex<Option<OwnedFd>>,
    tell: &mpsc::Sender<Announcement>,
    is_told: &mut bool,
) -> zbus::Result<()> {
    let connection = zbus::Connection::system().await?;
    let manager = ManagerProxy::new(&connection).await?;
    // The subscription comes before the lock, so that no announcement is missed.
    let mut announced = manager.receive_prepare_for_shutdown().await?;
    let why = "pods are stopped in order";
    let taken = manager.inhibit("shutdown", "outrigger node", why, "delay").await?;
    *lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
    *is_told = false;
    match manager.inhibit_delay_max_usec().await {
        Ok(most) if Duration::from_micros(most) < needed => tracing::warn!(
            "systemd-logind waits only {} s for pods to stop, they may take {} s: set InhibitDelayMaxSec={} in \
             /etc/systemd/logind.conf.d/outrigger.conf and restart systemd-logind",
            most / 1_000_000,
            needed.as_secs(),
            needed.as_secs(),
        ),
        Ok(_) => {}
        Err(e) => tracing::debug!("cannot ask how long systemd-logind waits: {e}"),
    }
    tracing::debug!("a shutdown of the machine waits until pods are stopped");
    while let Some(signal) = announced.next().await {
        let announcement = match signal.args()?.is_starting {
            true => Announcement::ShutdownBegins,
            false => Announcement::ShutdownCancelled,
        };
        if tell.send(announcement).await.is_err() {
            break;
        }
    }
    Ok(())
}
