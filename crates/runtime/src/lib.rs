//! Container runtimes.
//!
//! [`Runtime`] is the complete interface between the agent and a runtime. A runtime carries out single steps.
//! It never decides *when* anything starts or stops: the engine decides that, and the agent passes it on.

pub mod credentials;
pub mod descriptors;
pub mod doctor;
pub mod errno;
pub mod lines;
pub mod listen;
pub mod mounts;
pub mod netns;
pub mod ownership;
pub mod private;
pub mod processes;
pub mod reference;
pub mod rootless;
pub mod signals;
pub mod stop;
pub mod tree;
pub mod trusted;
mod types;

// These types belong to the engine: why an image is not available, and how a pod is stopped. A runtime stores
// the stop plan and carries it out if the agent dies.
pub use outrigger_lifecycle::{PullCause, StopPlan};
pub use ownership::{NodeError, NodeIdentity, Owner};
pub use types::*;

use std::future::Future;
use std::time::Duration;

use tokio::net::TcpStream;

/// Runs sandboxes and containers.
///
/// Every call may be made from any task, concurrently, and may be dropped at any time.
/// [`Runtime::remove_container`] and [`Runtime::remove_sandbox`] also clean up after a dropped call.
pub trait Runtime: Send + Sync + 'static {
    /// The name that users see: `embedded` or `cri`.
    fn name(&self) -> &'static str;

    /// Makes sure that the image is present, and returns its properties. Concurrent calls for one reference
    /// share one pull. Reports progress through `progress`, which must not block.
    fn pull_image(
        &self,
        request: PullRequest,
        progress: ProgressSink,
    ) -> impl Future<Output = Result<Image, ImageError>> + Send;

    /// Checks for errors that would occur now and most likely also later, such as a host port in use. The
    /// caller can then report them before it starts anything.
    fn check_sandbox(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let _ = spec;
        Ok(())
    }

    /// Whether pods get user namespaces with [`UserNamespace::Auto`].
    fn gives_user_namespaces(&self) -> bool {
        false
    }

    /// Creates the pod's namespaces, network and hostname, and the files that all its containers share.
    fn create_sandbox(&self, spec: SandboxSpec)
    -> impl Future<Output = Result<Sandbox, RuntimeError>> + Send;

    /// Kills everything that still runs in the sandbox, and removes the sandbox with its contents.
    /// Idempotent.
    fn remove_sandbox(&self, id: &SandboxId) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Resolves when an existing sandbox has ended by itself, together with everything that its containers
    /// share. Never resolves for runtimes whose sandboxes cannot end by themselves.
    fn sandbox_lost(&self, id: &SandboxId) -> impl Future<Output = ()> + Send {
        let _ = id;
        std::future::pending()
    }

    /// The sandboxes of this runtime's owner. A process owns the sandboxes that it has created. A node also
    /// owns those of its previous processes, which may be incomplete or partly removed. For such a sandbox
    /// [`Runtime::adopt_sandbox`] fails, and [`Runtime::remove_sandbox`] removes it.
    fn list_sandboxes(&self) -> impl Future<Output = Result<Vec<SandboxId>, RuntimeError>> + Send;

    /// Adopts a sandbox, with its running and ended containers, from a process that died. This runtime then
    /// treats it as its own: every returned container can be waited for, stopped and removed, commands can be
    /// run in it, and new containers can be created. Nothing that is running is disturbed.
    ///
    /// `Err(RuntimeError::NotFound)` means that the sandbox is lost: it was incomplete, or the machine was
    /// rebooted. After any error, [`Runtime::remove_sandbox`] removes what exists.
    fn adopt_sandbox(
        &self,
        id: &SandboxId,
    ) -> impl Future<Output = Result<(Sandbox, Vec<Adopted>), RuntimeError>> + Send;

    /// Prepares a container: its rootfs, mounts and cgroup, and a process that waits to be started. None of
    /// the user's programs runs yet. `Err(RuntimeError::NotFound)` for a sandbox, here and at the start,
    /// means that the sandbox is lost: nothing can run in it.
    fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: ContainerSpec,
    ) -> impl Future<Output = Result<ContainerId, RuntimeError>> + Send;

    /// Starts a created container. When this returns `Ok`, the user's program has been exec'd. For a program
    /// that cannot be exec'd (not found, not executable) it returns `Err(RuntimeError::Start)`, and no exit
    /// event follows.
    fn start_container(&self, id: &ContainerId)
    -> impl Future<Output = Result<Started, RuntimeError>> + Send;

    /// Determines the result of a start that was in progress when its process died. The container was adopted
    /// without a start. A runtime that can still start it does so. `None` means that its program did not run
    /// and that the container can only be removed. An error means that the result is unknown.
    fn finish_start(
        &self,
        id: &ContainerId,
    ) -> impl Future<Output = Result<Option<Started>, RuntimeError>> + Send {
        let _ = id;
        std::future::ready(Ok(None))
    }

    /// Sends the container its stop signal. Some runtimes can only stop a container and kill it after a time.
    /// `grace` is a hint for these: they may kill it after this time, but never earlier. A container that has
    /// already ended is not an error.
    fn terminate(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Kills the container and everything in it immediately. A container that has already ended is not an
    /// error.
    fn kill(&self, id: &ContainerId) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Resolves when the container has exited, however long ago that was. Several callers may wait, also
    /// before the start. Each waiter gets the exit exactly once. Does not poll if the runtime has events.
    fn wait(&self, id: &ContainerId) -> impl Future<Output = Result<Exit, RuntimeError>> + Send;

    /// Runs a command inside a running container, with the container's own identity, limits and filters.
    /// Collects at most [`ExecRequest::output_limit`] bytes of its output. The command is killed if the call
    /// is dropped or the timeout passes.
    fn exec(
        &self,
        id: &ContainerId,
        request: ExecRequest,
    ) -> impl Future<Output = Result<ExecOutput, RuntimeError>> + Send;

    /// Starts a command inside a running container, like [`Runtime::exec`], and returns its standard streams:
    /// three pipes, or a new terminal of the container. Nothing is buffered or truncated. A stream that is
    /// not read blocks the command, and dropping standard input closes it. A command that cannot be run fails
    /// either here or in its result.
    fn exec_streams(
        &self,
        id: &ContainerId,
        request: ExecStreamsRequest,
    ) -> impl Future<Output = Result<ProcessStreams, RuntimeError>> + Send;

    /// Connects to the streams of a container's own program: its output from now on, which also goes to the
    /// log, and its standard input if the container has one. A client that does not read is disconnected, so
    /// that the program never waits.
    fn attach(&self, id: &ContainerId) -> impl Future<Output = Result<ProcessStreams, RuntimeError>> + Send {
        let _ = id;
        async {
            Err(RuntimeError::Other(
                "this runtime does not support attaching to a running program".to_owned(),
            ))
        }
    }

    /// The resource usage of a running container.
    fn stats(&self, id: &ContainerId) -> impl Future<Output = Result<Stats, RuntimeError>> + Send;

    /// Connects to a TCP port of the pod, like a program in it that connects to its own loopback.
    fn port_forward(
        &self,
        id: &SandboxId,
        port: u16,
    ) -> impl Future<Output = Result<TcpStream, RuntimeError>> + Send;

    /// Removes an exited (or never started) container: rootfs, cgroup, state. The log file stays. Idempotent.
    fn remove_container(&self, id: &ContainerId) -> impl Future<Output = Result<(), RuntimeError>> + Send;
}
