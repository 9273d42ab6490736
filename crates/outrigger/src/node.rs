//! `outrigger node`: keeps pods running on this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use outrigger_agent::options::OnFailure;
use outrigger_lifecycle::parse_quantity;
use outrigger_node::node::{AtExit, Keep, ManifestDir, Node, NodeEnd, NodeOptions, ShutdownGrace};
use outrigger_node::read::{Machine, RunReadOptions, RuntimeKind, check_restricted_options};
use outrigger_node::work::Work;
use outrigger_runtime::{NodeIdentity, Owner, Runtime, trusted};
use outrigger_view::output::{Format, Labels, Output, OutputOptions};

use crate::input;
use crate::logging::LogArgs;
use crate::outcome::{Failure, Outcome};
use crate::run::{self, NetworkArg, UsernsArg};
use crate::runtime::{self, RuntimeArg, RuntimeArgs, Started, clean_cri};
use crate::value::ValueError;
use crate::{simulate, terminal};

/// The systemd unit. `KillMode=process` and `Delegate=yes` let containers outlive the service, as they
/// outlive the process.
const UNIT: &str = "\
[Unit]
Description=Outrigger node: runs pods
Documentation=https://github.com/outrigger-dev/outrigger/blob/main/docs/guide/node.md
After=network-online.target dbus.service
Wants=network-online.target

[Service]
Type=notify
@SETTINGS@ExecStart=@COMMAND@
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
OOMScoreAdjust=-999
TimeoutStopSec=@STOP@

[Install]
WantedBy=multi-user.target
";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger node                                  the pods of `outrigger run -d`
  outrigger node --manifests /etc/outrigger/pods  and those of a directory
  outrigger node --systemd-unit > /etc/systemd/system/outrigger.service

Pods keep running when the node is stopped, killed or updated; the next node takes them over. \
`outrigger stop --all` stops the pods.")]
pub(crate) struct Args {
    /// Run the manifests in this directory; added, changed and removed files take effect at once.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Print a systemd unit that runs this command, and exit.
    #[arg(long)]
    systemd_unit: bool,
    /// Stop all pods in order when the node is stopped.
    #[arg(long)]
    stop_pods_on_exit: bool,
    /// Time for pods to stop when the machine shuts down, by minimum pod priority; pods of lower priority are stopped
    /// first.
    #[arg(long, value_name = "PRIORITY=TIME,...", default_value = "0=30s,2000000000=10s", value_parser = shutdown_grace)]
    shutdown_grace: ShutdownGrace,
    /// How long the logs and the status of pods that have ended are kept.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = simulate::span)]
    keep_for: simulate::ScriptDuration,
    /// How much disk space logs and status of pods that have ended may use; the oldest are removed first.
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = size)]
    keep_size: u64,
    #[command(flatten)]
    runtime: RuntimeArgs,
    /// Network of pods of --manifests that do not use the host's.
    #[arg(long, value_enum, default_value_t = NetworkArg::Private, value_name = "MODE")]
    network: NetworkArg,
    /// User namespaces of pods of --manifests that do not set hostUsers.
    #[arg(long, value_enum, default_value_t = UsernsArg::Auto, value_name = "MODE")]
    userns: UsernsArg,
    /// Turn features on or off for pods of --manifests; see `outrigger run`.
    #[arg(long, value_delimiter = ',', value_parser = input::feature_gate, value_name = "GATE=BOOL")]
    feature_gates: Vec<(String, bool)>,
    /// Refuse pods that the Kubernetes Pod Security Standard `restricted` does not allow, such as those with hostPath volumes,
    /// and pods with `rootfs:DIR` images, no matter who starts them.
    #[arg(long)]
    restricted: bool,
    /// Show only warnings and errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    log: LogArgs,
}

impl Args {
    /// How the files of --manifests are read.
    fn reading(&self) -> RunReadOptions {
        RunReadOptions { features: input::features(&self.feature_gates), ..RunReadOptions::default() }
    }
}

fn size(text: &str) -> Result<u64, ValueError> {
    let amount = parse_quantity(text).map_err(|_| ValueError::Size("1Gi"))?.value();
    u64::try_from(amount).map_err(|_| ValueError::Size("1Gi"))
}

fn shutdown_grace(text: &str) -> Result<ShutdownGrace, ValueError> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (priority, time) = part.split_once('=').ok_or(ValueError::GraceSyntax)?;
        let priority = priority.trim().parse().map_err(|_| ValueError::Priority(priority.to_owned()))?;
        all.push((priority, Duration::from_millis(simulate::span(time.trim())?.0)));
    }
    Ok(ShutdownGrace::new(all))
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    if args.systemd_unit {
        terminal::print(&unit(&args)?)?;
        return Ok(Outcome::Fine);
    }
    args.runtime.check()?;
    if args.restricted {
        check_restricted_options(args.network.mode(), args.userns.mode())?;
    }
    if args.runtime.runtime == RuntimeArg::Embedded && !rustix::process::geteuid().is_root() {
        // Pods of an unprivileged user are in a user namespace that ends with the process.
        return Err(Failure::Own(anyhow!(
            "a node needs root; as an ordinary user, run pods in the foreground with `outrigger run`"
        )));
    }
    outrigger_runtime::descriptors::raise_limit();
    let state_dir = runtime::state_dir(args.runtime.state_dir.as_deref())?;
    let identity = NodeIdentity::open(&state_dir).map_err(|e| Failure::Own(e.into()))?;
    let owner = Owner::Node(identity);
    let output = Output::new(OutputOptions {
        format: Format::Plain,
        verbosity: run::verbosity(args.quiet),
        labels: Labels::PodAndContainer,
        colors: terminal::colors(),
    })?
    .without_summary();
    args.log.apply(args.quiet, &output);
    let kind = args.runtime.kind()?;
    let options = options(&args, kind.clone(), state_dir.clone())?;
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
    executor.block_on(async {
        // The node's runs, and so their runtime classes, are not known yet.
        match args.runtime.start(kind, &Work::default(), owner, state_dir).await? {
            Started::Embedded(runtime) => {
                let cleaner = runtime.clone();
                keep(runtime, options, output, async move { _ = cleaner.clean_orphans().await }).await
            }
            Started::Cri(runtime) => {
                let orphans = clean_cri(runtime.clone());
                keep(runtime, options, output, orphans).await
            }
        }
    })
}

fn options(args: &Args, kind: RuntimeKind, state_dir: PathBuf) -> Result<NodeOptions, Failure> {
    let manifests = args.manifests.as_ref().map(|dir| {
        // The path must be absolute, because it is watched for as long as the node runs.
        let dir = std::path::absolute(dir).map_err(|e| Failure::Input(anyhow!("{}: {e}", dir.display())))?;
        match trusted::open_dir(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::Input(anyhow!("cannot run the manifests of {}: {e}", dir.display())))
            }
            // The directory may be created later. It is checked each time it is read.
            _ => Ok(ManifestDir {
                path: dir,
                reading: args.reading(),
                pods: run::default_pod_options(args.network, args.userns),
            }),
        }
    });
    Ok(NodeOptions {
        state_dir,
        manifests: manifests.transpose()?,
        // A node keeps trying to start pods that it has accepted. For example, a missing seccomp profile may
        // be added later.
        machine: Machine { runtime: Some(kind), state_dir: None, on_failure: OnFailure::Retry },
        restricted: args.restricted,
        at_exit: match args.stop_pods_on_exit {
            true => AtExit::StopPods,
            false => AtExit::LeavePods,
        },
        shutdown: args.shutdown_grace.clone(),
        keep: Keep { time: Duration::from_millis(args.keep_for.0), bytes: args.keep_size },
    })
}

/// Runs a node on a runtime, and removes leftovers of other runs concurrently.
async fn keep<R: Runtime>(
    runtime: Arc<R>,
    options: NodeOptions,
    output: Output,
    orphans: impl Future<Output = ()> + Send + 'static,
) -> Result<Outcome, Failure> {
    let own = |e: outrigger_node::node::NodeError| Failure::Own(e.into());
    let mut node = Node::start(runtime.clone(), options.clone(), output.clone()).await.map_err(own)?;
    let orphans = tokio::spawn(orphans);
    while node.run().await.map_err(own)? == NodeEnd::ShutdownCancelled {
        node = Node::start(runtime.clone(), options.clone(), output.clone()).await.map_err(own)?;
    }
    let _ = orphans.await;
    Ok(Outcome::Fine)
}

/// The environment variables that a node reads.
const VARIABLES: [&str; 6] = [
    "OUTRIGGER_STATE_DIR",
    "OUTRIGGER_RUNTIME_DIR",
    "OUTRIGGER_OCI_RUNTIME",
    "OUTRIGGER_RUNTIMES",
    "OUTRIGGER_IMAGE_LIMITS",
    "OUTRIGGER_LOG",
];

/// A systemd unit that runs this command line with the same settings.
fn unit(args: &Args) -> Result<String, Failure> {
    let program = std::env::current_exe().unwrap_or_else(|_| "/usr/local/bin/outrigger".into());
    let quoted = |word: String| match word.contains([' ', '"', '\\', '$', '%']) {
        true => format!("{:?}", word.replace('%', "%%").replace('$', "$$")),
        false => word,
    };
    let words = std::env::args().skip(1).filter(|arg| arg != "--systemd-unit");
    let command: Vec<String> =
        std::iter::once(program.display().to_string()).chain(words).map(quoted).collect();
    let mut settings = String::new();
    let paths = [&args.manifests, &args.runtime.state_dir, &args.runtime.runtimes];
    if paths.into_iter().flatten().any(|path| path.is_relative()) {
        let here = std::env::current_dir()?.display().to_string().replace('%', "%%");
        settings.push_str(&format!("WorkingDirectory={here}\n"));
    }
    for name in VARIABLES {
        if let Ok(value) = std::env::var(name) {
            // In `Environment=`, `$` has no special meaning.
            settings.push_str(&format!("Environment={:?}\n", format!("{name}={}", value.replace('%', "%%"))));
        }
    }
    let stops = command.iter().any(|word| word == "--stop-pods-on-exit");
    // If the pods stop with the node, they may use their whole grace period.
    let stop = if stops { "10min" } else { "30s" };
    let unit = UNIT.replace("@COMMAND@", &command.join(" ")).replace("@STOP@", stop);
    Ok(unit.replace("@SETTINGS@", &settings))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    #[test]
    fn feature_gates_apply_to_the_manifests_of_the_directory() {
        let line = ["outrigger", "node", "--feature-gates", "SidecarLifecycleType=false"];
        let cli = crate::cli::Cli::try_parse_from(line).expect("a command line");
        let crate::cli::Command::Node(args) = cli.command else { panic!("not a node") };
        assert!(!args.reading().features.sidecar_lifecycle_type);
        let other = crate::cli::Cli::try_parse_from(["outrigger", "node", "--feature-gates", "Nothing=true"]);
        assert!(other.expect_err("no such gate").to_string().contains("unknown feature gate"));
    }
}
