//! The critical chain of a stop: which containers used the grace period.

use outrigger_lifecycle::trace::{ContainerEvent, Kind, PodEvent, StopReason, TraceEvent, WaitReason};
use outrigger_lifecycle::{HookKind, Phase};
use outrigger_text::HumanDuration;

use super::{LinkKind, Stop, Trace, Walk};
use crate::timed::Line;

/// More steps than any pod has containers, to prevent an endless loop.
const STEPS_MAX: usize = 10_000;

pub(super) fn stop_path(trace: &Trace<'_>) -> Option<Stop> {
    let begun = trace.stop_begun()?;
    let TraceEvent::Pod(PodEvent::StopBegun { cause, grace_ms, .. }) = begun.event else { return None };
    let since = |event: Kind| {
        trace.lines.iter().filter(move |l| l.is(event) && l.at >= begun.at && l.container.is_some())
    };
    let mut killed: Vec<String> = Vec::new();
    for name in since(Kind::Killing).filter_map(|l| l.container) {
        if !killed.iter().any(|k| k == name) {
            killed.push(name.to_owned());
        }
    }
    let over = since(Kind::Exited).max_by_key(|l| l.at);
    let chain = match over.and_then(|l| Some((l.container?, l.at))) {
        Some((name, at)) => chain(trace, name, begun.at, at),
        None => Vec::new(),
    };
    Some(Stop {
        cause: cause.name().to_owned(),
        failed: (*cause == StopReason::Completed).then(|| failed(trace, begun.at)).flatten(),
        at_ms: begun.at,
        grace_ms: *grace_ms,
        took_ms: over.map_or(0, |l| l.at - begun.at),
        killed,
        chain,
    })
}

/// What failed in a pod that ended by itself. The mains of a failed pod are done, too.
fn failed(trace: &Trace<'_>, begun: u64) -> Option<String> {
    let has_failed = |l: &Line<'_>| {
        matches!(l.event, TraceEvent::Pod(PodEvent::Finished { phase: Phase::Failed, stopped: false }))
    };
    if !trace.lines.iter().any(has_failed) {
        return None;
    }
    let culprit = trace.lines.iter().rev().filter(|l| l.at <= begun).find_map(|l| match l.event {
        TraceEvent::Container(ContainerEvent::Exited { code, killed_for: None, .. }) if *code != 0 => {
            Some(format!("`{}` failed with exit code {code}", l.container?))
        }
        _ => None,
    });
    Some(culprit.unwrap_or_else(|| "the pod failed".to_owned()))
}

fn chain(trace: &Trace<'_>, name: &str, begun: u64, at: u64) -> Vec<super::Link> {
    let mut walk = Walk::from(at);
    let mut name = name.to_owned();
    let mut seen = vec![name.clone()];
    for _ in 0..STEPS_MAX {
        exit(trace, &name, begun, &mut walk);
        let Some(next) = turn(trace, &name, begun, &mut walk) else { break };
        if seen.contains(&next) {
            break;
        }
        seen.push(next.clone());
        name = next;
    }
    walk.finish(begun, &name)
}

/// Explains the end of a container: from TERM to the exit, and the preStop hook before that.
fn exit(trace: &Trace<'_>, name: &str, begun: u64, walk: &mut Walk) {
    let at = walk.at;
    let within =
        |event: Kind| trace.of_container(name).rfind(|l| l.is(event) && (begun..=at).contains(&l.at));
    let kill = within(Kind::Killing).map(|l| l.at);
    match (within(Kind::Terminating), kill) {
        (Some(term), Some(kill)) => {
            let text = format!(
                "`{name}` does not end on TERM and is killed after {}",
                HumanDuration(kill - term.at.min(kill))
            );
            walk.back(Some(name), LinkKind::Term, term.at, text);
        }
        (Some(term), None) => {
            walk.back(Some(name), LinkKind::Term, term.at, format!("`{name}` ends after TERM"));
        }
        (None, Some(kill)) => walk.back(Some(name), LinkKind::Term, kill, format!("`{name}` is killed")),
        (None, None) => {}
    }
    hook(trace, name, HookKind::PreStop, begun, walk);
}

/// Explains a preStop hook that ended at the current moment of the walk.
fn hook(trace: &Trace<'_>, name: &str, which: HookKind, begun: u64, walk: &mut Walk) {
    let at = walk.at;
    let within = |l: &&Line<'_>| (begun..=at).contains(&l.at);
    let began = |l: &&Line<'_>| {
        within(l)
            && matches!(l.event, TraceEvent::Container(ContainerEvent::HookStarted { hook, .. }) if *hook == which)
    };
    let cancelled = |l: &&Line<'_>| {
        within(l)
            && matches!(l.event, TraceEvent::Container(ContainerEvent::HookCancelled { hook, .. }) if *hook == which)
    };
    let ended = |l: &&Line<'_>| {
        within(l)
            && matches!(l.event, TraceEvent::Container(ContainerEvent::HookEnded { hook, .. }) if *hook == which)
    };
    let Some(from) = trace.of_container(name).rfind(began).map(|l| l.at) else { return };
    let until = trace.of_container(name).rfind(|l| ended(l) || cancelled(l)).map_or(at, |l| l.at);
    let cancelled = trace.of_container(name).rfind(cancelled).is_some_and(|l| l.at >= from);
    let which = which.name();
    walk.back(Some(name), LinkKind::Wait, until, format!("`{name}` waits after its {which} hook"));
    let text = match cancelled {
        true => format!("`{name}`'s {which} hook is cancelled"),
        false => format!("`{name}` runs its {which} hook"),
    };
    walk.back(Some(name), LinkKind::PreStop, from, text);
}

/// The container that this one had to wait for before its stop signal.
fn turn(trace: &Trace<'_>, name: &str, begun: u64, walk: &mut Walk) -> Option<String> {
    let at = walk.at;
    let waits = trace.of_container(name).rev().filter(|l| l.at >= begun && l.at < at);
    let mut waits = waits.filter_map(|l| {
        let TraceEvent::Container(ContainerEvent::Waiting { wait, .. }) = l.event else { return None };
        turn_of(wait)
    });
    let on = match waits.next()? {
        Turn::Exit(on) => on,
        Turn::FirstPreStop(on) => {
            hook(trace, on, HookKind::FirstPreStop, begun, walk);
            return None;
        }
    };
    // It got its signal while the other was still running. So the grace period was over, and the other had
    // used it up.
    if let Some(exited) = trace.last(on, &[Kind::Exited], at).filter(|l| l.at >= begun) {
        let text = format!("`{name}` could be stopped but has not been told yet");
        walk.back(Some(name), LinkKind::Wait, exited.at, text);
    }
    Some(on.to_owned())
}

/// What a stop waits for in another container.
enum Turn<'a> {
    /// Its exit.
    Exit(&'a str),
    /// Its first preStop hook.
    FirstPreStop(&'a str),
}

/// What a stop waits for in another container, if anything.
fn turn_of(wait: &WaitReason) -> Option<Turn<'_>> {
    match wait {
        WaitReason::StopTurn { on } => Some(Turn::Exit(on)),
        WaitReason::FirstPreStop { on } => Some(Turn::FirstPreStop(on)),
        WaitReason::Sandbox
        | WaitReason::Gate { .. }
        | WaitReason::Image
        | WaitReason::ImageRetry { .. }
        | WaitReason::BackOff { .. }
        | WaitReason::StartRetry { .. }
        | WaitReason::StartupProbe
        | WaitReason::ReadinessProbe
        | WaitReason::SidecarDelay { .. }
        | WaitReason::Rerun { .. } => None,
    }
}
