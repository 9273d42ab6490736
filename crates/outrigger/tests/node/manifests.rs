//! A directory of manifests.

use std::fs;

use serde_json::json;

use crate::daemon::Daemon;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 1] = [("files_come_change_and_go", files)];

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
