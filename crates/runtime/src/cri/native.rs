//! What containerd is asked beside CRI, where CRI has no word for it.

use std::time::{Duration, SystemTime};

use super::client::{Client, Fault};
use super::leftovers;
use super::wire::{GetRequest, KillRequest, PROCESS_CREATED, PROCESS_STOPPED, Timestamp, WaitRequest};

/// Containers may run for years; they are looked at now and then all the same.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A kill that takes longer was broken off.
const KILL_MAX: Duration = Duration::from_millis(300);

/// The exit code of what SIGKILL ended.
const KILLED: u32 = 137;

/// Sends a container's first process a signal.
pub(super) async fn signal(client: &Client, id: &str, signal: u32) -> Result<(), Fault> {
    let request = KillRequest { container_id: id.to_owned(), exec_id: String::new(), signal };
    client.call(request, client.limits().question).await.map(|_| ())
}

/// What became of a program whose start nobody answered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trace {
    /// It was not started.
    None,
    /// It was started.
    Started,
    /// It was started and killed: containerd undoes a start during which it is told to stop.
    Undone,
}

/// Looks for a container's first process. CRI loses track of containers whose start or end a restart of containerd came
/// in between; their shims know.
pub(super) async fn trace(client: &Client, id: &str) -> Result<Trace, Fault> {
    let process = match client.ask(GetRequest { container_id: id.to_owned() }).await {
        Ok(answer) => answer.process.unwrap_or_default(),
        Err(Fault::NotFound(_)) => return Ok(Trace::None),
        Err(fault) => return Err(fault),
    };
    Ok(match process.status {
        0 | PROCESS_CREATED => Trace::None,
        // What has ended was not yet the program.
        PROCESS_STOPPED if leftovers::waits(id) => Trace::None,
        PROCESS_STOPPED if process.exit_status == KILLED => Trace::Undone,
        _ => Trace::Started,
    })
}

/// Code and time of the end of a container CRI has lost track of. [`Fault::NotFound`]: there is nothing to end;
/// [`Fault::Late`]: it has not ended yet.
pub(super) async fn exit(client: &Client, id: &str) -> Result<(i32, SystemTime), Fault> {
    let request = WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
    let answer = client.call_once(request, WAIT_MAX).await?;
    Ok(ended(answer.exit_status, answer.exited_at))
}

/// Lets a container go on whose killing was broken off: it is frozen and would stay so for ever. Whether it was such a
/// one.
pub(super) async fn thaw(client: &Client, id: &str) -> Result<bool, Fault> {
    let process = client.ask(GetRequest { container_id: id.to_owned() }).await?.process.unwrap_or_default();
    if !leftovers::is_frozen(process.pid, id) {
        return Ok(false);
    }
    tokio::time::sleep(KILL_MAX).await;
    Ok(leftovers::is_frozen(process.pid, id) && leftovers::thaw(process.pid))
}

/// Code and time of an end, as containerd tells them.
pub(super) fn ended(status: u32, at: Option<Timestamp>) -> (i32, SystemTime) {
    let at = at.and_then(|at| {
        let (seconds, nanos) = (u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    });
    (i32::try_from(status).unwrap_or(255), at.unwrap_or_else(SystemTime::now))
}
