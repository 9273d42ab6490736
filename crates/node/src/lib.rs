//! Runs pods on one machine: `outrigger run` in the foreground, and the node that keeps pods running.
//!
//! Both read manifests into [`work`] ([`mod@read`]) and are clients of the [agent](outrigger_agent). They
//! create the pods of workloads and add them to the agent. They forward its events to the output, the events
//! file, the status file, and the registry that serves other commands ([`control`]).

pub mod control;
#[doc(hidden)]
pub mod fuzz;
pub mod input;
pub mod node;
mod outcome;
mod pod_check;
pub mod read;
mod read_options;
pub mod record;
pub mod run;
mod sinks;
mod status_file;
mod supervisor;
pub mod work;
mod workload;
