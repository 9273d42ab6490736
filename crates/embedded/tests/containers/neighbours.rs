//! Tests of what root of a pod with a user namespace can do to the host and to other pods, if all other
//! isolation has failed or was disabled.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use outrigger_runtime::{
    ContainerId, ContainerSpec, Mount, Propagation, Runtime as _, Seccomp, UserNamespace,
};

use outrigger_testkit::embedded::{Pod, log_text};

outrigger_testkit::trials![
    root_of_a_pod_is_nobody_among_the_host_s_processes,
    namespaces_cannot_be_made,
    the_kernel_s_settings_are_out_of_reach,
    cgroups_are_out_of_reach,
    nothing_of_the_host_can_be_mounted,
    layers_take_no_owners_and_marks_of_the_host,
    privileged_is_privileged_in_its_namespace_only,
    nodes_in_images_and_volumes_stay_closed,
    devices_of_the_host_cannot_be_changed,
    read_only_volumes_stay_read_only,
];

async fn pod() -> Pod {
    Pod::with(|spec| spec.user_namespace = UserNamespace::Required).await
}

/// A container with all possible privileges, except `privileged`.
fn mighty(pod: &Pod, script: &str) -> ContainerSpec {
    let mut spec = pod.script(script);
    spec.identity.add_capabilities = vec!["ALL".to_owned()];
    spec.identity.seccomp = Seccomp::Unconfined;
    spec.mask_paths = false;
    spec
}

async fn sleeper(pod: &Pod) -> (ContainerId, u32) {
    let id = pod.runtime.create_container(&pod.id, pod.script("exec sleep 100")).await.unwrap();
    let started = pod.runtime.start_container(&id).await.unwrap();
    (id, started.pid)
}

/// Becomes root of the user namespace of process `own`, with all its capabilities, but sees the host's
/// processes, files and mounts. Reports what it can do to process `other`.
pub(crate) fn be_root_of(own: &str, other: &str) -> ! {
    let namespace = fs::File::open(format!("/proc/{own}/ns/user")).expect("a namespace");
    // SAFETY: plain system calls of a process with one thread.
    let joined = unsafe {
        libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER) == 0
            && libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(0, 0, 0) == 0
            && libc::setresuid(0, 0, 0) == 0
            // Dumpable, like a process of the container.
            && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
    };
    assert!(joined, "{}", io::Error::last_os_error());
    let pid: i32 = other.parse().expect("a number");
    let check = |result: i64| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let proc = |name: &str| format!("/proc/{other}/{name}");
    let read = |name: &str| fs::read(proc(name)).map(drop);
    let join = |name: &str| {
        // SAFETY: as above.
        fs::File::open(proc(name)).and_then(|file| check(unsafe { libc::setns(file.as_raw_fd(), 0) }.into()))
    };
    let tries: [(&str, io::Result<()>); 14] = [
        // SAFETY: as above; the signals do nothing.
        ("signal", check(unsafe { libc::kill(pid, 0) }.into())),
        ("environ", read("environ")),
        ("maps", read("maps")),
        ("mem", fs::File::open(proc("mem")).map(drop)),
        ("root", fs::read_dir(proc("root/")).map(drop)),
        ("cwd", fs::read_dir(proc("cwd/")).map(drop)),
        ("fd", fs::read_dir(proc("fd")).map(drop)),
        ("exe", fs::File::open(proc("exe")).map(drop)),
        ("net", join("ns/net")),
        ("ipc", join("ns/ipc")),
        ("mnt", join("ns/mnt")),
        ("user", join("ns/user")),
        // SAFETY: as above; the process is released at once.
        ("ptrace", check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) })),
        ("limits", {
            let none = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
            // SAFETY: the structure lives until the call returns.
            check(unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &none, std::ptr::null_mut()) }.into())
        }),
    ];
    for (what, result) in tries {
        let errno = result.err().and_then(|error| error.raw_os_error());
        println!("{what} {}", errno.map_or("done".to_owned(), |errno| errno.to_string()));
    }
    std::process::exit(0)
}

/// What root of the pod of process `own` can do to process `other`.
fn done(own: u32, other: u32) -> Vec<String> {
    let output = Command::new("/proc/self/exe")
        .args(["be-root-of", &own.to_string(), &other.to_string()])
        .output()
        .expect("this program runs");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 14, "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter_map(|line| line.strip_suffix(" done")).map(str::to_owned).collect()
}

/// Root of a pod behaves as if it had escaped from its pid, mount and all other namespaces.
async fn root_of_a_pod_is_nobody_among_the_host_s_processes() {
    let (one, two) = (pod().await, pod().await);
    let ((_, own), (_, other)) = (sleeper(&one).await, sleeper(&two).await);
    let (_, same) = sleeper(&one).await;
    // This makes sure that the refusals have the right reason.
    let able = done(own, same);
    for what in ["signal", "environ", "mem", "root", "ptrace", "net", "limits"] {
        assert!(able.iter().any(|able| able == what), "{what} of a neighbour in the pod: {able:?}");
    }
    assert_eq!(done(own, other), Vec::<String>::new(), "of another pod");
    assert_eq!(done(own, std::process::id()), Vec::<String>::new(), "of the host");
    assert_eq!(done(own, 1), Vec::<String>::new(), "of the host's first process");
    one.finish().await;
    two.finish().await;
}

/// The filter permits nothing more to root of a user namespace, because its exceptions depend on the
/// container's capabilities.
async fn namespaces_cannot_be_made() {
    let pod = pod().await;
    let script = "for kind in -U -m -n -p -i -u -C '-U -r'; do unshare $kind true && echo MADE $kind; done 2>/dev/null; \
                  mkdir -p /m; mount -t tmpfs none /m && echo MOUNTED; umount /proc && echo UNMOUNTED; \
                  mount -o remount,rw /sys && echo REMOUNTED; nsenter -t 1 -m true && echo JOINED; \
                  chroot / true && echo chroot";
    for user in [0, 1000] {
        let mut spec = pod.script(&format!("exec 2>/dev/null; {script}; true"));
        spec.identity.run_as_user = Some(user);
        let chroot = if user == 0 { "chroot\n" } else { "" };
        assert_eq!(pod.output(spec).await, chroot, "as user {user}");
    }
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let output = pod.exec(&id, &format!("exec 2>/dev/null; {script}")).await.output;
    assert_eq!(String::from_utf8(output).unwrap(), "chroot\n", "commands too");
    pod.finish().await;
}

/// Tries every file of /proc and /sys that can be opened for writing, with nothing masked and with every
/// capability.
async fn the_kernel_s_settings_are_out_of_reach() {
    let pod = pod().await;
    let script = "exec 2>/dev/null; mount -o remount,rw /sys; mount -o remount,rw /proc/sys; mount -o remount,rw /proc; \
                  find /proc/sys /sys /proc -maxdepth 12 \\( -path '/proc/[0-9]*' -o -path /proc/self \
                  -o -path /proc/thread-self \\) -prune -o -type f -perm -0200 -print 2>/dev/null | sort -u | \
                  while read f; do (: >> $f) 2>/dev/null && echo $f; done; echo end";
    let log = pod.output(mighty(&pod, script)).await;
    assert!(log.ends_with("end\n") && log.contains("/proc/sys/net/"), "{log}");
    // These are settings of the pod's own namespaces.
    let own = [
        "/proc/sys/net/",
        "/proc/sys/user/",
        "/proc/sys/fs/mqueue/",
        "/proc/sys/kernel/msg",
        "/proc/sys/kernel/sem",
        "/proc/sys/kernel/shm",
        "/proc/sys/kernel/auto_msgmni",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/domainname",
        // This is a setting of the pid namespace.
        "/proc/sys/kernel/ns_last_pid",
        "/proc/sys/kernel/pid_max",
        // Every user may request load notifications.
        "/proc/pressure/",
        "/sys/devices/virtual/net/lo/",
        "end",
    ];
    let others: Vec<&str> = log.lines().filter(|line| !own.iter().any(|own| line.starts_with(own))).collect();
    assert_eq!(others, Vec::<&str>::new());
    pod.finish().await;
}

/// Tries this also with SYS_ADMIN, which may mount cgroups.
async fn cgroups_are_out_of_reach() {
    let pod = pod().await;
    let script = "mkdir -p /m; for kind in 'cgroup2 none' 'cgroup -o devices none' 'cgroup -o pids none' \
                  'cgroup -o memory none'; do mount -t $kind /m 2>/dev/null || continue; echo seen; \
                  mkdir /m/new && echo MADE; echo max > /m/pids.max && echo PIDS; echo a > /m/devices.allow && echo DEVICES; \
                  echo -1 > /m/memory.limit_in_bytes && echo MEMORY; echo /x > /m/release_agent && echo AGENT; \
                  echo 1 > /m/notify_on_release && echo NOTIFY; echo 0 > /m/cgroup.procs && echo PROCS; \
                  umount /m; done 2>/dev/null; echo end";
    let mut spec = mighty(&pod, script);
    spec.resources.pids_limit = Some(100);
    let log = pod.output(spec).await;
    let others: Vec<&str> = log.lines().filter(|line| !["seen", "end"].contains(line)).collect();
    assert_eq!(others, Vec::<&str>::new(), "{log}");
    pod.finish().await;
}

async fn nothing_of_the_host_can_be_mounted() {
    let pod = pod().await;
    let devices: Vec<String> = fs::read_dir("/sys/class/block")
        .unwrap()
        .flatten()
        .filter_map(|entry| Some(fs::read_to_string(entry.path().join("dev")).ok()?.trim().replace(':', " ")))
        .collect();
    assert!(!devices.is_empty());
    let nodes: String =
        devices.iter().map(|numbers| format!("mknod /dev/disk b {numbers} && echo NODE; ")).collect();
    let script = format!(
        "exec 2>/dev/null; {nodes} mkdir /m; for kind in ext4 xfs vfat devtmpfs debugfs tracefs securityfs pstore \
         configfs efivarfs bpf; do mount -t $kind none /m && echo MOUNTED $kind; done; \
         mount -t tmpfs none /m && mknod /m/null c 1 3 && echo DEVICE; true"
    );
    let log = pod.output(mighty(&pod, &script)).await;
    // A file system of programs for the kernel. It belongs to the namespace and must stay empty.
    let others: Vec<&str> = log.lines().filter(|line| *line != "MOUNTED bpf").collect();
    assert_eq!(others, Vec::<&str>::new());
    pod.finish().await;
}

/// The owners of files in the container's own layer are visible in the host's file system.
async fn layers_take_no_owners_and_marks_of_the_host() {
    let pod = pod().await;
    let script = "exec 2>/dev/null; touch /mine && chown 65535:65535 /mine && echo last; \
                  touch /other && chown 65536 /other && echo OTHER; chown 4294967294 /other && echo HOST; \
                  cp /bin/busybox /suid && chown 0:0 /suid && chmod 6755 /suid; mknod /white c 0 0 && echo white; \
                  mkdir /dir && chmod 2777 /dir; echo ready; sleep 100";
    let spec = mighty(&pod, script);
    let log = spec.log_path.clone();
    let id = pod.runtime.create_container(&pod.id, spec).await.unwrap();
    let started = pod.runtime.start_container(&id).await.unwrap();
    pod.saw(&log, "ready").await;
    let first = fs::metadata(format!("/proc/{}/stat", started.pid)).unwrap().uid();
    assert!(!log_text(&log).contains("OTHER") && !log_text(&log).contains("HOST"), "{}", log_text(&log));
    let own = pod.layer_dir(&id.0).join("upper");
    let mut seen = 0;
    for entry in fs::read_dir(&own).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        seen += 1;
        let range = first..first + 65_536;
        assert!(range.contains(&meta.uid()) && range.contains(&meta.gid()), "{:?}: {meta:?}", entry.path());
    }
    assert!(seen >= 3, "{seen} files");
    let last = fs::metadata(own.join("mine")).unwrap();
    assert_eq!((last.uid(), last.gid()), (first + 65_535, first + 65_535));
    assert_eq!(fs::metadata(own.join("suid")).unwrap().uid(), first);
    pod.finish().await;
}

async fn privileged_is_privileged_in_its_namespace_only() {
    let pod = Pod::with(|spec| {
        spec.user_namespace = UserNamespace::Required;
        spec.privileged = true;
    })
    .await;
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let mut spec = pod.script(
        "exec 2>/dev/null; (echo x > /proc/sys/kernel/core_pattern) && echo SETTING; \
         (: < /dev/mem) && echo MEM; for d in /dev/*; do [ -b $d ] && (: < $d) && echo DISK $d; done; \
 mkdir /m && mount -t tmpfs none /m && echo mounted",
    );
    spec.identity.privileged = true;
    spec.identity.seccomp = Seccomp::Unconfined;
    assert_eq!(pod.output(spec).await, "mounted\n");
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
    pod.finish().await;
}

/// A device in an image has the mode that the image gives it. This also runs on machines without device
/// cgroups (see `machines`).
async fn nodes_in_images_and_volumes_stay_closed() {
    let has_cgroups = ["devices/cgroup.procs", "unified/cgroup.procs", "cgroup.procs"]
        .iter()
        .any(|path| Path::new("/sys/fs/cgroup").join(path).exists());
    let pod = Pod::with(|spec| {
        spec.user_namespace = UserNamespace::Required;
        spec.privileged = true;
    })
    .await;
    let (image, volume) = (pod.scratch("image"), pod.scratch("volume"));
    let disk = fs::metadata("/").unwrap().dev();
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    for dir in [&image, &volume] {
        for (name, kind, device) in [
            ("disk", rustix::fs::FileType::BlockDevice, disk),
            ("kmsg", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 11)),
        ] {
            rustix::fs::mknodat(rustix::fs::CWD, dir.join(name), kind, mode, device).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o666)).unwrap();
        }
    }
    let script = "exec 2>/dev/null; for m in / /data; do mount -o remount,bind,dev $m; mount -o remount,dev $m; done; \
                  mkdir /m && mount -o bind,dev /data /m; \
                  for n in /disk /kmsg /data/disk /data/kmsg /m/disk /m/kmsg; do \
                  (: < $n) && echo OPENED $n; [ -e $n ] && (: >> $n) && echo OPENED $n; done; \
                  (: < /dev/zero) && echo usable";
    let mut privileged = pod.script(script);
    privileged.identity.privileged = true;
    privileged.identity.seccomp = Seccomp::Unconfined;
    let mut admin = pod.script(script);
    admin.identity.add_capabilities = vec!["SYS_ADMIN".to_owned()];
    for mut spec in [mighty(&pod, script), privileged, admin, pod.script(script)] {
        spec.image.layers.push(image.clone());
        spec.mounts = vec![Mount {
            source: volume.clone(),
            target: "/data".into(),
            read_only: false,
            propagation: Propagation::Private,
        }];
        let (log, identity) = (spec.log_path.clone(), format!("{:?}", spec.identity));
        match pod.start(spec).await {
            Ok(id) => {
                pod.wait(&id).await;
                assert_eq!(log_text(&log), "usable\n", "{identity}");
            }
            Err(error) => {
                assert!(!has_cgroups && error.to_string().contains("is refused"), "{identity}: {error}");
            }
        }
    }
    pod.finish().await;
}

/// The devices are mounts of the host's own nodes, or nodes of the container. In both cases the host's cannot
/// be changed.
async fn devices_of_the_host_cannot_be_changed() {
    let pod = pod().await;
    let names = ["null", "zero", "full", "random", "urandom", "tty"];
    let state = || {
        names.map(|name| {
            let meta = fs::metadata(Path::new("/dev").join(name)).unwrap();
            (meta.permissions().mode(), meta.uid(), meta.gid())
        })
    };
    let before = state();
    let script = format!(
        "for n in {}; do chmod 600 /dev/$n; chown 1000 /dev/$n; done 2>/dev/null; \
         chmod 600 /proc/self/fd/0 2>/dev/null; echo x > /dev/null && head -c 1 /dev/zero | wc -c",
        names.join(" ")
    );
    assert!(pod.output(mighty(&pod, &script)).await.ends_with("1\n"));
    assert_eq!(state(), before);
    pod.finish().await;
}

/// This also applies to a container that may mount. The file behind the volume belongs to the host.
async fn read_only_volumes_stay_read_only() {
    let pod = pod().await;
    let (dir, files) = (pod.scratch("volume"), pod.scratch("files"));
    let (inside, covered) = (pod.scratch("volume/sub"), dir.join("sub/covered"));
    fs::write(&covered, "hidden").unwrap();
    fs::write(dir.join("file"), "host").unwrap();
    fs::write(files.join("single"), "host").unwrap();
    rustix::mount::mount("sub", &inside, "tmpfs", rustix::mount::MountFlags::empty(), c"size=64k").unwrap();
    fs::write(inside.join("file"), "host").unwrap();
    let script = "exec 2>/dev/null; for m in /ro /ro/sub /single; do \
                  mount -o remount,rw,bind $m && echo REMOUNTED $m; mount -o remount,rw $m && echo REMOUNTED $m; done; \
                  for f in /ro/file /ro/sub/file /single; do echo evil > $f && echo WROTE $f; done; \
                  umount /ro/sub || umount -l /ro/sub; cat /ro/sub/covered; \
                  for how in bind rbind; do mkdir /$how; mount -o $how /ro /$how && { \
                  umount -l /$how/sub; cat /$how/sub/covered; mount -o remount,rw,bind /$how && echo REMOUNTED $how; \
                  echo evil > /$how/file && echo WROTE $how; }; done; \
                  mkdir /rw/made && echo usable";
    let mut spec = mighty(&pod, script);
    let mount = |source: &Path, target: &str, read_only: bool| Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only,
        propagation: Propagation::Private,
    };
    spec.mounts = vec![
        mount(&dir, "/ro", true),
        mount(&files.join("single"), "/single", true),
        mount(&pod.scratch("rw"), "/rw", false),
    ];
    let text = pod.output(spec).await;
    let contents = [dir.join("file"), inside.join("file"), files.join("single")]
        .map(|file| fs::read_to_string(file).unwrap());
    rustix::mount::unmount(&inside, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(contents, ["host", "host", "host"]);
    assert_eq!(text, "usable\n");
    pod.finish().await;
}
