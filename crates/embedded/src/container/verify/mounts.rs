//! Checks the mounts of a container. Each intended mount must exist once, be visible, and have its type and
//! flags. There must be no others.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::super::dev::{Dev, NODES};
use super::super::mounts::{Kernel, MASKED_PROC, MASKED_SYS, READ_ONLY_PROC, Volume};
use super::super::pieces::PIECE;
use super::super::root::{Root, relative};
use super::Difference;
use crate::fault::{Context, Fault};
use crate::protocol::ShimConfig;
use crate::{layout, rootless};
use outrigger_runtime::{Mount, Propagation};

const WHAT: &str = "cannot check the container's mounts";

/// The flags of a mount that protect something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flags(u8);

impl Flags {
    const NONE: Flags = Flags(0);
    const RO: Flags = Flags(1);
    const NOSUID: Flags = Flags(2);
    const NODEV: Flags = Flags(4);
    const NOEXEC: Flags = Flags(8);
    const QUIET: Flags = Flags(2 | 4 | 8);
    const NAMES: [(Flags, &str); 4] =
        [(Flags::RO, "ro"), (Flags::NOSUID, "nosuid"), (Flags::NODEV, "nodev"), (Flags::NOEXEC, "noexec")];

    fn parse(options: &str) -> Self {
        let bit =
            |option| Flags::NAMES.iter().find(|(_, name)| *name == option).map_or(0, |(flag, _)| flag.0);
        Flags(options.split(',').fold(0, |set, option| set | bit(option)))
    }

    fn with(self, other: Flags, when: bool) -> Self {
        if when { Flags(self.0 | other.0) } else { self }
    }

    fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::fmt::Display for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> =
            Flags::NAMES.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "no flags".to_owned() } else { names.join(",") }.as_str())
    }
}

/// One mount, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    id: u64,
    parent: u64,
    /// The part of its file system that is mounted.
    shown: String,
    /// Its mount point, with spaces and similar characters in octal.
    point: String,
    flags: Flags,
    is_shared: bool,
    is_slave: bool,
    kind: String,
    source: String,
}

/// Parses a line of `mountinfo`.
fn parse(line: &str) -> Option<Entry> {
    let (mounted, filesystem) = line.split_once(" - ")?;
    let mut fields = mounted.split(' ');
    let id = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    let _device = fields.next()?;
    let (shown, point) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    let flags = Flags::parse(fields.next()?);
    let (mut is_shared, mut is_slave) = (false, false);
    for field in fields {
        is_shared |= field.starts_with("shared:");
        is_slave |= field.starts_with("master:");
    }
    let mut filesystem = filesystem.split(' ');
    let (kind, source) = (filesystem.next()?.to_owned(), filesystem.next()?.to_owned());
    Some(Entry { id, parent, shown, point, flags, is_shared, is_slave, kind, source })
}

/// What is visible at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// The id of the mount that it is on.
    mount: u64,
    is_dir: bool,
    /// The numbers of the device, if it is a character device.
    device: Option<(u32, u32)>,
}

/// What is expected at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// A mount of this type, or of any type. It may be missing unless it is required.
    Mount { kind: Option<&'static str>, required: bool },
    /// A mask, if there is something to cover. It is an empty directory or a null device.
    Mask,
    /// A read-only mount of the path itself, if it exists.
    ReadOnly,
    /// A character device, mounted or not.
    Node(u32, u32),
}

/// A place, what is expected there, and what is visible there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    point: String,
    /// The id of the mount that it is in or on.
    parent: u64,
    /// The id of the mount itself, if known.
    id: Option<u64>,
    content: Content,
    flags: Flags,
    /// Whether it was newly created, so that it has no other flags and is in no peer group.
    is_new: bool,
    seen: Option<Seen>,
}

/// A volume, and what is visible at its target.
#[derive(Debug, Clone, PartialEq, Eq)]
struct VolumePlace {
    target: PathBuf,
    id: u64,
    flags: Flags,
    propagation: Propagation,
    /// The id of the visible mount. `None` if there is none.
    seen: Option<u64>,
}

/// The intended state, with what is visible at each place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    root: u64,
    root_flags: Flags,
    root_seen: u64,
    places: Vec<Place>,
    volumes: Vec<VolumePlace>,
    /// Whether the root file system may consist of several mounts, without root.
    pieces: bool,
    /// Mounts that may be the host's, with the mounts below them, without root.
    host_trees: Vec<(u64, Flags)>,
    /// The mount below which every device of a privileged container is a mount, without root.
    mounted_devices: Option<u64>,
}

/// Compares the mounts with the plan.
fn compare(plan: &Plan, found: &[Entry]) -> Result<(), Difference> {
    let mut rest = Vec::new();
    for entry in found {
        match plan.volume_of(entry, found) {
            Some(number) => compare_volume_mount(&plan.volumes[number], entry)?,
            None => rest.push(entry),
        }
    }
    for (number, volume) in plan.volumes.iter().enumerate() {
        compare_volume(plan, number, volume, found)?;
    }
    compare_root(plan, &mut rest)?;
    for place in &plan.places {
        compare_place(plan, place, &mut rest, found)?;
    }
    match rest.into_iter().find(|entry| !plan.allows(entry, found)) {
        Some(entry) => Err(format!("an unexpected {} is mounted at {}", entry.kind, entry.point).into()),
        None => Ok(()),
    }
}

impl Plan {
    /// The volume that a mount belongs to: the mount is the volume, or is below it.
    fn volume_of(&self, entry: &Entry, found: &[Entry]) -> Option<usize> {
        ancestors(entry, found).find_map(|id| self.volumes.iter().position(|volume| volume.id == id))
    }

    fn is_in_volume(&self, id: u64, found: &[Entry]) -> bool {
        found.iter().any(|entry| entry.id == id && self.volume_of(entry, found).is_some())
    }

    /// Whether a mount outside all places is allowed.
    fn allows(&self, entry: &Entry, found: &[Entry]) -> bool {
        let is_piece = self.pieces && entry.kind == "overlay" && entry.source == PIECE && !entry.is_shared;
        let is_piece = is_piece && entry.flags.has(self.root_flags);
        let of_host = |(id, flags): &(u64, Flags)| {
            entry.id != *id
                && entry.flags.has(*flags)
                && !entry.is_shared
                && ancestors(entry, found).any(|a| a == *id)
        };
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let is_device =
            self.mounted_devices == Some(entry.parent) && name(&entry.point) == name(&entry.shown);
        let is_device = is_device && entry.flags.has(Flags::RO);
        is_piece || is_device || self.host_trees.iter().any(of_host)
    }
}

/// The ids of a mount, its parent, and so on.
fn ancestors<'a>(entry: &Entry, found: &'a [Entry]) -> impl Iterator<Item = u64> + use<'a> {
    let mut next = Some((entry.id, entry.parent));
    // No chain of parents is longer than the list.
    (0..=found.len()).map_while(move |_| {
        let (id, parent) = next?;
        next = found
            .iter()
            .find(|above| above.id == parent && parent != id)
            .map(|above| (above.id, above.parent));
        Some(id)
    })
}

fn compare_root(plan: &Plan, rest: &mut Vec<&Entry>) -> Result<(), Difference> {
    let Some(root) = take(rest, |entry| entry.id == plan.root) else {
        return Err("its root file system is not mounted".to_owned().into());
    };
    if root.point != "/" || plan.root_seen != plan.root {
        return Err(
            format!("its root file system is at {}, and something else is the root", root.point).into()
        );
    }
    if root.is_shared {
        return Err("mounts in its root reach the host".to_owned().into());
    }
    match root.flags.has(plan.root_flags) {
        true => Ok(()),
        false => {
            Err(format!("its root is mounted with {} instead of {}", root.flags, plan.root_flags).into())
        }
    }
}

fn compare_place(
    plan: &Plan,
    place: &Place,
    rest: &mut Vec<&Entry>,
    found: &[Entry],
) -> Result<(), Difference> {
    let point = &place.point;
    let mounted = take(rest, |entry| {
        entry.point == *point && entry.parent == place.parent && place.id.is_none_or(|id| id == entry.id)
    });
    let hidden = place.seen.is_some_and(|seen| plan.is_in_volume(seen.mount, found));
    if let Content::Node(major, minor) = place.content {
        let own = |seen: Seen| seen.mount == mounted.map_or(place.parent, |entry| entry.id);
        return match place.seen {
            _ if hidden => Ok(()),
            Some(seen) if own(seen) && seen.device == Some((major, minor)) => {
                match mounted.is_none_or(|entry| entry.flags.has(Flags::RO)) {
                    true => Ok(()),
                    false => Err(format!("{point} is the host's, and can be changed").into()),
                }
            }
            _ => Err(format!("{point} is not the device {major}:{minor}").into()),
        };
    }
    let Some(entry) = mounted else {
        let exists = place.seen.is_some() && !hidden;
        return match place.content {
            Content::Mask if exists => Err(format!("{point} is not hidden").into()),
            Content::ReadOnly if exists => Err(format!("{point} is not read-only").into()),
            Content::Mount { required: true, .. } => Err(format!("nothing is mounted at {point}").into()),
            _ => Ok(()),
        };
    };
    let Some(seen) = place.seen else { return Err(format!("{point} is mounted but cannot be seen").into()) };
    if !hidden && seen.mount != entry.id {
        return Err(format!("something else is mounted over {point}").into());
    }
    compare_mount(place, seen, hidden, entry)
}

fn compare_mount(place: &Place, seen: Seen, hidden: bool, entry: &Entry) -> Result<(), Difference> {
    let point = &place.point;
    let (kind, flags) = match place.content {
        Content::Mount { kind, .. } => (kind, place.flags),
        Content::ReadOnly => (Some("proc"), Flags::RO),
        Content::Mask if hidden => (None, Flags::NONE),
        Content::Mask if seen.is_dir => (Some("tmpfs"), Flags::RO),
        _ if seen.device == Some((1, 3)) => (None, Flags::NONE),
        _ => return Err(format!("{point} is not hidden").into()),
    };
    if let Some(kind) = kind.filter(|kind| *kind != entry.kind) {
        return Err(format!("{point} is a {} instead of a {kind}", entry.kind).into());
    }
    if !entry.flags.has(flags) || place.is_new && entry.flags != flags {
        return Err(format!("{point} is mounted with {} instead of {flags}", entry.flags).into());
    }
    if entry.is_shared || place.is_new && entry.is_slave {
        return Err(format!("{point} shares its mounts with the host").into());
    }
    Ok(())
}

/// Checks a mount that is a volume or is below one.
fn compare_volume_mount(volume: &VolumePlace, entry: &Entry) -> Result<(), Difference> {
    let target = volume.target.display();
    let (may_share, may_follow) = match volume.propagation {
        Propagation::Private => (false, false),
        Propagation::HostToContainer => (false, true),
        Propagation::Bidirectional => (true, true),
    };
    if entry.is_shared && !may_share || entry.is_slave && !may_follow {
        return Err(
            format!("the volume at {target} shares its mounts with the host (at {})", entry.point).into()
        );
    }
    // Mounts that the host adds there later have the host's flags.
    if (entry.id == volume.id || !may_follow) && !entry.flags.has(volume.flags) {
        return Err(format!(
            "the volume at {target} is mounted with {} instead of {} (at {})",
            entry.flags, volume.flags, entry.point
        )
        .into());
    }
    Ok(())
}

/// Checks that the volume exists and is visible at its target, unless a later volume covers it. If the target
/// is in another volume, anyone who can write there may replace it. Removing a directory also removes what is
/// mounted on it.
fn compare_volume(
    plan: &Plan,
    number: usize,
    volume: &VolumePlace,
    found: &[Entry],
) -> Result<(), Difference> {
    let target = volume.target.display();
    let Some(own) = found.iter().find(|entry| entry.id == volume.id) else {
        return Err(Difference::Changed(format!("the volume at {target} is not mounted")));
    };
    let covers = |later: &VolumePlace| {
        let point = found.iter().find(|entry| entry.id == later.id).map(|entry| Path::new(&entry.point));
        point.is_some_and(|point| Path::new(&own.point).starts_with(point))
    };
    let is_covered = plan.volumes[number + 1..].iter().any(covers);
    let entry = volume.seen.and_then(|seen| found.iter().find(|entry| entry.id == seen));
    let is_seen = entry.and_then(|entry| plan.volume_of(entry, found)) == Some(number);
    match is_seen || is_covered {
        true => Ok(()),
        false => Err(Difference::Changed(format!("something other than the volume is at {target}"))),
    }
}

fn take<'a>(rest: &mut Vec<&'a Entry>, is_meant: impl Fn(&Entry) -> bool) -> Option<&'a Entry> {
    let at = rest.iter().position(|entry| is_meant(entry))?;
    Some(rest.remove(at))
}

/// The host's tree, kept open during the check, because the container's /proc may not show this process.
pub(in super::super) struct Host {
    root: OwnedFd,
    /// The directory of this process in the host's /proc.
    process: OwnedFd,
}

/// The parts of the container that was built.
pub(in super::super) struct Built<'a> {
    pub(in super::super) config: &'a ShimConfig,
    pub(in super::super) root: &'a Root,
    pub(in super::super) kernel: &'a Kernel,
    pub(in super::super) dev: &'a Dev,
    /// The mount ids of the volumes, in their order ([`volume_ids`]).
    pub(in super::super) volumes: &'a [u64],
    /// The directory under the mount of the container's own cgroup, if the container sees it.
    pub(in super::super) cgroup_target: Option<&'a OwnedFd>,
    pub(in super::super) nodev: bool,
}

/// The mount ids of volumes. They identify the volumes, wherever links of the image lead.
pub(in super::super) fn volume_ids(volumes: &[Volume<'_>]) -> Result<Vec<u64>, Fault> {
    volumes.iter().map(|volume| mount_of(volume.tree.as_fd()).creating(|| WHAT)).collect()
}

impl Host {
    /// Opens the host's tree. The caller's root must be the host's, and the caller must be the process that
    /// makes the check.
    pub(in super::super) fn open() -> Result<Self, Fault> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = rustix::fs::open("/proc/self", flags, Mode::empty()).creating(|| WHAT)?;
        Ok(Host { root: layout::open_dir(Path::new("/")).creating(|| WHAT)?, process })
    }

    /// Checks everything. The caller's root must be the container's.
    pub(in super::super) fn check(&self, built: &Built<'_>) -> Result<(), Fault> {
        self.check_gone()?;
        let volumes = &built.config.spec.mounts;
        let mut compared = self.compare(built);
        // The host may mount and unmount while the list is read.
        if volumes.iter().any(|volume| volume.propagation != Propagation::Private)
            && matches!(compared, Ok(Err(_)))
        {
            compared = self.compare(built);
        }
        compared.creating(|| WHAT)?.map_err(|difference| Fault::create(difference.to_string()))
    }

    fn compare(&self, built: &Built<'_>) -> io::Result<Result<(), Difference>> {
        let found = self.entries()?;
        Ok(compare(&plan(built)?, &found))
    }

    /// Checks that the host's mounts are gone, by trying to copy one. The kernel copies only mounts of the
    /// caller's mount namespace.
    fn check_gone(&self) -> Result<(), Fault> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        match open_tree(&self.root, "", flags) {
            Err(Errno::INVAL) => Ok(()),
            Ok(_) => {
                let left = "the host's file systems are still mounted".to_owned();
                Err(Fault::create(Difference::Setup(left).to_string()))
            }
            Err(error) => Err(error).creating(|| WHAT),
        }
    }

    /// The kernel's list of this process's mounts.
    pub(in super::super) fn mountinfo(&self) -> io::Result<String> {
        let list =
            rustix::fs::openat(&self.process, "mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = Vec::with_capacity(16 * 1024);
        std::fs::File::from(list).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let unknown = |line: &str| io::Error::other(format!("the kernel lists a mount as {line:?}"));
        self.mountinfo()?.lines().map(|line| parse(line).ok_or_else(|| unknown(line))).collect()
    }
}

fn plan(built: &Built<'_>) -> io::Result<Plan> {
    let Built { config, kernel, dev, nodev, .. } = *built;
    let is_rootless = rootless::standing().is_rootless();
    let privileged = config.spec.identity.privileged;
    let root = mount_of(built.root.fd())?;
    let (proc, sys) = (mount_of(kernel.proc.fd())?, mount_of(kernel.sys.fd())?);
    let dev_id = mount_of(dev.root.fd())?;
    let volumes = config.spec.mounts.iter().zip(built.volumes);
    let sys_flags = Flags::QUIET.with(Flags::RO, !privileged);
    Ok(Plan {
        root,
        root_flags: Flags::NONE.with(Flags::RO, config.spec.read_only_rootfs).with(Flags::NODEV, nodev),
        root_seen: stat_mount(CWD, "/")?.map_or(0, |seen| seen.mount),
        places: places(built, [root, proc, sys, dev_id], is_rootless)?,
        volumes: volumes.map(|(mount, id)| volume_place(mount, *id, nodev)).collect::<io::Result<_>>()?,
        pieces: is_rootless,
        host_trees: if is_rootless { vec![(proc, Flags::QUIET), (sys, sys_flags)] } else { Vec::new() },
        mounted_devices: (is_rootless && privileged).then_some(dev_id),
    })
}

fn volume_place(mount: &Mount, id: u64, nodev: bool) -> io::Result<VolumePlace> {
    let target = Path::new("/").join(relative(&mount.target));
    let flags = StatxFlags::MNT_ID;
    let seen = match statx(CWD, &target, AtFlags::NO_AUTOMOUNT, flags) {
        Ok(found) => Some(found.stx_mnt_id),
        // This is only correct if a later volume covers the target.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
        Err(error) => return Err(error.into()),
    };
    let flags = Flags::NONE.with(Flags::RO, mount.read_only).with(Flags::NODEV, nodev);
    Ok(VolumePlace { target, id, flags, propagation: mount.propagation, seen })
}

/// The places of a container, without its volumes. The ids are those of `/`, /proc, /sys and /dev.
fn places(built: &Built<'_>, [root, proc, sys, dev]: [u64; 4], is_rootless: bool) -> io::Result<Vec<Place>> {
    let Built { config, kernel, .. } = *built;
    let privileged = config.spec.identity.privileged;
    let at = |dir: BorrowedFd<'_>, base: &str, name: &str, parent, content, flags, is_new| {
        let seen = stat_mount(dir, name)?;
        let point = format!("{base}/{name}");
        io::Result::Ok(Place { point, parent, id: None, content, flags, is_new, seen })
    };
    let mount = |kind, required| Content::Mount { kind: Some(kind), required };
    let sys_flags = Flags::QUIET.with(Flags::RO, !privileged);
    let mut places = Vec::with_capacity(32);
    // Without root, these may be the host's, and the first process of the pod creates the pod's /proc.
    let own_proc = !is_rootless && config.sandbox.proc.is_none();
    for (name, id, kind, flags, is_new) in [
        ("proc", proc, "proc", Flags::QUIET, own_proc),
        ("sys", sys, "sysfs", sys_flags, !is_rootless),
        ("dev", dev, "tmpfs", Flags::NOSUID, true),
    ] {
        let place = at(built.root.fd(), "", name, root, mount(kind, true), flags, is_new)?;
        places.push(Place { id: Some(id), ..place });
    }
    let in_dev = built.dev.root.fd();
    let terminals = Flags(Flags::NOSUID.0 | Flags::NOEXEC.0);
    places.push(at(in_dev, "/dev", "pts", dev, mount("devpts", true), terminals, true)?);
    let queues = mount("mqueue", !is_rootless);
    places.push(at(in_dev, "/dev", "mqueue", dev, queues, Flags::QUIET, !is_rootless)?);
    // The host's does not have to be a separate file system.
    let kind = config.sandbox.ipc.is_some().then_some("tmpfs");
    let memory = Content::Mount { kind, required: true };
    places.push(at(in_dev, "/dev", "shm", dev, memory, Flags::QUIET, false)?);
    if config.spec.tty {
        // A volume may be mounted over its name.
        places.push(at(in_dev, "/dev", "console", dev, mount("devpts", false), terminals, true)?);
    }
    for (name, major, minor) in NODES {
        places.push(at(in_dev, "/dev", name, dev, Content::Node(major, minor), Flags::NONE, false)?);
    }
    if config.spec.mask_paths && !privileged {
        for name in READ_ONLY_PROC {
            places.push(at(kernel.proc.fd(), "/proc", name, proc, Content::ReadOnly, Flags::NONE, false)?);
        }
        for name in MASKED_PROC {
            places.push(at(kernel.proc.fd(), "/proc", name, proc, Content::Mask, Flags::NONE, false)?);
        }
        for name in MASKED_SYS {
            places.push(at(kernel.sys.fd(), "/sys", name, sys, Content::Mask, Flags::NONE, false)?);
        }
    }
    if let Some(target) = built.cgroup_target {
        let on = mount_of(target.as_fd())?;
        places.push(at(kernel.sys.fd(), "/sys", "fs/cgroup", on, mount("cgroup2", true), sys_flags, true)?);
    }
    Ok(places)
}

fn mount_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn stat_mount(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<Seen>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match statx(dir, name, flags, StatxFlags::MNT_ID | StatxFlags::TYPE) {
        Ok(found) => {
            let kind = FileType::from_raw_mode(found.stx_mode.into());
            let device = (found.stx_rdev_major, found.stx_rdev_minor);
            Ok(Some(Seen {
                mount: found.stx_mnt_id,
                is_dir: kind == FileType::Directory,
                device: (kind == FileType::CharacterDevice).then_some(device),
            }))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
