//! Sidecars that everybody knows and that nobody marked: a Job whose `istio-proxy` is an ordinary container never completes.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::observation::Observation;
use crate::plan::{Plan, RestartPolicy, Role};
use crate::rules::final_exit;

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

/// Words in commands that show that somebody ends such a container already, or that it ends by itself.
const ENDED: [&str; 6] =
    ["exit-after-auth", "exit_after_auth", "linkerd-await", "4191/shutdown", "one-time", "quitquitquit"];

/// The containers that would keep a pod from completing although they are well-known sidecars: they are not marked in any
/// dialect, and other containers of the pod run to completion. Indices of the plan.
pub fn forgotten_sidecars(pod: &Pod, plan: &Plan) -> Vec<usize> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let keepers: Vec<usize> = (0..plan.containers.len())
        .filter(|&i| plan.containers[i].role == Role::Main && plan.containers[i].keeps_alive)
        .collect();
    let known = |&i: &usize| {
        let container = &plan.containers[i];
        NAMES.contains(&container.name.as_str()) || is_known_image(&container.image)
    };
    let (found, work): (Vec<usize>, Vec<usize>) = keepers.into_iter().partition(known);
    let completes = |&i: &usize| plan.containers[i].restart.policy != RestartPolicy::Always;
    // A pod whose own work is one of these programs is left alone, and so is one that is never complete.
    if work.is_empty() || !work.iter().all(completes) || spec.containers.iter().any(ends_sidecars) {
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

fn is_known_image(image: &str) -> bool {
    let repository = repository(image);
    let ends = |known: &&str| {
        let before = repository.strip_suffix(*known);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    REPOSITORIES.iter().any(ends)
}

/// An image without its tag and digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    image[name..].find(':').map_or(image, |colon| &image[..name + colon])
}

/// Whether a container's command ends sidecars, or the container itself.
fn ends_sidecars(container: &Container) -> bool {
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    words.into_iter().any(|word| ENDED.iter().any(|ended| word.contains(ended)))
}
