//! References that cannot be resolved in the manifest, and host ports that two pods need.

use outrigger_manifest::{Diagnostic, ReadOptions, SourceFile, check_host_ports, check_references, read};

const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
binaryData: {logo: AAAA}
---
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {password: x}
---
apiVersion: v1
kind: Secret
metadata: {name: far, namespace: shop}
stringData: {password: x}
---
";

fn lines(text: &str, check: impl Fn(&outrigger_manifest::Manifest) -> Vec<Diagnostic>) -> Vec<String> {
    let source = SourceFile::new("p.yaml", text);
    let manifest = read(std::slice::from_ref(&source), &ReadOptions::default()).unwrap();
    let show = |d: Diagnostic| {
        let line = source.position(d.span.unwrap().start).line;
        let labels =
            d.labels.iter().map(|(span, text)| format!(" {{{}: {text}}}", source.position(span.start).line));
        format!("{line}: {} [{}]{}", d.message, d.hint.unwrap_or_default(), labels.collect::<String>())
    };
    check(&manifest).into_iter().map(show).collect()
}

/// The references of a pod with these lines in its container and its spec (from line 23 on).
fn missing(container: &str, spec: &str) -> Vec<String> {
    let text = format!(
        "{OBJECTS}apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: c\n    image: i\n{container}{spec}"
    );
    lines(&text, |m| check_references(m, &m.pods[0]))
}

#[test]
fn what_the_manifest_does_not_have() {
    let env = |source: &str| format!("    env:\n    - name: V\n      valueFrom: {{{source}}}\n");
    let table = [
        (env("configMapKeyRef: {name: settings, key: colour}"), ""),
        (env("secretKeyRef: {name: token, key: password}"), ""),
        (env("configMapKeyRef: {name: absent, key: k, optional: true}"), ""),
        (env("secretKeyRef: {name: token, key: k, optional: true}"), ""),
        (
            env("configMapKeyRef: {name: setings, key: k}"),
            "26: ConfigMap `setings` is not in the manifest [did you mean `settings`?]",
        ),
        (
            env("configMapKeyRef: {name: absent, key: k}"),
            "26: ConfigMap `absent` is not in the manifest [add ConfigMap `absent` to the manifest, pass its file too (outrigger run FILE FILE), or write `optional: true`]",
        ),
        (
            env("configMapKeyRef: {name: settings, key: color}"),
            "26: ConfigMap `settings` has no key `color` [did you mean `colour`?]",
        ),
        (
            env("configMapKeyRef: {name: settings, key: logo}"),
            "26: ConfigMap `settings` has no key `logo` [its keys are `colour`: use one of them, add `logo`, or write `optional: true`]",
        ),
        (
            env("secretKeyRef: {name: far, key: password}"),
            "26: Secret `far` is not in the manifest [it is in namespace `shop` and the pod is in `default`: give both the same `metadata.namespace`] {14: this Secret is in namespace `shop`}",
        ),
        ("    envFrom: [{secretRef: {name: token}}, {configMapRef: {name: settings}}]\n".to_owned(), ""),
        ("    envFrom: [{secretRef: {name: absent, optional: true}}]\n".to_owned(), ""),
        (
            "    envFrom: [{secretRef: {name: tokens}}]\n".to_owned(),
            "24: Secret `tokens` is not in the manifest [did you mean `token`?]",
        ),
        // The barrier variable of Kruise is ignored.
        (
            env("configMapKeyRef: {name: p-barrier, key: c_0}")
                .replace("name: V", "name: KRUISE_CONTAINER_BARRIER"),
            "",
        ),
    ];
    for (container, expected) in table {
        assert_eq!(missing(&container, "").join("\n"), expected, "{container}");
    }
    let volumes = |source: &str| format!("  volumes:\n  - name: v\n    {source}\n");
    let table = [
        ("configMap: {name: settings, items: [{key: logo, path: l}]}", ""),
        ("secret: {secretName: absent, optional: true}", ""),
        (
            "configMap: {name: settings, items: [{key: logos, path: l}]}",
            "26: ConfigMap `settings` has no key `logos` [did you mean `logo`?]",
        ),
        ("secret: {secretName: tokn}", "26: Secret `tokn` is not in the manifest [did you mean `token`?]"),
        ("projected: {sources: [{configMap: {name: kube-root-ca.crt}}, {secret: {name: token}}]}", ""),
        (
            "projected: {sources: [{secret: {name: tokn}}]}",
            "26: Secret `tokn` is not in the manifest [did you mean `token`?]",
        ),
    ];
    for (source, expected) in table {
        assert_eq!(missing("", &volumes(source)).join("\n"), expected, "{source}");
    }
}

#[test]
fn a_port_of_the_machine_is_for_one_pod() {
    let workload = |kind: &str, name: &str, count: &str, port: &str| {
        let (version, selector) = match kind {
            "Job" => ("batch/v1", "      restartPolicy: Never\n"),
            _ => ("apps/v1", ""),
        };
        let chosen = if kind == "Job" { "" } else { "  selector: {matchLabels: {a: b}}\n" };
        format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{chosen}  {count}\n  template:\n    \
             metadata: {{labels: {{a: b}}}}\n    spec:\n{selector}      containers:\n      - name: c\n        image: i\n        \
             ports: [{{containerPort: 80, {port}}}]\n"
        )
    };
    let of = |text: &str| lines(text, check_host_ports);
    let one = workload("Deployment", "web", "replicas: 1", "hostPort: 8080");
    assert_eq!(of(&one), [""; 0]);
    assert_eq!(
        of(&one.replace("replicas: 1", "replicas: 3")),
        [
            "14: the 3 pods of Deployment `web` all ask for host port 8080/TCP: only one can have it [remove hostPort, or write `replicas: 1`]"
        ]
    );
    assert_eq!(of(&workload("Job", "j", "parallelism: 2", "hostPort: 8080")).len(), 1);
    let two =
        format!("{one}{}", workload("Deployment", "api", "replicas: 1", "hostPort: 8080, hostIP: 127.0.0.1"));
    let found = of(&two);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("28: pods `web-") && found[0].contains("{14: the port is first taken here}"),
        "{found:?}"
    );
    // There is no conflict with another protocol, another address, or on the host network.
    for other in ["hostPort: 8080, protocol: UDP", "hostPort: 8081"] {
        assert_eq!(of(&format!("{one}{}", workload("Deployment", "api", "replicas: 1", other))), [""; 0]);
    }
    let apart = one.replace("hostPort: 8080", "hostPort: 8080, hostIP: 127.0.0.2");
    let api = workload("Deployment", "api", "replicas: 1", "hostPort: 8080, hostIP: 127.0.0.1");
    assert_eq!(of(&format!("{apart}{api}")), [""; 0]);
    let host = one
        .replace("replicas: 1", "replicas: 3")
        .replace("    spec:\n", "    spec:\n      hostNetwork: true\n");
    assert_eq!(of(&host.replace("containerPort: 80,", "containerPort: 8080,")), [""; 0]);
}
