//! Whatever runs containers.
//!
//! [`Runtime`] is the whole contract between the agent and a runtime. A runtime carries out single steps; it never
//! decides *when* anything starts or stops: that is the engine's, through the agent.

mod credentials;
pub mod cri;
pub mod doctor;
pub mod embedded;
mod errno;
#[doc(hidden)]
pub mod fuzz;
pub mod lines;
pub mod log_line;
mod mounts;
mod netns;
mod ownership;
mod private;
mod processes;
mod reference;
mod signals;
mod stop;
pub mod tree;
mod types;

pub use ownership::{NodeError, NodeIdentity, Owner};
pub use types::*;

use std::future::Future;
use std::time::Duration;

use tokio::net::TcpStream;

/// Runs sandboxes and containers.
///
/// Every call may be made from any task, concurrently, and may be dropped half-way: a dropped call leaves nothing
/// behind that [`Runtime::remove_container`] or [`Runtime::remove_sandbox`] would not clean.
pub trait Runtime: Send + Sync + 'static {
    /// The name users see: `embedded` or `cri`.
    fn name(&self) -> &'static str;

    /// Makes sure the image is present and returns what is known of it. Concurrent calls for one reference share one
    /// pull. Progress is reported through `progress`, which must not block.
    fn pull_image(
        &self,
        request: PullRequest,
        progress: ProgressSink,
    ) -> impl Future<Output = Result<Image, ImageError>> + Send;

    /// Refuses what could not be made now and, most likely, not later either: a host port that is taken. For saying so
    /// before anything is started.
    fn check_sandbox(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let _ = spec;
        Ok(())
    }

    /// Whether pods get user namespaces with [`UserNamespace::Auto`].
    fn gives_user_namespaces(&self) -> bool {
        false
    }

    /// Makes the pod's namespaces, network, hostname and the files every container shares.
    fn create_sandbox(&self, spec: SandboxSpec)
    -> impl Future<Output = Result<Sandbox, RuntimeError>> + Send;

    /// Ends whatever still runs in the sandbox (KILL), and removes it with everything it held. Idempotent.
    fn remove_sandbox(&self, id: &SandboxId) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Resolves when a sandbox that was made has ended by itself, and what its containers share with it. Never for a
    /// runtime whose sandboxes cannot.
    fn sandbox_lost(&self, id: &SandboxId) -> impl Future<Output = ()> + Send {
        let _ = id;
        std::future::pending()
    }

    /// The sandboxes of this runtime's owner: for a process those it has made, for a node also those that its processes
    /// before this one have left. Of the latter some may be half made or half removed, which
    /// [`Runtime::adopt_sandbox`] says and [`Runtime::remove_sandbox`] removes.
    fn list_sandboxes(&self) -> impl Future<Output = Result<Vec<SandboxId>, RuntimeError>> + Send;

    /// Takes over a sandbox, with its running and ended containers, from a process that died. From then on it is this
    /// runtime's as if it had made it: every container that is returned can be waited for, run commands in, stopped and
    /// removed, and new ones can be made. Nothing that runs is disturbed.
    ///
    /// `Err(RuntimeError::NotFound)` says that it is lost: it was not made to the end, or the machine was started again
    /// since. Whatever the error, [`Runtime::remove_sandbox`] removes what there is.
    fn adopt_sandbox(
        &self,
        id: &SandboxId,
    ) -> impl Future<Output = Result<(Sandbox, Vec<Adopted>), RuntimeError>> + Send;

    /// Prepares a container: rootfs, mounts, cgroup, process waiting to be started. Nothing of the user's runs yet.
    /// `Err(RuntimeError::NotFound)` of a sandbox, here and at the start, says that it is lost: nothing can run in it.
    fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: ContainerSpec,
    ) -> impl Future<Output = Result<ContainerId, RuntimeError>> + Send;

    /// Starts a created container. When this returns `Ok` the user's program has been exec'd; a program that cannot be
    /// exec'd (not found, not executable) is `Err(RuntimeError::Start)`, and no exit event follows.
    fn start_container(&self, id: &ContainerId)
    -> impl Future<Output = Result<Started, RuntimeError>> + Send;

    /// Finds out what became of a start that was under way when its process died, of a container that was adopted
    /// without a start; a runtime that can start it still does so. `None`: its program was not run, and the container
    /// can only be removed. An error says that nobody knows.
    fn finish_start(
        &self,
        id: &ContainerId,
    ) -> impl Future<Output = Result<Option<Started>, RuntimeError>> + Send {
        let _ = id;
        std::future::ready(Ok(None))
    }

    /// Sends the container its stop signal. `grace` is a hint for runtimes that can only stop-then-kill by themselves:
    /// they may KILL once it is over, never before. A container that is already gone is not an error.
    fn terminate(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Kills the container and everything in it, now. A container that is already gone is not an error.
    fn kill(&self, id: &ContainerId) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Resolves when the container has exited, however long ago that was; may be called by several waiters, and before
    /// the start. Never polls where the runtime can tell by itself. An exit is reported exactly once per waiter.
    fn wait(&self, id: &ContainerId) -> impl Future<Output = Result<Exit, RuntimeError>> + Send;

    /// Runs a command inside a running container under the container's own identity, limits and filters, and collects
    /// at most [`ExecRequest::output_limit`] bytes of its output. Dropping the call or passing the timeout kills the
    /// command.
    fn exec(
        &self,
        id: &ContainerId,
        request: ExecRequest,
    ) -> impl Future<Output = Result<ExecOutput, RuntimeError>> + Send;

    /// Starts a command inside a running container, as [`Runtime::exec`] does, and hands its standard streams over:
    /// three pipes, or a terminal of the container's own. Nothing is kept or cut: a stream that is not read makes the
    /// command wait, standard input that is dropped ends. A command that cannot be run shows either here or as its end.
    fn exec_streams(
        &self,
        id: &ContainerId,
        request: ExecStreamsRequest,
    ) -> impl Future<Output = Result<ProcessStreams, RuntimeError>> + Send;

    /// Connects to the streams of a container's own program: what it writes from now on, which is in the log all the
    /// same, and its standard input if the container has one. Whoever does not read is cut off; the program never waits.
    fn attach(&self, id: &ContainerId) -> impl Future<Output = Result<ProcessStreams, RuntimeError>> + Send {
        let _ = id;
        async {
            Err(RuntimeError::Other(
                "this runtime does not let anybody attach to a running program".to_owned(),
            ))
        }
    }

    /// What a running container uses.
    fn stats(&self, id: &ContainerId) -> impl Future<Output = Result<Stats, RuntimeError>> + Send;

    /// Connects to a TCP port of the pod, as a program in it would that connects to its own loopback.
    fn port_forward(
        &self,
        id: &SandboxId,
        port: u16,
    ) -> impl Future<Output = Result<TcpStream, RuntimeError>> + Send;

    /// Removes an exited (or never started) container: rootfs, cgroup, state. The log file stays. Idempotent.
    fn remove_container(&self, id: &ContainerId) -> impl Future<Output = Result<(), RuntimeError>> + Send;
}
