//! The limit on open file descriptors of this process, and the limit that its children start with.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that this process was started with, if it was raised.
static STARTED_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard limit, once. The low soft limit only protects programs that use
/// `select`. Containers keep the limit that this process was started with. Call this when the process starts.
pub fn raise_limit() {
    STARTED_WITH.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        // If the kernel refuses, the lower limit applies.
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
    // SAFETY: the closure only makes one system call, which takes no lock and allocates no memory.
    unsafe { command.pre_exec(set) };
}
