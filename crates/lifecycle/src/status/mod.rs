//! The status of a pod: phase, conditions and container statuses (section 5).
//!
//! It is derived from the plan, the observation, facts that only the runtime knows ([`StatusFacts`]), and the
//! previous status, which determines when a condition last changed.

mod conditions;
mod containers;
#[cfg(test)]
pub(crate) mod fixtures;
mod observe;
mod phase;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{ContainerStatus, HostIP, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use k8s_openapi::jiff::Timestamp;

pub use self::observe::observe;
pub use self::phase::{Phase, fails_pod, phase, was_stopped};
use crate::decision::Wait;
use crate::explain::explain_stop;
use crate::observation::{Observation, StopCause};
use crate::plan::Plan;
use crate::resources::Qos;
use crate::source::List;
use crate::time::Time;

/// The values of a pod status that neither plan nor observation contains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusFacts {
    /// The time of this status.
    pub now: Time,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`, published as `observedGeneration`.
    pub generation: Option<i64>,
    /// The pod's QoS class ([`crate::qos`]).
    pub qos: Option<Qos>,
    /// The addresses of the machine.
    pub host_ips: Vec<String>,
    /// The addresses of the pod, the primary one first.
    pub pod_ips: Vec<String>,
    /// The condition types of `spec.readinessGates`.
    pub readiness_gates: Vec<String>,
    /// One entry per container of the plan, in the same order. Missing entries are unknown.
    pub containers: Vec<ContainerFacts>,
}

/// What the runtime knows about a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// The image, by name.
    pub image: String,
    /// The image, by digest; empty until it is present.
    pub image_id: String,
    /// The runtime's id of the current instance.
    pub container_id: Option<String>,
    /// The runtime's id of the instance before that.
    pub last_container_id: Option<String>,
}

/// The complete `.status` of a pod. `waits` comes from the last decision ([`crate::Decision::waits`]).
pub fn pod_status(
    plan: &Plan,
    obs: &Observation,
    waits: &[(usize, Wait)],
    facts: &StatusFacts,
    previous: Option<&PodStatus>,
) -> PodStatus {
    // R5.20: a published terminal phase is final.
    let published = previous.and_then(|s| Phase::from_name(s.phase.as_deref()?)).filter(|p| p.is_terminal());
    let phase = published.unwrap_or_else(|| phase(plan, obs));
    // A pod that was stopped early is Failed (R5.23). Its conditions still say that containers are not ready,
    // instead of reporting a failure.
    let basis = match published {
        None if obs.over => phase::verdict(plan, obs).unwrap_or_else(|| phase::live(plan, obs)),
        _ => phase,
    };
    let (reason, message) = reason(plan, obs).unzip();
    let lists = Lists::new(plan, obs, waits, facts, previous);
    PodStatus {
        phase: Some(phase.name().to_owned()),
        reason,
        message,
        conditions: Some(conditions::conditions(plan, obs, basis, facts, previous)),
        qos_class: facts.qos.map(|q| q.name().to_owned()),
        start_time: previous.and_then(|s| s.start_time.clone()).or_else(|| Some(k8s_time(obs.since))),
        host_ip: facts.host_ips.first().cloned(),
        host_ips: some(facts.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: facts.pod_ips.first().cloned(),
        pod_ips: some(facts.pod_ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect()),
        init_container_statuses: some(lists.init),
        container_statuses: some(lists.main),
        ephemeral_container_statuses: some(lists.ephemeral),
        observed_generation: facts.generation,
        ..Default::default()
    }
}

/// The reason and message of the pod itself, if exit codes alone do not explain why it ended.
fn reason(plan: &Plan, obs: &Observation) -> Option<(String, String)> {
    let cause = obs.stop?.cause;
    let (reason, message) = match cause {
        StopCause::DeadlineExceeded => {
            ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline".to_owned())
        }
        StopCause::GateNeverOpens { .. } => ("GateNeverOpens", explain_stop(plan, obs, cause)),
        StopCause::SandboxLost => ("SandboxLost", explain_stop(plan, obs, cause)),
        StopCause::CannotStart { .. } => ("CannotStart", explain_stop(plan, obs, cause)),
        StopCause::NotRetried { .. } => ("NotRetried", explain_stop(plan, obs, cause)),
        // This is exactly the kubelet's wording.
        StopCause::NodeShutdown => {
            ("Terminated", "Pod was terminated in response to imminent node shutdown.".to_owned())
        }
        StopCause::VolumeFull { volume } => {
            let limit = &plan.volume_limits[volume];
            let text = format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                limit.volume, limit.written
            );
            ("Evicted", text)
        }
        StopCause::Fatal { .. } => ("FatalContainerEnded", explain_stop(plan, obs, cause)),
        StopCause::Deleted | StopCause::Completed | StopCause::InitFailed { .. } => return None,
    };
    Some((reason.to_owned(), message))
}

/// Container statuses by the list of the spec that they belong to.
#[derive(Default)]
struct Lists {
    init: Vec<ContainerStatus>,
    main: Vec<ContainerStatus>,
    ephemeral: Vec<ContainerStatus>,
}

impl Lists {
    fn new(
        plan: &Plan,
        obs: &Observation,
        waits: &[(usize, Wait)],
        facts: &StatusFacts,
        previous: Option<&PodStatus>,
    ) -> Lists {
        let mut lists = Lists::default();
        for (i, p) in plan.containers.iter().enumerate() {
            let wait = waits.iter().find(|(c, _)| *c == i).map(|(_, w)| *w);
            let (list, before) = match p.place.list {
                List::Init => (&mut lists.init, previous.and_then(|s| s.init_container_statuses.as_ref())),
                List::Main => (&mut lists.main, previous.and_then(|s| s.container_statuses.as_ref())),
                List::Ephemeral => {
                    (&mut lists.ephemeral, previous.and_then(|s| s.ephemeral_container_statuses.as_ref()))
                }
            };
            let before = before.and_then(|all| all.iter().find(|s| s.name == p.name));
            list.push(containers::status(plan, obs, i, wait, facts, before));
        }
        lists.main.sort_by(|a, b| a.name.cmp(&b.name)); // R5.51
        lists
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// A time as Kubernetes writes it. It has whole seconds, so that a status that is read back is equal.
pub(crate) fn k8s_time(time: Time) -> v1::Time {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    v1::Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
}
