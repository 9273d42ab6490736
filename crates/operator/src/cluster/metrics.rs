//! The metrics of operator and agents, in the OpenMetrics text format.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// The content type of the metrics page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds of the buckets in seconds: fine near the targets, coarse above.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0];

/// Metrics of the operator.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leader: Gauge,
    pods: Gauge,
    levels_waiting: Gauge,
    longest_wait_seconds: Gauge,
    queue: Gauge,
    /// The duration of webhook calls about pods and requests.
    pub(crate) webhook_seconds: Histogram,
    /// The number of refused objects.
    pub(crate) refused: Counter,
    /// The number of published keys.
    pub(crate) keys: Counter,
    /// The time from the pod's change to the published key.
    pub(crate) publish_seconds: Histogram,
    /// The time from one level's key to the next level's key.
    pub(crate) level_wait_seconds: Histogram,
    /// The time from the pod's start to the last key.
    pub(crate) launch_seconds: Histogram,
    /// The number of launches that took too long.
    pub(crate) launch_timeouts: Counter,
    /// The number of requests created to stop sidecars.
    pub(crate) terminations: Counter,
    /// The number of pods whose result was written.
    pub(crate) ended: Counter,
    /// The number of requests that succeeded.
    pub(crate) succeeded: Counter,
    /// The number of requests that failed.
    pub(crate) failed: Counter,
    /// The number of failed reconciliations. They are retried.
    pub(crate) errors: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let r = &mut registry;
        let [succeeded, failed] = labelled(
            r,
            "outrigger_recreate_requests",
            "Finished container recreate requests",
            "verdict",
            ["succeeded", "failed"],
        );
        Metrics {
            leader: gauge(r, "outrigger_leader", "Whether this replica leads"),
            pods: gauge(r, "outrigger_pods", "Pods that use something the operator serves"),
            levels_waiting: gauge(r, "outrigger_levels_waiting", "Levels and gates that are closed"),
            longest_wait_seconds: gauge(
                r,
                "outrigger_longest_wait_seconds",
                "Age of the oldest pod that has a closed level or gate",
            ),
            queue: gauge(r, "outrigger_queue", "Objects that wait to be looked at, or to be written to"),
            webhook_seconds: histogram(r, "outrigger_webhook_seconds", "Time to answer the API server"),
            refused: counter(r, "outrigger_webhook_refused", "Objects the webhook has refused"),
            keys: counter(r, "outrigger_barrier_keys_published", "Barrier keys published"),
            publish_seconds: histogram(
                r,
                "outrigger_barrier_publish_seconds",
                "From hearing that a level is ready to the next one's key being published",
            ),
            level_wait_seconds: histogram(
                r,
                "outrigger_level_wait_seconds",
                "How long a level waited for the one before it, from that one's key, or the pod's start, to its own",
            ),
            launch_seconds: histogram(
                r,
                "outrigger_launch_seconds",
                "From the pod's start to the last barrier key",
            ),
            launch_timeouts: counter(
                r,
                "outrigger_launch_timeouts",
                "Launches that took longer than their timeout",
            ),
            terminations: counter(r, "outrigger_sidecar_terminations", "Requests made to stop sidecars"),
            ended: counter(
                r,
                "outrigger_pods_ended",
                "Pods whose result was written after their mains were done",
            ),
            succeeded,
            failed,
            errors: counter(r, "outrigger_errors", "Failures that are tried again"),
            registry,
        }
    }
}

/// The current numbers of objects in the operator.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Whether this replica is the leader.
    pub(crate) leads: bool,
    /// The number of pods that use the operator.
    pub(crate) pods: usize,
    /// The number of closed levels and gates.
    pub(crate) levels_waiting: usize,
    /// The age of the oldest pod with a closed level or gate.
    pub(crate) longest_wait_seconds: u64,
    /// The number of objects in the queue.
    pub(crate) queue: usize,
}

impl Metrics {
    /// Renders the metrics page.
    pub(crate) fn page(&self, holds: &Holds) -> String {
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.leader.set(i64::from(holds.leads));
        self.pods.set(size(holds.pods));
        self.levels_waiting.set(size(holds.levels_waiting));
        self.longest_wait_seconds.set(i64::try_from(holds.longest_wait_seconds).unwrap_or(i64::MAX));
        self.queue.set(size(holds.queue));
        text(&self.registry)
    }
}

/// Metrics of an agent.
#[derive(Debug)]
pub(crate) struct AgentMetrics {
    registry: Registry,
    /// The number of containers stopped.
    pub(crate) stopped: Counter,
    /// The number of containers that could not be stopped.
    pub(crate) failed: Counter,
}

impl Default for AgentMetrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let [stopped, failed] = labelled(
            &mut registry,
            "outrigger_agent_stops",
            "Containers this agent has stopped, or failed to",
            "result",
            ["stopped", "failed"],
        );
        AgentMetrics { registry, stopped, failed }
    }
}

impl AgentMetrics {
    /// Renders the metrics page.
    pub(crate) fn page(&self) -> String {
        text(&self.registry)
    }
}

fn text(registry: &Registry) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut out, registry);
    out
}

fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a counter. Its samples are called NAME`_total`.
fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    registered(registry, name, help, Counter::default())
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    registered(registry, name, help, Gauge::default())
}

fn histogram(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    registered(registry, name, help, Histogram::new(BOUNDS))
}

/// Registers a counter for each value of a label. All exist from the start, because a rate needs the 0 before
/// the first event.
fn labelled<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    label: &'static str,
    values: [&'static str; N],
) -> [Counter; N] {
    type Labels = [(&'static str, &'static str); 1];
    let family = registered(registry, name, help, Family::<Labels, Counter>::default());
    values.map(|value| family.get_or_create_owned(&[(label, value)]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{AgentMetrics, Holds, Metrics};

    /// The metrics of a page with their types. A counter is listed under the name of its samples.
    fn types(page: &str) -> BTreeMap<&str, &str> {
        let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let sample_of = |family: &str| {
            let total = |line: &&str| line.strip_prefix(family).is_some_and(|l| l.starts_with("_total"));
            page.lines().find(total).and_then(|line| line.split([' ', '{']).next())
        };
        families
            .map(|(name, kind)| {
                (if kind == "counter" { sample_of(name).expect("a sample") } else { name }, kind)
            })
            .collect()
    }

    /// The rows of the tables below this heading of the reference page.
    fn documented(heading: &str) -> BTreeMap<&'static str, &'static str> {
        let page = include_str!("../../../../docs/reference/metrics.md");
        let (_, section) = page.split_once(heading).expect("the heading");
        let section = section.split("\n## ").next().unwrap_or(section);
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        rows.filter_map(|(name, rest)| Some((name, rest.split(' ').next()?))).collect()
    }

    #[test]
    fn every_metric_is_listed_with_its_type() {
        assert_eq!(types(&Metrics::default().page(&Holds::default())), documented("\n## Operator\n"));
        assert_eq!(types(&AgentMetrics::default().page()), documented("\n## Agent\n"));
    }

    #[test]
    fn pages_are_as_scrapers_read_them() {
        let metrics = Metrics::default();
        metrics.errors.inc();
        metrics.failed.inc();
        metrics.launch_seconds.observe(0.2);
        let page = metrics.page(&Holds { leads: true, pods: 3, ..Holds::default() });
        for part in [
            "# HELP outrigger_errors Failures that are tried again.\n# TYPE outrigger_errors counter\noutrigger_errors_total 1\n",
            "# HELP outrigger_leader Whether this replica leads.\n# TYPE outrigger_leader gauge\noutrigger_leader 1\n",
            "\noutrigger_pods 3\n",
            "\noutrigger_recreate_requests_total{verdict=\"succeeded\"} 0\n",
            "\noutrigger_recreate_requests_total{verdict=\"failed\"} 1\n",
            "\noutrigger_launch_seconds_bucket{le=\"0.1\"} 0\n",
            "\noutrigger_launch_seconds_bucket{le=\"0.25\"} 1\n",
            "\noutrigger_launch_seconds_bucket{le=\"+Inf\"} 1\n",
            "\noutrigger_launch_seconds_count 1\n",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
        assert!(page.ends_with("\n# EOF\n"), "{page}");
        let agent = AgentMetrics::default();
        agent.stopped.inc();
        for part in ["outrigger_agent_stops_total{result=\"stopped\"} 1\n", "{result=\"failed\"} 0\n"] {
            assert!(agent.page().contains(part), "{}", agent.page());
        }
    }
}
