//! The agent: pods in by UID, one stream of typed events out.
//!
//! [`Agent::start`] takes a runtime and a state directory; [`Agent::add`] has a pod run, [`Agent::update`] changes it where it
//! runs, [`Agent::stop`] ends it in order, [`Agent::remove`] forgets one that is over, [`Agent::subscribe`] says what happens, [`Agent::state`] what is known. It knows
//! nothing of terminals, files of manifests or exit codes.
//!
//! One worker per pod feeds what happens to the engine and carries the engine's actions out on the runtime. It holds no
//! ordering rule of its own. Every action runs as a task of its own, so nothing that one container does holds another up
//! (G-13 to G-17), and every outcome is an event the worker reacts to at once: there is no polling between an exit and what
//! follows from it.

mod agent;
mod cause;
pub mod clock;
mod env;
pub mod event;
mod expand;
pub mod fake;
mod fields;
pub mod files;
pub mod hooks;
mod ignored_signal;
pub mod log;
mod message;
mod net;
pub mod options;
mod pod;
mod podfiles;
mod prober;
mod quantity;
pub mod security;
pub mod state;
mod store;
pub mod tasks;
mod text;
mod uid;
pub mod userns;
mod volumes;
mod worker;

pub use agent::{Agent, FinishedPod};
pub use cause::SandboxFailure;
pub use pod::{LogVisit, PodContext};
pub use uid::PodUid;
pub use volumes::host_path;
