//! Tests of the files that containers see.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use outrigger_runtime::{Mount, Propagation, Runtime as _, RuntimeError};

use outrigger_testkit::embedded::{DEADLINE, Pod, log_text, rootfs};

outrigger_testkit::trials![
    the_image_is_not_written_to,
    layers_lie_over_each_other,
    many_layers_can_be_mounted,
    the_host_s_own_tree_can_be_the_image,
    without_overlayfs_the_image_is_copied,
    the_root_can_be_read_only,
    volumes_are_writable_or_not,
    read_only_reaches_submounts,
    files_can_be_mounted,
    targets_cannot_escape_through_links,
    missing_links_in_the_image_are_followed_inside,
    nothing_is_mounted_over_proc_or_the_root,
    a_missing_source_may_appear,
    mounts_of_the_host_reach_the_container_only_when_asked,
    the_container_s_mounts_reach_the_host_only_when_asked,
    devices_are_the_usual_ones,
    masked_paths_are_empty,
    unmasked_when_asked,
    sys_and_cgroups_are_read_only,
    no_descriptor_of_the_host_is_left_open,
    shims_inherit_no_descriptor,
    a_terminal_when_asked,
    stdin_is_null_or_kept_open,
];

async fn the_image_is_not_written_to() {
    let pod = Pod::new().await;
    assert_eq!(
        pod.output(pod.script("echo new > /etc/passwd; rm /etc/group; cat /etc/passwd; ls /etc")).await,
        "new\npasswd\n"
    );
    assert!(rootfs().join("etc/group").exists());
    assert_eq!(pod.output(pod.script("ls /etc")).await, "group\npasswd\n", "containers share nothing");
    pod.finish().await;
}

fn layer(pod: &Pod, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let dir = pod.scratch(name);
    for (path, text) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

async fn layers_lie_over_each_other() {
    let pod = Pod::new().await;
    let mut spec = pod.script("cat /a /b /c; echo; echo x > /a");
    let low = layer(&pod, "low: with, odd\\name", &[("a", "low"), ("b", "low")]);
    let high = layer(&pod, "high", &[("b", "high"), ("c", "high")]);
    spec.image.layers.extend([low, high]);
    assert_eq!(pod.output(spec).await, "lowhighhigh\n");
    pod.finish().await;
}

async fn many_layers_can_be_mounted() {
    let pod = Pod::new().await;
    let mut spec = pod.script("cat /f1 /f100; echo");
    let padding = "with-a-long-name-as-digests-have-them".repeat(2);
    for number in 1..=100 {
        let file = format!("f{number}");
        spec.image.layers.push(layer(&pod, &format!("{padding}-{number}"), &[(&file, &file)]));
    }
    assert_eq!(pod.output(spec).await, "f1f100\n");
    pod.finish().await;
}

async fn the_host_s_own_tree_can_be_the_image() {
    let pod = Pod::new().await;
    let mut spec = pod.script(
        "touch /made-in-a-container && ls /etc/hostname /made-in-a-container; ls /proc/1/exe >/dev/null",
    );
    spec.image.layers = vec!["/".into()];
    spec.command = Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), spec.command.unwrap().remove(2)]);
    assert!(pod.output(spec).await.contains("/made-in-a-container\n"));
    assert!(!PathBuf::from("/made-in-a-container").exists());
    pod.finish().await;
}

async fn without_overlayfs_the_image_is_copied() {
    // overlayfs does not accept an overlay as its upper layer.
    let base = tempfile::tempdir().unwrap();
    let dir = |name: &str| {
        let path = base.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (low, up, work, state) = (dir("low"), dir("up"), dir("work"), dir("state"));
    let options = format!("lowerdir={},upperdir={},workdir={}", low.display(), up.display(), work.display());
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount(
        "overlay",
        &state,
        "overlay",
        rustix::mount::MountFlags::empty(),
        options.as_c_str(),
    )
    .unwrap();
    let pod = Pod::in_state_dir(&state, |_| {}).await;
    let mut spec = pod.script(
        "cat /etc/group /f; echo new > /etc/group; mount | grep -c ' / type overlay'; touch /x; id -u web",
    );
    let high = layer(&pod, "high", &[("f", "file\n")]);
    let image = std::os::unix::fs::lchown(high.join("f"), Some(33), Some(34));
    image.unwrap();
    spec.image.layers.push(high);
    let log = pod.output(spec).await;
    assert_eq!(log, "root:x:0:\nweb:x:34:\nlog:x:70:web\nfile\n1\n33\n");
    assert!(rootfs().join("etc/group").metadata().unwrap().len() > 10, "the image was written to");
    let mut spec = pod.script("touch /x; echo $?");
    spec.read_only_rootfs = true;
    assert!(pod.output(spec).await.contains("1\n"));
    // The pod's own mounts are below the overlay that is removed next.
    pod.runtime.remove_sandbox(&pod.id).await.unwrap();
    rustix::mount::unmount(&state, rustix::mount::UnmountFlags::DETACH).unwrap();
}

async fn the_root_can_be_read_only() {
    let pod = Pod::new().await;
    let mut spec =
        pod.script("exec 2>&1; touch /x; echo $?; touch /dev/shm/y && touch /data/z && echo written");
    spec.read_only_rootfs = true;
    spec.mounts = vec![mount(&pod.scratch("data"), "/data", false)];
    assert_eq!(pod.output(spec).await, "touch: /x: Read-only file system\n1\nwritten\n");
    pod.finish().await;
}

fn mount(source: &std::path::Path, target: &str, read_only: bool) -> Mount {
    Mount { source: source.to_owned(), target: target.into(), read_only, propagation: Propagation::Private }
}

async fn volumes_are_writable_or_not() {
    let pod = Pod::new().await;
    let data = pod.scratch("data");
    fs::write(data.join("in"), "given\n").unwrap();
    let mut spec = pod.script("exec 2>&1; cat /rw/in; echo back > /rw/out; touch /deep/ro/x; echo $?");
    spec.mounts = vec![mount(&data, "/rw", false), mount(&data, "/deep/ro", true)];
    assert_eq!(pod.output(spec).await, "given\ntouch: /deep/ro/x: Read-only file system\n1\n");
    assert_eq!(fs::read_to_string(data.join("out")).unwrap(), "back\n");
    pod.finish().await;
}

async fn read_only_reaches_submounts() {
    let pod = Pod::new().await;
    let data = pod.scratch("data");
    let sub = pod.scratch("data/sub");
    rustix::mount::mount("sub", &sub, "tmpfs", rustix::mount::MountFlags::empty(), c"size=4k").unwrap();
    let mut spec = pod.script("exec 2>&1; touch /ro/sub/x; echo $?");
    spec.mounts = vec![mount(&data, "/ro", true)];
    let log = pod.output(spec).await;
    rustix::mount::unmount(&sub, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(log, "touch: /ro/sub/x: Read-only file system\n1\n");
    pod.finish().await;
}

async fn files_can_be_mounted() {
    let pod = Pod::new().await;
    let file = pod.scratch("files").join("hosts");
    fs::write(&file, "127.0.0.1 localhost\n").unwrap();
    let mut spec = pod.script("cat /etc/hosts; echo more >> /etc/hosts; echo no > /new/file");
    spec.mounts = vec![mount(&file, "/etc/hosts", false), mount(&file, "/new/file", true)];
    let (exit, log) = pod.run(spec).await;
    assert_eq!(exit.code, 1);
    assert!(log.starts_with("127.0.0.1 localhost\n") && log.contains("Read-only"), "{log}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "127.0.0.1 localhost\nmore\n");
    pod.finish().await;
}

async fn targets_cannot_escape_through_links() {
    let pod = Pod::new().await;
    let (data, outside) = (pod.scratch("data"), pod.scratch("outside"));
    fs::write(data.join("mark"), "").unwrap();
    let image = pod.scratch("evil");
    symlink(&outside, image.join("absolute")).unwrap();
    symlink("../../../../../../../../..".to_owned() + outside.to_str().unwrap(), image.join("relative"))
        .unwrap();
    let mut spec = pod.script("ls /absolute/a /relative/b");
    spec.image.layers.push(image);
    spec.mounts = vec![mount(&data, "/absolute/a", false), mount(&data, "/relative/b", false)];
    assert_eq!(pod.output(spec).await, "/absolute/a:\nmark\n\n/relative/b:\nmark\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was made outside the container");
    pod.finish().await;
}

async fn missing_links_in_the_image_are_followed_inside() {
    let pod = Pod::new().await;
    let image = pod.scratch("image");
    fs::create_dir_all(image.join("var")).unwrap();
    symlink("/run", image.join("var/run")).unwrap();
    let mut spec = pod.script("ls /run/secrets");
    spec.image.layers.push(image);
    let data = pod.scratch("data");
    fs::write(data.join("token"), "").unwrap();
    spec.mounts = vec![mount(&data, "/var/run/secrets", true)];
    assert_eq!(pod.output(spec).await, "token\n");
    pod.finish().await;
}

async fn nothing_is_mounted_over_proc_or_the_root() {
    let pod = Pod::new().await;
    let data = pod.scratch("data");
    for target in ["/proc/sys", "/", "/proc/self/attr"] {
        let mut spec = pod.script("true");
        spec.mounts = vec![mount(&data, target, false)];
        let error = pod.start(spec).await.unwrap_err();
        assert!(
            matches!(&error, RuntimeError::MountPoint { detail, .. } if detail.contains("nothing can be mounted")),
            "{error:?}"
        );
    }
    // A link of the image leads to the root, whatever it looks like. A directory below the root is not the
    // root.
    let image = pod.scratch("links");
    symlink("/", image.join("root")).unwrap();
    symlink("root/../..", image.join("around")).unwrap();
    let file = pod.scratch("file").join("file");
    fs::write(&file, "").unwrap();
    for (source, target) in [(&data, "/root"), (&data, "/around"), (&data, "/root/root/"), (&file, "/root")] {
        for read_only in [false, true] {
            let mut spec = pod.script("true");
            spec.image.layers.push(image.clone());
            spec.mounts = vec![mount(source, target, read_only)];
            let error = pod.start(spec).await.unwrap_err();
            assert!(
                matches!(&error, RuntimeError::MountPoint { detail, .. } if detail.contains("over the container's root")),
                "{target}: {error:?}"
            );
        }
    }
    let mut spec = pod.script("ls -d /below");
    spec.image.layers.push(image);
    spec.mounts = vec![mount(&data, "/root/below", false)];
    assert_eq!(pod.output(spec).await, "/below\n");
    pod.finish().await;
}

async fn a_missing_source_may_appear() {
    let pod = Pod::new().await;
    let mut spec = pod.script("true");
    spec.mounts = vec![mount(std::path::Path::new("/no/such/source"), "/data", false)];
    let error = pod.start(spec).await.unwrap_err();
    assert!(matches!(&error, RuntimeError::Create(_)), "{error:?}");
    assert_eq!(error.to_string(), "cannot mount /no/such/source at /data: no such file or directory");
    pod.finish().await;
}

/// Creates a directory that is a shared mount. systemd makes all mounts shared.
fn shared(pod: &Pod, name: &str) -> PathBuf {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let dir = pod.scratch(name);
    mount("shared", &dir, "tmpfs", MountFlags::empty(), c"size=64k").unwrap();
    mount_change(&dir, MountPropagationFlags::SHARED).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    dir
}

fn unmount(dir: &std::path::Path) {
    let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
}

async fn mounts_of_the_host_reach_the_container_only_when_asked() {
    let pod = Pod::new().await;
    for (propagation, expected) in [(Propagation::Private, "2"), (Propagation::HostToContainer, "1")] {
        let dir = shared(&pod, "shared");
        let mut spec = pod.script("sleep 100");
        spec.mounts = vec![Mount { propagation, ..mount(&dir, "/data", false) }];
        let id = pod.start(spec).await.unwrap();
        rustix::mount::mount(
            "late",
            dir.join("sub"),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            c"size=4k",
        )
        .unwrap();
        fs::write(dir.join("sub/late"), "").unwrap();
        let exec = pod.exec(&id, "ls /data/sub/late > /dev/null 2>&1 && echo 1 || echo 2").await;
        unmount(&dir.join("sub"));
        unmount(&dir);
        assert_eq!(String::from_utf8(exec.output).unwrap().trim(), expected, "{propagation:?}");
    }
    pod.finish().await;
}

async fn the_container_s_mounts_reach_the_host_only_when_asked() {
    let pod = Pod::with_host_users().await;
    for (propagation, reaches) in [(Propagation::HostToContainer, false), (Propagation::Bidirectional, true)]
    {
        let dir = shared(&pod, "shared");
        let mut spec = pod.script("mount -t tmpfs none /data/sub && touch /data/sub/mark");
        spec.identity.privileged = true;
        spec.mounts = vec![Mount { propagation, ..mount(&dir, "/data", false) }];
        let id = spec.id.clone();
        pod.output(spec).await;
        // When the container is removed, its mounts on the host stay.
        pod.runtime.remove_container(&id).await.unwrap();
        let reached = dir.join("sub/mark").exists();
        unmount(&dir.join("sub"));
        unmount(&dir);
        assert_eq!(reached, reaches, "{propagation:?}");
    }
    pod.finish().await;
}

async fn devices_are_the_usual_ones() {
    let pod = Pod::new().await;
    let script = "ls /dev; echo x > /dev/null; head -c 2 /dev/zero | wc -c; head -c 2 /dev/urandom | wc -c; touch /dev/shm/x; \
                  echo fd > /dev/fd/1; stat -c '%t:%T %a' /dev/null; [ -c /dev/pts/ptmx ] && ls /dev/mqueue";
    let log = pod.output(pod.script(script)).await;
    let names = "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(log, format!("{}\n2\n2\nfd\n1:3 666\n", names.replace(' ', "\n")));
    pod.finish().await;
}

async fn masked_paths_are_empty() {
    let pod = Pod::new().await;
    // Not every kernel has every path. A missing path counts as hidden.
    let script = "exec 2>&1; for f in kcore keys timer_list sched_debug interrupts; do \
                  [ -e /proc/$f ] && [ \"$(wc -c < /proc/$f)\" != 0 ] && echo $f; done; \
                  ls -A /sys/firmware /proc/scsi /proc/acpi 2>/dev/null | grep -v -e : -e '^$'; \
                  for f in sysrq-trigger sys/kernel/panic irq/default_smp_affinity; do \
                  [ -e /proc/$f ] && (echo 1 > /proc/$f) 2>/dev/null && echo wrote $f; done; echo end";
    assert_eq!(pod.output(pod.script(script)).await, "end\n");
    pod.finish().await;
}

async fn unmasked_when_asked() {
    let pod = Pod::with_host_users().await;
    let mut spec = pod.script("wc -c < /proc/timer_list");
    spec.mask_paths = false;
    assert_ne!(pod.output(spec).await, "0\n");
    assert_eq!(pod.output(pod.script("wc -c < /proc/timer_list")).await, "0\n");
    pod.finish().await;
}

async fn sys_and_cgroups_are_read_only() {
    let pod = Pod::new().await;
    let script = "for m in $(grep -E ' /sys[ /]' /proc/self/mountinfo | grep -v /sys/firmware | grep -v powercap | cut -d' ' -f6); do \
                  case $m in ro*) ;; *) echo $m;; esac; done; mkdir /sys/fs/cgroup/x 2>&1 | grep -c .";
    let (_, log) = pod.run(pod.script(script)).await;
    assert_eq!(log, "1\n");
    pod.finish().await;
}

async fn no_descriptor_of_the_host_is_left_open() {
    let pod = Pod::new().await;
    let spec = pod.script("echo /proc/$$/fd/*; echo done; sleep 100");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "done").await;
    // The shell itself opens the directory to list it.
    let own = |pid: &str| format!("/proc/{pid}/fd/0 /proc/{pid}/fd/1 /proc/{pid}/fd/2 /proc/{pid}/fd/3\n");
    assert_eq!(log_text(&log), own("1") + "done\n");
    let exec = pod.exec(&id, "echo $$; echo /proc/$$/fd/*; pwd -P; readlink /proc/$$/fd/0").await;
    let text = String::from_utf8(exec.output).unwrap();
    let pid = text.lines().next().unwrap();
    assert_eq!(text, format!("{pid}\n{}/\n/dev/null\n", own(pid)));
    pod.finish().await;
}

/// A shim may outlive everything. Locks and pipes that it inherited from the process that started the run
/// would stay open.
async fn shims_inherit_no_descriptor() {
    let pod = Pod::new().await;
    let file = pod.scratch("inherited").join("lock");
    // Without O_CLOEXEC, like descriptors that a shell opens for its commands.
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::RDWR;
    let lock = rustix::fs::open(&file, flags, rustix::fs::Mode::RUSR).unwrap();
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let (shim, _) = crate::pods::pids(&pod, &id.0);
    let open = fs::read_dir(format!("/proc/{shim}/fd")).unwrap().flatten();
    let open: Vec<PathBuf> = open.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
    assert!(!open.is_empty() && !open.contains(&file), "{open:?}");
    drop(lock);
    pod.finish().await;
}

async fn a_terminal_when_asked() {
    let pod = Pod::new().await;
    let mut spec = pod.script("tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo yes; [ -c /dev/console ] && echo console; echo $TERM; echo e >&2");
    spec.tty = true;
    let log = pod.output(spec).await;
    let lines: Vec<&str> = log.lines().map(|line| line.trim_end_matches('\r')).collect();
    assert_eq!(lines, ["/dev/pts/0", "yes", "console", "xterm", "e"]);
    pod.finish().await;
}

async fn stdin_is_null_or_kept_open() {
    let pod = Pod::new().await;
    assert_eq!(pod.output(pod.script("cat; echo end")).await, "end\n");
    let mut spec = pod.script("echo reading; cat; echo end");
    spec.stdin = true;
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "reading").await;
    let reads = async { while pod.exec(&id, "ps -o args | grep -c ^cat").await.output != b"1\n" {} };
    tokio::time::timeout(DEADLINE, reads).await.expect("it reads");
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    assert_eq!(log_text(&log), "reading\n");
    let meta = fs::metadata(&log).unwrap();
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (0, 0o640));
    pod.finish().await;
}
