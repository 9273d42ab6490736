//! Tests `--manifests`: a directory of manifests that the node runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::daemon::Daemon;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 6] = [
    ("files_come_change_and_go", files),
    ("a_name_is_used_once_and_a_file_may_be_renamed", renamed),
    ("links_come_and_their_targets_change", links),
    ("another_directory_in_its_place_is_noticed", place),
    ("what_another_user_puts_there_is_not_run", strangers),
    ("restricted_nodes_refuse_flags", restricted),
];

/// A pod that prints these words.
fn saying(bench: &Bench, name: &str, words: &str) -> String {
    let script = format!("echo {words}; trap 'exit 0' TERM; while :; do sleep 0.05; done");
    let spec = json!({"containers": [bench.container("app", &script)]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// The flags of `run -d` do not grant what the manifest may not ask for.
fn restricted(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &["--restricted"]);
    let spec = json!({"containers": [bench.container("app", "true")]});
    for (flags, refused) in [
        (&["--network", "host"][..], "--network host cannot be used with --restricted"),
        (&["--userns", "host"], "--userns host cannot be used with --restricted"),
        // With other flags, the pod itself is refused.
        (&["--network", "private", "--userns", "auto"], "pod-security"),
    ] {
        let said = node.run("app", &spec, flags);
        assert!(said.code == 2 && said.err.contains(refused), "{flags:?}: {said:?}");
        assert!(node.pod("app").is_none(), "{}", node.account());
    }
    node.leaves_nothing();
}

/// Waits until a pod has printed these words.
fn says(node: &Daemon<'_>, pod: &str, words: &str) {
    let words = format!("{words}\n");
    node.until(&format!("{pod} says {words}"), |node| node.say(&["logs", pod]).out == words);
}

fn links(bench: &Bench, name: &str) {
    let base = bench.work.join(format!("{name}-files"));
    // Links may lead only to files inside the directory.
    let (dir, there) = (base.join("manifests"), base.join("manifests/.there"));
    for dir in [&dir, &there] {
        fs::create_dir_all(dir).expect("a directory");
    }
    let manifests = dir.display().to_string();
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    fs::write(there.join("hard"), saying(bench, "hard", "hard one")).expect("write");
    fs::write(there.join("soft"), saying(bench, "soft", "soft one")).expect("write");
    // A hard link is refused, because it may be any file of this machine.
    fs::hard_link(there.join("hard"), dir.join("hard.yaml")).expect("a link");
    node.until("it is refused", |node| {
        node.said().contains("hard.yaml cannot be read: it has 2 names (hard links)")
    });
    assert!(node.pod("hard").is_none(), "{}", node.said());
    fs::remove_file(there.join("hard")).expect("remove");
    says(&node, "hard", "hard one");
    symlink(".there/soft", dir.join("soft.yaml")).expect("a link");
    says(&node, "soft", "soft one");
    // The target is written again, then replaced.
    fs::write(there.join("soft"), saying(bench, "soft", "soft two")).expect("write");
    says(&node, "soft", "soft two");
    fs::write(there.join("next"), saying(bench, "soft", "soft three")).expect("write");
    fs::rename(there.join("next"), there.join("soft")).expect("rename");
    says(&node, "soft", "soft three");
    // Kubernetes updates the files of a ConfigMap in this way.
    for version in ["1", "2"] {
        let data = dir.join(format!("..{version}"));
        fs::create_dir(&data).expect("a directory");
        fs::write(data.join("map.yaml"), saying(bench, "map", &format!("map {version}"))).expect("write");
        symlink(format!("..{version}"), dir.join("..tmp")).expect("a link");
        fs::rename(dir.join("..tmp"), dir.join("..data")).expect("rename");
        if version == "1" {
            symlink("..data/map.yaml", dir.join("map.yaml")).expect("a link");
        }
        says(&node, "map", &format!("map {version}"));
    }
    // A file that cannot be read is reported once, and its pods keep running.
    symlink("/etc/passwd", dir.join("passwd.yaml")).expect("a link");
    fs::remove_file(there.join("soft")).expect("remove");
    node.until("both are reported", |node| {
        node.said().contains("which is outside of the directory")
            && node.said().contains("soft.yaml is a link to")
    });
    assert!(!node.said().contains("root:x:0"), "no line of another file is shown: {}", node.said());
    fs::write(dir.join("last.yaml"), saying(bench, "last", "last")).expect("write");
    says(&node, "last", "last");
    node.ready("soft");
    assert_eq!(node.said().matches("which is outside of the directory").count(), 1, "{}", node.said());
    node.leaves_nothing();
}

/// A user who can write to the directory, to a file in it or to a directory above it could run anything as
/// root.
fn strangers(bench: &Bench, name: &str) {
    let base = bench.work.join(format!("{name}-files"));
    let (way, dir) = (base.join("way"), base.join("way/manifests"));
    fs::create_dir_all(&dir).expect("a directory");
    let (owner, mode) = (
        |path: &Path, user| chown(path, Some(user), None).expect("chown"),
        |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod"),
    );
    let manifests = dir.display().to_string();
    for (place, fix) in
        [(&way, "chown root"), (&dir, "chown root"), (&way, "chmod go-w"), (&dir, "chmod go-w")]
    {
        match fix {
            "chown root" => owner(place, 1234),
            _ => mode(place, 0o777),
        }
        let mut node = Command::new("timeout");
        node.arg("60").arg(&bench.binary).args(["node", "--manifests", &manifests, "--state-dir"]);
        let refused = node.arg(base.join("state")).output().expect("outrigger runs");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{fix} {}", place.display())), "{said}");
        owner(place, 0);
        mode(place, 0o755);
    }
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    fs::write(dir.join(".theirs"), saying(bench, "theirs", "theirs")).expect("write");
    owner(&dir.join(".theirs"), 1234);
    fs::rename(dir.join(".theirs"), dir.join("theirs.yaml")).expect("rename");
    node.until("it is refused", |node| node.said().contains("theirs.yaml belongs to user 1234"));
    fs::write(dir.join("ours.yaml"), saying(bench, "ours", "ours")).expect("write");
    says(&node, "ours", "ours");
    assert!(node.pod("theirs").is_none(), "{}", node.said());
    // When the owner is fixed, the file is run.
    owner(&dir.join("theirs.yaml"), 0);
    says(&node, "theirs", "theirs");
    node.leaves_nothing();
}

fn place(bench: &Bench, name: &str) {
    let base = bench.work.join(format!("{name}-files"));
    let dir = base.join("manifests");
    fs::create_dir_all(&dir).expect("a directory");
    let manifests = dir.display().to_string();
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    fs::write(dir.join("web.yaml"), saying(bench, "web", "one")).expect("write");
    says(&node, "web", "one");
    fs::rename(&dir, base.join("away")).expect("rename");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("web.yaml"), saying(bench, "web", "two")).expect("write");
    says(&node, "web", "two");
    // The directory is watched from then on.
    fs::write(dir.join("web.yaml"), saying(bench, "web", "three")).expect("write");
    says(&node, "web", "three");
    node.leaves_nothing();
}

fn renamed(bench: &Bench, name: &str) {
    let dir = bench.work.join(format!("{name}-manifests"));
    fs::create_dir_all(&dir).expect("a directory");
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [bench.container("app", script)]}});
    // Both files are read at the same time.
    for file in ["a.yaml", "b.yaml"] {
        fs::write(dir.join(file), pod.to_string()).expect("write");
    }
    let manifests = dir.display().to_string();
    let mut node = Daemon::start(bench, name, &["--manifests", &manifests, "--network", "none"]);
    node.ready("web");
    node.until("the second file is refused", |node| node.said().contains("pod \"web\" is already there"));
    let names = |node: &Daemon<'_>| node.must(&["ps", "-o", "name"]);
    assert_eq!(names(&node), "pod/web\n");
    // Its pod runs when the pod of the other file is gone.
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
