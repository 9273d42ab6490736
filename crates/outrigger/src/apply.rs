//! `outrigger apply`: changes the pods and workloads that the node of this machine runs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use outrigger_agent::options::OnFailure;
use outrigger_node::control::{Answer, Applied, AppliedObject, Request};
use outrigger_node::read::{Checks, Machine, Read, read};
use outrigger_node::record::RunRecord;
use outrigger_node::work::Work;

use crate::detach::{self, Detach, WaitArg};
use crate::input::{InputArgs, ReadArgs};
use crate::outcome::{self, Failure};
use crate::run::{self, NetworkArg, UsernsArg};
use crate::{runs, runtime, terminal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger apply web.yaml             make the node run what web.yaml says
  outrigger apply -k overlays/test     what a kustomization says
  outrigger apply --dry-run web.yaml   only show what would change
  outrigger apply --wait web.yaml      wait until ready; a Job, until it ends

What happens to each object:
  created    it is new
  updated    changed in place: images, ephemeral containers, grace, deadline
  scaled     pods of its workload are added or removed
  replaced   something else changed: stopped in order, then started again
  removed    it is no longer in the manifests: stopped in order
  unchanged  it keeps running, untouched
  started again
             it was stopped, or had ended although it should run

The manifests replace those of the detached run that has their objects; without one they are a new run.

Exit codes: 0 the changes are under way; with --wait, the result of what has finished; 2 the manifests are wrong or cannot be applied.")]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    read: ReadArgs,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// Wait until everything is ready, and until Jobs and pods with restartPolicy Never or OnFailure have finished; exit with
    /// their result. `--wait=running` waits only until all pods are running.
    #[arg(long, conflicts_with = "dry_run", num_args = 0..=1, require_equals = true, default_missing_value = "done", value_name = "UNTIL", hide_possible_values = true)]
    wait: Option<WaitArg>,
    /// How to show what changes.
    #[arg(long, short, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,
    /// Directory for images, pods and claims [default: /var/lib/outrigger]
    #[arg(long, value_name = "DIR", env = "OUTRIGGER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Network of pods that do not use the host's; only for a new run.
    #[arg(long, value_enum, default_value_t = NetworkArg::Private, value_name = "MODE")]
    network: NetworkArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// One line per object.
    Text,
    /// JSON.
    Json,
}

pub(crate) fn main(args: Args) -> ExitCode {
    match apply(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => outcome::exit_code(Err(failure)),
    }
}

fn apply(args: Args) -> Result<u8, Failure> {
    let sources = args.input.sources(&args.read)?;
    // Errors are shown with their lines before the node is asked.
    let pods = run::default_pod_options(args.network, UsernsArg::Auto);
    let record = RunRecord::new(args.input.names(), &sources, args.read.options(), pods);
    let machine = Machine { runtime: None, state_dir: None, on_failure: OnFailure::Retry };
    let Read { work, warnings } = read(&record, Checks::New(&machine))?;
    terminal::diagnostics(&warnings, &work.sources);
    let detach =
        Detach { state_dir: args.state_dir.clone(), flags: Vec::new(), wait: args.wait, quiet: true };
    runs::block_on(async {
        let there = detach.find().await?;
        let node = match (there, args.dry_run) {
            (Some(node), _) => node,
            (None, false) => detach.node().await?,
            (None, true) => {
                let dir = runtime::state_dir(args.state_dir.as_deref())?;
                if let Some(unattended) = runs::unattended(&dir) {
                    return Err(Failure::Input(anyhow!("cannot compare: {unattended}")));
                }
                show(args.output, &Applied { run: None, objects: created(&work) })?;
                return Ok(0);
            }
        };
        let request = Request::Apply { record: Box::new(record), dry_run: args.dry_run };
        let mut connection = node.ask(&request).await.map_err(runs::refused)?;
        let applied = match connection.next().await.map_err(runs::refused)? {
            Answer::Applied(applied) => applied,
            other => return Err(Failure::Own(anyhow!("unexpected answer from the node: {other:?}"))),
        };
        show(args.output, &applied)?;
        match applied.run.zip(args.wait) {
            Some((run, until)) => detach::wait(&node, &run, until).await,
            None => Ok(0),
        }
    })
}

/// Without a node, every object is new.
fn created(work: &Work) -> Vec<AppliedObject> {
    let object = |workload: &outrigger_manifest::Workload| {
        let metadata = workload.metadata();
        let name = metadata.name.as_deref().unwrap_or_default();
        AppliedObject {
            object: format!("{}/{name}", workload.kind().to_lowercase()),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            change: "created".to_owned(),
            details: Vec::new(),
            restarted: Vec::new(),
        }
    };
    work.workloads.iter().map(object).collect()
}

fn show(format: Format, applied: &Applied) -> Result<(), Failure> {
    match format {
        Format::Text => terminal::print(&text(applied))?,
        Format::Json => {
            let json = serde_json::to_string_pretty(applied).map_err(|e| Failure::Own(e.into()))?;
            terminal::print(&format!("{json}\n"))?;
        }
    }
    Ok(())
}

/// One line per object, such as `pod/web updated: container app restarts with image app:2 (was app:1)`.
fn text(applied: &Applied) -> String {
    let mut out = String::new();
    for AppliedObject { object, change, details, .. } in &applied.objects {
        out.push_str(&format!("{object} {change}"));
        if !details.is_empty() {
            out.push_str(&format!(": {}", details.join("; ")));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_changes_and_why() {
        let object = |object: &str, change: &str, details: &[&str]| AppliedObject {
            object: object.into(),
            namespace: "default".into(),
            change: change.into(),
            details: details.iter().map(ToString::to_string).collect(),
            restarted: Vec::new(),
        };
        let applied = Applied {
            run: None,
            objects: vec![
                object("pod/a", "unchanged", &[]),
                object("pod/b", "replaced", &["spec.volumes changed", "metadata.labels changed"]),
            ],
        };
        let expected = "pod/a unchanged\npod/b replaced: spec.volumes changed; metadata.labels changed\n";
        assert_eq!(text(&applied), expected);
    }
}
