//! The command line.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};

use crate::terminal::Color;
use crate::{
    analyze, apply, attach, completions, convert, doctor, exec, logs, man, node, operator, plan, ps, restart,
    run, simulate, stop, timeline, validate,
};

/// Run Kubernetes pods whose containers start, run and stop in the right order.
#[derive(Debug, Parser)]
#[command(name = "outrigger", version, about, max_term_width = 100, arg_required_else_help = true, after_help = AFTER)]
pub(crate) struct Cli {
    /// When to use colors.
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Examples:
  outrigger run job.yaml                  run pods and exit with their result
  outrigger ps                            pods, and why anything is waiting
  outrigger plan pod.yaml                 what starts and stops when, and why
  outrigger validate *.yaml               all errors in the manifests
  outrigger convert pod.yaml --to native  the same pod in another dialect
  outrigger simulate job.yaml             the life of a pod on a virtual clock
  outrigger analyze events.jsonl          what a run waited for
  outrigger operator status web-0         what a pod in a cluster waits for

Exit codes: 0 success, 1 findings, 2 wrong usage or bad input, 125 a failure of outrigger itself.";

/// Reads the command line.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let error = match Cli::try_parse_from(&args) {
        Ok(cli) => return Ok(cli),
        // Help and version come this way, too.
        Err(error) if !error.use_stderr() => return Err(error),
        Err(error) => error,
    };
    // clap shows options that the environment sets as required ones. It is asked again without the environment, unless that
    // is where the mistake is.
    let again = without_env(Cli::command()).try_get_matches_from(&args);
    Err(only_close_suggestions(again.err().filter(|again| again.kind() == error.kind()).unwrap_or(error)))
}

/// The command without the variables that its options can be set by.
fn without_env(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| arg.env(None::<&str>));
    command.mut_subcommands(without_env)
}

/// Removes suggested commands and options that are not close to what was typed, and adds commands that are:
/// clap does not count two swapped letters as similar.
fn only_close_suggestions(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned() {
        let commands = Cli::command();
        let close = commands.get_subcommands().map(|c| c.get_name()).filter(|name| is_close(&typed, name));
        let close: Vec<String> = close.map(str::to_owned).collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(close));
        // clap leaves an empty line for tips, even if there are none.
        if matches!(error.get(ContextKind::Suggested), Some(ContextValue::StyledStrs(tips)) if tips.is_empty())
        {
            error.remove(ContextKind::Suggested);
        }
    }
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg).cloned() {
        // clap suggests `-- --option`, which would name a file.
        error.remove(ContextKind::Suggested);
        // kubectl's spelling.
        if ["-f", "--filename", "--file"].contains(&typed.as_str()) {
            error.remove(ContextKind::SuggestedArg);
            let tip = "name files without an option: outrigger run FILE".into();
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
    }
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

/// Whether a word may be a typo of another: at most one mistake in four letters. Words of one or two letters
/// are too short to tell.
fn is_close(typed: &str, word: &str) -> bool {
    let tells = typed.len().max(word.len()) > 2;
    tells && strsim::osa_distance(typed, word) <= (typed.chars().count() / 4).max(1)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run pods on this machine, in order, and exit with their result.
    Run(Box<run::Args>),
    /// Keep pods running on this machine, through restarts of outrigger itself.
    Node(Box<node::Args>),
    /// List the pods of your active runs, and why anything is waiting.
    Ps(ps::Args),
    /// Print the logs of containers.
    #[command(override_usage = "outrigger logs [OPTIONS] <POD | -l SELECTOR>")]
    Logs(logs::Args),
    /// Follow a detached run, and exit with its result.
    Attach(attach::Args),
    /// Run a command in a container.
    Exec(exec::Args),
    /// Change what the node runs to what manifests say, and show what changes.
    Apply(Box<apply::Args>),
    /// Restart a container, or all containers of pods in order.
    Restart(restart::Args),
    /// Stop pods or workloads, in order.
    #[command(override_usage = "outrigger stop [OPTIONS] <POD | -l SELECTOR | --all>")]
    Stop(stop::Args),
    /// Show what starts and stops when, and why.
    Plan(plan::Args),
    /// Check manifests for errors.
    Validate(validate::Args),
    /// Convert pods to another dialect.
    Convert(convert::Args),
    /// Simulate pods on a virtual clock.
    Simulate(simulate::Args),
    /// Draw what happened in a run, one lane per container.
    Timeline(timeline::Args),
    /// Show what the start and the stop of pods waited for, and what would make them faster.
    Analyze(analyze::Args),
    /// Check whether this machine can run pods, and how to fix it if not.
    Doctor(doctor::Args),
    /// Launch priority and sidecar termination in a cluster.
    Operator(operator::Args),
    /// Print a shell completion script.
    Completions(completions::Args),
    /// Print the manual page, or write all of them.
    Man(man::Args),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_close_words_are_suggested() {
        let said = |args: &[&str]| {
            let error = Cli::try_parse_from([&["outrigger"], args].concat()).expect_err("a wrong word");
            only_close_suggestions(error).to_string()
        };
        for (word, meant) in [
            ("valdate", "validate"),
            ("sotp", "stop"),
            ("log", "logs"),
            ("simulat", "simulate"),
            ("rnu", "run"),
        ] {
            assert!(said(&[word]).contains(&format!("'{meant}'")), "{}", said(&[word]));
        }
        for word in ["get", "apply", "describe", "start", "delete", "ls", "p"] {
            assert!(!said(&[word]).contains("similar"), "{}", said(&[word]));
        }
        for option in ["-f", "--filename"] {
            let tip = said(&["run", option, "job.yaml"]);
            assert!(tip.contains("tip: name files without an option: outrigger run FILE"), "{tip}");
            assert!(!tip.contains("-- -f"), "{tip}");
        }
        assert!(!said(&["run", "--replicas", "-1", "web.yaml"]).contains("tip:"));
        assert!(!said(&["run", "--bogus", "web.yaml"]).contains("tip:"));
        assert!(said(&["run", "--event", "x"]).contains("'--events'"));
        assert!(!said(&["run", "--detach"]).contains("similar"), "{}", said(&["run", "--detach"]));
    }

    /// Help with manual line breaks would be wrapped again on a narrower terminal.
    #[test]
    fn help_is_wrapped_once() {
        let mut all = vec![Cli::command()];
        all.extend(Cli::command().get_subcommands().cloned());
        for command in all {
            let Some(text) = command.get_after_help().map(ToString::to_string) else { continue };
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                assert!(!(is_prose(pair[0]) && is_prose(pair[1])), "{}: {pair:?}", command.get_name());
            }
            for line in lines.iter().filter(|line| line.starts_with(' ')) {
                assert!(
                    line.chars().count() <= 80,
                    "{}: {line:?} is wrapped at 80 columns",
                    command.get_name()
                );
            }
        }
    }
}
