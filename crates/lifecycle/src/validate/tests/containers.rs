//! Findings about images, variables, ports, resources and security.

use serde_json::{Value, json};

use super::*;

#[test]
fn images_and_policies() {
    check(vec![
        (
            json!({"containers": [{"name": "a"}]}),
            vec![("image", "spec.containers[0].image", "`a` has no image")],
        ),
        (app(json!({"image": ""})), vec![("image", "spec.containers[0].image", "no image")]),
        (app(json!({"image": " i:1\n"})), vec![("image", "spec.containers[0].image", "white space")]),
        (
            app(json!({"imagePullPolicy": "IfNotPresnt"})),
            vec![("image", "spec.containers[0].imagePullPolicy", "`IfNotPresnt`")],
        ),
        (
            app(json!({"restartPolicy": "Always"})),
            vec![("sidecar", "spec.containers[0].restartPolicy", "does not make container `app` a sidecar")],
        ),
        (app(json!({"restartPolicy": "Never"})), vec![]),
        (
            app(json!({"terminationMessagePath": "/"})),
            vec![("message", "spec.containers[0].terminationMessagePath", "`/` is the root directory")],
        ),
        (
            app(json!({"terminationMessagePath": "/tmp/.././dev/"})),
            vec![(
                "message",
                "spec.containers[0].terminationMessagePath",
                "is a directory in every container",
            )],
        ),
        (
            app(json!({"terminationMessagePath": "/proc/self/log"})),
            vec![("message", "spec.containers[0].terminationMessagePath", "no file can be created")],
        ),
        (app(json!({"terminationMessagePath": "/dev/log"})), vec![]),
        (
            app(json!({"terminationMessagePolicy": "Logs", "terminationMessagePath": "log"})),
            vec![
                ("message", "spec.containers[0].terminationMessagePath", "`log` is not absolute"),
                ("message", "spec.containers[0].terminationMessagePolicy", "`Logs`"),
            ],
        ),
        (app(json!({"workingDir": "srv"})), vec![("working-dir", "spec.containers[0].workingDir", "`srv`")]),
    ]);
    assert_eq!(hint(app(json!({"image": " i:1\n"}))), "write `i:1`");
    assert_eq!(hint(app(json!({"imagePullPolicy": "IfNotPresnt"}))), "did you mean `IfNotPresent`?");
}

#[test]
fn variables() {
    let env = |var: Value| app(json!({"env": [var]}));
    let from = |source: Value| env(json!({"name": "A", "valueFrom": source}));
    let at = "spec.containers[0].env[0]";
    let below = |field: &str| -> &'static str { format!("{at}.{field}").leak() };
    check(vec![
        (env(json!({"name": "", "value": "x"})), vec![("env", below("name"), "no name")]),
        (env(json!({"name": "A=B", "value": "x"})), vec![("env", below("name"), "`=`")]),
        (env(json!({"name": "Ä", "value": "x"})), vec![("env", below("name"), "printable ASCII")]),
        (env(json!({"name": "1 a.b-c", "value": "x"})), vec![]),
        (
            env(
                json!({"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            ),
            vec![("env", below("valueFrom"), "both a value and a valueFrom")],
        ),
        (
            env(json!({"name": "A", "value": "", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
            vec![],
        ),
        (from(json!({})), vec![("env", below("valueFrom"), "no source")]),
        (
            from(
                json!({"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "s", "key": "k"}}),
            ),
            vec![("env", below("valueFrom.secretKeyRef"), "a second source")],
        ),
        (
            from(json!({"configMapKeyRef": {"name": "", "key": ""}})),
            vec![
                ("env", below("valueFrom.configMapKeyRef.key"), "key of the ConfigMap"),
                ("env", below("valueFrom.configMapKeyRef.name"), "the ConfigMap has no name"),
            ],
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "status.podIp"}})),
            vec![("env", below("valueFrom.fieldRef.fieldPath"), "`status.podIp`")],
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.labels"}})),
            vec![("env", below("valueFrom.fieldRef.fieldPath"), "cannot be used here")],
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.labels['a b']"}})),
            vec![("env", below("valueFrom.fieldRef.fieldPath"), "key `a b`")],
        ),
        (
            from(json!({"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.uid"}})),
            vec![("env", below("valueFrom.fieldRef.apiVersion"), "`v2`")],
        ),
        (
            from(
                json!({"resourceFieldRef": {"resource": "limit.cpu", "containerName": "ap", "divisor": "x"}}),
            ),
            vec![
                ("name", below("valueFrom.resourceFieldRef.containerName"), "`ap` does not exist"),
                ("env", below("valueFrom.resourceFieldRef.divisor"), "`x` is not a quantity"),
                ("env", below("valueFrom.resourceFieldRef.resource"), "`limit.cpu`"),
            ],
        ),
        (from(json!({"resourceFieldRef": {"resource": "requests.hugepages-2Mi"}})), vec![]),
        (
            from(json!({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}})),
            vec![("env", below("valueFrom.fileKeyRef"), "not supported")],
        ),
        (
            app(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]})),
            vec![("env", "spec.containers[0].env[1].name", "the last one counts")],
        ),
        (
            app(
                json!({"envFrom": [{}, {"prefix": "a=", "secretRef": {"name": ""}}, {"secretRef": {"name": "s"}, "configMapRef": {"name": "c"}}]}),
            ),
            vec![
                ("env", "spec.containers[0].envFrom[0]", "no source"),
                ("env", "spec.containers[0].envFrom[1].prefix", "`=`"),
                ("env", "spec.containers[0].envFrom[1].secretRef.name", "the Secret has no name"),
                ("env", "spec.containers[0].envFrom[2].secretRef", "a second source"),
            ],
        ),
    ]);
    assert_eq!(
        hint(from(json!({"fieldRef": {"fieldPath": "status.podIp"}}))),
        "did you mean `status.podIP`?"
    );
}

#[test]
fn ports() {
    let port = |port: Value| app(json!({"ports": [port]}));
    let at = |field: &str| -> &'static str { format!("spec.containers[0].ports[0].{field}").leak() };
    check(vec![
        (port(json!({"containerPort": 0})), vec![("port", at("containerPort"), "containerPort 0")]),
        (port(json!({"containerPort": 65536})), vec![("port", at("containerPort"), "65536")]),
        (port(json!({"containerPort": 1, "hostPort": 70000})), vec![("port", at("hostPort"), "70000")]),
        (port(json!({"containerPort": 1, "hostPort": 0})), vec![]),
        (port(json!({"containerPort": 1, "protocol": "tcp"})), vec![("port", at("protocol"), "`tcp`")]),
        (
            port(json!({"containerPort": 1, "hostPort": 1, "hostIP": "x"})),
            vec![("port", at("hostIP"), "`x`")],
        ),
        (port(json!({"containerPort": 1, "name": "Web"})), vec![("port", at("name"), "lower case")]),
        (port(json!({"containerPort": 1, "name": "80"})), vec![("port", at("name"), "contain a letter")]),
        (port(json!({"containerPort": 1, "name": "a--b"})), vec![("port", at("name"), "`--`")]),
        (
            port(json!({"containerPort": 1, "name": "a234567890123456"})),
            vec![("port", at("name"), "1 to 15")],
        ),
        (
            app(json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]})),
            vec![("port", "spec.containers[0].ports[1].name", "two ports of container `app` are named `a`")],
        ),
    ]);
    let mut host = port(json!({"containerPort": 80, "hostPort": 8080}));
    host["hostNetwork"] = json!(true);
    check(vec![(host.clone(), vec![("port", at("hostPort"), "8080 differs from containerPort 80")])]);
    assert_eq!(related(host), ["spec.containers[0].ports[0].containerPort", "spec.hostNetwork"]);
}

#[test]
fn resources() {
    let with = |resources: Value| app(json!({"resources": resources}));
    let at = |field: &str| -> &'static str { format!("spec.containers[0].resources.{field}").leak() };
    check(vec![
        (
            with(json!({"limits": {"memory": "64MB"}})),
            vec![("resources", at("limits.memory"), "`64MB` is not a quantity")],
        ),
        // A request copied from its limit is reported once.
        (
            with(json!({"limits": {"memory": "x"}, "requests": {"memory": "x"}})),
            vec![("resources", at("limits.memory"), "`x`")],
        ),
        (with(json!({"requests": {"cpu": "-1"}})), vec![("resources", at("requests.cpu"), "negative")]),
        (
            with(json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "1"}})),
            vec![("resources", at("requests.cpu"), "request of `1` is more than its limit of `500m`")],
        ),
        (with(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}})), vec![]),
        (
            with(json!({"limits": {"mem": "1"}})),
            vec![("resources", at("limits.mem"), "`mem` is not a resource")],
        ),
        (
            with(json!({"limits": {"a.b/c": "2"}, "requests": {"a.b/c": "1"}})),
            vec![
                ("ignored", at("limits[a.b/c]"), "no effect"),
                ("resources", at("requests[a.b/c]"), "differs from its limit"),
            ],
        ),
        (
            spec(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})),
            vec![("resources", "spec.resources.requests.cpu", "more than its limit")],
        ),
    ]);
    assert_eq!(hint(with(json!({"limits": {"memory": "64MB"}}))), "write `64Mi`");
    let over = with(json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "1"}}));
    assert_eq!(related(over), ["spec.containers[0].resources.limits.cpu"]);
}

#[test]
fn security() {
    let with = |context: Value| app(json!({"securityContext": context}));
    let at = |field: &str| -> &'static str { format!("spec.containers[0].securityContext.{field}").leak() };
    check(vec![
        (
            with(json!({"runAsUser": -1, "runAsGroup": 1i64 << 31})),
            vec![("security", at("runAsGroup"), "2147483648"), ("security", at("runAsUser"), "-1")],
        ),
        (with(json!({"runAsNonRoot": true, "runAsUser": 0})), vec![("security", at("runAsUser"), "root")]),
        (with(json!({"runAsNonRoot": false, "runAsUser": 0})), vec![]),
        (
            with(json!({"privileged": true, "allowPrivilegeEscalation": false})),
            vec![("security", at("allowPrivilegeEscalation"), "privileged container")],
        ),
        (
            with(json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]}})),
            vec![("security", at("allowPrivilegeEscalation"), "SYS_ADMIN")],
        ),
        (
            with(json!({"capabilities": {"add": ["CAP_NET_ADMIN"], "drop": ["NET_RWA"]}})),
            vec![
                ("security", at("capabilities.add[0]"), "`CAP_NET_ADMIN`"),
                ("security", at("capabilities.drop[0]"), "`NET_RWA`"),
            ],
        ),
        (
            with(json!({"seccompProfile": {"type": "Localhost"}})),
            vec![("security", at("seccompProfile.localhostProfile"), "needs")],
        ),
        (
            with(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}})),
            vec![("security", at("seccompProfile.localhostProfile"), "`..`")],
        ),
        (
            with(json!({"seccompProfile": {"type": "Unconfined", "localhostProfile": "x"}})),
            vec![("security", at("seccompProfile.localhostProfile"), "has no effect")],
        ),
        (
            with(json!({"seccompProfile": {"type": "unconfined"}})),
            vec![("security", at("seccompProfile.type"), "`unconfined`")],
        ),
        (with(json!({"procMount": "x"})), vec![("security", at("procMount"), "`x`")]),
        (with(json!({"procMount": "Unmasked"})), vec![("security", at("procMount"), "hostUsers")]),
        (
            with(json!({"seLinuxOptions": {"level": "s0"}})),
            vec![("security", at("seLinuxOptions"), "embedded runtime refuses")],
        ),
        (
            with(json!({"appArmorProfile": {"type": "Localhost"}})),
            vec![("security", at("appArmorProfile.localhostProfile"), "needs")],
        ),
        (
            with(json!({"appArmorProfile": {"type": "Odd"}})),
            vec![("security", at("appArmorProfile.type"), "`Odd`")],
        ),
    ]);
    assert_eq!(hint(with(json!({"capabilities": {"add": ["CAP_NET_ADMIN"]}}))), "did you mean `NET_ADMIN`?");
    // A capability that no runtime knows is refused. Another spelling of a known one is only a warning.
    for (name, severity) in
        [("BOGUS", Severity::Error), ("CAP_BOGUS", Severity::Error), ("cap_net_admin", Severity::Warning)]
    {
        for list in ["add", "drop"] {
            let mut lists = json!({});
            lists[list] = json!([name]);
            let found = validate(&pod(with(json!({"capabilities": lists}))), &FeatureGates::default());
            assert_eq!(found.iter().map(|f| f.severity).collect::<Vec<_>>(), [severity], "{list} {name}");
        }
    }
    assert_eq!(
        related(with(json!({"runAsNonRoot": true, "runAsUser": 0}))),
        ["spec.containers[0].securityContext.runAsNonRoot"]
    );
}

#[test]
fn app_armor_by_annotation() {
    let annotated = |name: &str, value: &str, context: Value| {
        let mut pod = json!({
            "metadata": {"name": "p", "annotations": {}},
            "spec": app(json!({"securityContext": context})),
        });
        let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
        pod["metadata"]["annotations"][&key] = json!(value);
        let found = validate(&pod_of(pod), &FeatureGates::default());
        found.into_iter().map(|f| (f.path.to_string(), f.message)).collect::<Vec<_>>()
    };
    let name = app(json!({}))["containers"][0]["name"].as_str().unwrap().to_owned();
    for (container, value, context, complaint) in [
        (name.as_str(), "runtime/default", json!({}), None),
        (&name, "localhost/web", json!({}), None),
        (
            &name,
            "localhost/web",
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "web"}}),
            None,
        ),
        (&name, "localhost/", json!({}), Some("is not an AppArmor profile")),
        (&name, "default", json!({}), Some("is not an AppArmor profile")),
        ("stranger", "unconfined", json!({}), Some("no container `stranger`")),
        (
            &name,
            "unconfined",
            json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            Some("the annotation says"),
        ),
    ] {
        let found = annotated(container, value, context);
        match complaint {
            None => assert!(found.is_empty(), "{value}: {found:?}"),
            Some(part) => {
                assert_eq!(found.len(), 1, "{value}: {found:?}");
                let (path, message) = &found[0];
                assert!(message.contains(part), "{value}: {message}");
                assert!(path.starts_with("metadata.annotations[container.apparmor"), "{path}");
            }
        }
    }
}

#[test]
fn security_of_the_pod() {
    let pod_wide = |context: Value| spec(json!({"securityContext": context}));
    let at = |field: &str| -> &'static str { format!("spec.securityContext.{field}").leak() };
    let mut own_user = pod_wide(json!({"runAsNonRoot": true}));
    own_user["containers"][0]["securityContext"] = json!({"runAsUser": 0});
    let mut two = pod_wide(json!({"runAsNonRoot": true, "runAsUser": 0}));
    two["initContainers"] = json!([{"name": "first", "image": "i:1"}]);
    let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
    let mut host_net = pod_wide(sysctl("net.ipv4.ip_forward"));
    host_net["hostNetwork"] = json!(true);
    let mut host_ipc = pod_wide(sysctl("kernel.shmmax"));
    host_ipc["hostIPC"] = json!(true);
    check(vec![
        (own_user, vec![("security", "spec.containers[0].securityContext.runAsUser", "root")]),
        // It is reported once, however many containers inherit it.
        (two, vec![("security", at("runAsUser"), "root")]),
        (
            pod_wide(json!({"fsGroup": -1, "supplementalGroups": [1, -2], "fsGroupChangePolicy": "x"})),
            vec![
                ("security", at("fsGroup"), "-1"),
                ("security", at("fsGroupChangePolicy"), "`x`"),
                ("security", at("supplementalGroups[1]"), "-2"),
            ],
        ),
        (pod_wide(sysctl("Net.x")), vec![("sysctl", at("sysctls[0].name"), "not a valid sysctl name")]),
        (pod_wide(sysctl("vm.swappiness")), vec![("sysctl", at("sysctls[0].name"), "whole host")]),
        (host_net, vec![("sysctl", at("sysctls[0].name"), "would change the host")]),
        (host_ipc, vec![("sysctl", at("sysctls[0].name"), "would change the host")]),
    ]);
}
