//! Tests users, groups and owners of files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sha2::Digest as _;

use crate::run::{Bench, Run, Test};
use crate::{scripted, succeeds};

pub(crate) const WITH_IDS: &[(&str, Test)] = &[
    ("containers_run_as_any_user", containers_run_as_any_user),
    ("images_keep_their_owners_and_hide_what_they_hide", images_keep_their_owners_and_hide_what_they_hide),
    ("an_id_past_the_range_is_refused", an_id_past_the_range_is_refused),
    ("host_paths_are_used_with_the_user_s_own_rights", host_paths_are_used_with_the_user_s_own_rights),
    ("what_this_user_may_not_use_is_refused", what_this_user_may_not_use_is_refused),
    ("a_user_namespace_that_is_refused_is_said", a_user_namespace_that_is_refused_is_said),
    ("doctor_is_content", doctor_is_content),
];
pub(crate) const OWN_ID: &[(&str, Test)] = &[
    ("one_id_is_root_and_all_else_is_said", one_id_is_root_and_all_else_is_said),
    ("one_id_is_any_one_user", one_id_is_any_one_user),
    ("exec_and_probes_are_that_user_too", exec_and_probes_are_that_user_too),
    ("a_user_of_the_image_is_the_one_id", a_user_of_the_image_is_the_one_id),
    ("two_users_are_refused_at_once", two_users_are_refused_at_once),
    ("two_users_of_images_end_the_pod", two_users_of_images_end_the_pod),
    ("files_of_images_all_become_root_s", files_of_images_all_become_root_s),
    ("doctor_says_how_to_get_ids", doctor_says_how_to_get_ids),
];
pub(crate) const BARE: &[(&str, Test)] = &[("a_missing_newuidmap_is_said", a_missing_newuidmap_is_said)];

fn containers_run_as_any_user(bench: &Bench, name: &str) {
    let script = "id; touch /dev/shm/mine; stat -c %u:%g /dev/shm/mine; stat -c %g /data; echo x > /data/f; \
                  cat /proc/self/uid_map";
    let container = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let spec = json!({
        "securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000]},
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    let run = succeeds(bench, name, &scripted(bench, script, container, spec), &[]);
    for line in ["uid=1000 gid=2000 groups=2000,3000,4000", "1000:2000", "main | 3000"] {
        assert!(run.output().contains(line), "{line}\n{}", run.account());
    }
    assert!(!run.said().contains("warning") && !run.said().contains("note:"), "{}", run.said());
}

/// An image with two layers. The lower one has all kinds of owners. The upper one hides a file and replaces a
/// directory.
fn image(path: &Path) {
    let mut below = layer();
    for (name, uid) in [("bin/", 0), ("etc/", 0), ("srv/", 33), ("old/", 0)] {
        entry(&mut below, name, uid, 0o755, b"");
    }
    entry(&mut below, "bin/busybox", 0, 0o755, &fs::read("/bin/busybox").expect("busybox"));
    entry(&mut below, "srv/page", 33, 0o640, b"page\n");
    entry(&mut below, "srv/gone", 33, 0o640, b"gone\n");
    entry(&mut below, "old/file", 0, 0o644, b"old\n");
    let mut above = layer();
    entry(&mut above, "srv/.wh.gone", 0, 0o644, b"");
    entry(&mut above, "old/.wh..wh..opq", 0, 0o644, b"");
    entry(&mut above, "old/new", 65_534, 0o644, b"new\n");
    let layers = [below, above].map(|layer| layer.into_inner().expect("a layer"));
    let digest = |layer: &Vec<u8>| -> String {
        let hex: String = sha2::Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    };
    let config = json!({"architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(digest).collect::<Vec<_>>()}});
    let manifest = json!([{"Config": "config.json", "RepoTags": ["i:1"], "Layers": ["0.tar", "1.tar"]}]);
    let mut image = layer();
    entry(&mut image, "manifest.json", 0, 0o644, manifest.to_string().as_bytes());
    entry(&mut image, "config.json", 0, 0o644, config.to_string().as_bytes());
    entry(&mut image, "0.tar", 0, 0o644, &layers[0]);
    entry(&mut image, "1.tar", 0, 0o644, &layers[1]);
    fs::write(path, image.into_inner().expect("an image")).expect("write the image");
}

fn layer() -> tar::Builder<Vec<u8>> {
    tar::Builder::new(Vec::new())
}

fn entry(archive: &mut tar::Builder<Vec<u8>>, name: &str, uid: u64, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(if name.ends_with('/') {
        tar::EntryType::Directory
    } else {
        tar::EntryType::Regular
    });
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(uid);
    header.set_gid(uid);
    header.set_mtime(0);
    archive.append_data(&mut header, name, content).expect("append");
}

/// A pod with that image. It prints what it finds.
fn looker(bench: &Bench, name: &str) -> Value {
    let archive = bench.work.join(format!("{name}.tar"));
    image(&archive);
    let busybox = "b=/bin/busybox; $b stat -c '%n %u' /srv/page /old/new; $b ls /srv /old";
    let container = json!({"image": format!("docker-archive:{}", archive.display()),
        "command": ["/bin/busybox", "sh", "-c", busybox]});
    scripted(bench, "", container, json!({}))
}

fn images_keep_their_owners_and_hide_what_they_hide(bench: &Bench, name: &str) {
    let run = succeeds(bench, name, &looker(bench, name), &[]);
    let output = run.output();
    assert!(output.contains("/srv/page 33") && output.contains("/old/new 65534"), "{}", run.account());
    assert!(!output.contains("gone") && !output.contains("file"), "{}", run.account());
    let stores: Vec<String> = fs::read_dir(bench.work.join("state"))
        .expect("the state directory")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("images"))
        .collect();
    assert_eq!(stores, ["images-700000"], "one store for each set of ids");
}

fn files_of_images_all_become_root_s(bench: &Bench, name: &str) {
    let run = succeeds(bench, name, &looker(bench, name), &[]);
    let output = run.output();
    assert!(output.contains("/srv/page 0") && output.contains("/old/new 0"), "{}", run.account());
    assert!(!output.contains("gone") && !output.contains("file"), "{}", run.account());
    let note = "all files of images belong to the user of the container";
    assert_eq!(run.said().matches(note).count(), 1, "{}", run.said());
}

fn an_id_past_the_range_is_refused(bench: &Bench, name: &str) {
    let spec = json!({"securityContext": {"runAsUser": 70_000}});
    let mut run = Run::start(bench, name, &scripted(bench, "id", json!({}), spec), &[]);
    assert_eq!(run.end(), 2, "{}", run.account());
    assert!(run.said().contains("runAsUser 70000 does not exist here"), "{}", run.said());
    assert!(run.said().contains("/etc/subuid"), "{}", run.said());
}

fn one_id_is_root_and_all_else_is_said(bench: &Bench, name: &str) {
    let script = "id -u; cat /proc/self/uid_map; touch /data/f; stat -c 'owner %u' /data/f";
    let container = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let spec = json!({
        "securityContext": {"fsGroup": 3000, "supplementalGroups": [4000]},
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    let run = succeeds(bench, name, &scripted(bench, script, container, spec), &[]);
    let map = run.output().lines().find_map(|line| {
        Some(line.strip_prefix("main | ")?.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .filter(|words| words.len() == 3)
    });
    assert_eq!(map.expect("a map"), ["0", "61234", "1"], "{}", run.account());
    assert!(run.output().contains("owner 0"), "{}", run.account());
    assert_eq!(
        run.said().matches("all containers of a pod have the same user, which is user 61234 here").count(),
        1,
        "{}",
        run.said()
    );
    assert!(run.said().contains("usermod --add-subuids"), "{}", run.said());
    assert_eq!(run.said().matches("supplementary groups are left out").count(), 1, "{}", run.said());
}

/// A volume of each kind whose permissions may deny access to a container's user.
fn volumes() -> (Value, Value) {
    let mounts = json!([{"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "secret", "mountPath": "/secret"}]);
    let volumes = json!([{"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "downwardAPI": {"defaultMode": 0o400,
            "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]);
    (mounts, volumes)
}

fn one_id_is_any_one_user(bench: &Bench, name: &str) {
    let script = "id; echo map $(cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups); \
                  echo x > /data/f && echo x > /memory/f && echo x > /dev/shm/f && stat -c 'owner %u:%g' /data/f /memory/f; \
                  echo secret $(cat /secret/name); grep Cap /proc/self/status; echo to the log > /dev/stdout; \
                  hostname other 2>&1; chown 0 /data/f 2>&1; unshare -U true 2>&1; true";
    let (mounts, volumes) = volumes();
    // This includes a terminal, which the program opens by name.
    for (case, shared) in [("", false), ("-shared", true)] {
        let spec = json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 2000}, "volumes": volumes,
            "shareProcessNamespace": shared});
        let pod = scripted(bench, script, json!({"volumeMounts": mounts, "tty": shared}), spec);
        let run = succeeds(bench, &format!("{name}{case}"), &pod, &[]);
        for line in [
            "uid=1000 gid=2000",
            "map 1000 0 1 2000 0 1 deny",
            "owner 1000:2000",
            "secret p",
            "CapPrm:\t0000000000000000",
            "CapEff:\t0000000000000000",
            "to the log",
            "hostname: sethostname: Operation not permitted",
            "/data/f: Invalid argument",
            "unshare: unshare(0x10000000): Operation not permitted",
        ] {
            assert!(run.output().contains(line), "{line}\n{}", run.account());
        }
        assert_eq!(run.output().matches("owner 1000:2000").count(), 2, "{}", run.account());
    }
}

fn exec_and_probes_are_that_user_too(bench: &Bench, name: &str) {
    let script = "echo up; until [ -e /data/told ]; do sleep 0.1; done; cat /data/probe; exit 0";
    let probe = "echo probe $(id -u) $(id -g) > /data/probe && ls -l /proc/1/fd > /dev/null";
    let container = json!({
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "startupProbe": {"exec": {"command": ["sh", "-c", probe]}, "periodSeconds": 1},
    });
    let spec = json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 2000},
        "volumes": [{"name": "data", "emptyDir": {}}]});
    let mut manifest = scripted(bench, script, container, spec);
    manifest["metadata"]["name"] = json!("one-id");
    let mut run = Run::start(bench, name, &manifest, &[]);
    run.wait_for("its output", |run| run.output().contains("up"));
    let say = |script: &str| {
        let output = Command::new(&bench.binary)
            .args(["exec", "one-id", "--", "sh", "-c", script])
            .env("OUTRIGGER_RUNTIME_DIR", bench.sockets())
            .stdin(Stdio::null())
            .output()
            .expect("run it");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let (code, said) = say("echo $(id -u) $(id -g); cat /proc/self/uid_map; echo out > /dev/stdout");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["1000", "2000", "1000", "0", "1", "out"]);
    // The command is in the same user namespace, so it can look into the program's process.
    let same =
        "test \"$(readlink /proc/1/ns/user)\" = \"$(readlink /proc/self/ns/user)\" && touch /data/told";
    assert_eq!(say(same), (Some(0), String::new()));
    assert_eq!(run.end(), 0, "{}", run.account());
    assert!(run.output().contains("probe 1000 2000"), "{}", run.account());
}

/// An image whose USER is a name.
fn image_of(bench: &Bench, name: &str, user: &str) -> String {
    let mut files = layer();
    for dir in ["bin/", "etc/"] {
        entry(&mut files, dir, 0, 0o755, b"");
    }
    entry(&mut files, "bin/busybox", 0, 0o755, &fs::read("/bin/busybox").expect("busybox"));
    entry(&mut files, "etc/passwd", 0, 0o644, b"root:x:0:0::/root:\nweb:x:33:34::/srv:\n");
    let files = files.into_inner().expect("a layer");
    let hex: String = sha2::Sha256::digest(&files).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"User": user},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{hex}")]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": ["i:1"], "Layers": ["0.tar"]}]);
    let mut image = layer();
    entry(&mut image, "manifest.json", 0, 0o644, manifest.to_string().as_bytes());
    entry(&mut image, "config.json", 0, 0o644, config.to_string().as_bytes());
    entry(&mut image, "0.tar", 0, 0o644, &files);
    let path = bench.work.join(format!("{name}.tar"));
    fs::write(&path, image.into_inner().expect("an image")).expect("write the image");
    format!("docker-archive:{}", path.display())
}

fn a_user_of_the_image_is_the_one_id(bench: &Bench, name: &str) {
    let script = "/bin/busybox id; /bin/busybox touch /new && /bin/busybox stat -c '%n %u' /new";
    let container =
        json!({"image": image_of(bench, name, "web"), "command": ["/bin/busybox", "sh", "-c", script]});
    let run = succeeds(bench, name, &scripted(bench, "", container, json!({})), &[]);
    assert!(run.output().contains("uid=33(web) gid=34"), "{}", run.account());
    assert!(run.output().contains("/new 33"), "{}", run.account());
}

fn two_users_are_refused_at_once(bench: &Bench, name: &str) {
    let main = |own: Value| {
        let mut main = bench.container("main", "id");
        main["securityContext"] = own;
        main
    };
    let side = |own: Value| {
        let mut side = bench.container("side", "id");
        side["securityContext"] = own;
        side
    };
    for (case, containers, text) in [
        (
            "users",
            [main(json!({"runAsUser": 1000})), side(json!({"runAsUser": 2000}))],
            "runs as user 1000, and `side` as user 2000",
        ),
        (
            "root",
            [main(json!({"runAsUser": 1000})), side(json!({"runAsUser": 0}))],
            "runs as user 1000, and `side` as user 0",
        ),
        (
            "unset",
            [main(json!({"runAsUser": 1000})), side(json!({}))],
            "runs as user 1000, and `side` as user 0",
        ),
        (
            "groups",
            [main(json!({"runAsUser": 5, "runAsGroup": 1})), side(json!({"runAsUser": 5, "runAsGroup": 2}))],
            "runs as group 1, and `side` as group 2",
        ),
    ] {
        let pod = crate::pod(json!({"containers": containers}));
        let mut run = Run::start(bench, &format!("{name}-{case}"), &pod, &[]);
        assert_eq!(run.end(), 2, "before anything starts: {}", run.account());
        for part in [
            text,
            "a pod has one user, because /etc/subuid has no ids for user seated",
            ".json:",
            "for the whole pod",
        ] {
            assert!(run.said().contains(part), "{case}: {part}\n{}", run.said());
        }
    }
}

/// This is known only after the images are pulled. Waiting cannot help then, so the pod ends.
fn two_users_of_images_end_the_pod(bench: &Bench, name: &str) {
    let busybox = json!(["/bin/busybox", "sleep", "600"]);
    let container = |which: &str, user: &str| json!({"name": which, "image": image_of(bench, &format!("{name}-{which}"), user), "command": busybox});
    let pod = crate::pod(
        json!({"restartPolicy": "Always", "containers": [container("main", "web"), container("side", "7")]}),
    );
    let mut run = Run::start(bench, name, &pod, &[]);
    assert_ne!(run.end(), 0, "{}", run.account());
    assert!(run.said().contains("and another one of its pod as user"), "{}", run.said());
    assert!(run.said().contains("set the same runAsUser and runAsGroup"), "{}", run.said());
    assert!(!run.said().contains("whose USER exists"), "{}", run.said());
    // Numeric users of images on this disk are known before anything starts.
    let pod = crate::pod(json!({"containers": [container("main", "33"), container("side", "7:8")]}));
    let mut run = Run::start(bench, &format!("{name}-numbers"), &pod, &[]);
    assert_eq!(run.end(), 2, "before anything starts: {}", run.account());
    for part in ["`main` runs as user 33, and `side` as user 7", ".json:", "for the whole pod"] {
        assert!(run.said().contains(part), "{part}\n{}", run.said());
    }
}

fn a_missing_newuidmap_is_said(bench: &Bench, name: &str) {
    let run = succeeds(bench, name, &scripted(bench, "id -u", json!({}), json!({})), &[]);
    assert!(run.said().contains("install the package uidmap"), "{}", run.said());
    let quiet = succeeds(
        bench,
        &format!("{name}-quiet"),
        &scripted(bench, "id -u", json!({}), json!({})),
        &["--quiet"],
    );
    assert_eq!(quiet.said(), "", "asked to be quiet");
    // There are ranges, but the program is missing.
    let spec = json!({"containers": [
        {"name": "a", "image": "rootfs:/", "command": ["id"], "securityContext": {"runAsUser": 1000}},
        {"name": "b", "image": "rootfs:/", "command": ["id"]},
    ]});
    let mut other = Run::start(bench, &format!("{name}-other"), &crate::pod(spec), &[]);
    assert_eq!(other.end(), 2, "{}", other.account());
    assert!(other.said().contains("because newuidmap and newgidmap are missing"), "{}", other.said());
    assert!(!other.said().contains("/etc/subuid"), "{}", other.said());
    let spec = json!({"securityContext": {"runAsUser": 1000}});
    let one = succeeds(bench, &format!("{name}-one"), &scripted(bench, "id -u", json!({}), spec), &[]);
    assert!(one.output().contains("1000"), "{}", one.account());
}

fn host_paths_are_used_with_the_user_s_own_rights(bench: &Bench, name: &str) {
    let dir = bench.work.join(format!("{name}-dir"));
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("mine"), "mine\n").expect("a file");
    fs::set_permissions(dir.join("mine"), PermissionsExt::from_mode(0o600)).expect("a mode");
    let script = "cat /dir/mine; echo written > /dir/new; cat /secret 2>&1; cat /shadow 2>&1; \
                  echo more >> /passwd; true";
    let mounts: Vec<Value> = [("dir", "/dir"), ("shadow", "/shadow"), ("passwd", "/passwd")]
        .map(|(name, path)| json!({"name": name, "mountPath": path}))
        .to_vec();
    let volumes: Vec<Value> =
        [("dir", dir.to_str().expect("text")), ("shadow", "/etc/shadow"), ("passwd", "/etc/passwd")]
            .map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}))
            .to_vec();
    let pod = scripted(bench, script, json!({"volumeMounts": mounts}), json!({"volumes": volumes}));
    let before = fs::read_to_string("/etc/passwd").expect("readable");
    let run = succeeds(bench, name, &pod, &[]);
    assert!(run.output().contains("main | mine"), "{}", run.account());
    assert!(
        run.output().contains("/shadow: Permission denied") || run.output().contains("can't open '/shadow'"),
        "{}",
        run.account()
    );
    assert_eq!(fs::read_to_string("/etc/passwd").expect("readable"), before);
    let new = fs::metadata(dir.join("new")).expect("it was written");
    assert_eq!(new.uid(), rustix::process::geteuid().as_raw(), "root in there is this user");
}

fn what_this_user_may_not_use_is_refused(bench: &Bench, name: &str) {
    // This directory belongs to root, and no other user may enter it. A user can use its own directories
    // regardless of their mode.
    let inside = Path::new("/root/outrigger-inside");
    let volume = |kind: Value| {
        let host_path = json!({"path": inside, "type": kind});
        scripted(bench, "true", json!({}), json!({"volumes": [{"name": "v", "hostPath": host_path}]}))
    };
    let image = |kind: &str| {
        scripted(bench, "true", json!({"image": format!("{kind}:{}", inside.display())}), json!({}))
    };
    let path = "cannot be used by this user";
    let table = [
        ("any", volume(json!("")), path),
        ("directory", volume(json!("Directory")), path),
        ("created", volume(json!("DirectoryOrCreate")), path),
        ("rootfs", image("rootfs"), "let this user read it and enter the directories above it"),
        ("oci", image("oci"), "let this user read it and enter the directories above it"),
    ];
    for (case, pod, text) in table {
        let mut run = Run::start(bench, &format!("{name}-{case}"), &pod, &[]);
        assert_eq!(run.end(), 2, "before anything starts: {}", run.account());
        for part in [text, "sudo", ".json:"] {
            assert!(run.said().contains(part), "{case}: {part}\n{}", run.account());
        }
    }
    // Whether a path can be created is known only after trying it.
    let host_path = json!({"path": "/etc/outrigger-not-ours", "type": "DirectoryOrCreate"});
    let pod = scripted(bench, "true", json!({}), json!({"volumes": [{"name": "v", "hostPath": host_path}]}));
    let mut run = Run::start(bench, &format!("{name}-made"), &pod, &[]);
    assert_eq!(run.end(), 1, "{}", run.account());
    for part in
        ["cannot create /etc/outrigger-not-ours", "trying again cannot help", "let this user use the path"]
    {
        assert!(run.said().contains(part), "{part}\n{}", run.account());
    }
}

/// Runs in a user namespace that allows no nested ones.
fn a_user_namespace_that_is_refused_is_said(bench: &Bench, name: &str) {
    let manifest = bench.work.join(format!("{name}.json"));
    fs::write(&manifest, scripted(bench, "id", json!({}), json!({})).to_string())
        .expect("write the manifest");
    // The limit applies to nested namespaces. Without capabilities, the program cannot use another way.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all --inh-caps -all \
                  --no-new-privs \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script, "-"])
        .arg(&bench.binary)
        .args(["run", "--network", "none", "--state-dir"])
        .arg(bench.work.join(format!("{name}-state")))
        .arg(&manifest)
        .output()
        .expect("run unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    for part in ["cannot create a user namespace", "sysctl -w user.max_user_namespaces", "outrigger doctor"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

fn doctor(bench: &Bench) -> Value {
    let output = Command::new(&bench.binary).args(["doctor", "-o", "json"]).output().expect("run it");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((output.status.code(), &found["fit"]), (Some(0), &json!(true)), "{text}");
    found
}

fn finding(found: &Value, check: &str) -> Value {
    let all = found["findings"].as_array().expect("a list");
    all.iter()
        .find(|finding| finding["check"] == check)
        .unwrap_or_else(|| panic!("no {check}: {found}"))
        .clone()
}

fn doctor_is_content(bench: &Bench, _: &str) {
    let found = doctor(bench);
    for check in ["privileges", "ids", "overlayfs", "namespaces", "network", "uplink"] {
        assert_eq!(finding(&found, check)["level"], "ok", "{found}");
    }
    assert_eq!(finding(&found, "cgroups")["level"], "warn", "{found}");
}

fn doctor_says_how_to_get_ids(bench: &Bench, _: &str) {
    let ids = finding(&doctor(bench), "ids");
    assert_eq!(ids["level"], "warn");
    assert!(ids["remedy"].as_str().expect("text").contains("usermod --add-subuids"), "{ids}");
}
