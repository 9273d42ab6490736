//! Pods on one machine: `outrigger run` in the foreground, and the node that keeps pods running.
//!
//! Both are clients of the [agent](outrigger_agent): they make pods of workloads ([`workload`](crate::Work)), add them, and
//! carry the agent's events to whoever wants to know: the output, the events file, the status file, and the
//! registry that other commands are served from ([`control`]).

pub mod control;
#[doc(hidden)]
pub mod fuzz;
mod node;
mod outcome;
mod record;
mod run;
mod sinks;
mod status_file;
mod supervisor;
mod work;
mod workload;

pub use node::{
    AtExit, FileReader, Keep, Node, NodeEnd, NodeError, NodeOptions, Reader, ShutdownGrace, new_id,
};
pub use record::{Retired, RunRecord};
pub use run::{RunError, RunOptions, RunResult, run};
pub use work::{PlannedPod, Work};
