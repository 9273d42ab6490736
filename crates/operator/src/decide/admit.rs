//! Changes to a pod that is being created (LP-1 to LP-12, KD8, KD12).
//!
//! Pods that use none of the features are not changed. They are not even sent here, because the webhook's
//! match conditions filter them out. A pod that asks for something impossible is refused with a clear
//! message, never with an internal error.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use outrigger_lifecycle::annotations::{self, InCluster, Place};
use outrigger_lifecycle::{
    ContainerRef, Dialect, FeatureGates, FieldPath, Finding, List, Plan, Planned, PodInput, RestartPolicy,
    Role, Segment, Severity, TerminatorMarks, launch_priority, plan, stop_numbers, validate_kruise,
    validate_plan,
};
use serde_json::{Value, json};

use super::{Refusal, native};
use crate::key::{gate_key, level_key, proposed_level_key};
use crate::names;
use crate::view::is_served_gate;

/// The number of letters and digits that make the name of a ConfigMap unique to one pod.
pub const SUFFIX_LEN: usize = 10;
/// The longest name of a ConfigMap.
const NAME_MAX: usize = 253;

/// A pod that may be created.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// The pod, with the changes of the webhook.
    pub pod: Value,
    /// Warnings for its author.
    pub warnings: Vec<String>,
}

/// How containers of several launch priorities are started in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Launch {
    /// By a barrier. The containers stay in `spec.containers`.
    #[default]
    Barrier,
    /// Containers with a higher priority than others become native sidecars, which the kubelet itself starts
    /// first. A barrier is used where their restart policies or probes do not allow this.
    Native,
}

/// Handles a pod that is being created. `suffix` is [`SUFFIX_LEN`] random lower-case letters and digits.
///
/// It plans the pod once. If containers may become native sidecars, it plans twice. The first plan says which
/// containers move and in which order. The second is the plan of the pod that the API server stores, and its
/// barrier keys must fit that pod.
///
/// # Errors
/// 422 and a message if the pod asks for something impossible.
pub fn admit(object: &Value, suffix: &str, launch: Launch) -> Result<Admitted, Refusal> {
    let mut admitted = Admitted { pod: object.clone(), warnings: Vec::new() };
    let pod = typed(object)?;
    check_mains(&pod)?;
    let (pod, planned) = match annotation(&pod, names::SIDECARS).map(str::to_owned) {
        Some(sidecars) => {
            native::named(&pod, &sidecars, &mut admitted)?;
            typed_and_planned(&admitted.pod)?
        }
        None => {
            let planned = plan_of(&pod);
            if launch == Launch::Native {
                native::higher_levels(&pod, planned.as_ref().ok(), &mut admitted);
            }
            // The plan is still valid, unless containers were moved.
            if admitted.pod == *object { (pod, planned) } else { typed_and_planned(&admitted.pod)? }
        }
    };
    // Findings must name a container by the place where its author wrote it.
    let as_written = |finding: Finding| as_written(finding, &admitted.pod, object);
    let as_written = |findings: Vec<Finding>| findings.into_iter().map(as_written).collect::<Vec<_>>();
    let mut planned = planned.map_err(|findings| refuse(&as_written(findings)))?;
    planned.warnings = as_written(planned.warnings);
    let of_kruise = as_written(of_kruise(&pod, &["LP-3", "LP-7"]));
    // The other webhook reports options of pods that have such sidecars.
    let is_told = |finding: &&Finding| finding.code == "option" && sidecars(&pod).next().is_some();
    // Priorities without effect may have ordered native sidecars, in this call or an earlier one.
    let has_native = planned.plan.containers.iter().any(|c| c.dialect == Some(Dialect::Native));
    let was_used = |finding: &&Finding| has_native && finding.code.starts_with("LP-");
    let findings = planned.warnings.iter().filter(|finding| !is_told(finding)).chain(&of_kruise);
    // The other webhook reports it.
    let findings = findings.filter(|finding| !was_used(finding) && finding.code != ON_INIT_CONTAINER);
    admitted.warnings.extend(findings.map(sentence));
    check_ending(&pod, &planned.plan)?;
    admitted.warnings.extend(unserved(&pod, &planned.plan));
    if sidecars(&pod).next().is_none() {
        admitted.warnings.extend(unserved_options(&pod));
    }
    // Values that the author wrote under these names are dropped (LP-10), because the pod may be a copy of a
    // live one.
    let foreign = drop_foreign(&mut admitted.pod, &pod);
    let keys = keys(&pod, &planned.plan)?;
    if keys.is_empty() {
        if foreign {
            admitted
                .warnings
                .push("the barrier envs of this pod were removed: nothing asks for them".to_owned());
        }
        return Ok(admitted);
    }
    let env = match uses_proposed_names(&pod) {
        true => names::BARRIER_ENVS[1],
        false => names::BARRIER_ENVS[0],
    };
    let map = map_name(&pod, suffix);
    for (place, key) in keys {
        let entry = json!({"name": env, "valueFrom": {"configMapKeyRef": {"name": map, "key": key}}});
        let container = &mut admitted.pod["spec"][place.list.field()][place.index];
        match container.get_mut("env").and_then(Value::as_array_mut) {
            Some(list) => list.push(entry),
            None => container["env"] = json!([entry]),
        }
    }
    Ok(admitted)
}

/// The codes of findings about Outrigger's annotations and limits. Only this webhook checks those.
const OPTIONS: [&str; 4] = ["limit", "option", "sidecar-grace", "stop-grace"];

/// Handles a pod with sidecars that end with its mains. If the pod has restartPolicy Never, sidecars get a
/// restart policy of their own, so that they restart when they crash. Otherwise the kubelet fails the pod as
/// soon as its mains are done (KD5). `own_policies` says whether the API server accepts such a policy.
///
/// # Errors
/// 422 and a message if the pod asks for something impossible.
pub fn job_sidecars(
    object: &Value,
    own_policies: OwnRestartPolicies,
    launch: Launch,
) -> Result<Admitted, Refusal> {
    let mut admitted = Admitted { pod: object.clone(), warnings: Vec::new() };
    let pod = typed(object)?;
    check_mains(&pod)?;
    let input = PodInput { pod, lifecycle_types: Default::default() };
    let planned = match planned(&input) {
        Ok(planned) => planned,
        // The other webhook reports everything else that is wrong with the pod.
        Err(mut findings) => {
            findings.retain(|finding| OPTIONS.contains(&finding.code));
            return if findings.is_empty() { Ok(admitted) } else { Err(refuse(&findings)) };
        }
    };
    let pod_policy = planned.plan.restart_policy;
    let counts = annotation(&input.pod, names::SIDECAR_PHASE) == Some("Count");
    let is_ours = |finding: &&Finding| {
        finding.code.starts_with("ST-") || matches!(finding.code, "option" | ON_INIT_CONTAINER)
    };
    // A native sidecar may be a container that its author wrote in `spec.containers`.
    let may_be_moved = launch == Launch::Native || annotation(&input.pod, names::SIDECARS).is_some();
    let is_as_written = |finding: &&Finding| !may_be_moved || !is_about_native_sidecar(finding, object);
    let of_kruise = of_kruise(&input.pod, &["ST-1"]);
    let findings = planned.warnings.iter().filter(is_ours).chain(&of_kruise).filter(is_as_written);
    admitted.warnings.extend(findings.map(sentence));
    admitted.warnings.extend(unserved_options(&input.pod));
    if counts && pod_policy == RestartPolicy::OnFailure {
        let text = format!(
            "annotation {}: Count has no effect in a cluster with restartPolicy OnFailure: the kubelet restarts a sidecar that fails",
            names::SIDECAR_PHASE
        );
        admitted.warnings.push(text);
    }
    if own_policies == OwnRestartPolicies::Refused {
        return Ok(admitted);
    }
    for (index, _) in sidecars(&input.pod).filter(|(_, c)| c.restart_policy.is_none()) {
        let place = ContainerRef { list: List::Main, index };
        let planned = planned.plan.containers.iter().find(|c| c.place == place);
        let policy = planned.map(|c| c.restart.policy);
        if policy == Some(RestartPolicy::OnFailure) && policy != Some(pod_policy) {
            admitted.pod["spec"]["containers"][index]["restartPolicy"] = json!("OnFailure");
        }
    }
    Ok(admitted)
}

/// The finding about a launch priority of an init container.
const ON_INIT_CONTAINER: &str = "LP-8";

fn is_about_native_sidecar(finding: &Finding, pod: &Value) -> bool {
    let [Segment::Field(_), Segment::Field(list), Segment::Index(index), ..] = finding.path.0.as_slice()
    else {
        return false;
    };
    list == List::Init.field() && pod["spec"][list.as_ref()][*index]["restartPolicy"] == "Always"
}

/// Adds the readiness gate whose condition the operator sets, as OpenKruise does with its feature gate
/// `KruisePodReadinessGate`. Container recreate requests can then make the pod unready (CRR-23).
pub fn readiness_gate(object: &Value) -> Admitted {
    let mut admitted = Admitted { pod: object.clone(), warnings: Vec::new() };
    let gate = json!({"conditionType": names::POD_READY});
    match admitted.pod["spec"].get_mut("readinessGates").and_then(Value::as_array_mut) {
        Some(gates) if gates.iter().any(|held| held["conditionType"] == names::POD_READY) => {}
        Some(gates) => gates.push(gate),
        None => admitted.pod["spec"]["readinessGates"] = json!([gate]),
    }
    admitted
}

/// Findings about Kruise's envs with one of these codes.
fn of_kruise(pod: &Pod, codes: &[&str]) -> Vec<Finding> {
    let input = PodInput { pod: pod.clone(), lifecycle_types: Default::default() };
    let mut findings = validate_kruise(&input);
    findings.retain(|finding| codes.contains(&finding.code));
    findings
}

/// Warnings about annotations of the pod that have no effect in a cluster.
fn unserved_options(pod: &Pod) -> Vec<String> {
    let is_marked = |name: &str| sidecars(pod).any(|(_, c)| c.name == name);
    let has_marked = sidecars(pod).next().is_some();
    let mut warnings = Vec::new();
    for row in annotations::TABLE.iter().filter(|row| row.place == Place::Pod) {
        let Some(value) = annotation(pod, row.name) else { continue };
        let on = match row.in_cluster {
            InCluster::NoEffect => String::new(),
            InCluster::MarkedSidecars if !has_marked => {
                " on containers that are not marked with KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT".to_owned()
            }
            InCluster::MarkedSidecars if row.name == names::STOP_GRACE => {
                let parts = value.split(',').filter_map(|part| part.split_once('='));
                let others: Vec<&str> =
                    parts.map(|(name, _)| name.trim()).filter(|name| !is_marked(name)).collect();
                if others.is_empty() {
                    continue;
                }
                format!(" on {}", others.join(", "))
            }
            InCluster::MarkedSidecars | InCluster::Served(_) => continue,
        };
        warnings.push(format!("annotation {} has no effect in a cluster{on}", row.name));
    }
    warnings
}

/// The marked containers of a pod.
fn sidecars(pod: &Pod) -> impl Iterator<Item = (usize, &Container)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).enumerate();
    containers.filter(|(_, c)| TerminatorMarks::of_container(c).is_sidecar())
}

/// ST-9: refuses a pod whose containers all end with its mains. It has no main, so it would never end.
fn check_mains(pod: &Pod) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let ends = matches!(spec.restart_policy.as_deref(), Some("Never" | "OnFailure"));
    if !ends || spec.containers.is_empty() || sidecars(pod).count() < spec.containers.len() {
        return Ok(());
    }
    Err(Refusal::new(
        422,
        "every container is a sidecar that ends with the mains, and there is no main; remove KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT from one",
    ))
}

/// Whether the API server accepts restart policies of single containers that are not native sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnRestartPolicies {
    /// The API server stores them or drops them.
    Taken,
    /// The API server may refuse a pod that has them.
    Refused,
}

impl OwnRestartPolicies {
    /// Decides by the minor version of Kubernetes 1. Version 1.34 drops such policies by default, and 1.33
    /// refuses them. During an update of a cluster, API servers of two versions answer.
    pub fn of_minor(minor: u32) -> Self {
        if minor >= 35 { OwnRestartPolicies::Taken } else { OwnRestartPolicies::Refused }
    }
}

fn typed(object: &Value) -> Result<Pod, Refusal> {
    serde_json::from_value(object.clone())
        .map_err(|error| Refusal::new(422, format!("the pod cannot be read: {error}")))
}

pub(super) fn annotation<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Writes a finding as one sentence.
pub(super) fn sentence(finding: &Finding) -> String {
    let hint = finding.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
    let related: String = finding.related.iter().map(|(path, label)| format!("; {path}: {label}")).collect();
    format!("{}: {}{related}{hint}", finding.path, finding.message)
}

pub(super) fn refuse(findings: &[Finding]) -> Refusal {
    let errors = findings.iter().filter(|f| f.severity == Severity::Error);
    Refusal::new(422, errors.map(sentence).collect::<Vec<_>>().join("; "))
}

/// The same finding, with the place that the container had before it was moved.
fn as_written(mut finding: Finding, moved: &Value, written: &Value) -> Finding {
    let place_of = |name: &Value| {
        [List::Init, List::Main].into_iter().find_map(|list| {
            let index = written["spec"][list.field()].as_array()?.iter().position(|c| c["name"] == *name)?;
            Some((list, index))
        })
    };
    let restore = |path: &mut FieldPath| {
        let [Segment::Field(spec), Segment::Field(list), Segment::Index(index), rest @ ..] =
            path.0.as_mut_slice()
        else {
            return;
        };
        let place = place_of(&moved["spec"][list.as_ref()][*index]["name"]);
        let (true, Some((from, at))) = (spec == "spec", place) else { return };
        (*list, *index) = (from.field().into(), at);
        // The startup probe of a native sidecar is a copy of its readiness probe.
        if let [Segment::Field(field), ..] = rest
            && field == "startupProbe"
            && written["spec"][from.field()][at].get("startupProbe").is_none()
        {
            *field = "readinessProbe".into();
        }
    };
    restore(&mut finding.path);
    finding.related.iter_mut().for_each(|(path, _)| restore(path));
    finding
}

fn typed_and_planned(object: &Value) -> Result<(Pod, Result<Planned, Vec<Finding>>), Refusal> {
    let pod = typed(object)?;
    let planned = plan_of(&pod);
    Ok((pod, planned))
}

/// Plans a pod. Nothing else in `decide` makes a plan.
pub(super) fn planned(input: &PodInput) -> Result<Planned, Vec<Finding>> {
    #[cfg(test)]
    PLANS.set(PLANS.get() + 1);
    plan(input, &FeatureGates::default())
}

#[cfg(test)]
thread_local! {
    /// The number of plans that a test has made.
    pub(super) static PLANS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Plans the pod. The terminator's envs have no effect on a pod that is being created.
fn plan_of(pod: &Pod) -> Result<Planned, Vec<Finding>> {
    let mut pod = pod.clone();
    for env in pod.spec.iter_mut().flat_map(|s| s.containers.iter_mut()).filter_map(|c| c.env.as_mut()) {
        env.retain(|e| !e.name.starts_with("KRUISE_TERMINATE_SIDECAR_"));
    }
    let input = PodInput { pod, lifecycle_types: Default::default() };
    let mut planned = planned(&input)?;
    // Report only containers that wait for something that never happens. The API server checks the rest of
    // the pod.
    let never = validate_plan(&input, &planned.plan).into_iter().filter(|finding| finding.code == "deadlock");
    let (errors, warnings): (Vec<_>, Vec<_>) = never.partition(|finding| finding.severity == Severity::Error);
    if !errors.is_empty() {
        return Err(errors);
    }
    planned.warnings.extend(warnings);
    Ok(planned)
}

/// The key that each container waits for. Empty if no container waits (LP-3, LP-7).
fn keys(pod: &Pod, plan: &Plan) -> Result<Vec<(ContainerRef, String)>, Refusal> {
    let graph = plan.containers.iter().flat_map(|c| &c.gates).any(|g| g.dialect == Some(Dialect::DependsOn));
    if graph {
        return gate_keys(plan);
    }
    if !plan.dialects.contains(&Dialect::Priority) {
        return Ok(Vec::new());
    }
    let mains = plan.containers.iter().filter(|c| c.place.list == List::Main);
    let key = if uses_proposed_names(pod) { proposed_level_key } else { level_key };
    // LP-8: every entry of `spec.containers`, including those of the highest level.
    Ok(mains.map(|c| (c.place, key(level(pod, c.place)))).collect())
}

/// The priority of a container in a planned pod, in which every priority is a number.
fn level(pod: &Pod, place: ContainerRef) -> i64 {
    if annotation(pod, names::ORDERED) == Some("Ordered") {
        return -i64::try_from(place.index).unwrap_or(0);
    }
    let container = pod.spec.as_ref().and_then(|s| s.containers.get(place.index));
    container.and_then(launch_priority).unwrap_or(0)
}

/// A separate key for each container that waits for another one, unless the kubelet's own order is enough.
fn gate_keys(plan: &Plan) -> Result<Vec<(ContainerRef, String)>, Refusal> {
    let mut keys = Vec::new();
    for (i, c) in plan.containers.iter().enumerate() {
        let gates: Vec<_> = c.gates.iter().filter(|g| is_served_gate(g.dialect)).collect();
        for gate in &gates {
            let on = &plan.containers[gate.on];
            // The kubelet starts init containers one after the other. It starts the others when all init
            // containers have completed.
            let never = c.place.list == List::Init && (on.place.list != List::Init || gate.on > i);
            if never {
                return Err(Refusal::new(
                    422,
                    format!(
                        "annotation {}: init container `{}` cannot wait for `{}`, which the kubelet starts later; move `{}` before it",
                        names::DEPENDS_ON,
                        c.name,
                        on.name,
                        on.name
                    ),
                ));
            }
        }
        if !gates.is_empty() {
            keys.push((c.place, gate_key(&c.name)));
        }
    }
    Ok(keys)
}

/// Refuses pods that would never end, because the kubelet waits for every container of `spec.containers`.
fn check_ending(pod: &Pod, plan: &Plan) -> Result<(), Refusal> {
    let is_marked = |name: &str| sidecars(pod).any(|(_, c)| c.name == name);
    let stays = |c: &&outrigger_lifecycle::ContainerPlan| {
        c.place.list == List::Main && c.dialect == Some(Dialect::DependsOn) && c.role == Role::Sidecar
    };
    let Some(c) = plan.containers.iter().filter(stays).find(|c| !is_marked(&c.name)) else { return Ok(()) };
    if plan.restart_policy == RestartPolicy::Always {
        return Ok(());
    }
    let text = format!(
        "annotation {}: `{}` is a `sidecar` that no kubelet ends with the mains, so the pod would never end; add {}, or give the container the env KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT",
        names::DEPENDS_ON,
        c.name,
        names::SIDECARS
    );
    Err(Refusal::new(422, text))
}

/// The features of a graph that a kubelet cannot provide.
fn unserved(pod: &Pod, plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |names: Vec<&str>, what: &str| {
        if !names.is_empty() {
            warnings.push(format!(
                "annotation {}: {what} has no effect in a cluster ({})",
                names::DEPENDS_ON,
                names.join(", ")
            ));
        }
    };
    let all = |test: fn(&outrigger_lifecycle::ContainerPlan) -> bool| -> Vec<&str> {
        plan.containers.iter().filter(|c| test(c)).map(|c| c.name.as_str()).collect()
    };
    warn(all(|c| !c.restart_with.is_empty()), "`restart`");
    warn(all(|c| !c.fence.is_empty()), "`fence`");
    warn(all(|c| c.fatal), "`fatal`");
    warn(overtaking(plan), "not waiting for the init container before");
    warn(all(|c| c.role == Role::Sidecar && c.dialect == Some(Dialect::DependsOn)), "`sidecar`");
    // The terminator stops several sidecars in that order.
    if sidecars(pod).count() < 2 {
        warn(annotation(pod, names::DEPENDS_ON).map(stop_numbers).unwrap_or_default(), "`stop`");
    }
    // With the sidecar terminator the pod has a result once the primary is done.
    let ends = sidecars(pod).next().is_some();
    let has_primary = |c: &outrigger_lifecycle::ContainerPlan| c.role == Role::Main && !c.keeps_alive;
    if !ends && plan.containers.iter().any(has_primary) {
        warn(all(|c| c.role == Role::Main && c.keeps_alive), "`primary`");
    }
    warnings
}

/// The init containers that need not wait for the one before them. The kubelet still starts them one after
/// the other.
fn overtaking(plan: &Plan) -> Vec<&str> {
    let inits: Vec<usize> =
        (0..plan.containers.len()).filter(|&i| plan.containers[i].place.list == List::Init).collect();
    let overtakes = |pair: &&[usize]| plan.containers[pair[1]].gates.iter().all(|gate| gate.on != pair[0]);
    inits.windows(2).filter(overtakes).map(|pair| plan.containers[pair[1]].name.as_str()).collect()
}

/// Whether the pod uses only the names of Kruise's proposal.
fn uses_proposed_names(pod: &Pod) -> bool {
    let env = pod.spec.iter().flat_map(|s| &s.containers).flat_map(|c| c.env.iter().flatten());
    let used: BTreeSet<&str> =
        env.map(|e| e.name.as_str()).filter(|n| names::PRIORITY_ENVS.contains(n)).collect();
    used.contains(names::PRIORITY_ENVS[1]) && !used.contains(names::PRIORITY_ENVS[0])
}

/// Removes barrier envs that only the webhook may write. Returns true if there were any.
fn drop_foreign(object: &mut Value, pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let lists = [
        (List::Init, spec.init_containers.as_deref().unwrap_or_default()),
        (List::Main, spec.containers.as_slice()),
    ];
    let mut found = false;
    for (list, containers) in lists {
        for (index, _) in containers.iter().enumerate() {
            let container = &mut object["spec"][list.field()][index];
            let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) else { continue };
            let before = env.len();
            env.retain(|e| !e["name"].as_str().is_some_and(|n| names::BARRIER_ENVS.contains(&n)));
            found |= env.len() != before;
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        // A copy of a live pod has not been launched.
        for name in [names::COMPLETED, names::BARRIER_OPENED, names::RESULT_WRITTEN] {
            found |= annotations.shift_remove(name).is_some();
        }
    }
    found
}

/// A name unique to the pod, so that successive pods of the same name never share a barrier (LP-31).
fn map_name(pod: &Pod, suffix: &str) -> String {
    let name = pod.metadata.name.as_deref().filter(|name| !name.is_empty());
    let base = name.or(pod.metadata.generate_name.as_deref()).unwrap_or_default();
    let tail = format!("-barrier-{suffix}");
    let base: String = base.chars().take(NAME_MAX - tail.len()).collect();
    let base = match base.trim_end_matches(['-', '.']) {
        "" => "pod",
        base => base,
    };
    format!("{base}{tail}")
}
