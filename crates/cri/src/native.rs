//! Calls to containerd's own API, where CRI has no equivalent.

use std::time::{Duration, SystemTime};

use super::client::{Client, Fault};
use super::leftovers;
use super::wire::tasks::{GetRequest, KillRequest, WaitRequest};
use super::wire::{PROCESS_CREATED, PROCESS_STOPPED, Timestamp};

/// Containers may run for years; they are polled this often anyway.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A kill that takes longer was interrupted.
const KILL_MAX: Duration = Duration::from_millis(300);

/// The exit code of a process killed by SIGKILL.
const KILLED: u32 = 137;

/// Sends a container's first process a signal.
pub(super) async fn signal(client: &Client, id: &str, signal: u32) -> Result<(), Fault> {
    let request = KillRequest { container_id: id.to_owned(), exec_id: String::new(), signal };
    client.call(request, client.limits().question).await.map(|_| ())
}

/// The fate of a program whose start was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trace {
    /// It was not started.
    None,
    /// It was started.
    Started,
    /// It was started and killed: containerd undoes a start during which it is told to stop.
    Undone,
}

/// Looks for a container's first process. CRI loses track of containers if containerd restarts during their
/// start or end; their shims still know.
pub(super) async fn trace(client: &Client, id: &str) -> Result<Trace, Fault> {
    let process = match client.ask(GetRequest { container_id: id.to_owned() }).await {
        Ok(answer) => answer.process.unwrap_or_default(),
        Err(Fault::NotFound(_)) => return Ok(Trace::None),
        Err(fault) => return Err(fault),
    };
    Ok(match process.status {
        0 | PROCESS_CREATED => Trace::None,
        // The process that ended was not the program yet.
        PROCESS_STOPPED if leftovers::waits(id) => Trace::None,
        PROCESS_STOPPED if process.exit_status == KILLED => Trace::Undone,
        _ => Trace::Started,
    })
}

/// Exit code and time of a container CRI has lost track of. [`Fault::NotFound`]: there is nothing to wait
/// for; [`Fault::Late`]: it has not ended yet.
pub(super) async fn exit(client: &Client, id: &str) -> Result<(i32, SystemTime), Fault> {
    let request = WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
    let answer = client.call_once(request, WAIT_MAX).await?;
    Ok(ended(answer.exit_status, answer.exited_at))
}

/// Thaws a container whose kill was interrupted: it would stay frozen forever. Returns whether it was frozen.
pub(super) async fn thaw(client: &Client, id: &str) -> Result<bool, Fault> {
    let process = client.ask(GetRequest { container_id: id.to_owned() }).await?.process.unwrap_or_default();
    if !leftovers::is_frozen(process.pid, id) {
        return Ok(false);
    }
    tokio::time::sleep(KILL_MAX).await;
    Ok(leftovers::is_frozen(process.pid, id) && leftovers::thaw(process.pid))
}

/// Exit code and time, as reported by containerd.
pub(super) fn ended(status: u32, at: Option<Timestamp>) -> (i32, SystemTime) {
    let at = at.and_then(|at| {
        let (seconds, nanos) = (u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    });
    (i32::try_from(status).unwrap_or(255), at.unwrap_or_else(SystemTime::now))
}
