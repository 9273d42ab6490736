//! `outrigger attach`: follows the logs of a run on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use outrigger_node::control::{Answer, Lines, LogsRequest, PodState, Request, Run, Timestamps};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::detach::{self, pods};
use crate::logs;
use crate::outcome::{self, Failure};
use crate::runs::{self, PodArgs};
use crate::terminal;

/// How often to look for new pods.
const POLL_EVERY: Duration = Duration::from_millis(300);
/// How long the node may take to send more of the remaining output after the end of a run.
const LAST_WORDS: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger attach web           follow the run that pod web belongs to
  outrigger attach job/report    follow the run of a Job
  outrigger attach run/k3v9x0aq  follow a run by its ID

Ctrl-C ends only this command: the pods keep running.

Exit codes: those of `outrigger run`; 130 after Ctrl-C.")]
pub(crate) struct Args {
    #[command(flatten)]
    pod: PodArgs,
}

pub(crate) fn main(args: Args) -> ExitCode {
    match runs::block_on(attach(args)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => outcome::exit_code(Err(failure)),
    }
}

async fn attach(args: Args) -> Result<u8, Failure> {
    let found = args.pod.find().await?;
    let (node, pod) = found.pick(&args.pod.which()).map_err(|e| Failure::Input(anyhow!(e)))?;
    let Some(run) = pod.run.clone() else {
        let text = "it runs in the foreground; follow it with `outrigger logs -f`";
        return Err(Failure::Input(anyhow!("cannot attach to {}: {text}", pod.name)));
    };
    let request = Request::Await { run: run.clone(), over: true, running: false, faults: true };
    let mut end = node.ask(&request).await.map_err(runs::refused)?;
    let (lines, mut written) = mpsc::channel::<Vec<u8>>(1);
    let mut known = BTreeSet::new();
    let mut poll = tokio::time::interval(POLL_EVERY);
    // Create it once. A new one would not see an interrupt that arrived while the loop was busy.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let code = loop {
        tokio::select! {
            Some(text) = written.recv() => logs::write(&text)?,
            _ = interrupt.recv() => return Ok(runs::left_running(&run)),
            answer = end.next() => match answer.map_err(runs::refused)? {
                Answer::Note(text) => terminal::say(&text),
                Answer::Exit(code, _) => break u8::try_from(code).unwrap_or(1),
                other => return Err(Failure::Own(anyhow!("unexpected answer from the node: {other:?}"))),
            },
            _ = poll.tick() => {
                for pod in pods(node, &run).await?.into_iter().filter(|pod| known.insert(pod.number)) {
                    follow(node, &pod, lines.clone()).await?;
                }
            }
        }
    };
    // A pod may have started and ended since the last check. If the node has ended too, there is nothing to
    // follow.
    for pod in pods(node, &run).await.unwrap_or_default().into_iter().filter(|pod| known.insert(pod.number)) {
        let _ = follow(node, &pod, lines.clone()).await;
    }
    drop(lines);
    while let Ok(Some(text)) = tokio::time::timeout(LAST_WORDS, written.recv()).await {
        logs::write(&text)?;
    }
    if code != 0 {
        detach::tell_failures(node, &run).await;
    }
    Ok(code)
}

/// Follows the logs of a pod.
async fn follow(node: &Run, pod: &PodState, to: mpsc::Sender<Vec<u8>>) -> Result<(), Failure> {
    let name = |container: &str| format!("{}/{container}", terminal::pod_name(&pod.name));
    let names: BTreeMap<usize, String> =
        pod.containers.iter().enumerate().map(|(at, c)| (at, name(&c.name))).collect();
    let containers = names.keys().copied().collect();
    let request = LogsRequest { pod: pod.number, containers, follow: true, ..LogsRequest::default() };
    let mut connection = node.ask(&Request::Logs(request)).await.map_err(runs::refused)?;
    let mut lines = Lines::new(names, Timestamps::Omitted);
    tokio::spawn(async move {
        loop {
            match connection.next().await {
                Ok(Answer::Log(container, text)) => {
                    if to.send(lines.format(container, &text)).await.is_err() {
                        return;
                    }
                }
                // Notes about containers that have not started are not shown here.
                Ok(Answer::Note(_)) => {}
                _ => return,
            }
        }
    });
    Ok(())
}
