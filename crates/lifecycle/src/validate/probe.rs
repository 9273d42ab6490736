//! Checks probes: numbers and handler (docs/internals/spec/kubelet-lifecycle.md section 6.1, R8.14 to R8.17).

use k8s_openapi::api::core::v1::Probe;

use super::{Site, handler};
use crate::plan::ProbeKind;
use crate::source::{FieldPath, Finding, List};

pub(super) fn check(out: &mut Vec<Finding>, site: &Site<'_>, sites: &[Site<'_>]) {
    // R8.4 and R8.29 have already reported it.
    if site.is_plain_init() || site.place.list == List::Ephemeral {
        return;
    }
    let c = &site.container;
    for (kind, field, probe) in [
        (ProbeKind::Startup, "startupProbe", &c.startup_probe),
        (ProbeKind::Liveness, "livenessProbe", &c.liveness_probe),
        (ProbeKind::Readiness, "readinessProbe", &c.readiness_probe),
    ] {
        if let Some(probe) = probe {
            numbers(out, site.at(field), kind, probe);
            handler::check(out, site.at(field), &probe.into(), site, sites);
        }
    }
}

fn numbers(out: &mut Vec<Finding>, path: FieldPath, kind: ProbeKind, probe: &Probe) {
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value
            && value < 0
        {
            let message = format!("{field} {value} is negative");
            out.push(Finding::error("R8.17", path.clone().field(field), message));
        }
    }
    if kind != ProbeKind::Readiness
        && let Some(n) = probe.success_threshold
        && n > 1
    {
        let message = format!("successThreshold {n} of a {} probe: it must be 1", kind.name());
        out.push(
            Finding::error("R8.14", path.clone().field("successThreshold"), message)
                .hint("remove it; only a readiness probe can ask for several successes"),
        );
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let path = path.field("terminationGracePeriodSeconds");
        if kind == ProbeKind::Readiness {
            out.push(
                Finding::error("R8.15", path, "a readiness probe kills nothing and has no grace")
                    .hint("remove it, or set it on the liveness or startup probe"),
            );
        } else if seconds < 1 {
            let message =
                format!("a probe's terminationGracePeriodSeconds must be at least 1, not {seconds}");
            out.push(Finding::error("R8.16", path, message));
        }
    }
}
