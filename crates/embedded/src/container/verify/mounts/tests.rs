use super::*;
use crate::container::root::{attach, new_filesystem};
use crate::sys;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};

/// The mounts of a container: 1 is `/`, 2 is /proc, 3 is /dev, and 50 is a volume with a mount 51 below it.
const LIST: &str = "\
1 900 0:30 / / ro,relatime - overlay overlay rw,lowerdir=/l
2 1 0:31 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
3 1 0:32 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k
4 3 0:33 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw
5 3 0:34 / /dev/shm rw,nosuid,nodev,noexec,relatime master:7 - tmpfs shm rw
6 2 0:31 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
7 2 0:32 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw
8 2 0:35 / /proc/acpi ro,relatime - tmpfs tmpfs ro
50 1 8:1 /v /run/data ro,nodev,relatime - ext4 /dev/sda rw
51 50 8:2 / /run/data/x\\040y ro,nodev,relatime - ext4 /dev/sdb rw
";

fn list(text: &str) -> Vec<Entry> {
    text.lines().map(|line| parse(line).unwrap()).collect()
}

fn directory(mount: u64) -> Option<Seen> {
    Some(Seen { mount, is_dir: true, device: None })
}

fn device(mount: u64, number: (u32, u32)) -> Option<Seen> {
    Some(Seen { mount, is_dir: false, device: Some(number) })
}

fn meant() -> Plan {
    let place = |point: &str, parent, content, flags, is_new, seen| Place {
        point: point.to_owned(),
        parent,
        id: None,
        content,
        flags,
        is_new,
        seen,
    };
    let mount = |kind| Content::Mount { kind: Some(kind), required: true };
    let terminals = Flags(Flags::NOSUID.0 | Flags::NOEXEC.0);
    let none = Flags::NONE;
    Plan {
        root: 1,
        root_flags: Flags::RO,
        root_seen: 1,
        places: vec![
            Place { id: Some(2), ..place("/proc", 1, mount("proc"), Flags::QUIET, true, directory(2)) },
            Place { id: Some(3), ..place("/dev", 1, mount("tmpfs"), Flags::NOSUID, true, directory(3)) },
            place("/dev/pts", 3, mount("devpts"), terminals, true, directory(4)),
            place("/dev/shm", 3, mount("tmpfs"), Flags::QUIET, false, directory(5)),
            place("/dev/null", 3, Content::Node(1, 3), none, false, device(3, (1, 3))),
            place("/proc/sys", 2, Content::ReadOnly, none, false, directory(6)),
            place("/proc/kcore", 2, Content::Mask, none, false, device(7, (1, 3))),
            place("/proc/acpi", 2, Content::Mask, none, false, directory(8)),
            place("/proc/scsi", 2, Content::Mask, none, false, None),
        ],
        volumes: vec![VolumePlace {
            target: "/var/run/data".into(),
            id: 50,
            flags: Flags(Flags::RO.0 | Flags::NODEV.0),
            propagation: Propagation::Private,
            seen: Some(50),
        }],
        pieces: false,
        host_trees: Vec::new(),
        mounted_devices: None,
    }
}

#[test]
fn what_was_meant_is_no_difference() {
    assert_eq!(compare(&meant(), &list(LIST)), Ok(()));
}

/// Each row changes the list of mounts in one way.
#[test]
fn differences_of_mounts_are_found() {
    let more = |line: &str| format!("{LIST}{line}\n");
    let less = |id: &str| -> String {
        LIST.lines().filter(|line| !line.starts_with(id)).map(|line| format!("{line}\n")).collect()
    };
    let cases: Vec<(String, &str)> = vec![
        (more("90 1 8:1 / /mnt rw - ext4 /dev/sda rw"), "an unexpected ext4 is mounted at /mnt"),
        (
            more("90 3 0:9 / /dev/hugepages rw - hugetlbfs none rw"),
            "an unexpected hugetlbfs is mounted at /dev/hugepages",
        ),
        (
            more("90 1 0:9 / /proc rw,nosuid,nodev,noexec - proc proc rw"),
            "an unexpected proc is mounted at /proc",
        ),
        (
            more("90 2 0:9 / /proc rw,nosuid,nodev,noexec - proc proc rw"),
            "an unexpected proc is mounted at /proc",
        ),
        (
            more("90 4 0:33 / /dev/pts rw,nosuid,noexec - devpts devpts rw"),
            "an unexpected devpts is mounted at /dev/pts",
        ),
        (more("90 1 0:30 / / rw - overlay outrigger-piece rw"), "an unexpected overlay is mounted at /"),
        (more("90 6 0:31 /sys /proc/sys rw - proc proc rw"), "an unexpected proc is mounted at /proc/sys"),
        (less("1 "), "its root file system is not mounted"),
        (less("2 "), "nothing is mounted at /proc"),
        (less("4 "), "nothing is mounted at /dev/pts"),
        (less("6 "), "/proc/sys is not read-only"),
        (less("7 "), "/proc/kcore is not hidden"),
        (less("8 "), "/proc/acpi is not hidden"),
        (less("50 "), "the volume at /var/run/data is not mounted"),
        (LIST.replace("/ / ro,", "/ / rw,"), "its root is mounted with no flags instead of ro"),
        (LIST.replace("/ / ro,relatime", "/ / ro shared:1"), "mounts in its root reach the host"),
        (
            LIST.replace("/proc rw,nosuid,", "/proc rw,"),
            "/proc is mounted with nodev,noexec instead of nosuid",
        ),
        (
            LIST.replace("/dev rw,nosuid", "/dev ro,nosuid"),
            "/dev is mounted with ro,nosuid instead of nosuid",
        ),
        (LIST.replace("- devpts", "- tmpfs"), "/dev/pts is a tmpfs instead of a devpts"),
        (LIST.replace("master:7", "shared:7"), "/dev/shm shares its mounts"),
        (LIST.replace("/dev rw,nosuid", "/dev rw,nosuid master:3"), "/dev shares its mounts"),
        (
            LIST.replace("/proc/sys ro", "/proc/sys rw"),
            "/proc/sys is mounted with nosuid,nodev,noexec instead",
        ),
        (LIST.replace("/proc/acpi ro", "/proc/acpi rw"), "/proc/acpi is mounted with no flags instead of ro"),
        (LIST.replace("/data ro,", "/data rw,"), "/var/run/data is mounted with nodev instead of ro,nodev"),
        (LIST.replace("y ro,nodev", "y ro"), "mounted with ro instead of ro,nodev (at /run/data/x\\040y)"),
        (LIST.replace("y ro,nodev,relatime", "y ro,nodev master:4"), "shares its mounts with the host"),
    ];
    for (text, expected) in cases {
        let found = compare(&meant(), &list(&text)).expect_err(expected).to_string();
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
}

/// Each row changes what is visible, or what is intended, in one way.
#[test]
fn differences_of_what_is_seen_are_found() {
    let at = |point: &str, seen: Option<Seen>| {
        let mut plan = meant();
        plan.places.iter_mut().find(|place| place.point == point).unwrap().seen = seen;
        plan
    };
    let volume = |seen| {
        let mut plan = meant();
        plan.volumes[0].seen = seen;
        plan
    };
    for (plan, expected) in [
        (Plan { root_seen: 900, ..meant() }, "something else is the root"),
        (at("/dev/null", device(3, (1, 1))), "/dev/null is not the device 1:3"),
        (at("/dev/null", device(900, (1, 3))), "/dev/null is not the device 1:3"),
        (at("/dev/null", None), "/dev/null is not the device 1:3"),
        (at("/dev/pts", directory(3)), "something else is mounted over /dev/pts"),
        (at("/proc", directory(900)), "something else is mounted over /proc"),
        (at("/proc/kcore", device(7, (1, 1))), "/proc/kcore is not hidden"),
        (
            at("/proc/kcore", Some(Seen { mount: 7, is_dir: false, device: None })),
            "/proc/kcore is not hidden",
        ),
        (at("/proc/scsi", directory(2)), "/proc/scsi is not hidden"),
        (at("/dev/shm", None), "/dev/shm is mounted but cannot be seen"),
        (volume(Some(1)), "something other than the volume is at /var/run/data"),
        (volume(None), "something other than the volume is at /var/run/data"),
    ] {
        let found = compare(&plan, &list(LIST)).expect_err(expected).to_string();
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
}

/// A volume that is not at its target was moved by somebody who can write there. Only our own code can cause
/// the other differences.
#[test]
fn a_lost_race_is_not_called_an_internal_error() {
    let lost: String =
        LIST.lines().filter(|line| !line.starts_with("50 ")).map(|l| format!("{l}\n")).collect();
    let mut covered = meant();
    covered.volumes[0].seen = Some(1);
    for (plan, text) in [(meant(), lost.as_str()), (covered, LIST)] {
        let found = compare(&plan, &list(text)).unwrap_err().to_string();
        assert!(found.starts_with("refused to start the container: "), "{found}");
        assert!(found.contains("may be an attack") && !found.contains("report"), "{found}");
    }
    let ours = compare(&meant(), &list(&LIST.replace("- devpts", "- tmpfs"))).unwrap_err().to_string();
    assert!(ours.starts_with("internal error: ") && ours.contains("please report this"), "{ours}");
}

/// Special requests of pods, and deviations without root, are not differences.
#[test]
fn what_pods_ask_for_is_no_difference() {
    let volume = |target: &str, id| VolumePlace {
        target: target.into(),
        id,
        flags: Flags::NONE,
        propagation: Propagation::Private,
        seen: Some(id),
    };
    let with = |volumes: Vec<VolumePlace>, change: &dyn Fn(&mut Plan)| {
        let mut plan = meant();
        plan.volumes.extend(volumes);
        change(&mut plan);
        plan
    };
    let see = |plan: &mut Plan, point: &str, id| {
        plan.places.iter_mut().find(|place| place.point == point).unwrap().seen = directory(id);
    };
    let free = |plan: &mut Plan| plan.volumes[0].propagation = Propagation::HostToContainer;
    let quiet = "rw,nosuid,nodev,noexec";
    for (name, plan, more) in [
        (
            "over /dev/shm",
            with(vec![volume("/dev/shm", 60)], &|plan| see(plan, "/dev/shm", 60)),
            "60 5 0:9 / /dev/shm rw - tmpfs x rw\n".to_owned(),
        ),
        (
            "over a volume",
            with(vec![volume("/run", 60)], &|plan| plan.volumes[0].seen = None),
            "60 1 0:9 / /run rw - tmpfs x rw\n".to_owned(),
        ),
        (
            "from the host",
            with(vec![], &free),
            "60 50 0:9 / /run/data/new rw master:9 - tmpfs x rw\n".to_owned(),
        ),
        (
            "a mounted node",
            with(vec![], &|plan| plan.places[4].seen = device(60, (1, 3))),
            "60 3 0:9 /null /dev/null ro - devtmpfs x rw\n".to_owned(),
        ),
        (
            "a piece",
            with(vec![], &|plan| plan.pieces = true),
            "60 1 0:9 / /usr ro - overlay outrigger-piece rw\n".to_owned(),
        ),
        (
            "of the host's /proc",
            with(vec![], &|plan| plan.host_trees = vec![(2, Flags::QUIET)]),
            format!("60 6 0:9 / /proc/sys/fs/binfmt_misc {quiet} - autofs x rw\n"),
        ),
        (
            "devices without root",
            with(vec![], &|plan| plan.mounted_devices = Some(3)),
            "60 3 0:9 /fuse /dev/fuse ro - devtmpfs x rw\n".to_owned(),
        ),
    ] {
        assert_eq!(compare(&plan, &list(&format!("{LIST}{more}"))), Ok(()), "{name}");
    }
    let piece = format!("{LIST}60 1 0:9 / /usr rw - overlay outrigger-piece rw\n");
    assert!(compare(&with(vec![], &|plan| plan.pieces = true), &list(&piece)).is_err(), "a writable piece");
    let node = format!("{LIST}60 3 0:9 /null /dev/null rw - devtmpfs x rw\n");
    let seen = |plan: &mut Plan| plan.places[4].seen = device(60, (1, 3));
    assert_eq!(
        compare(&with(vec![], &seen), &list(&node)).unwrap_err(),
        Difference::Setup("/dev/null is the host's, and can be changed".to_owned())
    );
    let node = format!("{LIST}60 3 0:9 /fuse /dev/fuse rw - devtmpfs x rw\n");
    let devices = |plan: &mut Plan| plan.mounted_devices = Some(3);
    assert!(
        compare(&with(vec![], &devices), &list(&node)).is_err(),
        "a device of the host that can be changed"
    );
}

#[test]
fn what_is_no_list_of_mounts_is_refused() {
    for line in ["", "1 2 0:1 / /", "x 2 0:1 / / rw - a b c", "1 2 0:1 / / rw a b c", "1 2 0:1 / / rw - a"] {
        assert_eq!(parse(line), None, "{line:?}");
    }
}

/// Runs in a new mount namespace, on a new thread, with a tmpfs as the root.
fn in_new_root(test: impl FnOnce(&Host, &Root) + Send + 'static) {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let body = move || {
        // Threads share root and working directory by default.
        sys::unshare(libc::CLONE_FS | libc::CLONE_NEWNS).unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let root = Root::new(new_filesystem("tmpfs", &[], MountAttrFlags::empty()).unwrap());
        let mut host = Host::open().unwrap();
        // The path of the thread, not of the whole process.
        host.process =
            rustix::fs::open("/proc/thread-self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        attach(root.fd(), host.root.as_fd()).unwrap();
        test(&host, &root);
    };
    std::thread::spawn(body).join().unwrap();
}

fn enter(root: &Root) {
    rustix::process::fchdir(root.fd()).unwrap();
    rustix::process::pivot_root(".", ".").unwrap();
    unmount(".", UnmountFlags::DETACH).unwrap();
    rustix::process::chdir("/").unwrap();
}

fn only_a_root(root: &Root) -> Plan {
    let id = mount_of(root.fd()).unwrap();
    Plan {
        root: id,
        root_flags: Flags::NONE,
        root_seen: stat_mount(CWD, "/").unwrap().unwrap().mount,
        places: Vec::new(),
        volumes: Vec::new(),
        pieces: false,
        host_trees: Vec::new(),
        mounted_devices: None,
    }
}

#[test]
fn a_real_mount_too_many_is_found_as_root() {
    in_new_root(|host, root| {
        enter(root);
        host.check_gone().unwrap();
        assert_eq!(compare(&only_a_root(root), &host.entries().unwrap()), Ok(()));
        let target = root.plain_dir("left").unwrap();
        let left = new_filesystem("tmpfs", &[], MountAttrFlags::empty()).unwrap();
        attach(left.as_fd(), target.as_fd()).unwrap();
        let found = compare(&only_a_root(root), &host.entries().unwrap()).unwrap_err();
        assert_eq!(found, Difference::Setup("an unexpected tmpfs is mounted at /left".to_owned()));
        unmount("/left", UnmountFlags::DETACH).unwrap();
        assert_eq!(compare(&only_a_root(root), &host.entries().unwrap()), Ok(()));
        let read_only = Plan { root_flags: Flags::RO, ..only_a_root(root) };
        assert!(
            compare(&read_only, &host.entries().unwrap()).unwrap_err().to_string().contains("instead of ro")
        );
        let attr = sys::MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..sys::MountAttr::default() };
        sys::mount_setattr(root.fd(), false, attr).unwrap();
        assert_eq!(compare(&read_only, &host.entries().unwrap()), Ok(()));
    });
}

/// If a root was only entered with chroot, all mounts of the host remain.
#[test]
fn a_host_that_is_still_mounted_is_found_as_root() {
    in_new_root(|host, root| {
        rustix::process::fchdir(root.fd()).unwrap();
        rustix::process::chroot(".").unwrap();
        let entries = host.entries().unwrap();
        assert_eq!(compare(&only_a_root(root), &entries), Ok(()), "nothing of it is in the list");
        let fault = host.check_gone().unwrap_err();
        assert!(fault.text.contains("the host's file systems are still mounted"), "{}", fault.text);
    });
}
