//! Findings about volumes and their mounts.

use serde_json::{Value, json};

use super::*;

/// A pod that mounts one volume with this source.
fn volume(source: Value) -> Value {
    let mut volume = json!({"name": "v"});
    merge(&mut volume, source);
    let mut spec = app(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    spec["volumes"] = json!([volume]);
    spec
}

/// A pod with a valid volume and this mount.
fn mount(fields: Value) -> Value {
    let mut mount = json!({"name": "data", "mountPath": "/data"});
    merge(&mut mount, fields);
    let mut spec = app(json!({"volumeMounts": [mount, {"name": "data", "mountPath": "/other"}]}));
    spec["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    spec
}

#[test]
fn names_and_kinds() {
    let at = |field: &str| -> &'static str { format!("spec.volumes[0].{field}").leak() };
    let two = json!([{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]);
    let mut twice = volume(json!({}));
    twice["volumes"] = two;
    check(vec![
        (volume(json!({"emptyDir": {}})), vec![]),
        (volume(json!({})), vec![("volume", "spec.volumes[0]", "no source")]),
        (
            volume(json!({"emptyDir": {}, "secret": {"secretName": "s"}})),
            vec![("volume", at("secret"), "a second source, secret, after emptyDir")],
        ),
        (
            volume(json!({"nfs": {"server": "s", "path": "/"}})),
            vec![("volume", at("nfs"), "kind nfs, which is not supported")],
        ),
        (volume(json!({"csi": {"driver": "d"}})), vec![("volume", at("csi"), "not supported")]),
        (volume(json!({"image": {"reference": "i"}})), vec![("volume", at("image"), "not supported")]),
        (twice.clone(), vec![("volume", "spec.volumes[1].name", "two volumes are named `v`")]),
        (
            spec(json!({"volumes": [{"name": "", "emptyDir": {}}, {"name": "A_b", "emptyDir": {}}]})),
            vec![
                ("volume", "spec.volumes[0].name", "no name"),
                ("volume", "spec.volumes[1].name", "`A_b`"),
                ("volume", "spec.volumes[1].name", "no container mounts"),
            ],
        ),
    ]);
    assert_eq!(related(twice), ["spec.volumes[0].name"]);
    assert!(hint(volume(json!({"csi": {"driver": "d"}}))).contains("persistentVolumeClaim"));
}

#[test]
fn contents() {
    let at = |field: &str| -> &'static str { format!("spec.volumes[0].{field}").leak() };
    check(vec![
        (
            volume(json!({"emptyDir": {"medium": "HugePages"}})),
            vec![("volume", at("emptyDir.medium"), "`HugePages`")],
        ),
        (
            volume(json!({"emptyDir": {"sizeLimit": "1GB"}})),
            vec![("volume", at("emptyDir.sizeLimit"), "`1GB`")],
        ),
        (volume(json!({"hostPath": {"path": ""}})), vec![("volume", at("hostPath.path"), "empty")]),
        (volume(json!({"hostPath": {"path": "srv"}})), vec![("volume", at("hostPath.path"), "not absolute")]),
        (volume(json!({"hostPath": {"path": "/a/../b"}})), vec![("volume", at("hostPath.path"), "`..`")]),
        (
            volume(json!({"hostPath": {"path": "/a", "type": "directory"}})),
            vec![("volume", at("hostPath.type"), "`directory`")],
        ),
        (volume(json!({"hostPath": {"path": "/a", "type": ""}})), vec![]),
        (
            volume(json!({"configMap": {"name": ""}})),
            vec![("volume", at("configMap.name"), "the ConfigMap has no name")],
        ),
        (volume(json!({"secret": {}})), vec![("volume", at("secret.secretName"), "the Secret has no name")]),
        (
            volume(json!({"persistentVolumeClaim": {"claimName": "A"}})),
            vec![("volume", at("persistentVolumeClaim.claimName"), "`A`")],
        ),
        (
            volume(
                json!({"configMap": {"name": "c", "defaultMode": 512, "items": [{"key": "", "path": "/a", "mode": -1}, {"key": "k", "path": "..x"}]}}),
            ),
            vec![
                ("volume", at("configMap.defaultMode"), "512"),
                ("volume", at("configMap.items[0].key"), "missing"),
                ("volume", at("configMap.items[0].mode"), "-1"),
                ("volume", at("configMap.items[0].path"), "relative"),
                ("volume", at("configMap.items[1].path"), "begin with `..`"),
            ],
        ),
        (
            volume(json!({"configMap": {"name": "c", "items": [
                {"key": "k", "path": "."}, {"key": "k", "path": ".//."}, {"key": "k", "path": "./a//b/"},
                {"key": "k", "path": "n".repeat(256)}, {"key": "k", "path": ""},
            ]}})),
            vec![
                ("volume", at("configMap.items[0].path"), "is the volume itself"),
                ("volume", at("configMap.items[1].path"), "is the volume itself"),
                ("volume", at("configMap.items[3].path"), "255"),
                ("volume", at("configMap.items[4].path"), "empty"),
            ],
        ),
        (
            volume(json!({"downwardAPI": {"items": [
                {"path": "a"},
                {"path": "b", "fieldRef": {"fieldPath": "status.podIP"}},
                {"path": "c", "resourceFieldRef": {"resource": "limits.cpu"}},
                {"path": "d", "resourceFieldRef": {"resource": "limits.cpu", "containerName": "app"}},
            ]}})),
            vec![
                ("volume", at("downwardAPI.items[0]"), "no source"),
                ("volume", at("downwardAPI.items[1].fieldRef.fieldPath"), "cannot be used here"),
                ("volume", at("downwardAPI.items[2].resourceFieldRef.containerName"), "has no containerName"),
            ],
        ),
        (
            volume(json!({"projected": {"sources": [
                {},
                {"configMap": {"name": ""}},
                {"serviceAccountToken": {"path": "token"}},
                {"secret": {"name": "s", "items": [{"key": "k", "path": "a/../../b"}]}},
                {"clusterTrustBundle": {"path": "bundle"}},
            ]}})),
            vec![
                ("volume", at("projected.sources[0]"), "no source"),
                ("volume", at("projected.sources[1].configMap.name"), "has no name"),
                ("ignored", at("projected.sources[2].serviceAccountToken"), "there will be no `token`"),
                ("volume", at("projected.sources[3].secret.items[0].path"), "`..`"),
                ("volume", at("projected.sources[4].clusterTrustBundle"), "no cluster"),
            ],
        ),
    ]);
    assert_eq!(
        hint(volume(json!({"hostPath": {"path": "/a", "type": "directory"}}))),
        "did you mean `Directory`?"
    );
}

/// A mount with a `subPathExpr`, of a container with these fields.
fn with_env(fields: Value, expr: &str) -> Value {
    let mut pod = mount(json!({"subPathExpr": expr}));
    let container = pod["containers"][0].as_object_mut().expect("a container");
    container.extend(fields.as_object().expect("fields").clone());
    pod
}

#[test]
fn mounts() {
    let at = |field: &str| -> &'static str { format!("spec.containers[0].volumeMounts[0].{field}").leak() };
    check(vec![
        (mount(json!({})), vec![]),
        (mount(json!({"name": "dta"})), vec![("mount", at("name"), "volume `dta` does not exist")]),
        (mount(json!({"name": ""})), vec![("mount", at("name"), "has no volume name")]),
        (mount(json!({"mountPath": ""})), vec![("mount", at("mountPath"), "has no mountPath")]),
        (mount(json!({"mountPath": "data"})), vec![("mount", at("mountPath"), "`data` is not absolute")]),
        (mount(json!({"mountPath": "/a/../b"})), vec![("mount", at("mountPath"), "`..`")]),
        (
            mount(json!({"mountPath": "/other/"})),
            vec![(
                "mount",
                "spec.containers[0].volumeMounts[1].mountPath",
                "two volumes are mounted at `/other`",
            )],
        ),
        (mount(json!({"subPath": "/a"})), vec![("mount", at("subPath"), "relative")]),
        (mount(json!({"subPath": "a/../../b"})), vec![("mount", at("subPath"), "`..`")]),
        (mount(json!({"subPath": "a..b"})), vec![]),
        (
            mount(json!({"subPathExpr": "$(A)/.."})),
            vec![
                ("mount", at("subPathExpr"), "`..`"),
                ("mount", at("subPathExpr"), "there is no variable `A`"),
            ],
        ),
        // What nobody can know of is left to the run: `envFrom`, and Services of a cluster.
        (with_env(json!({"env": [{"name": "A", "value": "a"}]}), "$(A)/$$(B)/$(C_SERVICE_HOST)"), vec![]),
        (with_env(json!({"envFrom": [{"configMapRef": {"name": "c"}}]}), "$(A)"), vec![]),
        (
            with_env(json!({"env": [{"name": "A", "value": "a"}]}), "$(A)/$(B)"),
            vec![("mount", at("subPathExpr"), "there is no variable `B`")],
        ),
        (
            mount(json!({"subPath": "a", "subPathExpr": "b"})),
            vec![("mount", at("subPathExpr"), "cannot be combined")],
        ),
        (mount(json!({"mountPropagation": "both"})), vec![("mount", at("mountPropagation"), "`both`")]),
        (
            mount(json!({"mountPropagation": "Bidirectional"})),
            vec![("mount", at("mountPropagation"), "privileged")],
        ),
        (
            mount(json!({"recursiveReadOnly": "Enabled"})),
            vec![("mount", at("recursiveReadOnly"), "needs readOnly")],
        ),
        (mount(json!({"recursiveReadOnly": "Enabled", "readOnly": true})), vec![]),
    ]);
    assert_eq!(hint(mount(json!({"name": "dta"}))), "did you mean `data`?");
    assert_eq!(hint(mount(json!({"name": "logs"}))), "add a volume named `logs` to `spec.volumes`");
    assert_eq!(
        related(mount(json!({"mountPath": "/other/"}))),
        ["spec.containers[0].volumeMounts[0].mountPath"]
    );
}

#[test]
fn a_volume_nobody_mounts() {
    let unused = spec(json!({"volumes": [{"name": "v", "emptyDir": {}}]}));
    check(vec![(unused, vec![("volume", "spec.volumes[0].name", "no container mounts volume `v`")])]);
}
