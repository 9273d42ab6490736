//! Functions that `examples/floor.rs` shares with the runtime: kernel objects that are filled from a table.
//! They are not part of the API.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use crate::caps;
use crate::{cgroup, network, seccomp};
use outrigger_runtime::Identity;

/// The system call filter of a container without special settings.
///
/// # Errors
/// The kernel's version cannot be read.
pub fn system_call_filter() -> io::Result<Vec<libc::sock_filter>> {
    let identity = Identity::default();
    let filter = caps::wanted(&identity).and_then(|caps| seccomp::filter(&identity, caps));
    filter.map_err(|fault| io::Error::other(format!("{fault:?}"))).map(Option::unwrap_or_default)
}

/// Limits the devices of a cgroup of the unified hierarchy.
///
/// # Errors
/// The kernel refuses it.
pub fn limit_devices(cgroup: BorrowedFd<'_>) -> io::Result<()> {
    cgroup::limit_devices(cgroup)
}

/// Lets only the pod's own packets pass its port, which is named after its address.
///
/// # Errors
/// The kernel refuses it.
pub fn filter_port(address: Ipv4Addr) -> io::Result<()> {
    network::filter_port(address)
}

/// Removes the filter of [`filter_port`].
///
/// # Errors
/// The kernel refuses it.
pub fn unfilter_port(address: Ipv4Addr) -> io::Result<()> {
    network::unfilter_port(address)
}

/// The hardware address of a pod.
#[must_use]
pub fn mac_of(address: Ipv4Addr) -> [u8; 6] {
    network::mac_of(address)
}
