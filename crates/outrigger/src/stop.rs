//! `outrigger stop`: stops pods and workloads of a run, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::anyhow;
use outrigger_embedded::{KilledPod, KilledRun, killed_runs};
use outrigger_node::control::{Answer, Connection, Named, Object, PodState, Request, Run, RunName, Selector};

use crate::outcome::{Failure, Outcome};
use crate::runs::{self, PlaceArgs};
use crate::terminal;

/// How often to check whether a pod of a killed run is gone. There is no process to ask.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger stop web                    stop a pod in order, wait for it
  outrigger stop web --grace-period 5   the same within 5 seconds
  outrigger stop web --grace-period 0   kill it
  outrigger stop deploy/web             stop a Deployment with all its pods
  outrigger stop -l app=web             stop the pods with a label
  outrigger stop run/k3v9x0aq           stop a run with all its pods
  outrigger stop --all                  stop everything

If a foreground run was killed, its pods are already being stopped in order; --grace-period gives them less time.

A single pod of a Deployment, Job or other workload is replaced when it is stopped, as in a cluster. Ctrl-C in the \
terminal of the run stops everything.")]
pub(crate) struct Args {
    /// A pod, or a workload or run with all its pods: POD, deploy/NAME, job/NAME, sts/NAME, run/ID, …; the ID of a run in the
    /// foreground is its process ID.
    #[arg(value_name = "POD", required_unless_present_any = ["selector", "all"], conflicts_with_all = ["selector", "all"])]
    pod: Option<Object>,
    /// The pods with these labels, for example app=web or 'tier in (front,back),!canary'.
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "all")]
    selector: Option<Selector>,
    /// All pods of all your runs, of the node and in the foreground.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: PlaceArgs,
    /// Grace period instead of the pod's own; 0 kills.
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u64>,
    /// Do not wait until it is gone.
    #[arg(long)]
    no_wait: bool,
    /// Do not show progress.
    #[arg(short, long)]
    quiet: bool,
}

impl Args {
    /// The selected pods of killed runs. Only their names are known, not their labels or workloads.
    fn killed(&self) -> Vec<KilledPod> {
        let is_named = |run: &KilledRun, pod: &KilledPod| {
            let is_it =
                |o: &Object| o.is_pod(&pod.name) || o.run().is_some_and(|name| name.is_process(run.pid));
            self.all || self.pod.as_ref().is_some_and(is_it)
        };
        let in_namespace =
            |pod: &KilledPod| self.place.namespace.as_ref().is_none_or(|n| *n == pod.namespace);
        let dir = self.place.dir();
        let runs =
            killed_runs().into_iter().filter(|run| dir.as_ref().is_none_or(|dir| *dir == run.state_dir));
        let runs = runs.filter(|run| self.place.run.as_ref().is_none_or(|wanted| wanted.is_process(run.pid)));
        let meant = |run: KilledRun| -> Vec<KilledPod> {
            run.pods.iter().filter(|pod| is_named(&run, pod) && in_namespace(pod)).cloned().collect()
        };
        runs.flat_map(meant).collect()
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            terminal::say(text);
        }
    }
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    runs::block_on(stop(args))?;
    Ok(Outcome::Fine)
}

async fn stop(args: Args) -> Result<(), Failure> {
    let found = args.place.find().await?;
    let killed = args.killed();
    let grace_ms = args.grace_period.map(|s| s.saturating_mul(1_000));
    if args.all {
        if let Some(unattended) =
            args.place.unattended(&found).filter(|_| found.runs.is_empty() && killed.is_empty())
        {
            return Err(Failure::Input(anyhow!("nothing was stopped: {unattended}")));
        }
        return stop_all(&args, &found.runs, &killed, grace_ms).await;
    }
    let by_name = args.pod.clone().map(Named::Object);
    let what = by_name.or_else(|| args.selector.clone().map(Named::Labels));
    let what = what.ok_or_else(|| Failure::Input(anyhow!("name a pod, or select some with -l")))?;
    let pods = match found.pods(&args.place.which(what)) {
        // Only the name is known of a pod whose run was killed.
        Err(_) if !killed.is_empty() => {
            shorten(&args, &killed)?;
            wait_for_killed(&args, &killed).await;
            return Ok(());
        }
        pods => pods.map_err(|e| Failure::Input(anyhow!(e)))?,
    };
    let object = args.pod.as_ref().filter(|object| object.is_workload());
    if let (Some(object), Some((run, pod))) = (object, pods.first()) {
        let (name, request) = match object.run() {
            Some(_) if args.place.namespace.is_some() => {
                return stop_with_workloads(&args, &pods, grace_ms).await;
            }
            Some(name) => {
                (format!("run {name}"), Request::StopRun { run: name.id().map(str::to_owned), grace_ms })
            }
            None => {
                let name = pod.workload.as_deref().unwrap_or(&pod.name).to_owned();
                (name, Request::StopWorkload { pod: pod.number, grace_ms })
            }
        };
        wait(&args, &name, run.ask(&request).await.map_err(runs::refused)?).await?;
        return Ok(());
    }
    // Send all requests before waiting for the first one, so that the pods stop at the same time.
    let mut asked = Vec::new();
    for (run, pod) in pods {
        if pod.over {
            let end = if pod.stopped { "Stopped" } else { &pod.phase };
            args.say(&format!("{} has already ended: {end}", pod.name));
            continue;
        }
        let request = Request::Stop { pod: pod.number, grace_ms };
        asked.push((pod, run.ask(&request).await.map_err(runs::refused)?));
    }
    for (pod, connection) in asked {
        let waited = wait(&args, &pod.name, connection).await?;
        if let Some(workload) = pod.workload.as_ref().filter(|_| waited) {
            args.say(&format!("{workload} may replace it"));
        }
    }
    Ok(())
}

/// Stops pods. A pod of a workload is stopped with the whole workload, which would otherwise replace it.
async fn stop_with_workloads(
    args: &Args,
    pods: &[(&Run, &PodState)],
    grace_ms: Option<u64>,
) -> Result<(), Failure> {
    let mut asked = Vec::new();
    let mut workloads = BTreeSet::new();
    for (run, pod) in pods.iter().filter(|(_, pod)| !pod.over) {
        if let Some(workload) = &pod.workload
            && !workloads.insert((run.state.pid, &pod.run, &pod.namespace, workload))
        {
            continue;
        }
        let request = Request::StopWorkload { pod: pod.number, grace_ms };
        let connection = run.ask(&request).await.map_err(runs::refused)?;
        asked.push((pod.workload.as_deref().unwrap_or(&pod.name), connection));
    }
    for (name, connection) in asked {
        wait(args, name, connection).await?;
    }
    Ok(())
}

/// Shortens the grace period of pods of killed runs. They are being stopped already.
fn shorten(args: &Args, pods: &[KilledPod]) -> Result<(), Failure> {
    let Some(grace) = args.grace_period.map(Duration::from_secs) else { return Ok(()) };
    for pod in pods {
        pod.hurry(grace)
            .map_err(|e| Failure::Own(anyhow!("cannot shorten the grace period of {}: {e}", pod.name)))?;
    }
    Ok(())
}

async fn wait_for_killed(args: &Args, pods: &[KilledPod]) {
    for pod in pods.iter().filter(|_| !args.no_wait) {
        if !pod.is_gone() {
            args.say(&format!("{}: its run was killed; waiting until it is stopped", pod.name));
        }
        while !pod.is_gone() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        args.say(&format!("{} is gone", pod.name));
    }
}

/// Stops all runs.
async fn stop_all(
    args: &Args,
    runs: &[Run],
    killed: &[KilledPod],
    grace_ms: Option<u64>,
) -> Result<(), Failure> {
    let wanted = args.place.run.as_ref();
    if let Some(namespace) = &args.place.namespace {
        let pods = runs.iter().flat_map(|run| run.state.pods.iter().map(move |pod| (run, pod)));
        let is_meant = |(run, pod): &(&Run, &PodState)| {
            !pod.over && pod.namespace == *namespace && wanted.is_none_or(|wanted| wanted.has(run, pod))
        };
        let pods: Vec<_> = pods.filter(is_meant).collect();
        if pods.is_empty() && killed.is_empty() {
            args.say(&format!("nothing to stop: no pods are running in namespace {namespace}"));
        }
        shorten(args, killed)?;
        stop_with_workloads(args, &pods, grace_ms).await?;
        wait_for_killed(args, killed).await;
        return Ok(());
    }
    let mut asked = Vec::new();
    let is_meant = |run: &&Run| match wanted {
        Some(wanted) => {
            wanted.is_process(run.state.pid) || run.state.pods.iter().any(|pod| wanted.has(run, pod))
        }
        None => true,
    };
    for run in runs.iter().filter(is_meant) {
        let request = Request::StopRun { run: wanted.and_then(RunName::id).map(str::to_owned), grace_ms };
        asked.push((run, run.ask(&request).await.map_err(runs::refused)?));
    }
    if asked.is_empty() && killed.is_empty() {
        args.say("nothing to stop: you have no active runs");
    }
    // Shorten those of killed runs before waiting for the first one, too.
    shorten(args, killed)?;
    for (run, connection) in asked {
        let name = match (wanted.and_then(RunName::id), run.state.node.is_some()) {
            (Some(id), _) => format!("run {id}"),
            (None, true) => "everything the node runs".to_owned(),
            (None, false) => format!("run {}", run.state.pid),
        };
        wait(args, &name, connection).await?;
    }
    wait_for_killed(args, killed).await;
    Ok(())
}

/// Waits until the pods are gone, unless `--no-wait` is set. Returns whether it waited.
async fn wait(args: &Args, name: &str, mut connection: Connection) -> Result<bool, Failure> {
    let mut reported = ReportedReasons::default();
    loop {
        match connection.next().await.map_err(runs::refused)? {
            // The pods are stopped even if this command does not wait.
            Answer::Pod(_) if args.no_wait => return Ok(false),
            Answer::Pod(pod) => {
                if let Some(news) = reported.news(&pod) {
                    args.say(&news);
                }
            }
            Answer::Done => break,
            other => return Err(Failure::Own(anyhow!("unexpected answer from the run: {other:?}"))),
        }
    }
    args.say(&format!("{name} is gone"));
    Ok(true)
}

/// The last printed reason of each pod. Pods of a workload stop at the same time.
#[derive(Default)]
struct ReportedReasons(BTreeMap<usize, String>);

impl ReportedReasons {
    /// The progress of a pod, unless it was just printed.
    fn news(&mut self, pod: &PodState) -> Option<String> {
        let waits = waiting_for(pod);
        let before = self.0.insert(pod.number, waits.clone()).unwrap_or_default();
        (waits != before && !waits.is_empty()).then_some(waits)
    }
}

/// Which containers are still running, and the state of each.
fn waiting_for(pod: &PodState) -> String {
    if !pod.stopping {
        return String::new();
    }
    let going =
        pod.containers.iter().filter(|c| matches!(c.state.as_str(), "stopping" | "to stop" | "killed"));
    let each: Vec<String> = going.map(|c| format!("{} ({})", c.name, c.state)).collect();
    match each.as_slice() {
        [] => String::new(),
        _ => format!("{}: waiting for {}", pod.name, each.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_node::control::ContainerState;

    #[test]
    fn what_was_said_of_a_pod_is_not_said_again_because_of_another() {
        let pod = |number: usize, state: &str| PodState {
            number,
            name: format!("web-{number}"),
            stopping: true,
            containers: vec![ContainerState {
                name: "app".into(),
                state: state.into(),
                ..ContainerState::default()
            }],
            ..PodState::default()
        };
        let mut reported = ReportedReasons::default();
        let said: Vec<Option<String>> =
            [(0, "stopping"), (1, "stopping"), (0, "stopping"), (1, "done"), (0, "killed")]
                .map(|(number, state)| reported.news(&pod(number, state)))
                .into();
        let expected = [
            "web-0: waiting for app (stopping)",
            "web-1: waiting for app (stopping)",
            "",
            "",
            "web-0: waiting for app (killed)",
        ];
        assert_eq!(said.iter().map(|s| s.as_deref().unwrap_or_default()).collect::<Vec<_>>(), expected);
    }
}
