//! Advice that would make a pod faster, if the trace proves it.

use outrigger_lifecycle::annotations::DEPENDS_ON;
use outrigger_lifecycle::trace::{ContainerEvent, Kind, TraceEvent};
use outrigger_lifecycle::{KillReason, ProbeKind, ProbeOutcome, STOP_MIN_MS};
use outrigger_text::HumanDuration;
use serde::Serialize;

use super::{Link, LinkKind, Start, Stop, Trace};

/// Advice on this field is given only once, because each restart would cause the same.
const STARTUP_THRESHOLD: &str = "startupProbe.failureThreshold";
/// Smaller savings are not mentioned.
pub(super) const WORTH_MS: u64 = 1_000;

/// Advice to change a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// The container. `None` for the pod or the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The field as written in the manifest, relative to the container or the pod's spec.
    pub field: &'static str,
    /// The most time that it can have cost.
    pub cost_ms: u64,
    /// The advice as text.
    pub text: String,
}

pub(super) fn advise(trace: &Trace<'_>, start: Option<&Start>, stop: Option<&Stop>) -> Vec<Advice> {
    let mut out = Vec::new();
    for link in start.iter().flat_map(|s| &s.chain) {
        out.extend(link.container.as_deref().and_then(|name| on_start(trace, name, link)));
    }
    let grace_ms = stop.and_then(|stop| stop.grace_ms);
    for link in stop.iter().flat_map(|s| &s.chain) {
        out.extend(link.container.as_deref().and_then(|name| on_stop(trace, name, link, grace_ms)));
    }
    // The most expensive come first. A field of a container that was restarted is listed once.
    out.sort_by_key(|a| std::cmp::Reverse(a.cost_ms));
    let mut seen = std::collections::BTreeSet::new();
    out.retain(|a| a.field != STARTUP_THRESHOLD || seen.insert(a.container.clone()));
    out
}

fn on_start(trace: &Trace<'_>, name: &str, link: &Link) -> Option<Advice> {
    let ms = link.ms();
    let advice =
        |field, cost_ms, text| Some(Advice { container: Some(name.to_owned()), field, cost_ms, text });
    if ms < WORTH_MS {
        return None;
    }
    let cost = HumanDuration(ms);
    match link.kind {
        LinkKind::StartupProbe => probe(trace, name, link, ProbeKind::Startup),
        LinkKind::ReadinessProbe => probe(trace, name, link, ProbeKind::Readiness),
        LinkKind::Pull => advice(
            "image",
            ms,
            format!(
                "`{name}`'s image took {cost} to pull and everything waited for it; pull it beforehand with imagePullPolicy: IfNotPresent, or use a smaller image"
            ),
        ),
        LinkKind::PostStart => advice(
            "lifecycle.postStart",
            ms,
            format!(
                "`{name}`'s postStart hook took {cost}, and containers that wait for `{name}` start only after it"
            ),
        ),
        // The link before it already says why the container was stopped.
        LinkKind::BackOff if killed_for(trace, name, link.from_ms).is_some() => None,
        LinkKind::BackOff => advice(
            "command",
            ms,
            format!(
                "`{name}` failed and was started again {cost} later; if it fails because something is not up yet, make it wait or start it later ({DEPENDS_ON}): the back-off doubles with every failure"
            ),
        ),
        LinkKind::Retry => advice("image", ms, format!("{}: it cost {cost}", link.text)),
        _ => None,
    }
}

/// Advice on the timing of a probe.
fn probe(trace: &Trace<'_>, name: &str, link: &Link, which: ProbeKind) -> Option<Advice> {
    let within = trace.of_container(name).filter(|l| (link.from_ms..=link.to_ms).contains(&l.at));
    let probes: Vec<(u64, ProbeOutcome, Option<u64>)> = within
        .filter_map(|l| {
            let TraceEvent::Container(ContainerEvent::Probe { kind, outcome, period_ms, .. }) = l.event
            else {
                return None;
            };
            (*kind == which).then_some((l.at, *outcome, *period_ms))
        })
        .collect();
    let is_success = |outcome: ProbeOutcome| outcome == ProbeOutcome::Success;
    if which == ProbeKind::Startup && killed_for(trace, name, link.to_ms) == Some(KillReason::Startup) {
        return Some(Advice {
            container: Some(name.to_owned()),
            field: STARTUP_THRESHOLD,
            cost_ms: link.ms(),
            text: format!(
                "`{name}` was stopped after {} because its startupProbe kept failing; if it needs longer to start, raise failureThreshold, else correct the probe or the program",
                HumanDuration(link.ms())
            ),
        });
    }
    let passed = probes.iter().rfind(|(_, outcome, _)| is_success(*outcome))?.0;
    let last_failure = probes.iter().rfind(|(_, outcome, _)| !is_success(*outcome)).map(|(at, ..)| *at);
    let (startup, kind) = (which == ProbeKind::Startup, which.name());
    let container = Some(name.to_owned());
    let Some(last) = last_failure else {
        // The first attempt passed, so no time before it was spent on failures.
        let delay = passed.saturating_sub(link.from_ms);
        let field =
            if startup { "startupProbe.initialDelaySeconds" } else { "readinessProbe.initialDelaySeconds" };
        let text = format!(
            "`{name}`'s {kind}Probe passed at its first attempt, {} after the container ran; if initialDelaySeconds delayed it, remove it and use periodSeconds: 1",
            HumanDuration(delay)
        );
        return (delay >= WORTH_MS).then_some(Advice { container, field, cost_ms: delay, text });
    };
    // It became healthy between the last failure and the success. A trace does not have every failure of a
    // readiness probe, but the cost is at most one period.
    let period = probes.iter().find_map(|(.., period_ms)| *period_ms)?;
    let (cost_ms, seconds) = ((passed - last.min(passed)).min(period), period / 1_000);
    if seconds < 2 || cost_ms < WORTH_MS {
        return None;
    }
    let field = if startup { "startupProbe.periodSeconds" } else { "readinessProbe.periodSeconds" };
    let cost = HumanDuration(cost_ms);
    let text = format!(
        "`{name}`'s {kind}Probe period of {seconds} s cost {cost}; with 1 s it would cost at most 1 s (periodSeconds: 1)"
    );
    Some(Advice { container, field, cost_ms, text })
}

/// Why the instance that ended at this moment was stopped. `None` if it was not stopped.
fn killed_for(trace: &Trace<'_>, name: &str, at: u64) -> Option<KillReason> {
    trace.of_container(name).filter(|l| l.at == at).find_map(|l| match l.event {
        TraceEvent::Container(ContainerEvent::Exited { killed_for, .. }) => *killed_for,
        _ => None,
    })
}

fn on_stop(trace: &Trace<'_>, name: &str, link: &Link, grace_ms: Option<u64>) -> Option<Advice> {
    let ms = link.ms();
    let container = Some(name.to_owned());
    if ms < WORTH_MS {
        return None;
    }
    match link.kind {
        LinkKind::Term => {
            let killed = trace
                .of_container(name)
                .any(|l| l.is(Kind::Killing) && (link.from_ms..=link.to_ms).contains(&l.at));
            // A grace period cannot be shorter than the minimum.
            let (comma, lower) = match grace_ms.is_some_and(|grace| grace <= STOP_MIN_MS) {
                true => (" or", ""),
                false => (",", ", or lower terminationGracePeriodSeconds"),
            };
            killed.then(|| Advice {
                container,
                field: "lifecycle.stopSignal",
                cost_ms: ms,
                text: format!("`{name}` ignored TERM for {} until it was killed; handle TERM in the program (process 1 ignores it without a handler){comma} set lifecycle.stopSignal to a signal it does handle{lower}", HumanDuration(ms)),
            })
        }
        LinkKind::PreStop => Some(Advice {
            container,
            field: "lifecycle.preStop",
            cost_ms: ms,
            text: format!(
                "`{name}`'s preStop hook used {} of the grace period; `{name}` gets TERM only after it",
                HumanDuration(ms)
            ),
        }),
        _ => None,
    }
}
