//! Checks whether this machine can run pods without a container runtime, by trying.
//!
//! Objects for a check are created in namespaces of a thread that ends with the check, or are removed at
//! once. The machine is left unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use rustix::thread::UnshareFlags;

use crate::cgroup::Hierarchies;
use crate::rootless::{self, find_program, standing};
use crate::sys::errno_text;
use outrigger_runtime::doctor::{Finding, Level, finding};

/// The oldest kernel that has all system calls of the embedded runtime. The newest of them is mount_setattr.
const KERNEL_MIN: (u32, u32) = (5, 12);
/// With less free space than this, there is no room for an image.
const DISK_FAIL: u64 = 64 << 20;
/// Less free space than this will soon be used up.
const DISK_WARN: u64 = 1 << 30;

/// The advice if nothing is wrong with the machine.
const AS_ROOT: &str = "run it as root, for example with sudo";

/// Checks the machine. `state_dir` is where the state would be kept; it does not have to exist. For an
/// ordinary user, call [`rootless::enter`] first, so that this checks what the user can do.
pub fn examine(state_dir: &Path) -> Vec<Finding> {
    let place = existing(state_dir);
    let mut all = vec![kernel(&rustix::system::uname().release().to_string_lossy()), root()];
    if standing().is_rootless() {
        all.push(ids());
    }
    all.push(cgroups_here());
    all.push(overlay(&place));
    all.push(namespaces());
    all.push(seccomp());
    if standing().is_rootless() {
        all.extend([network(), uplink()]);
    } else {
        all.extend([user_namespaces(&place), network(), forwarding()]);
    }
    all.push(disk(state_dir, &place));
    all
}

/// The directory itself, or its nearest existing parent.
fn existing(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn kernel(release: &str) -> Finding {
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let found = format!("Linux {release}");
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < KERNEL_MIN => {
            let means = format!("too old: {}.{} or later is needed", KERNEL_MIN.0, KERNEL_MIN.1);
            finding("kernel", Level::Fail, found, means)
                .remedy("update the kernel, or run pods on a container runtime with --runtime cri")
        }
        (Some(_), Some(_)) => finding("kernel", Level::Ok, found, "has everything that is needed"),
        _ => finding("kernel", Level::Warn, found, "its version cannot be read; it may lack something")
            .remedy("try `outrigger run`; if system calls are missing, use --runtime cri"),
    }
}

fn root() -> Finding {
    let uid = rustix::process::geteuid();
    match (rootless::has_powers(), standing().is_rootless()) {
        (true, false) => {
            finding("privileges", Level::Ok, "root", "can create namespaces, mounts and cgroups")
        }
        (true, true) => finding(
            "privileges",
            Level::Ok,
            format!("user {}, with a user namespace of its own", rootless::real_uid()),
            "pods run without root; docs/guide/rootless.md says what is different",
        ),
        (false, _) if uid.is_root() => finding(
            "privileges",
            Level::Fail,
            "root without CAP_SYS_ADMIN",
            "namespaces, mounts and cgroups need that capability or a user namespace, and both are refused",
        )
        .remedy("if this is a container, make it privileged"),
        (false, _) => {
            let found = format!("user {}", uid.as_raw());
            let why =
                rootless::why_not_rootless().unwrap_or_else(|| "user namespaces are refused".to_owned());
            finding("privileges", Level::Fail, found, why).remedy(AS_ROOT)
        }
    }
}

/// The user ids available to containers without root.
fn ids() -> Finding {
    let count = standing().uids().count().min(standing().gids().count());
    if !standing().has_one_id() {
        let found = format!("{count} for containers, by /etc/subuid and /etc/subgid");
        return finding("ids", Level::Ok, found, "containers can run as any user");
    }
    let missing = match rootless::ranges(rootless::real_uid()) {
        Err(missing) => missing.to_string(),
        Ok(_) => {
            "newuidmap refuses the ranges of /etc/subuid and /etc/subgid: it must belong to root and be \
                  set-user-id (reinstall the package uidmap)"
                .to_owned()
        }
    };
    finding(
        "ids",
        Level::Warn,
        "only this user's own",
        "all containers of a pod have the same user (which is this user), and all files of images belong to it",
    )
    .remedy(missing)
}

/// The pods' connection to the network, without root.
fn uplink() -> Finding {
    match ["pasta", "slirp4netns"].into_iter().find(|name| find_program(name).is_some()) {
        Some(name) => finding("uplink", Level::Ok, name, "pods can reach other machines"),
        None => finding(
            "uplink",
            Level::Warn,
            "neither pasta nor slirp4netns is installed",
            "pods can reach only each other",
        )
        .remedy("install the package passt (pasta) or slirp4netns, or run with --network host"),
    }
}

/// Whether limits of containers work on this machine.
pub fn cgroups_here() -> Finding {
    if standing().is_rootless() {
        return cgroups_of_user();
    }
    cgroups(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Whether the number of processes of containers can be limited, as far as this is known without trying.
pub fn counts_processes() -> bool {
    if standing().is_rootless() {
        return Hierarchies::delegated().0.iter().any(|name| name == "pids");
    }
    let may_write = |dir: &str| rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    match controllers.split_whitespace().any(|name| name == "pids") {
        true => may_write("/sys/fs/cgroup"),
        false => may_write("/sys/fs/cgroup/pids"),
    }
}

fn cgroups_of_user() -> Finding {
    let (controllers, unified) = Hierarchies::delegated();
    if !controllers.is_empty() {
        let found = format!("{} delegated to this user", controllers.join(", "));
        return finding("cgroups", Level::Ok, found, "these limits of containers apply");
    }
    finding("cgroups", Level::Warn, "not delegated to this user", "limits of containers do not apply").remedy(match unified {
        true => "start it with `systemd-run --user --scope -p Delegate=yes outrigger run ...`",
        false => {
            "run as root; or have root give this user a cgroup of each controller (version 1), or boot with cgroup \
             version 2"
        }
    })
}

fn cgroups(mountinfo: &str) -> Finding {
    let (mut unified, mut v1) = (Vec::new(), Vec::new());
    for line in mountinfo.lines() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4) else { continue };
        match source.split(' ').next() {
            Some("cgroup2") => unified.push(PathBuf::from(point)),
            Some("cgroup") => v1.push(PathBuf::from(point)),
            _ => {}
        }
    }
    let found = match (unified.is_empty(), v1.is_empty()) {
        (false, true) => "version 2",
        (false, false) => "versions 1 and 2 side by side",
        (true, false) => "version 1",
        (true, true) => {
            return finding("cgroups", Level::Warn, "none", "limits of containers do not apply")
                .remedy("mount them: mount -t cgroup2 none /sys/fs/cgroup");
        }
    };
    // Grouped by the kernel's error, because usually all have the same one.
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for dir in unified.iter().chain(&v1) {
        if let Err(error) = writable(dir) {
            refused.entry(errno_text(&error)).or_default().push(dir.display().to_string());
        }
    }
    if refused.is_empty() {
        return finding("cgroups", Level::Ok, format!("{found}, writable"), "limits of containers apply");
    }
    let refused: Vec<String> =
        refused.iter().map(|(why, dirs)| format!("{why} in {}", dirs.join(", "))).collect();
    let means = format!("limits of containers do not apply: {}", refused.join("; "));
    finding("cgroups", Level::Warn, format!("{found}, not writable"), means)
        .remedy("run as root, and in a container with /sys/fs/cgroup mounted writable")
}

/// Whether a cgroup can be created in a directory.
fn writable(dir: &Path) -> io::Result<()> {
    let own = dir.join(format!("outrigger-doctor-{}", std::process::id()));
    fs::create_dir(&own)?;
    fs::remove_dir(&own)
}

/// Tries something in new namespaces, which end with the thread.
fn apart<T: Send>(kinds: UnshareFlags, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: only namespaces are unshared. No thread loses the file descriptor table that it relies
            // on.
            unsafe { rustix::thread::unshare_unsafe(kinds)? };
            f()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the try panicked")))
    })
}

fn overlay(place: &Path) -> Finding {
    let dir = place.join(format!(".outrigger-doctor-{}", std::process::id()));
    let result = try_overlay(&dir);
    let cleaned = fs::remove_dir_all(&dir);
    match result.and(cleaned) {
        Ok(()) => finding(
            "overlayfs",
            Level::Ok,
            format!("works in {}", place.display()),
            "containers share the files of their images",
        ),
        Err(error) => finding(
            "overlayfs",
            Level::Warn,
            format!("refused in {}: {}", place.display(), errno_text(&error)),
            "every container gets a copy of its image: slower, and more space is used",
        )
        .remedy(match error.kind() {
            io::ErrorKind::PermissionDenied => AS_ROOT,
            _ => "choose a --state-dir on a file system such as ext4, xfs or tmpfs, not itself an overlay; load the module with modprobe overlay",
        }),
    }
}

fn try_overlay(dir: &Path) -> io::Result<()> {
    for part in ["lower", "upper", "work", "root"] {
        fs::create_dir_all(dir.join(part))?;
    }
    fs::write(dir.join("lower/file"), "below")?;
    let options = format!(
        "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work{1}",
        dir.to_str().ok_or_else(|| io::Error::other("its path is not text"))?,
        if standing().is_rootless() { ",userxattr" } else { "" }
    );
    let options = std::ffi::CString::new(options)?;
    apart(UnshareFlags::NEWNS, || {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let target = dir.join("root");
        mount("overlay", &target, "overlay", MountFlags::empty(), options.as_c_str())?;
        let tried = fs::write(target.join("file"), "above");
        unmount(&target, UnmountFlags::DETACH)?;
        tried
    })
}

fn namespaces() -> Finding {
    let kinds = [
        ("mount", UnshareFlags::NEWNS),
        ("pid", UnshareFlags::NEWPID),
        ("network", UnshareFlags::NEWNET),
        ("ipc", UnshareFlags::NEWIPC),
        ("uts", UnshareFlags::NEWUTS),
        ("cgroup", UnshareFlags::NEWCGROUP),
    ];
    let refused: Vec<String> = kinds
        .into_iter()
        .filter_map(|(name, kind)| Some(format!("{name} ({})", errno_text(&apart(kind, || Ok(())).err()?))))
        .collect();
    if refused.is_empty() {
        let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        return finding("namespaces", Level::Ok, names.join(", "), "containers are isolated from each other");
    }
    let found = format!("refused: {}", refused.join(", "));
    finding("namespaces", Level::Fail, found, "containers cannot be isolated")
        .remedy("run as root; if this is a container, make it privileged (CAP_SYS_ADMIN)")
}

fn seccomp() -> Finding {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "errno") {
        return finding("seccomp", Level::Ok, "available", "system calls of containers can be filtered");
    }
    let means = "containers whose seccompProfile asks for a filter cannot start";
    finding("seccomp", Level::Warn, "not available", means)
        .remedy("use a kernel with CONFIG_SECCOMP_FILTER, or seccompProfile type: Unconfined")
}

/// Tries whether pods can have their own user ids.
fn user_namespaces(place: &Path) -> Finding {
    match crate::userns::try_here(place) {
        Ok(()) => finding(
            "user namespaces",
            Level::Ok,
            "available",
            "root in a container has no rights on this machine, except in pods that need its users",
        ),
        Err(why) => finding(
            "user namespaces",
            Level::Warn,
            why.to_string(),
            "root in containers is root on this machine, and pods with hostUsers: false are refused",
        )
        .remedy(
            "use Linux 5.19 or newer, a --state-dir on ext4, xfs, btrfs or tmpfs, and a limit in \
             /proc/sys/user/max_user_namespaces that is not 0",
        ),
    }
}

fn network() -> Finding {
    let tried = apart(UnshareFlags::NEWNET, || {
        for kind in ["bridge", "veth"] {
            add_link(kind).map_err(|e| io::Error::other(format!("cannot create a {kind} interface: {e}")))?;
        }
        Ok(())
    });
    match tried {
        Ok(()) => finding(
            "network",
            Level::Ok,
            "bridge and veth interfaces can be created",
            "every pod gets its own address",
        ),
        Err(error) => finding(
            "network",
            Level::Fail,
            errno_text(&error),
            "pods cannot get their own address",
        )
        .remedy(match error.kind() {
            io::ErrorKind::PermissionDenied => AS_ROOT,
            _ => "load the modules with modprobe bridge veth, or run with --network host or --network none",
        }),
    }
}

/// Asks the kernel for an interface, which exists as long as the network namespace.
fn add_link(kind: &str) -> io::Result<()> {
    const NEWLINK: u16 = 16;
    /// Flags of a request: it is answered, and creates something new.
    const FLAGS: u16 = 0x1 | 0x4 | 0x200 | 0x400;
    const LINKINFO: u16 = 18;
    const INFO_KIND: u16 = 1;
    let attribute = |number: u16, value: &[u8]| {
        let mut out = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        out.extend(number.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    };
    // The header of the link is empty, so that the kernel chooses name and number.
    let mut body = vec![0; 16];
    body.extend(attribute(LINKINFO, &attribute(INFO_KIND, kind.as_bytes())));
    let mut message = ((body.len() + 16) as u32).to_ne_bytes().to_vec();
    message.extend([NEWLINK, FLAGS].map(u16::to_ne_bytes).concat());
    message.extend([0; 8]);
    message.extend(body);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    match answer[..length].get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("the kernel's answer is too short")),
    }
}

fn forwarding() -> Finding {
    let on = fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1");
    if on {
        return finding("ip forwarding", Level::Ok, "on", "pods can reach other machines");
    }
    // A run enables forwarding for its bridge. Whether it may do so can be checked without a change.
    match fs::OpenOptions::new().write(true).open("/proc/sys/net/ipv4/conf/default/forwarding") {
        Ok(_) => {
            finding("ip forwarding", Level::Ok, "off", "a run switches it on for the interfaces it needs")
        }
        Err(error) => finding(
            "ip forwarding",
            Level::Warn,
            format!("off, and cannot be switched on: {}", errno_text(&error)),
            "pods can reach only this machine and each other",
        )
        .remedy(match error.kind() {
            io::ErrorKind::PermissionDenied => AS_ROOT,
            _ => "sysctl -w net.ipv4.ip_forward=1, or run with --network host",
        }),
    }
}

fn disk(state_dir: &Path, place: &Path) -> Finding {
    let free = match rustix::fs::statvfs(place) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => {
            let found = format!("unknown for {}: {error}", place.display());
            return finding("disk space", Level::Warn, found, "images and logs may not fit")
                .remedy("choose another directory with --state-dir");
        }
    };
    let found = format!("{:.1} GiB free for {}", free as f64 / f64::from(1 << 30), state_dir.display());
    let (level, means) = match free {
        ..DISK_FAIL => (Level::Fail, "images do not fit"),
        DISK_FAIL..DISK_WARN => (Level::Warn, "room for a few images only"),
        _ => return finding("disk space", Level::Ok, found, "enough for images and logs"),
    };
    finding("disk space", level, found, means)
        .remedy("free some space, or choose another directory with --state-dir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_old_or_not() {
        let table = [
            ("6.18.44-fc", Level::Ok),
            ("5.12.0", Level::Ok),
            ("5.11.22-generic", Level::Fail),
            ("4.19", Level::Fail),
            ("strange", Level::Warn),
        ];
        for (release, expected) in table {
            assert_eq!(kernel(release).level, expected, "{release}");
        }
    }

    #[test]
    fn cgroups_that_are_not_there_are_told() {
        assert_eq!(cgroups("").level, Level::Warn);
        let missing = cgroups("1 1 0:1 / /no/such/dir rw - cgroup2 cgroup2 rw");
        assert_eq!(missing.level, Level::Warn);
        assert!(missing.means.contains("/no/such/dir"), "{}", missing.means);
    }

    #[test]
    fn a_place_that_is_not_there_is_looked_for_above() {
        assert_eq!(existing(Path::new("/proc/no/such")), Path::new("/proc"));
    }

    #[test]
    fn a_machine_that_runs_pods_is_found_fit_and_left_as_it_was() {
        if !rustix::process::geteuid().is_root() {
            // The other tests that run containers are also skipped here.
            let found = root();
            assert_eq!((found.level, found.remedy.is_some()), (Level::Fail, true));
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounts =
            || fs::read_to_string("/proc/self/mountinfo").unwrap().matches("outrigger-doctor").count();
        let found = examine(&dir.path().join("state"));
        for check in ["kernel", "privileges", "namespaces", "network"] {
            let one = found.iter().find(|f| f.check == check).unwrap();
            assert_eq!(one.level, Level::Ok, "{one:?}");
        }
        for one in found.iter().filter(|f| matches!(f.level, Level::Warn | Level::Fail)) {
            assert!(one.remedy.is_some(), "{one:?}");
        }
        assert_eq!(mounts(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
