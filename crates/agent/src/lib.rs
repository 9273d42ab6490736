//! The agent runs pods identified by UID and reports one stream of typed events.
//!
//! [`Agent::start`] takes a runtime and a state directory. [`Agent::prepare`] translates a pod,
//! [`Agent::add`] runs it, [`Agent::update`] changes it in place, [`Agent::stop`] stops it in order, and
//! [`Agent::remove`] removes a pod that has ended. [`Agent::subscribe`] returns events, [`Agent::state`] the
//! current state. The agent does not know about terminals, manifest files or exit codes.
//!
//! Each pod has one worker, which passes events to the engine and executes the engine's actions on the
//! runtime. It contains no ordering rules. Every action runs in its own task, so containers do not block each
//! other (G-13 to G-17). Every result is an event that the worker handles immediately: nothing is polled
//! between an exit and the actions that follow from it.

mod agent;
mod cause;
pub mod clock;
mod env;
pub mod event;
mod expand;
mod fields;
pub mod files;
pub mod hooks;
mod ignored_signal;
pub mod log;
mod log_follower;
mod message;
mod net;
pub mod options;
mod pod;
mod podfiles;
mod prober;
mod quantity;
mod reference;
pub mod security;
pub mod state;
mod store;
pub mod tasks;
mod text;
mod uid;
pub mod userns;
mod volume_error;
mod volumes;
mod worker;

pub use agent::{Agent, AgentError, FinishedPod};
pub use cause::SandboxError;
pub use net::PortError;
pub use pod::{LogVisit, PodContext, PodError, PreparedPod, host_ports};
pub use store::{LeftPod, left_pods};
pub use uid::PodUid;
pub use volume_error::VolumeError;
pub use volumes::host_path;
pub use worker::RestartReply;
