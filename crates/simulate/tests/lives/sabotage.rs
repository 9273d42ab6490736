//! Tests of the checker: each test breaks a rule on purpose, and the checker must notice it.

use crate::common::life::Case;
use outrigger_lifecycle::{
    Action, Change, Decision, Engine, Event, Need, Observation, Plan, PreStopWhen, RestartPolicy, Role,
    State, StopCause, Time,
};
use outrigger_simulate::Decider;

/// The number of lives within which a violation must be noticed.
const LIVES: u64 = 2_000;

/// The broken rule.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sabotage {
    Nothing,
    /// Containers start without waiting.
    IgnoreGates,
    /// Started counts as ready.
    StartedIsReady,
    /// A container that has exited with any code counts as completed.
    AnyExitCompletes,
    /// All containers are told to stop at once.
    IgnoreStopOrder,
    /// Sidecars stop first.
    ReverseStopOrder,
    /// The order of every dialect ends with the grace period.
    OrderEndsWithGrace,
    /// Mains are told to stop without waiting for the sidecars' preStop hooks.
    NoFirstHooks,
    /// KILL is sent instead of TERM.
    KillAtOnce,
    /// TERM and KILL are sent together.
    NoTimeToReact,
    /// Sidecars keep the pod alive.
    SidecarsKeepAlive,
    /// KILL is never sent.
    NeverKill,
    /// Neither TERM nor KILL is sent.
    NeverSignal,
    /// The wake-up time is forgotten.
    NeverWake,
    /// A container that has exited is started again during a stop.
    RestartWhileStopping,
    /// A pod that is being stopped gets a new sandbox.
    SandboxWhileStopping,
    /// The pod counts as over as soon as it stops.
    FinishEarly,
    /// Everything is started twice.
    StartTwice,
    /// Exits of containers are ignored.
    ForgetExits,
    /// No reason is given for waiting containers.
    NoReasons,
    /// No state is stored before a crash.
    ForgetAll,
    /// `Never` means `Always`.
    AlwaysRestart,
    /// `Always` means `Never`.
    NeverRestart,
    /// A pod is stopped although nothing ends it.
    StopForNothing,
}

/// The engine with one broken rule.
struct Saboteur {
    sabotage: Sabotage,
    engine: Engine,
    /// The observation that is reported instead of the engine's, if they differ.
    pretence: Option<Observation>,
    injected: bool,
}

impl Saboteur {
    fn new(plan: &Plan, sabotage: Sabotage) -> Self {
        let mut plan = plan.clone();
        let n = plan.containers.len();
        for i in 0..n {
            let role = plan.containers[i].role;
            let inits: Vec<bool> = plan.containers.iter().map(|c| c.role == Role::Init).collect();
            let c = &mut plan.containers[i];
            match sabotage {
                Sabotage::IgnoreGates => c.gates.clear(),
                Sabotage::StartedIsReady => {
                    for gate in c.gates.iter_mut().filter(|g| g.need == Need::Ready) {
                        (gate.need, gate.every_start) = (Need::Started, false);
                    }
                }
                Sabotage::AnyExitCompletes => {
                    for gate in c.gates.iter_mut().filter(|g| g.need == Need::Completed && inits[g.on]) {
                        gate.need = Need::Launched;
                    }
                }
                Sabotage::IgnoreStopOrder => c.stop_after.clear(),
                Sabotage::NoFirstHooks => c.pre_stop_when = PreStopWhen::OwnTurn,
                Sabotage::ReverseStopOrder => {
                    c.stop_after = if role == Role::Sidecar {
                        Vec::new()
                    } else {
                        (0..n).filter(|&o| o != i && inits[o] == (role == Role::Init) && o > i).collect()
                    };
                }
                Sabotage::SidecarsKeepAlive if role == Role::Sidecar => {
                    c.keeps_alive = true;
                    c.restart.policy = RestartPolicy::Always;
                }
                Sabotage::AlwaysRestart => c.restart.policy = RestartPolicy::Always,
                Sabotage::NeverRestart => c.restart.policy = RestartPolicy::Never,
                _ => {}
            }
        }
        if sabotage == Sabotage::ReverseStopOrder {
            plan.stop_order = (0..n).rev().collect();
        }
        if sabotage == Sabotage::OrderEndsWithGrace {
            plan.dialects.clear();
        }
        Saboteur { sabotage, engine: Engine::new(plan, Time(0)), pretence: None, injected: false }
    }

    fn alter(&mut self, now: Time, out: &mut Decision) {
        let obs = self.engine.observation();
        let first = (0..obs.containers.len()).find(|&i| obs.containers[i].state == State::Exited);
        match self.sabotage {
            Sabotage::KillAtOnce => {
                for action in &mut out.actions {
                    if let Action::Terminate { container, attempt, .. } = *action {
                        *action = Action::Kill { container, attempt };
                    }
                }
            }
            Sabotage::NoTimeToReact => {
                let kill = |a: &Action| match *a {
                    Action::Terminate { container, attempt, .. } => Some(Action::Kill { container, attempt }),
                    _ => None,
                };
                let kills: Vec<Action> = out.actions.iter().filter_map(kill).collect();
                out.actions.extend(kills);
            }
            Sabotage::NeverKill => out.actions.retain(|a| !matches!(a, Action::Kill { .. })),
            Sabotage::NeverSignal => {
                out.actions.retain(|a| !matches!(a, Action::Kill { .. } | Action::Terminate { .. }));
            }
            Sabotage::NeverWake => out.wake = None,
            Sabotage::NoReasons => out.waits.clear(),
            Sabotage::RestartWhileStopping => {
                if let Some(container) = first
                    && obs.stop.is_some()
                    && !self.injected
                {
                    self.injected = true;
                    let attempt = obs.containers[container].attempt + 1;
                    out.actions.insert(0, Action::Start { container, attempt });
                }
            }
            Sabotage::SandboxWhileStopping if obs.stop.is_some() && !self.injected => {
                self.injected = true;
                out.actions.insert(0, Action::CreateSandbox { attempt: 9 });
            }
            Sabotage::FinishEarly if obs.stop.is_some() && !obs.over => {
                out.actions.push(Action::Finish);
                let mut pretence = obs.clone();
                pretence.over = true;
                self.pretence = Some(pretence);
            }
            Sabotage::StartTwice => {
                let start = |a: &&Action| matches!(a, Action::Start { .. });
                let starts: Vec<Action> = out.actions.iter().filter(start).cloned().collect();
                out.actions.extend(starts);
            }
            Sabotage::StopForNothing if obs.stop.is_none() && now.0 > 0 && !self.injected => {
                self.injected = true;
                out.actions.push(Action::BeginStop { cause: StopCause::Completed, grace_ms: 1_000 });
            }
            _ => {}
        }
    }
}

impl Decider for Saboteur {
    fn plan(&self) -> &Plan {
        self.engine.plan()
    }

    fn observation(&self) -> &Observation {
        self.pretence.as_ref().unwrap_or(self.engine.observation())
    }

    fn handle(&mut self, event: &Event, now: Time) {
        if !(self.sabotage == Sabotage::ForgetExits && matches!(event, Event::Exited { .. })) {
            self.engine.handle(event, now);
        }
    }

    fn step(&mut self, now: Time, out: &mut Decision) {
        self.engine.step(now, out);
        self.alter(now, out);
    }

    fn update(&mut self, plan: &Plan) -> Vec<Change> {
        Decider::update(&mut self.engine, plan)
    }

    fn restart(&mut self) {
        if self.sabotage == Sabotage::ForgetAll {
            self.engine = Engine::new(self.engine.plan().clone(), Time(0));
        } else {
            self.engine.restart();
        }
    }
}

/// The first life in which the checker notices a violation of the invariant.
fn caught(sabotage: Sabotage, invariant: u8) -> Option<(u64, String)> {
    (1..=LIVES).find_map(|seed| {
        let case = Case::new(seed);
        let (_, violations) = case.play(&mut Saboteur::new(&case.plan, sabotage));
        violations.iter().find(|v| v.invariant == invariant).map(|v| (seed, v.to_string()))
    })
}

#[test]
fn every_broken_rule_is_seen() {
    let mut missed = Vec::new();
    for (sabotage, invariant) in [
        (Sabotage::IgnoreGates, 1),
        (Sabotage::StartedIsReady, 1),
        (Sabotage::AnyExitCompletes, 1),
        (Sabotage::IgnoreStopOrder, 2),
        (Sabotage::ReverseStopOrder, 2),
        (Sabotage::OrderEndsWithGrace, 2),
        (Sabotage::NoFirstHooks, 2),
        (Sabotage::KillAtOnce, 2),
        (Sabotage::NoTimeToReact, 2),
        (Sabotage::SidecarsKeepAlive, 3),
        (Sabotage::NeverKill, 3),
        (Sabotage::NeverSignal, 3),
        (Sabotage::NeverWake, 3),
        (Sabotage::RestartWhileStopping, 4),
        (Sabotage::SandboxWhileStopping, 4),
        (Sabotage::FinishEarly, 5),
        (Sabotage::StartTwice, 5),
        (Sabotage::ForgetExits, 5),
        (Sabotage::NoReasons, 5),
        (Sabotage::ForgetAll, 5),
        (Sabotage::AlwaysRestart, 6),
        (Sabotage::NeverRestart, 6),
        (Sabotage::StopForNothing, 6),
    ] {
        match caught(sabotage, invariant) {
            Some((seed, violation)) => println!("{sabotage:?}: seen in life {seed}: {violation}"),
            None => {
                missed.push(format!("{sabotage:?} does not break invariant {invariant} in {LIVES} lives"))
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn the_saboteur_himself_breaks_nothing() {
    for invariant in 1..=6 {
        assert_eq!(caught(Sabotage::Nothing, invariant), None);
    }
}
