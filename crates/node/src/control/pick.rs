//! Selects pods by name, workload or label.

use super::client::{Found, Run};
use super::selector::Selector;
use super::wire::PodState;

/// A selection of pods.
#[derive(Debug, Clone)]
pub struct Which {
    /// By name or by label.
    pub what: Named,
    /// Their namespace, if restricted.
    pub namespace: Option<String>,
    /// The pid of their run, if restricted.
    pub run: Option<u32>,
}

/// How pods are named.
#[derive(Debug, Clone)]
pub enum Named {
    /// One pod by its name, or all pods of a workload: `POD`, `pod/POD`, `deploy/NAME`, `job/NAME`, ….
    Object(Object),
    /// All pods with these labels.
    Labels(Selector),
}

/// `POD` or `KIND/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    kind: &'static str,
    name: String,
}

/// Kinds that have pods, and the aliases kubectl accepts.
const KINDS: [(&str, &[&str]); 8] = [
    ("Pod", &["po", "pod", "pods"]),
    ("Deployment", &["deploy", "deployment", "deployments"]),
    ("ReplicaSet", &["rs", "replicaset", "replicasets"]),
    ("StatefulSet", &["sts", "statefulset", "statefulsets"]),
    ("DaemonSet", &["ds", "daemonset", "daemonsets"]),
    ("Job", &["job", "jobs"]),
    ("CronJob", &["cj", "cronjob", "cronjobs"]),
    ("Run", &["run", "runs"]),
];

impl std::str::FromStr for Object {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            None => ("Pod", text),
            Some((kind, name)) => {
                // `deployments.apps` and `jobs.v1.batch` contain the group as well.
                let written = kind.split('.').next().unwrap_or_default().to_ascii_lowercase();
                let known = KINDS.iter().find(|(_, names)| names.contains(&written.as_str()));
                let Some((kind, _)) = known else {
                    let known: Vec<&str> = KINDS.iter().map(|(_, names)| names[0]).collect();
                    return Err(format!("unknown kind {kind:?}; use one of {}", known.join(", ")));
                };
                (*kind, name)
            }
        };
        match name.is_empty() || name.contains('/') {
            true => Err("expected POD or KIND/NAME, for example deploy/web".to_owned()),
            false => Ok(Object { kind, name: name.to_owned() }),
        }
    }
}

impl Object {
    /// Whether it names a workload, not a pod.
    pub fn is_workload(&self) -> bool {
        self.kind != "Pod"
    }

    /// Whether it names the pod of this name.
    pub fn is_pod(&self, name: &str) -> bool {
        !self.is_workload() && self.name == name
    }

    /// The run of a node it names, if any.
    pub fn run(&self) -> Option<&str> {
        (self.kind == "Run").then_some(&*self.name)
    }

    fn has(&self, pod: &PodState) -> bool {
        match self.is_workload() {
            true => pod.owners.contains(&format!("{}/{}", self.kind, self.name)),
            false => pod.name == self.name,
        }
    }
}

type Found1<'a> = (&'a Run, &'a PodState);

impl Found {
    /// The selected pods; ended ones only if there are no others. Returns at least one pod, otherwise an
    /// error that lists the alternatives. All pods of one name or workload are in the same run and namespace.
    pub fn pods(&self, which: &Which) -> Result<Vec<(&Run, &PodState)>, String> {
        let runs = self.runs.iter().filter(|run| which.run.is_none_or(|pid| pid == run.state.pid));
        let all: Vec<Found1<'_>> =
            runs.flat_map(|run| run.state.pods.iter().map(move |pod| (run, pod))).collect();
        let in_namespace = |pod: &PodState| which.namespace.as_ref().is_none_or(|n| *n == pod.namespace);
        let is_meant = |pod: &PodState| match &which.what {
            Named::Object(object) => object.has(pod),
            Named::Labels(selector) => selector.matches(&pod.labels),
        };
        let meant: Vec<_> =
            all.iter().copied().filter(|(_, pod)| is_meant(pod) && in_namespace(pod)).collect();
        let mut there: Vec<_> = meant.iter().copied().filter(|(_, pod)| !pod.over).collect();
        if there.is_empty() {
            // All that ended, but of several pods of one name the last one.
            let is_name = matches!(&which.what, Named::Object(object) if !object.is_workload());
            there = if is_name { meant.last().copied().into_iter().collect() } else { meant };
        }
        match (&which.what, there.as_slice()) {
            (_, []) => Err(self.nothing(which, &all)),
            (Named::Labels(_), _) => Ok(there),
            (Named::Object(object), _) => unambiguous(object, there),
        }
    }

    /// The selected pod; of a workload's pods, the first.
    pub fn pick(&self, which: &Which) -> Result<(&Run, &PodState), String> {
        let pods = self.pods(which)?;
        pods.first().copied().ok_or_else(|| self.nothing(which, &[]))
    }

    fn nothing(&self, which: &Which, all: &[Found1<'_>]) -> String {
        if let Some(pid) = which.run.filter(|pid| !self.runs.iter().any(|run| run.state.pid == *pid)) {
            let pids: Vec<String> = self.runs.iter().map(|run| run.state.pid.to_string()).collect();
            return match pids.as_slice() {
                [] => format!("no run {pid}: you have no active runs"),
                _ => format!("no run {pid}; your active runs: {}", pids.join(", ")),
            };
        }
        let place = which.namespace.as_ref().map(|n| format!(" in namespace {n}")).unwrap_or_default();
        let (wanted, what) = match &which.what {
            Named::Object(object) if object.is_workload() => {
                (format!("no pods of {}/{}{place}", object.kind, object.name), true)
            }
            Named::Object(object) => (format!("no pod {:?}{place}", object.name), false),
            Named::Labels(_) => (format!("no pods with these labels{place}"), false),
        };
        let outside = |namespace: &str| match namespace {
            "default" => String::new(),
            namespace => format!(" (namespace {namespace})"),
        };
        let live = all.iter().filter(|(_, pod)| !pod.over);
        let mut names: Vec<String> = match what {
            true => live
                .filter_map(|(_, pod)| Some(format!("{}{}", pod.workload.as_ref()?, outside(&pod.namespace))))
                .collect(),
            false => live.map(|(_, pod)| format!("{}{}", pod.name, outside(&pod.namespace))).collect(),
        };
        names.sort();
        names.dedup();
        match names.as_slice() {
            [] if self.runs.is_empty() => format!("{wanted}: you have no active runs"),
            [] => wanted,
            _ => format!("{wanted}; running: {}", names.join(", ")),
        }
    }
}

/// Pods of one name or workload; an error if several runs or namespaces have it.
fn unambiguous<'a>(object: &Object, there: Vec<Found1<'a>>) -> Result<Vec<Found1<'a>>, String> {
    let Some((first, one)) = there.first().copied() else { return Ok(there) };
    let shown = match object.is_workload() {
        true => format!("{}/{}", object.kind, object.name),
        false => format!("pod {:?}", object.name),
    };
    if there.iter().any(|(run, _)| run.state.pid != first.state.pid) {
        let name = |(run, _): &Found1<'_>| format!("{} ({})", run.state.pid, run.state.files.join(" "));
        let mut runs: Vec<String> = there.iter().map(name).collect();
        runs.dedup();
        return Err(format!("{shown} is in several runs: {}; choose one with --run PID", runs.join(", ")));
    }
    if let Some((_, other)) = there.iter().find(|(_, pod)| pod.namespace != one.namespace) {
        return Err(format!(
            "{shown} is in namespaces {} and {}; choose one with --namespace",
            one.namespace, other.namespace
        ));
    }
    // A pod may still be stopping when its successor exists: the newest is selected.
    let only = (!object.is_workload()).then(|| there.last().copied()).flatten();
    Ok(only.map_or(there, |newest| vec![newest]))
}

/// The selected container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// Its index in the pod.
    pub container: usize,
    /// No container was named: this is the first main of several containers, which should be reported.
    pub by_default: bool,
}

impl PodState {
    /// Selects a container: the named one, else that of the annotation
    /// `kubectl.kubernetes.io/default-container`, else the first main. The error lists the containers.
    pub fn pick(&self, container: Option<&str>) -> Result<Picked, String> {
        let place = |name: &str| self.containers.iter().position(|c| c.name == name);
        let picked = |container, by_default| Ok(Picked { container, by_default });
        if let Some(name) = container {
            return match place(name) {
                Some(at) => picked(at, false),
                None => {
                    let all: Vec<&str> = self.containers.iter().map(|c| c.name.as_str()).collect();
                    Err(format!(
                        "pod {:?} has no container {name:?}; its containers: {}",
                        self.name,
                        all.join(", ")
                    ))
                }
            };
        }
        if let Some(at) = self.default_container.as_deref().and_then(place) {
            return picked(at, false);
        }
        let main = self.containers.iter().position(|c| c.role == "main");
        picked(main.unwrap_or(0), self.containers.len() > 1)
    }

    /// The message if no container was named: `Defaulted container "app" out of: app, proxy, setup (init)`.
    pub fn defaulted(&self, container: usize) -> String {
        let shown = |c: &super::ContainerState| match c.role.as_str() {
            "init" => format!("{} (init)", c.name),
            _ => c.name.clone(),
        };
        let all: Vec<String> = self.containers.iter().map(shown).collect();
        let name = self.containers.get(container).map_or("", |c| c.name.as_str());
        format!("Defaulted container {name:?} out of: {}", all.join(", "))
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
            ..ContainerState::default()
        };
        PodState {
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            phase: "Running".to_owned(),
            containers: containers.iter().map(container).collect(),
            ..PodState::default()
        }
    }

    #[test]
    fn the_first_main_is_meant_unless_another_is_named() {
        let one = pod(&[("setup", "init"), ("app", "main"), ("proxy", "sidecar")]);
        let two = pod(&[("proxy", "sidecar"), ("a", "main"), ("b", "main")]);
        let marked = PodState { default_container: Some("b".to_owned()), ..two.clone() };
        let stale = PodState { default_container: Some("gone".to_owned()), ..two.clone() };
        let alone = pod(&[("app", "main")]);
        let table: [(&PodState, Option<&str>, Result<(usize, bool), &str>); 7] = [
            (&one, None, Ok((1, true))),
            (&one, Some("proxy"), Ok((2, false))),
            (&one, Some("ap"), Err("pod \"p\" has no container \"ap\"; its containers: setup, app, proxy")),
            (&two, None, Ok((1, true))),
            (&marked, None, Ok((2, false))),
            (&stale, None, Ok((1, true))),
            (&alone, None, Ok((0, false))),
        ];
        for (pod, container, expected) in table {
            let expected = expected.map(|(container, by_default)| Picked { container, by_default });
            assert_eq!(pod.pick(container), expected.map_err(str::to_owned), "{container:?}");
        }
        assert_eq!(one.defaulted(1), "Defaulted container \"app\" out of: setup (init), app, proxy");
    }

    #[test]
    fn kinds_are_named_as_in_kubectl() {
        for (text, kind, name) in [
            ("web", "Pod", "web"),
            ("po/web", "Pod", "web"),
            ("deploy/web", "Deployment", "web"),
            ("deployments.apps/web", "Deployment", "web"),
            ("Deployment/web", "Deployment", "web"),
            ("sts/db", "StatefulSet", "db"),
            ("jobs/report", "Job", "report"),
            ("cj/nightly", "CronJob", "nightly"),
            ("run/k3v9x0aq", "Run", "k3v9x0aq"),
        ] {
            assert_eq!(text.parse(), Ok(Object { kind, name: name.to_owned() }), "{text}");
        }
        for (text, why) in [
            ("svc/web", "unknown kind \"svc\"; use one of po, deploy, rs, sts, ds, job, cj, run"),
            ("deploy/", "expected POD or KIND/NAME, for example deploy/web"),
            ("a/b/c", "unknown kind \"a\"; use one of po, deploy, rs, sts, ds, job, cj, run"),
        ] {
            assert_eq!(text.parse::<Object>(), Err(why.to_owned()), "{text}");
        }
        let mut of_job = pod(&[]);
        of_job.owners = vec!["Job/report".to_owned()];
        assert!("job/report".parse::<Object>().unwrap().has(&of_job));
        assert!(!"job/p".parse::<Object>().unwrap().has(&of_job));
        assert!("p".parse::<Object>().unwrap().has(&of_job));
    }
}
