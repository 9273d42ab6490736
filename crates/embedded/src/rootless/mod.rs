//! Running without root. The process makes itself root of a new user namespace, once, before it has a second
//! thread. It continues there as if it were root ([`enter`]).
//!
//! In such a namespace, the kernel does not permit some operations of root: creating device nodes, using
//! cgroups that were not delegated, adding interfaces to the machine's network, and using ids that are not
//! mapped. The code that needs these uses an alternative, or reports once what is missing.
//! docs/guide/rootless.md lists all of it.

mod enter;
mod processes;

pub use enter::{enter, why_not_rootless};
pub use outrigger_runtime::rootless::*;
pub(crate) use processes::{MountNamespace, namespaces_to_join};

use std::os::fd::AsFd;

use crate::sys;

/// Whether this process may change its network. If so, it needs no other one.
pub(crate) fn owns_network() -> bool {
    std::fs::File::open("/proc/self/ns/net").is_ok_and(|net| sys::owns_namespace(net.as_fd()))
}
