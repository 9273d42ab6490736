//! The main loop. It passes events to the engine and carries out its decisions, on a virtual clock.

use outrigger_lifecycle::trace::{Entry, Recorder};
use outrigger_lifecycle::{Change, Decision, Engine, Event, Observation, Plan, RestartPolicy, Time, Wait};

use crate::scenario::{Scenario, ScriptError};
use crate::script::Script;
use crate::script_duration::ScriptDuration;
use crate::world::{FaultCounters, RuntimeMessage, Scheduled, World};

/// Makes the decisions. This is [`Engine`], except in tests that break its rules on purpose.
pub trait Decider {
    /// The plan.
    fn plan(&self) -> &Plan;
    /// The current observation.
    fn observation(&self) -> &Observation;
    /// Handles an event.
    fn handle(&mut self, event: &Event, now: Time);
    /// Decides what to do now.
    fn step(&mut self, now: Time, out: &mut Decision);
    /// Updates the pod to a new plan, and returns the changes.
    fn update(&mut self, plan: &Plan) -> Vec<Change>;
    /// Crashes, and restarts with only the stored state.
    fn restart(&mut self);
}

impl Decider for Engine {
    fn plan(&self) -> &Plan {
        self.plan()
    }

    fn observation(&self) -> &Observation {
        self.observation()
    }

    fn handle(&mut self, event: &Event, now: Time) {
        Engine::handle(self, event, now);
    }

    fn step(&mut self, now: Time, out: &mut Decision) {
        Engine::step(self, now, out);
    }

    fn update(&mut self, plan: &Plan) -> Vec<Change> {
        Engine::update(self, plan.clone()).expect("a scenario changes only what may change")
    }

    fn restart(&mut self) {
        let written = serde_json::to_vec(self.observation()).expect("an observation is plain data");
        let mut obs: Observation = serde_json::from_slice(&written).expect("what was written can be read");
        obs.recover();
        *self = Engine::resume(self.plan().clone(), obs);
    }
}

/// Observes a simulation. The methods are called after the fact.
pub trait Watch {
    /// Called after an event was handled.
    fn event(&mut self, plan: &Plan, obs: &Observation, event: &Event, now: Time);
    /// Called after a step.
    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time);
    /// Called after the pod was updated to the nth plan of the scenario.
    fn updated(&mut self, nth: usize, plan: &Plan, obs: &Observation, changes: &[Change], now: Time);
    /// Called after the agent has restarted from a crash.
    fn restarted(&mut self, plan: &Plan, obs: &Observation, now: Time);
    /// Called at the end. `running` are the containers that are actually running.
    fn over(&mut self, plan: &Plan, obs: &Observation, running: &[usize], now: Time);
}

/// A watcher that ignores everything.
impl Watch for () {
    fn event(&mut self, _: &Plan, _: &Observation, _: &Event, _: Time) {}
    fn step(&mut self, _: &Plan, _: &Observation, _: &Decision, _: Time) {}
    fn updated(&mut self, _: usize, _: &Plan, _: &Observation, _: &[Change], _: Time) {}
    fn restarted(&mut self, _: &Plan, _: &Observation, _: Time) {}
    fn over(&mut self, _: &Plan, _: &Observation, _: &[usize], _: Time) {}
}

/// Two watchers that both see everything.
impl<A: Watch, B: Watch> Watch for (A, B) {
    fn event(&mut self, plan: &Plan, obs: &Observation, event: &Event, now: Time) {
        self.0.event(plan, obs, event, now);
        self.1.event(plan, obs, event, now);
    }

    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        self.0.step(plan, obs, decision, now);
        self.1.step(plan, obs, decision, now);
    }

    fn updated(&mut self, nth: usize, plan: &Plan, obs: &Observation, changes: &[Change], now: Time) {
        self.0.updated(nth, plan, obs, changes, now);
        self.1.updated(nth, plan, obs, changes, now);
    }

    fn restarted(&mut self, plan: &Plan, obs: &Observation, now: Time) {
        self.0.restarted(plan, obs, now);
        self.1.restarted(plan, obs, now);
    }

    fn over(&mut self, plan: &Plan, obs: &Observation, running: &[usize], now: Time) {
        self.0.over(plan, obs, running, now);
        self.1.over(plan, obs, running, now);
    }
}

impl<W: Watch> Watch for &mut W {
    fn event(&mut self, plan: &Plan, obs: &Observation, event: &Event, now: Time) {
        (**self).event(plan, obs, event, now);
    }

    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        (**self).step(plan, obs, decision, now);
    }

    fn updated(&mut self, nth: usize, plan: &Plan, obs: &Observation, changes: &[Change], now: Time) {
        (**self).updated(nth, plan, obs, changes, now);
    }

    fn restarted(&mut self, plan: &Plan, obs: &Observation, now: Time) {
        (**self).restarted(plan, obs, now);
    }

    fn over(&mut self, plan: &Plan, obs: &Observation, running: &[usize], now: Time) {
        (**self).over(plan, obs, running, now);
    }
}

/// Records the trace, up to a limit.
#[derive(Debug)]
pub struct TraceRecording {
    recorder: Recorder,
    entries: Vec<Entry>,
    max: usize,
}

impl TraceRecording {
    /// A recorder that keeps at most `max` entries.
    pub fn new(plan: &Plan, max: usize) -> TraceRecording {
        TraceRecording { recorder: Recorder::new(plan), entries: Vec::new(), max }
    }

    /// The trace.
    pub fn into_entries(self) -> Vec<Entry> {
        self.entries
    }
}

impl Watch for TraceRecording {
    fn event(&mut self, plan: &Plan, obs: &Observation, event: &Event, now: Time) {
        self.recorder.on_event(plan, obs, event, now, &mut self.entries);
        self.entries.truncate(self.max);
    }

    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        self.recorder.on_step(plan, obs, decision, now, &mut self.entries);
        self.entries.truncate(self.max);
    }

    fn updated(&mut self, _: usize, plan: &Plan, obs: &Observation, changes: &[Change], now: Time) {
        self.recorder.on_update(plan, obs, changes, now, &mut self.entries);
        self.entries.truncate(self.max);
    }

    fn restarted(&mut self, _: &Plan, _: &Observation, _: Time) {}
    fn over(&mut self, _: &Plan, _: &Observation, _: &[usize], _: Time) {}
}

/// Limits of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The maximum virtual time.
    pub horizon: ScriptDuration,
    /// The maximum number of engine steps.
    pub steps_max: u64,
    /// The maximum number of recorded trace entries. With 0, nothing is recorded.
    pub trace_max: usize,
    /// The time at which a pod is stopped that never ends and is never told to stop.
    pub stop_endless_at: Option<ScriptDuration>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            horizon: ScriptDuration::seconds(24 * 3_600),
            steps_max: 200_000,
            trace_max: 100_000,
            stop_endless_at: Some(ScriptDuration::seconds(30)),
        }
    }
}

/// How a simulation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The pod is over.
    Finished,
    /// Nothing more will happen, but the pod is not over: it keeps running or waits forever.
    AtRest,
    /// The maximum virtual time has passed.
    OutOfTime,
    /// The engine has made the maximum number of steps.
    OutOfSteps,
}

/// Counters of a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of events that the engine handled.
    pub events: u64,
    /// The number of engine steps.
    pub steps: u64,
    /// The number of actions, including internal ones.
    pub actions: u64,
    /// The number of faults, by kind.
    pub faults: FaultCounters,
}

/// The result of a run of the [`Simulator`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// How it ended.
    pub ending: Ending,
    /// When it ended.
    pub at: Time,
    /// The counters.
    pub counters: Counters,
}

/// Plays pods through scenarios. It reuses its buffers, so that a million lives need no more memory than one.
#[derive(Debug)]
pub struct Simulator {
    world: World,
    decision: Decision,
    notes: Vec<RuntimeMessage>,
    running: Vec<usize>,
}

impl Default for Simulator {
    fn default() -> Self {
        Simulator::new()
    }
}

impl Simulator {
    /// A simulator.
    pub fn new() -> Simulator {
        Simulator {
            world: World::new(),
            decision: Decision::default(),
            notes: Vec::new(),
            running: Vec::new(),
        }
    }

    /// Why containers wait after the last step.
    pub fn waits(&self) -> &[(usize, Wait)] {
        &self.decision.waits
    }

    /// Plays one life of a pod.
    pub fn run(
        &mut self,
        decider: &mut impl Decider,
        scenario: &Scenario,
        seed: u64,
        options: &Options,
        watch: &mut impl Watch,
    ) -> Summary {
        self.world.reset(scenario, seed);
        let mut counters = Counters::default();
        let mut now = Time(0);
        let mut wake = Some(now);
        let ending = loop {
            let (at, woken) = match (self.world.next_at(), wake) {
                (Some(at), Some(wake)) if at <= wake => (at, false),
                (_, Some(wake)) => (wake.max(now), true),
                (Some(at), None) => (at, false),
                (None, None) => break Ending::AtRest,
            };
            if at.0 > options.horizon.0 {
                break Ending::OutOfTime;
            }
            now = at;
            let heard = if woken {
                !self.world.agent_down()
            } else {
                self.next(decider, scenario, now, &mut counters, watch)
            };
            if self.world.agent_down() {
                wake = None;
                continue;
            }
            if !heard {
                continue;
            }
            decider.step(now, &mut self.decision);
            counters.steps += 1;
            counters.actions += self.decision.actions.len() as u64;
            wake = self.decision.wake;
            for action in &self.decision.actions {
                self.world.carry_out(scenario, action, now);
            }
            watch.step(decider.plan(), decider.observation(), &self.decision, now);
            if decider.observation().over {
                break Ending::Finished;
            }
            if counters.steps >= options.steps_max {
                break Ending::OutOfSteps;
            }
        };
        self.running.clear();
        self.running.extend(self.world.running());
        watch.over(decider.plan(), decider.observation(), &self.running, now);
        counters.faults = self.world.faults;
        Summary { ending, at: now, counters }
    }

    /// Processes the next event. Returns whether the agent saw it.
    fn next(
        &mut self,
        decider: &mut impl Decider,
        scenario: &Scenario,
        now: Time,
        counters: &mut Counters,
        watch: &mut impl Watch,
    ) -> bool {
        let Some(what) = self.world.pop() else {
            return false;
        };
        self.notes.clear();
        let mut returned = false;
        match what {
            Scheduled::AgentReturns => {
                self.world.agent_returns(scenario, now);
                decider.restart();
                watch.restarted(decider.plan(), decider.observation(), now);
                self.world.reconcile(decider.observation(), &mut self.notes);
                returned = true;
            }
            // An update is retried until the agent is running.
            Scheduled::Update { nth } if self.world.agent_down() => self.world.update_later(nth, now),
            // A delayed update may come after the next one, which already includes its changes.
            Scheduled::Update { nth } if !self.world.take_update(nth) => {}
            Scheduled::Update { nth } => {
                let changes = decider.update(&scenario.updates[nth].1);
                watch.updated(nth, decider.plan(), decider.observation(), &changes, now);
                returned = true;
            }
            Scheduled::Reconcile if self.world.agent_down() => {}
            Scheduled::Reconcile => self.world.reconcile(decider.observation(), &mut self.notes),
            _ => self.notes.extend(self.world.happen(scenario, what, now)),
        }
        for &note in &self.notes {
            let event = self.world.event(scenario, note);
            decider.handle(&event, now);
            counters.events += 1;
            watch.event(decider.plan(), decider.observation(), &event, now);
        }
        returned || !self.notes.is_empty()
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Everything that happened.
    pub trace: Vec<Entry>,
    /// The observation at the end.
    pub observation: Observation,
    /// How it ended.
    pub ending: Ending,
    /// The virtual time that it took.
    pub duration_ms: u64,
    /// Why containers wait, if it did not finish.
    pub waits: Vec<(usize, Wait)>,
    /// The counters.
    pub counters: Counters,
}

/// Plays one life of a pod. The same arguments always give exactly the same outcome.
pub fn simulate(plan: &Plan, script: &Script, seed: u64, options: &Options) -> Result<Outcome, ScriptError> {
    let mut scenario = Scenario::new(plan, script)?;
    let endless = plan.containers.iter().any(|c| c.keeps_alive && c.restart.policy == RestartPolicy::Always);
    if let Some(at) = options.stop_endless_at.filter(|_| endless && !scenario.has_stop()) {
        scenario.stop_at(at, None);
    }
    let mut simulator = Simulator::new();
    let mut engine = Engine::new(plan.clone(), Time(0));
    let (summary, trace) = if options.trace_max > 0 {
        let mut tape = TraceRecording::new(plan, options.trace_max);
        let summary = simulator.run(&mut engine, &scenario, seed, options, &mut tape);
        (summary, tape.into_entries())
    } else {
        (simulator.run(&mut engine, &scenario, seed, options, &mut ()), Vec::new())
    };
    let waits = if summary.ending == Ending::Finished { Vec::new() } else { simulator.waits().to_vec() };
    Ok(Outcome {
        trace,
        observation: engine.observation().clone(),
        ending: summary.ending,
        duration_ms: summary.at.0,
        waits,
        counters: summary.counters,
    })
}
