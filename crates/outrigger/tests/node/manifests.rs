//! A directory of manifests.

use std::fs;

use serde_json::json;

use crate::daemon::Daemon;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 2] =
    [("files_come_change_and_go", files), ("a_name_is_used_once_and_a_file_may_be_renamed", renamed)];

fn renamed(bench: &Bench, name: &str) {
    let dir = bench.work.join(format!("{name}-manifests"));
    fs::create_dir_all(&dir).expect("a directory");
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [bench.container("app", script)]}});
    // Both are read at once.
    for file in ["a.yaml", "b.yaml"] {
        fs::write(dir.join(file), pod.to_string()).expect("write");
    }
    let manifests = dir.display().to_string();
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    node.ready("web");
    node.until("the second file is refused", |node| node.said().contains("pod \"web\" is already there"));
    let names = |node: &Daemon<'_>| node.must(&["ps", "-o", "name"]);
    assert_eq!(names(&node), "pod/web\n");
    // Its pod is run once that of the other file is gone.
    let first = node.pod("web").expect("a pod")["run"].clone();
    fs::remove_file(dir.join("a.yaml")).expect("remove");
    let other = |node: &Daemon<'_>| node.pod("web").is_some_and(|pod| pod["run"] != first);
    node.until("the other file's pod runs", other);
    node.ready("web");
    // The same for a file that is renamed.
    let second = node.pod("web").expect("a pod")["run"].clone();
    fs::rename(dir.join("b.yaml"), dir.join("c.yaml")).expect("rename");
    node.until("it runs again", |node| node.pod("web").is_some_and(|pod| pod["run"] != second));
    node.ready("web");
    node.leaves_nothing();
}

fn files(bench: &Bench, name: &str) {
    let dir = bench.work.join(format!("{name}-manifests"));
    fs::create_dir_all(&dir).expect("a directory");
    let manifests = dir.display().to_string();
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    let write = |words: &str| {
        let script = format!("echo {words}; trap 'exit 0' TERM; while :; do sleep 0.1; done");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"containers": [bench.container("app", &script)]}});
        fs::write(dir.join(".web.tmp"), pod.to_string()).expect("write");
        fs::rename(dir.join(".web.tmp"), dir.join("web.yaml")).expect("rename");
    };
    let says = |node: &Daemon<'_>, words: &str| {
        let words = format!("{words}\n");
        node.until(&format!("it says {words}"), |node| node.say(&["logs", "web"]).out == words);
    };
    write("one");
    says(&node, "one");
    write("two");
    says(&node, "two");
    fs::write(dir.join("broken.yaml"), "kind: Pod\nspec: [").expect("write");
    node.until("the broken file is reported", |node| node.said().contains("broken.yaml"));
    node.ready("web");
    fs::remove_file(dir.join("web.yaml")).expect("remove");
    assert_eq!(node.over("web"), "Succeeded");
    node.leaves_nothing();
}
