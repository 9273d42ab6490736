//! `outrigger analyze`: what the start and the stop of a pod really waited for.

use std::path::PathBuf;

use clap::ValueEnum;
use outrigger_lifecycle::Span;
use outrigger_simulate::analyze::{Analysis, Link, Start, Stop, analyze};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::terminal::{self, DIM, HEADING, paint};
use crate::timeline;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger run --events events.jsonl job.yaml; outrigger analyze events.jsonl
  outrigger simulate job.yaml -o json | outrigger analyze -
  outrigger analyze events.jsonl -o json

The critical path is what the last container to become ready, and the last one to exit, waited for. Only a shorter critical path makes the pod faster.

Exit codes: 0 analyzed, 2 the events cannot be read.")]
pub(crate) struct Args {
    /// Events from `run --events` or `simulate -o json`; `-` is standard input.
    #[arg(value_name = "EVENTS")]
    events: PathBuf,
    /// Analyze only this pod.
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Text,
    /// JSON, for scripts.
    Json,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let mut all = Vec::new();
    for pod in timeline::pods(&args.events, args.pod.as_deref())? {
        all.push(analyze(&pod.entries).map_err(|e| Failure::Input(e.into()))?);
    }
    match args.output {
        Output::Json => {
            let value = json!({ "version": 1, "pods": all });
            terminal::print_plain(&format!("{value:#}\n"))?;
        }
        Output::Text => terminal::print(&all.iter().map(text).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(Outcome::Fine)
}

fn text(analysis: &Analysis) -> String {
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
    // A few milliseconds between two things are noise, unless all is that fast.
    let tells = |link: &&Link| link.ms() >= 5 || link.ms() * 100 >= total;
    let line = |link: &Link| {
        let at = format!("{:>9.3}", link.from_ms as f64 / 1e3);
        format!("    {}  {:>8}  {}\n", paint(DIM, &at), format!("{:.3} s", link.ms() as f64 / 1e3), link.text)
    };
    links.iter().filter(tells).map(line).collect()
}
