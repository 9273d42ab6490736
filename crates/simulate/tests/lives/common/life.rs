//! One random life of a pod, derived from a seed.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use outrigger_lifecycle::{Engine, Plan, PodInput, Time};
use outrigger_simulate::invariants::{Checker, Violation};
use outrigger_simulate::random::{self, Trouble};
use outrigger_simulate::{
    Decider, Options, Rng, Scenario, Script, ScriptDuration, Simulator, Summary, TraceRecording,
};

/// A pod, the behaviour of its containers, and the seed of the faults.
pub struct Case {
    pub seed: u64,
    pub input: PodInput,
    pub plan: Plan,
    pub script: Script,
    /// The updates: time and plan.
    pub updates: Vec<(u64, Plan)>,
    /// The restart requests: time and container.
    pub restarts: Vec<(u64, Option<usize>)>,
}

/// The kinds of random lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All kinds of pods.
    Any,
    /// Pods with a short grace period whose hooks hang, whose helpers crash and whose images are late.
    Hard,
    /// Pods that are updated and restarted while they run.
    Changed,
    /// Hard pods that are restarted as a whole, some of them again before the restart is over.
    Restarted,
}

impl Kind {
    /// The test that replays one life of this kind.
    fn replay(self) -> &'static str {
        match self {
            Kind::Any => "one_seed",
            Kind::Hard => "one_hard_seed",
            Kind::Changed => "one_changed_seed",
            Kind::Restarted => "one_restarted_seed",
        }
    }
}

impl Kind {
    /// The prefix of seeds of this kind in `regressions.txt`.
    fn prefix(self) -> &'static str {
        match self {
            Kind::Any => "",
            Kind::Hard => "hard ",
            Kind::Changed => "changed ",
            Kind::Restarted => "restarted ",
        }
    }
}

impl Case {
    pub fn new(seed: u64) -> Case {
        Case::of(Kind::Any, seed)
    }

    pub fn of(kind: Kind, seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let (input, plan) = match kind {
            Kind::Any | Kind::Changed => random::pod(&mut rng),
            Kind::Hard | Kind::Restarted => random::hard_pod(&mut rng),
        };
        let trouble = if rng.chance(0.4) { Trouble::None } else { Trouble::Faults };
        let script = match kind {
            Kind::Any | Kind::Changed => random::script(&mut rng, &plan, trouble),
            Kind::Hard | Kind::Restarted => random::hard_script(&mut rng, &plan, trouble),
        };
        let (mut updates, mut restarts) = (Vec::new(), Vec::new());
        if kind == Kind::Changed {
            updates = random::updates(&mut rng, &input);
            for _ in 0..rng.between(0, 2) {
                let one = rng.chance(0.6).then(|| rng.below(plan.containers.len() as u64) as usize);
                restarts.push((rng.between(1, 20_000), one));
            }
        }
        if kind == Kind::Restarted {
            let first = rng.between(1, 20_000);
            restarts.push((first, None));
            if rng.chance(0.3) {
                restarts.push((first + rng.between(1, 5_000), None));
            }
        }
        Case { seed, input, plan, script, updates, restarts }
    }

    pub fn scenario(&self) -> Scenario {
        let last = self.updates.last().map_or(&self.plan, |(_, plan)| plan);
        let mut scenario = Scenario::new(last, &self.script).expect("a random script fits its pod");
        for (at, plan) in &self.updates {
            scenario.update_at(ScriptDuration(*at), plan.clone());
        }
        for &(at, container) in &self.restarts {
            scenario.restart_at(ScriptDuration(at), container);
        }
        scenario
    }

    pub fn options() -> Options {
        Options { horizon: ScriptDuration::seconds(3_600), stop_endless_at: None, ..Options::default() }
    }

    /// Plays the life with this decider. Returns the violated invariants.
    pub fn play(&self, decider: &mut impl Decider) -> (Summary, Vec<Violation>) {
        let scenario = self.scenario();
        let mut checker = Checker::new(&self.plan, scenario.slack_ms()).expect_updates(&self.updates);
        let summary = Simulator::new().run(decider, &scenario, self.seed, &Case::options(), &mut checker);
        (summary, checker.violations)
    }
}

/// Plays the life of a seed. Returns an error that says what went wrong.
pub fn check(kind: Kind, seed: u64) -> Result<Summary, String> {
    let played = catch_unwind(|| {
        let case = Case::of(kind, seed);
        case.play(&mut Engine::new(case.plan.clone(), Time(0)))
    });
    let problems: Vec<String> = match played {
        Ok((summary, violations)) if violations.is_empty() => return Ok(summary),
        Ok((_, violations)) => violations.iter().map(ToString::to_string).collect(),
        Err(panic) => vec![format!(
            "panic: {}",
            panic
                .downcast_ref::<String>()
                .cloned()
                .or(panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_default()
        )],
    };
    Err(format!(
        "seed {seed}: {}\nreplay: OUTRIGGER_SEED={seed} cargo test -p outrigger-simulate --test lives {} -- --ignored --nocapture\n\
         keep:   echo {}{seed} >> crates/simulate/tests/lives/regressions.txt",
        problems.join("\n    "),
        kind.replay(),
        kind.prefix(),
    ))
}

/// The pod, the script and the trace of a seed, in readable form.
pub fn tell(kind: Kind, seed: u64) -> String {
    let case = Case::of(kind, seed);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "pod: {}",
        serde_json::to_string_pretty(&case.input.pod).expect("a pod is plain data")
    );
    for (at, plan) in &case.updates {
        let images: Vec<&str> = plan.containers.iter().map(|c| c.image.as_str()).collect();
        let _ = writeln!(
            text,
            "update at {at}: images {images:?} grace {} deadline {:?}",
            plan.grace_ms, plan.active_deadline_ms
        );
    }
    let _ = writeln!(text, "restarts: {:?}", case.restarts);
    let _ = writeln!(text, "types: {:?}", case.input.lifecycle_types);
    let _ = writeln!(
        text,
        "script: {}",
        serde_json::to_string_pretty(&case.script).expect("a script is plain data")
    );
    for (i, c) in case.plan.containers.iter().enumerate() {
        let gates: Vec<String> = c
            .gates
            .iter()
            .map(|g| {
                format!(
                    "{} {:?}{}",
                    case.plan.containers[g.on].name,
                    g.need,
                    if g.every_start { "*" } else { "" }
                )
            })
            .collect();
        let _ = writeln!(
            text,
            "{i} {} {:?} gates [{}] stops after {:?} stage {}",
            c.name,
            c.role,
            gates.join(", "),
            c.stop_after,
            c.stop_stage
        );
    }
    let mut tape = TraceRecording::new(&case.plan, 5_000);
    let scenario = case.scenario();
    let mut engine = Engine::new(case.plan.clone(), Time(0));
    let run =
        AssertUnwindSafe(|| Simulator::new().run(&mut engine, &scenario, seed, &Case::options(), &mut tape));
    let ended = catch_unwind(run);
    for entry in tape.into_entries() {
        let last = case.updates.last().map_or(&case.plan, |(_, plan)| plan);
        let name = entry.container.map_or("-", |c| last.containers[c].name.as_str());
        let fields = serde_json::Value::Object(entry.event.details());
        let _ = writeln!(text, "{:>9} {name:<4} {:<16} {fields}", entry.time.0, entry.event.name());
    }
    let _ = writeln!(text, "{:?}", ended.map_err(|_| "panic"));
    text
}
