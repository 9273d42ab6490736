//! Reports Kruise's annotations and variables that are well formed but have no effect.
//!
//! The priority and terminator dialects define what they mean, and report malformed ones.

use super::{Site, words};
use crate::source::{FieldPath, Finding, List, PodInput};

const ORDERED: &str = "apps.kruise.io/container-launch-priority";
const PRIORITIES: [&str; 2] = ["KRUISE_CONTAINER_PRIORITY", "KRUISE_CONTAINER_LAUNCH_PRIORITY"];
const BARRIERS: [&str; 2] = ["KRUISE_CONTAINER_BARRIER", "KRUISE_CONTAINER_LAUNCH_BARRIER"];
const SWITCHES: [&str; 2] =
    ["KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE"];
const SWAP_IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";

/// Whether a variable is the barrier that Kruise's webhook injects (LP-10). Kruise's controller writes its
/// ConfigMap, so here the variable is removed from containers and the ConfigMap is not needed.
pub fn is_launch_barrier(variable: &str) -> bool {
    BARRIERS.contains(&variable)
}

pub(super) fn check(out: &mut Vec<Finding>, input: &PodInput, sites: &[Site<'_>]) {
    let annotations = input.pod.metadata.annotations.as_ref();
    let ordered = annotations.and_then(|a| a.get(ORDERED)).is_some_and(|v| v == "Ordered");
    let mains: Vec<&Site<'_>> = sites.iter().filter(|s| s.place.list == List::Main).collect();
    if let [only] = mains.as_slice() {
        let place = match ordered {
            true => Some(FieldPath::annotation(ORDERED)),
            // One that is malformed is reported as that.
            false => priority(only).filter(|(_, value)| value.parse::<i32>().is_ok()).map(|(path, _)| path),
        };
        if let Some(place) = place {
            out.push(
                Finding::warning("LP-3", place, "launch priority has no effect in a pod with one container")
                    .hint("it orders the entries of `spec.containers` only, not init containers"),
            );
        }
    } else if !ordered {
        all_equal(out, &mains);
    }
    for site in sites {
        variables(out, site);
    }
}

/// Reports priorities that are all equal, and so order nothing (LP-7).
fn all_equal(out: &mut Vec<Finding>, mains: &[&Site<'_>]) {
    let found: Vec<Option<(FieldPath, &str)>> = mains.iter().map(|s| priority(s)).collect();
    let Some(Some((path, value))) = found.iter().find(|f| f.is_some()) else { return };
    let Ok(value) = value.parse::<i64>() else { return };
    let same = |f: &Option<(FieldPath, &str)>| match f {
        Some((_, text)) => text.parse() == Ok(value),
        None => value == 0,
    };
    if mains.len() > 1 && found.iter().all(same) {
        let message = format!("every container has launch priority {value}: nothing is ordered");
        out.push(
            Finding::warning("LP-7", path.clone(), message)
                .hint("give the container that must be up first a higher priority"),
        );
    }
}

/// The last priority variable of a container (LP-5).
fn priority<'a>(site: &'a Site<'_>) -> Option<(FieldPath, &'a str)> {
    let env = site.container.env.as_deref().unwrap_or_default();
    let i = env.iter().rposition(|e| PRIORITIES.contains(&e.name.as_str()))?;
    let path = site.at("env").index(i).field("value");
    Some((path, env[i].value.as_deref().unwrap_or_default()))
}

/// The variable that a misspelt name was probably meant to be.
fn misspelt(name: &str) -> Option<&'static str> {
    let known = PRIORITIES.into_iter().chain(BARRIERS).chain(SWITCHES).chain([SWAP_IMAGE]);
    if !name.to_ascii_uppercase().starts_with("KRUISE_") || known.clone().any(|known| known == name) {
        return None;
    }
    words::nearest(name, known)
}

fn variables(out: &mut Vec<Finding>, site: &Site<'_>) {
    for (i, var) in site.container.env.iter().flatten().enumerate() {
        let path = site.at("env").index(i);
        if let Some(meant) = misspelt(&var.name) {
            let message =
                format!("{} is not a variable of Kruise and has no effect", words::quote(&var.name));
            out.push(
                Finding::warning("kruise-variable", path.clone().field("name"), message)
                    .hint(format!("did you mean {meant}?")),
            );
        }
        if is_launch_barrier(&var.name) {
            let message = format!(
                "{} is set by Kruise's webhook; it is left out here, containers wait for each other without it",
                words::quote(&var.name)
            );
            out.push(
                Finding::warning("LP-10", path.clone().field("name"), message)
                    .hint("remove it before you apply the manifest to a cluster: Kruise adds a second one, and the old one never opens"),
            );
        }
        let value = var.value.as_deref().unwrap_or_default();
        if SWITCHES.contains(&var.name.as_str())
            && !["true", "false", ""].contains(&&*value.to_ascii_lowercase())
        {
            let message = format!(
                "{} of {} is neither `true` nor `false` and is treated as false",
                words::quote(value),
                var.name
            );
            out.push(Finding::warning("ST-1", path.clone().field("value"), message).hint("write \"true\""));
        }
        if SWITCHES.contains(&var.name.as_str()) && var.value_from.is_some() {
            let message =
                format!("{} only counts with a literal value; valueFrom is treated as false", var.name);
            out.push(
                Finding::warning("ST-1", path.field("valueFrom"), message).hint("write `value: \"true\"`"),
            );
        }
    }
}
