//! The resources of a pod (section 9): sums over its containers, QoS class and oom_score_adj.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub use outrigger_text::quantity::{Amount, Format, QuantityError, parse_quantity};

use crate::plan::{Need, Plan, Role};
use crate::source::{ContainerRef, List};

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Amount>;

/// The total resources of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceTotals {
    /// The total requests.
    pub requests: Amounts,
    /// The total limits.
    pub limits: Amounts,
}

/// The QoS class of a pod (R9.10 to R9.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qos {
    /// It requests nothing.
    BestEffort,
    /// It requests something.
    Burstable,
    /// Its requests equal its limits.
    Guaranteed,
}

impl Qos {
    /// The name in a pod status.
    pub fn name(self) -> &'static str {
        match self {
            Qos::BestEffort => "BestEffort",
            Qos::Burstable => "Burstable",
            Qos::Guaranteed => "Guaranteed",
        }
    }
}

/// The resources of the pod at its busiest moment (R9.1 to R9.6). While an init container runs, these are its
/// own and those of the sidecars before it; afterwards, those of the mains and all sidecars. Invalid
/// quantities count as zero here, because validation refuses them.
pub fn effective(pod: &PodSpec, plan: &Plan) -> ResourceTotals {
    let own = pod.resources.as_ref();
    let mut requests = aggregated(pod, plan, |r| r.requests.as_ref());
    let mut limits = aggregated(pod, plan, |r| r.limits.as_ref());
    replace(&mut requests, own.and_then(|r| r.requests.as_ref()));
    replace(&mut limits, own.and_then(|r| r.limits.as_ref()));
    for (name, overhead) in amounts(pod.overhead.as_ref()) {
        let sum = requests.entry(name.clone()).or_default();
        *sum = *sum + overhead;
        // R9.3: a resource without a limit does not get one from the overhead.
        if let Some(limit) = limits.get_mut(&name).filter(|l| !l.is_zero()) {
            *limit = *limit + overhead;
        }
    }
    ResourceTotals { requests, limits }
}

type Side = fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>;

/// R9.1 and R9.2, without overhead and pod-level values. In a chain of init entries this is the kubelet's
/// sum. If gates let more containers run at the same time, all of those are added up.
fn aggregated(pod: &PodSpec, plan: &Plan, side: Side) -> Amounts {
    let of = |i: usize| {
        let container = find(pod, plan.containers[i].place);
        amounts(container.and_then(|c| side(c.resources.as_ref()?)))
    };
    let done_before = done_before(plan);
    let all = 0..plan.containers.len();
    let role = |i: usize| plan.containers[i].role;
    let mut peak = Amounts::new();
    for init in all.clone().filter(|&i| role(i) == Role::Init) {
        let mut used = of(init);
        let together = |&other: &usize| {
            other != init && !done_before[init].contains(&other) && !done_before[other].contains(&init)
        };
        for other in all.clone().filter(together) {
            add(&mut used, &of(other));
        }
        raise(&mut peak, &used);
    }
    let mut steady = Amounts::new();
    for i in all.filter(|&i| matches!(role(i), Role::Main | Role::Sidecar)) {
        add(&mut steady, &of(i));
    }
    raise(&mut peak, &steady);
    peak
}

/// For each container, those that have completed before it starts, because it or a container that it waits
/// for requires it.
fn done_before(plan: &Plan) -> Vec<BTreeSet<usize>> {
    let before = |start: usize| {
        let mut seen = BTreeSet::from([start]);
        let mut done = BTreeSet::new();
        let mut open = vec![start];
        while let Some(i) = open.pop() {
            for gate in &plan.containers[i].gates {
                if gate.need == Need::Completed {
                    done.insert(gate.on);
                }
                if seen.insert(gate.on) {
                    open.push(gate.on);
                }
            }
        }
        done
    };
    (0..plan.containers.len()).map(before).collect()
}

fn find(pod: &PodSpec, place: ContainerRef) -> Option<&Container> {
    match place.list {
        List::Init => pod.init_containers.as_ref()?.get(place.index),
        List::Main => pod.containers.get(place.index),
        List::Ephemeral => None, // R9.6
    }
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = *sum + *amount;
    }
}

fn raise(to: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        let most = to.entry(name.clone()).or_default();
        if *amount > *most {
            *most = *amount;
        }
    }
}

/// R9.4: pod-level values replace the sum of the containers'.
fn replace(totals: &mut Amounts, pod_level: Option<&BTreeMap<String, Quantity>>) {
    totals.extend(amounts(pod_level).into_iter().filter(|(name, _)| is_pod_level(name)));
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let read = |(name, q): (&String, &Quantity)| Some((name.clone(), parse_quantity(&q.0).ok()?));
    list.into_iter().flatten().filter_map(read).collect()
}

/// The QoS class of a pod (R9.10, R9.11).
pub fn qos(pod: &PodSpec) -> Qos {
    let pod_level = pod.resources.as_ref().filter(|r| {
        [&r.requests, &r.limits].into_iter().flatten().any(|list| list.keys().any(|name| is_pod_level(name)))
    });
    let each: Vec<Option<&ResourceRequirements>> = match pod_level {
        Some(own) => vec![Some(own)],
        None => pod
            .init_containers
            .iter()
            .flatten()
            .chain(&pod.containers)
            .map(|c| c.resources.as_ref())
            .collect(),
    };
    let mut requests = Amounts::new();
    let mut limits = Amounts::new();
    let mut limited = true;
    for resources in each {
        let own_limits = qos_amounts(resources.and_then(|r| r.limits.as_ref()));
        limited &= own_limits.len() == QOS_RESOURCES.len();
        add(&mut limits, &own_limits);
        add(&mut requests, &qos_amounts(resources.and_then(|r| r.requests.as_ref())));
    }
    if requests.is_empty() && limits.is_empty() {
        Qos::BestEffort
    } else if limited && requests == limits {
        Qos::Guaranteed
    } else {
        Qos::Burstable
    }
}

const QOS_RESOURCES: [&str; 2] = ["cpu", "memory"];

fn qos_amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let mut all = amounts(list);
    all.retain(|name, amount| QOS_RESOURCES.contains(&name.as_str()) && *amount > Amount::ZERO);
    all
}

/// The container's score for the kernel's OOM killer (R9.20 to R9.25). `container` is an index of the plan.
pub fn oom_score_adj(pod: &PodSpec, plan: &Plan, container: usize, qos: Qos, node_memory_bytes: u64) -> i32 {
    const GUARANTEED: i32 = -997;
    const BEST_EFFORT: i32 = 1000;
    if qos == Qos::Guaranteed || is_node_critical(pod) {
        return GUARANTEED;
    }
    if qos == Qos::BestEffort {
        return BEST_EFFORT;
    }
    let share = pod_level_share(pod, plan);
    let request = |i: usize| memory_request(pod, plan.containers[i].place).saturating_add(share);
    let score = |bytes: i64| 1000 - i128::from(bytes) * 1000 / i128::from(node_memory_bytes.max(1));
    let mut adj = score(request(container));
    if plan.containers[container].role == Role::Sidecar {
        // A sidecar is not killed before the main that is killed first.
        let mains = (0..plan.containers.len()).filter(|&i| plan.containers[i].role == Role::Main);
        if let Some(least) = mains.map(request).min() {
            adj = adj.min(score(least));
        }
    }
    // The container is killed before those of a Guaranteed pod, and after those of a BestEffort pod.
    i32::try_from(adj.clamp(3, 999)).unwrap_or(999)
}

fn is_node_critical(pod: &PodSpec) -> bool {
    pod.priority_class_name.as_deref() == Some("system-node-critical")
}

fn memory_request(pod: &PodSpec, place: ContainerRef) -> i64 {
    let requests = find(pod, place).and_then(|c| c.resources.as_ref()?.requests.as_ref());
    memory(requests).map_or(0, Amount::value)
}

fn memory(list: Option<&BTreeMap<String, Quantity>>) -> Option<Amount> {
    parse_quantity(&list?.get("memory")?.0).ok()
}

/// R9.24: pod-level requests beyond the sum of the containers' are shared equally.
fn pod_level_share(pod: &PodSpec, plan: &Plan) -> i64 {
    let Some(own) = memory(pod.resources.as_ref().and_then(|r| r.requests.as_ref())) else {
        return 0;
    };
    let asked = aggregated(pod, plan, |r| r.requests.as_ref());
    let rest = own - asked.get("memory").copied().unwrap_or_default();
    let containers = pod.containers.len() + pod.init_containers.as_ref().map_or(0, Vec::len);
    rest.value().max(0) / i64::try_from(containers.max(1)).unwrap_or(i64::MAX)
}
