//! The agent: feeds what happens to a pod to the engine and carries the engine's actions out on a runtime.
//!
//! One worker per pod. It holds no ordering rule of its own: it asks the engine. Every action runs as a task of its
//! own, so nothing that one container does holds another up (G-13 to G-17), and every outcome is an event the worker
//! reacts to at once: there is no polling between an exit and what follows from it.

pub mod clock;
mod env;
mod expand;
mod fields;
mod quantity;
mod security;
mod volumes;

pub use fields::Host;
