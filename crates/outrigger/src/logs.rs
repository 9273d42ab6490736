//! `outrigger logs`: what containers of a run wrote.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use anyhow::anyhow;
use jiff::{SignedDuration, Timestamp};
use outrigger_agent::control::{Answer, Lines, LogsRequest, Request};
use outrigger_agent::safe_log;

use crate::outcome::{Failure, Outcome};
use crate::runs::{self, ContainerArgs, PodArgs};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger logs web                      what the main container of `web` wrote
  outrigger logs -f web -c proxy          what the proxy writes, as it comes, until it is over for good
  outrigger logs web --all-containers     all of them, each line with its container
  outrigger logs web --tail 20 --since 5m
  outrigger logs -p web                   what the instance before the last wrote")]
pub(crate) struct Args {
    #[command(flatten)]
    pod: PodArgs,
    #[command(flatten)]
    container: ContainerArgs,
    /// All containers; lines say whose they are.
    #[arg(long, conflicts_with = "container")]
    all_containers: bool,
    /// Go on as more is written, by restarted containers too, until nothing more can come.
    #[arg(long, short)]
    follow: bool,
    /// Only the last lines.
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// Only what is younger than this, for example 90s, 5m or 1h30m.
    #[arg(long, value_name = "TIME", value_parser = ago)]
    since: Option<SignedDuration>,
    /// Put the time in front of every line.
    #[arg(long)]
    timestamps: bool,
    /// Put the container's name in front of every line.
    #[arg(long)]
    prefix: bool,
    /// What the instance before the last wrote.
    #[arg(long, short, conflicts_with = "follow")]
    previous: bool,
}

fn ago(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(since) if !since.is_negative() => Ok(since),
        _ => Err("expected a length of time, for example 90s, 5m or 1h30m".to_owned()),
    }
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    runs::block_on(show(args))?;
    Ok(Outcome::Fine)
}

async fn show(args: Args) -> Result<(), Failure> {
    let found = runs::find().await?;
    let wrong = |e: String| Failure::Input(anyhow!(e));
    let (run, pod) = found.pick(&args.pod.which()).map_err(wrong)?;
    let containers: Vec<usize> = match args.all_containers {
        true => (0..pod.containers.len()).collect(),
        false => vec![pod.pick(args.container.container.as_deref()).map_err(wrong)?],
    };
    let named = containers.iter().filter(|_| args.prefix || args.all_containers);
    let names: BTreeMap<usize, String> = named.map(|i| (*i, pod.containers[*i].name.clone())).collect();
    let mut lines = Lines::new(names, args.timestamps);
    let since = args.since.and_then(|since| Timestamp::now().checked_sub(since).ok());
    let request = LogsRequest {
        pod: pod.number,
        containers,
        follow: args.follow,
        previous: args.previous,
        tail: args.tail,
        since_ms: since.map(Timestamp::as_millisecond),
    };
    let mut connection = run.ask(&Request::Logs(request)).await.map_err(runs::refused)?;
    let mut out = std::io::stdout().lock();
    let (is_terminal, colors) = (out.is_terminal(), terminal::colors().out);
    loop {
        match connection.next().await.map_err(runs::refused)? {
            Answer::Log(container, text) => {
                let text = lines.format(container, &text);
                match is_terminal {
                    true => out.write_all(&safe_log(&text, colors))?,
                    false => out.write_all(&text)?,
                }
                out.flush()?;
            }
            Answer::Note(text) => terminal::note(&text),
            Answer::Done => return Ok(()),
            other => return Err(Failure::Own(anyhow!("the run answers {other:?}"))),
        }
    }
}
