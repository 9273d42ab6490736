//! Edits change exactly what was requested.

use outrigger_lifecycle::FieldPath;
use outrigger_manifest::edit::{EditError, Editor};
use serde_json::{Value, json};

fn path(text: &str) -> FieldPath {
    text.split('.').filter(|part| !part.is_empty()).fold(FieldPath::root(), |path, part| {
        match part.parse::<usize>() {
            Ok(index) => path.index(index),
            Err(_) => path.field(part.to_owned()),
        }
    })
}

fn editor(text: &str) -> Editor {
    Editor::new(text, 0).unwrap()
}

#[track_caller]
fn set(before: &str, at: &str, value: Value, after: &str) {
    let mut editor = editor(before);
    editor.set(&path(at), &value).unwrap_or_else(|error| panic!("{at}: {error}\n{before}"));
    assert_eq!(editor.finish(), after, "set {at} in\n{before}");
}

#[track_caller]
fn remove(before: &str, at: &str, after: &str) {
    let mut editor = editor(before);
    editor.remove(&path(at)).unwrap_or_else(|error| panic!("{at}: {error}\n{before}"));
    assert_eq!(editor.finish(), after, "remove {at} from\n{before}");
}

const POD: &str = "\
# head
apiVersion: v1
kind: Pod
metadata:
  name: p # the name
spec:
  # the mains
  containers:
    # proxy comes first
    - name: proxy   # é
      image: \"envoy:1\"
      lifecycle:
        type: Sidecar # kep
      env:
      - {name: A, value: b}

    # and the app
    - name: app
      command: [sh, -c, 'exit 0']
      script: |
        one
          two

        three
  restartPolicy: Never

# tail
---
kind: Other
";

#[test]
fn scalars_are_set_in_place() {
    set("a: 1 # c\nb: 2\n", "a", json!(3), "a: 3 # c\nb: 2\n");
    set("a: \"x\"\n", "a", json!("yes"), "a: \"yes\"\n");
    set("a: {b: 1, c: 2}\n", "a.b", json!("x, y"), "a: {b: \"x, y\", c: 2}\n");
    set("a:\nb: 1\n", "a", json!(true), "a: true\nb: 1\n");
    set("a: # c\nb: 1\n", "a", json!(true), "a: true # c\nb: 1\n");
    set("a: [1, 2]\n", "a.1", json!(3), "a: [1, 3]\n");
    set("a:\n- 1 # c\n- 2\n", "a.0", json!(3), "a:\n- 3 # c\n- 2\n");
    set("a:\n-\n- 2\n", "a.0", json!(3), "a:\n- 3\n- 2\n");
    set("a: |\n  x\n  y\nb: 1\n", "a", json!("z"), "a: z\nb: 1\n");
    set("a:\n  b: 1 # x\n  # y\nc: 1\n", "a", json!("z"), "a: z\n  # y\nc: 1\n");
    set("{\"a\": 1}", "a", json!("x"), "{\"a\": \"x\"}");
    set("a: é\nb: ü # ö\n", "b", json!("x"), "a: é\nb: x # ö\n");
}

#[test]
fn collections_take_lines_of_their_own() {
    set("a: 1 # c\nb: 2\n", "a", json!({"x": 1, "z": [1]}), "a: # c\n  x: 1\n  z:\n  - 1\nb: 2\n");
    set("a: 1\n", "a", json!([{"x": 1, "z": 2}]), "a:\n- x: 1\n  z: 2\n");
    set("a: {b: 1}\n", "a.b", json!({"x": [1]}), "a: {b: {x: [1]}}\n");
    set("a:\n  b: 1\n  c: 2\nd: 3\n", "a", json!({"e": 4}), "a:\n  e: 4\nd: 3\n");
    set("a:\n- b: 1\n  c: 2\n- d\n", "a.0", json!({"e": 4, "f": 5}), "a:\n- e: 4\n  f: 5\n- d\n");
    set("a:\n  - b\n", "a.0", json!({"e": 4, "f": 5}), "a:\n  - e: 4\n    f: 5\n");
    set("a: 1\n", "", json!({"b": 2}), "b: 2\n");
}

#[test]
fn strings_of_several_lines_are_written_as_lines() {
    set("a: 1 # c\nb: 2\n", "a", json!("x\ny\n"), "a: | # c\n  x\n  y\nb: 2\n");
    set("a:\n  b: 1\n", "a.c", json!("x\n\ny"), "a:\n  b: 1\n  c: |-\n    x\n\n    y\n");
    set("a: |\n  old\n  text\nb: 2\n", "a", json!("x\ny\n"), "a: |\n  x\n  y\nb: 2\n");
    set("a:\n- 1\n- 2\n", "a.0", json!("x\ny\n"), "a:\n- |\n  x\n  y\n- 2\n");
    set("a: {b: 1}\n", "a.b", json!("x\ny\n"), "a: {b: \"x\\ny\\n\"}\n");
    set("{\"a\": 1}", "a", json!("x\ny\n"), "{\"a\": \"x\\ny\\n\"}");
    set("a: 1 # c\r\n", "a", json!("x\ny\n"), "a: | # c\r\n  x\r\n  y\r\n");
}

#[test]
fn missing_fields_are_added() {
    set("a: 1\n", "b", json!(2), "a: 1\nb: 2\n");
    set("a: 1", "b", json!(2), "a: 1\nb: 2");
    set("a: 1\r\nb: 2\r\n", "c", json!({"d": [3]}), "a: 1\r\nb: 2\r\nc:\r\n  d:\r\n  - 3\r\n");
    set("a: 1\n\n# tail\n", "b", json!(2), "a: 1\nb: 2\n\n# tail\n");
    set("a:\n  b: 1\nc: 2\n", "a.x.w", json!("z"), "a:\n  b: 1\n  x:\n    w: z\nc: 2\n");
    set("a:\nc: 2\n", "a.x", json!("z"), "a:\n  x: z\nc: 2\n");
    set("a: {}\n", "a.x", json!("z"), "a: {x: z}\n");
    set("a: {b: 1, }\n", "a.x", json!("z"), "a: {b: 1, x: z, }\n");
    set("a: {\n  b: 1,\n  c: 2\n}\n", "a.x", json!("z"), "a: {\n  b: 1,\n  c: 2,\n  x: z\n}\n");
    set(
        "{\n\t\"a\": {},\n\t\"b\": 1\n}\n",
        "c",
        json!("z"),
        "{\n\t\"a\": {},\n\t\"b\": 1,\n\t\"c\": \"z\"\n}\n",
    );
    set("- a: 1\n  b: 2\n- c: 3\n", "0.x", json!(4), "- a: 1\n  b: 2\n  x: 4\n- c: 3\n");
    set("a:\n  b: |\n    text\n\nc: 1\n", "a.x", json!(4), "a:\n  b: |\n    text\n  x: 4\n\nc: 1\n");
    set("a: 1\n", "x: w", json!(2), "a: 1\n\"x: w\": 2\n");
}

#[test]
fn fields_are_added_behind_others() {
    let insert = |before: &str, map: &str, after_key: &str| {
        let mut editor = editor(before);
        editor.insert(&path(map), "x", &json!(1), Some(after_key)).unwrap();
        editor.finish()
    };
    assert_eq!(insert("a: 1 # c\n# about b\nb: 2\n", "", "a"), "a: 1 # c\nx: 1\n# about b\nb: 2\n");
    assert_eq!(insert("- a: 1\n  b: 2\n", "0", "a"), "- a: 1\n  x: 1\n  b: 2\n");
    assert_eq!(insert("- a: 1\n  b: 2\n", "0", "b"), "- a: 1\n  b: 2\n  x: 1\n");
    assert_eq!(insert("- {a: 1, b: 2}\n", "0", "a"), "- {a: 1, x: 1, b: 2}\n");
    assert_eq!(insert("x: 3\na: 1\n", "", "a"), "x: 1\na: 1\n");
}

#[test]
fn fields_are_removed_with_their_lines() {
    remove("a: 1\nb: 2 # c\nc: 3\n", "b", "a: 1\nc: 3\n");
    remove("a: 1\nb:\n  c: 2\n  d: |\n    x\n    y\ne: 3\n", "b", "a: 1\ne: 3\n");
    remove("a: 1\n# about b\nb: 2\n", "b", "a: 1\n# about b\n");
    remove("a:\n  b: 1\nc: 2\n", "a.b", "a: {}\nc: 2\n");
    remove("- a: 1 # x\n  b: 2\n", "0.a", "- b: 2\n");
    remove("- a: 1\n  # about b\n  b: 2\n", "0.a", "-\n  # about b\n  b: 2\n");
    remove("- a: 1\n  b: 2\n- c: 1\n", "0.b", "- a: 1\n- c: 1\n");
    remove("a: {b: 1, c: 2, d: 3}\n", "a.b", "a: {c: 2, d: 3}\n");
    remove("a: {b: 1, c: 2, d: 3}\n", "a.c", "a: {b: 1, d: 3}\n");
    remove("a: {b: 1, c: 2, d: 3}\n", "a.d", "a: {b: 1, c: 2}\n");
    remove("a: {b: 1}\n", "a.b", "a: {}\n");
    remove("a: {b: }\n", "a.b", "a: { }\n");
    remove("{\"a\": 1, \"b\": [1]}", "b", "{\"a\": 1}");
    remove("{\n  \"a\": 1,\n  \"b\": 2\n}\n", "a", "{\n  \"b\": 2\n}\n");
    remove("a: 1\nb:\nc: 2\n", "b", "a: 1\nc: 2\n");
}

#[test]
fn list_entries_are_removed_with_their_comments() {
    remove("a:\n- 1\n# two\n- 2 # x\n- 3\n", "a.1", "a:\n- 1\n- 3\n");
    remove("a:\n- b: 1\n  c: 2\n\n- d: 3\n", "a.0", "a:\n\n- d: 3\n");
    remove("a:\n- 1\nb: 2\n", "a.0", "a: []\nb: 2\n");
    remove("a: [1, 2, 3]\n", "a.1", "a: [1, 3]\n");
    remove("a: [1]\n", "a.0", "a: []\n");
    remove("a:\n-\n  b: 1\n- c\n", "a.0", "a:\n- c\n");
    remove("a:\n- # x\n  b: 1\n- c\n", "a.0", "a:\n- c\n");
}

#[test]
fn pruning_takes_what_becomes_empty() {
    let prune = |before: &str, at: &str| {
        let mut editor = editor(before);
        editor.prune(&path(at)).unwrap();
        editor.finish()
    };
    assert_eq!(prune("a: 1\nb:\n  c:\n    d: 1\n", "b.c.d"), "a: 1\n");
    assert_eq!(prune("a: 1\nb:\n  c:\n    d: 1\n  e: 2\n", "b.c.d"), "a: 1\nb:\n  e: 2\n");
    assert_eq!(prune("a: 1\nb:\n- {c: 1}\n", "b.0.c"), "a: 1\n");
}

#[test]
fn list_entries_are_added() {
    let append = |before: &str, list: &str, value: Value| {
        let mut editor = editor(before);
        editor.append_item(&path(list), &value).unwrap();
        editor.finish()
    };
    let container = json!({"name": "x", "args": ["1"]});
    assert_eq!(
        append("a:\n- b: 1 # c\nd: 1\n", "a", container.clone()),
        "a:\n- b: 1 # c\n- name: x\n  args:\n  - \"1\"\nd: 1\n"
    );
    assert_eq!(append("a:\n    - b: 1\n\nd: 1\n", "a", json!("x")), "a:\n    - b: 1\n    - x\n\nd: 1\n");
    assert_eq!(append("a: []\n", "a", container.clone()), "a:\n- name: x\n  args:\n  - \"1\"\n");
    assert_eq!(append("a: [] # none\nb: 1\n", "a", json!(1)), "a: # none\n- 1\nb: 1\n");
    assert_eq!(append("a: [1]\n", "a", json!("x")), "a: [1, x]\n");
    assert_eq!(append("a: 1\n", "b", json!("x")), "a: 1\nb:\n- x\n");
    assert_eq!(append("a:\n", "a", json!("x")), "a:\n- x\n");
    assert_eq!(
        append("{\"a\": []}", "a", container.clone()),
        "{\"a\": [{\"name\": \"x\", \"args\": [\"1\"]}]}"
    );
    assert_eq!(append("a:\n- - 1\n- 2\n", "a.0", json!(3)), "a:\n- - 1\n  - 3\n- 2\n");

    let mut yaml = editor("a:\n- b: 1\n");
    yaml.insert_item_yaml(&path("a"), 0, "# new\nname: x # first\nargs:\n- 1\n").unwrap();
    assert_eq!(yaml.finish(), "a:\n- # new\n  name: x # first\n  args:\n  - 1\n- b: 1\n");

    let mut first = editor("a:\n  # one\n  - 1\n  # two\n  - 2\n");
    first.insert_item(&path("a"), 1, &json!(9)).unwrap();
    assert_eq!(first.finish(), "a:\n  # one\n  - 1\n  - 9\n  # two\n  - 2\n");
}

#[test]
fn an_entry_moves_to_a_new_list_with_its_comments() {
    let mut editor = editor(POD);
    editor.prune(&path("spec.containers.0.lifecycle.type")).unwrap();
    editor.insert(&path("spec.containers.0"), "restartPolicy", &json!("Always"), Some("image")).unwrap();
    editor.move_item(&path("spec.containers.0"), &path("spec.initContainers"), 0).unwrap();
    let expected = "\
# head
apiVersion: v1
kind: Pod
metadata:
  name: p # the name
spec:
  initContainers:
  # proxy comes first
  - name: proxy   # é
    image: \"envoy:1\"
    restartPolicy: Always
    env:
    - {name: A, value: b}
  # the mains
  containers:

    # and the app
    - name: app
      command: [sh, -c, 'exit 0']
      script: |
        one
          two

        three
  restartPolicy: Never

# tail
---
kind: Other
";
    assert_eq!(editor.text(), expected);

    // It can be moved back into the existing list.
    editor.move_item(&path("spec.initContainers.0"), &path("spec.containers"), 0).unwrap();
    assert_eq!(editor.root().at(&path("spec.initContainers")), None);
    assert_eq!(editor.root().at(&path("spec.containers.0.name")).unwrap().text(), Some("proxy"));
    assert!(
        editor.text().contains("    # proxy comes first\n    - name: proxy   # é\n"),
        "{}",
        editor.text()
    );
}

/// Spaces inside brackets are allowed.
#[test]
fn flow_values_may_have_spaces_inside_their_brackets() {
    set("a: [ 1, 2 ]\n", "a.1", json!(3), "a: [ 1, 3 ]\n");
    set("a: { b: 1, c: x }\n", "a.d", json!(3), "a: { b: 1, c: x, d: 3 }\n");
    set("a: { b: 1 } # c\n", "a.b", json!([3]), "a: { b: [3] } # c\n");
    set("a: [ # c\n  1, 2 ]\n", "a.0", json!(3), "a: [ # c\n  3, 2 ]\n");
    remove("a: { b: 1, c: 2 }\n", "a.c", "a: { b: 1 }\n");
    remove("a: [ { b: 1 }, { c: 2 } ] # x\n", "a.0", "a: [ { c: 2 } ] # x\n");
    let mut editor = editor("a:\n# one\n- name: x # x\n  args: [ a, \"b\" ]\n# two\n- name: y\n");
    editor.move_item(&path("a.0"), &path("b"), 0).unwrap();
    assert_eq!(editor.finish(), "b:\n# one\n- name: x # x\n  args: [ a, \"b\" ]\na:\n# two\n- name: y\n");
}

#[test]
fn entries_move_between_styles_and_places() {
    let moved = |before: &str, from: &str, to: &str, index: usize| {
        let mut editor = editor(before);
        editor.move_item(&path(from), &path(to), index).unwrap();
        editor.finish()
    };
    assert_eq!(moved("a: [1, 2]\nb: []\n", "a.0", "b", 0), "a: [2]\nb:\n- 1\n");
    assert_eq!(moved("a:\n- 1 # c\nb: [2]\n", "a.0", "b", 1), "b: [2, 1]\n");
    assert_eq!(moved("a:\n- 1\n- 2\n- 3\n", "a.2", "a", 0), "a:\n- 3\n- 1\n- 2\n");
    assert_eq!(moved("a:\n- 1\n- 2\n- 3\n", "a.0", "a", 3), "a:\n- 2\n- 3\n- 1\n");
    assert_eq!(
        moved("a:\n  - s: |\n      x\n\n       y\n    t: 1\nb:\n- z\n", "a.0", "b", 1),
        "b:\n- z\n- s: |\n    x\n\n     y\n  t: 1\n"
    );
    assert_eq!(moved("{\"a\": [1, 2], \"b\": []}", "a.1", "b", 0), "{\"a\": [1], \"b\": [2]}");
    assert_eq!(moved("a: [1]\n", "a.0", "b", 0), "b:\n- 1\n");
}

#[test]
fn untouched_lines_stay_as_they_are() {
    let mut editor = editor(POD);
    editor.set(&path("spec.terminationGracePeriodSeconds"), &json!(60)).unwrap();
    editor.set(&path("metadata.annotations.outrigger").field("x"), &json!("z")).unwrap();
    editor.remove(&path("spec.containers.1.command")).unwrap();
    let after = editor.finish();
    let kept: Vec<&str> = POD.lines().filter(|line| !line.contains("command:")).collect();
    let new = ["  terminationGracePeriodSeconds: 60", "  annotations:", "    outrigger:", "      x: z"];
    let left: Vec<&str> = after.lines().filter(|line| !new.contains(line)).collect();
    assert_eq!(left, kept);
}

#[test]
fn a_second_document_can_be_edited() {
    let mut editor = Editor::new(POD, 1).unwrap();
    editor.set(&path("kind"), &json!("Pod")).unwrap();
    assert_eq!(editor.finish(), POD.replace("kind: Other", "kind: Pod"));
    assert!(matches!(Editor::new(POD, 2), Err(EditError::NoSuchDocument(2))));
    assert!(matches!(Editor::new("a: [", 0), Err(EditError::Unreadable(_))));
}

#[test]
fn what_is_shared_is_not_changed_behind_the_authors_back() {
    let text = "a: &x\n  b: 1\nc: *x\nd:\n  <<: *x\n  e: 2\n";
    let mut shared = editor(text);
    for at in ["a.b", "c.b"] {
        assert!(matches!(shared.set(&path(at), &json!(2)), Err(EditError::Shared(_))), "{at}");
    }
    assert!(matches!(shared.remove(&path("a")), Err(EditError::Shared(_))));
    assert!(matches!(shared.remove(&path("d.b")), Err(EditError::Shared(_))));
    assert_eq!(shared.text(), text, "a refused edit changes nothing");
    // An alias itself, and an entry that overrides a merged one, are not shared.
    shared.set(&path("c"), &json!(3)).unwrap();
    shared.set(&path("d.b"), &json!(4)).unwrap();
    assert_eq!(shared.finish(), "a: &x\n  b: 1\nc: 3\nd:\n  <<: *x\n  e: 2\n  b: 4\n");
}

#[test]
fn what_is_not_there_is_said() {
    let mut editor = editor("a: 1\nb: [1]\n");
    assert!(matches!(editor.remove(&path("c")), Err(EditError::NoSuchPath(_))));
    assert!(matches!(editor.remove(&path("b.4")), Err(EditError::NoSuchPath(_))));
    assert!(matches!(editor.set(&path("b.4"), &json!(1)), Err(EditError::NoSuchPath(_))));
    assert!(matches!(editor.set(&path("a.b"), &json!(1)), Err(EditError::NotAMap(_))));
    assert!(matches!(editor.append_item(&path("a"), &json!(1)), Err(EditError::NotAList(_))));
    assert!(matches!(editor.move_item(&path("a"), &path("b"), 0), Err(EditError::NoSuchPath(_))));
}

/// A comment below an entry that is indented like a part of it moves with the entry. Otherwise it would
/// become part of a multi-line text above it.
#[test]
fn a_comment_at_the_end_of_an_entry_moves_with_it() {
    let before = "\
spec:
  containers:
  - name: app
    args:
    - |
      one
  - name: side
    env:
      - name: A
        value: b
        # - name: B

        #   value: c
  # the last one
  - name: other
";
    let after = "\
spec:
  initContainers:
  - name: side
    env:
      - name: A
        value: b
        # - name: B

        #   value: c
  containers:
  - name: app
    args:
    - |
      one
  # the last one
  - name: other
";
    for (before, after) in
        [(before.to_owned(), after.to_owned()), (before.replace('\n', "\r\n"), after.replace('\n', "\r\n"))]
    {
        let mut moved = editor(&before);
        moved.move_item(&path("spec.containers.1"), &path("spec.initContainers"), 0).unwrap();
        assert_eq!(moved.finish(), after);
    }
    // The entry is removed, but its comment is kept.
    let removed =
        before.replace("    env:\n      - name: A\n        value: b\n", "").replace("  - name: side\n", "");
    let removed = removed.replace("\n\n", "\n").replace("        #", "  #");
    remove(before, "spec.containers.1", &removed);
}

#[test]
fn what_is_added_comes_after_the_comments_of_the_entry_before_it() {
    let before = "list:\n- a: 1\n  # b: 2\nend: 1\n";
    let mut added = editor(before);
    added.append_item(&path("list"), &json!({"text": "one\ntwo\n"})).unwrap();
    let after = "list:\n- a: 1\n  # b: 2\n- text: |\n    one\n    two\nend: 1\n";
    assert_eq!(added.finish(), after);
}
