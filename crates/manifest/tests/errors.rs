//! Every class of errors, with the message and the line and column of its position.

use outrigger_manifest::{Diagnostic, ReadOptions, Severity, SourceFile, Validate, read, render};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n";

/// A pod whose spec has these lines.
fn pod(spec: &str) -> String {
    format!("{POD}{spec}")
}

fn diagnostics(text: &str, options: &ReadOptions) -> (Vec<Diagnostic>, SourceFile) {
    let source = SourceFile::new("pod.yaml", text);
    let diagnostics = match read(std::slice::from_ref(&source), options) {
        Ok(manifest) => manifest.warnings,
        Err(diagnostics) => diagnostics.0,
    };
    (diagnostics, source)
}

/// `line:column severity message [hint]` of each diagnostic.
fn lines(text: &str, options: &ReadOptions) -> Vec<String> {
    let (diagnostics, source) = diagnostics(text, options);
    diagnostics
        .iter()
        .map(|d| {
            let at = d.span.map_or("-".to_owned(), |span| {
                let position = source.position(span.start);
                format!("{}:{}", position.line, position.column)
            });
            let severity = if d.severity == Severity::Error { "error" } else { "warning" };
            let hint = d.hint.as_ref().map(|hint| format!(" [{hint}]")).unwrap_or_default();
            format!("{at} {severity} {}{hint}", d.message)
        })
        .collect()
}

#[track_caller]
fn expect(text: &str, expected: &[&str]) {
    assert_eq!(lines(text, &ReadOptions::default()), expected, "\n{text}");
}

#[test]
fn unknown_fields_are_named_with_the_nearest_one() {
    expect(
        &pod("  containers:\n  - name: c\n    imagee: busybox\n"),
        &["8:5 error unknown field `imagee` in `spec.containers[0]` [did you mean `image`?]"],
    );
    expect(
        &pod("  containers:\n  - name: c\n    livenessprobe: {}\n"),
        &["8:5 error unknown field `livenessprobe` in `spec.containers[0]` [did you mean `livenessProbe`?]"],
    );
    expect(
        &pod("  containers:\n  - name: c\n    volumes: []\n"),
        &[
            "8:5 error unknown field `volumes` in `spec.containers[0]` [`volumes` is a field of `spec`: check the indentation]",
        ],
    );
    expect(
        &pod("  containers:\n  - name: c\n    lifecycle: {preStop: {exec: {commands: [x]}}}\n"),
        &[
            "8:34 error unknown field `commands` in `spec.containers[0].lifecycle.preStop.exec` [did you mean `command`?]",
        ],
    );
    expect(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspc: {}\nspec: {containers: [{name: c}]}\n",
        &["4:1 error unknown field `spc` [did you mean `spec`?]"],
    );
    expect(
        &pod("  containers:\n  - name: c\n    zzzzzzzz: 1\n"),
        &["8:5 error unknown field `zzzzzzzz` in `spec.containers[0]`"],
    );
}

#[test]
fn validation_can_be_relaxed() {
    let text = pod("  containers:\n  - name: c\n    imagee: busybox\n    name: d\n");
    let with = |validate| lines(&text, &ReadOptions { validate, ..ReadOptions::default() });
    assert_eq!(
        with(Validate::Warn),
        [
            "8:5 warning unknown field `imagee` in `spec.containers[0]` [did you mean `image`?]",
            "9:5 warning the key `name` is written twice [keep one of them: only the last one would count]",
        ]
    );
    assert!(with(Validate::Ignore).is_empty());
    assert_eq!(with(Validate::Strict).len(), 2);
}

#[test]
fn wrong_types_say_what_was_expected() {
    let container = "  containers:\n  - name: c\n    ";
    let table: &[(&str, &str)] = &[
        (
            "env: [{name: A, value: 1}]",
            "8:28 error `spec.containers[0].env[0].value`: expected a string, found the number `1` [quote it: \"1\"]",
        ),
        (
            "env: [{name: A, value: true}]",
            "8:28 error `spec.containers[0].env[0].value`: expected a string, found the boolean `true` [quote it: \"true\"]",
        ),
        (
            "env: [{name: A, value: yes}]",
            "8:28 error `spec.containers[0].env[0].value`: expected a string, found the boolean `yes` [Kubernetes reads YAML 1.1, where unquoted yes, no, on, off, y and n are booleans: write \"yes\"]",
        ),
        (
            "args: [a, 1.5]",
            "8:15 error `spec.containers[0].args[1]`: expected a string, found the number `1.5` [quote it: \"1.5\"]",
        ),
        (
            "args: a",
            "8:11 error `spec.containers[0].args`: expected a list, found the string `a` [write each word as its own entry: [\"a\"]]",
        ),
        (
            "env: {A: b}",
            "8:5 error `spec.containers[0].env`: expected a list, found a map [start each entry with `- `]",
        ),
        (
            "lifecycle: [{preStop: {sleep: {seconds: 1}}}]",
            "8:5 error `spec.containers[0].lifecycle`: expected a map of fields, found a list [remove the `- `: this is a map, not a list]",
        ),
        ("stdin: 1", "8:12 error `spec.containers[0].stdin`: expected true or false, found the number `1`"),
        (
            "stdin: \"true\"",
            "8:12 error `spec.containers[0].stdin`: expected true or false, found the string `true` [remove the quotes]",
        ),
        (
            "ports: [{containerPort: \"80\"}]",
            "8:29 error `spec.containers[0].ports[0].containerPort`: expected a whole number, found the string `80` [remove the quotes]",
        ),
        (
            "ports: [{containerPort: 99999999999}]",
            "8:29 error `spec.containers[0].ports[0].containerPort`: expected a whole number from -2147483648 to 2147483647, found the number `99999999999`",
        ),
        (
            "ports: [{containerPort: 1.5}]",
            "8:29 error `spec.containers[0].ports[0].containerPort`: expected a whole number, found the number `1.5`",
        ),
        (
            "resources: {limits: {memory: 1gb}}",
            "8:34 error `spec.containers[0].resources.limits.memory`: expected a quantity such as `500m`, `2` or `256Mi`, found the string `1gb`",
        ),
        ("image: {a: b}", "8:5 error `spec.containers[0].image`: expected a string, found a map"),
        (
            "readinessProbe: {httpGet: {port: true}}",
            "8:38 error `spec.containers[0].readinessProbe.httpGet.port`: expected a number or a name, found boolean `true`",
        ),
        (
            "lifecycle: {type: 1}",
            "8:23 error `spec.containers[0].lifecycle.type`: expected a string, found the number `1` [quote it: \"1\"]",
        ),
        (
            "lifecycle: {type: }",
            "8:17 error `spec.containers[0].lifecycle.type`: expected `Sidecar` or `Standard`, found nothing",
        ),
    ];
    for (field, expected) in table {
        expect(&pod(&format!("{container}{field}\n")), &[expected]);
    }
}

#[test]
fn all_that_is_wrong_is_named_at_once() {
    expect(
        &pod("  containers:\n  - name: c\n    stdin: 1\n    imag: x\n  - args: 2\n  restartpolicy: Never\n"),
        &[
            "8:12 error `spec.containers[0].stdin`: expected true or false, found the number `1`",
            "9:5 error unknown field `imag` in `spec.containers[0]` [did you mean `image`?]",
            "10:5 error missing field `name` in `spec.containers[1]`",
            "10:11 error `spec.containers[1].args`: expected a list, found the number `2` [write each word as its own entry: [\"2\"]]",
            "11:3 error unknown field `restartpolicy` in `spec` [did you mean `restartPolicy`?]",
        ],
    );
}

#[test]
fn free_maps_keep_their_keys() {
    let labels = |labels: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  labels: {labels}\nspec: {{containers: [{{name: c}}]}}\n"
        )
    };
    expect(&labels("{on: a}"), &["5:12 error Kubernetes reads the key `on` as `true` [quote it: \"on\"]"]);
    expect(&labels("{010: a}"), &["5:12 error Kubernetes reads the key `010` as `8` [quote it: \"010\"]"]);
    expect(&labels("{10: a, \"on\": b}"), &[]);
    expect(
        &labels("{a: 1}"),
        &["5:15 error `metadata.labels.a`: expected a string, found the number `1` [quote it: \"1\"]"],
    );
    expect(
        &labels("{a: }"),
        &[
            "5:12 warning `metadata.labels.a` has no value and is read as the empty string, `\"\"` [write the empty string, `\"\"`, or remove it]",
        ],
    );
}

#[test]
fn missing_fields_are_named() {
    expect(
        "apiVersion: v1\nmetadata: {name: p}\n",
        &[
            "1:1 error missing field `kind` [every object needs both, for example `apiVersion: v1` and `kind: Pod`]",
        ],
    );
    expect(
        "kind: Pod\nmetadata: {name: p}\n",
        &[
            "1:1 error missing field `apiVersion` [every object needs both, for example `apiVersion: v1` and `kind: Pod`]",
        ],
    );
    expect(
        "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {containers: [{name: c}]}\n",
        &["3:1 error missing field `metadata.name` of this Pod"],
    );
    expect("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", &["1:1 error missing field `spec`"]);
    expect(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n",
        &["4:1 error missing field `containers` in `spec`"],
    );
    expect(
        &pod("  containers:\n  - image: a\n    volumeMounts: [{name: v}]\n    env: [{value: a}]\n"),
        &[
            "7:5 error missing field `name` in `spec.containers[0]`",
            "8:20 error missing field `mountPath` in `spec.containers[0].volumeMounts[0]`",
            "9:11 error missing field `name` in `spec.containers[0].env[0]`",
        ],
    );
    expect(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  template: {spec: {containers: [{name: c}]}}\n",
        &["4:1 error missing field `selector` in `spec`"],
    );
    expect(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: d}\nspec:\n  template:\n    metadata: {}\n",
        &["5:3 error missing field `spec.template.spec`"],
    );
}

#[test]
fn a_selector_must_match_its_template() {
    expect(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector:\n    matchLabels:\n      app: a\n  template:\n    metadata:\n      labels: {app: b}\n    spec: {containers: [{name: c}]}\n",
        &[
            "7:12 error the selector asks for `app: a`, which the template's labels do not have [make `spec.template.metadata.labels` contain all of `spec.selector.matchLabels`]",
        ],
    );
}

#[test]
fn broken_text_is_refused_where_it_breaks() {
    let table: &[(&str, &str)] = &[
        ("a: 1\nb: [1, 2\nc: 3\n", "not valid YAML"),
        (
            "a: b: c\n",
            "1:5 error not valid YAML: mapping values are not allowed in this context [check the indentation, and quote values that contain `: `]",
        ),
        (
            "a: *nope\n",
            "1:4 error not valid YAML: while parsing node, found unknown anchor [an alias `*name` needs an anchor `&name` before it in the same document]",
        ),
        ("a: &x [*x]\n", "1:8 error this alias is inside the value it refers to [write the value out]"),
        ("a: !custom b\n", "1:4 error the YAML tag `!custom` has no meaning in a Kubernetes manifest"),
        ("a: !!binary aGk=\n", "1:4 error the YAML tag `!!binary` has no meaning"),
        ("? [a]\n: b\n", "1:3 error a map key must be a string, not a list or a map"),
        ("a: {{ .Values.x }}\n", "error a map key must be a string"),
        ("a: 1\nb: \0\n", "2:4 error a NUL byte: this is not a text file"),
        ("a: 1\n<<: 2\n", "2:5 error a merge key `<<` takes a map, or a list of maps"),
        ("- a\n", "1:3 error expected an object with `apiVersion`, `kind` and `metadata`"),
        ("just text\n", "1:1 error expected an object with `apiVersion`, `kind` and `metadata`"),
        ("{\"a\": 1,}", "1:1 error missing field `apiVersion`"),
        ("{\"a\": \"b}", "not valid YAML"),
    ];
    for (text, expected) in table {
        let found = lines(text, &ReadOptions::default());
        assert!(found[0].contains(expected), "{text:?}: {found:?}");
    }
}

#[test]
fn broken_json_is_refused_as_json() {
    let table: &[(&str, &str)] = &[
        ("{\n\t\"a\" 1}", "2:6 not valid JSON: expected `:`, found `1`"),
        ("{\"a\": 01}", "1:7 not valid JSON: expected a value, found `0`"),
        ("{\"a\": \"\\x\"}", "1:8 not valid JSON: this is not a JSON escape"),
        ("{\"a\": \"\\ud800x\"}", "1:8 not valid JSON: this is not a JSON escape"),
        ("{\"a\": [1 2]}", "1:10 not valid JSON: expected `,` or `]`, found `2`"),
        ("{\"a\": \"b", "1:7 not valid JSON: this string does not end"),
        ("{\"a\": tru}", "1:7 not valid JSON: expected a value, found `t`"),
    ];
    for (text, expected) in table {
        let source = SourceFile::new("pod.json", *text);
        let error = &read(std::slice::from_ref(&source), &ReadOptions::default()).unwrap_err().0[0];
        let position = source.position(error.span.unwrap().start);
        let found = format!("{}:{} {}", position.line, position.column, error.message);
        assert_eq!(&found, expected, "{text:?}");
    }
}

#[test]
fn duplicate_keys_point_at_both() {
    let text = pod("  containers:\n  - name: c\n    image: a\n    image: b\n");
    let (found, source) = diagnostics(&text, &ReadOptions::default());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].message, "the key `image` is written twice");
    assert_eq!(source.position(found[0].span.unwrap().start).line, 9);
    assert_eq!(source.position(found[0].labels[0].0.start).line, 8);
    // JSON gives the same error.
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "kind": "Pod"}"#;
    let found = lines(json, &ReadOptions::default());
    let expected = "1:37 error the key `kind` is written twice";
    assert!(found.iter().any(|line| line.starts_with(expected)), "{found:?}");
}

#[test]
fn objects_of_one_name_point_at_both() {
    let text = format!("{0}---\n{0}", pod("  containers: [{name: c}]\n"));
    expect(
        &text,
        &["11:9 error Pod `p` is defined twice in namespace `default` [give one of them another name]"],
    );
}

/// An object of any kind.
fn object(api_version: &str, kind: &str) -> String {
    format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: s}}\n---\n")
}

#[test]
fn kinds_that_are_not_run_are_accepted() {
    let listed = ReadOptions { list_skipped: true, ..ReadOptions::default() };
    for (api_version, kind, reason) in [
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "no API server"),
        ("v1", "ServiceAccount", "no API server"),
        ("policy/v1", "PodDisruptionBudget", "not evicted"),
        ("autoscaling/v2", "HorizontalPodAutoscaler", "`replicas`"),
        ("networking.k8s.io/v1", "NetworkPolicy", "not filtered"),
        ("networking.k8s.io/v1", "Ingress", "--publish"),
        ("gateway.networking.k8s.io/v1", "HTTPRoute", "--publish"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "no API server"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "no API server"),
        ("v1", "Namespace", "as soon as"),
        ("v1", "Endpoints", "EndpointSlices"),
        ("node.k8s.io/v1", "RuntimeClass", "only pods"),
        // Kinds of others may have the name of one that is run, or nearly.
        ("serving.knative.dev/v1", "Service", "custom resource"),
        ("batch.volcano.sh/v1alpha1", "Job", "custom resource"),
        ("example.com/v1", "Pods", "custom resource"),
    ] {
        let text = format!("{}{}", object(api_version, kind), pod("  containers: [{name: c}]\n"));
        let found = lines(&text, &ReadOptions::default());
        assert_eq!(found, [format!("- warning not run: 1 {kind} (-v lists them with the reason)")], "{kind}");
        let found = lines(&text, &listed);
        assert!(found[0].starts_with(&format!("2:7 warning {kind} `s` is not run: ")), "{found:?}");
        assert!(found.len() == 1 && found[0].contains(reason), "{found:?}");
    }
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n---\n";
    expect(
        &format!("{service}{}", pod("  containers: [{name: c}]\n")),
        &["- warning not run: 1 Service (-v lists them with the reason)"],
    );
    let two = format!("{0}{0}{1}", object("v1", "NetworkPolicy"), object("v1", "Ingress"));
    expect(
        &two,
        &[
            "- warning not run: 1 Ingress, 2 NetworkPolicies (-v lists them with the reason)",
            "- error nothing is left to run [a Pod, Job, CronJob, Deployment, ReplicaSet, StatefulSet or DaemonSet is needed]",
        ],
    );
    assert!(lines("", &ReadOptions::default())[0].starts_with("1:1 error nothing to run: the file is empty"));
}

#[test]
fn kinds_that_look_like_a_mistake_are_errors() {
    for (api_version, kind, hint) in [
        ("v1", "Pdo", "did you mean `kind: Pod`?"),
        ("apps/v1", "Deploymnt", "did you mean `kind: Deployment`?"),
        ("v1", "service", "did you mean `kind: Service`?"),
        ("v1", "Deployment", "write `apiVersion: apps/v1`"),
        ("extensions/v1beta1", "Deployment", "write `apiVersion: apps/v1`"),
        ("app/v1", "Deployment", "write `apiVersion: apps/v1`"),
        ("v2", "Pod", "write `apiVersion: v1`"),
        ("discovery.k8s.io/v1beta1", "EndpointSlice", "write `apiVersion: discovery.k8s.io/v1`"),
    ] {
        let text = object(api_version, kind);
        expect(
            &text,
            &[&format!("2:7 error there is no kind `{kind}` in `apiVersion: {api_version}` [{hint}]")],
        );
        // What an older version has skipped does not end a run.
        let accepted = ReadOptions { was_accepted: true, ..ReadOptions::default() };
        let text = format!("{text}{}", pod("  containers: [{name: c}]\n"));
        assert!(lines(&text, &accepted)[0].starts_with("- warning not run: 1 "), "{text}");
    }
}

#[test]
fn helm_hooks_run_only_if_they_belong_to_an_installation() {
    let hook = |hooks: &str| {
        let annotated = format!("name: p\n  annotations: {{helm.sh/hook: \"{hooks}\"}}");
        pod("  containers: [{name: c}]\n").replace("name: p", &annotated)
    };
    let listed = ReadOptions { list_skipped: true, ..ReadOptions::default() };
    let cases =
        [("test", "a test of a Helm chart"), ("test-success", "a test"), ("pre-delete", "`pre-delete`")];
    for (hooks, reason) in cases {
        let found = lines(&hook(hooks), &listed);
        assert!(found[0].starts_with("2:7 warning Pod `p` is not run: it is"), "{found:?}");
        assert!(found[0].contains(reason), "{found:?}");
    }
    for hooks in ["pre-install", "post-upgrade, post-install", ""] {
        expect(&hook(hooks), &[]);
    }
}

#[test]
fn limits_hold() {
    let options = ReadOptions::default();
    let first = |text: &str| lines(text, &options).remove(0);

    let laughs = (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
        let alias = format!("*a{}", n - 1);
        format!("{text}a{n}: &a{n} [{}]\n", vec![alias; 9].join(", "))
    });
    assert!(
        first(&laughs).contains("error the file has more than 200000 values once its aliases are expanded")
    );

    // There are few values, but each of them is long.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 1_000].join(", "));
    assert!(first(&long).contains("more than 32 MiB of values once its aliases are expanded"));

    for deep in ["[".repeat(10_000), "{a: ".repeat(10_000), "- ".repeat(10_000), "{\"a\":".repeat(10_000)] {
        let found = first(&deep);
        assert!(found.contains("nested more than 128 levels deep"), "{found}");
    }
    let nested: String = (0..200).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    assert!(first(&nested).contains("nested more than 128 levels deep"));

    assert!(first(&"# \n".repeat(3 << 20)).contains("bytes, the limit is 8 MiB"));
    assert!(first(&"---\na: 1\n".repeat(1_001)).contains("more than 1000 documents in one file"));
    let many: String = (0..150_000).map(|n| format!("k{n}: 1\n")).collect();
    assert!(first(&many).contains("more than 200000 values"));

    let replicas = "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: r}\nspec:\n  replicas: 1000000000\n  selector: {}\n  template: {spec: {containers: [{name: c}]}}\n";
    assert_eq!(
        first(replicas),
        "5:13 error 1000000000 pods of this ReplicaSet are more than a manifest may have [lower `spec.replicas`]"
    );

    let errors: String = (0..500).map(|n| format!("  k{n}x: 1\n")).collect();
    let found = lines(&pod(&errors), &options);
    assert_eq!(found.len(), 101);
    assert_eq!(found[100], "- error and 401 more");
}

#[test]
fn diagnostics_are_shown_with_their_lines() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p # é\nspec:\n  containers:\n  - name: c\n    imagee: é busybox\n    env:\n    - name: A\n      value: yes\n    name: d\n";
    let (found, source) = diagnostics(text, &ReadOptions::default());
    let shown = render(&found, &[source], false);
    assert_eq!(
        shown,
        "\
error: unknown field `imagee` in `spec.containers[0]`
 --> pod.yaml:8:5
  |
8 |     imagee: é busybox
  |     ^^^^^^
  |
  = help: did you mean `image`?

error: `spec.containers[0].env[0].value`: expected a string, found the boolean `yes`
  --> pod.yaml:11:14
   |
11 |       value: yes
   |              ^^^
   |
   = help: Kubernetes reads YAML 1.1, where unquoted yes, no, on, off, y and n are booleans: write \"yes\"

error: the key `name` is written twice
  --> pod.yaml:12:5
   |
 7 |   - name: c
   |     ---- first here
...
12 |     name: d
   |     ^^^^
   |
   = help: keep one of them: only the last one would count

"
    );
}

#[test]
fn a_very_long_line_is_named_but_not_shown() {
    let json = format!(r#"{{"apiVersion": "v1", "kind": "Pod", "x": "{}", "specc": 1}}"#, "y".repeat(5_000));
    let (found, source) = diagnostics(&json, &ReadOptions::default());
    let shown = render(&found, &[source], false);
    assert!(shown.contains("--> pod.yaml:1:"), "{shown}");
    assert!(shown.len() < 2_000, "{shown}");
}

#[test]
fn diagnostics_as_json() {
    let (found, source) =
        diagnostics(&pod("  containers:\n  - name: c\n    imagee: x\n"), &ReadOptions::default());
    let json = outrigger_manifest::to_json(&found, &[source]);
    assert_eq!(
        json,
        serde_json::json!([{
            "severity": "error", "code": null, "message": "unknown field `imagee` in `spec.containers[0]`",
            "hint": "did you mean `image`?", "related": [],
            "file": "pod.yaml", "line": 8, "column": 5, "endLine": 8, "endColumn": 11,
        }])
    );
}

/// A finding about one entry of a text has the position of that entry, in every notation.
#[test]
fn pieces_of_a_text_have_a_place() {
    let table = [
        (
            "|\n      a: b # c; d\n\n      e: f\n      g: h; i: j",
            vec![(6, 7), (6, 17), (6, 18), (8, 7), (9, 7), (9, 13)],
        ),
        ("| # e: f\n      e: f\n      g: h", vec![(6, 7), (7, 7)]),
        (">-\n      a: b;\n      e: f\n      started;\n      g: h", vec![(6, 7), (7, 7), (9, 7)]),
        ("'a: b; e: f'", vec![(5, 12), (5, 18)]),
        ("\"a: b; \\x65: f\"", vec![(5, 11), (5, 11)]),
    ];
    for (text, expected) in table {
        let yaml = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    note: {text}\n  name: p\nspec:\n  containers:\n  \
             - name: a\n    image: a\n"
        );
        let source = SourceFile::new("p.yaml", yaml.as_str());
        let manifest = read(std::slice::from_ref(&source), &ReadOptions::default())
            .unwrap_or_else(|e| panic!("{e}\n{yaml}"));
        let note = outrigger_lifecycle::FieldPath::annotation("note");
        let found: Vec<_> = (0..expected.len())
            .map(|piece| {
                let position = source.position(manifest.pods[0].point(&note.clone().index(piece)).start);
                (position.line, position.column)
            })
            .collect();
        assert_eq!(found, expected, "{yaml}");
    }
}

/// A finding about a block with one line has the position of that line, not of the `|` above it.
#[test]
fn a_block_of_one_line_has_a_place() {
    for (text, expected) in [
        ("|\n      web: cache ready", (6, 7)),
        ("|-\n      web: cache ready", (6, 7)),
        (">\n      web: cache ready\n", (6, 7)),
        ("|\n      web: cache ready\n      cache: none", (5, 11)),
        ("'web: cache ready'", (5, 11)),
    ] {
        let yaml = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    note: {text}\n  name: p\nspec:\n  containers:\n  \
             - name: a\n    image: a\n"
        );
        let source = SourceFile::new("p.yaml", yaml.as_str());
        let manifest = read(std::slice::from_ref(&source), &ReadOptions::default())
            .unwrap_or_else(|e| panic!("{e}\n{yaml}"));
        let place = manifest.pods[0].point(&outrigger_lifecycle::FieldPath::annotation("note"));
        let position = source.position(place.start);
        assert_eq!((position.line, position.column), expected, "{yaml}");
    }
}

#[test]
fn keys_are_names_of_files() {
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a.b_c-D: x}\n";
    let hint = "[for a path with directories use `items` of the volume: `{key: KEY, path: a/b}`]";
    let bad = |key: &str, why: &str| format!("5:3 error key `{key}` of a ConfigMap {why} {hint}");
    for (key, expected) in [
        ("../x", bad("../x", "must consist of letters, digits, `-`, `_` and `.`")),
        ("a/b", bad("a/b", "must consist of letters, digits, `-`, `_` and `.`")),
        ("/x", bad("/x", "must consist of letters, digits, `-`, `_` and `.`")),
        ("\"\"", bad("", "must consist of letters, digits, `-`, `_` and `.`")),
        ("..x", bad("..x", "must not be `.` nor begin with `..`")),
        (".", bad(".", "must not be `.` nor begin with `..`")),
    ] {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata:\n  {key}: v\n");
        expect(&text, &[&expected]);
    }
    expect(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: c}\nstringData:\n  a/b: v\n",
        &[&bad("a/b", "must consist of letters, digits, `-`, `_` and `.`").replace("ConfigMap", "Secret")],
    );
    expect(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x}\nbinaryData: {a: AAAA}\n",
        &["5:14 error key `a` is both in data and in binaryData [rename one]"],
    );
    let found = lines(good, &ReadOptions::default());
    assert!(found.iter().all(|line| !line.contains("key")), "{found:?}");
}

#[test]
fn common_mistakes_say_what_to_write() {
    let container = |line: &str| pod(&format!("  containers:\n  - name: c\n    image: i\n{line}"));
    for (text, at, hint) in [
        (
            container("    command: sleep 1\n"),
            "9:14",
            "[write each word as its own entry: [\"sleep\", \"1\"]]",
        ),
        (
            container("    environment:\n      A: 1\n"),
            "9:5",
            "[write `env`, a list:\n    env:\n    - name: A\n      value: \"1\"]",
        ),
        (container("    environment: [\"A=b\"]\n"), "9:5", "- name: A\n      value: b]"),
        (container("    env: [\"A=b\"]\n"), "9:11", "[write\n    - name: A\n      value: b]"),
        (container("    entrypoint: [sh]\n"), "9:5", "[write `command`]"),
        (container("    ports: [80]\n"), "9:13", "[write `- containerPort: 80`]"),
        (container("    ports: [\"8080:80\"]\n"), "9:13", "[write `- containerPort: 80`]"),
        (
            pod("  containers:\n  - name: c\n  image: i\n"),
            "8:3",
            "[`image` is a field of a container: check the indentation]",
        ),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  containers: []\n".to_owned(),
            "5:3",
            "[move it to `spec.template.spec`]",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: j}\nspec:\n  containers: []\n"
                .to_owned(),
            "5:3",
            "[move it to `spec.template.spec`]",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n\tlabels: {}\n".to_owned(),
            "5:1",
            "[indent with spaces: YAML does not allow tabs]",
        ),
        (
            container("").replace("    image", "\timage"),
            "8:1",
            "[indent with spaces: YAML does not allow tabs]",
        ),
    ] {
        let found = lines(&text, &ReadOptions::default());
        assert!(
            found.iter().any(|line| line.starts_with(&format!("{at} ")) && line.contains(hint)),
            "{text}{found:#?}"
        );
    }
}

#[test]
fn an_empty_file_is_named() {
    let source = SourceFile::new("empty.yaml", "");
    let refused = read(std::slice::from_ref(&source), &ReadOptions::default()).unwrap_err().0;
    let shown = render(&refused, std::slice::from_ref(&source), false);
    assert!(shown.contains("--> empty.yaml:1:1") && shown.contains("the file is empty"), "{shown}");
    let json = outrigger_manifest::to_json(&refused, &[source]);
    assert_eq!(json[0]["file"], "empty.yaml");
    let nowhere = render(&[Diagnostic::error(None, "it failed").hint("try again")], &[], true);
    assert!(!nowhere.contains('|') && nowhere.contains("help"), "{nowhere:?}");
}
