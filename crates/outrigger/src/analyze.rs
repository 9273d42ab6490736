//! `outrigger analyze`: shows what the start and the stop of a pod waited for, and what a Job waited for
//! between its pods.

use std::path::PathBuf;

use clap::ValueEnum;
use outrigger_view::analyze::{Analyses, analyze_all, text};
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::{terminal, timeline};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger run --events events.jsonl job.yaml; outrigger analyze events.jsonl
  outrigger simulate job.yaml -o json | outrigger analyze -
  outrigger analyze events.jsonl -o json

The critical path is what the last container to become ready, and the last one to exit, waited for. Of a Job with several pods, its pods and the back-off between them are shown first, on one clock. Only a shorter critical path makes the pod faster.

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
    let events = timeline::events(&args.events, args.pod.as_deref())?;
    let Analyses { workloads, pods } = analyze_all(&events).map_err(|e| Failure::Input(e.into()))?;
    match args.output {
        Output::Json => {
            let value = json!({ "version": 1, "workloads": workloads, "pods": pods });
            terminal::print_plain(&format!("{value:#}\n"))?;
        }
        Output::Text => {
            let width = terminal::out_width().unwrap_or(terminal::WIDTH);
            terminal::print(&text(&workloads, &pods, width))?;
        }
    }
    Ok(Outcome::Fine)
}
