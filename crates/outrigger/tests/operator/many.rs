//! Measures how long a thousand pods wait for the operator when they are created at once.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Stage;
use crate::cluster::eventually;

/// The number of pods.
const PODS: usize = 1_000;

/// Reads a page of the operator's health port.
pub(crate) fn page(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_owned())
}

/// The upper bound of the bucket with the 99th percentile of a histogram.
fn p99(metrics: &str, name: &str) -> f64 {
    let prefix = format!("{name}_bucket{{le=\"");
    let buckets: Vec<(f64, f64)> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once("\"} "))
        .map(|(bound, count)| (bound.parse().unwrap_or(f64::INFINITY), count.parse().unwrap_or(0.0)))
        .collect();
    let all = buckets.last().map_or(0.0, |(_, count)| *count);
    buckets.iter().find(|(_, count)| *count >= 0.99 * all).map_or(f64::INFINITY, |(bound, _)| *bound)
}

pub(crate) fn launches_many_pods(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let executor = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let operator = stage.operator.as_ref().expect("an operator");
    let before = operator.resident();
    let crowd = executor.block_on(crowd::Crowd::new(&cluster.config("admin"), cluster.namespace()));
    let begun = Instant::now();
    executor.block_on(crowd.create(PODS));
    println!("{PODS} pods were created in {:.1} s", begun.elapsed().as_secs_f64());
    let maps = eventually("every pod has its first key", || {
        let maps = executor.block_on(crowd.maps());
        (maps.len() == PODS && maps.values().all(|keys| keys == &["p_1"])).then_some(maps)
    });
    assert_eq!(maps.len(), PODS);
    let begun = Instant::now();
    executor.block_on(crowd.ready(PODS));
    let written = begun.elapsed();
    eventually("every pod has its second key", || {
        let maps: HashMap<String, Vec<String>> = executor.block_on(crowd.maps());
        maps.values().all(|keys| keys.len() == 2).then_some(())
    });
    println!(
        "{PODS} statuses were written in {:.1} s; the last key came {:.1} s after the first status",
        written.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    let metrics = page(stage.health, "/metrics").expect("metrics");
    let (publish, webhook) =
        (p99(&metrics, "outrigger_barrier_publish_seconds"), p99(&metrics, "outrigger_webhook_seconds"));
    let after = operator.resident();
    let per_pod = after.saturating_sub(before) / PODS as u64;
    println!("p99: publish below {publish} s, webhook below {webhook} s; a pod takes {per_pod} KiB");
    assert!(per_pod < 40, "{before} KiB without pods, {after} KiB with {PODS}");
}

mod crowd {
    use super::{HashMap, Value, json};
    use std::path::Path;

    use futures::StreamExt as _;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::api::{ListParams, Patch, PatchParams, PostParams};
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use kube::{Api, Client, Config};

    /// The number of concurrent calls.
    const AT_A_TIME: usize = 16;

    pub(super) struct Crowd {
        pods: Api<Pod>,
        maps: Api<ConfigMap>,
    }

    impl Crowd {
        pub(super) async fn new(config: &Path, namespace: &str) -> Self {
            let config = Kubeconfig::read_from(config).expect("a kubeconfig");
            let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
                .await
                .expect("a configuration");
            let client = Client::try_from(config).expect("a client");
            Crowd {
                pods: Api::namespaced(client.clone(), namespace),
                maps: Api::namespaced(client, namespace),
            }
        }

        pub(super) async fn create(&self, count: usize) {
            let make = |i: usize| async move {
                let env = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}]);
                let object = json!({
                    "metadata": {"name": format!("pod-{i}")},
                    "spec": {"nodeName": "machine", "containers": [
                        {"name": "first", "image": "i", "env": env}, {"name": "second", "image": "i"},
                    ]},
                });
                let pod: Pod = serde_json::from_value(object).expect("a pod");
                self.pods.create(&PostParams::default(), &pod).await.expect("created");
            };
            futures::stream::iter(0..count).for_each_concurrent(AT_A_TIME, make).await;
        }

        pub(super) async fn ready(&self, count: usize) {
            let status = |name: &str, ready: bool, state: Value| json!({"name": name, "ready": ready, "started": ready, "restartCount": 0, "image": "i", "imageID": "i", "state": state});
            let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
            let refused = json!({"waiting": {"reason": "CreateContainerConfigError"}});
            let statuses = json!([status("first", true, running), status("second", false, refused)]);
            let patch = json!({"status": {"phase": "Pending", "containerStatuses": statuses}});
            let write = |i: usize| {
                let patch = patch.clone();
                async move {
                    let name = format!("pod-{i}");
                    self.pods
                        .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                        .await
                        .expect("written");
                }
            };
            futures::stream::iter(0..count).for_each_concurrent(AT_A_TIME, write).await;
        }

        /// The keys of each barrier.
        pub(super) async fn maps(&self) -> HashMap<String, Vec<String>> {
            let list =
                self.maps.list(&ListParams::default().labels("outrigger.dev/barrier")).await.expect("a list");
            let keys = |map: ConfigMap| {
                (map.metadata.name.unwrap_or_default(), map.data.unwrap_or_default().into_keys().collect())
            };
            list.items.into_iter().map(keys).collect()
        }
    }
}
