//! Defines and parses the command line.

use std::ffi::OsString;

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

/// Parses the command line.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let error = match Cli::try_parse_from(&args) {
        Ok(cli) => return Ok(cli),
        // clap reports help and version as errors, too.
        Err(error) if !error.use_stderr() => return Err(error),
        Err(error) => error,
    };
    // clap shows options that an environment variable sets as required ones. So parse again without the
    // environment, unless the environment causes the error.
    let again = without_env(Cli::command()).try_get_matches_from(&args);
    Err(again.err().filter(|again| again.kind() == error.kind()).unwrap_or(error))
}

/// The command, without the environment variables of its options.
fn without_env(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| arg.env(None::<&str>));
    command.mut_subcommands(without_env)
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
    /// Make the node run what manifests say, and show what changes.
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
    /// Check whether this machine can run pods, and show how to fix it if not.
    Doctor(doctor::Args),
    /// Manage launch priority and sidecar termination in a cluster.
    Operator(operator::Args),
    /// Print a shell completion script.
    Completions(completions::Args),
    /// Print the manual page, or write all of them.
    Man(man::Args),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubectl's options for files name the same as the arguments without an option.
    #[test]
    fn files_are_named_with_or_without_an_option() {
        for command in ["run", "validate", "plan", "apply", "simulate"] {
            for args in
                [&["a"][..], &["-f", "a", "-f", "b"], &["--filename=a", "b"], &["-k", "dir"], &["-R", "dir"]]
            {
                let all = [&["outrigger", command], args].concat();
                assert!(Cli::try_parse_from(all).is_ok(), "{command} {args:?}");
            }
            let error = Cli::try_parse_from(["outrigger", command]).expect_err("no file").to_string();
            assert!(error.contains("<FILE>"), "{error}");
        }
    }

    /// Help with manual line breaks would be wrapped twice on a narrow terminal.
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
