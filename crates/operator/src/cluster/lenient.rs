//! Reads objects that users write. An unreadable object must not break the list that contains it, because
//! that list has every pod of the cluster.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

/// An object, or its identity if the rest cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct Lenient<K> {
    object: K,
    fault: Option<String>,
}

impl<K: Resource> Lenient<K> {
    /// Returns the object if it can be read. Otherwise returns its identity and the error.
    pub(crate) fn read(self) -> Result<K, Unreadable<K>> {
        match self.fault {
            None => Ok(self.object),
            Some(why) => Err(Unreadable { identity: self.object, why }),
        }
    }
}

/// An object that cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable<K> {
    /// Its name, namespace and uid. All other fields are empty.
    pub(crate) identity: K,
    why: String,
}

impl<K: Resource> fmt::Display for Unreadable<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meta = self.identity.meta();
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        write!(f, "{}/{}: {}", namespace.unwrap_or_default(), name.unwrap_or_default(), self.why)
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        // These fields are not used here, and users who may change an object can write any value into them.
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
        let identity = identity(&value);
        match serde_json::from_value(value) {
            Ok(object) => Ok(Lenient { object, fault: None }),
            Err(error) => {
                let object = serde_json::from_value(identity).map_err(D::Error::custom)?;
                Ok(Lenient { object, fault: Some(error.to_string()) })
            }
        }
    }
}

/// The fields of an object that the API server sets itself.
fn identity(value: &Value) -> Value {
    let texts = |from: Option<&Value>, names: &[&str]| -> Map<String, Value> {
        let text = |name: &&str| Some(((*name).to_owned(), from?.get(name)?.as_str()?.into()));
        names.iter().filter_map(text).collect()
    };
    let mut object = texts(Some(value), &["apiVersion", "kind"]);
    let metadata = texts(value.get("metadata"), &["name", "namespace", "uid", "resourceVersion"]);
    object.insert("metadata".to_owned(), json!(metadata));
    Value::Object(object)
}

impl<K: Resource> Resource for Lenient<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Progress, Request};
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::{ObjectList, WatchEvent};

    fn list(items: Value) -> Vec<Result<String, String>> {
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items});
        let list: ObjectList<Lenient<Pod>> = serde_json::from_value(list).expect("a list");
        let read = |pod: Lenient<Pod>| {
            let name = pod.meta().name.clone().unwrap_or_default();
            pod.read().map(|_| name.clone()).map_err(|fault| fault.to_string())
        };
        list.items.into_iter().map(read).collect()
    }

    #[test]
    fn an_object_that_cannot_be_read_does_not_break_its_list() {
        let never = "9999-12-31T23:59:59Z";
        let found = list(json!([
            {"metadata": {"name": "a", "managedFields": [{"time": never}]}},
            {"metadata": {"name": "b", "namespace": "n", "uid": "u"}, "status": {"startTime": never}},
            {"metadata": {"name": "c"}},
        ]));
        assert_eq!(found[0], Ok("a".to_owned()), "what is not used does not count");
        assert_eq!(found[2], Ok("c".to_owned()));
        let fault = found[1].as_ref().expect_err("a time beyond all times");
        assert!(fault.starts_with("n/b: "), "{fault}");
        let changed = json!({"type": "MODIFIED", "object": {"metadata": {"name": "b"}, "status": {"startTime": never}}});
        let changed: WatchEvent<Lenient<Pod>> = serde_json::from_value(changed).expect("an event");
        assert!(matches!(changed, WatchEvent::Modified(pod) if pod.fault.is_some()));
    }

    #[test]
    fn unknown_states_of_a_request_are_pending() {
        let request = json!({"status": {"phase": "Bogus", "containerRecreateStates": [{"name": "a", "phase": "Whatever"}]}});
        let request: Request = serde_json::from_value(request).expect("a request");
        assert_eq!(request.status.container_recreate_states[0].phase, Progress::Pending);
        // A time that cannot be represented does not make the object unreadable.
        let never = "9999-12-31T23:59:59Z";
        let condition = |kind: &str, time: &str| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": time});
        let request = json!({
            "metadata": {"name": "r", "managedFields": [{"time": never}]},
            "status": {"completionTime": never, "conditions": [condition("a", never), condition("b", "2023-11-14T22:13:20Z")]},
        });
        let request: Request = serde_json::from_value(request).expect("a request");
        assert!(!request.is_finished());
        let kinds: Vec<&str> = request.status.conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["b"]);
    }
}
