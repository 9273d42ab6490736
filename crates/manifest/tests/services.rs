//! Services and EndpointSlices: what is read, and what is wrong with them, with the line and the fix.

use outrigger_manifest::{ReadOptions, Severity, SourceFile, check_services, read};

/// A Deployment whose pods have the label `app: web` and the ports `http` and `dns` (UDP). Its sidecar has `admin`.
const WEB: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      initContainers:
      - {name: once, image: i, ports: [{name: setup, containerPort: 1}]}
      - {name: proxy, image: i, restartPolicy: Always, ports: [{name: admin, containerPort: 9000}]}
      containers:
      - {name: c, image: i, ports: [{name: http, containerPort: 80}, {name: dns, containerPort: 53, protocol: UDP}]}
---
";

/// A Service on line 15 whose spec is on line 18.
fn service(spec: &str) -> String {
    format!("{WEB}apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {spec}\n")
}

/// `line severity message [hint]` of each finding about the Services, including those of the reader.
fn found(text: &str) -> Vec<String> {
    let source = SourceFile::new("app.yaml", text);
    let diagnostics = match read(std::slice::from_ref(&source), &ReadOptions::default()) {
        Ok(manifest) => check_services(&manifest),
        Err(refused) => refused.0,
    };
    let line = |d: &outrigger_manifest::Diagnostic| {
        let at = d.span.map_or(0, |span| source.position(span.start).line);
        let severity = match d.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let hint = d.hint.as_ref().map(|hint| format!(" [{hint}]")).unwrap_or_default();
        format!("{at} {severity} {}{hint}", d.message)
    };
    diagnostics.iter().filter(|d| d.span.is_some()).map(line).collect()
}

#[test]
fn good_services_are_read_without_a_word() {
    for spec in [
        "{selector: {app: web}, ports: [{port: 80}]}",
        "{selector: {app: web}, ports: [{port: 80, targetPort: http}]}",
        "{selector: {app: web}, ports: [{port: 80, targetPort: admin}]}",
        "{selector: {app: web}, ports: [{name: a, port: 53, protocol: UDP, targetPort: dns}, {name: b, port: 53}]}",
        "{selector: {app: web}, clusterIP: None}",
        "{selector: {app: web}, clusterIP: 10.96.0.10, ports: [{port: 80}], sessionAffinity: ClientIP}",
        "{selector: {app: web}, type: NodePort, ports: [{port: 80, nodePort: 30080}]}",
        "{type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80}]}",
        "{type: ExternalName, externalName: db.example.com}",
        "{ports: [{port: 80, targetPort: anything}]}",
    ] {
        assert_eq!(found(&service(spec)), [""; 0], "{spec}");
    }
    let slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}\n\
                 addressType: IPv4\nendpoints: [{addresses: [192.0.2.1]}]\nports: [{port: 80}]\n";
    let text = format!("{}{slice}", service("{ports: [{port: 80}]}"));
    assert_eq!(found(&text), [""; 0]);
    let manifest = read(&[SourceFile::new("app.yaml", text)], &ReadOptions::default()).unwrap();
    let namespaces = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        (metadata.namespace.clone().unwrap(), metadata.name.clone().unwrap())
    };
    assert_eq!(namespaces(&manifest.services[0].metadata), ("default".to_owned(), "web".to_owned()));
    assert_eq!(namespaces(&manifest.endpoint_slices[0].metadata), ("default".to_owned(), "web-1".to_owned()));
}

#[test]
fn bad_services_are_answered_with_a_line_and_a_fix() {
    let table: &[(&str, &[&str])] = &[
        ("{selectr: {app: web}}", &["18 error unknown field `selectr` in `spec` [did you mean `selector`?]"]),
        (
            "{ports: [{port: http}]}",
            &["18 error `spec.ports[0].port`: expected a whole number, found the string `http`"],
        ),
        ("{ports: [{targetPort: 1}]}", &["18 error missing field `port` in `spec.ports[0]`"]),
        (
            "{selector: {app: web}, ports: [{port: 80, targetPort: htpp}]}",
            &[
                "18 error no container of the selected pods has a TCP port with the name `htpp` [did you mean `http`?]",
            ],
        ),
        (
            "{selector: {app: web}, ports: [{port: 80, targetPort: dns}]}",
            &[
                "18 error no container of the selected pods has a TCP port with the name `dns` [they have `admin`, `http`; or write the number]",
            ],
        ),
        // An init container has ended before a Service sends anything.
        (
            "{selector: {app: web}, ports: [{port: 80, targetPort: setup}]}",
            &[
                "18 error no container of the selected pods has a TCP port with the name `setup` [they have `admin`, `http`; or write the number]",
            ],
        ),
        (
            "{selector: {app: wbe}, ports: [{port: 80, targetPort: x}]}",
            &[
                "18 note no pod in namespace `default` has the labels `app=wbe` [compare the selector with the labels in `metadata` of the pod or of its template]",
            ],
        ),
        (
            "{selector: {app: web}, ports: [{port: 80, targetPort: \"80\"}]}",
            &["18 error port name `80` must contain a letter [remove the quotes]"],
        ),
        (
            "{selector: {app: web}}",
            &["18 error this Service has no `ports` [add for example `ports: [{port: 80}]`]"],
        ),
        (
            "{selector: {app: web}, ports: [{name: a, port: 80}, {name: b, port: 80}]}",
            &["18 error port 80/TCP is in this Service twice [change or remove one of them]"],
        ),
        (
            "{selector: {app: web}, ports: [{name: a, port: 80}, {name: a, port: 81}]}",
            &["18 error two ports of this Service have the name `a` [rename one]"],
        ),
        (
            "{selector: {app: web}, ports: [{port: 80}, {name: a, port: 81}]}",
            &[
                "18 error each port of a Service with several ports needs a name [add for example `name: http`]",
            ],
        ),
        (
            "{selector: {app: web}, ports: [{port: 0}]}",
            &["18 error `spec.ports[0].port` must be from 1 to 65535, it is 0"],
        ),
        (
            "{selector: {app: web}, ports: [{port: 80, targetPort: 70000}]}",
            &["18 error `spec.ports[0].targetPort` must be from 1 to 65535, it is 70000"],
        ),
        (
            "{selector: {app: web}, ports: [{port: 80, protocol: tcp}]}",
            &["18 error `spec.ports[0].protocol` cannot be `tcp` [did you mean `TCP`?]"],
        ),
        (
            "{selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}",
            &[
                "18 error a Service with `type: ClusterIP` has no node ports [write `type: NodePort`, or remove it]",
            ],
        ),
        (
            "{type: NodePort, selector: {app: web}, ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 81, nodePort: 30080}]}",
            &[
                "18 error nodePort 30080/TCP is used twice [give one of them another nodePort, or leave it out]",
            ],
        ),
        (
            "{type: NodePort, selector: {app: web}, ports: [{port: 80, nodePort: 8080}]}",
            &["18 warning a cluster refuses nodePort 8080: its node ports are 30000 to 32767"],
        ),
        (
            "{type: Nodeport, selector: {app: web}, ports: [{port: 80}]}",
            &["18 error `spec.type` cannot be `Nodeport` [did you mean `NodePort`?]"],
        ),
        (
            "{type: NodePort, clusterIP: None, selector: {app: web}, ports: [{port: 80}]}",
            &[
                "18 error a Service with `type: NodePort` cannot be headless (`clusterIP: None`) [remove `clusterIP` or `type`]",
            ],
        ),
        (
            "{clusterIP: none, selector: {app: web}, ports: [{port: 80}]}",
            &[
                "18 error `clusterIP` must be an address or `None`, it is `none` [remove it to get any address]",
            ],
        ),
        (
            "{clusterIP: 127.0.0.1, selector: {app: web}, ports: [{port: 80}]}",
            &[
                "18 error `clusterIP: 127.0.0.1` is a loopback address, which is another one in each pod [remove it to get any address]",
            ],
        ),
        (
            "{type: ExternalName}",
            &[
                "18 error a Service with `type: ExternalName` needs `externalName` [add the name of a host, for example `externalName: db.example.com`]",
            ],
        ),
        (
            "{type: ExternalName, externalName: 192.0.2.1}",
            &[
                "18 error `externalName` must be the name of a host, it is `192.0.2.1` [for an address, use a Service without selector and an EndpointSlice]",
            ],
        ),
        (
            "{sessionAffinity: Sticky, selector: {app: web}, ports: [{port: 80}]}",
            &["18 error `spec.sessionAffinity` cannot be `Sticky` [use one of `None`, `ClientIP`]"],
        ),
    ];
    for (spec, expected) in table {
        assert_eq!(found(&service(spec)), *expected, "{spec}");
    }
}

#[test]
fn services_that_clash_point_at_both() {
    let other = "---\napiVersion: v1\nkind: Service\nmetadata: {name: OTHER}\nspec: SPEC\n";
    let two = |name: &str, spec: &str| {
        format!("{}{}", service(spec), other.replace("OTHER", name).replace("SPEC", spec))
    };
    let plain = "{selector: {app: web}, ports: [{port: 80}]}";
    assert_eq!(
        found(&two("web", plain)),
        ["22 error Service `web` is defined twice in namespace `default` [give one of them another name]"]
    );
    assert_eq!(found(&two("web, namespace: shop", plain)).len(), 1, "only that it selects nothing there");
    assert_eq!(
        found(&two("b", "{type: NodePort, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}")),
        ["23 error nodePort 30080/TCP is used twice [give one of them another nodePort, or leave it out]"]
    );
    assert_eq!(
        found(&two("b", "{clusterIP: 10.96.0.10, selector: {app: web}, ports: [{port: 80}]}")),
        ["23 error two Services have the address 10.96.0.10 [remove `clusterIP` from one of them]"]
    );
    let with_host_port =
        service("{type: NodePort, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}")
            .replace("containerPort: 80", "containerPort: 80, hostPort: 30080");
    assert_eq!(
        found(&with_host_port),
        ["18 error nodePort 30080/TCP is used twice [give one of them another nodePort, or leave it out]"]
    );
    assert_eq!(
        found(&two("My_Web", plain)),
        [
            "22 error Service name `My_Web` must consist of lower case letters, digits and `-`, and begin and end with a letter or digit [for example `my-web`]"
        ]
    );
}

/// The manifest has one pod for all of a StatefulSet.
#[test]
fn a_service_can_select_one_pod_of_a_stateful_set() {
    let set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db}\nspec:\n  serviceName: db\n  replicas: 3\n  \
               selector: {matchLabels: {app: db}}\n  template:\n    metadata: {labels: {app: db}}\n    \
               spec: {containers: [{name: c, image: i}]}\n";
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: first}\n\
                   spec: {selector: {statefulset.kubernetes.io/pod-name: db-2}, ports: [{port: 80}]}\n";
    assert_eq!(found(&format!("{set}{service}")), [""; 0]);
}

#[test]
fn bad_endpoint_slices_are_answered_with_a_line_and_a_fix() {
    let slice = |labels: &str, rest: &str| {
        let head = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n";
        format!("{}{head}metadata: {{name: web-1{labels}}}\n{rest}\n", service("{ports: [{port: 80}]}"))
    };
    let of_web = ", labels: {kubernetes.io/service-name: web}";
    let table = [
        (
            ", labels: {kubernetes.io/service-name: wbe}",
            "addressType: IPv4\nendpoints: []",
            "22 note no Service `wbe` in the namespace of this EndpointSlice [did you mean `web`?]",
        ),
        (
            "",
            "addressType: IPv4\nendpoints: []",
            "22 note this EndpointSlice belongs to no Service [add the label `kubernetes.io/service-name: NAME`]",
        ),
        (
            of_web,
            "addressType: IPv5\nendpoints: []",
            "23 error `addressType` cannot be `IPv5` [did you mean `IPv4`?]",
        ),
        (
            of_web,
            "addressType: IPv4\nendpoints: [{addresses: [\"::1\"]}]",
            "24 error expected an IPv4 address, found `::1`",
        ),
        (
            of_web,
            "addressType: IPv4\nendpoints: [{addresses: [127.0.0.1]}]",
            "24 error the address 127.0.0.1 is a loopback address, which is another one in each pod",
        ),
        (
            of_web,
            "addressType: IPv4\nendpoints: [{addresses: [169.254.169.254]}]",
            "24 error the address 169.254.169.254 is not the address of one machine or pod",
        ),
        (
            of_web,
            "addressType: IPv4\nendpoints: [{addresses: []}]",
            "24 error this endpoint has no `addresses` [add one, or remove the endpoint]",
        ),
        (
            of_web,
            "addressType: IPv4\nendpoints: []\nports: [{port: 0}]",
            "25 error `ports[0].port` must be from 1 to 65535, it is 0",
        ),
        (of_web, "endpoints: []", "20 error missing field `addressType`"),
    ];
    for (labels, rest, expected) in table {
        assert_eq!(found(&slice(labels, rest)), [expected], "{rest}");
    }
}
