//! `outrigger ps`: the pods of all runs that go on.

use anyhow::anyhow;
use clap::ValueEnum;
use outrigger_agent::control::{ContainerState, PodState, Run, Which};
use outrigger_lifecycle::Span;

use crate::outcome::{Failure, Outcome};
use crate::{runs, table, terminal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger ps                 the pods of all runs of this user
  outrigger ps -c              their containers, and why those that wait do
  outrigger ps web             the containers of one pod
  outrigger ps -o json         everything, for programs")]
pub(crate) struct Args {
    /// Show the containers of this pod only: NAME or pod/NAME.
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Show containers, and why those that wait do.
    #[arg(long, short)]
    containers: bool,
    /// Only pods in this namespace.
    #[arg(long, short = 'n', value_name = "NAME")]
    namespace: Option<String>,
    /// Only pods of the run with this process number.
    #[arg(long, value_name = "PID")]
    run: Option<u32>,
    /// How to show it.
    #[arg(short, long, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns for people.
    Table,
    /// A JSON list of runs.
    Json,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let mut found = runs::block_on(runs::find())?;
    let picked = match &args.pod {
        Some(pod) => {
            let which = Which { pod: pod.clone(), namespace: args.namespace.clone(), run: args.run };
            let (run, pod) = found.pick(&which).map_err(|e| Failure::Input(anyhow!(e)))?;
            Some((run.state.pid, pod.number))
        }
        None => None,
    };
    for run in &mut found.runs {
        let pid = run.state.pid;
        let wanted = |pod: &PodState| match picked {
            Some(picked) => picked == (pid, pod.number),
            None => args.namespace.as_ref().is_none_or(|n| *n == pod.namespace),
        };
        run.state.pods.retain(wanted);
    }
    let is_wanted = |run: &Run| match picked {
        Some((pid, _)) => pid == run.state.pid,
        None => args.run.is_none_or(|pid| pid == run.state.pid),
    };
    found.runs.retain(is_wanted);
    let text = match args.output {
        Format::Json => {
            let states: Vec<_> = found.runs.iter().map(|run| &run.state).collect();
            serde_json::to_string_pretty(&states).map_err(|e| Failure::Own(e.into()))? + "\n"
        }
        Format::Table if args.containers || picked.is_some() => containers(&found.runs),
        Format::Table => pods(&found.runs),
    };
    if text.is_empty() {
        terminal::note("no pod runs; `outrigger run FILE` runs some");
    }
    terminal::print(&text)?;
    Ok(Outcome::Fine)
}

fn all(runs: &[Run]) -> impl Iterator<Item = (&Run, &PodState)> {
    runs.iter().flat_map(|run| run.state.pods.iter().map(move |pod| (run, pod)))
}

fn pods(runs: &[Run]) -> String {
    let rows = all(runs).map(|(run, pod)| {
        [
            pod.name.clone(),
            phase(pod),
            format!("{}/{}", pod.ready, pod.total),
            pod.restarts.to_string(),
            age(pod.age_ms),
            run.state.pid.to_string(),
            run.state.files.join(" "),
            reason(pod),
        ]
    });
    table::columns(["POD", "PHASE", "READY", "RESTARTS", "AGE", "RUN", "FILE", "WHY"], rows)
}

fn containers(runs: &[Run]) -> String {
    let rows = all(runs).flat_map(|(_, pod)| {
        pod.containers.iter().map(|c| {
            [
                pod.name.clone(),
                c.name.clone(),
                c.role.clone(),
                c.state.clone(),
                c.restarts.to_string(),
                c.age_ms.map(age).unwrap_or_default(),
                c.reason.clone().unwrap_or_default(),
            ]
        })
    });
    table::columns(["POD", "CONTAINER", "ROLE", "STATE", "RESTARTS", "AGE", "WHY"], rows)
}

/// The phase, or what is on its way to the next.
fn phase(pod: &PodState) -> String {
    match pod.stopping {
        true => "Stopping".to_owned(),
        false => pod.phase.clone(),
    }
}

fn age(ms: u64) -> String {
    Span(ms / 1_000 * 1_000).to_string()
}

/// Why the pod is not what it should be: its own reason, else that of the first container that has one.
fn reason(pod: &PodState) -> String {
    let of_container = |c: &ContainerState| c.reason.as_ref().map(|reason| format!("`{}` {reason}", c.name));
    let first = || pod.containers.iter().find_map(of_container);
    pod.reason.clone().filter(|_| !pod.over).or_else(first).unwrap_or_default()
}
