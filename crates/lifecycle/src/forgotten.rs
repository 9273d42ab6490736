//! Sidecars that everybody knows and that nobody marked: a Job whose `istio-proxy` is an ordinary container never completes.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::observation::Observation;
use crate::plan::{Plan, RestartPolicy, Role};
use crate::rules::final_exit;
use crate::shell::{base_name, script_of};

/// Names of containers that are sidecars wherever they are used.
const NAMES: [&str; 53] = [
    "alloy",
    "alloydb-auth-proxy",
    "amazon-cloudwatch-agent",
    "aws-otel-collector",
    "aws-xray-daemon",
    "cloud-sql-proxy",
    "cloud_sql_proxy",
    "cloudflared",
    "cloudsql-proxy",
    "cloudwatch-agent",
    "consul-connect-envoy-sidecar-proxy",
    "consul-connect-lifecycle-sidecar",
    "consul-dataplane",
    "daprd",
    "datadog",
    "datadog-agent",
    "dind",
    "docker-dind",
    "envoy",
    "envoy-proxy",
    "envoy-sidecar",
    "filebeat",
    "fluent-bit",
    "fluentbit",
    "fluentd",
    "git-sync",
    "gke-gcsfuse-sidecar",
    "grafana-agent",
    "istio-proxy",
    "jaeger-agent",
    "kuma-sidecar",
    "linkerd-proxy",
    "metricbeat",
    "oauth-proxy",
    "oauth2-proxy",
    "opentelemetry-collector",
    "osm-proxy",
    "otc-container",
    "otel-agent",
    "otel-collector",
    "pgbouncer",
    "promtail",
    "spiffe-helper",
    "statsd-exporter",
    "tailscale",
    "telegraf",
    "traffic-agent",
    "ts-sidecar",
    "vault-agent",
    "vault-agent-sidecar",
    "vector-agent",
    "vector-sidecar",
    "xray-daemon",
];

/// Images of such containers: the end of the repository's path.
const REPOSITORIES: [&str; 41] = [
    "alloydb-auth-proxy",
    "appmesh-envoy",
    "aws-appmesh-envoy",
    "aws-otel-collector",
    "aws-xray-daemon",
    "cloud-sql-proxy",
    "cloudflared",
    "cloudsql-docker/gce-proxy",
    "cloudwatch-agent",
    "consul-dataplane",
    "daprd",
    "datadog/agent",
    "envoy",
    "envoyproxy/envoy",
    "filebeat",
    "fluent-bit",
    "fluentd",
    "fluentd-kubernetes-daemonset",
    "gcr.io/datadoghq/agent",
    "git-sync",
    "grafana/agent",
    "grafana/alloy",
    "istio/proxyv2",
    "jaeger-agent",
    "kuma-dp",
    "linkerd/proxy",
    "metricbeat",
    "oauth2-proxy",
    "opentelemetry-collector",
    "opentelemetry-collector-contrib",
    "opentelemetry-collector-k8s",
    "otel/opentelemetry-collector",
    "pgbouncer",
    "promtail",
    "proxyv2",
    "spiffe-helper",
    "statsd-exporter",
    "tailscale",
    "telegraf",
    "timberio/vector",
    "xray-daemon",
];

/// Programs of such containers whose names are not those of containers.
const PROGRAMS: [&str; 3] = ["linkerd2-proxy", "otelcol", "pilot-agent"];

/// Words in commands that show that somebody ends such containers already.
const ENDS_OTHERS: [&str; 3] = ["linkerd-await", "4191/shutdown", "quitquitquit"];

/// Arguments with which such a program ends by itself.
const ENDS_ITSELF: [&str; 7] = [
    "exit-after-auth",
    "exit_after_auth",
    "--one-time ",
    "--one-time=true ",
    "--mode validate ",
    "--mode=validate ",
    "--mode init_only ",
];

/// Variables with which git-sync ends by itself.
const ONE_TIME: [&str; 2] = ["GITSYNC_ONE_TIME", "GIT_SYNC_ONE_TIME"];

/// The containers that would keep a pod from completing although they are well-known sidecars: they are not marked in any
/// dialect, and other containers of the pod run to completion. Indices of the plan.
pub fn forgotten_sidecars(pod: &Pod, plan: &Plan) -> Vec<usize> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let keepers: Vec<usize> = (0..plan.containers.len())
        .filter(|&i| plan.containers[i].role == Role::Main && plan.containers[i].keeps_alive)
        .collect();
    let known = |&i: &usize| {
        let written = spec.containers.iter().find(|c| c.name == plan.containers[i].name);
        written.is_some_and(is_sidecar)
    };
    let (found, work): (Vec<usize>, Vec<usize>) = keepers.into_iter().partition(known);
    let completes = |&i: &usize| plan.containers[i].restart.policy != RestartPolicy::Always;
    // A pod whose own work is one of these programs is left alone, and so is one that is never complete.
    if work.is_empty() || !work.iter().all(completes) || spec.containers.iter().any(ends_others) {
        return Vec::new();
    }
    found
}

/// Whether containers that nobody marked are all that keeps a pod running: everything else has done its work.
pub fn only_forgotten_run(plan: &Plan, obs: &Observation, forgotten: &[usize]) -> bool {
    let keepers = plan.containers.iter().zip(&obs.containers).enumerate().filter(|(_, (p, _))| p.keeps_alive);
    let mut others = keepers.filter(|(i, _)| !forgotten.contains(i)).peekable();
    obs.stop.is_none()
        && others.peek().is_some()
        && others.all(|(_, (p, c))| final_exit(p, c).is_some_and(|exit| exit.code == 0))
        && forgotten.iter().any(|&i| obs.containers[i].state.is_alive())
}

/// Whether a container is one of these sidecars and runs until somebody ends it.
fn is_sidecar(container: &Container) -> bool {
    let words = words(container);
    // The command alone decides: an image may take `sh -c` as arguments of its program.
    let has_script = container.command.is_some().then(|| script_of(&words)).flatten();
    let image = container.image.as_deref().unwrap_or_default();
    !ends_itself(container, &words)
        && match has_script {
            Some(script) => runs_sidecar(script),
            None => {
                NAMES.contains(&container.name.as_str())
                    || is_known_image(image)
                    || is_docker_daemon(image)
                    || is_vault_agent(image, &words)
            }
        }
}

/// Whether a script runs one of the programs. Another one replaces the program of the image.
fn runs_sidecar(script: &str) -> bool {
    let words: Vec<&str> = script.split_whitespace().map(base_name).collect();
    words.iter().any(|word| NAMES.contains(word) || PROGRAMS.contains(word))
        || words.windows(2).any(|pair| *pair == ["vault", "agent"])
}

fn is_known_image(image: &str) -> bool {
    REPOSITORIES.iter().any(|known| is_repository(image, known))
}

/// Whether an image is of a repository whose path ends like this.
fn is_repository(image: &str, known: &str) -> bool {
    let before = split(image).0.strip_suffix(known);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// `docker:dind`, `docker:27-dind-rootless`.
fn is_docker_daemon(image: &str) -> bool {
    is_repository(image, "docker") && split(image).1.split('-').any(|part| part == "dind")
}

/// The image of Vault serves its own users; with `agent` it serves other containers.
fn is_vault_agent(image: &str, words: &[&str]) -> bool {
    let words = match words {
        [program, rest @ ..] if base_name(program) == "vault" => rest,
        words => words,
    };
    is_repository(image, "vault") && words.first() == Some(&"agent")
}

/// The repository and the tag of an image, without its digest.
fn split(image: &str) -> (&str, &str) {
    let image = image.split('@').next().unwrap_or(image);
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[name..].find(':') {
        Some(colon) => (&image[..name + colon], &image[name + colon + 1..]),
        None => (image, ""),
    }
}

/// The command and the arguments of a container, as far as the manifest has them.
fn words(container: &Container) -> Vec<&str> {
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    words.map(String::as_str).collect()
}

/// Whether a container's command ends sidecars.
fn ends_others(container: &Container) -> bool {
    words(container).iter().any(|word| ENDS_OTHERS.iter().any(|ends| word.contains(ends)))
}

/// Whether a program was told to end by itself, once it has done its work.
fn ends_itself(container: &Container, words: &[&str]) -> bool {
    let line = format!("{} ", words.join(" "));
    let variables = container.env.iter().flatten();
    let is_once = |name: &str, value: Option<&str>| {
        ONE_TIME.contains(&name) && value.is_some_and(|v| ["true", "1"].contains(&v))
    };
    ENDS_ITSELF.iter().any(|ends| line.contains(ends))
        || variables.into_iter().any(|v| is_once(&v.name, v.value.as_deref()))
}
