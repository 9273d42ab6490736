//! The closing summary of a run.

use outrigger_lifecycle::trace::StopReason;
use outrigger_lifecycle::{ExitReason, Phase, Role};

use crate::ledger::{Account, Ended, JobAccount, Ledger, On, PodAccount};
use crate::line::{Line, Paint, columns, cut, wrap};
use crate::words::{finished, grace_period, signal, span};

/// The maximum number of pods that are shown in full.
const PODS_MAX: usize = 8;
/// The maximum number of causes of lost time that are named.
const NAMED_MAX: usize = 3;
/// A shorter back-off is not shown, because creating a pod takes longer.
const BACK_OFF_MIN_MS: u64 = 50;
/// The maximum number of hints that are repeated.
const HINTS_MAX: usize = 4;

/// The summary of a run, in lines of at most `width` columns, with the files that were written.
pub(crate) fn summary(ledger: &Ledger, written: &[(String, String)], width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let told = pods_to_tell(&ledger.pods);
    for pod in told.iter().map(|&i| &ledger.pods[i]) {
        pod_lines(pod, width, &mut lines);
    }
    for job in ledger.jobs.iter().filter(|job| job.pods > 1 || job.back_off_ms > 0) {
        job_lines(job, width, &mut lines);
    }
    if ledger.pods.len() > 1 {
        lines.push(Line::of_text(Paint::Bold, &totals(&ledger.pods)).cut(width));
    }
    for (what, path) in written {
        let mut line = Line::of_text(Paint::Dim, &format!("{what}: "));
        // A shortened path is useless, so long paths wrap.
        line.push(Paint::Plain, path);
        lines.push(line);
    }
    lines
}

/// How a Job of several pods ended, after how long, and how long it waited.
fn job_lines(job: &JobAccount, width: usize, lines: &mut Vec<Line>) {
    let Some((is_success, took_ms, why)) = &job.end else { return };
    let (paint, word) = if *is_success { (Paint::Good, "complete") } else { (Paint::Bad, "failed") };
    let waited = match job.back_off_ms {
        0..BACK_OFF_MIN_MS => String::new(),
        ms => format!(", of which {} back-off between pods", span(ms)),
    };
    let why = if *is_success { String::new() } else { format!(": {why}") };
    let rest = format!("after {}{waited}{why}", span(*took_ms));
    let name = cut(&job.name, width.saturating_sub(word.len() + 1).max(4));
    let mut line = Line::of_text(Paint::Bold, &name).with(Paint::Plain, " ").with(paint, word);
    match line.width() + 1 + columns(&rest) <= width {
        true => {
            line.push(Paint::Plain, &format!(" {rest}"));
            lines.push(line);
        }
        false => {
            lines.push(line);
            let below = wrap(&rest, width.saturating_sub(2), 4);
            lines.extend(below.iter().map(|text| Line::of_text(Paint::Plain, &format!("  {text}"))));
        }
    }
}

/// All pods if there are few. Otherwise the failed ones, as far as there is room.
fn pods_to_tell(pods: &[PodAccount]) -> Vec<usize> {
    let all = pods.len() <= PODS_MAX;
    let wanted = |i: &usize| all || pods[*i].phase != Some(Phase::Succeeded);
    (0..pods.len()).filter(wanted).take(PODS_MAX).collect()
}

fn totals(pods: &[PodAccount]) -> String {
    let count = |phase: Phase| pods.iter().filter(|p| p.phase == Some(phase)).count();
    let stopped = pods.iter().filter(|p| p.was_stopped).count();
    let (good, bad) = (count(Phase::Succeeded), count(Phase::Failed) - stopped);
    let mut text = format!("{} pods: {good} succeeded", pods.len());
    if bad > 0 {
        text = format!("{text}, {bad} failed");
    }
    if stopped > 0 {
        text = format!("{text}, {stopped} stopped");
    }
    let other = pods.len() - good - bad - stopped;
    if other > 0 {
        text = format!("{text}, {other} unfinished");
    }
    let longest = pods.iter().max_by_key(|p| p.took_ms());
    match longest {
        Some(pod) => format!("{text}; longest: {}, {}", pod.name, span(pod.took_ms())),
        None => text,
    }
}

fn pod_lines(pod: &PodAccount, width: usize, lines: &mut Vec<Line>) {
    verdict(pod, width, lines);
    let name_max = if width < 40 { 10 } else { 32 };
    let names = pod.containers.iter().map(|c| columns(&c.name)).max().unwrap_or(0).min(name_max);
    let ends: Vec<(Paint, String)> = pod.containers.iter().map(how_ended).collect();
    let end_width = ends.iter().map(|(_, text)| columns(text)).max().unwrap_or(0);
    for (i, (c, (paint, end))) in pod.containers.iter().zip(&ends).enumerate() {
        let mut line = Line::of_text(Paint::Plain, "  ");
        line.push_cell(Paint::Name(i), &c.name, names);
        if width >= 60 {
            line.push(Paint::Plain, "  ");
            line.push_cell(Paint::Dim, c.role.name(), 7);
        }
        line.push(Paint::Plain, "  ");
        let facts = facts(pod, c);
        if width < 40 {
            line.push(*paint, end);
            lines.push(line.cut(width));
            for text in facts.iter().flat_map(|f| wrap(f, width.saturating_sub(4), 4)) {
                lines.push(Line::of_text(Paint::Plain, "    ").with(Paint::Dim, &text).cut(width));
            }
            continue;
        }
        line.push_cell(*paint, end, end_width);
        let indent = line.width() + 2;
        let told = wrap(&facts.join("; "), width.saturating_sub(indent).max(16), 4);
        let mut told = told.into_iter();
        if let Some(first) = told.next() {
            line.push(Paint::Plain, &format!("  {first}"));
        }
        lines.push(line.cut(width));
        for text in told {
            lines.push(Line::of_text(Paint::Plain, &" ".repeat(indent)).with(Paint::Plain, &text).cut(width));
        }
    }
    let indent = if width < 40 { 0 } else { 2 };
    if let Some(text) = grace(pod) {
        for text in wrap(&text, width.saturating_sub(indent), 6) {
            lines.push(Line::of_text(Paint::Plain, &" ".repeat(indent)).with(Paint::Plain, &text));
        }
    }
    // The hints may have scrolled off the screen, so they are repeated.
    let told = pod.hints.iter().take(HINTS_MAX);
    for text in told.flat_map(|text| wrap(text, width.saturating_sub(indent), 6)) {
        lines.push(Line::of_text(Paint::Plain, &" ".repeat(indent)).with(Paint::Bold, &text));
    }
}

/// How a pod ended, after how long, and why.
fn verdict(pod: &PodAccount, width: usize, lines: &mut Vec<Line>) {
    let word = pod.phase.map_or("ended", |phase| finished(phase, pod.was_stopped));
    let paint = match pod.phase {
        Some(Phase::Succeeded) => Paint::Good,
        Some(Phase::Failed) if pod.was_stopped => Paint::Plain,
        Some(Phase::Failed) => Paint::Bad,
        Some(Phase::Pending | Phase::Running) | None => Paint::Busy,
    };
    let name = cut(&pod.name, width.saturating_sub(word.len() + 1).max(4));
    let mut line = Line::of_text(Paint::Bold, &name).with(Paint::Plain, " ").with(paint, word);
    let stopped =
        pod.stop.as_ref().filter(|s| !matches!(s.cause, StopReason::Completed | StopReason::Deleted));
    let stopped = stopped.map(|s| s.message.clone());
    let no_image = pod.containers.iter().find(|c| c.has_no_image && pod.phase != Some(Phase::Succeeded));
    let no_image = no_image.map(|c| format!("the image of `{}` could not be pulled", c.name));
    let failed = pod.phase == Some(Phase::Failed) && !pod.was_stopped;
    let culprit = pod.culprit().filter(|_| failed);
    let culprit = culprit.map(|c| format!("`{}` exited with {}", c.name, how_ended(c).1));
    let ended = pod.containers.iter().filter(|c| failed && c.role == Role::Main);
    let mut ended = ended.filter_map(|c| Some((&c.name, c.ended_because.as_ref()?)));
    let ended = || ended.next().map(|(name, why)| format!("`{name}` was stopped: {why}"));
    let set_up = pod.set_up_error.as_ref().filter(|_| pod.phase != Some(Phase::Succeeded));
    let set_up = set_up.map(|why| format!("could not be set up: {why}"));
    let why = set_up
        .or(stopped)
        .or(culprit)
        .or_else(ended)
        .or(no_image)
        .map_or(String::new(), |why| format!(": {why}"));
    let rest = format!("after {}{why}", span(pod.took_ms()));
    let below = match line.width() + 1 + columns(&rest) <= width {
        true => {
            line.push(Paint::Plain, &format!(" {rest}"));
            Vec::new()
        }
        false => wrap(&rest, width.saturating_sub(2), 6),
    };
    lines.push(line.cut(width));
    lines.extend(below.iter().map(|text| Line::of_text(Paint::Plain, &format!("  {text}"))));
}

fn how_ended(c: &Account) -> (Paint, String) {
    let Some(ended) = &c.ended else {
        return (Paint::Dim, if c.was_started { "unknown" } else { "never ran" }.to_owned());
    };
    let paint = match ended {
        e if !e.failed() => Paint::Good,
        e if e.told && !c.was_killed => Paint::Plain,
        _ => Paint::Bad,
    };
    (paint, end_words(ended))
}

/// The end as text, such as `code 0`, `code 137 (KILL)` or `code 137 (out of memory)`.
pub(crate) fn end_words(ended: &Ended) -> String {
    let code = ended.code;
    match (ended.reason, ended.signal) {
        (Some(ExitReason::OomKilled), _) => format!("code {code} (out of memory)"),
        (Some(ExitReason::StartError), _) => format!("code {code} (not started)"),
        (Some(ExitReason::ContainerStatusUnknown), _) => format!("code {code} (lost)"),
        (_, Some(number)) => format!("code {code} ({})", signal(number)),
        _ => format!("code {code}"),
    }
}

fn facts(pod: &PodAccount, c: &Account) -> Vec<String> {
    let mut facts = Vec::new();
    if c.was_started || c.ended.is_some() {
        facts.push(format!("ran {}", span(c.ran_ms)));
    }
    match c.restarts {
        0 => {}
        1 => facts.push("1 restart".to_owned()),
        n => facts.push(format!("{n} restarts")),
    }
    // A container that never ran shows the reason. How long it waited does not matter then.
    match &c.start_error {
        _ if c.was_started => facts.extend(waited(pod, c)),
        Some(why) => facts.push(format!("could not start: {why}")),
        None if c.has_no_image => facts.push("its image could not be pulled".to_owned()),
        // The line of the pod already says why.
        None if pod.set_up_error.is_some() => {}
        None => facts.extend(waited(pod, c)),
    }
    facts
}

/// A text such as `waited 483 ms: 392 ms for proxy, 91 ms for shipper`.
fn waited(pod: &PodAccount, c: &Account) -> Option<String> {
    let total: u64 = c.waited_ms.values().sum();
    let mut parts: Vec<(On, u64)> =
        c.waited_ms.iter().map(|(on, ms)| (*on, *ms)).filter(|(_, ms)| *ms > 0).collect();
    parts.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    let whom = |on: On| match on {
        On::Container(i) => pod.containers[i].name.clone(),
        On::Sandbox => "the sandbox".to_owned(),
        On::SetUp => "the pod to be set up".to_owned(),
        On::Image => "its image".to_owned(),
        On::Backoff => "back-off".to_owned(),
        On::Retry => "a retry".to_owned(),
    };
    match parts.as_slice() {
        [] => None,
        [(on, ms)] => Some(format!("waited {} for {}", span(*ms), whom(*on))),
        _ => {
            let named =
                parts.iter().take(NAMED_MAX).map(|(on, ms)| format!("{} for {}", span(*ms), whom(*on)));
            let mut text = format!("waited {}: {}", span(total), named.collect::<Vec<_>>().join(", "));
            if parts.len() > NAMED_MAX {
                text.push_str(", …");
            }
            Some(text)
        }
    }
}

/// How much of the grace period was used, and by which containers.
fn grace(pod: &PodAccount) -> Option<String> {
    let stop = pod.stop.as_ref()?;
    let mut users: Vec<&Account> = pod.containers.iter().filter(|c| c.stop.was_told).collect();
    if users.is_empty() {
        return None;
    }
    users.sort_by_key(|c| std::cmp::Reverse(c.stop.total_ms()));
    let named = users.iter().take(NAMED_MAX).map(|c| {
        let hooks = match c.stop.hooks_ms {
            0 => String::new(),
            ms if ms == c.stop.total_ms() => " in its preStop hook".to_owned(),
            ms => format!(" ({} of it in its preStop hook)", span(ms)),
        };
        let killed = if c.was_killed { ", then killed" } else { "" };
        format!("{} {}{hooks}{killed}", c.name, span(c.stop.total_ms()))
    });
    let mut text = format!(
        "stopping took {} ({}): {}",
        span(stop.took_ms),
        grace_period(stop.grace_ms),
        named.collect::<Vec<_>>().join(", ")
    );
    if users.len() > NAMED_MAX {
        text.push_str(", …");
    }
    Some(text)
}
