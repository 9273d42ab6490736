//! The spellings the sidecar proposal considered and rejected: each gets a hint with text to paste.

use outrigger_lifecycle::{FeatureGates, Role, plan};
use outrigger_manifest::{ReadOptions, SourceFile, read};

/// The hints for the errors in a manifest.
fn hints(text: &str) -> Vec<String> {
    let refused = read(&[SourceFile::new("p.yaml", text)], &ReadOptions::default()).unwrap_err();
    refused.0.into_iter().map(|d| d.hint.unwrap_or_default()).collect()
}

fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n{spec}")
}

/// The lines of a hint to paste, with the indentation they need in a Pod.
fn pasted(hint: &str) -> String {
    let lines = hint.lines().filter(|line| line.starts_with("    ") && !line.contains('…'));
    lines.map(|line| format!("{}\n", &line[4..])).collect()
}

/// A pod's containers with their roles and what they wait for, as planned.
fn planned(text: &str) -> Vec<(String, Role, Vec<String>)> {
    let manifest = read(&[SourceFile::new("p.yaml", text)], &ReadOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    let plan = plan(&manifest.pods[0].input, &FeatureGates::default())
        .unwrap_or_else(|e| panic!("{e:?}\n{text}"))
        .plan;
    let on = |c: &outrigger_lifecycle::ContainerPlan| {
        c.gates.iter().map(|g| plan.containers[g.on].name.clone()).collect()
    };
    plan.containers.iter().map(|c| (c.name.clone(), c.role, on(c))).collect()
}

#[test]
fn a_mark_on_a_container() {
    for mark in ["sidecar: true", "Sidecar: true", "type: sidecar", "type: Sidecar", "lifecycleType: Sidecar"]
    {
        let spec = format!(
            "  containers:\n  - name: myApp\n    image: a\n  - name: mySidecar\n    image: b\n    {mark}\n"
        );
        let found = hints(&pod(&spec));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0],
            "write this instead, in `mySidecar`:\n      lifecycle:\n        type: Sidecar\n\
             or, as Kubernetes 1.29 and later have it, move the container:\n    initContainers:\n    \
             - name: mySidecar\n      restartPolicy: Always\n      …the rest of the container"
        );
        let text = pod(&spec).replace(&format!("    {mark}\n"), "    lifecycle:\n      type: Sidecar\n");
        assert_eq!(planned(&text)[1].1, Role::Sidecar);
    }
    let deeper = hints(&pod("  containers:\n  - name: a\n    lifecycle: {sidecar: true}\n"));
    assert!(
        deeper[0].starts_with("write this instead, in `a`:\n      lifecycle:\n        type: Sidecar\n"),
        "{deeper:?}"
    );
    let not = hints(&pod("  containers:\n  - name: a\n    sidecar: false\n"));
    assert!(not[0].starts_with("remove it"), "{not:?}");
    let init = hints(&pod("  containers:\n  - name: a\n  initContainers:\n  - name: b\n    sidecar: true\n"));
    assert_eq!(init, ["write this instead, in `b`:\n      restartPolicy: Always"]);
    let word = hints(&pod("  containers:\n  - name: a\n    lifecycle: sidecar\n"));
    assert_eq!(word, ["write\n    lifecycle:\n      type: Sidecar"]);
}

#[test]
fn a_list_of_sidecars() {
    let head = "  initContainers:\n  - name: myInit\n    image: i\n";
    let tail = "  containers:\n  - name: myApp\n    image: a\n";
    let list = "  sidecarContainers:\n  - name: mySidecar\n    image: b\n  - name: other\n    image: b\n";
    let found = hints(&pod(&format!("{head}{tail}{list}")));
    assert_eq!(
        found,
        [
            "move its containers to the end of `initContainers`:\n    initContainers:\n    - name: mySidecar\n      \
          restartPolicy: Always\n      …the rest of `mySidecar`\n    - name: other\n      restartPolicy: Always\n      \
          …the rest of `other`"
        ]
    );
    let sidecars = pasted(&found[0]).replace("initContainers:\n", "").replace("- name", "  - name");
    let sidecars = sidecars.replace("  restartPolicy", "    image: b\n    restartPolicy");
    let plan = planned(&pod(&format!("{head}{sidecars}{tail}")));
    assert_eq!(plan.iter().filter(|c| c.1 == Role::Sidecar).count(), 2, "{plan:?}");
}

#[test]
fn orders_become_one_annotation_for_the_whole_pod() {
    // The fields of `myApp`, those of `mySidecar`, and what the annotation must say.
    let table = [
        ("dependsOn: mySidecar", "", "myApp: mySidecar\n"),
        ("dependsOn: [mySidecar]", "", "myApp: mySidecar\n"),
        ("depends_on: {mySidecar: {condition: service_healthy}}", "", "myApp: mySidecar ready\n"),
        ("terminationFatalToPod: true", "", "myApp: fatal\n"),
        ("StartupPhase: default", "StartupPhase: post-init", "myApp: start 2\nmySidecar: start 1\n"),
        ("image: a", "startupPhase: post-init", "myApp: start 2\nmySidecar: start 1\n"),
        (
            "startupOrder: 2\n    shutdownOrder: 1",
            "startupOrder: 1\n    shutdownOrder: 2",
            "myApp: start 2, stop 1\nmySidecar: start 1, stop 2\n",
        ),
        (
            "dependsOn: mySidecar\n    terminationFatalToPod: true",
            "shutdownOrder: 2",
            "myApp: mySidecar, stop 1, fatal\nmySidecar: stop 2\n",
        ),
        ("image: a", "primaryContainer: true", "mySidecar: primary\n"),
        ("primaryContainer: true\n    terminationFatalToPod: true", "", "myApp: primary, fatal\n"),
        // A single number would order nothing.
        ("image: a", "startupOrder: 1", "myApp: start 2\nmySidecar: start 1\n"),
        ("startupOrder: 2", "", "myApp: start 2\nmySidecar: start 1\n"),
    ];
    for (app, sidecar, expected) in table {
        let sidecar = if sidecar.is_empty() { String::new() } else { format!("    {sidecar}\n") };
        let spec = format!("  containers:\n  - name: myApp\n    {app}\n  - name: mySidecar\n{sidecar}");
        let found = hints(&pod(&spec));
        let annotation = pasted(&found[0]);
        let head = "metadata:\n  annotations:\n    outrigger.dev/depends-on: |\n";
        let lines = annotation.strip_prefix(head).unwrap_or_else(|| panic!("{app}: {annotation}"));
        assert_eq!(lines.replace("      ", ""), expected, "{app}");
        assert!(
            found[1..].iter().all(|h| h.contains("covers this container") || *h == found[0]),
            "{found:?}"
        );
        let fixed = "spec:\n  containers:\n  - {name: myApp, image: a}\n  - {name: mySidecar, image: b}\n";
        let plan = planned(&format!(
            "apiVersion: v1\nkind: Pod\n{}{fixed}",
            annotation.replace("metadata:\n", "metadata:\n  name: p\n")
        ));
        let waits = expected.contains("mySidecar ready")
            || expected.contains("myApp: mySidecar")
            || expected.contains("start 2");
        assert_eq!(plan[0].2 == ["mySidecar"], waits, "{app}: {plan:?}");
    }
}

#[test]
fn the_primary_container_of_a_job() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      \
               restartPolicy: Never\n      containers:\n      - name: worker\n      - name: sidecar\n  \
               primaryContainer: worker\n";
    assert_eq!(
        hints(job),
        ["write it into `spec.template.metadata` instead:\n    metadata:\n      annotations:\n        \
          outrigger.dev/depends-on: |\n          worker: primary"]
    );
    let has = job.replace(
        "  template:\n",
        "  template:\n    metadata: {annotations: {outrigger.dev/depends-on: 'sidecar: none'}}\n",
    );
    assert_eq!(
        hints(&has),
        ["add to the annotation outrigger.dev/depends-on instead:\n          worker: primary"]
    );
}

#[test]
fn other_unknown_fields_get_a_name_only_if_it_is_close() {
    let of = |field: &str| hints(&pod(&format!("  containers:\n  - name: a\n    {field}: x\n"))).remove(0);
    assert_eq!(of("startupProb"), "did you mean `startupProbe`?");
    for far in ["startupPolicy", "startAfter", "phase", "order", "sideCars"] {
        assert_eq!(of(far), "", "{far}");
    }
}
