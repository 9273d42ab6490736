//! Descriptions of containers in a plan.

use outrigger_lifecycle::{
    ContainerPlan, Counts, List, Need, PreStopWhen, ProbeKind, ProbePlan, RestartPolicy, Role, RuleAction,
};
use outrigger_text::HumanDuration;

use super::view::View;

/// The role as a word.
pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::Init => "init",
        Role::Sidecar => "sidecar",
        Role::Main => "main",
        Role::Ephemeral => "debug",
    }
}

/// What a gate waits for, as a word.
pub(super) fn need(need: Need) -> &'static str {
    match need {
        Need::Completed => "completed",
        Need::Started => "started",
        Need::Ready => "ready",
        Need::Launched => "launched",
    }
}

/// A length of time for people.
pub(super) fn duration(ms: u64) -> String {
    HumanDuration(ms).to_string()
}

/// Joins words: `a`, `a and b`, `a, b and c`.
pub(super) fn and(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn names(view: &View<'_>, containers: impl IntoIterator<Item = usize>) -> Vec<String> {
    containers.into_iter().map(|c| format!("`{}`", view.name(c))).collect()
}

fn is_are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// When a container starts.
pub(super) fn starts(view: &View<'_>, container: usize) -> String {
    let c = &view.plan.containers[container];
    let gates = view.gates(container);
    let of = |need: Need| names(view, gates.iter().filter(|g| g.need == need).map(|g| g.on));
    let mut conditions = Vec::new();
    let completed = of(Need::Completed);
    if !completed.is_empty() {
        conditions.push(format!(
            "{} {} completed",
            and(&completed),
            if completed.len() == 1 { "has" } else { "have" }
        ));
    }
    for need in [Need::Started, Need::Ready] {
        let on = of(need);
        if !on.is_empty() {
            conditions.push(format!("{} {} {}", and(&on), is_are(on.len()), self::need(need)));
        }
    }
    let launched = of(Need::Launched);
    let mut text = match (conditions.is_empty(), launched.is_empty()) {
        (true, true) => "starts at once".to_owned(),
        (true, false) => format!("starts right after {}", and(&launched)),
        (false, true) => format!("starts once {}", and(&conditions)),
        (false, false) => format!("starts once {}, right after {}", and(&conditions), and(&launched)),
    };
    if c.gates.iter().any(|g| g.every_start) {
        text.push_str(", also at every restart");
    }
    if !c.fence.is_empty() {
        let on = names(view, c.fence.iter().copied());
        text.push_str(&format!("; stopped while {} {} not ready", and(&on), is_are(on.len())));
    }
    if !c.restart_with.is_empty() {
        text.push_str(&format!(
            "; restarted whenever {} is",
            and(&names(view, c.restart_with.iter().copied()))
        ));
    }
    text
}

/// What must be true before others no longer wait for a container.
pub(super) fn opens(view: &View<'_>, container: usize) -> Option<String> {
    let c = &view.plan.containers[container];
    let asked = |need| {
        view.plan.containers.iter().flat_map(|c| &c.gates).any(|g| g.on == container && g.need == need)
    };
    let (started, ready) = (asked(Need::Started), asked(Need::Ready));
    if !started && !ready {
        return None;
    }
    let mut needs = Vec::new();
    if c.post_start.is_some() {
        needs.push("its postStart hook is done".to_owned());
    }
    if let Some(probe) = c.probe(ProbeKind::Startup) {
        needs.push(format!("its startup probe passes ({})", pace(probe)));
    }
    let mut text = Vec::new();
    if started {
        text.push(match needs.is_empty() {
            true => "started as soon as it runs".to_owned(),
            false => format!("started once {}", and(&needs)),
        });
    }
    if ready {
        if let Some(probe) = c.probe(ProbeKind::Readiness) {
            needs.push(format!("its readiness probe passes ({})", pace(probe)));
        }
        text.push(match needs.is_empty() {
            true => "ready as soon as it runs".to_owned(),
            false => format!("ready once {}", and(&needs)),
        });
    }
    Some(text.join("; "))
}

fn pace(probe: &ProbePlan) -> String {
    let mut text = format!("every {}", duration(probe.period_ms));
    if probe.initial_delay_ms > 0 {
        text = format!("after {}, then {text}", duration(probe.initial_delay_ms));
    }
    if probe.success_threshold > 1 {
        text.push_str(&format!(", {} times in a row", probe.success_threshold));
    }
    text
}

/// What the container's end means for the pod.
pub(super) fn runs(view: &View<'_>, container: usize) -> String {
    let c = &view.plan.containers[container];
    let mut parts = vec![restarts(c)];
    match (c.role, c.keeps_alive, c.counts) {
        (Role::Init, ..) => parts.push("if it fails for good, the pod fails".to_owned()),
        (_, true, Counts::No) => parts.push("keeps the pod alive, does not count for its result".to_owned()),
        (_, true, _) => parts.push("keeps the pod alive and counts for its result".to_owned()),
        (_, false, Counts::Yes) => {
            parts.push("does not keep the pod alive, but counts for its result".to_owned())
        }
        (_, false, Counts::UnlessStopped) => {
            parts.push("does not keep the pod alive; its exit counts only if it ends by itself".to_owned())
        }
        (_, false, Counts::No) => {
            parts.push("does not keep the pod alive or count for its result".to_owned())
        }
    }
    if c.fatal {
        parts.push("when it ends, the pod ends".to_owned());
    }
    parts.join("; ")
}

fn restarts(c: &ContainerPlan) -> String {
    let mut parts: Vec<String> = Vec::new();
    for rule in &c.restart.rules {
        let codes: Vec<String> = rule.values.iter().map(i32::to_string).collect();
        let what = match rule.action {
            RuleAction::Restart => "restarted",
            RuleAction::RestartAllContainers => "the whole pod restarted",
        };
        let which = if rule.is_in { "exit code" } else { "any exit code but" };
        parts.push(format!("{what} on {which} {}", codes.join(", ")));
    }
    let policy = match (c.restart.policy, c.role) {
        (RestartPolicy::Never, _) => "never restarted",
        (RestartPolicy::Always, Role::Init) | (RestartPolicy::OnFailure, _) => "restarted on failure",
        (RestartPolicy::Always, _) => "always restarted",
    };
    parts.push(if parts.is_empty() { policy.to_owned() } else { format!("otherwise {policy}") });
    parts.join(", ")
}

/// When and how a container is stopped.
pub(super) fn stops(view: &View<'_>, container: usize) -> String {
    let (c, rule) = (&view.plan.containers[container], &view.stop_rules[container]);
    let on = names(view, rule.after.clone());
    if view.plan.grace_ms == 0 {
        // Native sidecars do not wait longer than the grace period (R3.25).
        let turn = match on.as_slice() {
            [_, ..] if view.plan.keeps_order_after_grace() => {
                format!("once {} {} gone", and(&on), is_are(on.len()))
            }
            _ => "at once".to_owned(),
        };
        return format!("killed {turn}: the grace period is 0");
    }
    let signal = signal(view, c);
    let first = names(view, rule.first_hooks.clone());
    let turn = match (on.is_empty(), first.is_empty()) {
        (false, _) => format!("once {} {} gone", and(&on), is_are(on.len())),
        (true, false) => format!("once the preStop hook of {} is done", and(&first)),
        (true, true) => "at once".to_owned(),
    };
    let how = match (&c.pre_stop, c.pre_stop_when) {
        (None, _) => format!("{signal} {turn}"),
        (Some(_), PreStopWhen::OwnTurn) => format!("preStop hook {turn}, then {signal}"),
        (Some(_), _) if on.is_empty() => format!("preStop hook {turn}, then {signal}"),
        (Some(_), PreStopWhen::AtOnce) if first.is_empty() => {
            format!("preStop hook at once, {signal} {turn}")
        }
        // The KEP's first hooks come before all others, including this one.
        (Some(_), PreStopWhen::AtOnce) => {
            format!("preStop hook once that of {} is done, {signal} {turn}", and(&first))
        }
        (Some(_), PreStopWhen::FirstAndOwnTurn) => {
            format!("preStop hook first of all; {turn} preStop hook again, then {signal}")
        }
    };
    let window = view.plan.stop_window(container, view.plan.grace_ms);
    let kill = duration(window.kill_ms_max);
    match window.signal_ms_max {
        0 => format!("{how}; KILL after {kill}"),
        ms => format!("{how}; at the latest {signal} after {}, KILL after {kill}", duration(ms)),
    }
}

/// The signal that asks a container to stop.
pub(super) fn signal(view: &View<'_>, c: &ContainerPlan) -> String {
    let spec = view.pod.input.pod.spec.as_ref();
    let written = spec.and_then(|spec| match c.place.list {
        List::Init => spec.init_containers.as_ref()?.get(c.place.index),
        List::Main => spec.containers.get(c.place.index),
        List::Ephemeral => None,
    });
    let own = written.and_then(|c| c.lifecycle.as_ref()?.stop_signal.as_deref());
    own.map_or_else(|| "TERM".to_owned(), |s| s.trim_start_matches("SIG").to_owned())
}
