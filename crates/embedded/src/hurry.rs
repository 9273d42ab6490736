//! A request to stop the pod of a killed run earlier than its grace period says.
//!
//! The run of such a pod has ended, so nobody listens for requests. The request is therefore a file in the
//! pod's directory, and the process that stops the pod watches for it. It contains a time of the machine's
//! clock, because the process that writes it does not wait for that time.

use std::convert::Infallible;
use std::fs;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::Instant;

use super::layout;
use outrigger_runtime::stop::Hurry;

const FILE: &str = "hurry.json";

/// The content of [`FILE`].
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    /// When the grace period ends, in milliseconds since the machine was started.
    by_ms: u64,
    /// Kill the containers without a stop signal.
    kill: bool,
}

/// Asks the process that stops a pod to finish within this time.
pub(super) fn request_shorter_grace(dir: &Path, grace: Duration) -> io::Result<()> {
    let by = since_boot().saturating_add(grace);
    let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    let (path, temporary) = (dir.join(FILE), dir.join("hurry.tmp"));
    let _ = fs::remove_file(&temporary);
    // The directory is only known from another process, so a link in it must not be followed.
    let mut file = fs::File::create_new(&temporary)?;
    file.write_all(&serde_json::to_vec(&Wanted { by_ms, kill: grace.is_zero() })?)?;
    fs::rename(&temporary, &path)
}

/// Passes on requests for a pod, for as long as this future is polled.
pub(super) async fn follow(dir: &Path, wanted: &watch::Sender<Option<Hurry>>) -> Infallible {
    let Err(error) = try_follow(dir, wanted).await;
    tracing::warn!(pod = %dir.display(), %error, "cannot watch for requests to stop a pod sooner");
    std::future::pending().await
}

async fn try_follow(dir: &Path, wanted: &watch::Sender<Option<Hurry>>) -> io::Result<Infallible> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&inotify, dir, WatchFlags::CLOSE_WRITE | WatchFlags::MOVE | WatchFlags::ONLYDIR)?;
    // SAFETY: the AsyncFd owns the descriptor from here on, and nothing takes it out. It stays open and
    // unchanged while it is registered.
    let inotify: AsyncFd<OwnedFd> = unsafe { AsyncFd::register(inotify)? };
    loop {
        if let Some(Wanted { by_ms, kill }) = layout::read_json(&dir.join(FILE)) {
            let left = Duration::from_millis(by_ms).saturating_sub(since_boot());
            let new = Hurry { by: Instant::now().checked_add(left), kill };
            wanted.send_if_modified(|old| {
                let is_sooner = old.is_none_or(|old| kill || new.by < old.by);
                is_sooner.then(|| *old = Some(new)).is_some()
            });
        }
        let mut ready = inotify.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify.get_ref(), &mut buffer);
        // It does not matter which file has changed. There are few changes, and reading the file again is
        // cheap.
        while !matches!(reader.next(), Err(rustix::io::Errno::AGAIN)) {}
        ready.clear_ready();
    }
}

fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
