//! An analysis for people.

use outrigger_lifecycle::Span;

use super::{Analysis, Link, Start, Stop};
use crate::style::{DIM, HEADING, paint};

/// What a pod waited for, as text.
pub fn text(analysis: &Analysis) -> String {
    let mut out = format!("{}\n", paint(HEADING, &format!("Pod {}", analysis.pod)));
    match &analysis.start {
        Some(start) => out.push_str(&start_text(start)),
        None => out.push_str("  nothing started\n"),
    }
    if let Some(stop) = &analysis.stop {
        out.push_str(&stop_text(stop));
    }
    for (i, advice) in analysis.advice.iter().enumerate() {
        if i == 0 {
            out.push_str(&format!("  {}\n", paint(HEADING, "What would help")));
        }
        out.push_str(&format!("    {}\n", advice.text));
    }
    out
}

fn start_text(start: &Start) -> String {
    let took = Span(start.took_ms);
    let head = match &start.stuck {
        None => format!("Start: {took}, until `{}` was up", start.last),
        Some(why) => format!("Start: not complete after {took}, because of `{}` ({why})", start.last),
    };
    format!("  {}\n{}", paint(HEADING, &head), chain(&start.chain))
}

fn stop_text(stop: &Stop) -> String {
    let took = Span(stop.took_ms);
    let grace = stop.grace_ms.map(|ms| format!(" (grace period {})", Span(ms))).unwrap_or_default();
    let mut head = format!("Stop ({}): {took}{grace}", stop.cause);
    if !stop.killed.is_empty() {
        let names: Vec<String> = stop.killed.iter().map(|name| format!("`{name}`")).collect();
        head.push_str(&format!(", killed: {}", names.join(", ")));
    }
    format!("  {}\n{}", paint(HEADING, &head), chain(&stop.chain))
}

fn chain(links: &[Link]) -> String {
    let total: u64 = links.iter().map(Link::ms).sum();
    // Links of a few milliseconds are noise, unless all are that short.
    let tells = |link: &&Link| link.ms() >= 5 || link.ms() * 100 >= total;
    let line = |link: &Link| {
        let at = format!("{:>9.3}", link.from_ms as f64 / 1e3);
        format!("    {}  {:>8}  {}\n", paint(DIM, &at), format!("{:.3} s", link.ms() as f64 / 1e3), link.text)
    };
    links.iter().filter(tells).map(line).collect()
}
