//! Outrigger's own annotations that change how a pod runs, where a different default would surprise its
//! author.

use outrigger_text::duration_ms;

use super::{ANNOTATION_PREFIX, Draft, depends_on, kep, nearest, terminator};
use crate::job::POD_BACKOFF;
use crate::plan::{BackoffPlan, ContainerPlan, Counts, Dialect, Need, PreStopWhen, Role};
use crate::source::{FieldPath, Finding};

pub(crate) const SIDECAR_RESTARTS: &str = "outrigger.dev/sidecar-restarts";
const SIDECAR_PHASE: &str = "outrigger.dev/sidecar-phase";
const PRE_STOP: &str = "outrigger.dev/pre-stop";
const SIDECAR_GRACE: &str = "outrigger.dev/sidecar-grace";
const SIDECAR_DELAY: &str = "outrigger.dev/sidecar-delay";
const STOP_GRACE: &str = "outrigger.dev/stop-grace";
const FENCE: &str = "outrigger.dev/fence";
const BACKOFF: &str = "outrigger.dev/restart-backoff";
const POST_START_TIMEOUT: &str = "outrigger.dev/post-start-timeout";
const RUN_ONCE: &str = "outrigger.dev/run-once";

/// Sidecars are there for the mains: longer than this is a mistake.
const DELAY_MAX_MS: u64 = 86_400_000;

/// Read by the operator in a cluster.
const LAUNCH_TIMEOUT: &str = "outrigger.dev/launch-timeout";
/// Written by the operator.
const WOKEN: [&str; 2] = ["outrigger.dev/barrier-opened", "outrigger.dev/result-written"];

/// All of Outrigger's annotations.
const KNOWN: [&str; 15] = [
    depends_on::ANNOTATION,
    SIDECAR_RESTARTS,
    SIDECAR_PHASE,
    PRE_STOP,
    SIDECAR_GRACE,
    SIDECAR_DELAY,
    STOP_GRACE,
    FENCE,
    BACKOFF,
    POST_START_TIMEOUT,
    RUN_ONCE,
    kep::SIDECARS,
    LAUNCH_TIMEOUT,
    WOKEN[0],
    WOKEN[1],
];

pub(super) fn apply(draft: &mut Draft<'_>) {
    unknown(draft);
    if let Some(value) = draft.annotation(SIDECAR_PHASE) {
        match value {
            "Count" => count_sidecars(draft),
            "Ignore" => {}
            _ => bad(draft, SIDECAR_PHASE, value, "`Count` or `Ignore`"),
        }
    }
    sidecar_restarts(draft);
    if let Some(value) = draft.annotation(PRE_STOP) {
        match value {
            "own-turn" => {
                for c in &mut draft.plan.containers {
                    c.pre_stop_when = PreStopWhen::OwnTurn;
                }
            }
            "at-once" => {
                for c in &mut draft.plan.containers {
                    c.pre_stop_when = PreStopWhen::AtOnce;
                }
            }
            _ => bad(draft, PRE_STOP, value, "`own-turn` or `at-once`"),
        }
    }
    if let Some(value) = draft.annotation(SIDECAR_GRACE) {
        match duration_ms(value) {
            Some(ms) if ms <= draft.plan.grace_ms => draft.plan.sidecar_grace_ms = ms,
            Some(_) => {
                let grace = draft.plan.grace_ms / 1_000;
                draft.findings.push(
                    Finding::error(
                        "sidecar-grace",
                        FieldPath::annotation(SIDECAR_GRACE),
                        format!("{value} for sidecars is more than the pod's grace period of {grace} s"),
                    )
                    .related(FieldPath::spec("terminationGracePeriodSeconds"), "the pod's grace period")
                    .hint("raise terminationGracePeriodSeconds or lower this value"),
                );
            }
            None => bad(draft, SIDECAR_GRACE, value, "a duration such as `5s` or `1500ms`"),
        }
    }
    if let Some(value) = draft.annotation(SIDECAR_DELAY) {
        match duration_ms(value).filter(|ms| *ms <= DELAY_MAX_MS) {
            Some(ms) => draft.plan.sidecar_delay_ms = ms,
            None => bad(draft, SIDECAR_DELAY, value, "a duration such as `5s` or `1500ms`, at most `24h`"),
        }
    }
    if let Some(value) = draft.annotation(STOP_GRACE) {
        stop_grace(draft, value);
    }
    if let Some(value) = draft.annotation(LAUNCH_TIMEOUT)
        && duration_ms(value).is_none()
    {
        bad(draft, LAUNCH_TIMEOUT, value, "a duration such as `90s`");
    }
    if let Some(value) = draft.annotation(POST_START_TIMEOUT) {
        match duration_ms(value) {
            Some(ms) => {
                for hook in draft.plan.containers.iter_mut().filter_map(|c| c.post_start.as_mut()) {
                    hook.timeout_ms = Some(ms);
                }
            }
            None => bad(draft, POST_START_TIMEOUT, value, "a duration such as `30s`"),
        }
    }
    if let Some(value) = draft.annotation(BACKOFF) {
        backoff(draft, value);
    }
    if let Some(value) = draft.annotation(RUN_ONCE) {
        run_once(draft, value);
    }
    if let Some(value) = draft.annotation(FENCE) {
        match value {
            "start" => fence(draft, false),
            "restart" => fence(draft, true),
            _ => return bad(draft, FENCE, value, "`start` or `restart`"),
        }
        let has_effect = |c: &ContainerPlan| c.gates.iter().any(|g| g.every_start);
        if !draft.plan.containers.iter().any(has_effect) {
            let message = format!("{FENCE} has no effect: no container of this pod waits for a sidecar");
            let hint = format!(
                "launch priorities have no fence; write it for single containers: {}: \"app: proxy ready fence\"",
                depends_on::ANNOTATION
            );
            draft.findings.push(Finding::warning("fence", FieldPath::annotation(FENCE), message).hint(hint));
        }
    }
}

/// Sidecars count for the result, except those whose author says that their own exit code does not.
fn count_sidecars(draft: &mut Draft<'_>) {
    for i in 0..draft.plan.containers.len() {
        let place = draft.plan.containers[i].place;
        let counts = if terminator::ignores_exit_code(draft, place) { Counts::No } else { Counts::Yes };
        let c = &mut draft.plan.containers[i];
        if c.role == Role::Sidecar {
            c.counts = counts;
        }
    }
}

/// Whether the annotation says that sidecars count for the result.
pub(super) fn sidecars_count(draft: &Draft<'_>) -> bool {
    draft.annotation(SIDECAR_PHASE) == Some("Count")
}

/// Whether a Job counts the restarts of sidecars as failures. Kubernetes does, so those of native sidecars
/// count; the documents of the other dialects promise that a sidecar does not decide about its Job.
fn sidecar_restarts(draft: &mut Draft<'_>) {
    let value = draft.annotation(SIDECAR_RESTARTS);
    for c in draft.plan.containers.iter_mut().filter(|c| c.role == Role::Sidecar) {
        c.job_ignores_restarts = match value {
            Some("Ignore") => true,
            Some("Count") => false,
            _ => c.dialect != Some(Dialect::Native),
        };
    }
    if let Some(value) = value.filter(|value| !["Count", "Ignore"].contains(value)) {
        bad(draft, SIDECAR_RESTARTS, value, "`Count` or `Ignore`");
    }
}

/// Lists init containers that are not run again after a reboot, nor when the pod starts over for another
/// reason (G-48).
fn run_once(draft: &mut Draft<'_>, value: &str) {
    for name in value.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let inits = draft.plan.containers.iter_mut().filter(|c| c.role == Role::Init);
        match inits.into_iter().find(|c| c.name == name) {
            Some(c) => c.run_once = true,
            None => {
                let names: Vec<&str> = draft
                    .plan
                    .containers
                    .iter()
                    .filter(|c| c.role == Role::Init)
                    .map(|c| c.name.as_str())
                    .collect();
                let hint = match names.as_slice() {
                    [] => "the pod has no init containers that run to completion: remove the annotation"
                        .to_owned(),
                    _ => format!("name one of: {}", names.join(", ")),
                };
                let message = format!("`{name}` is not an init container that runs to completion");
                let finding = Finding::error("run-once", FieldPath::annotation(RUN_ONCE), message).hint(hint);
                draft.findings.push(finding);
            }
        }
    }
}

/// Containers that depend on a sidecar start, and restart, only while it is ready; with `restart` they are
/// also stopped when it is not (G-19, G-56).
fn fence(draft: &mut Draft<'_>, restart: bool) {
    let sidecars: Vec<bool> = draft
        .plan
        .containers
        .iter()
        .map(|c| c.role == Role::Sidecar && c.dialect != Some(Dialect::Terminator))
        .collect();
    let inits = draft.inits();
    for i in 0..draft.plan.containers.len() {
        // In a chain only the last entry is a gate; a fence covers all sidecars before it.
        if !inits.contains(&i) && draft.plan.containers[i].gates.iter().any(|g| inits.contains(&g.on)) {
            for &on in inits.iter().filter(|&&on| sidecars[on]) {
                draft.gate(i, on, Need::Ready, Some(Dialect::Native));
            }
        }
        let c = &mut draft.plan.containers[i];
        for gate in c.gates.iter_mut().filter(|g| sidecars[g.on] && g.need != Need::Launched) {
            gate.need = Need::Ready;
            gate.every_start = true;
            if restart && c.role == Role::Main {
                c.fence.push(gate.on);
            }
        }
        let mut seen = Vec::new();
        c.gates.retain(|g| {
            let new = !seen.contains(&(g.on, g.need));
            seen.push((g.on, g.need));
            new
        });
        c.fence.sort_unstable();
        c.fence.dedup();
    }
}

/// `1s..60s` for all, or `proxy=1s..10s, logger=2s..60s` for some (G-09, G-63).
fn backoff(draft: &mut Draft<'_>, value: &str) {
    for part in value.split(',').map(str::trim) {
        let (name, range) = match part.split_once('=') {
            Some((name, range)) => (Some(name.trim()), range.trim()),
            None => (None, part),
        };
        let parsed = range.split_once("..").and_then(|(a, b)| Some((duration_ms(a)?, duration_ms(b)?)));
        let Some((initial_ms, max_ms)) = parsed.filter(|(a, b)| a <= b) else {
            return bad(draft, BACKOFF, value, "a range such as `1s..60s` or `proxy=1s..10s`");
        };
        let plan = BackoffPlan { initial_ms, max_ms, reset_ms: BackoffPlan::KUBELET.reset_ms };
        let mut found = false;
        for c in draft.plan.containers.iter_mut().filter(|c| name.is_none_or(|n| c.name == n)) {
            c.restart.backoff = plan;
            found = true;
        }
        if let (false, Some(name)) = (found, name) {
            return bad(draft, BACKOFF, name, "the name of a container of this pod");
        }
    }
}

/// `proxy=5s, logs=1500ms` (D7).
fn stop_grace(draft: &mut Draft<'_>, value: &str) {
    for part in value.split(',').map(str::trim) {
        let parsed = part.split_once('=').and_then(|(name, time)| Some((name.trim(), duration_ms(time)?)));
        let Some((name, ms)) = parsed else {
            return bad(draft, STOP_GRACE, value, "containers and durations such as `proxy=5s, logs=1500ms`");
        };
        let grace_ms = draft.plan.grace_ms;
        match draft.plan.containers.iter_mut().find(|c| c.name == name) {
            Some(_) if ms > grace_ms => {
                let grace = grace_ms / 1_000;
                let message = format!("{part} is more than the pod's grace period of {grace} s");
                let finding = Finding::error("stop-grace", FieldPath::annotation(STOP_GRACE), message)
                    .related(FieldPath::spec("terminationGracePeriodSeconds"), "the pod's grace period")
                    .hint("raise terminationGracePeriodSeconds or lower this value");
                return draft.findings.push(finding);
            }
            Some(c) if c.stop_grace_ms.is_some() => {
                return bad(draft, STOP_GRACE, value, "each container once");
            }
            Some(c) => c.stop_grace_ms = Some(ms),
            None => return bad(draft, STOP_GRACE, name, "the name of a container of this pod"),
        }
    }
}

fn bad(draft: &mut Draft<'_>, annotation: &'static str, value: &str, expected: &str) {
    let message = format!("invalid value {value:?}");
    draft.findings.push(
        Finding::error("option", FieldPath::annotation(annotation), message)
            .hint(format!("expected {expected}")),
    );
}

fn unknown(draft: &mut Draft<'_>) {
    let annotations = draft.input.pod.metadata.annotations.as_ref();
    for name in annotations.into_iter().flatten().map(|(name, _)| name) {
        if !name.starts_with(ANNOTATION_PREFIX) || KNOWN.contains(&name.as_str()) {
            continue;
        }
        let path = FieldPath::annotation(name.clone());
        if name == POD_BACKOFF {
            let message = format!("{name} has no effect on a pod");
            let hint = "move it to the Job's own `metadata.annotations`";
            draft.findings.push(Finding::warning("option", path, message).hint(hint));
            continue;
        }
        let mut finding = Finding::warning("option", path, format!("unknown annotation {name}"));
        if let Some(near) = nearest(name, KNOWN.into_iter()) {
            finding = finding.hint(format!("did you mean {near}?"));
        }
        draft.findings.push(finding);
    }
}
