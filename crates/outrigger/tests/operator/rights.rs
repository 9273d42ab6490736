//! Tests the permissions of agents, and of users who create container recreate requests.

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use crate::Stage;
use crate::cluster::{Cluster, eventually};
use crate::scenes::{container, create, make_node, pod, report};

fn request(name: &str, pod: &str) -> String {
    json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ContainerRecreateRequest", "metadata": {"name": name},
        "spec": {"podName": pod, "containers": [{"name": "app"}], "activeDeadlineSeconds": 600},
    })
    .to_string()
}

/// A running pod on a node.
fn running(cluster: &Cluster, name: &str, node: &str) {
    let manifest = pod(name, json!({}), json!([container("app", &[])]));
    create(cluster, &manifest.replace("\"machine\"", &format!("\"{node}\"")));
    report(cluster, name, "Running", &[("app", "ready")]);
}

/// Writes the status of a request like its agent, with a single call. kubectl cannot do this.
fn write_status(cluster: &Cluster, token: &str, name: &str) -> (bool, String) {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    executor.block_on(async {
        let mut config = Kubeconfig::read_from(cluster.config("admin")).expect("a kubeconfig");
        let user = config.auth_infos[0].auth_info.as_mut().expect("a user");
        user.token = Some(token.to_owned().into());
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        let kind = GroupVersionKind::gvk("apps.kruise.io", "v1beta1", "ContainerRecreateRequest");
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, cluster.namespace(), &ApiResource::from_gvk(&kind));
        let patch = Patch::Merge(json!({"status": {"phase": "Recreating"}}));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => (true, String::new()),
            Err(error) => (false, error.to_string()),
        }
    })
}

/// The agent of a node can read requests, but not pods. It can write only the status of requests of its node.
pub(crate) fn agents_write_for_their_own_node_only(stage: &mut Stage) {
    let cluster = &stage.cluster;
    make_node(cluster, "machine", json!({}));
    make_node(cluster, "other", json!({}));
    running(cluster, "here", "machine");
    running(cluster, "there", "other");
    create(cluster, &request("for-here", "here"));
    create(cluster, &request("for-there", "there"));
    let token = |more: &[&str]| {
        let args = [&["create", "token", "outrigger-agent", "-n", "outrigger-system"][..], more].concat();
        let output = cluster.kubectl(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let of_machine = token(&["--bound-object-kind", "Node", "--bound-object-name", "machine"]);
    let of_nothing = token(&[]);
    let write = |token: &str, name: &str| write_status(cluster, token, name);
    let (written, said) = write(&of_machine, "for-here");
    assert!(written, "{said}");
    for (token, name) in [(&of_machine, "for-there"), (&of_nothing, "for-here"), (&of_nothing, "for-there")] {
        let (written, said) = write(token, name);
        assert!(!written && said.contains("an agent may write only requests of its own node"), "{said}");
    }
    let label = json!({"metadata": {"labels": {"crr.apps.kruise.io/node-name": "machine"}}}).to_string();
    for args in [
        &["get", "pods"][..],
        &["get", "secrets", "-A"],
        &["get", "configmaps", "-A"],
        &["delete", "pod", "here"],
        &["patch", "crr", "for-there", "--type=merge", "-p", &label],
        &["create", "token", "outrigger-operator", "-n", "outrigger-system"],
    ] {
        let (done, said) = cluster.kubectl_as(&of_machine, args);
        assert!(!done && said.to_lowercase().contains("forbidden"), "{args:?}: {said}");
    }
    for name in ["for-here", "for-there"] {
        cluster.kubectl(&["delete", "crr", name]);
    }
}

/// KD19: a request needs a permission on the pod.
pub(crate) fn requesters_need_rights_on_the_pod(stage: &mut Stage) {
    let cluster = &stage.cluster;
    make_node(cluster, "machine", json!({}));
    running(cluster, "guarded", "machine");
    let role = |name: &str, rules: Value| {
        create(
            cluster,
            &json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": name}, "rules": rules,
            })
            .to_string(),
        );
        let binding = ["create", "rolebinding", name, "--role", name, "--user", "developer"];
        assert!(cluster.kubectl(&binding).status.success());
    };
    let requests = json!([{"apiGroups": ["apps.kruise.io"], "resources": ["containerrecreaterequests"], "verbs": ["create"]}]);
    role("makes-requests", requests);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), request("asked", "guarded")).expect("written");
    let ask = || {
        let path = file.path().to_str().expect("a path");
        let output = cluster.kubectl(&["create", "-f", path, "--as", "developer", "--validate=false"]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let said = eventually("the role is known, and the request refused by the webhook", || {
        let (made, said) = ask();
        assert!(!made, "{said}");
        said.contains("may neither").then_some(said)
    });
    assert!(
        said.contains("user \"developer\" may neither delete pod guarded nor execute commands in it"),
        "{said}"
    );
    let exec = json!([{"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": ["guarded"], "verbs": ["create"]}]);
    role("executes", exec);
    eventually("with a right on the pod it is made", || ask().0.then_some(()));
    cluster.kubectl(&["delete", "crr", "asked"]);
}
