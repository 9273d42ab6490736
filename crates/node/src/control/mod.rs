//! What other commands ask a run while it goes on: who is there, what it wrote, a command
//! in it, its end.
//!
//! A run listens on a socket of its own, in a directory that only its user can enter. One connection carries one
//! request. Whoever asks is served from the [`PodRegistry`], which is filled from the agent's events: a client that hangs or lies
//! holds up nothing but its own connection.

mod client;
mod exec;
mod lines;
mod logs;
mod look;
mod pick;
mod place;
mod registry;
mod selector;
mod server;
mod wire;

pub use client::{AskError, Connection, Found, Run, runs};
pub use lines::{Lines, Timestamps};
pub use outrigger_runtime::WindowSize;
pub use pick::{Named, Object, Picked, Which};
pub use selector::Selector;
pub use wire::{
    Accepted, Answer, Applied, AppliedObject, ContainerState, ExecStart, LogsRequest, PodState, Request,
    RunState,
};

pub(crate) use registry::PodRegistry;
pub(crate) use server::{Listening, Order, OrderError, RestartOrder, RunFacts, StopOf, listen};

pub(crate) use wire::fuzz;
