//! `outrigger operator`: launch priority and sidecar termination in clusters with standard kubelets.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use outrigger_operator::cluster::{self, AgentOptions, Agents, Launch, Requesters, RunOptions};
use outrigger_operator::install::{FailurePolicy, Options, manifests};

use crate::logging::{LogArgs, LogFormat};
use crate::outcome::{Failure, Outcome};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger operator install -o yaml | kubectl apply -f -
  outrigger operator status -n shop web-0

If the binary is on the PATH as kubectl-outrigger, `kubectl outrigger status` does the same.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explain what a pod in the cluster waits for, and what happens next.
    Status(Status),
    /// Install the operator: print its manifests, or apply them.
    Install(Install),
    /// Run webhooks and controllers (in the cluster; several replicas may run).
    Run(Run),
    /// Run the agent of one node (in the cluster; one per node).
    Agent(Agent),
}

#[derive(Debug, clap::Args)]
struct Status {
    /// The pod's namespace; the kubeconfig's by default.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Print JSON instead of a table.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<StatusFormat>,
    /// The pod.
    #[arg(value_name = "POD")]
    pod: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    /// One JSON object.
    Json,
}

#[derive(Debug, clap::Args)]
struct Install {
    /// Print the manifests instead of applying them.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// The namespace the operator runs in.
    #[arg(short, long, default_value = "outrigger-system", value_name = "NAMESPACE")]
    namespace: String,
    /// The image of operator and agent.
    #[arg(long, default_value = "outrigger:latest", value_name = "IMAGE")]
    image: String,
    /// What happens to pods that use the operator while it is not available.
    #[arg(long, value_enum, default_value_t = Policy::Fail, value_name = "POLICY")]
    failure_policy: Policy,
    /// Do not install the node agent: sidecars then end by their pod's phase, and containers cannot be recreated.
    #[arg(long)]
    without_agent: bool,
    /// Socket of the container runtime on every node, as unix:///run/PATH; detected by default.
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "without_agent")]
    cri_endpoint: Option<String>,
    /// Let all users who may create container recreate requests do so for any pod of the namespace, as OpenKruise does;
    /// otherwise they must also be allowed to delete the pod or to execute commands in it.
    #[arg(long)]
    any_requester: bool,
    /// Give every new pod the readiness gate KruisePodReady, as OpenKruise does with its feature gate KruisePodReadinessGate:
    /// container recreate requests can then make the pod unready before they stop anything.
    #[arg(long)]
    readiness_gate: bool,
    /// How containers with different launch priorities are started in order.
    #[arg(long, value_enum, default_value_t = Order::Barrier, value_name = "WAY")]
    launch: Order,
    /// How log lines of operator and agent are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
    /// Make the API server call the webhook at this address, for an operator and agents outside the cluster. The manifests then
    /// have no Deployment and no DaemonSet.
    #[arg(long, value_name = "URL")]
    webhook_url: Option<String>,
    /// Apply even if OpenKruise, or Outrigger in another namespace, is installed.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// YAML, for kubectl.
    Yaml,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// They are refused, so that no pod starts its containers in the wrong order.
    Fail,
    /// They are created, and their containers start in any order.
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// A barrier holds back those that start later. The containers themselves do not change.
    Barrier,
    /// Those that start first become native sidecars, if their restart policies and probes allow it. The next level then
    /// starts in 0.2 s instead of a second.
    Native,
}

impl From<Order> for Launch {
    fn from(order: Order) -> Self {
        match order {
            Order::Barrier => Launch::Barrier,
            Order::Native => Launch::Native,
        }
    }
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The operator's own namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "outrigger-system", value_name = "NAMESPACE")]
    namespace: String,
    /// Identity of this replica [default: host name and process id]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// Address the webhook listens on.
    #[arg(long, default_value = "0.0.0.0:8443", value_name = "ADDRESS")]
    webhook_address: SocketAddr,
    /// Address to serve /healthz, /readyz and /metrics on.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    health_address: SocketAddr,
    /// Additional name or address in the webhook's certificate; may be repeated.
    #[arg(long, value_name = "NAME")]
    webhook_name: Vec<String>,
    /// Nodes have no agent: sidecars end by their pod's phase, and container recreate requests are refused.
    #[arg(long)]
    without_agent: bool,
    /// Let all users who may create container recreate requests do so for any pod of the namespace, as OpenKruise does;
    /// otherwise they must also be allowed to delete the pod or to execute commands in it.
    #[arg(long)]
    any_requester: bool,
    /// How containers with different launch priorities are started in order.
    #[arg(long, value_enum, default_value_t = Order::Barrier, value_name = "WAY")]
    launch: Order,
    /// How often the webhook's certificate is checked, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    certificate_check: u64,
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, clap::Args)]
struct Agent {
    /// The node's name.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: String,
    /// Socket of the container runtime, as unix:///PATH; detected by default.
    #[arg(long, value_name = "ENDPOINT")]
    cri_endpoint: Option<String>,
    /// Address to serve /healthz, /readyz and /metrics on [default: none]
    #[arg(long, value_name = "ADDRESS")]
    health_address: Option<SocketAddr>,
    /// How log lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let input = |error: cluster::Error| Failure::Input(error.into());
    match args.command {
        Command::Install(args) => executor.block_on(install(args)),
        Command::Status(args) => executor.block_on(async {
            let client = cluster::connect().await.map_err(input)?;
            let status =
                cluster::status(&client, args.namespace.as_deref(), &args.pod).await.map_err(input)?;
            match args.output {
                Some(StatusFormat::Json) => {
                    let text = serde_json::to_string_pretty(&status).map_err(anyhow::Error::from)?;
                    terminal::print_plain(&format!("{text}\n"))?;
                }
                None => terminal::print(&status.table())?,
            }
            Ok(Outcome::Fine)
        }),
        Command::Run(args) => {
            args.log.apply_to_service(args.log_format);
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let identity = args.identity.unwrap_or_else(|| format!("{host}-{}", std::process::id()));
            let options = RunOptions {
                namespace: args.namespace,
                identity,
                webhook: args.webhook_address,
                health: args.health_address,
                names: args.webhook_name,
                agents: if args.without_agent { Agents::NotInstalled } else { Agents::Installed },
                requesters: if args.any_requester { Requesters::All } else { Requesters::WithRightsOnPod },
                launch: args.launch.into(),
                certificate_check: Duration::from_secs(args.certificate_check),
            };
            executor.block_on(cluster::run(options)).map_err(|error| ended(error, args.log_format))?;
            Ok(Outcome::Fine)
        }
        Command::Agent(args) => {
            let is_socket = |endpoint: &String| endpoint.starts_with("unix:") || endpoint.starts_with('/');
            if let Some(endpoint) = args.cri_endpoint.as_ref().filter(|endpoint| !is_socket(endpoint)) {
                let text = format!("--cri-endpoint {endpoint:?} is not a unix socket; write unix:///PATH");
                return Err(Failure::Input(anyhow::anyhow!(text)));
            }
            args.log.apply_to_service(args.log_format);
            let options = AgentOptions {
                node: args.node_name,
                endpoint: args.cri_endpoint,
                health: args.health_address,
            };
            executor.block_on(cluster::run_agent(options)).map_err(|error| ended(error, args.log_format))?;
            Ok(Outcome::Fine)
        }
    }
}

/// Reports the failure that ends the operator or the agent, in the format of its log.
fn ended(error: cluster::Error, format: LogFormat) -> Failure {
    if format == LogFormat::Text {
        return Failure::Own(error.into());
    }
    tracing::error!(%error, "cannot continue");
    Failure::Logged
}

async fn install(args: Install) -> Result<Outcome, Failure> {
    let input = |error: cluster::Error| Failure::Input(error.into());
    let options = Options {
        namespace: args.namespace,
        image: args.image,
        failure_policy: match args.failure_policy {
            Policy::Fail => FailurePolicy::Fail,
            Policy::Ignore => FailurePolicy::Ignore,
        },
        without_agent: args.without_agent,
        cri_endpoint: args.cri_endpoint,
        any_requester: args.any_requester,
        readiness_gate: args.readiness_gate,
        launch: args.launch.into(),
        json_logs: args.log_format == LogFormat::Json,
        webhook_url: args.webhook_url,
    };
    options.check().map_err(|problem| Failure::Input(problem.into()))?;
    let manifests = manifests(&options);
    if args.output.is_some() {
        warn_of_clashes(&options.namespace).await;
        terminal::print_plain(&manifests.join("---\n"))?;
        return Ok(Outcome::Fine);
    }
    let client = cluster::connect().await.map_err(input)?;
    let clashes = cluster::clashes(&client, &options.namespace).await.map_err(input)?;
    if !clashes.is_empty() && !args.force {
        let text = format!("{}; uninstall it first, or use --force", clashes.join("; "));
        return Err(Failure::Input(anyhow::anyhow!(text)));
    }
    for applied in cluster::apply(&client, &manifests).await.map_err(input)? {
        terminal::print(&format!("applied {applied}\n"))?;
    }
    Ok(Outcome::Fine)
}

/// How long to look for a cluster that is optional.
const CLUSTER_MAX: Duration = Duration::from_secs(3);

/// Warns on standard error if the current cluster, if any, has OpenKruise or another Outrigger installed.
async fn warn_of_clashes(namespace: &str) {
    let look = async { cluster::clashes(&cluster::connect().await?, namespace).await };
    if let Ok(Ok(clashes)) = tokio::time::timeout(CLUSTER_MAX, look).await {
        for clash in clashes {
            terminal::eprint(&format!("warning: {clash}; uninstall it before you apply this\n"));
        }
    }
}

/// As a plugin of kubectl, `kubectl outrigger status` means `outrigger operator status`.
pub(crate) fn plugin_args(mut args: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let program = args.first().map(std::path::Path::new).and_then(|path| path.file_name());
    let is_plugin = program.is_some_and(|name| name == "kubectl-outrigger");
    let is_short = args.get(1).is_some_and(|word| word == "status" || word == "install");
    if is_plugin && is_short {
        args.insert(1, "operator".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::plugin_args;

    #[test]
    fn kubectl_has_the_short_form() {
        let of = |args: &[&str]| -> Vec<String> {
            let args = args.iter().map(Into::into).collect();
            plugin_args(args).into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(of(&["/bin/kubectl-outrigger", "status", "p"])[1..], ["operator", "status", "p"]);
        assert_eq!(of(&["kubectl-outrigger", "plan", "p"])[1..], ["plan", "p"]);
        assert_eq!(of(&["outrigger", "status", "p"])[1..], ["status", "p"]);
    }
}
