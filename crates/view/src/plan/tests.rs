//! Checks the stop sentences of a plan against the engine. The times are checked with containers that use all
//! the time they have, the order with containers that stop at once.

use outrigger_lifecycle::{
    Action, Decision, Engine, Event, HookKind, Observation, Plan, PreStopWhen, Role, StopRule, Time,
};
use outrigger_simulate::{
    ContainerScript, HookScript, Hooks, OnTerm, Options, Rng, Scenario, Script, ScriptDuration, Simulator,
    Watch, random,
};

/// The time that the simulated world needs for its own actions.
const SLACK_MS: u64 = 200;

#[test]
fn nobody_is_signalled_or_killed_later_than_the_plan_says() {
    let mut stops = Stops::default();
    for seed in 0..2_000 {
        let (_, plan) = random::pod(&mut Rng::new(seed));
        let stubborn = || ContainerScript {
            on_term: Some(OnTerm { ignore: true, ..OnTerm::default() }),
            runs: Some(ScriptDuration::FOREVER),
            hooks: Hooks {
                pre_stop: Some(HookScript { takes: Some(ScriptDuration::FOREVER), ..HookScript::default() }),
                ..Hooks::default()
            },
            ..ContainerScript::default()
        };
        let mains =
            plan.containers.iter().filter(|c| c.keeps_alive || c.role != outrigger_lifecycle::Role::Init);
        let containers = mains.map(|c| (c.name.clone(), stubborn())).collect();
        let script = Script { containers, ..Script::default() };
        let mut scenario = Scenario::new(&plan, &script).expect("the names are the plan's");
        scenario.stop_at(ScriptDuration::seconds(90), None);
        let mut engine = Engine::new(plan, Time(0));
        stops.seed = seed;
        Simulator::new().run(&mut engine, &scenario, seed, &Options::default(), &mut stops);
    }
    assert!(stops.seen > 2_000, "only {} stops were seen", stops.seen);
    assert!(stops.close > stops.seen / 10, "only {} of {} bounds are ever reached", stops.close, stops.seen);
}

#[derive(Default)]
struct Stops {
    seed: u64,
    seen: usize,
    close: usize,
}

impl Stops {
    fn check(&mut self, plan: &Plan, container: usize, what: &str, at_ms: u64, max_ms: u64) {
        self.seen += 1;
        self.close += usize::from(at_ms + SLACK_MS >= max_ms);
        let name = &plan.containers[container].name;
        assert!(
            at_ms <= max_ms + SLACK_MS,
            "seed {}: {what} of `{name}` after {at_ms} ms, the plan says {max_ms} ms\n{plan:#?}",
            self.seed
        );
    }
}

impl Watch for Stops {
    fn event(&mut self, _: &Plan, _: &Observation, _: &Event, _: Time) {}
    fn updated(&mut self, _: usize, _: &Plan, _: &Observation, _: &[outrigger_lifecycle::Change], _: Time) {}
    fn restarted(&mut self, _: &Plan, _: &Observation, _: Time) {}
    fn over(&mut self, _: &Plan, _: &Observation, _: &[usize], _: Time) {}

    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        let Some(stop) = &obs.stop else { return };
        let since = Time(stop.deadline.0.saturating_sub(stop.grace_ms));
        for action in &decision.actions {
            match *action {
                Action::Terminate { container, .. } => {
                    let max = plan.stop_window(container, stop.grace_ms).signal_ms_max;
                    self.check(plan, container, "the signal", now.since(since), max);
                }
                Action::Kill { container, .. } => {
                    let max = plan.stop_window(container, stop.grace_ms).kill_ms_max;
                    self.check(plan, container, "the kill", now.since(since), max);
                }
                _ => {}
            }
        }
    }
}

/// All containers run when the pod is stopped. Each container then gets its signal at exactly the moment that
/// its sentence says: when the named containers have ended and the named hooks are done.
#[test]
fn everybody_is_signalled_when_the_plan_says() {
    let mut seen = Seen::default();
    for seed in 0..4_000 {
        let mut rng = Rng::new(seed);
        let (_, plan) = random::pod(&mut rng);
        // With a grace period of zero, there is no signal.
        if plan.grace_ms == 0 {
            continue;
        }
        seen.turn_to(&plan, seed);
        play_stop(&mut rng, plan, seed, &mut seen);
    }
    assert!(seen.signals > 4_000, "only {} signals were seen", seen.signals);
    assert!(seen.waits > 1_000, "only {} of {} containers had to wait", seen.waits, seen.signals);
    assert!(seen.hooks > 200, "only {} of {} waited for a hook of another", seen.hooks, seen.signals);
}

/// A native sidecar, an init container that runs to completion, a main.
#[test]
fn a_sidecar_before_an_init_container_stops_after_the_main() {
    let pod = serde_json::json!({"metadata": {"name": "p"}, "spec": {
        "initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "init"}],
        "containers": [{"name": "main"}]}});
    let input = outrigger_lifecycle::PodInput {
        pod: serde_json::from_value(pod).expect("a pod"),
        ..Default::default()
    };
    let planned = outrigger_lifecycle::plan(&input, &Default::default()).expect("a plan");
    let rules = planned.plan.stop_rules();
    let [proxy, main] = ["proxy", "main"].map(|name| planned.plan.find(name).expect("a container"));
    assert_eq!((&rules[proxy].after, rules[proxy].stage), (&vec![main], 1));
    assert_eq!((&rules[main].after, rules[main].stage), (&vec![], 0));
}

fn play_stop(rng: &mut Rng, mut plan: Plan, seed: u64, seen: &mut Seen) {
    // Nothing ends before its signal, and the grace period is long enough.
    plan.grace_ms = 600_000;
    (plan.sidecar_grace_ms, plan.sidecar_delay_ms, plan.active_deadline_ms) = (0, 0, None);
    let mut containers = std::collections::BTreeMap::new();
    for c in &mut plan.containers {
        c.stop_grace_ms = None;
        c.fence.clear();
        c.probes = [None; 3];
        let takes = |rng: &mut Rng| Some(ScriptDuration(rng.between(1, 20) * 1_000));
        let hooks = Hooks {
            pre_stop: Some(HookScript { takes: takes(rng), ..HookScript::default() }),
            ..Hooks::default()
        };
        let on_term = Some(OnTerm { exit_after: takes(rng), ..OnTerm::default() });
        let runs =
            if c.role == Role::Init { Some(ScriptDuration(10)) } else { Some(ScriptDuration::FOREVER) };
        containers
            .insert(c.name.clone(), ContainerScript { runs, on_term, hooks, ..ContainerScript::default() });
    }
    let script = Script { containers, ..Script::default() };
    let mut scenario = Scenario::new(&plan, &script).expect("the names are the plan's");
    scenario.stop_at(ScriptDuration::seconds(90), None);
    let mut engine = Engine::new(plan, Time(0));
    let options = Options { horizon: ScriptDuration::seconds(3_600), ..Options::default() };
    Simulator::new().run(&mut engine, &scenario, seed, &options, seen);
}

/// What happened during the stop of one pod.
#[derive(Default)]
struct Seen {
    seed: u64,
    stopped_at: Option<Time>,
    gone_at: Vec<Option<Time>>,
    running: Vec<bool>,
    /// The ends of the preStop hooks: of the first ones, and of those at the container's own turn.
    hook_ends: [Vec<Option<Time>>; 2],
    signals: usize,
    waits: usize,
    hooks: usize,
}

impl Seen {
    fn turn_to(&mut self, plan: &Plan, seed: u64) {
        let n = plan.containers.len();
        (self.seed, self.stopped_at) = (seed, None);
        (self.gone_at, self.running) = (vec![None; n], vec![false; n]);
        self.hook_ends = [vec![None; n], vec![None; n]];
    }

    /// The containers that a sentence names, if they ran when the stop began. A container that did not run is
    /// replaced by those before it.
    fn running_before(&self, rules: &[StopRule], i: usize) -> Vec<usize> {
        let (mut named, mut found) = (rules[i].after.clone(), Vec::new());
        while let Some(on) = named.pop() {
            if self.running[on] {
                found.push(on);
            } else {
                named.extend(&rules[on].after);
            }
        }
        found
    }

    /// When a container gets its signal according to its sentence. `None` if something it waits for has not
    /// happened.
    fn due(&mut self, plan: &Plan, i: usize) -> Option<Time> {
        let rules = plan.stop_rules();
        let rule = &rules[i];
        let mut due = self.stopped_at?;
        for on in self.running_before(&rules, i) {
            due = due.max(self.gone_at[on]?);
        }
        let runs_hook_first = |c: usize| self.running[c] && !self.running_before(&rules, c).is_empty();
        for &on in rule.first_hooks.iter().filter(|&&on| runs_hook_first(on)) {
            due = due.max(self.hook_ends[0][on]?);
        }
        let c = &plan.containers[i];
        if c.pre_stop.is_some() {
            due = due.max(self.hook_ends[1][i]?);
        }
        if c.pre_stop_when == PreStopWhen::FirstAndOwnTurn && c.pre_stop.is_some() && runs_hook_first(i) {
            due = due.max(self.hook_ends[0][i]?);
        }
        self.waits += usize::from(!rule.after.is_empty());
        self.hooks += usize::from(!rule.first_hooks.is_empty());
        Some(due)
    }
}

impl Watch for Seen {
    fn event(&mut self, _: &Plan, _: &Observation, event: &Event, now: Time) {
        match *event {
            Event::Exited { container, .. } => self.gone_at[container] = Some(now),
            Event::HookEnded { container, hook: HookKind::FirstPreStop, .. } => {
                self.hook_ends[0][container] = Some(now);
            }
            Event::HookEnded { container, hook: HookKind::PreStop, .. } => {
                self.hook_ends[1][container] = Some(now);
            }
            _ => {}
        }
    }

    fn updated(&mut self, _: usize, _: &Plan, _: &Observation, _: &[outrigger_lifecycle::Change], _: Time) {}
    fn restarted(&mut self, _: &Plan, _: &Observation, _: Time) {}
    fn over(&mut self, _: &Plan, _: &Observation, _: &[usize], _: Time) {}

    fn step(&mut self, plan: &Plan, obs: &Observation, decision: &Decision, now: Time) {
        if obs.stop.is_none() {
            return;
        }
        if self.stopped_at.is_none() {
            self.stopped_at = Some(now);
            self.gone_at.fill(None);
            self.running = obs.containers.iter().map(|c| c.state.is_alive()).collect();
        }
        for action in &decision.actions {
            if let Action::Terminate { container, .. } = *action {
                self.signals += 1;
                let (name, seed) = (&plan.containers[container].name, self.seed);
                let due = self.due(plan, container);
                assert!(
                    due.is_some_and(|due| now.since(due) <= SLACK_MS),
                    "seed {seed}: `{name}` is told to stop at {} ms, the plan says {due:?}: {:?}\n{plan:#?}",
                    now.0,
                    plan.stop_rules()[container]
                );
            }
        }
    }
}
