//! Invariant 6: with no dialect in use, a pod behaves as a plain Kubernetes pod.
//!
//! The model below is complete and independent of the engine. It covers init containers one after the other
//! (R1.2, R1.3), mains in list order without waiting for each other (R1.5), restart policy (R2.1), back-off
//! (R1.60 to R1.63), failed init containers (1.4), completion (R4.5, R4.6), TERM, grace period and KILL
//! (R3.13 to R3.17), and the final phase. Random pods must do the same things in the same millisecond.

use crate::common::env_number;
use outrigger_lifecycle::trace::{ContainerEvent, PodEvent, TraceEvent};
use outrigger_lifecycle::{Plan, RestartPolicy, Role};
use outrigger_simulate::random::{self, Trouble};
use outrigger_simulate::{ContainerScript, Options, Rng, Script, ScriptDuration, Tries, simulate};

const PODS: u64 = 5_000;
const SANDBOX_MS: u64 = 50;
const PULL_MS: u64 = 100;

/// An event of a container: (time, container, event).
type Fact = (u64, String, String);

/// The stop requests of the script.
#[derive(Debug, Clone, Copy)]
struct Stops {
    first: u64,
    /// The end of the grace period.
    deadline: u64,
    /// The time from which the grace period is zero.
    zero_from: Option<u64>,
    second: Option<(u64, u64)>,
}

impl Stops {
    fn new(plan: &Plan, script: &Script) -> Stops {
        let grace = |s: &outrigger_simulate::StopScript| s.grace.map_or(plan.grace_ms, |g| g.0);
        let (first, second) = (&script.stops[0], script.stops.get(1));
        let own = grace(first);
        let second = second.map(|s| (s.at.0, grace(s)));
        let mut zero_from = (own == 0).then_some(first.at.0);
        if let Some((at, 0)) = second {
            zero_from = Some(zero_from.map_or(at, |z| z.min(at)));
        }
        Stops { first: first.at.0, deadline: first.at.0 + own, zero_from, second }
    }

    /// When a container that was told to stop at `told` is killed.
    fn kill_at(&self, told: u64) -> u64 {
        let late = |deadline: u64| deadline.max(told + 2_000);
        let mut at = late(self.deadline);
        if let Some((second, grace)) = self.second {
            // The second request has no effect before it arrives.
            at = at.min(late((second + grace).min(self.deadline)).max(second));
        }
        self.zero_from.map_or(at, |zero| at.min(zero.max(told)))
    }
}

struct Model<'a> {
    plan: &'a Plan,
    script: &'a Script,
    stops: Stops,
    facts: Vec<Fact>,
    /// The times at which containers were started.
    up: Vec<u64>,
}

/// The final state of a container.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// It ended for good, with success or not.
    Final { at: u64, failed: bool },
    /// It was stopped with the pod. `failed` says how its last instance ended, if it ever ran.
    Stopped { at: u64, failed: Option<bool> },
}

/// One instance.
struct Life {
    runs: u64,
    code: i32,
    failed: bool,
    starts_in: u64,
    term_after: u64,
    term_code: i32,
}

impl Model<'_> {
    fn life(&self, i: usize, attempt: usize) -> Life {
        let p = &self.plan.containers[i];
        let none = ContainerScript::default();
        let base = self.script.containers.get(&p.name).unwrap_or(&none);
        let own = match base.instances.len() {
            0 => base,
            n => &base.instances[attempt.min(n - 1)],
        };
        let runs = match (p.role, p.restart.policy) {
            (Role::Init, _) => 100,
            (_, RestartPolicy::Always) => u64::MAX,
            _ => 1_000,
        };
        let term = own.on_term.or(base.on_term).unwrap_or_default();
        let code = own.exit.or(base.exit).unwrap_or(0);
        Life {
            runs: own.runs.or(base.runs).map_or(runs, |s| s.0),
            code,
            failed: code != 0 || own.oom.or(base.oom).unwrap_or(false),
            starts_in: own.starts_in.or(base.starts_in).map_or(50, |s| s.0),
            term_after: if term.ignore { u64::MAX } else { term.exit_after.map_or(100, |s| s.0) },
            term_code: term.code.unwrap_or(0),
        }
    }

    fn fact(&mut self, at: u64, i: usize, what: String) {
        self.facts.push((at, self.plan.containers[i].name.clone(), what));
    }

    fn restarts(&self, i: usize, failed: bool) -> bool {
        let p = &self.plan.containers[i];
        match p.restart.policy {
            RestartPolicy::Always => p.role == Role::Main || failed,
            RestartPolicy::OnFailure => failed,
            RestartPolicy::Never => false,
        }
    }

    /// Everything that one container does, from the time it may start until the pod stops at `stop`.
    fn play(&mut self, i: usize, may_start: u64, stop: u64) -> (End, Option<u64>) {
        let (mut at, mut attempt, mut launched, mut last) = (may_start, 0, None, None);
        let (mut wait, mut let_through): (Option<u64>, u64) = (None, 0);
        loop {
            if at >= stop {
                return (End::Stopped { at: stop, failed: last }, launched);
            }
            let life = self.life(i, attempt);
            self.fact(at, i, format!("start {attempt}"));
            let runs_at = at + life.starts_in;
            let ends_at = runs_at.saturating_add(life.runs);
            self.up.push(runs_at);
            launched.get_or_insert(runs_at);
            if ends_at >= stop {
                let (end, failed) = self.stop(i, attempt, &life, runs_at, ends_at, stop);
                return (End::Stopped { at: end, failed: Some(failed) }, launched);
            }
            self.fact(ends_at, i, format!("exit {attempt} {}", life.code));
            last = Some(life.failed);
            if !self.restarts(i, life.failed) {
                return (End::Final { at: ends_at, failed: life.failed }, launched);
            }
            let fresh = wait.is_none() || ends_at - let_through > 600_000;
            at = if fresh { ends_at } else { ends_at + wait.unwrap_or(0) };
            wait = Some(if fresh { 10_000 } else { (wait.unwrap_or(0) * 2).min(300_000) });
            let_through = at;
            attempt += 1;
        }
    }

    /// Ends an instance that is running when the pod stops.
    fn stop(
        &mut self,
        i: usize,
        attempt: usize,
        life: &Life,
        runs_at: u64,
        ends_at: u64,
        stop: u64,
    ) -> (u64, bool) {
        let told = stop.max(runs_at);
        if let Some(zero) = self.stops.zero_from.map(|z| z.max(stop))
            && zero <= told
        {
            self.fact(zero, i, "kill".into());
            self.fact(zero + 1, i, format!("exit {attempt} 137"));
            return (zero + 1, true);
        }
        let by_itself = ends_at.min(told.saturating_add(life.term_after));
        let kill_at = self.stops.kill_at(told);
        self.fact(told, i, "term".into());
        if by_itself <= kill_at {
            let own = ends_at <= told.saturating_add(life.term_after);
            let (code, failed) =
                if own { (life.code, life.failed) } else { (life.term_code, life.term_code != 0) };
            self.fact(by_itself, i, format!("exit {attempt} {code}"));
            return (by_itself, failed);
        }
        self.fact(kill_at, i, "kill".into());
        let end = by_itself.min(kill_at + 1);
        let (code, failed) = if by_itself <= kill_at + 1 {
            let own = ends_at <= told.saturating_add(life.term_after);
            if own { (life.code, life.failed) } else { (life.term_code, life.term_code != 0) }
        } else {
            (137, true)
        };
        self.fact(end, i, format!("exit {attempt} {code}"));
        (end, failed)
    }

    fn image_at(&self, i: usize) -> u64 {
        let script = self.script.containers.get(&self.plan.containers[i].name);
        script.and_then(|c| c.pull.takes).map_or(PULL_MS, |s| s.0)
    }

    /// Plays the whole pod. Returns when it is over, and its phase.
    fn pod(&mut self) -> (u64, &'static str) {
        let stop = self.stops.first;
        let mut turn = SANDBOX_MS;
        let inits = self.plan.containers.iter().filter(|c| c.role == Role::Init).count();
        for i in 0..inits {
            match self.play(i, turn.max(self.image_at(i)), stop) {
                (End::Final { at, failed: false }, _) => turn = at,
                (End::Final { at, failed: true }, _) => return (at, "Failed"),
                (End::Stopped { at, .. }, _) => return (at.max(stop), "Failed"),
            }
        }
        let mut ends = Vec::new();
        for i in inits..self.plan.containers.len() {
            let (end, launched) = self.play(i, turn.max(self.image_at(i)), stop);
            ends.push(end);
            match launched {
                Some(at) => turn = at,
                // The containers after it never started either.
                None => {
                    ends.resize(self.plan.containers.len() - inits, End::Stopped { at: stop, failed: None });
                    break;
                }
            }
        }
        let done = ends.iter().map(|e| match *e {
            End::Final { at, .. } | End::Stopped { at, .. } => at,
        });
        let over = done.max().unwrap_or(stop);
        let bad = ends.iter().any(|e| match *e {
            End::Final { failed, .. } => failed,
            End::Stopped { failed, .. } => failed.unwrap_or(true),
        });
        (over, if bad { "Failed" } else { "Succeeded" })
    }
}

/// The same events, read from the trace.
fn observed(plan: &Plan, script: &Script, seed: u64) -> (Vec<Fact>, u64, String) {
    let outcome = simulate(
        plan,
        script,
        seed,
        &Options { horizon: ScriptDuration::seconds(7_200), ..Options::default() },
    )
    .expect("the script fits");
    let mut facts = Vec::new();
    let mut phase = String::new();
    for entry in &outcome.trace {
        let what = match &entry.event {
            TraceEvent::Container(ContainerEvent::Starting { attempt, .. }) => format!("start {attempt}"),
            TraceEvent::Container(ContainerEvent::Exited { attempt, code, .. }) => {
                format!("exit {attempt} {code}")
            }
            TraceEvent::Container(ContainerEvent::Terminating { .. }) => "term".into(),
            TraceEvent::Container(ContainerEvent::Killing { .. }) => "kill".into(),
            TraceEvent::Pod(PodEvent::Finished { phase: ended, .. }) => {
                phase = ended.name().into();
                continue;
            }
            _ => continue,
        };
        let name = &plan.containers[entry.container.expect("it happens to a container")].name;
        facts.push((entry.time.0, name.clone(), what));
    }
    (facts, outcome.duration_ms, phase)
}

fn check(seed: u64) -> Result<bool, String> {
    let mut rng = Rng::new(seed);
    let (_, plan) = random::plain_pod(&mut rng);
    let mut script = random::script(&mut rng, &plan, Trouble::None);
    script.image_changes.clear();
    for c in script.containers.values_mut() {
        c.start_fails = 0;
        c.pull = Tries { takes: c.pull.takes, fails: 0 };
    }
    let mut model = Model {
        plan: &plan,
        script: &script,
        stops: Stops::new(&plan, &script),
        facts: Vec::new(),
        up: Vec::new(),
    };
    let (over, phase) = model.pod();
    let (mut expected, stops, up) = (model.facts, model.stops, model.up);
    // Events in the same millisecond as a request may be before or after it.
    let requests = [Some(stops.first), stops.second.map(|s| s.0)];
    let tie = |at: u64| requests.contains(&Some(at));
    if up.iter().any(|&at| tie(at)) || requests[0] == requests[1] {
        return Ok(false);
    }
    if expected
        .iter()
        .any(|(at, _, what)| tie(*at) && (what.starts_with("start") || what.starts_with("exit")))
    {
        return Ok(false);
    }
    let (mut facts, ended, saw) = observed(&plan, &script, seed);
    expected.sort();
    facts.sort();
    if (&facts, ended, saw.as_str()) == (&expected, over, phase) {
        return Ok(true);
    }
    let missing: Vec<_> = expected.iter().filter(|f| !facts.contains(f)).collect();
    let extra: Vec<_> = facts.iter().filter(|f| !expected.contains(f)).collect();
    Err(format!(
        "seed {seed} ({:?}): expected {phase} at {over}, was {saw} at {ended}\n  expected, did not happen: {missing:?}\n  \
         happened, not expected: {extra:?}\nreplay: OUTRIGGER_SEED={seed} cargo test -p outrigger-simulate --test plain",
        plan.restart_policy
    ))
}

#[test]
fn plain_pods_behave_as_on_kubernetes() {
    let (first, pods) = match env_number("OUTRIGGER_SEED") {
        Some(seed) => (seed, 1),
        None => (1, env_number("OUTRIGGER_SOAK").unwrap_or(PODS)),
    };
    let mut compared = 0;
    for seed in first..first + pods {
        match check(seed) {
            Ok(yes) => compared += u64::from(yes),
            Err(report) => panic!("{report}"),
        }
    }
    assert!(compared * 10 >= pods * 9, "only {compared} of {pods} pods could be compared");
}
