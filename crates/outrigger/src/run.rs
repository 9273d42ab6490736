//! `outrigger run`: runs pods on this machine.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use outrigger_agent::host_ports;
use outrigger_agent::options::{OnFailure, PodOptions, UserNamespaces};
use outrigger_cri::{CriConfig, CriRuntime};
use outrigger_embedded::doctor;
use outrigger_embedded::{EmbeddedConfig, EmbeddedRuntime, OciRuntimes, rootless};
use outrigger_images::ImageLimits;
use outrigger_lifecycle::{ContainerRef, List, Plan, PodSecurityLevel, Severity, parse_quantity};
use outrigger_manifest::{Diagnostic, SourceFile, Span, Workload, check, check_level};
use outrigger_node::node::new_id;
use outrigger_node::record::RunRecord;
use outrigger_node::run::RunOptions;
use outrigger_node::work::{PlannedPod, Work};
use outrigger_runtime::doctor::Level;
use outrigger_runtime::{LogLimits, NetworkMode, Owner, PublishedPort, PullPolicy, Runtime, RuntimeError};
use outrigger_view::output::{Format, Labels, Output, OutputOptions, Verbosity};

use crate::detach::WaitArg;
use crate::input::ReadArgs;
use crate::logging::LogArgs;
use crate::node::Reading;
use crate::outcome::{self, Failure};
use crate::supplies::{self, Machine};
use crate::{confinement, detach, oci, simulate, terminal, timeline};

/// Podman's default: enough for any program, but it stops a fork bomb.
const PIDS_LIMIT: u64 = 2048;

/// Minimum size of a log file: a few long lines.
const LOG_SIZE_MIN: i64 = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger run job.yaml                    run it and exit with its result
  outrigger run -o json job.yaml            one JSON object per event
  outrigger run --publish 8080:80 web.yaml  reach its port 80 at localhost:8080
  cat pod.yaml | outrigger run -
  outrigger run --timeout 5m --fail-fast job.yaml  as a step of a CI job
  outrigger run -d web.yaml                 run it in the background

The first Ctrl-C stops the pods gracefully and in order, the second at once, and the third kills them. Closing the \
terminal stops them too, unless the run was started with nohup.

Exit codes: 0 everything succeeded; if a pod failed, the exit code of the first main container that failed (for a \
Job, of its last failed pod); 2 wrong usage or a bad manifest; 124 after --timeout; 125 a failure of outrigger itself; 130 after SIGINT \
(Ctrl-C); 143 after SIGTERM; 129 after SIGHUP (the terminal was closed).")]
pub(crate) struct Args {
    /// Manifests, YAML or JSON; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
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
    /// Directory for images, pods and claims [default: /var/lib/outrigger, without root $XDG_DATA_HOME/outrigger]
    #[arg(long, value_name = "DIR", env = "OUTRIGGER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Limits for images that are pulled; raise them for images you trust: unpacked=64Gi (bytes), files=4000000,
    /// ratio=200 (unpacked to packed), depth=256 (of directories), free=BYTES (to leave on the disk).
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        env = "OUTRIGGER_IMAGE_LIMITS",
        default_value = "",
        hide_default_value = true
    )]
    image_limits: ImageLimits,
    /// Write events to this file as JSON Lines (see docs/reference/trace.md).
    #[arg(long, value_name = "PATH")]
    events: Option<PathBuf>,
    /// Draw a timeline of the run to this file when it ends: .svg or .html.
    #[arg(long, value_parser = timeline::Target::parse, value_name = "PATH")]
    timeline: Option<timeline::Target>,
    /// Keep the Pod object with its current status in this file.
    #[arg(long, value_name = "PATH", value_parser = PathBufValueParser::new().try_map(replaceable))]
    status: Option<PathBuf>,
    /// Grace period for a stop by Ctrl-C or SIGTERM, instead of the pods' own.
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u64>,
    /// When to pull images; overrides the manifest.
    #[arg(long, value_enum, value_name = "WHEN")]
    pull: Option<PullArg>,
    /// Network of pods that do not use the host's.
    #[arg(long, value_enum, default_value_t = NetworkArg::Private, value_name = "MODE")]
    network: NetworkArg,
    /// User namespaces of pods that do not set hostUsers.
    #[arg(long, value_enum, default_value_t = UsernsArg::Auto, value_name = "MODE")]
    userns: UsernsArg,
    /// Publish a port of the pod on this machine; may be repeated. Without an address, only this machine can connect
    /// (127.0.0.1). 0.0.0.0:8080:80 lets other machines connect, as hostPort in a manifest does.
    #[arg(long, value_parser = published, value_name = "[ADDRESS:]PORT:PORT[/udp]")]
    publish: Vec<PublishedPort>,
    /// Stop the pods in order after this time, for example 5m, and exit with 124.
    #[arg(long, value_parser = simulate::span, value_name = "TIME")]
    timeout: Option<simulate::Span>,
    /// Stop the pods in order at the first failure that would be retried, and at the first that makes a pod fail.
    #[arg(long)]
    fail_fast: bool,
    /// Try again for ever, as the kubelet does, even where that cannot help: for example with `runAsNonRoot` and an image that
    /// runs as root.
    #[arg(long, conflicts_with = "fail_fast")]
    keep_trying: bool,
    /// Refuse pods that the Pod Security Standard `restricted` of Kubernetes does not allow, hostPath volumes and images
    /// `rootfs:DIR` among them. Use it for manifests you did not write.
    #[arg(long)]
    restricted: bool,
    /// Number of pods of a Deployment, ReplicaSet, StatefulSet or DaemonSet; overrides the manifest.
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Maximum number of processes and threads of a container; 0 is no limit [default: 2048]
    #[arg(long, value_name = "N")]
    pids_limit: Option<u64>,
    /// Rotate the log file of a container at this size.
    #[arg(long, value_name = "SIZE", default_value = "10Mi", value_parser = log_size)]
    log_max_size: u64,
    /// Number of log files to keep per container; older output is deleted.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    log_max_files: u32,
    /// Hand the pods to the node of this machine and return; a node is started if there is none.
    #[arg(short, long, conflicts_with_all = ["events", "timeline", "timeout", "fail_fast", "output"])]
    detach: bool,
    /// With --detach: return when Jobs and pods with restartPolicy Never or OnFailure have finished, with their exit code, and
    /// everything else is ready; with `--wait=running` when all pods are running.
    #[arg(long, requires = "detach", num_args = 0..=1, require_equals = true, default_missing_value = "done", value_name = "UNTIL", hide_possible_values = true)]
    wait: Option<WaitArg>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputArg::Auto, value_name = "FORMAT")]
    output: OutputArg,
    /// Show only the output of the containers, and errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeArg {
    /// The runtime built into this binary.
    Embedded,
    /// containerd, CRI-O or another CRI runtime on this machine.
    Cri,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PullArg {
    /// Always ask the registry.
    Always,
    /// Pull only images that are not on this machine.
    Missing,
    /// Never pull.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkArg {
    /// An address of its own, reachable from this machine.
    Private,
    /// This machine's.
    Host,
    /// Loopback only.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UsernsArg {
    /// Each pod has its own, so root in a container has no rights on this machine; not for pods that need its users, such
    /// as privileged ones.
    Auto,
    /// Pods use the users of this machine: root in a container is root on this machine.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputArg {
    /// A live view on a terminal, else plain.
    Auto,
    /// Lines for people.
    Plain,
    /// One JSON object per line.
    Json,
}

impl PullArg {
    fn policy(self) -> PullPolicy {
        match self {
            PullArg::Always => PullPolicy::Always,
            PullArg::Missing => PullPolicy::IfNotPresent,
            PullArg::Never => PullPolicy::Never,
        }
    }
}

impl NetworkArg {
    pub(crate) fn mode(self) -> NetworkMode {
        match self {
            NetworkArg::Private => NetworkMode::Private,
            NetworkArg::Host => NetworkMode::Host,
            NetworkArg::None => NetworkMode::None,
        }
    }
}

impl UsernsArg {
    pub(crate) fn mode(self) -> UserNamespaces {
        match self {
            UsernsArg::Auto => UserNamespaces::Auto,
            UsernsArg::Host => UserNamespaces::Host,
        }
    }
}

fn published(text: &str) -> Result<PublishedPort, String> {
    let (ports, udp) = match text.rsplit_once('/') {
        Some((ports, "udp")) => (ports, true),
        Some((ports, "tcp")) => (ports, false),
        Some((_, other)) => return Err(format!("protocol {other:?} is neither `tcp` nor `udp`")),
        None => (text, false),
    };
    let number = |port: &str| match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{port:?} is not a port")),
    };
    let (rest, pod_port) =
        ports.rsplit_once(':').ok_or("expected [ADDRESS:]PORT:PORT, for example 8080:80")?;
    let (ip, host_port) = match rest.rsplit_once(':') {
        None => (Ipv4Addr::LOCALHOST.into(), rest),
        Some((ip, port)) => {
            let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
            let ip: IpAddr = ip.parse().map_err(|_| format!("{ip:?} is not an address"))?;
            (ip, port)
        }
    };
    Ok(PublishedPort { host: SocketAddr::new(ip, number(host_port)?), pod_port: number(pod_port)?, udp })
}

/// Refuses ports of the host that can never be had: they would be tried again and again.
fn check_publish(publish: &[PublishedPort], work: &Work) -> Result<(), Failure> {
    if !publish.is_empty() && work.pod_count() > 1 {
        let error = anyhow!("--publish needs one pod, the manifest has {}; use hostPort", work.pod_count());
        return Err(Failure::Input(error));
    }
    let specs = work.pods.iter().filter_map(|pod| pod.manifest.input.pod.spec.as_ref());
    let containers = specs.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    // Those that cannot be read are reported elsewhere.
    match published_twice(publish, &host_ports(containers).unwrap_or_default()) {
        Some((one, other)) => Err(Failure::Input(anyhow!(
            "{one} and {other} ask for the same port of this machine; use another port for one of them"
        ))),
        None => Ok(()),
    }
}

/// Two ports that cannot be listened on at the same time, as they would be written.
fn published_twice(publish: &[PublishedPort], of_pod: &[PublishedPort]) -> Option<(String, String)> {
    let clash = |a: &PublishedPort, b: &PublishedPort| {
        let (one, other) = (a.host.ip(), b.host.ip());
        let overlap = one == other
            || (one.is_ipv4() == other.is_ipv4() && (one.is_unspecified() || other.is_unspecified()));
        a.udp == b.udp && a.host.port() == b.host.port() && overlap
    };
    let written = |p: &PublishedPort| {
        let host = match p.host.ip() == Ipv4Addr::LOCALHOST {
            true => p.host.port().to_string(),
            false => p.host.to_string(),
        };
        format!("--publish {host}:{}{}", p.pod_port, if p.udp { "/udp" } else { "" })
    };
    publish.iter().enumerate().find_map(|(i, a)| {
        let twice = publish[i + 1..].iter().find(|b| clash(a, b)).map(written);
        let own =
            || of_pod.iter().find(|b| clash(a, b)).map(|b| format!("the pod's hostPort {}", b.host.port()));
        Some((written(a), twice.or_else(own)?))
    })
}

/// The options of the pods.
fn pod_options(args: &Args) -> PodOptions {
    PodOptions {
        grace_ms: args.grace_period.map(|s| s.saturating_mul(1_000)),
        pull: args.pull.map(PullArg::policy),
        network: args.network.mode(),
        user_namespaces: args.userns.mode(),
        publish: args.publish.clone(),
        pids_limit: pids_limit(args.pids_limit),
        log_limits: LogLimits { max_bytes: args.log_max_size, max_files: args.log_max_files },
    }
}

/// The requested limit, else the default if this machine can limit processes.
pub(crate) fn pids_limit(asked: Option<u64>) -> Option<u64> {
    match asked {
        Some(limit) => Some(limit).filter(|limit| *limit > 0),
        None => doctor::counts_processes().then_some(PIDS_LIMIT),
    }
}

pub(crate) fn log_size(text: &str) -> Result<u64, String> {
    let amount = parse_quantity(text).map_err(|_| "expected a size, for example 10Mi".to_owned())?.value();
    match u64::try_from(amount) {
        Ok(size) if amount >= LOG_SIZE_MIN => Ok(size),
        _ => Err("a log file must hold at least 64Ki".to_owned()),
    }
}

impl Args {
    fn reading(&self) -> Reading {
        Reading {
            read: self.read.clone(),
            replicas: self.replicas,
            restricted: self.restricted,
            keeps_trying: self.keep_trying,
        }
    }
}

/// Runs pods and returns their exit code.
pub(crate) fn main(mut args: Args) -> ExitCode {
    if args.detach {
        return match detached(args) {
            Ok(code) => ExitCode::from(code),
            Err(failure) => outcome::exit_code(Err(failure)),
        };
    }
    if args.runtime == RuntimeArg::Embedded {
        // Before anything is read or written, because the program restarts itself for an unprivileged user.
        let quiet = args.quiet;
        let note = |text: &str| {
            if !quiet {
                terminal::note(text);
            }
        };
        // In a user namespace the owners of most directories cannot be told apart any more.
        if !rootless::has_powers()
            && let Err(failure) = state_dir(args.state_dir.as_deref())
        {
            return outcome::exit_code(Err(failure));
        }
        if let Err(refused) = rootless::enter(note) {
            return outcome::exit_code(Err(Failure::Own(refused.into())));
        }
    }
    outrigger_runtime::descriptors::raise_limit();
    let keeps_events = args.events.is_some();
    let recording = args.timeline.take().map(|target| timeline::Recording::new(target, &mut args.events));
    let recording = match recording.transpose() {
        Ok(recording) => recording,
        Err(error) => return outcome::exit_code(Err(Failure::Own(error))),
    };
    let picture = recording.as_ref().map(|recording| recording.path().to_owned());
    let result = execute(args, keeps_events, picture);
    let drawn = recording.map_or(Ok(()), |recording| recording.draw()).map_err(Failure::Own);
    // The result of the pods takes precedence over an error of the timeline.
    match (result, drawn) {
        (Ok(0), Err(failure)) => outcome::exit_code(Err(failure)),
        (Ok(code), drawn) => {
            if let Err(failure) = drawn {
                let _shown = outcome::exit_code(Err(failure));
            }
            ExitCode::from(code)
        }
        (Err(failure), _) => outcome::exit_code(Err(failure)),
    }
}

fn execute(args: Args, keeps_events: bool, picture: Option<PathBuf>) -> Result<u8, Failure> {
    if args.cri_endpoint.is_some() && args.runtime != RuntimeArg::Cri {
        return Err(Failure::Input(anyhow!("--cri-endpoint needs --runtime cri")));
    }
    if args.oci_runtime.is_some() && args.runtime != RuntimeArg::Embedded {
        return Err(Failure::Input(anyhow!("--oci-runtime needs --runtime embedded, which is the default")));
    }
    let work = work(&args)?;
    check_publish(&args.publish, &work)?;
    let oci = match args.runtime {
        RuntimeArg::Embedded => oci::runtimes(args.oci_runtime.as_deref(), args.runtimes.as_deref(), &work)?,
        // A CRI runtime has its own runtime classes.
        RuntimeArg::Cri => OciRuntimes::default(),
    };
    check_confinement(&args, &work)?;
    let state_dir = state_dir(args.state_dir.as_deref())?;
    let pods = pod_options(&args);
    let options = RunOptions {
        state_dir: state_dir.clone(),
        run_id: new_id(),
        events: args.events,
        status: args.status,
        pods,
        timeout_ms: args.timeout.map(|time| time.0),
        on_failure: match (args.fail_fast, args.keep_trying) {
            (true, _) => OnFailure::Stop,
            (false, true) => OnFailure::Retry,
            (false, false) => OnFailure::StopIfHopeless,
        },
        files: args.files.iter().map(|file| file.display().to_string()).collect(),
    };
    let output = open_output(args.output, args.quiet, &work)?;
    let events = options.events.as_ref().filter(|_| keeps_events);
    let files = [("timeline", picture.as_ref()), ("events", events), ("status", options.status.as_ref())];
    for (what, path) in files {
        path.into_iter().for_each(|path| output.mention(what, path));
    }
    args.log.apply(args.quiet, &output);
    // A single thread is enough: pods mostly wait.
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
    let own = |e: RuntimeError| Failure::Own(e.into());
    executor.block_on(async {
        match args.runtime {
            RuntimeArg::Embedded => {
                let shim_command = vec!["/proc/self/exe".into(), "shim".into()];
                let image_limits = args.image_limits;
                let owner = Owner::Process;
                let config = EmbeddedConfig { state_dir, shim_command, image_limits, owner };
                let runtime = EmbeddedRuntime::new(config).map_err(own)?;
                let runtime = runtime.with_oci_runtimes(oci);
                oci::try_all(&runtime, &work).map_err(own)?;
                let runtime = Arc::new(runtime);
                let cleaner = runtime.clone();
                let orphans = async move {
                    // The first pod needs it, and starting it takes a moment.
                    cleaner.ensure_guard().await;
                    cleaner.clean_orphans().await;
                };
                carry_out(work, options, runtime, output, orphans).await
            }
            RuntimeArg::Cri => {
                let config = CriConfig { endpoint: args.cri_endpoint, ..CriConfig::default() };
                let runtime = Arc::new(CriRuntime::connect(config).await.map_err(own)?);
                if !args.quiet {
                    introduce(runtime.clone(), &output);
                }
                let cleaner = runtime.clone();
                let orphans = async move {
                    if let Err(e) = cleaner.clean_orphans().await {
                        tracing::warn!("{e}");
                    }
                };
                carry_out(work, options, runtime, output, orphans).await
            }
        }
    })
}

/// Rejects settings that this machine or its runtime cannot apply, and warns about those it ignores.
fn check_confinement(args: &Args, work: &Work) -> Result<(), Failure> {
    let mut findings = match args.runtime {
        RuntimeArg::Embedded => confinement::check(work),
        RuntimeArg::Cri => confinement::check_cri(work),
    };
    if args.runtime == RuntimeArg::Embedded {
        findings.extend(confinement::check_network(work, args.network.mode()));
    }
    let is_refused = match args.runtime {
        RuntimeArg::Embedded => findings.iter().any(|d| d.severity == Severity::Error),
        RuntimeArg::Cri => !findings.is_empty(),
    };
    if is_refused {
        return Err(Failure::Manifest(findings, work.sources.clone()));
    }
    if args.runtime == RuntimeArg::Embedded && !args.quiet {
        findings.extend(idle_limits(work));
        terminal::diagnostics(&findings, &work.sources);
    }
    Ok(())
}

fn open_output(format: OutputArg, quiet: bool, work: &Work) -> std::io::Result<Output> {
    Output::new(OutputOptions {
        format: match format {
            OutputArg::Auto if !quiet && terminal::is_lively() => Format::Live,
            OutputArg::Auto | OutputArg::Plain => Format::Plain,
            OutputArg::Json => Format::Json,
        },
        verbosity: verbosity(quiet),
        labels: labels(work),
        colors: terminal::colors(),
    })
}

/// Runs pods on a runtime, and removes leftovers of crashed runs concurrently.
async fn carry_out<R: Runtime>(
    work: Work,
    options: RunOptions,
    runtime: Arc<R>,
    output: Output,
    orphans: impl Future<Output = ()> + Send + 'static,
) -> Result<u8, Failure> {
    // Removing orphans must not delay this run.
    let orphans = tokio::spawn(orphans);
    let result = outrigger_node::run::run(work, options, runtime, output).await;
    // Finish the cleanup, so that it is not left half-done for the next run.
    let _ = orphans.await;
    result.map(|r| r.exit_code).map_err(|e| Failure::Own(e.into()))
}

/// Prints the runtime and warns about its missing features.
fn introduce(runtime: Arc<CriRuntime>, output: &Output) {
    // Standard output may be closed.
    let _ = output.writer().write_all(format!("runs on {}\n", runtime.info().summary()).as_bytes());
    // Checking takes a moment, and pods need not wait for it.
    tokio::spawn(async move {
        for lack in runtime.lacks().await {
            tracing::warn!("{}: {lack}", runtime.info().name);
        }
    });
}

pub(crate) fn verbosity(quiet: bool) -> Verbosity {
    match quiet {
        true => Verbosity::Quiet,
        false => Verbosity::All,
    }
}

/// Lines contain the pod's name if there may be several pods.
fn labels(work: &Work) -> Labels {
    let goes_on = |w: &Workload| w.job_spec().is_some_and(|spec| spec.completions.is_some_and(|c| c > 1));
    match work.pod_count() > 1 || work.workloads.iter().any(goes_on) {
        true => Labels::PodAndContainer,
        false => Labels::Container,
    }
}

/// Reads the manifests and plans each pod. Prints warnings; any error rejects everything.
fn work(args: &Args) -> Result<Work, Failure> {
    if args.restricted {
        check_restricted_flags(args.network.mode(), args.userns.mode()).map_err(Failure::Input)?;
    }
    let sources = args.read.sources(&args.files)?;
    let state_dir = given_or_default(args.state_dir.as_deref()).ok();
    let reading = args.reading();
    let (work, warnings) = read_work(sources, &reading, args.runtime, state_dir.as_deref())?;
    if !args.quiet {
        terminal::diagnostics(&warnings, &work.sources);
    }
    Ok(work)
}

/// Reads manifests and plans each pod. Also returns warnings.
pub(crate) fn read_work(
    sources: Vec<SourceFile>,
    reading: &Reading,
    runtime: RuntimeArg,
    state_dir: Option<&Path>,
) -> Result<(Work, Vec<Diagnostic>), Failure> {
    let Reading { read, replicas, restricted, keeps_trying } = reading;
    let replicas = *replicas;
    let manifest = match read.read_replicas(&sources, replicas) {
        Ok(manifest) => manifest,
        Err(refused) => return Err(Failure::Manifest(refused.0, sources)),
    };
    let counted = |w: &Workload| !matches!(w, Workload::Pod(_) | Workload::Job(_) | Workload::CronJob(_));
    if replicas.is_some() && !manifest.workloads.iter().any(counted) {
        let error = anyhow!(
            "--replicas needs a Deployment, ReplicaSet, StatefulSet or DaemonSet; the manifest has none"
        );
        return Err(Failure::Input(error));
    }
    let features = read.features();
    let mut diagnostics = manifest.warnings.clone();
    let checked = check(&manifest, &features);
    diagnostics.extend(checked.iter().flat_map(|c| c.diagnostics.iter().cloned()));
    let plans: Vec<Plan> = checked.into_iter().filter_map(|c| Some(c.planned?.plan)).collect();
    let machine = Machine { cri: runtime == RuntimeArg::Cri, state_dir, keeps_trying: *keeps_trying };
    diagnostics.extend(supplies::check(&manifest, machine));
    if *restricted {
        diagnostics.extend(check_level(&manifest, PodSecurityLevel::Restricted));
    }
    if diagnostics.iter().any(|d| d.severity == Severity::Error) {
        return Err(Failure::Manifest(diagnostics, sources));
    }
    // If there are no errors, every pod has a plan.
    let planned = manifest.pods.into_iter().zip(plans).map(|(manifest, plan)| PlannedPod { manifest, plan });
    let work = Work {
        pods: planned.collect(),
        workloads: manifest.workloads,
        companions: manifest.companions,
        sources,
    };
    Ok((work, diagnostics))
}

/// Flags must not give a pod of `--restricted` what its manifest may not ask for.
pub(crate) fn check_restricted_flags(network: NetworkMode, users: UserNamespaces) -> anyhow::Result<()> {
    let (flag, instead) = match (network, users) {
        (NetworkMode::Host, _) => ("--network host", "--network private"),
        (_, UserNamespaces::Host) => ("--userns host", "--userns auto"),
        (NetworkMode::Private | NetworkMode::None, UserNamespaces::Auto) => return Ok(()),
    };
    Err(anyhow!("{flag} cannot be used with --restricted, of this command or of the node; use {instead}"))
}

/// Hands the pods to the node of this machine.
fn detached(args: Args) -> Result<u8, Failure> {
    let work = work(&args)?;
    check_publish(&args.publish, &work)?;
    let pods = pod_options(&args);
    let record = RunRecord {
        files: args.files.iter().map(|file| file.display().to_string()).collect(),
        sources: work.sources.iter().map(|s| (s.name.clone(), s.text.to_string())).collect(),
        // What was accepted once, a node keeps trying.
        reading: Reading { keeps_trying: true, ..args.reading() }.to_json()?,
        pods,
        names: String::new(),
        generations: Default::default(),
        retired: Vec::new(),
        manifest: None,
        // The node has a different working directory.
        status: args.status.map(std::path::absolute).transpose()?,
    };
    let mut flags: Vec<std::ffi::OsString> = Vec::new();
    if args.runtime == RuntimeArg::Cri {
        flags.extend(["--runtime".into(), "cri".into()]);
    }
    let mut flag = |name: &str, value: Option<std::ffi::OsString>| {
        if let Some(value) = value {
            flags.extend([name.into(), value]);
        }
    };
    flag("--cri-endpoint", args.cri_endpoint.map(Into::into));
    flag("--oci-runtime", args.oci_runtime.map(Into::into));
    flag("--runtimes", args.runtimes.map(Into::into));
    let detach = detach::Detach { state_dir: args.state_dir, flags, wait: args.wait, quiet: args.quiet };
    detach.hand_over(record)
}

/// Warnings about limits that cannot be set on this machine.
fn idle_limits(work: &Work) -> Vec<Diagnostic> {
    let mut limited = Vec::new();
    for pod in &work.pods {
        let Some(spec) = &pod.manifest.input.pod.spec else { continue };
        let inits = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| (List::Init, i, c));
        let mains = spec.containers.iter().enumerate().map(|(i, c)| (List::Main, i, c));
        for (list, index, c) in inits.chain(mains) {
            let limits = c.resources.as_ref().and_then(|r| r.limits.as_ref());
            if limits.is_some_and(|l| l.contains_key("cpu") || l.contains_key("memory")) {
                let path = ContainerRef { list, index }.path().field("resources").field("limits");
                limited.push((c.name.clone(), pod.manifest.point(&path)));
            }
        }
    }
    if limited.is_empty() {
        return Vec::new();
    }
    let cgroups = doctor::cgroups_here();
    if cgroups.level == Level::Ok {
        return Vec::new();
    }
    let warning = |(name, span): (String, Span)| {
        let text = format!("the limits of `{name}` do not apply on this machine (cgroups {})", cgroups.found);
        let warning = Diagnostic::warning(span, text);
        match cgroups.remedy.clone() {
            Some(remedy) => warning.hint(remedy),
            None => warning,
        }
    };
    limited.into_iter().map(warning).collect()
}

/// The given state directory or the default.
pub(crate) fn given_or_default(given: Option<&Path>) -> Result<PathBuf, Failure> {
    given.map(Path::to_owned).or_else(rootless::default_state_dir).ok_or_else(|| {
        Failure::Input(anyhow!(
            "neither XDG_DATA_HOME nor HOME says where to keep state; choose a --state-dir"
        ))
    })
}

/// A file that is replaced again and again. Devices and pipes are not.
fn replaceable(path: PathBuf) -> Result<PathBuf, String> {
    match std::fs::metadata(&path).is_ok_and(|there| !there.is_file()) {
        true => Err("it is not a regular file".to_owned()),
        false => Ok(path),
    }
}

/// Creates the state directory if missing, not accessible to others, and resolves symbolic links.
pub(crate) fn state_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = given_or_default(given)?;
    outrigger_runtime::private::state_dir(&path)
        .with_context(|| format!("cannot use {} for state; choose another with --state-dir", path.display()))
        .map_err(Failure::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_not_replaced_by_a_status() {
        assert!(replaceable("/dev/null".into()).is_err());
        assert!(replaceable("/dev".into()).is_err());
        assert!(replaceable("/nonexistent/status.json".into()).is_ok());
    }

    #[test]
    fn a_port_of_the_machine_is_published_once() {
        let containers: Vec<k8s_openapi::api::core::v1::Container> = serde_json::from_value(serde_json::json!([
            {"name": "proxy", "ports": [{"containerPort": 90, "hostPort": 9090, "hostIP": "127.0.0.1"}]},
            {"name": "app", "ports": [{"containerPort": 70}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]},
        ]))
        .expect("containers");
        let of_pod = host_ports(&containers).expect("ports");
        for (ports, clash) in [
            (&["8080:80", "8080:81"][..], Some(("--publish 8080:80", "--publish 8080:81"))),
            (&["1:1", "127.0.0.1:8080:80", "8080:80"], Some(("--publish 8080:80", "--publish 8080:80"))),
            (&["54:53/udp", "54:53/udp"], Some(("--publish 54:53/udp", "--publish 54:53/udp"))),
            (&["54:53", "54:53/udp"], None),
            (&["127.0.0.1:80:80", "127.0.0.2:80:80", "[::1]:80:80"], None),
            (&["8080:80", "8081:80"], None),
            (&["0.0.0.0:8080:80", "8080:80"], Some(("--publish 0.0.0.0:8080:80", "--publish 8080:80"))),
            (&["70:70", "9090:80"], Some(("--publish 9090:80", "the pod's hostPort 9090"))),
            (&["127.0.0.2:9090:80", "53:53"], None),
            (&["53:5353/udp"], Some(("--publish 53:5353/udp", "the pod's hostPort 53"))),
        ] {
            let ports: Vec<PublishedPort> = ports.iter().map(|p| published(p).expect("a port")).collect();
            let found = published_twice(&ports, &of_pod);
            assert_eq!(found.as_ref().map(|(a, b)| (a.as_str(), b.as_str())), clash, "{ports:?}");
        }
    }

    #[test]
    fn ports_are_published_as_written() {
        let table = [
            ("8080:80", Some(("127.0.0.1:8080", 80, false))),
            ("0.0.0.0:8080:80", Some(("0.0.0.0:8080", 80, false))),
            ("[::]:8080:80", Some(("[::]:8080", 80, false))),
            ("127.0.0.1:8080:80", Some(("127.0.0.1:8080", 80, false))),
            ("[::1]:53:5353/udp", Some(("[::1]:53", 5353, true))),
            ("8080:80/tcp", Some(("127.0.0.1:8080", 80, false))),
            ("80", None),
            ("0:80", None),
            ("70000:80", None),
            ("host:1:2", None),
            ("1:2/sctp", None),
        ];
        for (text, expected) in table {
            let got = published(text).ok().map(|p| (p.host.to_string(), p.pod_port, p.udp));
            let got = got.as_ref().map(|(h, p, u)| (h.as_str(), *p, *u));
            assert_eq!(got, expected, "{text}");
        }
    }
}
