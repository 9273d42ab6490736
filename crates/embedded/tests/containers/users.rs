//! Tests of pods with their own user namespace.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use outrigger_runtime::{Mount, Propagation, Runtime as _, RuntimeError, UserNamespace};

use outrigger_testkit::embedded::{Pod, log_text};

outrigger_testkit::trials![
    root_is_nobody_on_the_host,
    files_keep_their_ids,
    setuid_programs_are_nobody_s_on_the_host,
    terminals_and_shared_processes_work,
    capabilities_end_at_the_namespace,
    kernel_settings_of_the_pod_are_set,
    pods_have_different_ids,
    what_the_namespace_does_not_have_is_refused,
    an_image_cannot_ask_for_the_host_s_users,
    files_of_other_ids_are_nobody_s,
    roots_of_images_belong_to_nobody_else,
];

async fn pod() -> Pod {
    Pod::with(|spec| spec.user_namespace = UserNamespace::Required).await
}

fn mount(source: &Path, target: &str) -> Mount {
    Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only: false,
        propagation: Propagation::Private,
    }
}

/// The uid of a process as the host sees it.
fn host_uid(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}/stat")).expect("a process").uid()
}

async fn root_is_nobody_on_the_host() {
    let pod = pod().await;
    let spec = pod.script("id -u; cat /proc/self/uid_map; touch /made; echo ready; sleep 100");
    let log = spec.log_path.clone();
    let id = pod.runtime.create_container(&pod.id, spec).await.unwrap();
    let started = pod.runtime.start_container(&id).await.unwrap();
    pod.saw(&log, "ready").await;
    let text = log_text(&log);
    let map: Vec<u32> =
        text.lines().nth(1).unwrap().split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!(text.starts_with("0\n") && map[0] == 0 && map[1] > 65_535 && map[2] == 65_536, "{text}");
    assert_eq!(host_uid(started.pid), map[1]);
    let made = pod.layer_dir(&id.0).join("upper/made");
    assert_eq!(fs::metadata(made).unwrap().uid(), map[1], "what it writes is nobody's on the host");
    // Commands have it too.
    let output =
        pod.exec(&id, "id -u; cat /proc/self/uid_map; touch /etc/passwd && echo written").await.output;
    let output = String::from_utf8(output).unwrap();
    assert!(output.starts_with("0\n") && output.contains(&map[1].to_string()), "{output}");
    assert!(output.ends_with("written\n"), "the image's files are root's in there: {output}");
    pod.finish().await;
}

async fn files_keep_their_ids() {
    let pod = pod().await;
    let data = pod.scratch("data");
    fs::write(data.join("root"), "").unwrap();
    fs::write(data.join("web"), "").unwrap();
    std::os::unix::fs::chown(data.join("web"), Some(33), Some(34)).unwrap();
    let mut spec =
        pod.script("stat -c '%n %u %g' /data/root /data/web; touch /data/new; chown 33 /data/root");
    spec.mounts = vec![mount(&data, "/data")];
    assert_eq!(pod.output(spec).await, "/data/root 0 0\n/data/web 33 34\n");
    let owner = |name: &str| fs::metadata(data.join(name)).unwrap().uid();
    assert_eq!((owner("new"), owner("root")), (0, 33));
    let mut spec = pod.script("id -u; echo x > /dev/stdout; touch /dev/shm/x && stat -c %u /dev/shm/x");
    spec.identity.run_as_user = Some(33);
    assert_eq!(pod.output(spec).await, "33\nx\n33\n");
    pod.finish().await;
}

/// Determines as which user a program runs on the host if root of a container has made it set-user-id.
async fn setuid_programs_are_nobody_s_on_the_host() {
    let pod = pod().await;
    let spec =
        pod.script("cp /bin/busybox /suid && chmod 4755 /suid && stat -c %u:%a /suid; echo ready; sleep 100");
    let log = spec.log_path.clone();
    let id = pod.runtime.create_container(&pod.id, spec).await.unwrap();
    let started = pod.runtime.start_container(&id).await.unwrap();
    pod.saw(&log, "ready").await;
    assert!(log_text(&log).starts_with("0:4755\n"), "{}", log_text(&log));
    let made = fs::metadata(pod.layer_dir(&id.0).join("upper/suid")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.uid()), (0o4755, host_uid(started.pid)));
    assert!(made.uid() >= 65_536 && made.gid() >= 65_536);
    pod.finish().await;
}

async fn terminals_and_shared_processes_work() {
    let pod = Pod::with(|spec| {
        spec.user_namespace = UserNamespace::Required;
        spec.share_pid = true;
    })
    .await;
    let mut spec = pod.script("tty; id -u; cat /proc/1/comm; stat -c %u /proc/1");
    spec.identity.run_as_user = Some(33);
    spec.tty = true;
    let log = pod.output(spec).await.replace('\r', "");
    assert_eq!(log, "/dev/pts/0\n33\npause\n65535\n");
    pod.finish().await;
}

/// Even with all capabilities, neither devices nor the kernel's settings are accessible.
async fn capabilities_end_at_the_namespace() {
    let pod = pod().await;
    let mut spec = pod.script(
        "mknod /node c 1 3 2>&1; mknod /dev/node b 7 0 2>&1; echo x 2>&1 > /proc/sys/kernel/core_pattern; \
         mkdir /m; mount -t tmpfs none /m 2>&1 && echo mounted; hostname changed && hostname",
    );
    spec.identity.add_capabilities = vec!["ALL".to_owned()];
    spec.identity.seccomp = outrigger_runtime::Seccomp::Unconfined;
    spec.mask_paths = false;
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let log = pod.output(spec).await;
    assert_eq!(log.matches("Operation not permitted").count(), 2, "{log}");
    assert!(log.contains("core_pattern: Permission denied"), "{log}");
    assert!(log.contains("mounted\nchanged\n"), "in its own namespaces it is root: {log}");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
    pod.finish().await;
}

async fn kernel_settings_of_the_pod_are_set() {
    let pod = Pod::with(|spec| {
        spec.user_namespace = UserNamespace::Required;
        for (name, value) in [("kernel.shm_rmid_forced", "1"), ("net.ipv4.ip_default_ttl", "77")] {
            spec.sysctls.insert(name.to_owned(), value.to_owned());
        }
    })
    .await;
    let script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_default_ttl";
    assert_eq!(pod.output(pod.script(script)).await, "1\n77\n");
    pod.finish().await;
}

async fn pods_have_different_ids() {
    let (one, two) = (pod().await, pod().await);
    let script = "awk '{ print $2 }' /proc/self/uid_map";
    let (first, second) = (one.output(one.script(script)).await, two.output(two.script(script)).await);
    assert_ne!(first, second);
    // The result is the same within a pod.
    assert_eq!(one.output(one.script(script)).await, first);
    let claim = Path::new("/run/outrigger/ids").join(first.trim());
    assert!(claim.exists());
    one.finish().await;
    assert!(!claim.exists(), "the ids are given back");
    two.finish().await;
}

async fn what_the_namespace_does_not_have_is_refused() {
    let pod = pod().await;
    let mut spec = pod.script("true");
    spec.identity.run_as_user = Some(100_000);
    let error = pod.start(spec).await.unwrap_err().to_string();
    assert!(error.contains("100000") && error.contains("hostUsers: true"), "{error}");
    let mut spec = pod.script("true");
    spec.mounts = vec![mount(Path::new("/proc/sys"), "/data")];
    let error = pod.start(spec).await.unwrap_err().to_string();
    assert!(error.contains("--userns host"), "{error}");
    pod.finish().await;
}

/// An image cannot get the host's users by the user that it names. It is refused even if the namespace is not
/// required. The error says how to run it.
async fn an_image_cannot_ask_for_the_host_s_users() {
    for wanted in [UserNamespace::Auto, UserNamespace::Required] {
        let pod = Pod::with(|spec| spec.user_namespace = wanted).await;
        let tables = pod.scratch("tables");
        fs::create_dir(tables.join("etc")).unwrap();
        fs::write(tables.join("etc/passwd"), "big:x:70000:0::/:\nin:x:5:70001::/:\nfits:x:65535:0::/:\n")
            .unwrap();
        fs::write(tables.join("etc/group"), "big:x:70002:\nmore:x:70003:fits\n").unwrap();
        let of = |user: &str| {
            let mut spec = pod.script("id -u; cut -c 1-22 /proc/self/uid_map");
            spec.image.user = Some(user.to_owned());
            spec.image.reference = "large:1".to_owned();
            spec.image.layers.push(tables.clone());
            spec
        };
        for (user, why) in [
            ("70000", "user 70000"),
            ("65536", "user 65536"),
            ("big", "user 70000"),
            ("in", "group 70001"),
            ("5:70000", "group 70000"),
            ("5:big", "group 70002"),
            ("fits", "group 70003"),
        ] {
            let error = match pod.start(of(user)).await {
                Err(error) => error,
                Ok(id) => panic!("{wanted:?} {user}: {id:?} runs"),
            };
            assert!(matches!(error, RuntimeError::User { .. }), "{user}: {error:?}");
            let error = error.to_string();
            for part in [&*format!("image large:1 runs as {why},"), "hostUsers: true", "--userns host"] {
                assert!(error.contains(part), "{user}: {error}");
            }
        }
        // The pod still has its user namespace after all this.
        let output = pod.output(of("7:7")).await;
        let words: Vec<&str> = output.split_whitespace().collect();
        assert!(words[0] == "7" && words[1] == "0" && words[2] != "0", "{output}");
        pod.finish().await;
    }
}

/// Files of ids that a pod does not have belong to nobody in it. None of them makes the pod use the host's
/// users.
async fn files_of_other_ids_are_nobody_s() {
    for wanted in [UserNamespace::Auto, UserNamespace::Required] {
        let pod = Pod::with(|spec| spec.user_namespace = wanted).await;
        let top = pod.scratch("top");
        fs::create_dir(top.join("dir")).unwrap();
        fs::write(top.join("dir/file"), "content\n").unwrap();
        fs::create_dir(top.join("suid")).unwrap();
        // busybox chooses its applet by its own name.
        fs::copy("/bin/busybox", top.join("suid/busybox")).unwrap();
        for (name, uid, gid, mode) in [
            ("dir", 70_000, 0, 0o755),
            ("dir/file", 65_536, 4_000_000_000, 0o644),
            ("suid/busybox", 70_000, 70_000, 0o6755),
        ] {
            std::os::unix::fs::chown(top.join(name), Some(uid), Some(gid)).unwrap();
            fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut spec = pod.script(
            "stat -c '%u %g' /dir /dir/file; cat /dir/file; /suid/busybox id -u; /suid/busybox id -g; \
             (echo x > /dir/file) 2>/dev/null && echo written; chown 0 /dir/file 2>/dev/null && echo taken; \
             set -- $(cat /proc/self/uid_map); [ $2 -gt 65535 ] && echo own users $3",
        );
        spec.image.layers.push(top);
        assert_eq!(
            pod.output(spec).await,
            "65534 0\n65534 65534\ncontent\n0\n0\nown users 65536\n",
            "{wanted:?}"
        );
        pod.finish().await;
    }
}

/// The ids after a pod's last one belong to another pod.
async fn roots_of_images_belong_to_nobody_else() {
    let pod = pod().await;
    let top = pod.scratch("top");
    std::os::unix::fs::chown(&top, Some(70_000), Some(4_000_000_000)).unwrap();
    let mut spec = pod.script("stat -c '%u %g' /; echo ready; sleep 100");
    spec.image.layers.push(top);
    let log = spec.log_path.clone();
    let id = pod.runtime.create_container(&pod.id, spec).await.unwrap();
    let started = pod.runtime.start_container(&id).await.unwrap();
    pod.saw(&log, "ready").await;
    assert_eq!(log_text(&log), "65534 65534\nready\n");
    let upper = fs::metadata(pod.layer_dir(&id.0).join("upper")).unwrap();
    let first = host_uid(started.pid);
    assert_eq!((upper.uid(), upper.gid()), (first + 65_534, first + 65_534));
    pod.finish().await;
}
