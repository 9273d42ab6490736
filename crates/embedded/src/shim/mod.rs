//! The small process between one container and the agent.
//!
//! It is the agent's own binary, executed again with `shim containers` and forked for each container
//! (`fork_server`). It is single-threaded because it forks, and uses less than a megabyte of its own memory.
//! It outlives the agent, so that the container's exit code, log and files are correct whichever process
//! dies.
//!
//! # The protocol with the agent
//!
//! The shim starts with one end of a socket pair. The `protocol` module has the messages.
//!
//! ```text
//! agent                                shim                                    container's first process
//!   │ Create(config) ──────────────────▶ cgroups, pipes, clone3 ───────────────▶ joins cgroups, opens rootfs and volumes
//!   │                                    oom_score_adj ── 'l' ─────────────────▶ namespaces, mounts, pivot, masks, stdio
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
//! * If the agent goes away before the start, the container ends with it. After the start, the shim stays. It
//!   listens on `sock` in the container's directory, and uses the same protocol with any client. A new client
//!   immediately gets the state of the container.
//! * A client that sends `Attach` gets the output of the container from then on. The log also gets it.
//! * Commands exec'd for a client are killed when that client goes away.
//! * The container is killed with its shim (`PR_SET_PDEATHSIG`), because otherwise nothing would read its
//!   output or its exit code.
//! * An exit is stored in `state.json` before it is sent.

mod clients;
mod create;
mod exec;
mod fork_server;
mod guard;
mod log;
mod oci;
mod pause;
mod server;
mod uplink;
mod watchers;

pub(crate) use fork_server::{ANSWER, ID_MAX, room_for_id};
pub use guard::{KilledPod, KilledRun, killed_runs};
pub(crate) use pause::NOTE as PAUSE_NOTE;

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::{network, rootless, sys};
use outrigger_runtime::SandboxId;

/// Runs a shim. This is the main function of the binary if its first argument is `shim`. `args` are the
/// arguments after it.
///
/// Must be called before the process has a second thread. Returns the exit code.
pub fn shim_main(args: impl Iterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.collect();
    // Because it is executed by descriptor, it would otherwise be listed with the descriptor's number as its
    // name.
    let _ = rustix::thread::set_name(c"outrigger");
    // This must be determined before joining anything that would change it.
    rootless::standing();
    // Ctrl-C and a service manager's TERM are meant for the agent, which stops containers in order.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        sys::ignore_signal(signal);
    }
    let result = match args.first().and_then(|arg| arg.to_str()) {
        Some("containers") => take_control().and_then(|control| fork_server::run(control, &args)),
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

/// Moves the socket away from standard input, where a container must not find it, and leaves the agent's
/// session.
fn take_control() -> std::io::Result<OwnedFd> {
    // A process that outlives the agent must not keep inherited descriptors open. Others may wait for the end
    // of a pipe, or for a lock on a descriptor.
    sys::close_from(3)?;
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    let _ = rustix::process::setsid();
    // The agent's umask must not matter. Files that are created here have the given modes, minus this.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::chdir("/")?;
    Ok(control)
}
