//! `outrigger analyze`: what the start and the stop of a pod waited for.

use std::path::PathBuf;

use clap::ValueEnum;
use outrigger_view::analyze::{analyze, text};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::{terminal, timeline};

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
