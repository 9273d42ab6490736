//! Metrics in the Prometheus text format.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in seconds: fine near the targets, coarse above.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0];

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {}", bucket.load(Ordering::Relaxed));
        }
        let count = self.count.load(Ordering::Relaxed);
        let seconds = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        let _ =
            writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}");
    }
}

/// All metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Webhook calls about pods and requests.
    pub(crate) webhook_seconds: Histogram,
    /// Objects refused.
    pub(crate) refused: Counter,
    /// Keys published.
    pub(crate) keys: Counter,
    /// From the pod's change to the published key.
    pub(crate) publish_seconds: Histogram,
    /// From one level's key to the next.
    pub(crate) level_wait_seconds: Histogram,
    /// From the pod's start to the last key.
    pub(crate) launch_seconds: Histogram,
    /// Launches that took too long.
    pub(crate) launch_timeouts: Counter,
    /// Requests created to stop sidecars.
    pub(crate) terminations: Counter,
    /// Pods whose result was written.
    pub(crate) ended: Counter,
    /// Requests that succeeded.
    pub(crate) succeeded: Counter,
    /// Requests that failed.
    pub(crate) failed: Counter,
    /// Failed reconciliations, which are retried.
    pub(crate) errors: Counter,
}

impl Metrics {
    /// The text; `gauges` are name, help and value.
    pub(crate) fn text(&self, gauges: &[(&str, &str, usize)]) -> String {
        let mut out = String::new();
        for (name, help, value) in gauges {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        let counters = [
            ("outrigger_webhook_refused_total", "Objects the webhook has refused.", &self.refused),
            ("outrigger_barrier_keys_published_total", "Barrier keys published.", &self.keys),
            (
                "outrigger_launch_timeouts_total",
                "Launches that took longer than their timeout.",
                &self.launch_timeouts,
            ),
            ("outrigger_sidecar_terminations_total", "Requests made to stop sidecars.", &self.terminations),
            (
                "outrigger_pods_ended_total",
                "Pods whose result was written after their mains were done.",
                &self.ended,
            ),
            ("outrigger_errors_total", "Failures that are tried again.", &self.errors),
        ];
        for (name, help, counter) in counters {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}", counter.get());
        }
        let name = "outrigger_recreate_requests_total";
        let _ = writeln!(out, "# HELP {name} Finished container recreate requests.\n# TYPE {name} counter");
        for (verdict, counter) in [("succeeded", &self.succeeded), ("failed", &self.failed)] {
            let _ = writeln!(out, "{name}{{verdict=\"{verdict}\"}} {}", counter.get());
        }
        self.webhook_seconds.write(&mut out, "outrigger_webhook_seconds", "Time to answer the API server.");
        self.publish_seconds.write(
            &mut out,
            "outrigger_barrier_publish_seconds",
            "From hearing that a level is ready to the next one's key being published.",
        );
        self.level_wait_seconds.write(
            &mut out,
            "outrigger_level_wait_seconds",
            "How long a level waited for the one before it, from that one's key, or the pod's start, to its own.",
        );
        self.launch_seconds.write(
            &mut out,
            "outrigger_launch_seconds",
            "From the pod's start to the last barrier key.",
        );
        out
    }
}
