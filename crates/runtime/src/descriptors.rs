//! How many file descriptors this process may open, and who may use them.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit this process was started with, once it was raised.
static STARTED_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard one, once: the soft one is for programs that use `select`. Containers keep the
/// limit this process was started with. To be called when the process starts.
pub fn raise_limit() {
    STARTED_WITH.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        // If it is refused, the lower limit counts.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        limit
    });
}

/// How many descriptors this process may have open.
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Starts a command with the limit that this process was started with.
pub fn with_first_limit(command: &mut Command) {
    let Some(limit) = STARTED_WITH.get().copied() else { return };
    let set = move || Ok(setrlimit(Resource::Nofile, limit)?);
    // SAFETY: one system call, which takes no lock and no memory.
    unsafe { command.pre_exec(set) };
}
