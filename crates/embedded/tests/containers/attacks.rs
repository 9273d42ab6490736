//! Tests of attacks by hostile images and containers. All of them must fail.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use outrigger_runtime::{ContainerSpec, Mount, Propagation, Runtime as _, Seccomp, UserNamespace};

use outrigger_testkit::embedded::{BOTH_USERS, Pod, log_text};

outrigger_testkit::trials![
    links_of_the_image_do_not_move_kernel_file_systems,
    links_below_dev_do_not_matter,
    the_root_is_not_writable_by_everybody,
    the_root_has_the_mode_of_the_image,
    nothing_of_the_host_is_seen_of_a_command_on_its_way,
    nothing_of_the_host_is_seen_of_a_container_on_its_way,
    the_program_of_the_shim_cannot_be_written,
    devices_of_images_volumes_and_mknod_are_closed,
    standard_input_is_not_the_host_s,
    session_keyrings_are_the_container_s_own,
];

/// A layer with links, directories (`None`) and files.
fn layer(pod: &Pod, name: &str, entries: &[(&str, Option<&str>)]) -> PathBuf {
    let dir = pod.scratch(name);
    for (path, target) in entries {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match target {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::create_dir_all(path).unwrap(),
        }
    }
    dir
}

type Entries<'a> = &'a [(&'a str, Option<&'a str>)];

async fn links_of_the_image_do_not_move_kernel_file_systems() {
    let pod = Pod::new().await;
    // The layers over the base, each with its links.
    let cases: [(&str, &str, &[Entries<'_>]); 9] = [
        (
            "absolute",
            "/proc",
            &[&[("proc", Some("/dev/p")), ("dev/p", Some("/realproc")), ("realproc", None)]],
        ),
        (
            "relative",
            "/proc",
            &[&[("proc", Some("dev/p")), ("dev/p", Some("../realproc")), ("realproc", None)]],
        ),
        ("chain", "/proc", &[&[("proc", Some("a")), ("a", Some("b")), ("b", Some("c")), ("c", None)]]),
        ("dangling", "/proc", &[&[("proc", Some("/nowhere"))]]),
        ("upper", "/proc", &[&[("proc", None), ("realproc", None)], &[("proc", Some("realproc"))]]),
        ("sys", "/sys", &[&[("sys", Some("/dev/s")), ("dev/s", Some("/realsys")), ("realsys", None)]]),
        ("sys-relative", "/sys", &[&[("sys", Some("./realsys")), ("realsys", None)]]),
        ("dev", "/dev", &[&[("dev", Some("/realdev")), ("realdev", None)]]),
        ("dev-in-proc", "/dev", &[&[("dev", Some("proc/1"))]]),
    ];
    for (name, place, layers) in cases {
        let mut spec =
            pod.script("echo /proc/sys/kernel/core_pattern; cat /realproc/sys/kernel/core_pattern");
        for (number, entries) in layers.iter().enumerate() {
            spec.image.layers.push(layer(&pod, &format!("{name}{number}"), entries));
        }
        let error = pod.runtime.create_container(&pod.id, spec).await.unwrap_err().to_string();
        assert!(error.contains(&format!("its {place} is a symbolic link")), "{name}: {error}");
    }
    let file = pod.scratch("file");
    fs::write(file.join("proc"), "").unwrap();
    let mut spec = pod.script("true");
    spec.image.layers.push(file);
    let error = pod.runtime.create_container(&pod.id, spec).await.unwrap_err().to_string();
    assert!(error.contains("its /proc is not a directory"), "{error}");
    pod.finish().await;
}

async fn links_below_dev_do_not_matter() {
    let pod = Pod::new().await;
    let mut spec = pod.script(
        "for m in /proc /sys /dev /dev/pts /dev/shm /dev/mqueue; do \
         awk -v m=$m '$5 == m { sub(/.* - /, \"\"); print m, $1 }' /proc/self/mountinfo; done; ls /x",
    );
    let links: Entries<'_> = &[
        ("dev/pts", Some("/x")),
        ("dev/shm", Some("../x")),
        ("dev/mqueue", Some("/x")),
        ("dev/null", Some("/x/null")),
        ("x", None),
    ];
    spec.image.layers.push(layer(&pod, "links", links));
    let expected =
        "/proc proc\n/sys sysfs\n/dev tmpfs\n/dev/pts devpts\n/dev/shm tmpfs\n/dev/mqueue mqueue\n";
    assert_eq!(pod.output(spec).await, expected);
    pod.finish().await;
}

async fn the_root_is_not_writable_by_everybody() {
    let pod = Pod::new().await;
    // The modes must not depend on the umask that this test was started with.
    let mut spec = pod.script(
        "exec 2>/dev/null; stat -c %a /; touch /x && echo touched; mv /bin /b && echo moved; \
         find / -xdev -perm -0002 ! -type l ! -perm -1000; find /dev -type d -perm -0002 ! -perm -1000; true",
    );
    spec.identity.run_as_user = Some(1000);
    assert_eq!(pod.output(spec).await, "755\n");
    pod.finish().await;
}

async fn the_root_has_the_mode_of_the_image() {
    let pod = Pod::new().await;
    let mut spec = pod.script("stat -c '%a %u %g' /");
    let top = pod.scratch("top");
    fs::set_permissions(&top, fs::Permissions::from_mode(0o1775)).unwrap();
    std::os::unix::fs::chown(&top, Some(33), Some(34)).unwrap();
    spec.image.layers.push(top);
    assert_eq!(pod.output(spec).await, "1775 33 34\n");
    // No other user of the host can access what a container writes.
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let own = pod.layer_dir(&id.0);
    assert_eq!(fs::metadata(own).unwrap().mode() & 0o7777, 0o700);
    pod.finish().await;
}

/// A container that repeatedly checks every process for access to a file of the host, and for open
/// descriptors of it.
fn spy(pod: &Pod, marker: &Path) -> ContainerSpec {
    let look = format!(
        "look() {{ while :; do for p in /proc/[0-9]*; do \
           [ -e $p/root{marker} ] && echo ROOT $p; [ -e $p/cwd{marker} ] && echo CWD $p; \
           for f in $p/fd/*; do [ -e $f{marker} ] && echo FD $p; done; \
           grep -q OUTRIGGER_SECRET $p/environ && echo ENVIRON; \
           read -r a <$p/cmdline; case $a in outriggershimcontainer*) echo ARGUMENTS $a;; esac; a=; \
         done; done; }} 2>/dev/null; ",
        marker = marker.display()
    );
    let mut spec = pod.script(&format!("{look} echo ready; look & look & look"));
    spec.identity.add_capabilities = vec!["SYS_PTRACE".to_owned()];
    spec
}

/// A file of the host that no container can access.
fn marker(pod: &Pod) -> PathBuf {
    let marker = pod.scratch("host").join("marker");
    fs::write(&marker, "").unwrap();
    marker
}

async fn nothing_of_the_host_is_seen_of_a_command_on_its_way() {
    for users in BOTH_USERS {
        commands_show_nothing(users).await;
    }
}

async fn commands_show_nothing(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let mut spec = spy(&pod, &marker(&pod));
    // Joining this cgroup is slow.
    spec.resources.memory_limit_bytes = Some(1 << 30);
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "ready").await;
    for _ in 0..60 {
        assert_eq!(pod.exec(&id, "exit 3").await.code, Some(3));
    }
    assert_eq!(log_text(&log), "ready\n");
    pod.finish().await;
}

async fn nothing_of_the_host_is_seen_of_a_container_on_its_way() {
    for users in BOTH_USERS {
        containers_show_nothing(users).await;
    }
}

async fn containers_show_nothing(users: UserNamespace) {
    let pod = Pod::with(|spec| {
        spec.share_pid = true;
        spec.user_namespace = users;
    })
    .await;
    let spec = spy(&pod, &marker(&pod));
    let log = spec.log_path.clone();
    pod.start(spec).await.unwrap();
    pod.saw(&log, "ready").await;
    for _ in 0..15 {
        let mut spec = pod.script("exit 3");
        spec.resources.memory_limit_bytes = Some(1 << 30);
        assert_eq!(pod.run(spec).await.0.code, 3);
    }
    assert_eq!(log_text(&log), "ready\n");
    pod.finish().await;
}

/// Attacks like CVE-2019-5736.
async fn the_program_of_the_shim_cannot_be_written() {
    let before = fs::metadata("/proc/self/exe").unwrap();
    let pod = Pod::new().await;
    let entry = pod.scratch("entry");
    fs::write(entry.join("entry"), "#!/proc/self/exe\n").unwrap();
    fs::set_permissions(entry.join("entry"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/proc/self/exe", entry.join("link")).unwrap();
    for program in ["/entry", "/link", "/proc/self/exe"] {
        let mut spec = pod.script("");
        spec.image.layers.push(entry.clone());
        spec.command = Some(vec![program.to_owned()]);
        // The program cannot run there, because it finds neither its libraries nor its arguments.
        if let Ok(id) = pod.start(spec).await {
            assert_ne!(pod.wait(&id).await.code, 0, "{program}");
        }
    }
    // A program cannot be written to while it runs. Its mode could be changed, unless it is read-only. A
    // process that gets access to it, for example through a container that is still the shim, can therefore
    // not write to it later either.
    let id = pod.runtime.create_container(&pod.id, pod.script("true")).await.unwrap();
    for process in [pod.shim(&id), pod.first_process(&id)] {
        let program = format!("/proc/{process}/exe");
        let found = fs::metadata(&program).unwrap();
        assert_eq!((found.dev(), found.ino()), (before.dev(), before.ino()), "it is still the shim");
        let error = fs::set_permissions(&program, found.permissions()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
    }
    pod.runtime.remove_container(&id).await.unwrap();
    let mut spec = pod.script(
        "echo ready; while :; do for p in /proc/[0-9]*; do case \"$(readlink $p/exe)\" in \
         */busybox|'') ;; *) true >> $p/exe && echo WRITABLE ;; esac; done; done 2>/dev/null",
    );
    spec.identity.add_capabilities = vec!["SYS_PTRACE".to_owned(), "SYS_ADMIN".to_owned()];
    spec.resources.memory_limit_bytes = Some(1 << 30);
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "ready").await;
    for _ in 0..30 {
        assert_eq!(pod.exec(&id, "exit 3").await.code, Some(3));
    }
    assert_eq!(log_text(&log), "ready\n");
    let after = fs::metadata("/proc/self/exe").unwrap();
    assert_eq!((before.len(), before.mtime_nsec()), (after.len(), after.mtime_nsec()));
    pod.finish().await;
}

/// The kernel log: a device that exists on every machine and is in no container's allow list. It can be
/// opened for writing without any capability.
const KMSG: (u32, u32) = (1, 11);

/// Runs on machines with all kinds of cgroups, and with none (see `machines`).
async fn devices_of_images_volumes_and_mknod_are_closed() {
    for users in BOTH_USERS {
        devices_are_closed(users).await;
    }
}

async fn devices_are_closed(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let (image, volume) = (pod.scratch("image"), pod.scratch("volume"));
    for dir in [&image, &volume] {
        let kind = rustix::fs::FileType::CharacterDevice;
        let device = rustix::fs::makedev(KMSG.0, KMSG.1);
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("node"), kind, mode, device).unwrap();
    }
    let script = "for n in /node /data/node /tmp/n /data/n /dev/n; do \
                  [ -e $n ] || mknod $n c 1 11; (: < $n) && echo OPENED $n; [ -e $n ] && (: >> $n) && echo OPENED $n; done \\
                  2>/dev/null; \
                  (: < /dev/zero) && (: > /dev/null) && echo usable";
    let spec = |privileged: bool, add: &[&str]| {
        let mut spec = pod.script(script);
        spec.image.layers.push(image.clone());
        spec.mounts = vec![Mount {
            source: volume.clone(),
            target: "/data".into(),
            read_only: false,
            propagation: Propagation::Private,
        }];
        spec.identity.privileged = privileged;
        spec.identity.add_capabilities = add.iter().map(|name| (*name).to_owned()).collect();
        spec
    };
    assert_eq!(pod.output(spec(false, &[])).await, "usable\n");
    let id = pod.start(ContainerSpec { command: pod.script("sleep 100").command, ..spec(false, &[]) }).await;
    assert_eq!(String::from_utf8(pod.exec(&id.unwrap(), script).await.output).unwrap(), "usable\n");
    let has_cgroups = ["unified/cgroup.procs", "devices/cgroup.procs", "cgroup.procs"]
        .iter()
        .any(|path| Path::new("/sys/fs/cgroup").join(path).exists());
    for add in ["MKNOD", "SYS_ADMIN"] {
        match pod.start(spec(false, &[add])).await {
            Ok(id) if has_cgroups => drop(pod.wait(&id).await),
            Err(error) if !has_cgroups => {
                assert!(error.to_string().contains(&format!("capability {add} is refused")), "{error}");
            }
            result => panic!("{add}: {result:?}"),
        }
    }
    if !has_cgroups {
        let mut spec = pod.script("grep ^CapBnd /proc/self/status");
        spec.identity.run_as_user = Some(0);
        assert!(pod.output(spec).await.contains("a00425fb"), "no MKNOD");
    }
    pod.finish().await;
}

async fn standard_input_is_not_the_host_s() {
    let pod = Pod::new().await;
    let script = "stat -L -c '%d:%i %t:%T' /proc/self/fd/0; stat -c '%d:%i %t:%T' /dev/null";
    let same = |output: &str| {
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].ends_with(" 1:3"), "{output}");
    };
    same(&pod.output(pod.script(script)).await);
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    same(&String::from_utf8(pod.exec(&id, script).await.output).unwrap());
    // The container replaces its own /dev/null. Commands still get the original device, not the host's.
    let gone =
        "rm /dev/null; mknod /dev/null p; stat -L -c '%t:%T %h' /proc/self/fd/0; chmod 600 /proc/self/fd/0";
    assert_eq!(String::from_utf8(pod.exec(&id, gone).await.output).unwrap(), "1:3 0\n");
    let again = pod.exec(&id, "stat -L -c '%t:%T %a' /proc/self/fd/0").await;
    assert_eq!(String::from_utf8(again.output).unwrap(), "1:3 600\n");
    assert_eq!(fs::metadata("/dev/null").unwrap().mode() & 0o777, 0o666);
    pod.finish().await;
}

async fn session_keyrings_are_the_container_s_own() {
    let pod = Pod::new().await;
    // A user without keys sees only those of its session.
    let own = "awk '$8 == \"keyring\" && $9 ~ /^_ses:/ { print $1 }' /proc/keys";
    let spec = |script: &str| {
        let mut spec = pod.script(script);
        spec.identity.seccomp = Seccomp::Unconfined;
        spec.identity.run_as_user = Some(54_321);
        spec.mask_paths = false;
        spec
    };
    let first = pod.output(spec(own)).await;
    let id = pod.start(spec("sleep 100")).await.unwrap();
    let second = String::from_utf8(pod.exec(&id, own).await.output).unwrap();
    for serials in [&first, &second] {
        assert_eq!(serials.lines().count(), 1, "one session keyring: {serials:?}");
    }
    assert_ne!(first, second);
    pod.finish().await;
}
