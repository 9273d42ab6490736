//! Conversion of requests: section 5.12 of the OpenKruise specification.

use serde_json::{Value, json};

use crate::decide::convert::convert;
use crate::names;

const OLD: &str = "apps.kruise.io/v1alpha1";
const NEW: &str = "apps.kruise.io/v1beta1";
const TIME: &str = "2023-11-14T22:13:20Z";

fn old(annotations: Value) -> Value {
    json!({
        "apiVersion": OLD, "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r", "uid": "u", "labels": {"a": "b"}, "annotations": annotations},
        "spec": {"podName": "pod-0", "containers": [{"name": "app"}], "strategy": {"orderedRecreate": true}, "somethingNew": 1},
        "status": {"phase": "Recreating", "message": "m", "containerRecreateStates": [{"name": "app", "phase": "Pending"}]},
    })
}

#[test]
fn versions_are_converted_both_ways() {
    let snapshot = r#"[{"name":"app","ready":true,"restartCount":1,"containerID":"containerd://x"}]"#;
    let full = old(json!({names::CRR_SNAPSHOT: snapshot, names::CRR_UNREADY: TIME}));
    let new = convert(&full, NEW).expect("a version");
    assert_eq!(new["apiVersion"], NEW, "CRR-V-01");
    assert_eq!((&new["spec"], &new["metadata"]), (&full["spec"], &full["metadata"]), "CRR-V-01");
    assert_eq!(new["status"]["containerStatusSnapshot"][0]["containerID"], "containerd://x");
    assert_eq!(new["status"]["conditions"][0]["type"], names::CRR_GRACE);
    assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], TIME);

    let back = convert(&new, OLD).expect("a version");
    for field in ["metadata", "spec"] {
        assert_eq!(back[field], full[field], "CRR-V-07");
    }
    for field in ["phase", "message", "containerRecreateStates"] {
        assert_eq!(back["status"][field], full["status"][field], "CRR-V-07");
    }

    let mut only_new = new.clone();
    only_new["metadata"]["annotations"] = Value::Null;
    let back = convert(&only_new, OLD).expect("a version");
    assert_eq!(back["metadata"]["annotations"][names::CRR_UNREADY], TIME, "CRR-V-05");
    let text = back["metadata"]["annotations"][names::CRR_SNAPSHOT].as_str().expect("CRR-V-05");
    assert_eq!(serde_json::from_str::<Value>(text).ok(), serde_json::from_str(snapshot).ok());
}

#[test]
fn what_cannot_be_read_is_left_out() {
    let minimal = json!({"apiVersion": OLD, "metadata": {"name": "r"}, "spec": {"podName": "p"}});
    let mut expected = minimal.clone();
    expected["apiVersion"] = json!(NEW);
    assert_eq!(convert(&minimal, NEW), Some(expected.clone()), "CRR-V-02");
    assert_eq!(convert(&expected, OLD), Some(minimal), "CRR-V-06");
    for (id, name, text) in [
        ("CRR-V-03", names::CRR_UNREADY, "not-a-time"),
        ("CRR-V-04", names::CRR_SNAPSHOT, "{invalid}"),
        ("CRR-V-04", names::CRR_SNAPSHOT, "[1, 2]"),
        ("CRR-V-08", names::CRR_SNAPSHOT, ""),
    ] {
        let new = convert(&old(json!({name: text})), NEW).expect("a version");
        assert_eq!(new["spec"]["podName"], "pod-0", "{id}, CRR-V-08");
        assert_eq!(
            (new["status"].get("conditions"), new["status"].get("containerStatusSnapshot")),
            (None, None),
            "{id}"
        );
    }
    assert_eq!(convert(&old(json!({})), "apps.kruise.io/v9"), None);
    assert_eq!(convert(&json!({}), NEW), None);
}

proptest::proptest! {
    /// CRR-V-08
    #[test]
    fn nothing_makes_it_panic(time in "\\PC{0,30}", snapshot in "\\PC{0,30}") {
        let new = convert(&old(json!({names::CRR_SNAPSHOT: snapshot, names::CRR_UNREADY: time})), NEW).expect("a version");
        assert_eq!(new["spec"]["podName"], "pod-0");
        let _ = convert(&new, OLD);
    }
}
