//! Checks requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Site, words};
use crate::resources::{Amount, parse_quantity};
use crate::source::{FieldPath, Finding, List};

const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

pub(super) fn check(out: &mut Vec<Finding>, site: &Site<'_>) {
    // R8.29 refuses resources on ephemeral containers.
    if let Some(resources) = &site.container.resources
        && site.place.list != List::Ephemeral
    {
        requirements(out, site.at("resources"), resources);
    }
}

pub(super) fn requirements(out: &mut Vec<Finding>, path: FieldPath, resources: &ResourceRequirements) {
    let empty = BTreeMap::new();
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let parsed_limits = list(out, &path.clone().field("limits"), limits);
    // Requests that the author did not write are copies of the limits. One message is enough.
    let own: BTreeMap<String, Quantity> = requests
        .iter()
        .filter(|(name, quantity)| limits.get(*name) != Some(quantity))
        .map(|(name, quantity)| (name.clone(), quantity.clone()))
        .collect();
    for (name, request) in list(out, &path.clone().field("requests"), &own) {
        let Some(limit) = parsed_limits.get(&name) else { continue };
        let texts = (words::quote(&requests[&name].0), words::quote(&limits[&name].0));
        let at = |field: &'static str| path.clone().field(field).field(name.clone());
        if request > *limit {
            let message = format!("the {name} request of {} is more than its limit of {}", texts.0, texts.1);
            out.push(
                Finding::error("resources", at("requests"), message)
                    .related(at("limits"), "the limit")
                    .hint("raise the limit or lower the request"),
            );
        } else if request != *limit && !STANDARD.contains(&name.as_str()) {
            let message = format!(
                "the request of {} {} differs from its limit of {}",
                words::quote(&name),
                texts.0,
                texts.1
            );
            out.push(
                Finding::error("resources", at("requests"), message)
                    .related(at("limits"), "the limit")
                    .hint("such a resource cannot be overcommitted: make them equal"),
            );
        }
    }
}

/// Checks one list, and returns its valid entries.
fn list(
    out: &mut Vec<Finding>,
    path: &FieldPath,
    list: &BTreeMap<String, Quantity>,
) -> BTreeMap<String, Amount> {
    let mut parsed = BTreeMap::new();
    for (name, quantity_text) in list {
        let at = path.clone().field(name.clone());
        let known = STANDARD.contains(&name.as_str()) || name.starts_with("hugepages-");
        if !known && (!name.contains('/') || words::qualified_name_fault(name).is_some()) {
            out.push(words::not_one_of("resources", at.clone(), "a resource", name, &STANDARD));
        }
        if let Some(value) = quantity(out, "resources", at, &quantity_text.0) {
            parsed.insert(name.clone(), value);
        }
    }
    parsed
}

/// Checks that a quantity is valid and not negative.
pub(super) fn quantity(
    out: &mut Vec<Finding>,
    code: &'static str,
    path: FieldPath,
    text: &str,
) -> Option<Amount> {
    match parse_quantity(text) {
        Ok(value) if !value.is_negative() => Some(value),
        Ok(_) => {
            out.push(Finding::error(code, path, format!("quantity {} is negative", words::quote(text))));
            None
        }
        Err(_) => {
            let finding = Finding::error(code, path, format!("{} is not a quantity", words::quote(text)));
            out.push(finding.hint(unit_hint(text)));
            None
        }
    }
}

fn unit_hint(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "MB" | "mb" | "Mb" | "mib" | "MiB" => "Mi",
        "GB" | "gb" | "Gb" | "gib" | "GiB" => "Gi",
        "KB" | "kb" | "K" | "kib" | "KiB" => "Ki",
        "TB" | "tb" | "TiB" => "Ti",
        _ => return "write for example `500m`, `2`, `64Mi` or `1Gi`".to_owned(),
    };
    format!("write {}", words::quote(&format!("{}{unit}", digits.trim())))
}
