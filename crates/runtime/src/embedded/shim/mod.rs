//! The small process that stands between one container and everybody else.
//!
//! The agent's own binary, executed again with `shim container`, one per container. It is single-threaded (it forks),
//! keeps less than a megabyte of its own, and outlives the agent: the container's exit code, its log and its files are
//! in order whoever dies.
//!
//! # The talk with the agent
//!
//! The shim starts with one end of a socket pair as its standard input. Messages are those of the `protocol` module.
//!
//! ```text
//! agent                                shim                                    container's first process
//!   │ Create(config) ──────────────────▶ cgroups, pipes, clone3 ───────────────▶ namespaces, rootfs, mounts, pivot
//!   │                                    joins v1 cgroups ── 'c' ──────────────▶ cgroup namespace, masks, stdio
//!   │                                    state.json ◀───────────── Ready ────────┤
//!   │ ◀───────────── Created / Failed ───┤
//!   │ Start ───────────────────────────▶ 's' ──────────────────────────────────▶ identity, seccomp, execve
//!   │ ◀───────────── Started / Failed ───┤ ◀───────── socket closed / Failed ────┘
//!   │ Signal, Kill ────────────────────▶ pidfd, cgroup.kill
//!   │ Exec + descriptor ───────────────▶ fork: joins the namespaces, identity, seccomp, execve
//!   │ ◀───────────── ExecDone ───────────┤
//!   │ ◀───────────── Exited ─────────────┤ (log drained, state.json written) then it removes its cgroup and ends
//! ```
//!
//! * An agent that goes away before the start takes the container with it; after the start the shim stays, listening on
//!   `sock` in the container's directory, and speaks the same protocol with whoever connects. A client that connects is
//!   told at once how far the container is.
//! * Whoever sends `Attach` gets what the container writes from then on, besides the log.
//! * Commands exec'd for a client die when that client goes away.
//! * The container dies with its shim (`PR_SET_PDEATHSIG`): nobody would be left to read its log or its exit code.
//! * Nothing is sent about an exit before it is in `state.json`.

mod clients;
mod create;
mod exec;
mod guard;
mod log;
mod oci;
mod pause;
mod server;
mod uplink;
mod watchers;

pub use guard::{KilledRun, killed_runs};
pub(crate) use pause::NOTE as PAUSE_NOTE;

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::{network, rootless, sys};
use crate::SandboxId;

/// Runs a shim: what the binary does when its first argument is `shim`. `args` are the ones after it.
///
/// Must be called before the process has a second thread. Returns the exit code.
pub fn shim_main(args: impl Iterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.collect();
    // Before anything is joined that would change the answer.
    rootless::standing();
    // Ctrl-C and a service manager's TERM are for the agent, which stops containers in their order.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        sys::ignore_signal(signal);
    }
    let result = match args.first().and_then(|arg| arg.to_str()) {
        Some("container") => take_control().and_then(server::run),
        Some("guard") => take_control().and_then(|_| guard::run(&args[1..])),
        Some("uplink") => take_control().and_then(|control| uplink::run(control, &args[1..])),
        Some("try-oci-runtime") => take_control().and_then(oci::try_runtime),
        Some("pause") => take_control().and_then(|control| pause::run(control, &args[1..])),
        Some("release-network") => {
            let ids =
                args[1..].iter().map(|id| SandboxId(id.to_string_lossy().into_owned())).collect::<Vec<_>>();
            network::release_later(&ids)
        }
        _ => Err(std::io::Error::other("this command is for internal use: see `outrigger --help`")),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("outrigger shim: {error}");
            1
        }
    }
}

/// Takes the socket off standard input, where a container must not find it, and leaves the agent's session.
fn take_control() -> std::io::Result<OwnedFd> {
    // Whatever the agent was started with is not for those who outlive it: others may wait for the end of a pipe or for a
    // lock that goes with a descriptor.
    sys::close_from(3)?;
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    let _ = rustix::process::setsid();
    // Whatever the agent was started with: modes of files made here are meant as written, minus this.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::chdir("/")?;
    Ok(control)
}
