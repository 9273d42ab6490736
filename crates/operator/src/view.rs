//! The parts of a pod that the operator keeps in memory for its decisions.
//!
//! Few pods of a cluster use a feature of the operator. [`ObservedPod::of_served`] is `None` for all others.
//! An [`ObservedPod`] keeps the plan and the relevant parts of the status, not the whole object.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use outrigger_lifecycle::{
    Dialect, FeatureGates, List, Observation, Plan, PodInput, TerminatorMarks, Time, add_levels, observe,
    plan, rules,
};

use crate::key::{self, Opens};
use crate::names;

/// The parts of one pod that decisions need.
#[derive(Debug, Clone)]
pub struct ObservedPod {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The uid of the pod.
    pub uid: String,
    /// The node it is on, once it is scheduled.
    pub node: Option<String>,
    /// Its resource version in the API server.
    pub version: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its phase. Empty if there is none yet.
    pub phase: String,
    /// When the kubelet accepted it.
    pub started: Option<Time>,
    /// Its grace period in seconds.
    pub grace_seconds: i64,
    /// Its plan, which has gates, roles and restart policies.
    pub plan: Plan,
    /// Its status, in the order of the plan's containers.
    pub observation: Observation,
    /// Further fields from the cluster, in the order of the plan's containers.
    pub containers: Vec<ContainerView>,
    /// Whether all keys of its barrier are published.
    pub completed: bool,
    /// The time after which a launch without progress is reported.
    pub launch_timeout_ms: Option<u64>,
    /// Whether the exit codes of stopped sidecars count.
    pub sidecars_count: bool,
    /// The launch condition: whether it is true, and its message.
    pub launched: Option<(bool, String)>,
    /// Whether the operator has stopped its sidecars.
    pub sidecars_terminated: bool,
    /// The message of the readiness condition, if the pod has the gate [`names::POD_READY`].
    pub ready_gate: Option<String>,
    /// Whether it has that gate and the condition is not set yet.
    pub ready_unset: bool,
    /// Why the pod could not be planned as written.
    pub problem: Option<String>,
}

/// Fields of a container that the plan and the observation do not have.
#[derive(Debug, Clone, Default)]
pub struct ContainerView {
    /// The barrier its start waits for.
    pub barrier: Option<Barrier>,
    /// Its marks for the sidecar terminator.
    pub marks: TerminatorMarks,
    /// Its image.
    pub image: String,
    /// Whether the status has an entry for it.
    pub reported: bool,
    /// The runtime's id of its newest instance.
    pub id: Option<String>,
    /// How often it was restarted.
    pub restarts: i32,
    /// Whether it is ready.
    pub ready: bool,
    /// Why it waits: the kubelet's reason and message.
    pub waiting: Option<(String, String)>,
}

/// The key a container's start waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barrier {
    /// The name of the ConfigMap.
    pub map: String,
    /// The key, as written in the pod.
    pub key: String,
    /// When it is published.
    pub opens: Opens,
}

/// The waiting reason of a container whose barrier is closed (LP-13).
const REFUSED: &str = "CreateContainerConfigError";

impl ContainerView {
    /// Whether the kubelet has refused to start it, perhaps because its key is missing.
    pub fn is_refused(&self) -> bool {
        self.waiting.as_ref().is_some_and(|(reason, _)| reason == REFUSED)
    }

    /// Whether the kubelet is starting it: it gives no reason why the container waits.
    pub fn is_being_started(&self) -> bool {
        self.waiting
            .as_ref()
            .is_some_and(|(reason, _)| matches!(reason.as_str(), "PodInitializing" | "ContainerCreating"))
    }

    /// Whether it was refused because the key of its barrier was missing. Other things can be missing as
    /// well.
    pub fn is_refused_for_key(&self) -> bool {
        let Some((_, message)) = self.waiting.as_ref().filter(|_| self.is_refused()) else { return false };
        // "couldn't find key p_1 in ConfigMap ns/name", "configmap \"name\" not found"
        self.barrier.as_ref().is_some_and(|b| {
            message.contains(&format!("couldn't find key {} in", b.key))
                || message.contains(&format!("\"{}\" not found", b.map))
        })
    }
}

impl ObservedPod {
    /// The view of a pod. `None` if it uses no feature of the operator.
    pub fn of_served(pod: &Pod, now: Time) -> Option<ObservedPod> {
        is_served(pod).then(|| ObservedPod::always(pod, now)).flatten()
    }

    /// The view of any pod. `None` only if it has no spec.
    pub fn always(pod: &Pod, now: Time) -> Option<ObservedPod> {
        let spec = pod.spec.as_ref()?;
        let empty = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&empty);
        let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name).map(String::as_str);
        let (mut plan, problem) = plan_of(pod)?;
        let containers: Vec<ContainerView> = plan
            .containers
            .iter()
            .map(|c| {
                let (written, statuses) = match c.place.list {
                    List::Init => {
                        (spec.init_containers.as_ref()?.get(c.place.index), &status.init_container_statuses)
                    }
                    List::Main => (spec.containers.get(c.place.index), &status.container_statuses),
                    List::Ephemeral => (None, &None),
                };
                let status = statuses.iter().flatten().find(|s| s.name == c.name);
                Some(container_view(written, status))
            })
            .map(Option::unwrap_or_default)
            .collect();
        add_levels_of_keys(&mut plan, &containers);
        let observation = observe(&plan, status, now);
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|c| c.type_ == kind);
        let has_gate = spec.readiness_gates.iter().flatten().any(|g| g.condition_type == names::POD_READY);
        Some(ObservedPod {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            version: pod.metadata.resource_version.clone().unwrap_or_default(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            phase: status.phase.clone().unwrap_or_default(),
            started: status.start_time.as_ref().map(|_| observation.since),
            grace_seconds: spec.termination_grace_period_seconds.unwrap_or(30),
            containers,
            completed: annotation(names::COMPLETED) == Some("true"),
            launch_timeout_ms: annotation(names::LAUNCH_TIMEOUT).and_then(outrigger_text::duration_ms),
            sidecars_count: annotation(names::SIDECAR_PHASE) == Some("Count"),
            launched: condition(names::LAUNCHED)
                .map(|c| (c.status == "True", c.message.clone().unwrap_or_default())),
            sidecars_terminated: condition(names::SIDECAR_TERMINATED).is_some(),
            ready_gate: has_gate
                .then(|| condition(names::POD_READY).and_then(|c| c.message.clone()).unwrap_or_default()),
            ready_unset: has_gate && condition(names::POD_READY).is_none(),
            problem,
            observation,
            plan,
        })
    }

    /// The key of the pod in the queue, as `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether it has a final result.
    pub fn is_over(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether all mains have ended for good (ST-6, ST-7). False if there are none (ST-9).
    pub fn mains_are_done(&self) -> bool {
        rules::all_keepers(&self.plan, &self.observation, |p, c| rules::final_exit(p, c).is_some())
    }

    /// The containers with a barrier, by index.
    pub fn barriers(&self) -> impl Iterator<Item = (usize, &Barrier)> {
        self.containers.iter().enumerate().filter_map(|(i, c)| Some((i, c.barrier.as_ref()?)))
    }

    /// The level of a container, if it has one.
    pub fn level(&self, container: usize) -> Option<i64> {
        match self.containers[container].barrier.as_ref()?.opens {
            Opens::Level(level) => Some(level),
            Opens::Gates => None,
        }
    }
}

/// Whether a pod uses a feature of the operator: a barrier, the sidecar terminator, or its readiness gate.
fn is_served(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ends = matches!(spec.restart_policy.as_deref(), Some("Never" | "OnFailure"));
    let has_gate = spec.readiness_gates.iter().flatten().any(|g| g.condition_type == names::POD_READY);
    has_gate
        || all.into_iter().any(|c| barrier_of(c).is_some())
        || (ends && spec.containers.iter().any(|c| TerminatorMarks::of_container(c).is_sidecar()))
}

/// The barrier of a container: the first env of that name that refers to a key (LP-19). It never panics. An
/// env without a reference, or with a key that is too short, is not a barrier (LP-U-35, LP-U-39).
fn barrier_of(container: &Container) -> Option<Barrier> {
    let env = container.env.as_deref()?.iter().filter(|e| names::BARRIER_ENVS.contains(&e.name.as_str()));
    env.filter_map(|e| {
        let reference = e.value_from.as_ref()?.config_map_key_ref.as_ref()?;
        let opens = key::read(&reference.key, &container.name)?;
        Some(Barrier { map: reference.name.clone(), key: reference.key.clone(), opens })
    })
    .next()
}

fn container_view(written: Option<&Container>, status: Option<&ContainerStatus>) -> ContainerView {
    let waiting = status.and_then(|s| s.state.as_ref()).and_then(|s| s.waiting.as_ref());
    ContainerView {
        barrier: written.and_then(barrier_of),
        marks: written.map(TerminatorMarks::of_container).unwrap_or_default(),
        image: written.and_then(|c| c.image.clone()).unwrap_or_default(),
        reported: status.is_some(),
        id: status.and_then(|s| s.container_id.clone()).filter(|id| !id.is_empty()),
        restarts: status.map_or(0, |s| s.restart_count),
        ready: status.is_some_and(|s| s.ready),
        waiting: waiting
            .map(|w| (w.reason.clone().unwrap_or_default(), w.message.clone().unwrap_or_default())),
    }
}

/// The plan of a live pod. Levels come from its barrier keys, so the priority envs are left out unless gate
/// keys cover both. If this pod cannot be planned, it is planned without its annotations and envs, and the
/// reason is returned.
fn plan_of(pod: &Pod) -> Option<(Plan, Option<String>)> {
    let mut copy = Pod { metadata: pod.metadata.clone(), spec: pod.spec.clone(), status: None };
    copy.metadata.managed_fields = None;
    // The webhook has already made the named containers native sidecars, or they are not native sidecars. A
    // timeout that cannot be read is ignored.
    for name in [names::SIDECARS, names::LAUNCH_TIMEOUT] {
        copy.metadata.annotations.as_mut().and_then(|annotations| annotations.remove(name));
    }
    let all = || pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    if !all().filter_map(barrier_of).any(|b| b.opens == Opens::Gates) {
        drop_priorities(&mut copy);
    }
    keep_policies(&mut copy);
    let mut input = PodInput { pod: copy, lifecycle_types: Default::default() };
    let gates = FeatureGates::default();
    let findings = match plan(&input, &gates) {
        Ok(planned) => return Some((planned.plan, None)),
        Err(findings) => findings,
    };
    let problem = findings.first().map(|f| format!("{}: {}", f.path, f.message));
    input.pod.metadata.annotations = None;
    for c in input.pod.spec.iter_mut().flat_map(|s| s.containers.iter_mut()) {
        c.env = None;
    }
    plan(&input, &gates).ok().map(|planned| (planned.plan, problem))
}

/// Writes the pod's policy Never into containers that have none of their own, as the kubelet applies it.
/// Otherwise the plan would restart marked sidecars to which the webhook could not give a policy.
fn keep_policies(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut().filter(|s| s.restart_policy.as_deref() == Some("Never")) else {
        return;
    };
    for c in &mut spec.containers {
        c.restart_policy.get_or_insert_with(|| "Never".to_owned());
    }
}

fn drop_priorities(pod: &mut Pod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(names::ORDERED);
    }
    if let Some(spec) = &mut pod.spec {
        let inits = spec.init_containers.iter_mut().flatten();
        for env in spec.containers.iter_mut().chain(inits).filter_map(|c| c.env.as_mut()) {
            env.retain(|e| !names::PRIORITY_ENVS.contains(&e.name.as_str()));
        }
    }
}

/// Adds the gates of levels, which come from the barrier keys (LP-18). Containers without a barrier have no
/// level.
fn add_levels_of_keys(plan: &mut Plan, containers: &[ContainerView]) {
    let level = |(i, c): (usize, &ContainerView)| match c.barrier.as_ref()?.opens {
        Opens::Level(level) if plan.containers[i].place.list == List::Main => Some((i, level)),
        _ => None,
    };
    let levels: Vec<(usize, i64)> = containers.iter().enumerate().filter_map(level).collect();
    add_levels(plan, &levels);
}

/// Whether a barrier enforces the gate. The kubelet enforces all others.
pub(crate) fn is_served_gate(dialect: Option<Dialect>) -> bool {
    matches!(dialect, Some(Dialect::Priority | Dialect::DependsOn))
}
