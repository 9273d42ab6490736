//! Stops pods when the machine shuts down. Lower priorities stop first, and each group has its own time
//! limit, like the kubelet's `shutdownGracePeriodByPodPriority`. The containers of each pod stop in order.

use std::time::Duration;

use outrigger_runtime::Runtime;

use super::Node;
use super::runs::RunOrder;

/// Added to the time of a group, because containers killed at its end take a moment to exit.
const MARGIN: Duration = Duration::from_secs(2);

/// How long pods may take to stop, by minimum priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownGrace(Vec<(i32, Duration)>);

impl Default for ShutdownGrace {
    /// 30 seconds, and 10 more for critical pods.
    fn default() -> Self {
        ShutdownGrace::new(vec![(0, Duration::from_secs(30)), (2_000_000_000, Duration::from_secs(10))])
    }
}

impl ShutdownGrace {
    /// Pairs of minimum priority and time. Without any, pods are killed.
    pub fn new(mut groups: Vec<(i32, Duration)>) -> Self {
        groups.sort_unstable();
        groups.dedup_by_key(|(priority, _)| *priority);
        ShutdownGrace(groups)
    }

    /// The maximum total time of all groups.
    pub fn total(&self) -> Duration {
        self.0.iter().map(|(_, time)| *time + MARGIN).sum()
    }

    /// The pods and the time of each non-empty group, in the order they are stopped. Pods with a lower
    /// priority than any group belong to the first one.
    fn groups(&self, pods: &[(usize, i32)]) -> Vec<(Duration, Vec<usize>)> {
        let group_of = |priority: i32| self.0.iter().rposition(|(least, _)| *least <= priority).unwrap_or(0);
        let mut groups: Vec<(Duration, Vec<usize>)> =
            self.0.iter().map(|(_, time)| (*time, Vec::new())).collect();
        if groups.is_empty() {
            groups.push((Duration::ZERO, Vec::new()));
        }
        for (pod, priority) in pods {
            groups[group_of(*priority)].1.push(*pod);
        }
        groups.retain(|(_, pods)| !pods.is_empty());
        groups
    }
}

impl<R: Runtime> Node<R> {
    /// Stops all pods because the machine is shutting down. The next node starts them again.
    pub(super) async fn shut_down(&mut self) {
        for run in self.runs.values() {
            run.order(RunOrder::Freeze);
        }
        let groups = self.options.shutdown.groups(&self.registry.priorities());
        for (time, pods) in groups {
            let grace_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            for &pod in &pods {
                for run in self.runs.values() {
                    run.order(RunOrder::ShutDown { pod, grace_ms });
                }
            }
            let mut changes = self.registry.changes();
            let gone = async {
                while self.registry.priorities().iter().any(|(pod, _)| pods.contains(pod)) {
                    if changes.changed().await.is_err() {
                        return;
                    }
                }
            };
            if tokio::time::timeout(time + MARGIN, gone).await.is_err() {
                tracing::warn!("pods did not stop within {time:?}; continuing with the shutdown");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_priority_goes_first_as_in_the_kubelet() {
        let seconds = Duration::from_secs;
        let grace =
            ShutdownGrace::new(vec![(1_000, seconds(10)), (0, seconds(30)), (2_000_000_000, seconds(5))]);
        let pods = [(1, 0), (2, 999), (3, 1_000), (4, -5), (5, 2_000_001_000), (6, 5_000)];
        let expected = [(seconds(30), vec![1, 2, 4]), (seconds(10), vec![3, 6]), (seconds(5), vec![5])];
        assert_eq!(grace.groups(&pods), expected);
        assert_eq!(grace.groups(&[(7, 1)]), [(seconds(30), vec![7])]);
        assert_eq!(ShutdownGrace::new(Vec::new()).groups(&[(7, 1)]), [(Duration::ZERO, vec![7])]);
    }
}
