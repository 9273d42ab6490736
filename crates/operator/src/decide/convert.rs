//! Converts a container recreate request between its two versions (CRR-6). It works on the JSON, so that no
//! unknown field is lost. It never fails: values that cannot be read are left out.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::names;

/// Converts the request to `wanted`, which is `apps.kruise.io/v1alpha1` or `apps.kruise.io/v1beta1`. `None`
/// for another version.
pub fn convert(object: &Value, wanted: &str) -> Option<Value> {
    let mut out = object.clone();
    let is_old = |version: &str| match version.strip_prefix(names::GROUP)?.strip_prefix('/')? {
        "v1alpha1" => Some(true),
        "v1beta1" => Some(false),
        _ => None,
    };
    let from = is_old(object["apiVersion"].as_str().unwrap_or_default())?;
    let to = is_old(wanted)?;
    out["apiVersion"] = json!(wanted);
    match (from, to) {
        (true, false) => to_v1beta1(&mut out),
        (false, true) => to_v1alpha1(&mut out),
        _ => {}
    }
    Some(out)
}

fn annotation<'v>(object: &'v Value, name: &str) -> Option<&'v str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

fn to_v1beta1(object: &mut Value) {
    let snapshot =
        annotation(object, names::CRR_SNAPSHOT).and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(snapshot) = snapshot.filter(|s| s.as_array().is_some_and(|s| s.iter().all(Value::is_object)))
    {
        status(object)["containerStatusSnapshot"] = snapshot;
    }
    let acquired = annotation(object, names::CRR_UNREADY).filter(|time| time.parse::<Timestamp>().is_ok());
    if let Some(time) = acquired.map(str::to_owned) {
        let condition = json!({
            "type": names::CRR_GRACE, "status": "True", "lastTransitionTime": time,
            "reason": "UnreadyAcquired", "message": "",
        });
        let conditions = &mut status(object)["conditions"];
        match conditions.as_array_mut() {
            Some(list) => {
                list.retain(|c| c["type"] != names::CRR_GRACE);
                list.push(condition);
            }
            None => *conditions = json!([condition]),
        }
    }
}

/// The fields of v1beta1 stay as well, so that a change made through v1alpha1 does not lose them.
fn to_v1alpha1(object: &mut Value) {
    let status = object.get("status");
    let snapshot = status
        .and_then(|s| s.get("containerStatusSnapshot"))
        .filter(|s| s.as_array().is_some_and(|s| !s.is_empty()));
    let snapshot = snapshot.map(Value::to_string);
    let conditions = status.and_then(|s| s.get("conditions")).and_then(Value::as_array);
    let acquired =
        conditions.into_iter().flatten().find(|c| c["type"] == names::CRR_GRACE && c["status"] == "True");
    let acquired = acquired.and_then(|c| c["lastTransitionTime"].as_str()).map(str::to_owned);
    for (name, value) in [(names::CRR_SNAPSHOT, snapshot), (names::CRR_UNREADY, acquired)] {
        let Some(value) = value else { continue };
        let metadata = &mut object["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][name] = json!(value);
    }
}

fn status(object: &mut Value) -> &mut Value {
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    &mut object["status"]
}
