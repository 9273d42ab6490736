//! The control interface of a run, used by other commands: list pods, read logs, run a command, stop.
//!
//! A run listens on its own socket, in a directory that only its user can access. One connection carries one
//! request. Requests are served from the [`PodRegistry`], which is updated from the agent's events. So a
//! client that hangs or misbehaves affects only its own connection.

mod client;
mod exec;
mod lines;
mod logs;
mod pick;
mod place;
mod pod_state;
mod registry;
mod selector;
mod server;
mod wire;

pub use client::{AskError, Connection, Found, Run, runs};
pub use lines::{Lines, Timestamps};
pub use outrigger_runtime::WindowSize;
pub use pick::{Named, Object, ObjectError, PickError, Picked, RunName, RunNameError, Which};
pub use selector::{Selector, SelectorError};
pub use wire::{
    Accepted, Answer, Applied, AppliedObject, ContainerState, ExecStart, LogsRequest, PodState, Request,
    RunState,
};

pub(crate) use registry::{OfRun, PodRegistry, Progress, StartFault};
pub(crate) use server::{Listening, Order, OrderError, RestartOrder, RunFacts, Runner, StopOf, listen};

pub(crate) use wire::fuzz;
