//! Hints for spellings that the sidecar proposal considered and rejected. The tests follow the hints: their
//! text must parse, repeat no key, and give a valid manifest that means what its author intended.

use outrigger_lifecycle::{FeatureGates, FieldPath, Role, Segment};
use outrigger_manifest::edit::Editor;
use outrigger_manifest::{Node, ReadOptions, Severity, SourceFile, check, parse, read};

/// The hints for the errors in a manifest.
fn hints(text: &str) -> Vec<String> {
    let refused = read(&[SourceFile::new("p.yaml", text)], &ReadOptions::default()).unwrap_err();
    refused.0.into_iter().map(|d| d.hint.unwrap_or_default()).collect()
}

fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n{spec}")
}

/// A path in the form that messages show.
fn path(shown: &str) -> FieldPath {
    let mut path = FieldPath::root();
    for part in shown.split('.').filter(|part| !part.is_empty()) {
        let (name, indexes) = part.split_once('[').unwrap_or((part, ""));
        path = path.field(name.to_owned());
        for index in indexes.trim_end_matches(']').split("][").filter(|index| !index.is_empty()) {
            path = path.index(index.parse().unwrap());
        }
    }
    path
}

fn up(path: &FieldPath) -> FieldPath {
    FieldPath(path.0[..path.0.len() - 1].to_vec())
}

/// Writes the keys of a block into a map. Either all of them are new, or all replace existing ones.
fn write(editor: &mut Editor, into: &FieldPath, block: &str, replaces: bool) {
    let block = parse(0, &SourceFile::new("b.yaml", block), &ReadOptions::default()).unwrap();
    let serde_json::Value::Object(keys) = block[0].root.to_json() else { panic!("{block:?}") };
    for (key, value) in keys {
        let place = into.clone().field(key.clone());
        assert_eq!(editor.root().at(&place).is_some(), replaces, "`{place}` in\n{}", editor.text());
        editor.set(&place, &value).unwrap();
    }
}

/// The alternatives that a hint offers.
#[derive(Clone, Copy)]
enum Way {
    First,
    Native,
}

/// Follows the hint for a field. Every hint has one of a few forms.
fn follow(editor: &mut Editor, map: &FieldPath, field: &str, hint: &str, way: Way) {
    let (first, native) = hint.split_once("\nor, as Kubernetes").unwrap_or((hint, hint));
    let hint = if matches!(way, Way::First) { first } else { native };
    let (head, block) = hint.split_once('\n').unwrap_or((hint, ""));
    let indent = block.lines().map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    let text: String = hint.lines().skip(1).map(|line| format!("{}\n", &line[indent..])).collect();
    // A mark inside `lifecycle` applies to the container around it.
    let container =
        if map.0.last() == Some(&Segment::Field("lifecycle".into())) { up(map) } else { map.clone() };
    let spoilt = map.clone().field(field.to_owned());
    let kept = editor.root().at(&spoilt).cloned();
    editor.remove(&spoilt).unwrap();
    if head.starts_with("remove it: ") {
        assert!(text.is_empty(), "{hint}");
    } else if head.contains("move the container") || head.starts_with("move its containers") {
        let has_list = head.contains("the end of");
        let entries = match has_list {
            true => text,
            false => text.strip_prefix("initContainers:\n").unwrap_or_else(|| panic!("{hint}")).to_owned(),
        };
        let spec = if field == "sidecarContainers" { map.clone() } else { up(&up(&container)) };
        let init = spec.field("initContainers");
        assert_eq!(editor.root().at(&init).is_some(), has_list, "{hint}");
        if !has_list {
            editor.set(&init, &serde_json::json!([])).unwrap();
        }
        let at = |editor: &Editor| editor.root().at(&init).and_then(Node::items).map_or(0, <[Node]>::len);
        match kept.as_ref().and_then(Node::items) {
            // The rest of each container comes from the list that is removed.
            Some(items) => {
                let shown =
                    parse(0, &SourceFile::new("b.yaml", entries.replace('…', "# ")), &ReadOptions::default());
                let shown = shown.unwrap()[0].root.to_json();
                for (item, shown) in items.iter().zip(shown.as_array().unwrap()) {
                    let mut whole = item.to_json();
                    for (key, value) in shown.as_object().unwrap() {
                        whole[key] = value.clone();
                    }
                    editor.insert_item(&init, at(editor), &whole).unwrap();
                }
            }
            None => {
                assert!(entries.contains("restartPolicy: Always"), "{hint}");
                let index = at(editor);
                editor.move_item(&container, &init, index).unwrap();
                editor.set(&init.clone().index(index).field("restartPolicy"), &"Always".into()).unwrap();
            }
        }
    } else if head.starts_with("write this instead, in place of the annotation") {
        let metadata =
            editor.root().at(&path("spec.template")).map_or("metadata", |_| "spec.template.metadata");
        write(editor, &path(metadata).field("annotations"), &text, true);
    } else if head.starts_with("write this instead, in place of `type: ") {
        write(editor, &container.field("lifecycle"), &text, true);
    } else if head.starts_with("write this instead, in place of `restartPolicy: ") {
        write(editor, &container, &text, true);
    } else if head.starts_with("write this instead, in the `lifecycle` of ") {
        write(editor, &container.field("lifecycle"), &text, false);
    } else if head.starts_with("write this instead, in `") || head == "write" {
        write(editor, &container, &text, false);
    } else {
        let place = head.strip_prefix("write this into `").and_then(|rest| rest.strip_suffix("` instead:"));
        write(editor, &path(place.unwrap_or_else(|| panic!("{hint}"))), &text, false);
    }
}

/// The manifest after all its hints have been followed.
fn followed(text: &str, way: Way) -> String {
    let refused = read(&[SourceFile::new("p.yaml", text)], &ReadOptions::default()).unwrap_err();
    let mut editor = Editor::new(text, 0).unwrap();
    // Start at the end, so that the positions of the other errors stay valid.
    for found in refused.0.iter().rev() {
        let hint = found.hint.as_deref().unwrap_or_else(|| panic!("no hint: {}", found.message));
        let quoted: Vec<&str> = found.message.split('`').collect();
        let (map, field) = match found.message.starts_with("unknown field") {
            true => (path(quoted[3]), quoted[1].to_owned()),
            false => (up(&path(quoted[1])), quoted[1].rsplit('.').next().unwrap().to_owned()),
        };
        follow(&mut editor, &map, &field, hint, way);
    }
    editor.finish()
}

/// The sidecars of the resulting pod, and its annotation.
fn result(text: &str) -> (Vec<String>, String) {
    let sources = [SourceFile::new("p.yaml", text)];
    let manifest = read(&sources, &ReadOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let checked = check(&manifest, &FeatureGates::default()).remove(0);
    let errors: Vec<_> = checked.diagnostics.iter().filter(|d| d.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:?}\n{text}");
    let plan = checked.planned.unwrap().plan;
    let sidecars = plan.containers.iter().filter(|c| c.role == Role::Sidecar);
    let annotations = manifest.pods[0].input.pod.metadata.annotations.clone().unwrap_or_default();
    let graph = annotations.get("outrigger.dev/depends-on").cloned().unwrap_or_default();
    (sidecars.map(|c| c.name.clone()).collect(), graph.trim_end().to_owned())
}

/// A pod with the containers `app` and `side`, each with additional lines.
fn two(head: &str, app: &str, side: &str) -> String {
    let lines = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n{head}spec:\n  containers:\n  - name: app\n    image: a\n{}  \
         - name: side\n    image: b\n{}",
        lines(app),
        lines(side)
    )
}

#[test]
fn marks_that_are_followed_make_a_sidecar() {
    let init = "  initContainers:\n  - name: setup\n    image: i\n";
    let pre_stop = "lifecycle:\n  preStop:\n    exec: {command: [sync]}";
    let mut table: Vec<(String, &[&str])> = Vec::new();
    for mark in ["sidecar: true", "Sidecar: yes", "type: sidecar", "type: Sidecar", "lifecycleType: Sidecar"]
    {
        table.push((two("", "", mark), &["side"]));
        table.push((two("", "", mark) + init, &["side"]));
        table.push((two("", "", &format!("{mark}\n{pre_stop}")), &["side"]));
        table.push((two("", "", &format!("{pre_stop}\n{mark}")), &["side"]));
        table.push((two("", "", &format!("lifecycle: {{type: Sidecar}}\n{mark}")), &["side"]));
        table.push((two("", "", &format!("lifecycle: {{type: Standard}}\n{mark}")), &["side"]));
        table.push((two("", &format!("{mark}\nlifecycle: {{}}"), ""), &["app"]));
        for policy in ["", "    restartPolicy: Always\n", "    restartPolicy: Never\n"] {
            let of_init = format!("  initContainers:\n  - name: log\n    image: i\n    {mark}\n{policy}");
            table.push((two("", "", "") + &of_init, &["log"]));
        }
    }
    table.push((two("", "", "sidecar: true\ntype: sidecar\nlifecycleType: sidecar"), &["side"]));
    table.push((two("", "sidecar: false\ntype: standard", "sidecar: true"), &["side"]));
    table.push((two("", "", "lifecycle:\n  sidecar: true\n  preStop:\n    sleep: {seconds: 1}"), &["side"]));
    table.push((two("", "", "lifecycle:\n  type: Sidecar\n  sidecar: true"), &["side"]));
    table.push((two("", "", "lifecycle: sidecar"), &["side"]));
    table.push((two("", "", "lifecycle: sidecar\nsidecar: true"), &["side"]));
    let list = "  sidecarContainers:\n  - name: one\n    image: i\n  - name: two\n    image: i\n";
    table.push((two("", "", "") + list, &["one", "two"]));
    table.push((two("", "", "") + init + list, &["one", "two"]));
    table.push((two("", "", "") + "  sidecarContainers: []\n", &[]));
    let named = "  annotations: {outrigger.dev/sidecars: side}\n";
    table.push((two(named, "", "sidecar: true"), &["side"]));
    table.push((two("", "", "sidecar: true\nrestartPolicy: OnFailure"), &["side"]));
    for (text, sidecars) in table {
        for way in [Way::First, Way::Native] {
            let fixed = followed(&text, way);
            assert_eq!(result(&fixed).0, sidecars, "{text}\nbecame\n{fixed}");
        }
    }
}

#[test]
fn a_mark_repeats_nothing() {
    let named = "  annotations: {outrigger.dev/sidecars: 'log, side'}\n";
    let already = "remove it: `side` is a sidecar already, by the annotation outrigger.dev/sidecars";
    assert_eq!(hints(&two(named, "", "sidecar: true")), [already]);
    let policy = hints(&two("", "", "restartPolicy: OnFailure\nsidecar: true")).remove(0);
    assert!(policy.ends_with("…the rest of `side`, without its `restartPolicy`"), "{policy}");
    let list = "  sidecarContainers:\n  - name: one\n    image: i\n    restartPolicy: Always\n";
    let list = hints(&(two("", "", "") + list)).remove(0);
    assert!(list.ends_with("…the rest of `one`, without its `restartPolicy`"), "{list}");
}

/// A sidecar starts before the mains and stops after them. A number would cause a cycle.
#[test]
fn sidecars_get_no_numbers() {
    let named = "  annotations: {outrigger.dev/sidecars: side}\n";
    let third = "  - name: third\n    image: c\n";
    for (head, app, side, more, expected) in [
        (named, "startupPhase: post-init", "", "", ""),
        (named, "startupOrder: 1\nshutdownOrder: 2", "startupOrder: 2\nshutdownOrder: 1", "", ""),
        (named, "terminationFatalToPod: true\nstartupOrder: 1", "", "", "app: fatal"),
        (named, "startupPhase: post-init", "", third, "app: start 1\nthird: start 2"),
        ("", "startupPhase: post-init", "sidecar: true", "", ""),
        ("", "startupOrder: 1", "lifecycle: {type: Sidecar}", third, "app: start 1\nthird: start 2"),
    ] {
        let text = two(head, app, side) + more;
        let fixed = followed(&text, Way::First);
        assert_eq!(result(&fixed), (vec!["side".to_owned()], expected.to_owned()), "{text}\nbecame\n{fixed}");
    }
}

#[test]
fn orders_that_are_followed_become_one_annotation() {
    let has = |line: &str| format!("  annotations:\n    outrigger.dev/depends-on: |\n      {line}\n");
    let other = "  annotations:\n    team: a\n".to_owned();
    let none = String::new();
    // (annotation in the metadata, fields of `app`, fields of `side`, expected annotation)
    let table = [
        (none.clone(), "dependsOn: side", "", "app: side"),
        (other.clone(), "dependsOn: side", "", "app: side"),
        (none.clone(), "dependsOn: [side]", "", "app: side"),
        (none.clone(), "depends_on: {side: {condition: service_healthy}}", "", "app: side ready"),
        (none.clone(), "dependsOn: [{name: side, condition: healthy}]", "", "app: side ready"),
        (none.clone(), "dependsOn: [{name: side, condition: START}]", "", "app: side"),
        (none.clone(), "terminationFatalToPod: true", "", "app: fatal"),
        (none.clone(), "terminationFatalToPod: false", "", ""),
        (none.clone(), "terminationFatalToPod: false", "terminationFatalToPod: true", "side: fatal"),
        (none.clone(), "dependsOn: []", "primaryContainer: false", ""),
        (none.clone(), "dependsOn: nobody", "startupOrder: first", ""),
        (none.clone(), "dependsOn: app", "", ""),
        (none.clone(), "StartupPhase: default", "StartupPhase: post-init", "app: start 2\nside: start 1"),
        (none.clone(), "", "startupPhase: post-init", "app: start 2\nside: start 1"),
        (
            none.clone(),
            "startupOrder: 2\nshutdownOrder: 1",
            "startupOrder: 1\nshutdownOrder: 2",
            "app: start 2, stop 1\nside: start 1, stop 2",
        ),
        (
            none.clone(),
            "dependsOn: side\nterminationFatalToPod: true",
            "shutdownOrder: 2",
            "app: side, stop 1, fatal\nside: stop 2",
        ),
        (none.clone(), "", "primaryContainer: true", "side: primary"),
        (none.clone(), "primaryContainer: true\nterminationFatalToPod: true", "", "app: primary, fatal"),
        // A single number would order nothing.
        (none.clone(), "", "startupOrder: 1", "app: start 2\nside: start 1"),
        (none.clone(), "startupOrder: 2", "", "app: start 2\nside: start 1"),
        // The manifest already has an annotation.
        (has("app: side ready"), "terminationFatalToPod: true", "", "app: side ready, fatal"),
        (has("app: side ready # first"), "terminationFatalToPod: true", "", "app: side ready, fatal # first"),
        (has("app: side ready"), "", "terminationFatalToPod: true", "app: side ready\nside: fatal"),
        (has("app: side ready"), "dependsOn: side", "", "app: side ready"),
        (has("app: fatal"), "terminationFatalToPod: false", "", "app: fatal"),
        (has("app: start 3; side: start 1"), "startupOrder: 2", "", "app: start 2; side: start 1"),
        (has("app: none"), "dependsOn: side", "", "app: side"),
    ];
    for (head, app, side, expected) in &table {
        // Init containers get no numbers, because mains wait for them anyway.
        for init in ["", "  initContainers:\n  - name: setup\n    image: i\n"] {
            let text = two(head, app, side) + init;
            let fixed = followed(&text, Way::First);
            assert_eq!(result(&fixed).1, *expected, "{text}\nbecame\n{fixed}");
        }
    }
}

/// Names that the annotation cannot contain are reported.
#[test]
fn unknown_names_in_depends_on_are_said() {
    let hint = |field: &str| hints(&two("", field, "")).remove(0);
    let said = hint("dependsOn: [side, databse]");
    assert!(said.starts_with("the pod has no container `databse`, so it is left out; write this"), "{said}");
    assert!(said.ends_with("app: side"), "{said}");
    let said = hint("depends_on: {side: {}, a: {}, b: {}}");
    assert!(
        said.starts_with("the pod has no containers `a`, `b`, so they are left out; write this"),
        "{said}"
    );
    assert!(hint("dependsOn: [side]").starts_with("write this"));
    assert!(hint("dependsOn: [{containerName: side, condition: SUCCESS}]").ends_with("app: side completed"));
    let said = hint("dependsOn: [{name: side, condition: listening}]");
    let left_out = "the condition `listening` of `side` is left out, because there are only `started`, `ready` and \
                    `completed`; write this";
    assert!(said.starts_with(left_out) && said.ends_with("app: side"), "{said}");
}

/// A field is not covered by what does not order it, and does not contradict what is written.
#[test]
fn fields_without_effect_say_why() {
    let one = |fields: &str| hints(&pod(&format!("  containers:\n  - name: app\n    image: i\n{fields}")));
    let alone = "remove it: there is no other container to be ordered with";
    let said = one("    primaryContainer: true\n    startupOrder: 1\n    shutdownOrder: 2\n");
    assert!(said[0].ends_with("app: primary"), "{said:?}");
    assert_eq!(said[1..], [alone, alone]);
    let annotations = "  annotations:\n    outrigger.dev/depends-on: |\n      app: side; side: fatal # why\n";
    let said = hints(&two(annotations, "terminationFatalToPod: false", "terminationFatalToPod: false"));
    assert_eq!(said[0], "remove it: the end of a container does not end the pod unless the pod says so");
    assert_eq!(
        said[1],
        "remove it: the annotation outrigger.dev/depends-on says `side: fatal`; if that is wrong, remove `fatal` there too"
    );
}

#[test]
fn the_primary_container_of_a_job() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      \
               restartPolicy: Never\n      containers:\n      - name: worker\n        image: i\n      - name: sidecar\n        \
               image: i\n  primaryContainer: worker\n";
    assert_eq!(
        hints(job),
        ["write this into `spec.template` instead:\n    metadata:\n      annotations:\n        \
          outrigger.dev/depends-on: |\n          worker: primary"]
    );
    let with =
        |metadata: &str| job.replace("  template:\n", &format!("  template:\n    metadata:{metadata}\n"));
    let table = [
        (job.to_owned(), "worker: primary"),
        (with("\n      labels: {a: b}"), "worker: primary"),
        (with("\n      annotations: {a: b}"), "worker: primary"),
        (
            with("\n      annotations: {outrigger.dev/depends-on: 'sidecar: none'}"),
            "sidecar: none\nworker: primary",
        ),
        (job.replace("primaryContainer: worker", "primaryContainer: workr"), ""),
        (
            job.replace("- name: sidecar\n", "- name: sidecar\n        terminationFatalToPod: true\n"),
            "worker: primary\nsidecar: fatal",
        ),
    ];
    for (text, expected) in table {
        let fixed = followed(&text, Way::First);
        assert_eq!(result(&fixed).1, expected, "{text}\nbecame\n{fixed}");
    }
}

#[test]
fn other_unknown_fields_get_a_name_only_if_it_is_close() {
    let of = |field: &str| hints(&pod(&format!("  containers:\n  - name: a\n    {field}: x\n"))).remove(0);
    assert_eq!(of("startupProb"), "did you mean `startupProbe`?");
    for far in ["startupPolicy", "startAfter", "phase", "order", "sideCars"] {
        assert_eq!(of(far), "", "{far}");
    }
}
