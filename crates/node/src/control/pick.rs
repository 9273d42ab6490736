//! Selects pods by name, workload or label.

use outrigger_manifest::nearest;

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
    /// Their run, if restricted.
    pub run: Option<RunName>,
}

/// How a run is named, as `ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunName {
    /// By its process: a run in the foreground, or everything that a node runs.
    Process(u32),
    /// By its id: a run of a node.
    Id(String),
}

/// A text that is not the name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a process ID, or the id of a run of a node; `outrigger ps` shows both")]
pub struct RunNameError;

impl std::str::FromStr for RunName {
    type Err = RunNameError;

    fn from_str(text: &str) -> Result<Self, RunNameError> {
        // Ids have eight characters, which may all be digits. No pid has that many digits.
        let is_id = text.len() == 8 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        match text.parse() {
            _ if is_id => Ok(RunName::Id(text.to_owned())),
            Ok(pid) => Ok(RunName::Process(pid)),
            Err(_) => Err(RunNameError),
        }
    }
}

impl std::fmt::Display for RunName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunName::Process(pid) => write!(f, "{pid}"),
            RunName::Id(id) => f.write_str(id),
        }
    }
}

impl RunName {
    /// Whether the name is this process.
    pub fn is_process(&self, pid: u32) -> bool {
        *self == RunName::Process(pid)
    }

    /// The id of a run of a node.
    pub fn id(&self) -> Option<&str> {
        match self {
            RunName::Process(_) => None,
            RunName::Id(id) => Some(id),
        }
    }

    /// Whether the run contains a pod.
    pub fn has(&self, run: &Run, pod: &PodState) -> bool {
        match self {
            RunName::Process(pid) => run.state.pid == *pid,
            RunName::Id(id) => pod.run.as_ref() == Some(id),
        }
    }

    /// The run of a pod.
    fn of_pod((run, pod): PodOfRun<'_>) -> RunName {
        pod.run.clone().map_or(RunName::Process(run.state.pid), RunName::Id)
    }
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
    /// The run, for `run/NAME`.
    run: Option<RunName>,
}

/// A kind of OpenKruise. It runs as a Deployment or, if its pods have claims, as a StatefulSet.
const CLONE_SET: &str = "CloneSet";

/// Kinds that have pods, and the aliases kubectl accepts.
const KINDS: [(&str, &[&str]); 9] = [
    ("Pod", &["po", "pod", "pods"]),
    ("Deployment", &["deploy", "deployment", "deployments"]),
    ("ReplicaSet", &["rs", "replicaset", "replicasets"]),
    ("StatefulSet", &["sts", "statefulset", "statefulsets", "asts"]),
    ("DaemonSet", &["ds", "daemonset", "daemonsets", "daemon"]),
    ("Job", &["job", "jobs"]),
    ("CronJob", &["cj", "cronjob", "cronjobs"]),
    (CLONE_SET, &["clone", "cloneset", "clonesets"]),
    (RUN, &["run", "runs"]),
];
const RUN: &str = "Run";

/// The shortest name of each kind.
fn known_kinds() -> String {
    KINDS.map(|(_, names)| names[0]).join(", ")
}

/// Why a text names neither a pod nor a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The kind is unknown.
    #[error("unknown kind {0:?}; use one of {known}", known = known_kinds())]
    Kind(String),
    /// The name is missing, or has too many parts.
    #[error("expected POD or KIND/NAME, for example deploy/web")]
    Syntax,
    /// The text after `run/` is not the name of a run.
    #[error(transparent)]
    Run(#[from] RunNameError),
}

impl std::str::FromStr for Object {
    type Err = ObjectError;

    fn from_str(text: &str) -> Result<Self, ObjectError> {
        let (kind, name) = match text.split_once('/') {
            None => ("Pod", text),
            Some((kind, name)) => {
                // `deployments.apps` and `jobs.v1.batch` contain the group, too.
                let written = kind.split('.').next().unwrap_or_default().to_ascii_lowercase();
                let known = KINDS.iter().find(|(_, names)| names.contains(&written.as_str()));
                let Some((kind, _)) = known else {
                    return Err(ObjectError::Kind(kind.to_owned()));
                };
                (*kind, name)
            }
        };
        if name.is_empty() || name.contains('/') {
            return Err(ObjectError::Syntax);
        }
        let run = (kind == RUN).then(|| name.parse::<RunName>()).transpose()?;
        Ok(Object { kind, name: name.to_owned(), run })
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

    /// The run it names, if any.
    pub fn run(&self) -> Option<&RunName> {
        self.run.as_ref()
    }

    fn has(&self, (run, pod): PodOfRun<'_>) -> bool {
        let is_owner = |kind: &&str| pod.owners.contains(&format!("{kind}/{}", self.name));
        match &self.run {
            // Owners do not count here, because the author of a manifest can set any owner.
            Some(name) => name.has(run, pod),
            None if self.is_workload() => self.runs_as().iter().any(is_owner),
            None => pod.name == self.name,
        }
    }

    /// The kinds of owners its pods can have.
    fn runs_as(&self) -> &[&'static str] {
        match self.kind {
            CLONE_SET => &["Deployment", "StatefulSet"],
            _ => std::slice::from_ref(&self.kind),
        }
    }
}

type PodOfRun<'a> = (&'a Run, &'a PodState);

/// Why a selection does not match exactly one object. The messages list the alternatives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// There is no such run.
    #[error("no run {run}{}", if runs.is_empty() { ": you have no active runs".to_owned() } else { format!("; your runs: {}", runs.join(", ")) })]
    NoRun {
        /// The run.
        run: RunName,
        /// The runs that exist.
        runs: Vec<String>,
    },
    /// There is no such pod or workload, and there are no active runs.
    #[error("{wanted}: you have no active runs")]
    NothingRuns {
        /// What was not found, such as `no pod "web"`.
        wanted: String,
    },
    /// There is no such pod or workload.
    #[error("{wanted}{}", alternatives(similar.as_deref(), running))]
    NotFound {
        /// What was not found, such as `no pod "web"`.
        wanted: String,
        /// The object that the user probably meant.
        similar: Option<String>,
        /// The pods or workloads that are running.
        running: Vec<String>,
    },
    /// Several runs have it.
    #[error("{object} is in several runs: {}; choose one with --run RUN", runs.join(", "))]
    SeveralRuns {
        /// The object, such as `pod "web"`.
        object: String,
        /// The runs.
        runs: Vec<String>,
    },
    /// Several namespaces have it.
    #[error("{object} is in namespaces {} and {}; choose one with --namespace", namespaces[0], namespaces[1])]
    SeveralNamespaces {
        /// The object, such as `pod "web"`.
        object: String,
        /// Two of the namespaces.
        namespaces: [String; 2],
    },
    /// The pod has no such container.
    #[error("pod {pod:?} has no container {container:?}; its containers: {}", all.join(", "))]
    NoContainer {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// The containers of the pod.
        all: Vec<String>,
    },
}

fn alternatives(similar: Option<&str>, running: &[String]) -> String {
    match (similar, running) {
        (None, []) => String::new(),
        (Some(similar), []) => format!("; did you mean {similar}?"),
        (None, _) => format!("; running: {}", running.join(", ")),
        (Some(similar), _) => format!("; did you mean {similar}? Running: {}", running.join(", ")),
    }
}

impl Found {
    /// The selected pods. Ended pods are selected only if no others match. Returns at least one pod,
    /// otherwise an error that lists the alternatives. All pods of one name or workload are in the same run
    /// and namespace. A run selects all its pods.
    pub fn pods(&self, which: &Which) -> Result<Vec<(&Run, &PodState)>, PickError> {
        let all = self.runs.iter().flat_map(|run| run.state.pods.iter().map(move |pod| (run, pod)));
        let is_in_run =
            |(run, pod): &PodOfRun<'_>| which.run.as_ref().is_none_or(|wanted| wanted.has(run, pod));
        let all: Vec<PodOfRun<'_>> = all.filter(is_in_run).collect();
        let in_namespace = |pod: &PodState| which.namespace.as_ref().is_none_or(|n| *n == pod.namespace);
        let is_meant = |found: PodOfRun<'_>| match &which.what {
            Named::Object(object) => object.has(found),
            Named::Labels(selector) => selector.matches(&found.1.labels),
        };
        let meant: Vec<_> =
            all.iter().copied().filter(|found| is_meant(*found) && in_namespace(found.1)).collect();
        let mut there: Vec<_> = meant.iter().copied().filter(|(_, pod)| !pod.over).collect();
        if there.is_empty() {
            // All of these have ended. A name refers to one run, so the last run is selected.
            let last = meant.last().map(|last| RunName::of_pod(*last));
            there = meant;
            if matches!(which.what, Named::Object(_)) {
                there.retain(|found| Some(RunName::of_pod(*found)) == last);
            }
        }
        match (&which.what, there.as_slice()) {
            (_, []) => Err(self.nothing(which, &all)),
            (Named::Labels(_), _) => Ok(there),
            (Named::Object(object), _) => unambiguous(object, there),
        }
    }

    /// The selected pod. For a workload, it is the first of its pods.
    pub fn pick(&self, which: &Which) -> Result<(&Run, &PodState), PickError> {
        let pods = self.pods(which)?;
        pods.first().copied().ok_or_else(|| self.nothing(which, &[]))
    }

    fn nothing(&self, which: &Which, all: &[PodOfRun<'_>]) -> PickError {
        let named = match &which.what {
            Named::Object(object) => object.run(),
            Named::Labels(_) => None,
        };
        let is_missing = |run: &&RunName| !all.iter().any(|(of, pod)| run.has(of, pod));
        if let Some(run) = which.run.as_ref().or(named).filter(is_missing) {
            let names = |run: &Run| -> Vec<String> {
                let mut names: Vec<String> =
                    run.state.pods.iter().filter_map(|pod| pod.run.clone()).collect();
                names.dedup();
                if names.is_empty() { vec![run.state.pid.to_string()] } else { names }
            };
            return PickError::NoRun { run: run.clone(), runs: self.runs.iter().flat_map(names).collect() };
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
        let similar = match &which.what {
            Named::Object(object) => object.similar(all),
            Named::Labels(_) => None,
        };
        match similar.is_none() && names.is_empty() && self.runs.is_empty() {
            true => PickError::NothingRuns { wanted },
            false => PickError::NotFound { wanted, similar, running: names },
        }
    }
}

impl Object {
    /// The pod or workload that the user probably meant, as the user would write it: one with the same name,
    /// or else with a similar name.
    fn similar(&self, all: &[PodOfRun<'_>]) -> Option<String> {
        let owners = all.iter().flat_map(|(_, pod)| pod.owners.iter());
        let mut candidates: Vec<(&str, String)> = owners.filter_map(|owner| written(owner)).collect();
        candidates.extend(all.iter().map(|(_, pod)| (pod.name.as_str(), pod.name.clone())));
        let names: Vec<&str> = candidates.iter().map(|(name, _)| *name).collect();
        let near = nearest(&self.name, &names)?;
        candidates.iter().find(|(name, _)| *name == near).map(|(_, written)| written.clone())
    }
}

/// The name of a workload, and the shortest way to write the workload: `Deployment/web` is `deploy/web`.
fn written(owner: &str) -> Option<(&str, String)> {
    let (kind, name) = owner.split_once('/')?;
    let (_, aliases) = KINDS.iter().find(|(known, _)| *known == kind)?;
    Some((name, format!("{}/{name}", aliases[0])))
}

/// The pods of one name or workload. Returns an error if several runs or namespaces have it.
fn unambiguous<'a>(object: &Object, there: Vec<PodOfRun<'a>>) -> Result<Vec<PodOfRun<'a>>, PickError> {
    let Some((first, one)) = there.first().copied() else { return Ok(there) };
    if object.run.is_some() {
        return Ok(there);
    }
    let shown = || match object.is_workload() {
        true => format!("{}/{}", object.kind, object.name),
        false => format!("pod {:?}", object.name),
    };
    if there.iter().any(|found| RunName::of_pod(*found) != RunName::of_pod((first, one))) {
        let name = |found: &PodOfRun<'_>| {
            let (run, pod) = found;
            let files = if pod.files.is_empty() { &run.state.files } else { &pod.files };
            format!("{} ({})", RunName::of_pod(*found), files.join(" "))
        };
        let mut runs: Vec<String> = there.iter().map(name).collect();
        runs.dedup();
        return Err(PickError::SeveralRuns { object: shown(), runs });
    }
    if let Some((_, other)) = there.iter().find(|(_, pod)| pod.namespace != one.namespace) {
        let namespaces = [one.namespace.clone(), other.namespace.clone()];
        return Err(PickError::SeveralNamespaces { object: shown(), namespaces });
    }
    // A pod may still be stopping when its successor exists. The newest is selected.
    let only = (!object.is_workload()).then(|| there.last().copied()).flatten();
    Ok(only.map_or(there, |newest| vec![newest]))
}

/// The selected container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// Its index in the pod.
    pub container: usize,
    /// Whether no container was named. This is then the first main of a pod with several containers, and the
    /// command should say so.
    pub by_default: bool,
}

impl PodState {
    /// Selects a container: the named one, else that of the annotation
    /// `kubectl.kubernetes.io/default-container`, else the first main. The error lists the containers.
    pub fn pick(&self, container: Option<&str>) -> Result<Picked, PickError> {
        let place = |name: &str| self.containers.iter().position(|c| c.name == name);
        let picked = |container, by_default| Ok(Picked { container, by_default });
        if let Some(name) = container {
            return match place(name) {
                Some(at) => picked(at, false),
                None => Err(PickError::NoContainer {
                    pod: self.name.clone(),
                    container: name.to_owned(),
                    all: self.containers.iter().map(|c| c.name.clone()).collect(),
                }),
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
    use crate::control::{ContainerState, RunState};

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
            let picked = pod.pick(container).map_err(|e| e.to_string());
            assert_eq!(picked, expected.map_err(str::to_owned), "{container:?}");
        }
        assert_eq!(one.defaulted(1), "Defaulted container \"app\" out of: setup (init), app, proxy");
    }

    /// Pods of a node with the process ID 7: `(name, workload, run, over)`.
    fn found(pods: &[(&str, &str, &str, bool)]) -> Found {
        let pod = |(number, (name, workload, run, over)): (usize, &(&str, &str, &str, bool))| PodState {
            number,
            name: (*name).to_owned(),
            namespace: "default".to_owned(),
            workload: Some((*workload).to_owned()).filter(|w| !w.is_empty()),
            owners: vec![(*workload).to_owned(), format!("Run/{run}")],
            run: Some((*run).to_owned()),
            files: vec![format!("{run}.yaml")],
            over: *over,
            ..PodState::default()
        };
        let state = RunState {
            pid: 7,
            id: "node".to_owned(),
            files: Vec::new(),
            node: Some("/state".into()),
            state_dir: "/state".into(),
            pods: pods.iter().enumerate().map(pod).collect(),
        };
        Found { runs: vec![Run::without_socket(state)], silent: Vec::new() }
    }

    fn which(object: &str, run: Option<&str>) -> Which {
        let run = run.map(|run| run.parse().unwrap());
        Which { what: Named::Object(object.parse().unwrap()), namespace: None, run }
    }

    #[test]
    fn pods_of_different_runs_are_never_mixed_and_each_run_can_be_named() {
        let (a, b) = ("aaaaaaaa", "bbbbbbbb");
        let ended = found(&[
            ("report-1", "Job/report", a, true),
            ("db-0", "StatefulSet/db", a, true),
            ("report-2", "Job/report", b, true),
            ("report-3", "Job/report", b, true),
            ("db-0", "StatefulSet/db", b, true),
        ]);
        let live = found(&[("db-0", "StatefulSet/db", a, false), ("db-0", "StatefulSet/db", b, false)]);
        type Row<'r> = (&'r Found, &'r str, Option<&'r str>, Result<&'r [usize], &'r str>);
        let table: [Row<'_>; 13] = [
            // A run by its id, or all runs of one process.
            (&live, "run/aaaaaaaa", None, Ok(&[0])),
            (&live, "run/7", None, Ok(&[0, 1])),
            (&live, "run/7", Some(b), Ok(&[1])),
            (&live, "run/8", None, Err("no run 8; your runs: aaaaaaaa, bbbbbbbb")),
            (&live, "run/cccccccc", None, Err("no run cccccccc; your runs: aaaaaaaa, bbbbbbbb")),
            // Of ended objects, the last run is selected.
            (&ended, "job/report", None, Ok(&[2, 3])),
            (&ended, "job/report", Some(a), Ok(&[0])),
            (&ended, "db-0", None, Ok(&[4])),
            (&ended, "db-0", Some(a), Ok(&[1])),
            (&ended, "job/report", Some("7"), Ok(&[2, 3])),
            (&ended, "job/report", Some("cccccccc"), Err("no run cccccccc; your runs: aaaaaaaa, bbbbbbbb")),
            // A running object must be unambiguous.
            (&live, "db-0", Some(b), Ok(&[1])),
            (
                &live,
                "db-0",
                None,
                Err(
                    "pod \"db-0\" is in several runs: aaaaaaaa (aaaaaaaa.yaml), bbbbbbbb (bbbbbbbb.yaml); choose one \
                     with --run RUN",
                ),
            ),
        ];
        for (found, object, run, expected) in table {
            let pods = found.pods(&which(object, run));
            let numbers = pods.map(|pods| pods.iter().map(|(_, pod)| pod.number).collect::<Vec<_>>());
            let numbers = numbers.map_err(|e| e.to_string());
            assert_eq!(numbers, expected.map(<[usize]>::to_vec).map_err(str::to_owned), "{object} {run:?}");
        }
    }

    #[test]
    fn a_name_that_does_not_exist_gets_a_proposal() {
        let found = found(&[
            ("web-7d4b9-x7k2p", "Deployment/web", "aaaaaaaa", false),
            ("report-1", "Job/report", "aaaaaaaa", true),
        ]);
        for (object, expected) in [
            ("web", "no pod \"web\"; did you mean deploy/web? Running: web-7d4b9-x7k2p"),
            ("job/web", "no pods of Job/web; did you mean deploy/web? Running: Deployment/web"),
            ("deploy/wbe", "no pods of Deployment/wbe; did you mean deploy/web? Running: Deployment/web"),
            ("report", "no pod \"report\"; did you mean job/report? Running: web-7d4b9-x7k2p"),
            (
                "web-7d4b9-x7k2",
                "no pod \"web-7d4b9-x7k2\"; did you mean web-7d4b9-x7k2p? Running: web-7d4b9-x7k2p",
            ),
            ("other", "no pod \"other\"; running: web-7d4b9-x7k2p"),
        ] {
            assert_eq!(found.pods(&which(object, None)).unwrap_err().to_string(), expected, "{object}");
        }
    }

    #[test]
    fn a_run_is_named_by_its_process_or_its_id() {
        for (text, expected) in [
            ("4711", Ok(RunName::Process(4_711))),
            ("k3v9x0aq", Ok(RunName::Id("k3v9x0aq".to_owned()))),
            ("01234567", Ok(RunName::Id("01234567".to_owned()))),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
        assert!("web.yaml".parse::<RunName>().is_err());
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
            ("cloneset/web", "CloneSet", "web"),
            ("clonesets.apps.kruise.io/web", "CloneSet", "web"),
            ("statefulsets.apps.kruise.io/db", "StatefulSet", "db"),
            ("asts/db", "StatefulSet", "db"),
            ("run/k3v9x0aq", "Run", "k3v9x0aq"),
        ] {
            let object: Object = text.parse().unwrap();
            assert_eq!((object.kind, &*object.name), (kind, name), "{text}");
        }
        for (text, why) in [
            ("svc/web", "unknown kind \"svc\"; use one of po, deploy, rs, sts, ds, job, cj, clone, run"),
            ("deploy/", "expected POD or KIND/NAME, for example deploy/web"),
            ("run/web", "expected a process ID, or the id of a run of a node; `outrigger ps` shows both"),
            ("a/b/c", "unknown kind \"a\"; use one of po, deploy, rs, sts, ds, job, cj, clone, run"),
        ] {
            assert_eq!(text.parse::<Object>().unwrap_err().to_string(), why, "{text}");
        }
        let mut of_job = pod(&[]);
        // The author of the manifest sets the owners, so they must not select a run.
        of_job.owners = vec!["Job/report".to_owned(), "Run/k3v9x0aq".to_owned()];
        let node = found(&[]);
        let run = &node.runs[0];
        for (text, expected) in
            [("job/report", true), ("job/p", false), ("p", true), ("run/7", true), ("run/k3v9x0aq", false)]
        {
            assert_eq!(text.parse::<Object>().unwrap().has((run, &of_job)), expected, "{text}");
        }
        // A CloneSet runs as one of these.
        for owner in ["Deployment/web", "StatefulSet/web"] {
            let mut of_clone_set = pod(&[]);
            of_clone_set.owners = vec![owner.to_owned()];
            assert!("cloneset/web".parse::<Object>().unwrap().has((run, &of_clone_set)), "{owner}");
            assert!(!"cloneset/db".parse::<Object>().unwrap().has((run, &of_clone_set)), "{owner}");
        }
    }
}
