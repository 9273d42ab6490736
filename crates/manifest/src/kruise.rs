//! Reads workloads of OpenKruise as the Kubernetes workloads that they extend.

use outrigger_lifecycle::FieldPath;

use crate::diagnostic::Diagnostic;
use crate::scalar::Scalar;
use crate::span::Span;
use crate::tree::{Entry, Node, Value};

/// The group of Kruise's workloads.
const GROUP: &str = "apps.kruise.io";

/// A rewritten workload of Kruise.
pub(crate) struct Rewritten {
    /// The kind of `apps/v1` that it is read as.
    pub(crate) kind: &'static str,
    /// The object without the fields that only Kruise has.
    pub(crate) object: Node,
    /// A note or warning that the workload was rewritten.
    pub(crate) note: Diagnostic,
}

/// The kind of `apps/v1` that a kind of Kruise is read as, and the fields that `apps/v1` does not have.
fn extra_fields(kind: &str) -> Option<(&'static str, &'static [&'static [&'static str]])> {
    Some(match kind {
        "CloneSet" => (
            "Deployment",
            &[&["spec", "scaleStrategy"], &["spec", "updateStrategy"], &["spec", "lifecycle"], &["status"]],
        ),
        "StatefulSet" => (
            "StatefulSet",
            &[
                &["spec", "reserveOrdinals"],
                &["spec", "scaleStrategy"],
                &["spec", "lifecycle"],
                &["spec", "volumeClaimUpdateStrategy"],
                &["spec", "updateStrategy", "rollingUpdate", "podUpdatePolicy"],
                &["spec", "updateStrategy", "rollingUpdate", "unorderedUpdate"],
                &["spec", "updateStrategy", "rollingUpdate", "paused"],
                &["spec", "updateStrategy", "rollingUpdate", "minReadySeconds"],
                &["spec", "updateStrategy", "rollingUpdate", "inPlaceUpdateStrategy"],
                &["status"],
            ],
        ),
        "DaemonSet" => (
            "DaemonSet",
            &[
                &["spec", "burstReplicas"],
                &["spec", "lifecycle"],
                &["spec", "scaleStrategy"],
                &["spec", "updateStrategy"],
                &["status"],
            ],
        ),
        _ => return None,
    })
}

/// Whether a kind of Kruise is read as this Kubernetes kind.
pub(crate) fn is_read_as(written: &str, kind: &str) -> bool {
    // A CloneSet with claims is a StatefulSet.
    written == "CloneSet" && (kind == "Deployment" || kind == "StatefulSet")
}

/// Rewrites a workload of Kruise as the workload of `apps/v1` that it extends. Any other object is returned
/// unchanged as the error.
pub(crate) fn rewrite(api_version: &str, kind: &str, mut object: Node) -> Result<Rewritten, Node> {
    let group = api_version.split_once('/').map(|(group, _)| group);
    let extra = extra_fields(kind).filter(|_| group == Some(GROUP));
    let Some((mut as_kind, fields)) = extra else { return Err(object) };
    let at = object.entry("kind").map_or(object.head(), |entry| entry.value.head());
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Node::text);
    let mut title = format!("{GROUP} {kind}{}", name.map(|n| format!(" `{n}`")).unwrap_or_default());
    let mut ignored = Vec::new();
    for field in fields {
        if remove(&mut object, field) && field[0] == "spec" {
            let path = field.iter().fold(FieldPath::root(), |path, name| path.field(*name));
            ignored.push(format!("`{path}`"));
        }
    }
    if update_type(&object).is_some_and(|kind| !UPDATE_TYPES.contains(&kind)) {
        remove(&mut object, &UPDATE_TYPE);
        ignored.push("`spec.updateStrategy.type`".to_owned());
    }
    let has_claims = object.get("spec").and_then(|spec| spec.get("volumeClaimTemplates")).is_some();
    title.push_str(&match kind {
        "CloneSet" if has_claims => {
            // Its pods have claims of their own and start in any order, as in a StatefulSet with `Parallel`.
            as_kind = "StatefulSet";
            start_together(&mut object, at);
            " runs as an apps/v1 StatefulSet, because its pods have claims of their own".to_owned()
        }
        _ => format!(" runs as an apps/v1 {as_kind}"),
    });
    name_type(&mut object, as_kind);
    let note = match ignored.as_slice() {
        [] => Diagnostic::note(at, title),
        [one] => Diagnostic::warning(at, title).hint(format!("{one} is ignored")),
        all => Diagnostic::warning(at, title).hint(format!("{} are ignored", all.join(", "))),
    };
    Ok(Rewritten { kind: as_kind, object, note })
}

/// How pods are updated. Kruise has more ways than `apps/v1`.
const UPDATE_TYPE: [&str; 3] = ["spec", "updateStrategy", "type"];
const UPDATE_TYPES: [&str; 2] = ["OnDelete", "RollingUpdate"];

fn update_type(object: &Node) -> Option<&str> {
    UPDATE_TYPE.iter().try_fold(object, |node, field| node.get(field))?.text()
}

/// Removes a field. Returns whether it existed.
fn remove(object: &mut Node, path: &[&str]) -> bool {
    let (Value::Map(entries), [first, rest @ ..]) = (&mut object.value, path) else { return false };
    let Some(at) = entries.iter().position(|entry| &*entry.key == *first) else { return false };
    match rest {
        [] => {
            entries.remove(at);
            true
        }
        _ => remove(&mut entries[at].value, rest),
    }
}

/// Sets the apiVersion and kind that the object is read as.
fn name_type(object: &mut Node, kind: &str) {
    let Value::Map(entries) = &mut object.value else { return };
    for entry in entries {
        let text = match &*entry.key {
            "apiVersion" => "apps/v1",
            "kind" => kind,
            _ => continue,
        };
        entry.value.value = word(text);
    }
}

fn word(text: &str) -> Value {
    Value::Scalar(Scalar { text: text.into(), plain: true, pieces: [].into() })
}

/// Adds `podManagementPolicy: Parallel` to a spec.
fn start_together(object: &mut Node, at: Span) {
    let Value::Map(entries) = &mut object.value else { return };
    let Some(spec) = entries.iter_mut().find(|entry| &*entry.key == "spec") else { return };
    let Value::Map(spec) = &mut spec.value.value else { return };
    spec.push(Entry {
        key: "podManagementPolicy".into(),
        key_span: at,
        key_plain: true,
        merged: false,
        value: Node { span: at, alias: None, flow: false, value: word("Parallel") },
    });
}
