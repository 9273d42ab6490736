//! Warns about resource limits that cannot be set on this machine.

use outrigger_embedded::doctor;
use outrigger_lifecycle::{ContainerRef, List};
use outrigger_manifest::{Diagnostic, Span};
use outrigger_runtime::doctor::Level;

use crate::work::Work;

/// Warnings about limits that have no effect.
pub(super) fn without_effect(work: &Work) -> Vec<Diagnostic> {
    let mut limited = Vec::new();
    for pod in &work.pods {
        let Some(spec) = &pod.manifest.input.pod.spec else { continue };
        let inits = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| (List::Init, i, c));
        let mains = spec.containers.iter().enumerate().map(|(i, c)| (List::Main, i, c));
        for (list, index, c) in inits.chain(mains) {
            let limits = c.resources.as_ref().and_then(|r| r.limits.as_ref());
            if limits.is_some_and(|l| l.contains_key("cpu") || l.contains_key("memory")) {
                let path = ContainerRef { list, index }.path().field("resources").field("limits");
                limited.push((c.name.clone(), pod.manifest.point(&path)));
            }
        }
    }
    if limited.is_empty() {
        return Vec::new();
    }
    let cgroups = doctor::cgroups_here();
    if cgroups.level == Level::Ok {
        return Vec::new();
    }
    let warning = |(name, span): (String, Span)| {
        let text = format!("the limits of `{name}` do not apply on this machine (cgroups {})", cgroups.found);
        let warning = Diagnostic::warning(span, text);
        match cgroups.remedy.clone() {
            Some(remedy) => warning.hint(remedy),
            None => warning,
        }
    };
    limited.into_iter().map(warning).collect()
}
