//! The command line.

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use crate::terminal::Color;
use crate::{
    analyze, completions, convert, doctor, exec, logs, man, plan, ps, run, simulate, stop, timeline, validate,
};

/// Runs Kubernetes pods whose containers start, run and stop in the right order.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, about, max_term_width = 100, arg_required_else_help = true, after_help = AFTER)]
pub(crate) struct Cli {
    /// When to colour the output.
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Examples:
  outrigger run job.yaml                     runs it here and exits with its result
  outrigger ps                               what runs, and why what waits does
  outrigger plan pod.yaml                    what starts and stops when, and why
  outrigger validate *.yaml                  everything that is wrong with manifests
  outrigger convert pod.yaml --to native     the same pod in another dialect
  outrigger simulate job.yaml                its life on a virtual clock
  outrigger analyze events.jsonl             what a run really waited for

Exit codes: 0 fine, 1 findings, 2 wrong usage or bad input, 125 a failure of outrigger itself.";

/// Takes out of an error the commands and options it suggests that are not close to what was typed.
pub(crate) fn only_close_suggestions(mut error: clap::Error) -> clap::Error {
    let typed = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg, ContextKind::InvalidValue];
    let Some(ContextValue::String(typed)) = typed.iter().find_map(|kind| error.get(*kind)).cloned() else {
        return error;
    };
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue] {
        match error.remove(kind) {
            Some(ContextValue::String(one)) if is_close(&typed, &one) => {
                error.insert(kind, ContextValue::String(one));
            }
            Some(ContextValue::Strings(mut all)) => {
                all.retain(|word| is_close(&typed, word));
                if !all.is_empty() {
                    error.insert(kind, ContextValue::Strings(all));
                }
            }
            _ => {}
        }
    }
    error
}

/// Whether a word may be a typo of another: one slip in four letters.
fn is_close(typed: &str, word: &str) -> bool {
    strsim::osa_distance(typed, word) <= (typed.chars().count() / 4).max(1)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs pods on this machine, in order, and exits with their result.
    Run(run::Args),
    /// Shows the pods of all runs that go on, and why containers wait.
    Ps(ps::Args),
    /// Prints what a container of a run wrote.
    Logs(logs::Args),
    /// Runs a command in a container of a run.
    Exec(exec::Args),
    /// Stops a pod of a run, in order.
    Stop(stop::Args),
    /// Shows what starts and stops when, and why.
    Plan(plan::Args),
    /// Says what is wrong with manifests.
    Validate(validate::Args),
    /// Writes the same pods in another dialect.
    Convert(convert::Args),
    /// Plays pods on a virtual clock and shows what happens.
    Simulate(simulate::Args),
    /// Draws what happened: a lane per container.
    Timeline(timeline::Args),
    /// Says what the start and the stop of pods really waited for.
    Analyze(analyze::Args),
    /// Says whether this machine can run pods, and what to do if not.
    Doctor(doctor::Args),
    /// Prints a completion script for a shell.
    Completions(completions::Args),
    /// Prints the manual page, or writes all of them.
    Man(man::Args),
}
