//! Validation of requests: section 5.10 of the OpenKruise specification.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::decide::request::{Author, Found, check_names, check_size, create, update, warnings};
use crate::decide::terminate::Node;
use crate::names;

fn pod_object() -> Value {
    json!({
        "metadata": {"name": "pod-0", "namespace": "ns", "uid": "uid-0"},
        "spec": {
            "nodeName": "node-1", "terminationGracePeriodSeconds": 45,
            "initContainers": [{"name": "setup"}, {"name": "mesh", "restartPolicy": "Always"}],
            "containers": [
                {"name": "app", "ports": [{"name": "web", "containerPort": 80}], "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": "web"}}}},
                {"name": "naps", "ports": [{"containerPort": 81}], "lifecycle": {"preStop": {"sleep": {"seconds": 3}}}},
                {"name": "new"},
            ],
        },
        "status": {
            "phase": "Running",
            "initContainerStatuses": [
                {"name": "setup", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": "containerd://s"},
                {"name": "mesh", "image": "", "imageID": "", "ready": true, "restartCount": 1, "containerID": "containerd://m"},
            ],
            "containerStatuses": [
                {"name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 2, "containerID": "containerd://a"},
                {"name": "naps", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": "containerd://n"},
                {"name": "new", "image": "", "imageID": "", "ready": false, "restartCount": 0},
            ],
        },
    })
}

fn pod() -> Pod {
    super::pod(pod_object())
}

fn request(version: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("apps.kruise.io/{version}"), "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r", "namespace": "ns"}, "spec": spec,
    })
}

fn app() -> Value {
    json!({"podName": "pod-0", "containers": [{"name": "app"}]})
}

fn try_create(spec: Value, pod: Option<&Pod>, node: Option<Node>) -> Result<Value, u16> {
    create(&request("v1beta1", spec), Found { pod, node }).map_err(|refusal| {
        assert!(refusal.message.len() > 10, "a sentence: {refusal}");
        refusal.code
    })
}

#[test]
fn requests_in_order_are_completed() {
    for version in ["v1alpha1", "v1beta1"] {
        // CRR-W-01, CRR-W-06, CRR-W-12, CRR-W-25, CRR-12, CRR-15
        let out = create(&request(version, app()), Found { pod: Some(&pod()), node: Some(Node::Machine) })
            .expect("in order");
        assert_eq!(
            out["metadata"]["labels"],
            json!({names::CRR_ACTIVE: "true", names::CRR_NODE: "node-1", names::CRR_POD_UID: "uid-0"}),
            "CRR-W-15"
        );
        assert_eq!(
            out["spec"]["strategy"],
            json!({"failurePolicy": "Fail", "terminationGracePeriodSeconds": 45})
        );
        let app = &out["spec"]["containers"][0];
        assert_eq!(app["statusContext"], json!({"containerID": "containerd://a", "restartCount": 2}));
        assert_eq!(app["preStop"]["httpGet"]["path"], "/bye");
        assert_eq!(app["ports"][0]["containerPort"], 80);
        // CRR-W-14
        let out =
            create(&request(version, self::app()), Found { pod: Some(&pod()), node: Some(Node::Virtual) })
                .expect("in order");
        assert_eq!(out["metadata"]["labels"]["type"], "virtual-kubelet");
    }
    // KD15: a hook that sleeps is kept, and ports are copied only for HTTP hooks. KD16: native sidecars are
    // allowed, too.
    let spec = json!({"podName": "pod-0", "containers": [{"name": "naps"}, {"name": "mesh"}]});
    let out = try_create(spec, Some(&pod()), Some(Node::Machine)).expect("in order");
    assert_eq!(out["spec"]["containers"][0]["preStop"], json!({"sleep": {"seconds": 3}}));
    assert_eq!(out["spec"]["containers"][0].get("ports"), None);
    assert_eq!(out["spec"]["containers"][1]["statusContext"]["containerID"], "containerd://m");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let with = |field: &str, value: Value| {
        let mut spec = app();
        spec[field] = value;
        spec
    };
    let strategy = |value: Value| with("strategy", value);
    let containers = |value: Value| with("containers", value);
    let rows = vec![
        ("CRR-W-02, CRR-W-07", with("podName", json!(""))),
        ("CRR-W-03", containers(json!([]))),
        ("CRR-W-08", with("activeDeadlineSeconds", json!(1))),
        ("CRR-10", strategy(json!({"terminationGracePeriodSeconds": -1}))),
        ("CRR-10", strategy(json!({"unreadyGracePeriodSeconds": -1}))),
        ("CRR-2", strategy(json!({"minStartedSeconds": -1}))),
        ("CRR-2", with("ttlSecondsAfterFinished", json!(-1))),
        ("CRR-W-22", containers(json!([{"name": "app"}, {"name": "app"}]))),
        ("CRR-W-22", containers(json!([{"name": "nobody"}]))),
        ("CRR-W-22", containers(json!([{"name": "setup"}]))),
        (
            "CRR-W-23",
            containers(json!([{"name": "app", "statusContext": {"containerID": "x", "restartCount": 0}}])),
        ),
        ("CRR-W-23", containers(json!([{"name": "app", "preStop": {"exec": {"command": ["x"]}}}]))),
        ("CRR-W-23", containers(json!([{"name": "app", "ports": [{"containerPort": 1}]}]))),
        ("CRR-W-24", containers(json!([{"name": "new"}]))),
        ("CRR-W-26", strategy(json!({"failurePolicy": "Retry"}))),
        ("KD4", strategy(json!({"action": "Explode"}))),
    ];
    for (id, spec) in rows {
        assert_eq!(try_create(spec, Some(&pod()), Some(Node::Machine)), Err(400), "{id}");
    }
    assert_eq!(try_create(app(), None, Some(Node::Machine)), Err(400), "CRR-W-13");
    // CRR-W-16: Kruise treats a node it cannot find as a machine; CRR-11 refuses.
    assert_eq!(try_create(app(), Some(&pod()), None), Err(400), "CRR-W-16, CRR-11");
}

#[test]
fn pods_that_are_over_are_left_alone() {
    let changed = |change: fn(&mut Value)| {
        let mut object = pod_object();
        change(&mut object);
        try_create(app(), Some(&super::pod(object)), Some(Node::Machine)).map(|_| ())
    };
    assert_eq!(changed(|p| p["status"]["phase"] = json!("Succeeded")), Err(400), "CRR-W-20");
    let ending = |p: &mut Value| {
        p["status"]["phase"] = json!("Succeeded");
        p["status"]["conditions"] = json!([{"type": "SidecarTerminated", "status": "True"}]);
    };
    assert_eq!(changed(ending), Ok(()), "CRR-W-20, ST-16");
    assert_eq!(changed(|p| p["spec"]["nodeName"] = Value::Null), Err(400), "CRR-W-21");
    assert_eq!(
        changed(|p| p["metadata"]["deletionTimestamp"] = json!("2023-11-14T22:13:20Z")),
        Err(400),
        "CRR-W-21"
    );
}

#[test]
fn a_field_of_the_wrong_type_is_named() {
    let mut wrong = request("v1beta1", app());
    wrong["spec"]["strategy"]["minStartedSeconds"] = json!("5");
    let refusal =
        create(&wrong, Found { pod: Some(&pod()), node: Some(Node::Machine) }).expect_err("no number");
    assert!(refusal.message.contains("spec.strategy.minStartedSeconds"), "{}", refusal.message);
}

#[test]
fn requests_have_a_size_that_many_of_them_can_have() {
    let with = |field: &str, value: Value| {
        let mut object = request("v1beta1", app());
        object["metadata"][field] = value;
        object
    };
    let long = "x".repeat(40_000);
    let large = with("annotations", json!({"junk": long}));
    let none = Value::Null;
    for object in
        [large.clone(), with("finalizers", json!([long])), with("ownerReferences", json!([{"name": long}]))]
    {
        let refusal = check_size(&none, &object, Author::User).expect_err("too large");
        assert!(refusal.code == 400 && refusal.message.contains("at most 32768"), "{refusal}");
    }
    assert_eq!(check_size(&none, &request("v1beta1", app()), Author::User), Ok(()));
    assert_eq!(check_size(&none, &large, Author::Operator), Ok(()), "a Job's sidecar is always stopped");
    let small = with("annotations", json!({}));
    assert!(update(&small, &large, Author::User).is_err_and(|r| r.code == 400), "nor does it grow");
    assert!(update(&large, &large, Author::User).is_ok() && update(&large, &small, Author::User).is_ok());
}

#[test]
fn what_was_asked_for_does_not_change() {
    for version in ["v1alpha1", "v1beta1"] {
        let old = create(&request(version, app()), Found { pod: Some(&pod()), node: Some(Node::Machine) })
            .expect("in order");
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            update(&old, &new, Author::User)
                .map(|out| assert_eq!(out["spec"], old["spec"]))
                .map_err(|r| r.code)
        };
        assert_eq!(changed(&|_| {}), Ok(()));
        // kubectl apply or replace with the original manifest, which does not have the filled-in fields.
        let as_written = request(version, app())["spec"].clone();
        assert_eq!(changed(&|r| r["spec"]["containers"] = as_written["containers"].clone()), Ok(()));
        assert_eq!(changed(&|r| r["spec"] = as_written.clone()), Ok(()));
        assert_ne!(as_written, old["spec"], "something was filled in");
        assert_eq!(
            changed(&|r| r["spec"]["containers"][0]["statusContext"] = json!({"containerID": "x"})),
            Err(403)
        );
        assert_eq!(changed(&|r| r["spec"]["containers"][0]["name"] = json!("other")), Err(403));
        for nonsense in [json!(null), json!("x"), json!({"containers": "x", "strategy": 1})] {
            assert!(changed(&|r| r["spec"] = nonsense.clone()).is_err(), "{nonsense}");
        }
        assert_eq!(
            changed(&|r| r["spec"]["containers"] = json!([1])),
            Err(400),
            "what cannot be read is refused"
        );
        assert_eq!(changed(&|r| r["spec"]["podName"] = json!("other")), Err(403), "CRR-W-04, CRR-W-09");
        assert_eq!(
            changed(&|r| r["metadata"]["labels"][names::CRR_POD_UID] = json!("x")),
            Err(403),
            "CRR-W-05"
        );
        assert_eq!(changed(&|r| r["metadata"]["labels"][names::CRR_NODE] = json!("x")), Err(403), "CRR-W-10");
        let deactivate = |r: &mut Value| {
            r["metadata"]["labels"].as_object_mut().expect("labels").remove(names::CRR_ACTIVE);
        };
        assert_eq!(changed(&deactivate), Ok(()), "CRR-9");
    }
    let mut old = request("v1alpha1", app());
    old["metadata"]["annotations"] = json!({names::CRR_UNREADY: "2023-11-14T22:13:20Z"});
    let mut new = old.clone();
    new["metadata"]["annotations"] = json!({});
    assert_eq!(update(&old, &new, Author::User).map_err(|r| r.code), Err(403), "CRR-9");
}

#[test]
fn times_to_wait_have_a_limit() {
    for (field, value, is_ok) in [
        ("unreadyGracePeriodSeconds", 86_400, true),
        ("unreadyGracePeriodSeconds", 86_401, false),
        ("minStartedSeconds", 86_401, false),
    ] {
        let mut spec = app();
        spec["strategy"] = json!({field: value});
        let created = try_create(spec, Some(&pod()), Some(Node::Machine));
        assert_eq!(created.is_ok(), is_ok, "{field}: {value}: {created:?}");
    }
}

#[test]
fn requests_of_the_operator_are_its_own() {
    let made = |name: &str, pod: &str| json!({"metadata": {"name": name}, "spec": {"podName": pod}});
    let code = |object: &Value, author| check_names(object, author).map_err(|r| r.code);
    let squatter = made("sidecar-termination-u-1", "p");
    assert_eq!(code(&squatter, Author::User), Err(403), "it would take the place of the operator's");
    assert_eq!(code(&squatter, Author::Operator), Ok(()));
    let generated =
        json!({"metadata": {"generateName": "sidecar-termination-u-1-"}, "spec": {"podName": "p"}});
    assert_eq!(code(&generated, Author::User), Err(403));
    assert_eq!(code(&made("mine", "p"), Author::User), Ok(()));
    let long = check_names(&made("mine", &"x/".repeat(50_000)), Author::User).expect_err("not a name");
    assert!(long.code == 400 && long.message.len() < 200, "{long}");
    // These changes would make a request of the operator ineffective.
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"});
    let old = json!({
        "metadata": {"name": "sidecar-termination-u-1", "ownerReferences": [owner], "labels": {names::CRR_ACTIVE: "true"},
                     "annotations": {names::CRR_RESULT_FIRST: "true"}},
        "spec": {"podName": "p", "containers": [{"name": "a"}]},
    });
    let rows = [
        (
            "/metadata/ownerReferences",
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "zz", "uid": "0"}]),
            true,
        ),
        ("/metadata/ownerReferences", json!([]), false),
        ("/metadata/finalizers", json!(["example.com/mine"]), true),
        ("/metadata/finalizers", json!(["foregroundDeletion"]), false),
        ("/metadata/labels", json!({}), true),
        ("/metadata/annotations", json!({}), true),
        ("/metadata/annotations", json!({names::CRR_RESULT_FIRST: "true", "note": "x"}), false),
    ];
    for (path, value, is_refused) in rows {
        let mut new = old.clone();
        new["metadata"]["finalizers"] = json!([]);
        *new.pointer_mut(path).expect("a field") = value.clone();
        assert_eq!(update(&old, &new, Author::User).is_err(), is_refused, "{path}: {value}");
        assert!(update(&old, &new, Author::Operator).is_ok(), "{path}: {value}");
    }
}

#[test]
fn containers_that_do_not_come_back_are_reported() {
    let mut object = pod_object();
    object["spec"]["restartPolicy"] = json!("OnFailure");
    object["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    let ended = super::pod(object.clone());
    let refusal = create(&request("v1beta1", app()), Found { pod: Some(&ended), node: Some(Node::Machine) })
        .expect_err("it has ended");
    assert!(refusal.message.contains("restartPolicy OnFailure does not start it again"), "{refusal}");
    let mut stop = app();
    stop["strategy"] = json!({"action": "Stop"});
    assert!(try_create(stop.clone(), Some(&ended), Some(Node::Machine)).is_ok(), "it is stopped already");
    object["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 1}});
    assert!(try_create(app(), Some(&super::pod(object)), Some(Node::Machine)).is_ok(), "it is restarted");
    let mut never = pod_object();
    never["spec"]["restartPolicy"] = json!("Never");
    let never = super::pod(never);
    assert_eq!(warnings(&request("v1beta1", app()), &never).len(), 1);
    assert!(warnings(&request("v1beta1", stop), &never).is_empty());
    assert!(warnings(&request("v1beta1", app()), &pod()).is_empty());
}
