//! Runs the real engine with a virtual clock, scripted containers and random faults from a seed.
//!
//! [`simulate`] plays one life of a pod, from its start to its end. [`Simulator`] plays many. This crate has
//! no lifecycle rules: the engine decides what starts and stops, and the script determines how containers
//! behave.
#![forbid(unsafe_code)]

pub mod invariants;
pub mod random;
mod rng;
mod scenario;
mod script;
mod script_duration;
mod simulator;
mod world;

pub use rng::Rng;
pub use scenario::{Scenario, ScriptError};
pub use script::{
    AgentRestart, ContainerScript, Faults, HookScript, Hooks, Moment, OnTerm, SandboxScript, Script,
    StopScript, Tries,
};
pub use script_duration::ScriptDuration;
pub use simulator::{
    Counters, Decider, Ending, Options, Outcome, Simulator, Summary, TraceRecording, Watch, simulate,
};
pub use world::FaultCounters;
