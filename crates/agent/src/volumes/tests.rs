use super::*;
use crate::fields::Host;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::os::unix::fs::MetadataExt;

/// A pod with volumes, and a directory for them. Mounts and owners of files need root.
struct Fixture {
    dir: tempfile::TempDir,
    pod: Pod,
    objects: Companions,
    host: Host,
    containers: Vec<Container>,
}

impl Fixture {
    fn new(volumes: serde_json::Value, context: serde_json::Value) -> Fixture {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "x"}},
            "spec": {"containers": [], "volumes": volumes, "securityContext": context}
        }));
        let mut objects = Companions::default();
        let key = |name: &str| ("ns".to_owned(), name.to_owned());
        let map = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"bin": "AAE="}});
        objects.config_maps.insert(key("map"), serde_json::from_value(map).unwrap());
        let secret = json!({"data": {"password": "aHVudGVyMg=="}});
        objects.secrets.insert(key("secret"), serde_json::from_value(secret).unwrap());
        let container = json!({"name": "c", "resources": {"limits": {"memory": "64Mi"}}});
        Fixture {
            dir: tempfile::tempdir().unwrap(),
            pod: pod.unwrap(),
            objects,
            host: Host { name: "node".into(), ip: None, cpu_milli: 1_000, memory_bytes: 1 << 30 },
            containers: vec![serde_json::from_value(container).unwrap()],
        }
    }

    fn pod_dir(&self) -> PathBuf {
        self.dir.path().join("pod")
    }

    fn set_up(&self) -> Result<Volumes, String> {
        let made = Volumes::set_up(&Source {
            fields: Fields { pod: &self.pod, pod_ips: &[], host: &self.host },
            containers: &self.containers,
            objects: &self.objects,
            pod_dir: &self.pod_dir(),
            state_dir: &self.dir.path().join("state"),
        });
        made.map_err(|failure| failure.to_string())
    }

    fn mounts(&self, mounts: serde_json::Value) -> Result<Vec<Mount>, String> {
        let container = json!({"name": "c", "volumeMounts": mounts});
        let container = serde_json::from_value(container).unwrap();
        let mounts = self.set_up()?.mounts(&container, |name| (name == "SUB").then_some("from-env"));
        mounts.map_err(|fault| fault.to_string())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        remove_tree(&self.pod_dir()).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

const TMPFS_MAGIC: i64 = 0x0102_1994;

fn is_tmpfs(path: &Path) -> bool {
    rustix::fs::statfs(path).unwrap().f_type as i64 == TMPFS_MAGIC
}

#[test]
fn files_have_content_mode_and_place_as_root() {
    let volumes = json!([
        {"name": "map", "configMap": {"name": "map", "defaultMode": 0o640, "items": [
            {"key": "a", "path": "deep/er/a", "mode": 0o400}, {"key": "bin", "path": "bin"}]}},
        {"name": "whole", "configMap": {"name": "map"}},
        {"name": "secret", "secret": {"secretName": "secret"}},
        {"name": "none", "configMap": {"name": "missing", "optional": true}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "memory", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "map", "items": [{"key": "a", "path": "x/a"}]}},
            {"secret": {"name": "secret"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
    ]);
    let fixture = Fixture::new(volumes, json!({}));
    fixture.set_up().unwrap();
    // Setting up again changes nothing.
    fixture.set_up().unwrap();
    let at = |path: &str| fixture.pod_dir().join("volumes").join(path);
    let read = |path: &str| fs::read(at(path)).unwrap();
    assert_eq!(read("map/deep/er/a"), b"1");
    assert_eq!((mode(&at("map/deep/er/a")), mode(&at("map/bin"))), (0o400, 0o640));
    assert_eq!(read("map/bin"), [0, 1]);
    assert!(!at("map/b").exists());
    assert_eq!((read("whole/a"), read("whole/b")), (b"1".to_vec(), b"2".to_vec()));
    assert_eq!(mode(&at("whole/a")), 0o644);
    assert_eq!(read("secret/password"), b"hunter2");
    assert!(is_tmpfs(&at("secret")) && is_tmpfs(&at("all")) && !is_tmpfs(&at("whole")));
    assert!(at("none").is_dir());
    assert_eq!(read("down/labels"), b"app=\"x\"");
    assert_eq!(read("down/memory"), b"64");
    assert_eq!((read("all/x/a"), read("all/name")), (b"1".to_vec(), b"p".to_vec()));
    assert_eq!(read("all/password"), b"hunter2");
}

#[test]
fn what_cannot_be_had_is_said_as_root() {
    let table = [
        (json!({"configMap": {"name": "no"}}), "configmap \"no\" not found"),
        (json!({"secret": {"secretName": "no"}}), "secret \"no\" not found"),
        (
            json!({"configMap": {"name": "map", "items": [{"key": "z", "path": "z"}]}}),
            "configmap \"map\" has no key \"z\"",
        ),
        (
            json!({"configMap": {"name": "map", "items": [{"key": "a", "path": "../a"}]}}),
            "must not contain `..`",
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "bundle"}}]}}),
            "a projected source of this kind needs a cluster",
        ),
        (json!({"nfs": {"server": "s", "path": "/"}}), "volumes of type nfs are not supported"),
        (json!({"hostPath": {"path": "/no/such/dir", "type": "Directory"}}), "type check failed"),
        (json!({"persistentVolumeClaim": {"claimName": "../../etc"}}), "is not a name"),
        (json!({"emptyDir": {"medium": "HugePages"}}), "medium \"HugePages\" is not supported"),
    ];
    for (mut volume, expected) in table {
        volume["name"] = json!("v");
        let fixture = Fixture::new(json!([volume]), json!({}));
        let error = fixture.set_up().unwrap_err();
        assert!(error.starts_with("volume \"v\": ") && error.contains(expected), "{error}");
    }
}

#[test]
fn empty_dirs_and_claims_are_for_everybody_as_root() {
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
    ]);
    let fixture = Fixture::new(volumes, json!({}));
    fixture.set_up().unwrap();
    let at = |path: &str| fixture.pod_dir().join("volumes").join(path);
    assert_eq!((mode(&at("disk")), mode(&at("memory"))), (0o777, 0o777));
    assert!(is_tmpfs(&at("memory")) && !is_tmpfs(&at("disk")));
    fs::write(at("memory/small"), vec![0; 1 << 19]).unwrap();
    assert!(fs::write(at("memory/big"), vec![0; 2 << 20]).is_err(), "sizeLimit is enforced");
    let claim = fixture.dir.path().join("state/volumes/ns/data");
    fs::write(claim.join("kept"), "x").unwrap();
    remove_tree(&fixture.pod_dir()).unwrap();
    fixture.set_up().unwrap();
    assert!(claim.join("kept").exists(), "a claim outlives the pod");
    assert!(!at("memory/small").exists());
}

#[test]
fn fs_group_owns_what_is_the_pods_as_root() {
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("f"), "x").unwrap();
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "map", "configMap": {"name": "map", "defaultMode": 0o400}},
        {"name": "host", "hostPath": {"path": host.path()}},
    ]);
    let fixture = Fixture::new(volumes, json!({"fsGroup": 4321}));
    fixture.set_up().unwrap();
    let at = |path: &str| fixture.pod_dir().join("volumes").join(path);
    let gid = |path: &Path| fs::metadata(path).unwrap().gid();
    assert_eq!((gid(&at("disk")), mode(&at("disk"))), (4321, 0o2777));
    assert_eq!((gid(&at("map/a")), mode(&at("map/a"))), (4321, 0o440));
    assert_eq!(gid(&host.path().join("f")), 0, "the host's files stay the host's");
}

#[test]
fn mounts_follow_the_manifest_as_root() {
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "map", "configMap": {"name": "map"}},
    ]);
    let fixture = Fixture::new(volumes, json!({}));
    let mounts = fixture
        .mounts(json!([
            {"name": "disk", "mountPath": "/data"},
            {"name": "disk", "mountPath": "/ro", "readOnly": true, "mountPropagation": "HostToContainer"},
            {"name": "map", "mountPath": "/etc/app"},
            {"name": "map", "mountPath": "/etc/one", "subPath": "a"},
            {"name": "disk", "mountPath": "sub", "subPathExpr": "x/$(SUB)"},
        ]))
        .unwrap();
    let at = |path: &str| fixture.pod_dir().join("volumes").join(path);
    assert_eq!((mounts[0].source.clone(), mounts[0].read_only), (at("disk"), false));
    assert!(mounts[1].read_only && mounts[1].propagation == Propagation::HostToContainer);
    assert!(mounts[2].read_only, "files of the cluster are read-only");
    assert_eq!(fs::read(&mounts[3].source).unwrap(), b"1");
    assert_eq!(mounts[4].target, Path::new("/sub"));
    fs::write(mounts[4].source.join("f"), "x").unwrap();
    assert!(at("disk/x/from-env/f").exists());

    let bad = [
        (json!({"name": "no", "mountPath": "/x"}), "there is no volume \"no\""),
        (json!({"name": "disk", "mountPath": "/x", "subPath": "a/../../b"}), "must not contain `..`"),
        (json!({"name": "disk", "mountPath": "/x", "subPath": "/abs"}), "must be relative"),
        (
            json!({"name": "disk", "mountPath": "/x", "subPathExpr": "$(NOPE)"}),
            "variable \"NOPE\" has no value",
        ),
    ];
    for (mount, expected) in bad {
        let error = fixture.mounts(json!([mount])).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
