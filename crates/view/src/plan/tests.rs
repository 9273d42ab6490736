//! The times in a plan, checked against the engine with containers that use all the time they may.

use outrigger_lifecycle::{Action, Decision, Engine, Event, Observation, Plan, Time};
use outrigger_simulate::{
    ContainerScript, HookScript, Hooks, OnTerm, Options, Rng, Scenario, Script, Simulator, Span, Watch,
    random,
};

/// The time the simulated world needs for its own actions.
const SLACK_MS: u64 = 200;

#[test]
fn nobody_is_signalled_or_killed_later_than_the_plan_says() {
    let mut stops = Stops::default();
    for seed in 0..2_000 {
        let (_, plan) = random::pod(&mut Rng::new(seed));
        let stubborn = || ContainerScript {
            on_term: Some(OnTerm { ignore: true, ..OnTerm::default() }),
            runs: Some(Span::FOREVER),
            hooks: Hooks {
                pre_stop: Some(HookScript { takes: Some(Span::FOREVER), ..HookScript::default() }),
                ..Hooks::default()
            },
            ..ContainerScript::default()
        };
        let mains =
            plan.containers.iter().filter(|c| c.keeps_alive || c.role != outrigger_lifecycle::Role::Init);
        let containers = mains.map(|c| (c.name.clone(), stubborn())).collect();
        let script = Script { containers, ..Script::default() };
        let mut scenario = Scenario::new(&plan, &script).expect("the names are the plan's");
        scenario.stop_at(Span::seconds(90), None);
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
