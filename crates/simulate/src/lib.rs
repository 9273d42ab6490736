//! Runs the real engine with a virtual clock, scripted containers and seeded faults.
//!
//! [`simulate`] plays one life of a pod; [`Simulator`] plays millions. There are no lifecycle rules here: the
//! engine decides what starts and stops when, and the script says what containers do.
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
pub use simulator::{Counters, Decider, Ending, Options, Outcome, Simulator, Summary, Tape, Watch, simulate};
pub use world::FaultCounters;
