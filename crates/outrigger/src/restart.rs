//! `outrigger restart`: restarts containers of a run.

use anyhow::anyhow;
use outrigger_node::control::{Answer, Request};

use crate::outcome::{Failure, Outcome};
use crate::runs::{self, PodsArgs};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger restart web           restart all containers of pod web, in order
  outrigger restart web -c proxy  restart one container
  outrigger restart deploy/web    restart all pods of a Deployment
  outrigger restart -l app=web    restart the pods with a label

Containers are stopped in their stop order and started in their start order. The pod keeps \
its address and its volumes. The command returns as soon as the restart is accepted; `outrigger ps` shows its progress.")]
pub(crate) struct Args {
    #[command(flatten)]
    pods: PodsArgs,
    /// Only this container.
    #[arg(long, short, value_name = "NAME")]
    container: Option<String>,
    /// Do not say what is restarted.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    runs::block_on(restart(args))?;
    Ok(Outcome::Fine)
}

async fn restart(args: Args) -> Result<(), Failure> {
    let found = args.pods.find().await?;
    let pods = found.pods(&args.pods.which()?).map_err(|e| Failure::Input(anyhow!(e)))?;
    let ended = |name: &str| Failure::Input(anyhow!("pod {name:?} has ended; run it again instead"));
    match &pods[..] {
        [(_, pod)] if pod.over => return Err(ended(&pod.name)),
        [_, _, ..] if pods.iter().all(|(_, pod)| pod.over) => {
            return Err(Failure::Input(anyhow!("all its pods have ended; run it again instead")));
        }
        _ => {}
    }
    // Skip pods that have ended, because their workload has replaced them.
    for (run, pod) in pods.iter().filter(|(_, pod)| !pod.over) {
        let container = match &args.container {
            Some(name) => Some(pod.pick(Some(name)).map_err(|e| Failure::Input(anyhow!(e)))?.container),
            None => None,
        };
        let request = Request::Restart { pod: pod.number, container };
        let mut connection = run.ask(&request).await.map_err(runs::refused)?;
        let said = connection.next().await.map_err(|e| match runs::refused(e) {
            Failure::Input(e) => Failure::Input(anyhow!("cannot restart {}: {e}", pod.name)),
            failure => failure,
        });
        match said? {
            Answer::Done => {}
            other => return Err(Failure::Own(anyhow!("unexpected answer from the run: {other:?}"))),
        }
        if !args.quiet {
            let what = match &args.container {
                Some(container) => format!("{}: restarting container {container}\n", pod.name),
                None => format!("{}: restarting all containers in order\n", pod.name),
            };
            terminal::eprint(&what);
        }
    }
    Ok(())
}
