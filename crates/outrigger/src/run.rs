//! `outrigger run`: runs pods on this machine.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use outrigger_agent::options::{OnFailure, PodOptions, UserNamespaces};
use outrigger_cri::CriRuntime;
use outrigger_embedded::{doctor, rootless};
use outrigger_lifecycle::parse_quantity;
use outrigger_manifest::Workload;
use outrigger_node::node::new_id;
use outrigger_node::read::{Checks, Machine, Read, RunReadOptions, RuntimeKind, read};
use outrigger_node::record::RunRecord;
use outrigger_node::run::RunOptions;
use outrigger_node::work::Work;
use outrigger_runtime::{LogLimits, NetworkMode, Owner, PublishedPort, PullPolicy, Runtime};
use outrigger_view::output::{Format, Labels, Output, OutputOptions, Verbosity};

use crate::detach::WaitArg;
use crate::input::{InputArgs, ReadArgs};
use crate::logging::LogArgs;
use crate::outcome::{self, Failure};
use crate::runtime::{RuntimeArg, RuntimeArgs, Started, clean_cri, given_or_default, state_dir};
use crate::value::ValueError;
use crate::{detach, simulate, terminal, timeline};

/// Podman's default. It is enough for any program, but it stops a fork bomb.
const PIDS_LIMIT: u64 = 2048;

/// The minimum size of a log file: it must hold a few long lines.
const LOG_SIZE_MIN: i64 = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger run job.yaml                    run it and exit with its result
  outrigger run -o json job.yaml            one JSON object per event
  outrigger run --publish 8080:80 web.yaml  reach its port 80 at localhost:8080
  outrigger run k8s/                        all manifests of a directory
  outrigger run -k overlays/test            what a kustomization says
  helm template . | outrigger run -
  outrigger run --timeout 5m --fail-fast job.yaml  as a step of a CI job
  outrigger run -d web.yaml                 run it in the background

The first Ctrl-C stops the pods gracefully and in order, the second at once, and the third kills them. Closing the \
terminal stops them too, unless the run was started with nohup.

Exit codes: 0 everything succeeded; if a pod failed, the exit code of the first main container that failed (for a \
Job, of its last failed pod); 2 wrong usage, a bad manifest or a pod that this machine cannot run; 124 after --timeout; 125 a failure of outrigger itself; 130 after SIGINT \
(Ctrl-C); 143 after SIGTERM; 129 after SIGHUP (the terminal was closed).")]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
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
    timeout: Option<simulate::ScriptDuration>,
    /// Stop the pods in order at the first failure, instead of trying again.
    #[arg(long)]
    fail_fast: bool,
    /// Try again forever, as the kubelet does, even if that cannot help: for example, if the image runs as root and
    /// `runAsNonRoot` is set.
    #[arg(long, conflicts_with = "fail_fast")]
    keep_trying: bool,
    /// Refuse pods that the Kubernetes Pod Security Standard `restricted` does not allow, such as those with hostPath volumes,
    /// and pods with `rootfs:DIR` images. Use this for manifests you did not write.
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
    /// With --detach: wait until everything is ready, and until Jobs and pods with restartPolicy Never or OnFailure have
    /// finished; exit with their result. `--wait=running` waits only until all pods are running.
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
    /// Each pod has its own, so root in a container has no rights on this machine. Pods that need the users of this
    /// machine, such as privileged pods, have none.
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

fn published(text: &str) -> Result<PublishedPort, ValueError> {
    let (ports, udp) = match text.rsplit_once('/') {
        Some((ports, "udp")) => (ports, true),
        Some((ports, "tcp")) => (ports, false),
        Some((_, other)) => return Err(ValueError::Protocol(other.to_owned())),
        None => (text, false),
    };
    let number = |port: &str| match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(ValueError::Port(port.to_owned())),
    };
    let (rest, pod_port) = ports.rsplit_once(':').ok_or(ValueError::PortSyntax)?;
    let (ip, host_port) = match rest.rsplit_once(':') {
        None => (Ipv4Addr::LOCALHOST.into(), rest),
        Some((ip, port)) => {
            let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
            let ip: IpAddr = ip.parse().map_err(|_| ValueError::Address(ip.to_owned()))?;
            (ip, port)
        }
    };
    Ok(PublishedPort { host: SocketAddr::new(ip, number(host_port)?), pod_port: number(pod_port)?, udp })
}

/// The options of a node's pods, unless a run has its own.
pub(crate) fn default_pod_options(network: NetworkArg, users: UsernsArg) -> PodOptions {
    PodOptions {
        grace_ms: None,
        pull: None,
        network: network.mode(),
        user_namespaces: users.mode(),
        publish: Vec::new(),
        pids_limit: pids_limit(None),
        log_limits: LogLimits::default(),
    }
}

/// The requested limit. Otherwise the default, if this machine can limit processes.
pub(crate) fn pids_limit(asked: Option<u64>) -> Option<u64> {
    match asked {
        Some(limit) => Some(limit).filter(|limit| *limit > 0),
        None => doctor::counts_processes().then_some(PIDS_LIMIT),
    }
}

pub(crate) fn log_size(text: &str) -> Result<u64, ValueError> {
    let amount = parse_quantity(text).map_err(|_| ValueError::Size("10Mi"))?.value();
    match u64::try_from(amount) {
        Ok(size) if amount >= LOG_SIZE_MIN => Ok(size),
        _ => Err(ValueError::LogSize),
    }
}

impl Args {
    /// The options that apply to each pod.
    fn pod_options(&self) -> PodOptions {
        PodOptions {
            grace_ms: self.grace_period.map(|s| s.saturating_mul(1_000)),
            pull: self.pull.map(PullArg::policy),
            publish: self.publish.clone(),
            pids_limit: pids_limit(self.pids_limit),
            log_limits: LogLimits { max_bytes: self.log_max_size, max_files: self.log_max_files },
            ..default_pod_options(self.network, self.userns)
        }
    }

    fn on_failure(&self) -> OnFailure {
        match (self.fail_fast, self.keep_trying) {
            (true, _) => OnFailure::Stop,
            (false, true) => OnFailure::Retry,
            (false, false) => OnFailure::StopIfPermanent,
        }
    }

    /// The run in the form in which a node stores it.
    fn record(&self) -> Result<RunRecord, Failure> {
        let sources = self.input.sources(&self.read)?;
        let options = self.read.options();
        let reading = RunReadOptions { replicas: self.replicas, restricted: self.restricted, ..options };
        Ok(RunRecord::new(self.input.names(), &sources, reading, self.pod_options()))
    }

    /// Reads the manifests and plans each pod. Prints warnings. Any error rejects everything.
    fn work(&self, record: &RunRecord, runtime: Option<RuntimeKind>) -> Result<Work, Failure> {
        let state_dir = given_or_default(self.runtime.state_dir.as_deref()).ok();
        let machine = Machine { runtime, state_dir, on_failure: self.on_failure() };
        let Read { work, warnings } = read(record, Checks::New(&machine))?;
        if !self.quiet {
            terminal::diagnostics(&warnings, &work.sources);
        }
        Ok(work)
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
    if args.runtime.runtime == RuntimeArg::Embedded {
        // Do this before anything is read or written, because the program restarts itself for an unprivileged
        // user.
        let quiet = args.quiet;
        let note = |text: &str| {
            if !quiet {
                terminal::note(text);
            }
        };
        // In a user namespace, the owners of most directories can no longer be distinguished.
        if !rootless::has_powers()
            && let Err(failure) = state_dir(args.runtime.state_dir.as_deref())
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
    args.runtime.check()?;
    let record = args.record()?;
    let kind = args.runtime.kind()?;
    let work = args.work(&record, Some(kind.clone()))?;
    let state_dir = state_dir(args.runtime.state_dir.as_deref())?;
    let on_failure = args.on_failure();
    let options = RunOptions {
        state_dir: state_dir.clone(),
        run_id: new_id(),
        events: args.events,
        status: args.status,
        pods: record.pods,
        timeout_ms: args.timeout.map(|time| time.0),
        on_failure,
        files: record.files,
    };
    let output = open_output(args.output, args.quiet, &work)?;
    let events = options.events.as_ref().filter(|_| keeps_events);
    let files = [("timeline", picture.as_ref()), ("events", events), ("status", options.status.as_ref())];
    for (what, path) in files {
        path.into_iter().for_each(|path| output.mention(what, path));
    }
    args.log.apply(args.quiet, &output);
    // A single thread is enough, because pods mostly wait.
    let executor =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
    executor.block_on(async {
        match args.runtime.start(kind, &work, Owner::Process, state_dir).await? {
            Started::Embedded(runtime) => {
                let cleaner = runtime.clone();
                let orphans = async move {
                    // The first pod needs the guard process, and starting it takes a moment.
                    cleaner.ensure_guard().await;
                    cleaner.clean_orphans().await;
                };
                carry_out(work, options, runtime, output, orphans).await
            }
            Started::Cri(runtime) => {
                if !args.quiet {
                    introduce(runtime.clone(), &output);
                }
                let orphans = clean_cri(runtime.clone());
                carry_out(work, options, runtime, output, orphans).await
            }
        }
    })
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
    // Removing leftovers must not delay this run.
    let orphans = tokio::spawn(orphans);
    let result = outrigger_node::run::run(work, options, runtime, output).await;
    // Finish the cleanup, so that the next run does not find it incomplete.
    let _ = orphans.await;
    result.map(|r| r.exit_code).map_err(|error| match error.is_refusal() {
        true => Failure::Input(error.into()),
        false => Failure::Own(error.into()),
    })
}

/// Prints the runtime and warns about its missing features.
fn introduce(runtime: Arc<CriRuntime>, output: &Output) {
    // Standard output may be closed.
    let _ = output.writer().write_all(format!("runs on {}\n", runtime.info().summary()).as_bytes());
    // The check takes a moment, and pods need not wait for it.
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

/// Lines contain the pod's name if there can be several pods.
fn labels(work: &Work) -> Labels {
    let goes_on = |w: &Workload| w.job_spec().is_some_and(|spec| spec.completions.is_some_and(|c| c > 1));
    match work.pod_count() > 1 || work.workloads.iter().any(goes_on) {
        true => Labels::PodAndContainer,
        false => Labels::Container,
    }
}

/// Submits the pods to the node of this machine.
fn detached(args: Args) -> Result<u8, Failure> {
    args.runtime.check()?;
    let mut record = args.record()?;
    // Only the node knows its OCI runtimes, so only a CRI runtime is checked here.
    let runtime = (args.runtime.runtime == RuntimeArg::Cri).then_some(RuntimeKind::Cri);
    args.work(&record, runtime)?;
    // The node has another working directory.
    record.status = args.status.map(std::path::absolute).transpose()?;
    let flags = args.runtime.flags();
    let detach =
        detach::Detach { state_dir: args.runtime.state_dir, flags, wait: args.wait, quiet: args.quiet };
    detach.hand_over(record)
}

/// Accepts a path whose file can be replaced repeatedly. Devices and pipes cannot.
fn replaceable(path: PathBuf) -> Result<PathBuf, ValueError> {
    match std::fs::metadata(&path).is_ok_and(|there| !there.is_file()) {
        true => Err(ValueError::NotAFile),
        false => Ok(path),
    }
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
