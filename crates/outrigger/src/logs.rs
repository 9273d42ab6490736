//! `outrigger logs`: prints the logs of containers of a run.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use anyhow::anyhow;
use jiff::{SignedDuration, Timestamp};
use outrigger_node::control::{
    Answer, AskError, Connection, Lines, LogsRequest, PodState, Request, Timestamps,
};
use outrigger_text::terminal::safe_log;
use tokio::sync::mpsc;

use crate::outcome::{Failure, Outcome};
use crate::runs::{self, ContainerArgs, PodsArgs};
use crate::terminal;
use crate::value::ValueError;

/// The maximum number of pods that are followed at the same time. A run accepts at most 64 connections.
const FOLLOWED_MAX: usize = 50;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger logs web                   the log of the main container of pod web
  outrigger logs -f web -c proxy       follow the log of its proxy
  outrigger logs web --all-containers  all containers of the pod
  outrigger logs deploy/web -c log -f  all pods of a Deployment
  outrigger logs -l app=web --tail 20  all pods with a label
  outrigger logs web --since 5m        the last five minutes
  outrigger logs -p web                the log before the last restart

Lines of several pods or containers start with their names.")]
pub(crate) struct Args {
    #[command(flatten)]
    pods: PodsArgs,
    #[command(flatten)]
    container: ContainerArgs,
    /// Show all containers, with their names in front of lines.
    #[arg(long, conflicts_with = "container")]
    all_containers: bool,
    /// Follow the log, through restarts, until the container has ended for good.
    #[arg(long, short)]
    follow: bool,
    /// Show only the last lines.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// Show only lines newer than this, for example 90s, 5m or 1h30m.
    #[arg(long, value_name = "TIME", value_parser = ago)]
    since: Option<SignedDuration>,
    /// Show the time in front of every line.
    #[arg(long)]
    timestamps: bool,
    /// Show the name of the container in front of every line.
    #[arg(long)]
    prefix: bool,
    /// Show the log of the previous instance of the container.
    #[arg(long, short, conflicts_with = "follow")]
    previous: bool,
}

fn ago(text: &str) -> Result<SignedDuration, ValueError> {
    let ms = outrigger_text::duration_ms(text).and_then(|ms| i64::try_from(ms).ok());
    let ms = ms.ok_or(ValueError::Duration)?;
    Ok(SignedDuration::from_millis(ms))
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    runs::block_on(show(args))?;
    Ok(Outcome::Fine)
}

async fn show(args: Args) -> Result<(), Failure> {
    let found = args.pods.find().await?;
    let pods = found.pods(&args.pods.which()?).map_err(|e| Failure::Input(anyhow!(e)))?;
    if args.follow && pods.len() > FOLLOWED_MAX {
        let text = format!("{} pods match, and at most {FOLLOWED_MAX} can be followed at once", pods.len());
        return Err(Failure::Input(anyhow!("{text}; name fewer")));
    }
    let mut streams = Vec::new();
    for (run, pod) in &pods {
        let containers = args.containers(pod)?;
        let timestamps = if args.timestamps { Timestamps::Shown } else { Timestamps::Omitted };
        let lines = Lines::new(args.names(pod, &containers, pods.len() > 1), timestamps);
        let request = Request::Logs(args.request(pod.number, containers));
        let connection = run.ask(&request).await.map_err(runs::refused)?;
        streams.push(Stream { lines, connection });
    }
    match args.follow {
        true => follow(streams).await,
        false => {
            // One pod after the other.
            for mut stream in streams {
                while let Some(text) = stream.next().await.map_err(runs::refused)? {
                    write(&text)?;
                }
            }
            Ok(())
        }
    }
}

impl Args {
    fn containers(&self, pod: &PodState) -> Result<Vec<usize>, Failure> {
        match self.all_containers {
            true => Ok((0..pod.containers.len()).collect()),
            false => Ok(vec![self.container.pick(pod)?]),
        }
    }

    /// The prefix of each container's lines. It has the pod if there are several, and the container if there
    /// are several or if requested.
    fn names(&self, pod: &PodState, containers: &[usize], several_pods: bool) -> BTreeMap<usize, String> {
        let with_container = self.prefix || self.all_containers;
        let name = |container: usize| {
            let container = &pod.containers[container].name;
            match (several_pods, with_container) {
                (true, true) => Some(format!("{}/{container}", terminal::pod_name(&pod.name))),
                (true, false) => Some(terminal::pod_name(&pod.name)),
                (false, true) => Some(container.clone()),
                (false, false) => None,
            }
        };
        containers.iter().filter_map(|c| Some((*c, name(*c)?))).collect()
    }

    fn request(&self, pod: usize, containers: Vec<usize>) -> LogsRequest {
        let since = self.since.and_then(|since| Timestamp::now().checked_sub(since).ok());
        LogsRequest {
            pod,
            containers,
            follow: self.follow,
            previous: self.previous,
            tail: self.tail,
            since_ms: since.map(Timestamp::as_millisecond),
        }
    }
}

/// The log stream of one pod.
struct Stream {
    lines: Lines,
    connection: Connection,
}

impl Stream {
    /// The next lines. `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, AskError> {
        loop {
            match self.connection.next().await? {
                Answer::Log(container, text) => return Ok(Some(self.lines.format(container, &text))),
                Answer::Note(text) => terminal::note(&text),
                _ => return Ok(None),
            }
        }
    }
}

/// Shows the logs of all pods as they are written.
async fn follow(streams: Vec<Stream>) -> Result<(), Failure> {
    let (tx, mut rx) = mpsc::channel(1);
    for mut stream in streams {
        let tx = tx.clone();
        tokio::spawn(async move {
            loop {
                let next = stream.next().await.transpose();
                let Some(next) = next else { return };
                let is_error = next.is_err();
                if tx.send(next).await.is_err() || is_error {
                    return;
                }
            }
        });
    }
    drop(tx);
    while let Some(text) = rx.recv().await {
        write(&text.map_err(runs::refused)?)?;
    }
    Ok(())
}

/// Writes log lines to standard output.
pub(crate) fn write(text: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.is_terminal() {
        true => out.write_all(&safe_log(text, terminal::colors().out))?,
        false => out.write_all(text)?,
    }
    out.flush()
}
