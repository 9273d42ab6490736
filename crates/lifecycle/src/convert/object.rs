//! Applies edits of a manifest to an object. Webhooks use this because they have no text; the patch for the
//! API server is the difference between the object before and after.

use serde_json::{Map, Value};

use super::Edit;
use crate::source::{FieldPath, Segment};

/// Applies edits in order. Something that an edit removes or moves may be missing, because an API server
/// drops fields that it does not know.
pub fn apply(object: &mut Value, edits: &[Edit]) {
    for edit in edits {
        match edit {
            Edit::Set { path, value } => *make(object, &path.0) = value.clone(),
            Edit::Insert { map, key, value, .. } => {
                if let Some(map) = make(object, &map.0).as_object_mut() {
                    map.insert((*key).to_owned(), value.clone());
                }
            }
            Edit::Append { list, value } => {
                let list = make(object, &list.0);
                if list.is_null() {
                    *list = Value::Array(Vec::new());
                }
                if let Some(list) = list.as_array_mut() {
                    list.push(value.clone());
                }
            }
            Edit::Prune { path } => prune(object, &path.0),
            Edit::Move { from, to, index } => relocate(object, from, to, *index),
        }
    }
}

fn get_mut<'v>(object: &'v mut Value, path: &[Segment]) -> Option<&'v mut Value> {
    path.iter().try_fold(object, |value, segment| match segment {
        Segment::Field(name) => value.get_mut(name.as_ref()),
        Segment::Index(index) => value.get_mut(*index),
    })
}

/// The value at a path. Missing maps on the way are created.
fn make<'v>(object: &'v mut Value, path: &[Segment]) -> &'v mut Value {
    let mut value = object;
    for segment in path {
        value = match segment {
            Segment::Field(name) => {
                if !value.is_object() {
                    *value = Value::Object(Map::new());
                }
                &mut value[name.as_ref()]
            }
            Segment::Index(index) => {
                if !value.is_array() {
                    *value = Value::Array(Vec::new());
                }
                if let Some(list) = value.as_array_mut()
                    && list.len() <= *index
                {
                    list.resize(*index + 1, Value::Null);
                }
                &mut value[*index]
            }
        };
    }
    value
}

fn prune(object: &mut Value, path: &[Segment]) {
    let Some((last, parent)) = path.split_last() else { return };
    let Some(holder) = get_mut(object, parent) else { return };
    let is_empty = match (last, holder) {
        (Segment::Field(name), Value::Object(map)) => {
            map.shift_remove(name.as_ref());
            map.is_empty()
        }
        (Segment::Index(index), Value::Array(list)) if *index < list.len() => {
            list.remove(*index);
            list.is_empty()
        }
        _ => false,
    };
    if is_empty && parent.len() > 1 {
        prune(object, parent);
    }
}

fn relocate(object: &mut Value, from: &FieldPath, to: &FieldPath, index: usize) {
    let Some((Segment::Index(at), list)) = from.0.split_last() else { return };
    let Some(Value::Array(source)) = get_mut(object, list) else { return };
    if *at >= source.len() {
        return;
    }
    let entry = source.remove(*at);
    // The index was counted before the entry was removed.
    let index = if list == to.0.as_slice() && *at < index { index - 1 } else { index };
    let target = make(object, &to.0);
    if target.is_null() {
        *target = Value::Array(Vec::new());
    }
    if let Value::Array(target) = target {
        target.insert(index.min(target.len()), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{Target, convert};
    use crate::{ContainerRef, FeatureGates, List, PodInput, plan};
    use serde_json::json;

    #[test]
    fn a_pod_is_converted_without_its_text() {
        let mut object = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "app", "image": "i"}, {"name": "proxy", "image": "i"}]}});
        let pod = serde_json::from_value(object.clone()).unwrap();
        let proxy = ContainerRef { list: List::Main, index: 1 };
        let input = PodInput { pod, lifecycle_types: [(proxy, "Sidecar".to_owned())].into() };
        let planned = plan(&input, &FeatureGates::default()).unwrap();
        apply(&mut object, &convert(&input, &planned.plan, Target::Native));
        assert_eq!(object["spec"]["initContainers"][0]["name"], "proxy");
        assert_eq!(object["spec"]["initContainers"][0]["restartPolicy"], "Always");
        assert_eq!(object["spec"]["containers"].as_array().map(Vec::len), Some(1));
    }
}
