//! The critical chain of a start.

use outrigger_lifecycle::trace::{ContainerEvent, Kind, TraceEvent, WaitReason};
use outrigger_lifecycle::{HookKind, KillReason, Need};

use super::{LinkKind, Start, Trace, Walk};
use crate::timed::Line;

/// More steps than any pod needs. A trace of unknown origin must not cause an endless loop.
const STEPS_MAX: usize = 10_000;

pub(super) fn critical_path(trace: &Trace<'_>) -> Option<Start> {
    let limit = trace.stop_begun().map_or(u64::MAX, |l| l.at);
    let up = |name: &str| trace.of_container(name).find(|l| l.is(Kind::Ready) && l.at <= limit).map(|l| l.at);
    let names = &trace.containers;
    if let Some((last, moment, why)) = stuck(trace, names) {
        let end = trace.end.min(limit);
        let chain = chain(trace, last, moment, end);
        return Some(Start { complete: false, last: last.to_owned(), took_ms: end, stuck: Some(why), chain });
    }
    // Init containers never become ready. If a pod has no others, its start ends with the last of them.
    let ended = |name: &str| trace.last(name, &[Kind::Exited], limit).map(|l| l.at);
    let (last, at, moment) = names
        .iter()
        .filter_map(|&name| Some((name, up(name)?, Moment::Ready)))
        .max_by_key(|(_, at, _)| *at)
        .or_else(|| {
            let all = names.iter().filter_map(|&name| Some((name, ended(name)?, Moment::Completed)));
            all.max_by_key(|(_, at, _)| *at)
        })?;
    let chain = chain(trace, last, moment, at);
    Some(Start { complete: true, last: last.to_owned(), took_ms: at, stuck: None, chain })
}

/// A container that did not become ready, what was missing, and why. If there are several, it is one that
/// does not wait for another.
fn stuck<'a>(trace: &Trace<'a>, names: &[&'a str]) -> Option<(&'a str, Moment, String)> {
    let stop = trace.lines.iter().position(|l| l.container.is_none() && l.is(Kind::StopBegun));
    let before = &trace.lines[..stop.unwrap_or(trace.lines.len())];
    let turns = [Kind::Waiting, Kind::Starting, Kind::Started, Kind::Exited];
    // Its last event, unless it became ready.
    let last = |name: &str| {
        let own = || before.iter().filter(|l| l.container == Some(name));
        let up = own().any(|l| l.is(Kind::Ready));
        let turn = own().rfind(|l| turns.contains(&l.event.kind())).filter(|_| !up)?;
        let TraceEvent::Container(ContainerEvent::Waiting { wait, text }) = turn.event else { return None };
        Some((wait, text))
    };
    let (first, (wait, text)) = names.iter().find_map(|&name| Some((name, last(name)?)))?;
    let why = if text.is_empty() { "waits".to_owned() } else { text.clone() };
    let (mut name, mut moment, mut wait) = (first, Moment::Ready, Some(wait));
    for _ in names {
        let Some(WaitReason::Gate { on, need }) = wait else { break };
        let Some(&on) = names.iter().find(|name| *name == on) else { break };
        moment = Moment::of_need(*need);
        (name, wait) = (on, last(on).map(|(wait, _)| wait));
    }
    Some((name, moment, why))
}

/// The moment of a container's life that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Launched,
    Started,
    Ready,
    Completed,
}

impl Moment {
    fn of_need(need: Need) -> Moment {
        match need {
            Need::Completed => Moment::Completed,
            Need::Ready => Moment::Ready,
            Need::Launched => Moment::Launched,
            Need::Started => Moment::Started,
        }
    }
}

fn chain(trace: &Trace<'_>, container: &str, moment: Moment, at: u64) -> Vec<super::Link> {
    let mut walk = Walk::from(at);
    let (mut container, mut moment) = (container.to_owned(), moment);
    for _ in 0..STEPS_MAX {
        let starting = life(trace, &container, moment, &mut walk);
        match opened_by(trace, &container, starting, &mut walk) {
            Some((on, need)) if on != container => (container, moment) = (on, need),
            _ => break,
        }
    }
    walk.finish(0, &container)
}

/// Explains the time from a container's first start to a moment of its life. Returns the entry of that start.
fn life<'t, 'a>(trace: &'t Trace<'a>, name: &str, moment: Moment, walk: &mut Walk) -> Option<&'t Line<'a>> {
    let mut first = None;
    let mut moment = moment;
    let until = walk.at;
    for turn in trace.of_container(name).rev().filter(|l| l.at <= until) {
        let (kind, text) = match turn.event {
            TraceEvent::Container(ContainerEvent::Starting { .. }) => {
                first = Some(turn);
                instance(trace, name, turn.at, moment, walk);
                continue;
            }
            // The exit that was waited for, or an exit just after the moment.
            TraceEvent::Container(ContainerEvent::Exited { code: 0, .. })
                if first.is_none() && moment == Moment::Completed =>
            {
                continue;
            }
            TraceEvent::Container(ContainerEvent::Exited { .. }) if first.is_none() && turn.at == until => {
                continue;
            }
            TraceEvent::Container(ContainerEvent::Exited { code, killed_for, .. }) => {
                let why = killed_for.map_or_else(
                    || format!("after exit code {code}"),
                    |kill| format!("after it was stopped because {}", kill.why()),
                );
                (LinkKind::BackOff, format!("`{name}` waits for its restart {why}"))
            }
            TraceEvent::Container(ContainerEvent::StartFailed { message, .. }) => {
                let why = if message.is_empty() { "it could not be started" } else { message };
                (LinkKind::Retry, format!("`{name}` is started again later: {why}"))
            }
            _ => continue,
        };
        walk.back(Some(name), kind, turn.at, text);
        moment = Moment::Completed;
    }
    first
}

/// Explains the time from the start of an instance to a moment of its life.
fn instance(trace: &Trace<'_>, name: &str, starting: u64, moment: Moment, walk: &mut Walk) {
    let until = walk.at;
    let within =
        |event: Kind| trace.of_container(name).find(|l| l.is(event) && (starting..=until).contains(&l.at));
    let started = within(Kind::Started).map_or(until, |l| l.at);
    if moment == Moment::Completed {
        let exit = trace.last(name, &[Kind::Exited], until).filter(|l| l.at >= starting);
        let (kind, text) = match exit.map(|l| l.event) {
            Some(TraceEvent::Container(ContainerEvent::Exited {
                killed_for: Some(KillReason::Startup),
                ..
            })) => (LinkKind::StartupProbe, format!("`{name}` runs until its startup probe has failed")),
            Some(TraceEvent::Container(ContainerEvent::Exited { killed_for: Some(kill), .. })) => {
                (LinkKind::Failed, format!("`{name}` runs until it is stopped because {}", kill.why()))
            }
            Some(TraceEvent::Container(ContainerEvent::Exited { code, .. })) if *code != 0 => {
                (LinkKind::Failed, format!("`{name}` runs and fails with exit code {code}"))
            }
            _ => (LinkKind::Run, format!("`{name}` runs to its end")),
        };
        walk.back(Some(name), kind, started, text);
    }
    if moment != Moment::Launched {
        let events = || trace.of_container(name).filter(|l| (starting..=until).contains(&l.at));
        let hook_began = events()
            .any(|l| matches!(l.event, TraceEvent::Container(ContainerEvent::HookStarted { hook, .. }) if *hook == HookKind::PostStart));
        let hook_ended = events()
            .find(|l| matches!(l.event, TraceEvent::Container(ContainerEvent::HookEnded { hook, .. }) if *hook == HookKind::PostStart));
        // A hook that is still running explains everything up to now.
        let hook_end = match (hook_began, hook_ended) {
            (_, Some(end)) => end.at,
            (true, None) => until,
            (false, None) => started,
        };
        let passed = within(Kind::StartupPassed).map(|l| l.at);
        let waits = |l: &Line<'_>| {
            matches!(
                l.event,
                TraceEvent::Container(ContainerEvent::Waiting { wait: WaitReason::StartupProbe, .. })
            )
        };
        let probes = passed.is_some() || events().any(waits);
        if moment == Moment::Ready {
            let from = match (passed, probes) {
                (Some(at), _) => at.max(hook_end),
                (None, true) => until,
                (None, false) => hook_end,
            };
            walk.back(Some(name), LinkKind::ReadinessProbe, from, format!("`{name}` runs but is not ready"));
        }
        if probes {
            let text = format!("`{name}` runs, startup probe pending");
            walk.back(Some(name), LinkKind::StartupProbe, hook_end, text);
        }
        let text = format!("`{name}` runs its postStart hook");
        walk.back(Some(name), LinkKind::PostStart, started, text);
    }
    walk.back(Some(name), LinkKind::Start, starting, format!("`{name}` is started"));
}

/// Explains what allowed a container to start, or returns the container to continue with.
fn opened_by(
    trace: &Trace<'_>,
    name: &str,
    starting: Option<&Line<'_>>,
    walk: &mut Walk,
) -> Option<(String, Moment)> {
    let at = walk.at;
    let pulled = trace.last(name, &[Kind::Pulled], at).map(|l| l.at);
    let sandbox = trace.pod(Kind::SandboxReady).filter(|l| l.at <= at).last().map(|l| l.at);
    let gate = match starting {
        Some(line) => opened_gate(line),
        // It was never started. Use the gate it waits for, if any.
        None => trace.last(name, &[Kind::Waiting], at).and_then(|line| {
            let TraceEvent::Container(ContainerEvent::Waiting {
                wait: WaitReason::Gate { on, need }, ..
            }) = line.event
            else {
                return None;
            };
            Some((at, on.clone(), Moment::of_need(*need)))
        }),
    };
    let latest = pulled.max(sandbox).unwrap_or(0);
    if let Some((opened, on, need)) = gate
        && opened >= latest
    {
        walk.back(Some(name), LinkKind::Start, opened, format!("`{name}` could start but has not yet"));
        return Some((on, need));
    }
    let text = format!("`{name}` could start but has not yet");
    if starting.is_some() {
        walk.back(Some(name), LinkKind::Start, latest, text);
    }
    if pulled >= sandbox || starting.is_none() {
        pulls(trace, name, walk);
    } else if let Some(creating) = trace.pod(Kind::SandboxCreating).next() {
        walk.back(None, LinkKind::Sandbox, creating.at, "the pod's sandbox is created".to_owned());
    }
    None
}

/// The gate that opened last before a start: when it opened, its container, and what was needed.
fn opened_gate(line: &Line<'_>) -> Option<(u64, String, Moment)> {
    let TraceEvent::Container(ContainerEvent::Starting { opened_last: Some(gate), opened_ms_ago, .. }) =
        line.event
    else {
        return None;
    };
    let opened = line.at - opened_ms_ago.unwrap_or(0).min(line.at);
    Some((opened, gate.container.clone(), Moment::of_need(gate.need)))
}

/// Explains pulls and the pauses between them.
fn pulls(trace: &Trace<'_>, name: &str, walk: &mut Walk) {
    for _ in 0..STEPS_MAX {
        let events = [Kind::Pulling, Kind::Pulled, Kind::PullFailed];
        // Several pulls may share one moment, some of them already explained. A pull that took no time
        // explains nothing.
        let Some(line) =
            trace.of_container(name).rev().find(|l| l.at < walk.at && events.contains(&l.event.kind()))
        else {
            break;
        };
        if line.is(Kind::Pulling) {
            walk.back(Some(name), LinkKind::Pull, line.at, format!("`{name}`'s image is pulled"));
            continue;
        }
        let mut why = "it failed";
        if let TraceEvent::Container(ContainerEvent::PullFailed { message, .. }) = line.event
            && !message.is_empty()
        {
            why = message;
        }
        let text = format!("`{name}`'s image is pulled again later: {why}");
        walk.back(Some(name), LinkKind::Retry, line.at, text);
    }
}
