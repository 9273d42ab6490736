//! Calls to containerd's own API that have no equivalent in CRI.

use std::time::{Duration, SystemTime};

use super::client::{Client, Fault};
use super::leftovers;
use super::wire::tasks::{GetRequest, KillRequest, WaitRequest};
use super::wire::{PROCESS_CREATED, PROCESS_STOPPED, Timestamp};

/// The maximum time of one wait call. Containers may run for years, so the call is repeated.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A kill that takes longer than this was interrupted.
const KILL_MAX: Duration = Duration::from_millis(300);

/// The exit code of a process killed by SIGKILL.
const KILLED: u32 = 137;

/// Sends a signal to a container's first process.
pub(super) async fn signal(client: &Client, id: &str, signal: u32) -> Result<(), Fault> {
    let request = KillRequest { container_id: id.to_owned(), exec_id: String::new(), signal };
    client.call(request, client.limits().question).await.map(|_| ())
}

/// What is known about a program whose start was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trace {
    /// It was not started.
    None,
    /// It was started.
    Started,
    /// It was started and then killed. containerd undoes a start if it is told to stop in the meantime.
    Undone,
}

/// Looks for a container's first process. CRI loses track of a container if containerd restarts during its
/// start or end. The container's shim still knows the process.
pub(super) async fn trace(client: &Client, id: &str) -> Result<Trace, Fault> {
    let process = match client.ask(GetRequest { container_id: id.to_owned() }).await {
        Ok(answer) => answer.process.unwrap_or_default(),
        Err(Fault::NotFound(_)) => return Ok(Trace::None),
        Err(fault) => return Err(fault),
    };
    Ok(match process.status {
        0 | PROCESS_CREATED => Trace::None,
        // The process that ended had not executed the program yet.
        PROCESS_STOPPED if leftovers::waits(id) => Trace::None,
        PROCESS_STOPPED if process.exit_status == KILLED => Trace::Undone,
        _ => Trace::Started,
    })
}

/// Exit code and time of a container that CRI has lost track of. [`Fault::NotFound`] means that there is
/// nothing to wait for. [`Fault::Late`] means that it has not ended yet.
pub(super) async fn exit(client: &Client, id: &str) -> Result<(i32, SystemTime), Fault> {
    let request = WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
    let answer = client.call_once(request, WAIT_MAX).await?;
    Ok(ended(answer.exit_status, answer.exited_at))
}

/// Thaws a container whose kill was interrupted, because it would stay frozen forever. Returns whether it was
/// frozen.
pub(super) async fn thaw(client: &Client, id: &str) -> Result<bool, Fault> {
    let process = client.ask(GetRequest { container_id: id.to_owned() }).await?.process.unwrap_or_default();
    if !leftovers::is_frozen(process.pid, id) {
        return Ok(false);
    }
    tokio::time::sleep(KILL_MAX).await;
    Ok(leftovers::is_frozen(process.pid, id) && leftovers::thaw(process.pid))
}

/// Exit code and time, as containerd reports them.
pub(super) fn ended(status: u32, at: Option<Timestamp>) -> (i32, SystemTime) {
    let at = at.and_then(|at| {
        let (seconds, nanos) = (u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    });
    (i32::try_from(status).unwrap_or(255), at.unwrap_or_else(SystemTime::now))
}
