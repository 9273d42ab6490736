//! `outrigger ps`: lists the pods of all active runs.

use anyhow::anyhow;
use clap::ValueEnum;
use outrigger_embedded::killed_runs;
use outrigger_node::control::{ContainerState, Named, Object, PodState, Run, Selector};
use outrigger_text::HumanDuration;
use outrigger_view::table::{NONE, table};

use crate::outcome::{Failure, Outcome};
use crate::runs::{self, PlaceArgs};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger ps                 your pods that run or wait
  outrigger ps -a              those that have ended, too
  outrigger ps -c              their containers, and why anything is waiting
  outrigger ps web             the containers of one pod
  outrigger ps deploy/web      the pods of a Deployment
  outrigger ps -l app=web      the pods with a label
  outrigger ps -a -o json      everything, for scripts")]
pub(crate) struct Args {
    /// Show the containers of this pod, or the pods of this workload: POD, deploy/NAME, job/NAME, ….
    #[arg(value_name = "POD", conflicts_with = "selector")]
    pod: Option<Object>,
    /// Only pods with these labels, for example app=web or 'tier in (front,back),!canary'.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// Show pods that have ended, too. A pod or workload that is named is always shown.
    #[arg(long, short)]
    all: bool,
    /// Show containers, and why anything is waiting.
    #[arg(long, short)]
    containers: bool,
    #[command(flatten)]
    place: PlaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// One pod/NAME per line.
    Name,
    /// A JSON list of runs.
    Json,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    // Read this before asking the runs. A run that answers slowly must not hide pods that end in the
    // meantime.
    let killed = killed_runs();
    let mut found = runs::block_on(args.place.find())?;
    let dir = args.place.dir();
    for run in killed.into_iter().filter(|run| dir.as_ref().is_none_or(|dir| *dir == run.state_dir)) {
        let pods: Vec<String> = run.pods.iter().map(ToString::to_string).collect();
        terminal::note(&format!("run {} was killed; being stopped: {}", run.pid, pods.join(", ")));
    }
    if let Some(object) = &args.pod {
        let which = args.place.which(Named::Object(object.clone()));
        let pods = found.pods(&which).map_err(|e| Failure::Input(anyhow!(e)))?;
        let picked: Vec<(u32, usize)> = pods.iter().map(|(run, pod)| (run.state.pid, pod.number)).collect();
        keep(&mut found.runs, |pid, pod| picked.contains(&(pid, pod.number)));
        found.runs.retain(|run| !run.state.pods.is_empty());
    } else {
        if let Some(wanted) = &args.place.run {
            for run in &mut found.runs {
                let mut pods = std::mem::take(&mut run.state.pods);
                pods.retain(|pod| wanted.has(run, pod));
                run.state.pods = pods;
            }
            found.runs.retain(|run| !run.state.pods.is_empty() || wanted.is_process(run.state.pid));
        }
        keep(&mut found.runs, |_, pod| {
            args.place.namespace.as_ref().is_none_or(|n| *n == pod.namespace)
                && args.selector.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
        });
    }
    let before = all(&found.runs).count();
    if !args.all && args.pod.is_none() {
        keep(&mut found.runs, |_, pod| !pod.over);
    }
    let hidden = before - all(&found.runs).count();
    let of_one_pod = args.pod.as_ref().is_some_and(|object| !object.is_workload());
    let text = match args.output {
        Format::Json => {
            let states: Vec<_> = found.runs.iter().map(|run| &run.state).collect();
            serde_json::to_string_pretty(&states).map_err(|e| Failure::Own(e.into()))? + "\n"
        }
        Format::Name => all(&found.runs).map(|(_, pod)| format!("pod/{}\n", pod.name)).collect(),
        _ if args.containers || (of_one_pod && args.output == Format::Table) => containers(&found.runs),
        Format::Wide => wide(&found.runs),
        Format::Table => pods(&found.runs),
    };
    terminal::print(&text)?;
    match hidden {
        0 if !text.is_empty() || !found.silent.is_empty() || args.place.unattended(&found).is_some() => {}
        0 if args.selector.is_some() || args.place.namespace.is_some() => terminal::note("no pods match"),
        0 => terminal::note("no pods are running; start some with `outrigger run FILE`"),
        1 => terminal::note("1 ended pod not shown; use -a"),
        _ => terminal::note(&format!("{hidden} ended pods not shown; use -a")),
    }
    Ok(Outcome::Fine)
}

/// Removes all other pods.
fn keep(runs: &mut [Run], is_wanted: impl Fn(u32, &PodState) -> bool) {
    for run in runs {
        let pid = run.state.pid;
        run.state.pods.retain(|pod| is_wanted(pid, pod));
    }
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
            or_none(addresses(pod).first().cloned().unwrap_or_default()),
            or_none(ports(pod).join(",")),
            run_of(run, pod),
            files_of(run, pod),
            reason(pod),
        ]
    });
    let heading = ["POD", "PHASE", "READY", "RESTARTS", "AGE", "IP", "PORTS", "RUN", "FILE", "REASON"];
    table(heading, rows, terminal::out_width())
}

fn wide(runs: &[Run]) -> String {
    let rows = all(runs).map(|(run, pod)| {
        let labels: Vec<String> = pod.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        [
            pod.namespace.clone(),
            pod.name.clone(),
            phase(pod),
            format!("{}/{}", pod.ready, pod.total),
            pod.restarts.to_string(),
            age(pod.age_ms),
            or_none(addresses(pod).join(",")),
            or_none(ports(pod).join(",")),
            or_none(pod.workload.clone().unwrap_or_default()),
            or_none(labels.join(",")),
            run.state.pid.to_string(),
            run_of(run, pod),
            files_of(run, pod),
            reason(pod),
        ]
    });
    let heading = [
        "NAMESPACE",
        "POD",
        "PHASE",
        "READY",
        "RESTARTS",
        "AGE",
        "IP",
        "PORTS",
        "WORKLOAD",
        "LABELS",
        "PID",
        "RUN",
        "FILE",
        "REASON",
    ];
    table(heading, rows, terminal::out_width())
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
    let heading = ["POD", "CONTAINER", "ROLE", "STATE", "RESTARTS", "AGE", "REASON"];
    table(heading, rows, terminal::out_width())
}

/// The value for `--run`: the run of a node, or the process id of a run in the foreground.
fn run_of(run: &Run, pod: &PodState) -> String {
    pod.run.clone().unwrap_or_else(|| run.state.pid.to_string())
}

/// The manifests of a pod.
fn files_of(run: &Run, pod: &PodState) -> String {
    let files = if pod.files.is_empty() { &run.state.files } else { &pod.files };
    files.join(" ")
}

/// The addresses of a pod. A pod that has ended has none, because another pod may have its addresses now.
fn addresses(pod: &PodState) -> &[String] {
    if pod.over { &[] } else { &pod.ips }
}

/// The published ports of a pod. None after its end, as for [`addresses`].
fn ports(pod: &PodState) -> &[String] {
    if pod.over { &[] } else { &pod.ports }
}

/// The text, or kubectl's text for an empty column.
fn or_none(text: String) -> String {
    match text.is_empty() {
        true => NONE.to_owned(),
        false => text,
    }
}

/// The phase, or that the pod is stopping or was stopped.
fn phase(pod: &PodState) -> String {
    match (pod.stopping, pod.stopped) {
        (true, _) => "Stopping".to_owned(),
        (false, true) => "Stopped".to_owned(),
        (false, false) => pod.phase.clone(),
    }
}

fn age(ms: u64) -> String {
    HumanDuration(ms / 1_000 * 1_000).to_string()
}

/// Why the pod is not as expected: its own reason, otherwise the first reason of a container.
fn reason(pod: &PodState) -> String {
    let of_container = |c: &ContainerState| c.reason.as_ref().map(|reason| format!("`{}` {reason}", c.name));
    let first = || pod.containers.iter().find_map(of_container);
    pod.reason.clone().filter(|_| !pod.over).or_else(first).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_has_ended_has_no_address_and_no_ports() {
        let pod = |over| PodState {
            over,
            ips: vec!["10.88.0.2".into()],
            ports: vec!["18080->8080/TCP".into()],
            ..PodState::default()
        };
        assert_eq!((addresses(&pod(false)).len(), ports(&pod(false)).len()), (1, 1));
        assert_eq!((addresses(&pod(true)).len(), ports(&pod(true)).len()), (0, 0));
    }

    #[test]
    fn a_pod_that_was_stopped_has_not_failed() {
        let pod =
            |stopping, stopped| PodState { phase: "Failed".into(), stopping, stopped, ..PodState::default() };
        assert_eq!(phase(&pod(false, false)), "Failed");
        assert_eq!(phase(&pod(true, false)), "Stopping");
        assert_eq!(phase(&pod(false, true)), "Stopped");
    }
}
