//! The messages of CRI v1 and of containerd's own API that are used here.
//!
//! They are generated from `proto/`, which has only the messages and fields that Outrigger sets or reads. To
//! change them, edit the protos and run `cargo xtask generate`.

#[rustfmt::skip]
#[allow(clippy::enum_variant_names, dead_code, missing_docs, unreachable_pub, reason = "generated")]
mod generated;

use prost::Message;

pub(crate) use self::generated::containerd::services::{
    containers::v1 as containers, events::v1 as events, tasks::v1 as tasks,
};
pub(crate) use self::generated::google::protobuf::{Any, Timestamp};
pub(crate) use self::generated::runtime::v1::*;

/// A request, its method, and the type of its answer.
pub(crate) trait Rpc: Message + Clone + Default + 'static {
    /// The method, as an HTTP/2 path.
    const PATH: &'static str;
    /// The answer, or one item of a stream of answers.
    type Answer: Message + Default + 'static;
}

// Enum values are numbers in messages. They are compared as numbers, because a runtime can send any number.

/// The state of a container that was not started.
pub(crate) const CONTAINER_CREATED: i32 = ContainerState::ContainerCreated as i32;
/// The state of a container that has ended, or never ran.
pub(crate) const CONTAINER_EXITED: i32 = ContainerState::ContainerExited as i32;
/// The state of a container that the runtime has lost track of.
pub(crate) const CONTAINER_UNKNOWN: i32 = ContainerState::ContainerUnknown as i32;
/// The state of a sandbox whose containers can run. All other sandboxes are stopping or removed.
pub(crate) const SANDBOX_READY: i32 = PodSandboxState::SandboxReady as i32;

/// The status of a task that was not started.
pub(crate) const PROCESS_CREATED: i32 = tasks::Status::Created as i32;
/// The status of a task that has ended.
pub(crate) const PROCESS_STOPPED: i32 = tasks::Status::Stopped as i32;

/// containerd's topic of start events.
pub(crate) const TOPIC_START: &str = "/tasks/start";
/// containerd's topic of exit events.
pub(crate) const TOPIC_EXIT: &str = "/tasks/exit";
