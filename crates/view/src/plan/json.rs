//! Renders the plan as JSON. docs/reference/plan.md describes every field. Documented fields do not change.

use outrigger_lifecycle::{Amounts, ContainerPlan, HookPlan, PreStopWhen, ProbeKind, ProbePlan, RuleAction};
use outrigger_manifest::{Checked, Diagnostic, SourceFile, to_json};
use serde_json::{Map, Value, json};

use super::view::View;
use super::words;

/// Renders all pods, including those that have no plan because of errors.
pub fn render(pods: &[Checked<'_>], warnings: &[Diagnostic], sources: &[SourceFile]) -> Value {
    json!({
        "version": 1,
        "pods": pods.iter().map(|checked| pod(checked, sources)).collect::<Vec<_>>(),
        "findings": to_json(warnings, sources),
    })
}

/// The identity of a pod, its findings, and its plan if it has one.
fn pod(checked: &Checked<'_>, sources: &[SourceFile]) -> Value {
    let origin = &checked.pod.origin;
    let source = sources.get(origin.document.file);
    let mut pod = json!({
        "name": checked.pod.name(),
        "namespace": checked.pod.namespace(),
        "origin": {
            "apiVersion": origin.api_version,
            "kind": origin.kind,
            "name": origin.name,
            "file": source.map(|s| s.name.as_str()),
            "line": source.map(|s| s.position(origin.document.start).line),
            "pods": checked.count,
        },
    });
    if let (Some(pod), Some(view)) = (pod.as_object_mut(), View::new(checked)) {
        pod.extend(planned(&view));
    }
    pod["findings"] = to_json(&checked.diagnostics, sources);
    pod
}

fn planned(view: &View<'_>) -> Map<String, Value> {
    let plan = view.plan;
    let stages = |stages: &[Vec<usize>]| -> Value {
        stages.iter().map(|s| s.iter().map(|&c| view.name(c)).collect::<Vec<_>>()).collect()
    };
    let fields = json!({
        "dialects": plan.dialects.iter().map(|d| d.name()).collect::<Vec<_>>(),
        "restartPolicy": format!("{:?}", plan.restart_policy),
        "graceMs": plan.grace_ms,
        "sidecarGraceMs": plan.sidecar_grace_ms,
        "sidecarDelayMs": plan.sidecar_delay_ms,
        "activeDeadlineMs": plan.active_deadline_ms,
        "startStages": stages(&view.start),
        "stopStages": stages(&view.stop),
        "containers": (0..plan.containers.len()).map(|c| container(view, c)).collect::<Vec<_>>(),
        "resources": {
            "requests": amounts(&view.resources.requests),
            "limits": amounts(&view.resources.limits),
            "qosClass": view.qos.name(),
        },
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn amounts(amounts: &Amounts) -> Value {
    Value::Object(amounts.iter().map(|(name, amount)| (name.clone(), json!(amount.to_string()))).collect())
}

fn container(view: &View<'_>, index: usize) -> Value {
    let c = &view.plan.containers[index];
    let names = |list: &[usize]| list.iter().map(|&c| view.name(c)).collect::<Vec<_>>();
    let stage = |stages: &[Vec<usize>]| stages.iter().position(|s| s.contains(&index));
    let window = view.plan.stop_window(index, view.plan.grace_ms);
    json!({
        "name": c.name,
        "list": c.place.list.field(),
        "index": c.place.index,
        "role": words::role(c.role),
        "dialect": c.dialect.map(|d| d.name()),
        "start": {
            "stage": stage(&view.start),
            "gates": c.gates.iter().map(|g| json!({
                "on": view.name(g.on),
                "need": words::need(g.need),
                "everyStart": g.every_start,
                "dialect": g.dialect.map(|d| d.name()),
            })).collect::<Vec<_>>(),
            "restartWith": names(&c.restart_with),
            "fence": names(&c.fence),
            "says": words::starts(view, index),
        },
        "run": {
            "keepsAlive": c.keeps_alive,
            "counts": c.counts,
            "fatal": c.fatal,
            "restart": restart(c),
            "probes": probes(c),
            "postStart": c.post_start.as_ref().map(hook),
            "says": words::runs(view, index),
        },
        "stop": {
            "stage": stage(&view.stop),
            "after": names(&view.stops_after_all(index)),
            "signal": words::signal(view, c),
            "signalMsMax": window.signal_ms_max,
            "killMsMax": window.kill_ms_max,
            "preStop": c.pre_stop.as_ref().map(|h| {
                let mut hook = hook(h);
                hook["when"] = json!(match c.pre_stop_when {
                    PreStopWhen::AtOnce => "at-once",
                    PreStopWhen::OwnTurn => "own-turn",
                    PreStopWhen::FirstAndOwnTurn => "first-and-own-turn",
                });
                hook
            }),
            "says": words::stops(view, index),
        },
    })
}

fn restart(c: &ContainerPlan) -> Value {
    json!({
        "policy": format!("{:?}", c.restart.policy),
        "rules": c.restart.rules.iter().map(|r| json!({
            "action": match r.action {
                RuleAction::Restart => "Restart",
                RuleAction::RestartAllContainers => "RestartAllContainers",
            },
            "operator": if r.is_in { "In" } else { "NotIn" },
            "exitCodes": r.values,
        })).collect::<Vec<_>>(),
        "backoff": {
            "initialMs": c.restart.backoff.initial_ms,
            "maxMs": c.restart.backoff.max_ms,
            "resetMs": c.restart.backoff.reset_ms,
        },
    })
}

fn probes(c: &ContainerPlan) -> Value {
    let one = |p: &ProbePlan| {
        json!({
            "initialDelayMs": p.initial_delay_ms,
            "periodMs": p.period_ms,
            "timeoutMs": p.timeout_ms,
            "successThreshold": p.success_threshold,
            "failureThreshold": p.failure_threshold,
            "graceMs": p.grace_ms,
        })
    };
    let all = ProbeKind::ALL.iter().filter_map(|k| Some((k.name().to_owned(), one(c.probe(*k)?))));
    Value::Object(all.collect::<Map<_, _>>())
}

fn hook(h: &HookPlan) -> Value {
    json!({ "timeoutMs": h.timeout_ms, "sleepMs": h.sleep_ms })
}
