//! Which sidecars of a pod to stop once its mains are done (ST-1 to ST-29, KD4 to KD7).
//!
//! The decision is level-triggered: each call sees the pod, the node and earlier requests, and returns the
//! next steps. The pod ends in every case. A sidecar does not keep it running if it never started, was
//! restarted by the kubelet, is in back-off, or has no agent on its node. As a last resort, the operator sets
//! the pod's phase, which every kubelet honours (ST-17).

use outrigger_lifecycle::{RestartPolicy, State, Time, fails_pod, rules, stop_stages};
use serde_json::Value;

use crate::names;
use crate::view::ObservedPod;

/// The kind of a pod's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A machine with an agent.
    Machine,
    /// A machine in a cluster where the agent is not installed (KD17).
    WithoutAgent,
    /// A virtual node, where only the Kubernetes API can be used (ST-5).
    Virtual,
}

/// How a marked container is stopped (ST-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It is not a sidecar.
    Main,
    /// The agent of its node stops it.
    Normal,
    /// The agent of its node stops it, after the pod's result was written.
    IgnoreExitCode,
    /// Its image is replaced with one that exits.
    InPlace,
    /// It cannot be stopped on this kind of node.
    Stuck,
}

/// An earlier request of the terminator for the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// Its number, from 1.
    pub attempt: u32,
    /// Whether it is finished.
    pub finished: bool,
    /// Whether it finished without being served by an agent.
    pub unserved: bool,
    /// The instances (name, id) it must stop. Their exit codes are caused by the stop, so they do not count.
    pub targets: Vec<(String, String)>,
    /// The instances (name, id) it has stopped.
    pub stopped: Vec<(String, String)>,
    /// Whether the agent stops, or is about to stop, the last container. Then the pod must have its result
    /// (KD5).
    pub needs_result: bool,
}

/// One step for the sidecars of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminateStep {
    /// Replace images: the index in `spec.containers`, the name and the new image.
    Swap(Vec<(usize, String, String)>),
    /// Create a container recreate request that stops these containers.
    Stop {
        /// The number of the request.
        attempt: u32,
        /// The containers, in their stop order.
        containers: Vec<String>,
        /// Whether each container is stopped after the previous one has ended.
        ordered: bool,
        /// When the pod gets its result.
        result: ResultTime,
    },
    /// Write the pod's result.
    End {
        /// `Succeeded` or `Failed`.
        phase: &'static str,
        /// Why the pod ends this way.
        message: String,
    },
    /// Send an event.
    Event {
        /// Whether the event is a warning.
        is_warning: bool,
        /// The message of the event.
        message: String,
    },
}

/// When a pod whose mains are done gets its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultTime {
    /// Right before its last sidecar gets the stop signal, after the hooks. If the sidecars have no order,
    /// this is before any of them gets it. So a sidecar's exit code cannot become the result, and the kubelet
    /// does not restart it (KD5).
    BeforeLastStop,
    /// When the kubelet computes it from all exit codes.
    ByKubelet,
}

/// The maximum number of times to stop a sidecar that the kubelet restarts.
const ATTEMPTS_MAX: u32 = 5;

/// How to stop a container on this kind of node.
pub fn class(view: &ObservedPod, container: usize, node: Node) -> Class {
    let marks = &view.containers[container].marks;
    let is_main_list = view.plan.containers[container].place.list == outrigger_lifecycle::List::Main;
    if !marks.is_sidecar() || !is_main_list {
        return Class::Main;
    }
    match node {
        Node::Virtual if marks.image.is_some() => Class::InPlace,
        Node::Virtual => Class::Stuck,
        Node::Machine | Node::WithoutAgent if marks.kill && marks.ignore_exit_code => Class::IgnoreExitCode,
        Node::Machine | Node::WithoutAgent if marks.kill => Class::Normal,
        // Kruise ignores these, so their pods run forever. An agent can stop them like any other. Without an
        // agent, an image can be replaced on machines as well.
        Node::Machine if marks.ignore_exit_code => Class::IgnoreExitCode,
        Node::Machine => Class::Normal,
        Node::WithoutAgent => Class::InPlace,
    }
}

/// The prefix of the names of the terminator's requests.
pub const REQUEST_PREFIX: &str = "sidecar-termination-";

/// The name of the terminator's request for a pod.
pub fn request_name(uid: &str, attempt: u32) -> String {
    match attempt {
        0 | 1 => format!("{REQUEST_PREFIX}{uid}"),
        n => format!("{REQUEST_PREFIX}{uid}-{n}"),
    }
}

/// The number in a request's name, if the request is one of the terminator's for this pod.
pub fn attempt_of(name: &str, uid: &str) -> Option<u32> {
    let rest = name.strip_prefix(REQUEST_PREFIX)?.strip_prefix(uid)?;
    match rest.strip_prefix('-') {
        Some(number) => number.parse().ok().filter(|n| *n > 1),
        None => rest.is_empty().then_some(1),
    }
}

/// Whether the mains of a pod are done and it has marked sidecars (ST-6, ST-7). A pod without a main never
/// matches (ST-9). A pod that is still `Pending` may match (ST-25).
pub fn is_of_interest(view: &ObservedPod) -> bool {
    if view.deleting || view.is_over() || view.plan.restart_policy == RestartPolicy::Always {
        return false;
    }
    let sidecars = || sidecars(view);
    let left = |i: usize| view.observation.containers[i].state != State::Exited || !ended_well(view, i);
    sidecars().next().is_some() && view.mains_are_done() && sidecars().any(left)
}

/// The precision of exit times: the kubelet reports full seconds.
const EXIT_TIME_PRECISION_MS: u64 = 1_000;

/// When the sidecars of a pod are stopped, if they continue to run for a time after its mains (KD7).
pub fn delayed_until(view: &ObservedPod) -> Option<Time> {
    let until = rules::sidecars_run_until(&view.plan, &view.observation)?;
    is_of_interest(view).then(|| until + EXIT_TIME_PRECISION_MS)
}

/// The maximum time from a container's stop signal to KILL, if the container sets its own (KD7).
pub fn own_grace_seconds(view: &ObservedPod, name: &str) -> Option<i64> {
    let ms = view.plan.containers[view.plan.find(name)?].stop_grace_ms?;
    i64::try_from(ms.div_ceil(1_000)).ok()
}

fn sidecars(view: &ObservedPod) -> impl Iterator<Item = usize> {
    (0..view.containers.len()).filter(|&i| class(view, i, Node::Machine) != Class::Main)
}

fn ended_well(view: &ObservedPod, i: usize) -> bool {
    view.observation.containers[i].exit.as_ref().is_some_and(|exit| !exit.failed())
}

/// The container that makes the pod fail, by the rules of every other pod. It is a main, or a sidecar that
/// failed by itself and is neither restarted nor ignored (KD5).
fn failed(view: &ObservedPod, past: &[Past]) -> Option<usize> {
    let told = |i: usize| {
        let c = &view.containers[i];
        let is_swapped = c.marks.image.as_ref() == Some(&c.image);
        is_swapped || was_stopped(view, i, past) || past.iter().any(|p| has_instance(&p.targets, view, i))
    };
    (0..view.containers.len()).find(|&i| fails_pod(&view.plan, &view.observation, i) && !told(i))
}

/// The steps for a pod's sidecars now. `past` are the terminator's own requests for this pod.
pub fn decide(view: &ObservedPod, node: Node, past: &[Past], now: Time) -> Vec<TerminateStep> {
    if !is_of_interest(view) || delayed_until(view).is_some_and(|at| now < at) {
        return Vec::new();
    }
    let of = |class_: Class| -> Vec<usize> {
        sidecars(view)
            .filter(|&i| class(view, i, node) == class_ && is_alive(view, i, class_, past))
            .collect()
    };
    let mut steps = Vec::new();
    let swapped = swap(view, &of(Class::InPlace), &mut steps);
    let (normal, ignored) = (of(Class::Normal), of(Class::IgnoreExitCode));
    if !normal.is_empty() {
        // The result is written only when nothing else is left to stop. Containers whose exit codes are
        // ignored are stopped after it (ST-14).
        if past.iter().any(|p| p.needs_result) {
            // The kubelet checks its containers once a second and computes the phase from their states. Right
            // after such a check, there is enough time to write the result before the kubelet sees the last
            // exit.
            if !is_stop_unreported(view, past) {
                steps.push(end(view, past));
            }
            return steps;
        }
        stop(view, &normal, node, past, &mut steps);
        return steps;
    }
    // ST-14: the other containers are stopped first.
    if swapped || !of(Class::InPlace).is_empty() {
        return steps;
    }
    if !ignored.is_empty() {
        // ST-15, ST-16: the result is written first, so that the exit code cannot change it.
        steps.push(end(view, past));
        stop(view, &ignored, node, past, &mut steps);
        return steps;
    }
    if let [stuck, ..] = of(Class::Stuck)[..] {
        let name = &view.plan.containers[stuck].name;
        let message = format!(
            "sidecar `{name}` cannot be ended on a virtual node; give it the env KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE"
        );
        steps.push(TerminateStep::Event { is_warning: true, message });
        return steps;
    }
    if !is_left_to_kubelet(view, past) {
        steps.push(end(view, past));
    }
    steps
}

/// Whether the kubelet must stop the remaining containers once the pod has its result. Not if the agent stops
/// them, because the kubelet would run the hooks again.
pub fn ends_by_kubelet(steps: &[TerminateStep], past: &[Past]) -> bool {
    let by_agent =
        past.iter().any(|p| !p.finished) || steps.iter().any(|s| matches!(s, TerminateStep::Stop { .. }));
    !by_agent
}

/// Whether the kubelet will set the result of the mains by itself. No container of the pod is running.
fn is_left_to_kubelet(view: &ObservedPod, past: &[Past]) -> bool {
    let all_exited = sidecars(view).all(|i| view.observation.containers[i].state == State::Exited);
    if view.sidecars_count {
        // Exit codes count, so the kubelet sets the result, unless a sidecar that is not running prevents it.
        return all_exited && view.plan.restart_policy == RestartPolicy::Never
            || sidecars(view).any(|i| {
                was_stopped(view, i, past) && view.observation.containers[i].state != State::Exited
            });
    }
    // Otherwise the kubelet cannot be relied on. Some sidecars failed, never ran or are being restarted, or
    // the kubelet has not seen their exit yet.
    all_exited && failed(view, past).is_some() && view.plan.restart_policy == RestartPolicy::Never
}

fn end(view: &ObservedPod, past: &[Past]) -> TerminateStep {
    let Some(failed) = failed(view, past) else {
        let message = "every main container has completed; its sidecars are ended".to_owned();
        return TerminateStep::End { phase: "Succeeded", message };
    };
    let c = &view.plan.containers[failed];
    let message = match c.keeps_alive {
        true => format!("main container `{}` has failed; the sidecars are ended", c.name),
        false => format!("sidecar `{}` had failed by itself before it was told to stop", c.name),
    };
    TerminateStep::End { phase: "Failed", message }
}

/// Whether an instance of a sidecar may be running. A stopped instance does not count, even if the kubelet
/// has not reported its exit yet. A sidecar that never started or is in back-off has no instance, so it does
/// not count (ST-25). Images are replaced with or without an instance, because virtual kubelets report no
/// ids.
fn is_alive(view: &ObservedPod, i: usize, class: Class, past: &[Past]) -> bool {
    let c = &view.containers[i];
    let exited = view.observation.containers[i].state == State::Exited;
    match class {
        Class::InPlace => c.reported && !exited,
        Class::Stuck => c.reported && !exited && c.waiting.is_none(),
        _ => c.id.is_some() && !exited && c.waiting.is_none() && !was_stopped(view, i, past),
    }
}

/// Whether the kubelet has not yet reported the exit of a sidecar that was stopped before the others.
fn is_stop_unreported(view: &ObservedPod, past: &[Past]) -> bool {
    sidecars(view)
        .any(|i| was_stopped(view, i, past) && view.observation.containers[i].state != State::Exited)
}

fn was_stopped(view: &ObservedPod, i: usize, past: &[Past]) -> bool {
    past.iter().any(|p| has_instance(&p.stopped, view, i))
}

/// Whether the newest instance of a container is in this list.
fn has_instance(instances: &[(String, String)], view: &ObservedPod, i: usize) -> bool {
    let (name, id) = (&view.plan.containers[i].name, &view.containers[i].id);
    instances.iter().any(|(n, instance)| n == name && Some(instance) == id.as_ref())
}

/// Replaces the images that are not replaced yet (ST-12). Returns true if there are any.
fn swap(view: &ObservedPod, containers: &[usize], steps: &mut Vec<TerminateStep>) -> bool {
    let image = |&i: &usize| {
        let (c, p) = (&view.containers[i], &view.plan.containers[i]);
        let image = c.marks.image.clone()?;
        (c.image != image).then(|| (p.place.index, p.name.clone(), image))
    };
    let swaps: Vec<_> = containers.iter().filter_map(image).collect();
    if swaps.is_empty() {
        return false;
    }
    let names: Vec<&str> = swaps.iter().map(|(_, name, _)| name.as_str()).collect();
    let message = format!("the mains are done: replacing the image of {}", names.join(", "));
    steps.push(TerminateStep::Swap(swaps));
    steps.push(TerminateStep::Event { is_warning: false, message });
    true
}

/// Creates a request for the running sidecars, unless one is in progress (ST-13, KD4, KD7).
fn stop(view: &ObservedPod, containers: &[usize], node: Node, past: &[Past], steps: &mut Vec<TerminateStep>) {
    if past.iter().any(|p| !p.finished) {
        return;
    }
    let last = past.iter().max_by_key(|p| p.attempt);
    let attempt = last.map_or(1, |p| p.attempt + 1);
    let unserved = node == Node::WithoutAgent || last.is_some_and(|p| p.unserved);
    if unserved || attempt > ATTEMPTS_MAX {
        // ST-28: there is no agent, or the kubelet restarts containers faster than they can be stopped.
        // Setting the phase ends the pod.
        if !steps.iter().any(|s| matches!(s, TerminateStep::End { .. })) {
            let swaps: Vec<usize> =
                containers.iter().copied().filter(|&i| view.containers[i].marks.image.is_some()).collect();
            if unserved && swap(view, &swaps, steps) {
                return;
            }
            steps.push(end(view, past));
        }
        return;
    }
    let stages = stop_stages(&view.plan, containers);
    let order = stages.concat();
    let result = match view.sidecars_count {
        true => ResultTime::ByKubelet,
        false => ResultTime::BeforeLastStop,
    };
    // The kubelet would restart sidecars that are stopped before the result, and a Job would count the
    // restart as a failure. So the result is written first, and then all are stopped (KD4). The result is
    // always written before the last one is stopped.
    let comes_back = |i: &usize| !view.plan.containers[*i].restart.is_never();
    let before = order.split_last().map_or(&[][..], |(_, before)| before);
    let is_restarted = result == ResultTime::BeforeLastStop && before.iter().any(comes_back);
    let ordered = !is_restarted && stages.len() > 1;
    let names: Vec<String> = order.iter().map(|&i| view.plan.containers[i].name.clone()).collect();
    let message = format!("the mains are done: stopping {}", names.join(", "));
    steps.push(TerminateStep::Stop { attempt, containers: names, ordered, result });
    steps.push(TerminateStep::Event { is_warning: false, message });
}

/// Keeps the result that the pod already has in a status update. A kubelet that has not seen the result yet
/// computes a phase from what it knows and overwrites the result. It may then end the pod with the exit codes
/// of its sidecars.
pub fn keep_result(old: &Value, new: &Value) -> Value {
    let is_ended =
        |condition: &Value| condition["type"] == names::SIDECAR_TERMINATED && condition["status"] == "True";
    let conditions = old["status"]["conditions"].as_array();
    let phase = &old["status"]["phase"];
    let mut kept = new.clone();
    if (phase == "Succeeded" || phase == "Failed") && conditions.into_iter().flatten().any(is_ended) {
        kept["status"]["phase"] = phase.clone();
    }
    kept
}

/// The terminator's next step for a pod, in one sentence.
pub fn outlook(view: &ObservedPod, node: Node, past: &[Past], now: Time) -> Option<String> {
    let sidecars: Vec<&str> = sidecars(view).map(|i| view.plan.containers[i].name.as_str()).collect();
    if sidecars.is_empty() || view.plan.restart_policy == RestartPolicy::Always {
        return None;
    }
    if !view.mains_are_done() {
        let launching = view.barriers().any(|(i, _)| super::barrier::closed_gate(view, i).is_some());
        let is_alive = |i: usize, p: &outrigger_lifecycle::ContainerPlan| {
            p.keeps_alive && rules::final_exit(p, &view.observation.containers[i]).is_none()
        };
        let mains = view.plan.containers.iter().enumerate().filter(|(i, p)| is_alive(*i, p));
        let mains: Vec<&str> = mains.map(|(_, p)| p.name.as_str()).collect();
        return (!launching).then(|| format!("{} stopped once {} done", are(&sidecars), are_or_is(&mains)));
    }
    if let Some(at) = delayed_until(view).filter(|at| now < *at) {
        let left = outrigger_text::HumanDuration(at.since(now));
        return Some(format!("{} stopped in {left} ({})", are(&sidecars), names::SIDECAR_DELAY));
    }
    let steps = decide(view, node, past, now);
    if steps.is_empty() && past.iter().any(|p| !p.finished) {
        return Some(format!("the agent of node {} stops the sidecars", view.node.as_deref().unwrap_or("?")));
    }
    Some(match steps.first() {
        Some(TerminateStep::Swap(_)) => "images of sidecars are replaced".to_owned(),
        Some(TerminateStep::Stop { containers, .. }) => {
            format!("{} stopped", are(&containers.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        Some(TerminateStep::End { phase, .. }) => format!("the pod becomes {phase}"),
        Some(TerminateStep::Event { message, .. }) => message.clone(),
        None => "the kubelet ends the pod".to_owned(),
    })
}

/// Lists these containers, followed by `is` or `are`.
pub(super) fn are(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("{} {}", quoted.join(", "), if names.len() == 1 { "is" } else { "are" })
}

fn are_or_is(names: &[&str]) -> String {
    match names {
        [] => "the mains are".to_owned(),
        names => are(names),
    }
}
