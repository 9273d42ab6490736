//! Writes objects back, including the fields that Kubernetes' types do not have.

use std::collections::BTreeMap;

use outrigger_lifecycle::{ContainerRef, FieldPath, Segment};
use serde::Serialize;
use serde_json::{Value, json};

/// An object as JSON, with the `lifecycle.type` of each container added again. `template` is the path from
/// the object to its pod, which is empty for a Pod.
///
/// # Errors
/// The object cannot be written as JSON.
pub fn to_value(
    object: &impl Serialize,
    template: &FieldPath,
    lifecycle_types: &BTreeMap<ContainerRef, String>,
) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(object)?;
    for (place, text) in lifecycle_types {
        let path = template.0.iter().cloned().chain(place.path().0);
        let container = path.into_iter().try_fold(&mut value, |at, segment| match segment {
            Segment::Field(name) => at.get_mut(&*name),
            Segment::Index(index) => at.get_mut(index),
        });
        if let Some(Value::Object(container)) = container {
            let lifecycle = container.entry("lifecycle").or_insert_with(|| json!({}));
            if lifecycle.is_null() {
                *lifecycle = json!({});
            }
            if let Value::Object(lifecycle) = lifecycle {
                lifecycle.insert("type".to_owned(), text.as_str().into());
            }
        }
    }
    Ok(value)
}
