//! `outrigger node`: keeps pods running on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use outrigger_agent::options::PodOptions;
use outrigger_cri::{CriConfig, CriRuntime};
use outrigger_embedded::{EmbeddedConfig, EmbeddedRuntime};
use outrigger_images::ImageLimits;
use outrigger_lifecycle::{Severity, parse_quantity};
use outrigger_manifest::{Diagnostic, SourceFile, render};
use outrigger_node::node::{AtExit, Keep, Node, NodeEnd, NodeOptions, ShutdownGrace};
use outrigger_node::record::RunRecord;
use outrigger_node::work::Work;
use outrigger_runtime::{LogLimits, NodeIdentity, Owner, Runtime, RuntimeError, trusted};
use outrigger_view::output::{Format, Labels, Output, OutputOptions};
use serde::{Deserialize, Serialize};

use crate::input::{self, ReadArgs};
use crate::logging::LogArgs;
use crate::outcome::{Failure, Outcome};
use crate::run::{self, NetworkArg, RuntimeArg, UsernsArg};
use crate::{confinement, oci, simulate, terminal};

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

/// The first argument of the process that holds a node's connection to a container runtime.
pub(crate) const HOLD_CONNECTION: &str = "hold-connection";

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
    keep_for: simulate::Span,
    /// How much disk space logs and status of pods that have ended may use; the oldest are removed first.
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = size)]
    keep_size: u64,
    /// The container runtime.
    #[arg(long, value_enum, default_value_t = RuntimeArg::Embedded)]
    runtime: RuntimeArg,
    /// Socket of the container runtime for --runtime cri; detected by default.
    #[arg(long, value_name = "unix:///PATH")]
    cri_endpoint: Option<String>,
    /// Use an installed OCI runtime to make the containers: runc, crun or a path.
    #[arg(long, value_name = "NAME|PATH", env = "OUTRIGGER_OCI_RUNTIME")]
    oci_runtime: Option<String>,
    /// OCI runtime of each runtimeClassName (see docs/guide/oci-runtimes.md) [default: /etc/outrigger/runtimes.toml]
    #[arg(long, value_name = "FILE", env = "OUTRIGGER_RUNTIMES")]
    runtimes: Option<PathBuf>,
    /// Directory for images, pods and claims [default: /var/lib/outrigger]
    #[arg(long, value_name = "DIR", env = "OUTRIGGER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Limits for images that are pulled; see `outrigger run`.
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        env = "OUTRIGGER_IMAGE_LIMITS",
        default_value = "",
        hide_default_value = true
    )]
    image_limits: ImageLimits,
    /// Network of pods of --manifests that do not use the host's.
    #[arg(long, value_enum, default_value_t = NetworkArg::Private, value_name = "MODE")]
    network: NetworkArg,
    /// User namespaces of pods of --manifests that do not set hostUsers.
    #[arg(long, value_enum, default_value_t = UsernsArg::Auto, value_name = "MODE")]
    userns: UsernsArg,
    /// Turn features on or off for pods of --manifests; see `outrigger run`.
    #[arg(long, value_delimiter = ',', value_parser = input::feature_gate, value_name = "GATE=BOOL")]
    feature_gates: Vec<(String, bool)>,
    /// Refuse pods that the Pod Security Standard `restricted` of Kubernetes does not allow, hostPath volumes and images
    /// `rootfs:DIR` among them, whoever asks for them.
    #[arg(long)]
    restricted: bool,
    /// Show only warnings and errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    log: LogArgs,
}

fn size(text: &str) -> Result<u64, String> {
    let amount = parse_quantity(text).map_err(|_| "expected a size, for example 1Gi".to_owned())?.value();
    u64::try_from(amount).map_err(|_| "expected a size, for example 1Gi".to_owned())
}

fn shutdown_grace(text: &str) -> Result<ShutdownGrace, String> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (priority, time) = part.split_once('=').ok_or("expected PRIORITY=TIME, for example 0=30s")?;
        let priority = priority.trim().parse().map_err(|_| format!("{priority:?} is not a priority"))?;
        all.push((priority, Duration::from_millis(simulate::span(time.trim())?.0)));
    }
    Ok(ShutdownGrace::new(all))
}

/// Options for reading the manifests of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) read: ReadArgs,
    pub(crate) replicas: Option<u32>,
    /// Whether only what the Pod Security Standard `restricted` allows is run.
    #[serde(default)]
    pub(crate) restricted: bool,
    /// Whether what can never succeed is tried again and again.
    #[serde(skip)]
    pub(crate) keeps_trying: bool,
}

impl Reading {
    pub(crate) fn to_json(&self) -> Result<serde_json::Value, Failure> {
        serde_json::to_value(self).map_err(|e| Failure::Own(e.into()))
    }
}

/// Creates the pods of a run from its record, with the warnings about them; an error if the record is invalid.
fn read(
    record: &RunRecord,
    runtime: RuntimeArg,
    restricted: bool,
) -> Result<(Work, Vec<Diagnostic>), String> {
    let mut reading: Reading = serde_json::from_value(record.reading.clone()).map_err(|e| e.to_string())?;
    reading.restricted |= restricted;
    if reading.restricted {
        let (network, users) = (record.pods.network, record.pods.user_namespaces);
        run::check_restricted_flags(network, users).map_err(|e| e.to_string())?;
    }
    reading.keeps_trying = true;
    let sources = record.sources.iter().map(|(name, text)| SourceFile::new(name, text.as_str())).collect();
    let shown = |all: &[Diagnostic], sources: &[SourceFile]| render(all, sources, false);
    let (work, mut warnings) =
        run::read_work(sources, &reading, runtime, None).map_err(|failure| match failure {
            Failure::Manifest(all, sources) => shown(&all, &sources),
            Failure::Input(e) | Failure::Own(e) => format!("{e:#}"),
            Failure::Logged => "the log tells why".to_owned(),
        })?;
    let mut findings = match runtime {
        RuntimeArg::Embedded => confinement::check(&work),
        RuntimeArg::Cri => confinement::check_cri(&work),
    };
    findings.retain(|d| d.severity == Severity::Error);
    warnings.retain(|d| d.severity != Severity::Error);
    match findings.is_empty() {
        true => Ok((work, warnings)),
        false => Err(shown(&findings, &work.sources)),
    }
}

/// Says once what is to be warned about in each file of `--manifests`. `outrigger run -d` has said it itself.
#[derive(Default)]
struct Warned(Mutex<BTreeMap<PathBuf, String>>);

impl Warned {
    /// The warnings about a file as text, if they are not those of the last time it was read.
    fn news(&self, file: &Path, warnings: &[Diagnostic], sources: &[SourceFile]) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.is_empty() {
            known.remove(file);
            return None;
        }
        let text = render(warnings, sources, false);
        let before = known.insert(file.to_owned(), text.clone());
        (before.as_ref() != Some(&text)).then_some(text)
    }
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    if args.systemd_unit {
        terminal::print(&unit(&args)?)?;
        return Ok(Outcome::Fine);
    }
    if args.cri_endpoint.is_some() && args.runtime != RuntimeArg::Cri {
        return Err(Failure::Input(anyhow!("--cri-endpoint needs --runtime cri")));
    }
    if args.restricted {
        run::check_restricted_flags(args.network.mode(), args.userns.mode()).map_err(Failure::Input)?;
    }
    if args.runtime == RuntimeArg::Embedded && !rustix::process::geteuid().is_root() {
        // Pods of an unprivileged user live in a user namespace that ends with the process.
        return Err(Failure::Own(anyhow!(
            "a node needs root; as an ordinary user, run pods in the foreground with `outrigger run`"
        )));
    }
    outrigger_runtime::descriptors::raise_limit();
    let state_dir = run::state_dir(args.state_dir.as_deref())?;
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
    let options = options(&args, state_dir.clone())?;
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
    let own = |e: RuntimeError| Failure::Own(e.into());
    executor.block_on(async {
        match args.runtime {
            RuntimeArg::Embedded => {
                let oci =
                    oci::runtimes(args.oci_runtime.as_deref(), args.runtimes.as_deref(), &Work::default())?;
                let shim_command = vec!["/proc/self/exe".into(), "shim".into()];
                let config =
                    EmbeddedConfig { state_dir, shim_command, image_limits: args.image_limits, owner };
                let runtime = EmbeddedRuntime::new(config).map_err(own)?;
                let runtime = Arc::new(runtime.with_oci_runtimes(oci));
                let cleaner = runtime.clone();
                keep(runtime, options, output, async move { _ = cleaner.clean_orphans().await }).await
            }
            RuntimeArg::Cri => {
                let holder = vec!["/proc/self/exe".into(), HOLD_CONNECTION.into()];
                let config = CriConfig { endpoint: args.cri_endpoint, owner, holder, ..CriConfig::default() };
                let runtime = Arc::new(CriRuntime::connect(config).await.map_err(own)?);
                let cleaner = runtime.clone();
                let orphans = async move {
                    if let Err(e) = cleaner.clean_orphans().await {
                        tracing::warn!("{e}");
                    }
                };
                keep(runtime, options, output, orphans).await
            }
        }
    })
}

fn options(args: &Args, state_dir: PathBuf) -> Result<NodeOptions, Failure> {
    let manifests = args.manifests.as_ref().map(|dir| {
        // Absolute, because it is watched for as long as the node runs.
        let dir = std::path::absolute(dir).map_err(|e| Failure::Input(anyhow!("{}: {e}", dir.display())))?;
        match trusted::open_dir(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::Input(anyhow!("cannot run the manifests of {}: {e}", dir.display())))
            }
            // It may be created later, and is checked each time it is read.
            _ => Ok(dir),
        }
    });
    let pods = PodOptions {
        grace_ms: None,
        pull: None,
        network: args.network.mode(),
        user_namespaces: args.userns.mode(),
        publish: Vec::new(),
        pids_limit: run::pids_limit(None),
        log_limits: LogLimits::default(),
    };
    let read_args = ReadArgs::with_feature_gates(args.feature_gates.clone());
    let reading = Reading { read: read_args, ..Reading::default() }.to_json()?;
    let (runtime, restricted) = (args.runtime, args.restricted);
    let warned = Warned::default();
    Ok(NodeOptions {
        state_dir,
        manifests: manifests.transpose()?,
        read: Arc::new(move |record| {
            let (work, warnings) = read(record, runtime, restricted)?;
            let file = record.manifest.as_deref();
            if let Some(text) = file.and_then(|file| warned.news(file, &warnings, &work.sources)) {
                terminal::eprint(&text);
            }
            Ok(work)
        }),
        read_file: Arc::new(move |path, text| {
            let name = path.display().to_string();
            RunRecord {
                files: vec![name.clone()],
                sources: vec![(name, text)],
                reading: reading.clone(),
                pods: pods.clone(),
                names: String::new(),
                generations: Default::default(),
                retired: Vec::new(),
                manifest: Some(path),
                status: None,
            }
        }),
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

/// The variables that a node reads.
const VARIABLES: [&str; 6] = [
    "OUTRIGGER_STATE_DIR",
    "OUTRIGGER_RUNTIME_DIR",
    "OUTRIGGER_OCI_RUNTIME",
    "OUTRIGGER_RUNTIMES",
    "OUTRIGGER_IMAGE_LIMITS",
    "RUST_LOG",
];

/// A unit that runs this command line with the same settings.
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
    let paths = [&args.manifests, &args.state_dir, &args.runtimes];
    if paths.into_iter().flatten().any(|path| path.is_relative()) {
        let here = std::env::current_dir()?.display().to_string().replace('%', "%%");
        settings.push_str(&format!("WorkingDirectory={here}\n"));
    }
    for name in VARIABLES {
        if let Ok(value) = std::env::var(name) {
            // `$` means nothing here.
            settings.push_str(&format!("Environment={:?}\n", format!("{name}={}", value.replace('%', "%%"))));
        }
    }
    let stops = command.iter().any(|word| word == "--stop-pods-on-exit");
    // If pods are stopped with the node, they may use their whole grace period.
    let stop = if stops { "10min" } else { "30s" };
    let unit = UNIT.replace("@COMMAND@", &command.join(" ")).replace("@STOP@", stop);
    Ok(unit.replace("@SETTINGS@", &settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn feature_gates_apply_to_the_manifests_of_the_directory() {
        let line = ["outrigger", "node", "--feature-gates", "SidecarLifecycleType=false"];
        let cli = crate::cli::Cli::try_parse_from(line).expect("a command line");
        let crate::cli::Command::Node(args) = cli.command else { panic!("not a node") };
        let options = options(&args, "/state".into()).expect("options");
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: a, image: i}\n  \
                   - {name: b, image: i, lifecycle: {type: Sidecar}}\n";
        let record = (options.read_file)("/pods/p.yaml".into(), pod.to_owned());
        let work = (options.read)(&record).expect("work");
        assert!(work.pods[0].plan.dialects.is_empty(), "{:?}", work.pods[0].plan.dialects);
        let (work, warnings) = read(&record, RuntimeArg::Embedded, false).expect("work");
        let warned = Warned::default();
        let news = |warnings: &[Diagnostic]| warned.news(Path::new("/pods/p.yaml"), warnings, &work.sources);
        assert!(news(&warnings).is_some_and(|text| text.contains("warning[kep-gate]")), "{warnings:?}");
        assert_eq!(news(&warnings), None, "once");
        assert_eq!(news(&[]), None, "it was corrected");
        assert!(news(&warnings).is_some(), "it is there again");
        let other = crate::cli::Cli::try_parse_from(["outrigger", "node", "--feature-gates", "Nothing=true"]);
        assert!(other.expect_err("no such gate").to_string().contains("unknown feature gate"));
    }
}
