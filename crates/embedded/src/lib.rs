//! The runtime inside the binary: root file systems, namespaces, cgroups, networks, shims.
//!
//! # Why it is written by hand
//!
//! The first design used an OCI runtime library inside the shim. Compared to that, a container starts about
//! three times faster with this code. The same code path serves a container's first process and everything
//! that is exec'd into it, so that filter, capabilities and limits cannot differ between the two. It also
//! needs no C library at build time.
//!
//! # Modules
//!
//! * [`EmbeddedRuntime`] is part of the agent. It creates sandboxes, starts one shim per container and talks
//!   to it (`link`), and cleans up after agents that died (`orphans`).
//! * The shim (`shim`, [`shim_main`]) is the same binary. It is executed once, and forked for each container.
//!   It is single-threaded. It forks the container's first process, keeps its log and exit code, and runs
//!   commands in the container.
//! * The container's first process (`container`) builds the container around itself. Its root file system is
//!   mounted only in its own mount namespace, so that nothing of it is left when it ends.
//!
//! `layout` describes the files on disk, `protocol` the messages between agent and shim.

mod caps;
mod cgroup;
mod container;
pub mod doctor;
mod elsewhere;
mod fault;
#[doc(hidden)]
pub mod floor;
#[doc(hidden)]
pub mod fuzz;
mod hurry;
mod layout;
mod link;
pub mod network;
mod oci;
mod oci_runtime;
mod orphans;
mod program;
mod protocol;
mod reclaim;
pub mod rootless;
mod runtime;
mod sandbox;
mod seccomp;
mod shim;
mod socket;
mod spawner;
mod sys;
mod userns;
mod warning;

pub use container::apparmor::{AppArmorError, app_armor_fault, app_armor_is_active};
pub use oci::OciRuntimes;
pub use oci_runtime::OciRuntime;
pub use orphans::is_running;
pub use runtime::{EmbeddedConfig, EmbeddedRuntime};
pub use shim::{KilledPod, KilledRun, killed_runs, shim_main};
