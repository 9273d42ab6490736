//! Pods on one machine: `outrigger run` in the foreground, and the node that keeps pods running.
//!
//! Both are clients of the [agent](outrigger_agent): they make pods of workloads ([`work`]), add them, and
//! carry the agent's events to whoever wants to know: the output, the events file, the status file, and the
//! registry that other commands are served from ([`control`]).

pub mod control;
#[doc(hidden)]
pub mod fuzz;
pub mod node;
mod outcome;
pub mod record;
pub mod run;
mod sinks;
mod status_file;
mod supervisor;
pub mod work;
mod workload;
