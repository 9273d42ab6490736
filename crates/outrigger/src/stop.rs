//! `outrigger stop`: a pod of a run goes, in order.

use anyhow::anyhow;
use outrigger_agent::control::{Answer, PodState, Request};

use crate::outcome::{Failure, Outcome};
use crate::runs::{self, PodArgs};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger stop web                     stops it in order, with its own grace, and waits until it is gone
  outrigger stop web --grace-period 5    with 5 seconds
  outrigger stop web --grace-period 0    kills it

A pod of a Deployment, a Job or the like is replaced, as in a cluster; Ctrl-C at the run stops everything.")]
pub(crate) struct Args {
    #[command(flatten)]
    pod: PodArgs,
    /// Its grace, instead of the pod's own; 0 kills.
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u64>,
    /// Do not wait until it is gone.
    #[arg(long)]
    no_wait: bool,
    /// Do not say who is waited for.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    runs::block_on(stop(args))?;
    Ok(Outcome::Fine)
}

async fn stop(args: Args) -> Result<(), Failure> {
    let found = runs::find().await?;
    let (run, pod) = found.pick(&args.pod.which()).map_err(|e| Failure::Input(anyhow!(e)))?;
    let say = |text: &str| {
        if !args.quiet {
            terminal::eprint(&format!("{text}\n"));
        }
    };
    if pod.over {
        say(&format!("{} is over already: {}", pod.name, pod.phase));
        return Ok(());
    }
    let grace_ms = args.grace_period.map(|s| s.saturating_mul(1_000));
    let mut connection =
        run.ask(&Request::Stop { pod: pod.number, grace_ms }).await.map_err(runs::refused)?;
    let mut told = String::new();
    loop {
        match connection.next().await.map_err(runs::refused)? {
            // The order is carried out whoever listens.
            Answer::Pod(_) if args.no_wait => return Ok(()),
            Answer::Pod(pod) => {
                let waits = waiting_for(&pod);
                if waits != told && !waits.is_empty() {
                    say(&waits);
                }
                told = waits;
            }
            Answer::Done => break,
            other => return Err(Failure::Own(anyhow!("the run answers {other:?}"))),
        }
    }
    say(&format!("{} is gone", pod.name));
    if let Some(workload) = &pod.workload {
        say(&format!("{workload} may make another"));
    }
    Ok(())
}

/// Who has not gone yet, and what each waits for.
fn waiting_for(pod: &PodState) -> String {
    if !pod.stopping {
        return String::new();
    }
    let going =
        pod.containers.iter().filter(|c| matches!(c.state.as_str(), "stopping" | "to stop" | "killed"));
    let each: Vec<String> = going.map(|c| format!("{} ({})", c.name, c.state)).collect();
    match each.as_slice() {
        [] => String::new(),
        _ => format!("waits for {}", each.join(", ")),
    }
}
