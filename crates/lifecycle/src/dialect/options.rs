//! The rules of the annotations that change how a pod runs. They exist because changing the defaults would
//! surprise authors. [`annotations::TABLE`] names the rule of each annotation.

use outrigger_text::duration_ms;

use super::annotations::{
    self, DEPENDS_ON, FENCE, Place, RESTART_BACKOFF, RUN_ONCE, Rule, SIDECAR_GRACE, SIDECAR_PHASE,
    STOP_GRACE, Unexpected,
};
use super::{Draft, terminator};
use crate::plan::{BackoffPlan, ContainerPlan, Counts, Dialect, Need, PreStopWhen, Role};
use crate::source::{FieldPath, Finding};

/// The longest delay. Sidecars only serve the mains, so a longer delay is a mistake.
const DELAY_MAX_MS: u64 = 86_400_000;

/// Applies the annotations of a pod to its plan.
pub(super) fn apply(draft: &mut Draft<'_>) {
    misplaced(draft);
    restarts_by_dialect(draft);
    for row in &annotations::TABLE {
        let (Rule::Plan(rule), Some(value)) = (row.rule, draft.annotation(row.name)) else { continue };
        if let Err(Unexpected) = rule(draft, value) {
            draft.findings.push(invalid(row.name, value, row.value));
        }
    }
}

pub(super) fn sidecar_phase(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    match value {
        "Count" => count_sidecars(draft),
        "Ignore" => {}
        _ => return Err(Unexpected),
    }
    Ok(())
}

pub(super) fn pre_stop(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    let when = match value {
        "own-turn" => PreStopWhen::OwnTurn,
        "at-once" => PreStopWhen::AtOnce,
        _ => return Err(Unexpected),
    };
    draft.plan.containers.iter_mut().for_each(|c| c.pre_stop_when = when);
    Ok(())
}

pub(super) fn sidecar_grace(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    let ms = duration_ms(value).ok_or(Unexpected)?;
    if ms <= draft.plan.grace_ms {
        draft.plan.sidecar_grace_ms = ms;
        return Ok(());
    }
    let grace = draft.plan.grace_ms / 1_000;
    let message = format!("{value} for sidecars is more than the pod's grace period of {grace} s");
    let finding = Finding::error("sidecar-grace", FieldPath::annotation(SIDECAR_GRACE), message)
        .related(FieldPath::spec("terminationGracePeriodSeconds"), "the pod's grace period")
        .hint("raise terminationGracePeriodSeconds or lower this value");
    draft.findings.push(finding);
    Ok(())
}

pub(super) fn sidecar_delay(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    draft.plan.sidecar_delay_ms = duration_ms(value).filter(|ms| *ms <= DELAY_MAX_MS).ok_or(Unexpected)?;
    Ok(())
}

/// Only the operator uses this value, in a cluster. Here it is only checked.
pub(super) fn launch_timeout(_: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    duration_ms(value).map(|_| ()).ok_or(Unexpected)
}

pub(super) fn post_start_timeout(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    let ms = duration_ms(value).ok_or(Unexpected)?;
    for hook in draft.plan.containers.iter_mut().filter_map(|c| c.post_start.as_mut()) {
        hook.timeout_ms = Some(ms);
    }
    Ok(())
}

pub(super) fn fence(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    match value {
        "start" => add_fence(draft, false),
        "restart" => add_fence(draft, true),
        _ => return Err(Unexpected),
    }
    let has_effect = |c: &ContainerPlan| c.gates.iter().any(|g| g.every_start);
    if !draft.plan.containers.iter().any(has_effect) {
        let message = format!("{FENCE} has no effect: no container of this pod waits for a sidecar");
        let hint = format!(
            "launch priorities have no fence; write it for single containers: {DEPENDS_ON}: \"app: proxy ready fence\""
        );
        draft.findings.push(Finding::warning("fence", FieldPath::annotation(FENCE), message).hint(hint));
    }
    Ok(())
}

/// Lets sidecars count for the result, except those whose authors chose to ignore their exit codes.
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

/// Sets whether a Job counts the restarts of sidecars as failures. Kubernetes counts them, so those of native
/// sidecars count. The documents of the other dialects promise that a sidecar does not affect the result of
/// its Job.
fn restarts_by_dialect(draft: &mut Draft<'_>) {
    for c in draft.plan.containers.iter_mut().filter(|c| c.role == Role::Sidecar) {
        c.job_ignores_restarts = c.dialect != Some(Dialect::Native);
    }
}

pub(super) fn sidecar_restarts(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    let ignores = match value {
        "Ignore" => true,
        "Count" => false,
        _ => return Err(Unexpected),
    };
    for c in draft.plan.containers.iter_mut().filter(|c| c.role == Role::Sidecar) {
        c.job_ignores_restarts = ignores;
    }
    Ok(())
}

/// Sets the init containers that do not run again, neither after a reboot nor when the pod starts over for
/// another reason (G-48).
pub(super) fn run_once(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
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
    Ok(())
}

/// Adds fences: containers that depend on a sidecar start and restart only while it is ready. With `restart`
/// they are also stopped while it is not ready (G-19, G-56).
fn add_fence(draft: &mut Draft<'_>, restart: bool) {
    let sidecars: Vec<bool> = draft
        .plan
        .containers
        .iter()
        .map(|c| c.role == Role::Sidecar && c.dialect != Some(Dialect::Terminator))
        .collect();
    let inits = draft.inits();
    for i in 0..draft.plan.containers.len() {
        // In a chain, a container has a gate only on the last init entry, but a fence covers all sidecars
        // before it.
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
pub(super) fn restart_backoff(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    for part in value.split(',').map(str::trim) {
        let (name, range) = match part.split_once('=') {
            Some((name, range)) => (Some(name.trim()), range.trim()),
            None => (None, part),
        };
        let parsed = range.split_once("..").and_then(|(a, b)| Some((duration_ms(a)?, duration_ms(b)?)));
        let (initial_ms, max_ms) = parsed.filter(|(a, b)| a <= b).ok_or(Unexpected)?;
        let plan = BackoffPlan { initial_ms, max_ms, reset_ms: BackoffPlan::KUBELET.reset_ms };
        let mut found = false;
        for c in draft.plan.containers.iter_mut().filter(|c| name.is_none_or(|n| c.name == n)) {
            c.restart.backoff = plan;
            found = true;
        }
        if let (false, Some(name)) = (found, name) {
            draft.findings.push(invalid(RESTART_BACKOFF, name, "the name of a container of this pod"));
            return Ok(());
        }
    }
    Ok(())
}

/// `proxy=5s, logs=1500ms` (KD7).
pub(super) fn stop_grace(draft: &mut Draft<'_>, value: &str) -> Result<(), Unexpected> {
    for part in value.split(',').map(str::trim) {
        let parsed = part.split_once('=').and_then(|(name, time)| Some((name.trim(), duration_ms(time)?)));
        let (name, ms) = parsed.ok_or(Unexpected)?;
        let grace_ms = draft.plan.grace_ms;
        let finding = match draft.plan.containers.iter_mut().find(|c| c.name == name) {
            Some(_) if ms > grace_ms => {
                let grace = grace_ms / 1_000;
                let message = format!("{part} is more than the pod's grace period of {grace} s");
                Finding::error("stop-grace", FieldPath::annotation(STOP_GRACE), message)
                    .related(FieldPath::spec("terminationGracePeriodSeconds"), "the pod's grace period")
                    .hint("raise terminationGracePeriodSeconds or lower this value")
            }
            Some(c) if c.stop_grace_ms.is_some() => invalid(STOP_GRACE, value, "each container once"),
            Some(c) => {
                c.stop_grace_ms = Some(ms);
                continue;
            }
            None => invalid(STOP_GRACE, name, "the name of a container of this pod"),
        };
        draft.findings.push(finding);
        break;
    }
    Ok(())
}

fn invalid(annotation: &'static str, value: &str, expected: &str) -> Finding {
    Finding::error("option", FieldPath::annotation(annotation), format!("invalid value {value:?}"))
        .hint(format!("expected {expected}"))
}

/// Warns about annotations with the prefix that are unknown, or that a pod cannot have.
fn misplaced(draft: &mut Draft<'_>) {
    let written = draft.input.pod.metadata.annotations.as_ref();
    for name in written.into_iter().flat_map(|all| all.keys()).filter(|n| n.starts_with(annotations::PREFIX))
    {
        let (message, hint) = match annotations::find(name).map(|row| row.place) {
            Some(Place::Pod | Place::OperatorOnly) => continue,
            Some(Place::Job) => (
                format!("{name} has no effect on a pod"),
                Some("move it to the Job's own `metadata.annotations`".to_owned()),
            ),
            None => (
                format!("unknown annotation {name}"),
                annotations::meant(name).map(|near| format!("did you mean {near}?")),
            ),
        };
        let mut finding = Finding::warning("option", FieldPath::annotation(name.clone()), message);
        finding.hint = hint;
        draft.findings.push(finding);
    }
}
