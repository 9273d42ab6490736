//! Renders an analysis as text for people.

use outrigger_text::HumanDuration;

use super::{Analysis, Link, Start, Stop, WorkloadAnalysis};
use crate::line::wrap_all;
use crate::style::{DIM, HEADING, paint};
use crate::words::grace_period;

/// The width of the time and duration columns, with the gaps around them.
const INDENT: usize = 4 + 9 + 2 + 8 + 2;
/// A shorter back-off would be shown as 0 s.
const BACK_OFF_MIN_MS: u64 = 50;
/// If there are fewer columns for texts beside the times, texts are put below the times.
const BESIDE_MIN: usize = 24;

/// Renders analyses in lines of at most `width` columns. Each workload comes before its pods.
pub fn text(workloads: &[WorkloadAnalysis], pods: &[Analysis], width: usize) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut last: Option<&str> = None;
    for pod in pods {
        let workload = pod.workload.as_deref();
        if let Some(begins) =
            workloads.iter().find(|w| Some(w.workload.as_str()) == workload && workload != last)
        {
            out.push(workload_text(begins, width));
        }
        last = workload;
        out.push(pod_text(pod, width));
    }
    out.join("\n")
}

/// Renders the analysis of a pod.
fn pod_text(analysis: &Analysis, width: usize) -> String {
    let mut out = heading(&format!("Pod {}", analysis.pod), 0, width);
    match &analysis.start {
        Some(start) => out.push_str(&start_text(start, analysis.began_ms, width)),
        None => out.push_str("  nothing started\n"),
    }
    if let Some(stop) = &analysis.stop {
        out.push_str(&stop_text(stop, analysis.began_ms, width));
    }
    out + &advice(analysis.advice.iter().map(|advice| advice.text.as_str()), 2, width)
}

/// Renders the analysis of a workload.
fn workload_text(analysis: &WorkloadAnalysis, width: usize) -> String {
    let took = HumanDuration(analysis.took_ms);
    let mut head = analysis.workload.replacen('/', " ", 1);
    head = match &analysis.end {
        Some(end) => format!("{head}: {} after {took}", end.text),
        None => format!("{head}: {took}"),
    };
    if analysis.back_off_ms >= BACK_OFF_MIN_MS {
        head = format!("{head}, of which {} back-off between pods", HumanDuration(analysis.back_off_ms));
    }
    let mut out = heading(&head, 0, width);
    for stretch in &analysis.stretches {
        out.push_str(&row(stretch.from_ms, stretch.ms(), &stretch.text, width));
    }
    out + &advice(analysis.advice.iter().map(|advice| advice.text.as_str()), 2, width)
}

fn heading(text: &str, indent: usize, width: usize) -> String {
    let lines = wrap_all(text, width.saturating_sub(indent));
    lines.iter().map(|line| format!("{:indent$}{}\n", "", paint(HEADING, line))).collect()
}

fn advice<'a>(texts: impl Iterator<Item = &'a str>, indent: usize, width: usize) -> String {
    let mut out = String::new();
    for text in texts {
        if out.is_empty() {
            out = heading("What would help", indent, width);
        }
        // Further lines are indented more, so that each sentence stands out.
        for (i, line) in wrap_all(text, width.saturating_sub(indent + 4)).iter().enumerate() {
            let indent = indent + if i == 0 { 2 } else { 4 };
            out.push_str(&format!("{:indent$}{line}\n", ""));
        }
    }
    out
}

fn start_text(start: &Start, began: u64, width: usize) -> String {
    let took = HumanDuration(start.took_ms);
    let head = match &start.stuck {
        None => format!("Start: {took}, until `{}` was up", start.last),
        Some(why) => format!("Start: not complete after {took}, because of `{}` ({why})", start.last),
    };
    heading(&head, 2, width) + &chain(&start.chain, began, width)
}

fn stop_text(stop: &Stop, began: u64, width: usize) -> String {
    let took = HumanDuration(stop.took_ms);
    let grace = stop.grace_ms.map(|ms| format!(" ({})", grace_period(ms))).unwrap_or_default();
    let why = stop.failed.as_ref().unwrap_or(&stop.cause);
    let mut head = format!("Stop ({why}): {took}{grace}");
    if !stop.killed.is_empty() {
        let names: Vec<String> = stop.killed.iter().map(|name| format!("`{name}`")).collect();
        head.push_str(&format!(", killed: {}", names.join(", ")));
    }
    heading(&head, 2, width) + &chain(&stop.chain, began, width)
}

fn chain(links: &[Link], began: u64, width: usize) -> String {
    let total: u64 = links.iter().map(Link::ms).sum();
    // Links of a few milliseconds are noise, unless all are that short.
    let tells = |link: &&Link| link.ms() >= 5 || link.ms() * 100 >= total;
    links.iter().filter(tells).map(|link| row(began + link.from_ms, link.ms(), &link.text, width)).collect()
}

/// One row: when something began, how long it took, and what it was.
fn row(from_ms: u64, ms: u64, text: &str, width: usize) -> String {
    let at = paint(DIM, &format!("{:>9.3}", from_ms as f64 / 1e3));
    let head = format!("    {at}  {:>8}", format!("{:.3} s", ms as f64 / 1e3));
    let (indent, beside) = match width.saturating_sub(INDENT) {
        room if room >= BESIDE_MIN => (INDENT, true),
        _ => (6, false),
    };
    let lines = wrap_all(text, width.saturating_sub(indent));
    let mut out = head;
    for (i, line) in lines.iter().enumerate() {
        match i {
            0 if beside => out.push_str(&format!("  {line}")),
            _ => out.push_str(&format!("\n{:indent$}{line}", "")),
        }
    }
    out + "\n"
}
