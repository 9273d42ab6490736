//! The agent: feeds what happens to a pod to the engine and carries the engine's actions out on a runtime.
//!
//! One worker per pod. It holds no ordering rule of its own: it asks the engine. Every action runs as a task of its
//! own, so nothing that one container does holds another up (G-13 to G-17), and every outcome is an event the worker
//! reacts to at once: there is no polling between an exit and what follows from it.

mod cause;
mod clock;
pub mod control;
mod env;
mod expand;
#[cfg(test)]
mod fake;
mod fields;
#[doc(hidden)]
pub mod fuzz;
mod hooks;
mod ignored_signal;
mod logfile;
mod logs;
mod message;
mod net;
mod node;
mod pod;
mod podfiles;
mod prober;
mod quantity;
mod report;
mod run;
mod security;
mod status_file;
mod store;
mod supervisor;
mod tasks;
mod text;
mod userns;
mod volumes;
mod worker;
mod workload;

pub use hooks::hook_from_here;

pub use node::{
    AtExit, FileReader, Keep, Node, NodeEnd, NodeError, NodeOptions, PodOptions, Reader, Retired, RunRecord,
    ShutdownGrace, new_id,
};
pub use run::{PlannedPod, RunError, RunOptions, RunResult, UserNamespaces, Work, run};
pub use security::{app_armor, seccomp_profile_path};
pub use volumes::host_path::{HostPathFault, fault as host_path_fault};
