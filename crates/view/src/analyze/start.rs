//! The critical chain of a start.

use super::{LinkKind, Start, Trace, Walk};
use crate::timeline::Line;

/// More steps than any pod has; a trace that is not one of ours must not hang us.
const STEPS_MAX: usize = 10_000;

pub(super) fn of(trace: &Trace<'_>) -> Option<Start> {
    let limit = trace.stop_begun().map_or(u64::MAX, |l| l.at);
    let up = |name: &str| trace.of(name).find(|l| l.event == "ready" && l.at <= limit).map(|l| l.at);
    let names = trace.containers();
    if let Some((last, moment, why)) = stuck(trace, &names) {
        let end = trace.end().min(limit);
        let chain = chain(trace, last, moment, end);
        return Some(Start { complete: false, last: last.to_owned(), took_ms: end, stuck: Some(why), chain });
    }
    // Init containers are never ready: without others, the last to end is what the start was.
    let ended = |name: &str| trace.last(name, &["exited"], limit).map(|l| l.at);
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

/// A container that was wanted and did not come up, what of it was waited for, and why: the one that does not itself
/// wait for another.
fn stuck<'a>(trace: &Trace<'a>, names: &[&'a str]) -> Option<(&'a str, Moment, String)> {
    let stop = trace.lines.iter().position(|l| l.container.is_none() && l.event == "stop-begun");
    let before = &trace.lines[..stop.unwrap_or(trace.lines.len())];
    let turns = ["waiting", "starting", "started", "exited"];
    // The last that was heard of it, unless it has been up.
    let last = |name: &str| {
        let own = || before.iter().filter(|l| l.container == Some(name));
        let up = own().any(|l| l.event == "ready");
        own().rfind(|l| turns.contains(&l.event)).filter(|l| !up && l.event == "waiting")
    };
    let (first, waiting) = names.iter().find_map(|&name| Some((name, last(name)?)))?;
    let why = waiting.text("text").unwrap_or("waits").to_owned();
    let (mut name, mut moment, mut line) = (first, Moment::Ready, Some(waiting));
    for _ in names {
        let Some(gate) = line.filter(|l| l.text("for") == Some("gate")) else { break };
        let Some(&on) = names.iter().find(|n| Some(**n) == gate.text("on")) else { break };
        moment = Moment::of(gate.text("need").unwrap_or_default());
        (name, line) = (on, last(on));
    }
    Some((name, moment, why))
}

/// What others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Launched,
    Started,
    Ready,
    Completed,
}

impl Moment {
    fn of(need: &str) -> Moment {
        match need.to_ascii_lowercase().as_str() {
            "completed" => Moment::Completed,
            "ready" => Moment::Ready,
            "launched" => Moment::Launched,
            _ => Moment::Started,
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

/// Explains the time from a container's first start to a moment of its life, and gives the entry of that start.
fn life<'t, 'a>(trace: &'t Trace<'a>, name: &str, moment: Moment, walk: &mut Walk) -> Option<&'t Line<'a>> {
    let mut first = None;
    let mut moment = moment;
    for _ in 0..STEPS_MAX {
        let Some(starting) = trace.last(name, &["starting"], walk.at) else { break };
        first = Some(starting);
        instance(trace, name, starting.at, moment, walk);
        // An instance before this one, whose end this one waited for.
        let Some(end) = trace.last(name, &["exited", "start-failed"], starting.at) else { break };
        let (kind, text) = if end.event == "start-failed" {
            let message = end.text("message").unwrap_or("it could not be started");
            (LinkKind::Retry, format!("`{name}` is started again later: {message}"))
        } else {
            let code = end.fields.get("code").and_then(serde_json::Value::as_i64).unwrap_or(0);
            (LinkKind::BackOff, format!("`{name}` waits for its restart after exit code {code}"))
        };
        walk.back(Some(name), kind, end.at, text);
        moment = Moment::Completed;
    }
    first
}

/// Explains the time from the start of an instance to a moment of its life.
fn instance(trace: &Trace<'_>, name: &str, starting: u64, moment: Moment, walk: &mut Walk) {
    let until = walk.at;
    let within =
        |event: &str| trace.of(name).find(|l| l.event == event && (starting..=until).contains(&l.at));
    let started = within("started").map_or(until, |l| l.at);
    if moment == Moment::Completed {
        let exit = trace.last(name, &["exited"], until).filter(|l| l.at >= starting);
        let code = exit.and_then(|l| l.fields.get("code")).and_then(serde_json::Value::as_i64).unwrap_or(0);
        let (kind, text) = match code {
            0 => (LinkKind::Run, format!("`{name}` runs to its end")),
            code => (LinkKind::Failed, format!("`{name}` runs and fails with exit code {code}")),
        };
        walk.back(Some(name), kind, started, text);
    }
    if moment != Moment::Launched {
        let hook = |event: &str| {
            trace.of(name).find(|l| {
                l.event == event && l.text("hook") == Some("postStart") && (starting..=until).contains(&l.at)
            })
        };
        // One that still runs is all there is.
        let hook_end = match (hook("hook-started"), hook("hook-ended")) {
            (_, Some(end)) => end.at,
            (Some(_), None) => until,
            (None, None) => started,
        };
        let passed = within("startup-passed").map(|l| l.at);
        let waits = |what: &str| {
            let is = |l: &&Line<'_>| {
                l.event == "waiting" && l.text("for") == Some(what) && (starting..=until).contains(&l.at)
            };
            trace.of(name).find(is).is_some()
        };
        let probes = waits("startup-probe") || within("startup-passed").is_some();
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

/// What let a container start: explains it, or names the container to go on with.
fn opened_by(
    trace: &Trace<'_>,
    name: &str,
    starting: Option<&Line<'_>>,
    walk: &mut Walk,
) -> Option<(String, Moment)> {
    let at = walk.at;
    let pulled = trace.last(name, &["pulled"], at).map(|l| l.at);
    let sandbox = trace.pod("sandbox-ready").filter(|l| l.at <= at).last().map(|l| l.at);
    let gate = match starting {
        Some(line) => {
            let opened = line.at - line.number("opened_ms_ago").unwrap_or(0).min(line.at);
            line.fields.get("opened_last").and_then(|g| {
                Some((opened, g["container"].as_str()?.to_owned(), Moment::of(g["need"].as_str()?)))
            })
        }
        // It was never started: the gate it waits for, if any.
        None => trace.last(name, &["waiting"], at).filter(|l| l.text("for") == Some("gate")).and_then(|l| {
            Some((at, l.text("on")?.to_owned(), Moment::of(l.text("need").unwrap_or_default())))
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
    } else if let Some(creating) = trace.pod("sandbox-creating").next() {
        walk.back(None, LinkKind::Sandbox, creating.at, "the pod's sandbox is created".to_owned());
    }
    None
}

/// Explains pulls and the pauses between them.
fn pulls(trace: &Trace<'_>, name: &str, walk: &mut Walk) {
    for _ in 0..STEPS_MAX {
        let events = ["pulling", "pulled", "pull-failed"];
        // Of several at one moment the walk may have passed some: a pull that took no time explains nothing.
        let Some(line) = trace.of(name).rev().find(|l| l.at < walk.at && events.contains(&l.event)) else {
            break;
        };
        match line.event {
            "pulling" => {
                walk.back(Some(name), LinkKind::Pull, line.at, format!("`{name}`'s image is pulled"));
            }
            _ => {
                let why = line.text("message").unwrap_or("it failed");
                let text = format!("`{name}`'s image is pulled again later: {why}");
                walk.back(Some(name), LinkKind::Retry, line.at, text);
            }
        }
    }
}
