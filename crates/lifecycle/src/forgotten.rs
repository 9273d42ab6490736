//! Finds well-known sidecars that are not marked as sidecars. A Job with an ordinary container `istio-proxy`
//! never completes.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::observation::Observation;
use crate::plan::{Plan, RestartPolicy, Role};
use crate::rules::final_exit;
use crate::shell::{base_name, script_of};

/// Container names that are always used for sidecars.
const NAMES: [&str; 69] = [
    "alloy",
    "alloydb-auth-proxy",
    "amazon-cloudwatch-agent",
    "aws-otel-collector",
    "aws-sigv4-proxy",
    "aws-xray-daemon",
    "cloud-sql-auth-proxy",
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
    "ghostunnel",
    "git-sync",
    "gke-gcsfuse-sidecar",
    "gluetun",
    "grafana-agent",
    "istio-proxy",
    "jaeger-agent",
    "kube-rbac-proxy",
    "kuma-sidecar",
    "linkerd-proxy",
    "metricbeat",
    "mysqld-exporter",
    "nginx-exporter",
    "oauth-proxy",
    "oauth2-proxy",
    "opentelemetry-collector",
    "openvpn",
    "openvpn-client",
    "osm-proxy",
    "otc-container",
    "otel-agent",
    "otel-collector",
    "pgbouncer",
    "postgres-exporter",
    "promtail",
    "redis-exporter",
    "secretless-broker",
    "sigv4-proxy",
    "spiffe-helper",
    "splunk-otel-collector",
    "statsd-exporter",
    "tailscale",
    "telegraf",
    "traffic-agent",
    "ts-sidecar",
    "vault-agent",
    "vault-agent-sidecar",
    "vector",
    "vector-agent",
    "vector-sidecar",
    "wireguard",
    "xray-daemon",
];

/// Names of these that scripts use with another meaning.
const PLAIN_WORDS: [&str; 3] = ["alloy", "datadog", "vector"];

/// Images of such containers: the end of the repository's path.
const REPOSITORIES: [&str; 54] = [
    "alloydb-auth-proxy",
    "appmesh-envoy",
    "aws-appmesh-envoy",
    "aws-otel-collector",
    "aws-sigv4-proxy",
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
    "ghostunnel",
    "git-sync",
    "gluetun",
    "grafana/agent",
    "grafana/alloy",
    "istio/proxyv2",
    "jaeger-agent",
    "kube-rbac-proxy",
    "kuma-dp",
    "kylemanna/openvpn",
    "linkerd/proxy",
    "linuxserver/wireguard",
    "metricbeat",
    "mysqld-exporter",
    "nginx-prometheus-exporter",
    "oauth2-proxy",
    "opentelemetry-collector",
    "opentelemetry-collector-contrib",
    "opentelemetry-collector-k8s",
    "openvpn-client",
    "otel/opentelemetry-collector",
    "pgbouncer",
    "postgres-exporter",
    "promtail",
    "proxyv2",
    "redis_exporter",
    "secretless-broker",
    "spiffe-helper",
    "splunk-otel-collector",
    "statsd-exporter",
    "tailscale",
    "telegraf",
    "timberio/vector",
    "xray-daemon",
];

/// Programs of such sidecars that are not also container names.
const PROGRAMS: [&str; 3] = ["linkerd2-proxy", "otelcol", "pilot-agent"];

/// Words in commands that show that another container already ends such sidecars.
const ENDS_OTHERS: [&str; 3] = ["linkerd-await", "4191/shutdown", "quitquitquit"];

/// Arguments that make such a program end by itself.
const ENDS_ITSELF: [&str; 7] = [
    "exit-after-auth",
    "exit_after_auth",
    "--one-time ",
    "--one-time=true ",
    "--mode validate ",
    "--mode=validate ",
    "--mode init_only ",
];

/// Environment variables that make git-sync end by itself.
const ONE_TIME: [&str; 2] = ["GITSYNC_ONE_TIME", "GIT_SYNC_ONE_TIME"];

/// Well-known sidecars that would keep the pod from completing, by their plan indices. No dialect marks them,
/// and the other containers of the pod run to completion.
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
    // No finding if such a program is the pod's only work, if the pod never completes, or if a container ends
    // the sidecars.
    if work.is_empty() || !work.iter().all(completes) || spec.containers.iter().any(ends_others) {
        return Vec::new();
    }
    found
}

/// Whether only such unmarked sidecars keep a pod running: all other containers have succeeded.
pub fn only_forgotten_run(plan: &Plan, obs: &Observation, forgotten: &[usize]) -> bool {
    let keepers = plan.containers.iter().zip(&obs.containers).enumerate().filter(|(_, (p, _))| p.keeps_alive);
    let mut others = keepers.filter(|(i, _)| !forgotten.contains(i)).peekable();
    obs.stop.is_none()
        && others.peek().is_some()
        && others.all(|(_, (p, c))| final_exit(p, c).is_some_and(|exit| exit.code == 0))
        && forgotten.iter().any(|&i| obs.containers[i].state.is_alive())
}

/// Whether a container is a well-known sidecar that does not end by itself.
fn is_sidecar(container: &Container) -> bool {
    let words = words(container);
    // Only `command` can replace the program of the image. In `args`, `sh -c` may be arguments of that
    // program.
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

/// Whether a script runs one of the programs. Any other script replaces the program of the image.
fn runs_sidecar(script: &str) -> bool {
    let words: Vec<&str> = script.split_whitespace().map(base_name).collect();
    let is_program =
        |word: &&str| PROGRAMS.contains(word) || (NAMES.contains(word) && !PLAIN_WORDS.contains(word));
    words.iter().any(is_program) || words.windows(2).any(|pair| *pair == ["vault", "agent"])
}

fn is_known_image(image: &str) -> bool {
    REPOSITORIES.iter().any(|known| is_repository(image, known))
}

/// Whether the repository of an image ends with this path.
fn is_repository(image: &str, known: &str) -> bool {
    let before = split(image).0.strip_suffix(known);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// `docker:dind`, `docker:27-dind-rootless`.
fn is_docker_daemon(image: &str) -> bool {
    is_repository(image, "docker") && split(image).1.split('-').any(|part| part == "dind")
}

/// Whether Vault's image runs as an agent for the other containers. Without `agent` it is not a sidecar.
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

/// The command and the arguments of a container, as written in the manifest.
fn words(container: &Container) -> Vec<&str> {
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    words.map(String::as_str).collect()
}

/// Whether a container's command ends sidecars of its pod.
fn ends_others(container: &Container) -> bool {
    words(container).iter().any(|word| ENDS_OTHERS.iter().any(|ends| word.contains(ends)))
}

/// Whether arguments or variables make a program end by itself when its work is done.
fn ends_itself(container: &Container, words: &[&str]) -> bool {
    let line = format!("{} ", words.join(" "));
    let variables = container.env.iter().flatten();
    let is_once = |name: &str, value: Option<&str>| {
        ONE_TIME.contains(&name) && value.is_some_and(|v| ["true", "1"].contains(&v))
    };
    ENDS_ITSELF.iter().any(|ends| line.contains(ends))
        || variables.into_iter().any(|v| is_once(&v.name, v.value.as_deref()))
}
