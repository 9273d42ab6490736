//! Which pod is meant.

use super::client::{Found, Run};
use super::wire::PodState;

/// A pod as the user names it.
#[derive(Debug, Clone, Default)]
pub struct Which {
    /// `POD` or `pod/POD`.
    pub pod: String,
    /// Its namespace, if that matters.
    pub namespace: Option<String>,
    /// The process number of its run, if that matters.
    pub run: Option<u32>,
}

impl Found {
    /// The pod that is meant; one that is over only if there is no other. The error says what there is instead.
    pub fn pick(&self, which: &Which) -> Result<(&Run, &PodState), String> {
        let name = which.pod.strip_prefix("pod/").or_else(|| which.pod.strip_prefix("pods/"));
        let name = name.unwrap_or(&which.pod);
        let runs = self.runs.iter().filter(|run| which.run.is_none_or(|pid| pid == run.state.pid));
        let all: Vec<(&Run, &PodState)> =
            runs.flat_map(|run| run.state.pods.iter().map(move |pod| (run, pod))).collect();
        let in_namespace = |pod: &PodState| which.namespace.as_ref().is_none_or(|n| *n == pod.namespace);
        let named: Vec<_> =
            all.iter().copied().filter(|(_, pod)| pod.name == name && in_namespace(pod)).collect();
        let mut there: Vec<_> = named.iter().copied().filter(|(_, pod)| !pod.over).collect();
        if there.is_empty() {
            // Of those that were there the last is the one people have in mind.
            there.extend(named.last());
        }
        match there.as_slice() {
            [] => Err(self.nothing(name, which, &all)),
            [one] => Ok(*one),
            [(first, _), rest @ ..] if rest.iter().any(|(run, _)| run.state.pid != first.state.pid) => {
                let mut runs: Vec<String> = there
                    .iter()
                    .map(|(run, _)| format!("{} ({})", run.state.pid, run.state.files.join(" ")))
                    .collect();
                runs.dedup();
                Err(format!(
                    "pod {name:?} is in several runs: {}; choose one with --run PID",
                    runs.join(", ")
                ))
            }
            [(first, one), rest @ ..] => match rest.iter().find(|(_, pod)| pod.namespace != one.namespace) {
                Some((_, other)) => Err(format!(
                    "pod {name:?} is in namespaces {} and {}; choose one with --namespace",
                    one.namespace, other.namespace
                )),
                // Its successor is on the way while it goes: the newest counts.
                None => Ok(rest.last().map_or((*first, *one), |newest| *newest)),
            },
        }
    }

    fn nothing(&self, name: &str, which: &Which, all: &[(&Run, &PodState)]) -> String {
        if let Some(pid) = which.run.filter(|pid| !self.runs.iter().any(|run| run.state.pid == *pid)) {
            let pids: Vec<String> = self.runs.iter().map(|run| run.state.pid.to_string()).collect();
            return match pids.as_slice() {
                [] => format!("there is no run {pid}, and no other of this user"),
                _ => format!("there is no run {pid}; there is {}", pids.join(", ")),
            };
        }
        let mut names: Vec<String> = all
            .iter()
            .filter(|(_, pod)| !pod.over)
            .map(|(_, pod)| match pod.namespace.as_str() {
                "default" => pod.name.clone(),
                namespace => format!("{} (namespace {namespace})", pod.name),
            })
            .collect();
        names.sort();
        names.dedup();
        let place = which.namespace.as_ref().map(|n| format!(" in namespace {n}")).unwrap_or_default();
        match names.as_slice() {
            [] => format!("there is no pod {name:?}: no run of this user goes on"),
            _ => format!("there is no pod {name:?}{place}; there is {}", names.join(", ")),
        }
    }
}

impl PodState {
    /// The container that is meant: the one named, else the only main. The error says what there is.
    pub fn pick(&self, container: Option<&str>) -> Result<usize, String> {
        let names = |of: &[&str]| of.join(", ");
        let all: Vec<&str> = self.containers.iter().map(|c| c.name.as_str()).collect();
        if let Some(name) = container {
            let found = all.iter().position(|known| *known == name);
            return found.ok_or_else(|| {
                format!("pod {:?} has no container {name:?}; there is {}", self.name, names(&all))
            });
        }
        let mains: Vec<usize> = (0..all.len()).filter(|i| self.containers[*i].role == "main").collect();
        match mains.as_slice() {
            [main] => Ok(*main),
            _ => Err(format!(
                "pod {:?} has {} main containers; choose one with -c: {}",
                self.name,
                mains.len(),
                names(&all)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ContainerState;

    fn pod(containers: &[(&str, &str)]) -> PodState {
        let container = |(name, role): &(&str, &str)| ContainerState {
            name: (*name).to_owned(),
            role: (*role).to_owned(),
            state: "running".to_owned(),
            ready: true,
            restarts: 0,
            age_ms: None,
            reason: None,
        };
        PodState {
            number: 0,
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            workload: None,
            phase: "Running".to_owned(),
            stopping: false,
            over: false,
            ready: 0,
            total: 0,
            restarts: 0,
            age_ms: 0,
            reason: None,
            containers: containers.iter().map(container).collect(),
        }
    }

    #[test]
    fn the_only_main_is_meant_unless_another_is_named() {
        let one = pod(&[("setup", "init"), ("app", "main"), ("proxy", "sidecar")]);
        let two = pod(&[("proxy", "sidecar"), ("a", "main"), ("b", "main")]);
        let table: [(&PodState, Option<&str>, Result<usize, &str>); 4] = [
            (&one, None, Ok(1)),
            (&one, Some("proxy"), Ok(2)),
            (&one, Some("ap"), Err("pod \"p\" has no container \"ap\"; there is setup, app, proxy")),
            (&two, None, Err("pod \"p\" has 2 main containers; choose one with -c: proxy, a, b")),
        ];
        for (pod, container, expected) in table {
            assert_eq!(pod.pick(container), expected.map_err(str::to_owned), "{container:?}");
        }
    }
}
