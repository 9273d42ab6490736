//! Resource limits: cgroup v1, v2 and the mixture of both.
//!
//! A container is in `outrigger/SANDBOX/CONTAINER`. A process can join the unified hierarchy while it is
//! forked, which costs nothing. It must join each v1 controller itself after the fork (see [`join_self`]). A
//! container is therefore always in the unified hierarchy if there is one (devices by BPF, `cgroup.kill`). It
//! is in a v1 controller only if the pod or the container needs that controller.

mod bpf;
mod delegated;
mod devices;
mod limits;
mod usage;

pub(crate) use devices::attach as limit_devices;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::layout::open_dir;
use super::{rootless, sys};
use outrigger_runtime::Resources;
use outrigger_runtime::processes::Process;

/// The warning for a container that has fewer capabilities because its devices cannot be limited.
const NO_DEVICE_LIMITS: &str =
    "devices cannot be limited by a cgroup, so containers get no CAP_MKNOD and no device nodes but their own";

/// The directory of all of Outrigger's cgroups.
const TOP: &str = "outrigger";

/// Controllers that can be mounted as v1 hierarchies. Runtimes create a cgroup in each of them.
const CONTROLLERS_V1: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "name=systemd",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// The cgroup mounts of this machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Hierarchies {
    /// The mount point of the unified hierarchy.
    pub(crate) unified: Option<PathBuf>,
    /// Controllers of the unified hierarchy.
    pub(crate) unified_controllers: Vec<String>,
    /// The v1 controllers by name.
    pub(crate) v1: BTreeMap<String, PathBuf>,
}

impl Hierarchies {
    /// Finds the mounted hierarchies.
    pub(crate) fn detect() -> Self {
        let mut found = fs::read_to_string("/proc/self/mountinfo")
            .map_or_else(|_| Self::default(), |text| Self::parse(&text));
        if rootless::standing().is_rootless() {
            found = delegated::own(found);
        }
        if let Some(unified) = &found.unified {
            let controllers = fs::read_to_string(unified.join("cgroup.controllers")).unwrap_or_default();
            found.unified_controllers = controllers.split_whitespace().map(str::to_owned).collect();
        }
        found
    }

    /// The controllers available to an ordinary user here, and whether all of them are in the unified
    /// hierarchy.
    pub(crate) fn delegated() -> (Vec<String>, bool) {
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let all = Self::parse(&text);
        let unified = all.is_unified();
        let own = delegated::found(all);
        let read = |dir: &PathBuf| fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        let controllers = own.unified.as_ref().map(read).unwrap_or_default();
        let limiting = |name: &&str| limits::CONTROLLERS_V1.contains(name);
        let mut names: Vec<String> =
            controllers.split_whitespace().filter(limiting).map(str::to_owned).collect();
        names.extend(own.v1.into_keys().filter(|name| limiting(&name.as_str())));
        names.sort_unstable();
        names.dedup();
        (names, unified)
    }

    fn parse(mountinfo: &str) -> Self {
        let mut found = Self::default();
        for line in mountinfo.lines() {
            let Some((mount, source)) = line.split_once(" - ") else { continue };
            let Some(point) = mount.split(' ').nth(4) else { continue };
            let mut source = source.split(' ');
            match source.next() {
                Some("cgroup2") => {
                    found.unified.get_or_insert_with(|| PathBuf::from(point));
                }
                Some("cgroup") => {
                    let options = source.nth(1).unwrap_or_default();
                    for controller in CONTROLLERS_V1 {
                        if options.split(',').any(|option| option == controller) {
                            found.v1.entry(controller.to_owned()).or_insert_with(|| PathBuf::from(point));
                        }
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Whether everything is in the unified hierarchy, so that containers may see it at /sys/fs/cgroup.
    pub(crate) fn is_unified(&self) -> bool {
        self.unified.is_some() && self.v1.is_empty()
    }

    /// Whether the memory controller counts swap as well.
    pub(crate) fn counts_swap(&self) -> bool {
        match self.v1.get("memory") {
            Some(memory) => memory.join("memory.memsw.limit_in_bytes").exists(),
            // The file with the limit only exists if there is swap.
            None => fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1),
        }
    }

    fn v1_dir(&self, controller: &str, path: &str) -> Option<PathBuf> {
        Some(self.v1.get(controller)?.join(path))
    }

    /// Every directory of a cgroup with this path, the unified one first.
    fn dirs(&self, path: &str) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> =
            self.unified.iter().chain(self.v1.values()).map(|root| root.join(path)).collect();
        dirs.dedup();
        dirs
    }

    /// Kills everything in a cgroup and below it.
    pub(crate) fn kill(&self, path: &str) {
        for dir in self.dirs(path) {
            kill_tree(&dir);
        }
    }

    /// The processes in a cgroup and below it, in all hierarchies.
    pub(crate) fn processes(&self, path: &str) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        let mut pending = self.dirs(path);
        while let Some(dir) = pending.pop() {
            found.extend(processes(&dir));
            pending.extend(subdirectories(&dir));
        }
        found
    }

    /// Whether a cgroup, or one below it, has processes that are not visible in this pid namespace.
    pub(crate) fn has_unseen_processes(&self, path: &str) -> bool {
        let mut pending = self.dirs(path);
        while let Some(dir) = pending.pop() {
            // The kernel lists such a process as 0.
            let all = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            if all.lines().any(|pid| pid == "0") {
                return true;
            }
            pending.extend(subdirectories(&dir));
        }
        false
    }

    /// Removes a cgroup and everything below it. Returns what could not be removed.
    pub(crate) fn remove(&self, path: &str) -> Vec<PathBuf> {
        self.dirs(path).into_iter().filter(|dir| !remove_tree(dir)).collect()
    }

    /// Whether a cgroup with this path exists in any hierarchy.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.dirs(path).iter().any(|dir| dir.exists())
    }
}

/// Moves the caller into a v1 cgroup. The caller must have only one thread, because `tasks` moves a single
/// thread. The kernel does that at once. For `cgroup.procs` it first waits for an RCU grace period, about 10
/// ms.
fn join_self(dir: &Path) -> io::Result<()> {
    // In a delegated cgroup, the user may be allowed to write only `cgroup.procs`.
    fs::write(dir.join("tasks"), "0").or_else(|_| fs::write(dir.join("cgroup.procs"), "0"))
}

/// The CPU settings of a container.
pub(crate) struct CpuAmounts {
    pub(crate) shares: Option<u64>,
    pub(crate) quota_us: Option<u64>,
}

/// The length of the period of a CPU quota.
pub(crate) const CPU_PERIOD_US: u64 = limits::PERIOD_US;

/// Converts CPU requests and limits to the controller's units.
pub(crate) fn cpu_amounts(resources: &Resources) -> CpuAmounts {
    CpuAmounts {
        shares: resources.cpu_request_milli.map(limits::shares),
        quota_us: resources.cpu_limit_milli.map(limits::quota_us),
    }
}

/// One device rule for an OCI runtime.
pub(crate) struct DeviceRule {
    pub(crate) allow: bool,
    /// `b` or `c`. `None` means both.
    pub(crate) kind: Option<char>,
    pub(crate) major: Option<u32>,
    pub(crate) minor: Option<u32>,
    /// The allowed access: some of `r`, `w` and `m`.
    pub(crate) access: &'static str,
}

/// The rules of the device allow list, or a rule that allows everything.
pub(crate) fn device_rules(all_devices: bool) -> Vec<DeviceRule> {
    let everything = DeviceRule { allow: all_devices, kind: None, major: None, minor: None, access: "rwm" };
    let allowed = devices::ALLOWED.iter().filter(|_| !all_devices).map(|rule| DeviceRule {
        allow: true,
        kind: Some(if rule.block { 'b' } else { 'c' }),
        major: rule.major,
        minor: rule.minor,
        access: if rule.open { "rwm" } else { "m" },
    });
    std::iter::once(everything).chain(allowed).collect()
}

/// Path of a sandbox's cgroup.
pub(crate) fn sandbox_path(sandbox: &str) -> String {
    format!("{TOP}/{sandbox}")
}

/// Path of a container's cgroup.
pub(crate) fn container_path(sandbox: &str, container: &str) -> String {
    format!("{TOP}/{sandbox}/{container}")
}

/// What prevents a container from opening devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceLimits {
    /// Nothing does, as requested.
    AllAllowed,
    /// Its cgroup does: it can open only devices of the allow list.
    Cgroup,
    /// Nothing does, although it should: this machine has no writable cgroup for it.
    Missing,
}

/// A container's cgroups. They are created and have their limits, but no processes yet.
pub(crate) struct Prepared {
    unified: Option<OwnedFd>,
    /// The v1 cgroups to join, and whether each of them limits the container's devices.
    join: Vec<(PathBuf, bool)>,
    oom: Option<OomCounter>,
    /// What limits the container's devices. This also applies to processes that are added later.
    pub(crate) devices: DeviceLimits,
    /// Warnings about what could not be done as requested.
    pub(crate) warnings: Vec<String>,
}

/// A cgroup that refused a container's first process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) cgroup: PathBuf,
    pub(crate) warning: String,
}

struct OomCounter {
    file: PathBuf,
    before: u64,
}

impl Prepared {
    /// Creates a container's cgroups. Never fails: errors become warnings.
    pub(crate) fn new(
        hierarchies: &Hierarchies,
        sandbox: &str,
        container: &str,
        pod: &Resources,
        own: &Resources,
        all_devices: bool,
    ) -> Self {
        // In a user namespace no new device nodes can be created.
        let unlimited = all_devices || rootless::standing().is_rootless();
        let devices = if unlimited { DeviceLimits::AllAllowed } else { DeviceLimits::Missing };
        let mut prepared =
            Prepared { unified: None, join: Vec::new(), oom: None, devices, warnings: Vec::new() };
        let path = container_path(sandbox, container);
        let pod_path = sandbox_path(sandbox);

        if let Some(root) = &hierarchies.unified {
            match prepared.make_unified(hierarchies, root, &pod_path, &path, pod, own) {
                Ok(dir) => {
                    if prepared.devices == DeviceLimits::Missing {
                        match devices::attach(dir.as_fd()) {
                            Ok(()) => prepared.devices = DeviceLimits::Cgroup,
                            Err(error) if hierarchies.v1.contains_key("devices") => drop(error),
                            Err(error) => prepared.warn(NO_DEVICE_LIMITS, &error),
                        }
                    }
                    prepared.unified = Some(dir);
                }
                Err(error) => prepared.warnings.push(no_cgroup(root, &error)),
            }
        }
        for controller in limits::CONTROLLERS_V1 {
            if !limits::needs_v1(controller, pod) && !limits::needs_v1(controller, own) {
                continue;
            }
            let Some(dir) = hierarchies.v1_dir(controller, &path) else {
                if !hierarchies.unified_controllers.iter().any(|has| has == controller) {
                    prepared.warnings.push(match rootless::standing().is_rootless() {
                        true => format!(
                            "no {controller} cgroup is delegated to this user: its limits do not apply"
                        ),
                        false => {
                            format!("no {controller} controller on this machine: its limits do not apply")
                        }
                    });
                }
                continue;
            };
            match fs::create_dir_all(&dir).and_then(|()| limits::apply_v1(controller, &dir, own)) {
                Ok(()) => prepared.join(&dir, false),
                Err(error) => prepared.warn(&format!("{controller} limits do not apply"), &error),
            }
        }
        prepared.limit_devices_v1(hierarchies, &path);
        if limits::needs_v1("memory", own) || limits::needs_v1("memory", pod) {
            prepared.oom = OomCounter::find(hierarchies, &path);
        }
        prepared
    }

    /// Limits devices with the v1 controller, where the unified hierarchy does not.
    fn limit_devices_v1(&mut self, hierarchies: &Hierarchies, path: &str) {
        let missing = self.devices == DeviceLimits::Missing;
        // Without the unified hierarchy, this cgroup is also the list of the container's processes.
        if !missing && self.unified.is_some() {
            return;
        }
        let Some(dir) = hierarchies.v1_dir("devices", path) else { return };
        let limited =
            fs::create_dir_all(&dir).and_then(|()| if missing { devices::apply_v1(&dir) } else { Ok(()) });
        match limited {
            Ok(()) => {
                self.join(&dir, missing);
                if missing {
                    self.devices = DeviceLimits::Cgroup;
                }
            }
            Err(error) => self.warn(NO_DEVICE_LIMITS, &error),
        }
    }

    /// Cgroups that an OCI runtime creates, limits and fills.
    pub(crate) fn by_runtime(hierarchies: &Hierarchies, sandbox: &str, container: &str) -> Self {
        let oom = OomCounter::find(hierarchies, &container_path(sandbox, container));
        Prepared { unified: None, join: Vec::new(), oom, devices: DeviceLimits::Cgroup, warnings: Vec::new() }
    }

    fn make_unified(
        &mut self,
        hierarchies: &Hierarchies,
        root: &Path,
        pod_path: &str,
        path: &str,
        pod: &Resources,
        own: &Resources,
    ) -> io::Result<OwnedFd> {
        let dir = root.join(path);
        fs::create_dir_all(&dir)?;
        if limits::needs_v2(pod) || limits::needs_v2(own) {
            let wanted: Vec<&str> = limits::CONTROLLERS_V2
                .into_iter()
                .filter(|name| hierarchies.unified_controllers.iter().any(|has| has == name))
                .collect();
            if !wanted.is_empty() {
                if let Err(error) = limits::enable_v2(root, pod_path, &wanted) {
                    self.warn("limits do not apply", &error);
                } else if let Err(error) = limits::apply_v2(&dir, own, &wanted) {
                    self.warn("some limits do not apply", &error);
                }
            }
        }
        open_dir(&dir)
    }

    fn join(&mut self, dir: &Path, limits_devices: bool) {
        match self.join.iter_mut().find(|(known, _)| known == dir) {
            Some((_, limits)) => *limits |= limits_devices,
            None => self.join.push((dir.to_owned(), limits_devices)),
        }
    }

    fn warn(&mut self, what: &str, error: &io::Error) {
        self.warnings.push(format!("{what}: {}", sys::errno_text(error)));
    }

    /// The cgroup to fork into.
    pub(crate) fn unified(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(AsFd::as_fd)
    }

    /// Moves the caller, the container's first process, into the cgroups that a fork cannot enter by itself.
    /// Returns the cgroups that refuse it. A refusal by a cgroup that limits devices is an error.
    pub(crate) fn join_first(&self) -> io::Result<Vec<Refusal>> {
        self.join_each(join_self)
    }

    /// Like [`Self::join_first`], for another process. This takes about 10 ms.
    pub(crate) fn adopt_first(&self, pid: i32) -> io::Result<Vec<Refusal>> {
        self.join_each(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    fn join_each(&self, join: impl Fn(&Path) -> io::Result<()>) -> io::Result<Vec<Refusal>> {
        let mut refused = Vec::new();
        for (dir, limits_devices) in &self.join {
            match join(dir) {
                Ok(()) => {}
                Err(error) if *limits_devices => return Err(error),
                Err(error) => refused.push(Refusal {
                    cgroup: dir.clone(),
                    warning: format!("limits do not apply: {}", sys::errno_text(&error)),
                }),
            }
        }
        Ok(refused)
    }

    /// Leaves out a cgroup that has refused the container's first process, so that later processes do not try
    /// to join it.
    pub(crate) fn leave_out(&mut self, cgroup: &Path) {
        self.join.retain(|(dir, limits_devices)| dir != cgroup || *limits_devices);
    }

    /// Moves the caller into the cgroups of the container's first process.
    pub(crate) fn join_self(&self) -> io::Result<()> {
        self.join.iter().try_for_each(|(dir, _)| join_self(dir))
    }

    /// Whether the kernel killed a process in these cgroups because it was out of memory.
    pub(crate) fn oom_killed(&self) -> bool {
        self.oom.as_ref().is_some_and(|counter| oom_kills(&counter.file).unwrap_or(0) > counter.before)
    }
}

impl OomCounter {
    fn find(hierarchies: &Hierarchies, path: &str) -> Option<Self> {
        let file = match hierarchies.v1_dir("memory", path) {
            Some(dir) => dir.join("memory.oom_control"),
            None => hierarchies.unified.as_ref()?.join(path).join("memory.events"),
        };
        Some(OomCounter { before: oom_kills(&file).unwrap_or(0), file })
    }
}

fn oom_kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Creates a sandbox's cgroup and limits it. Returns warnings about what could not be done as requested.
pub(crate) fn prepare_sandbox(
    hierarchies: &Hierarchies,
    sandbox: &str,
    resources: &Resources,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let path = sandbox_path(sandbox);
    if let Some(root) = &hierarchies.unified {
        let dir = root.join(&path);
        if let Err(error) = fs::create_dir_all(&dir) {
            warnings.push(no_cgroup(root, &error));
        } else if limits::needs_v2(resources) {
            let wanted: Vec<&str> = limits::CONTROLLERS_V2
                .into_iter()
                .filter(|name| hierarchies.unified_controllers.iter().any(|has| has == name))
                .collect();
            let limited = limits::enable_v2(root, TOP, &wanted)
                .and_then(|()| limits::apply_v2(&dir, resources, &wanted));
            if let Err(error) = limited {
                warnings.push(format!("pod limits do not apply: {}", sys::errno_text(&error)));
            }
        }
    }
    for controller in limits::CONTROLLERS_V1 {
        if !limits::needs_v1(controller, resources) {
            continue;
        }
        let Some(dir) = hierarchies.v1_dir(controller, &path) else { continue };
        let limited = fs::create_dir_all(&dir).and_then(|()| limits::apply_v1(controller, &dir, resources));
        if let Err(error) = limited {
            warnings
                .push(format!("{controller} limits of the pod do not apply: {}", sys::errno_text(&error)));
        }
    }
    warnings
}

fn no_cgroup(root: &Path, error: &io::Error) -> String {
    let (root, error) = (root.display(), sys::errno_text(error));
    format!("cannot create cgroups for containers in {root}: {error}; run `outrigger doctor` for help")
}

/// The processes in a cgroup.
fn processes(dir: &Path) -> Vec<Process> {
    let open = |pid: i32| Process::find(pid, || true);
    let found: Vec<Process> = pids(dir).into_iter().filter_map(open).collect();
    // All processes are open now. If a pid is still in the list, it belongs to the process that was opened.
    let still = pids(dir);
    found.into_iter().filter(|process| still.contains(&process.pid())).collect()
}

fn pids(dir: &Path) -> BTreeSet<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 0).collect()
}

fn kill_tree(dir: &Path) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for child in subdirectories(dir) {
        kill_tree(&child);
    }
    // Processes may fork while the list is read. A cgroup that keeps forking for this many rounds has no
    // limit on processes anyway.
    for _ in 0..64 {
        if pids(dir).is_empty() {
            return;
        }
        processes(dir).iter().for_each(Process::kill);
    }
}

fn remove_tree(dir: &Path) -> bool {
    for child in subdirectories(dir) {
        remove_tree(&child);
    }
    match fs::remove_dir(dir) {
        Ok(()) => true,
        // On a read-only file system, the kernel returns that error before it checks whether there is
        // anything to remove.
        Err(error) => error.kind() == io::ErrorKind::NotFound || !dir.exists(),
    }
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_mounts_are_told_apart() {
        let found = Hierarchies::parse(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(found.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(found.v1["cpu"], found.v1["cpuacct"]);
        assert_eq!(found.v1["memory"], Path::new("/sys/fs/cgroup/memory"));
        assert!(!found.is_unified());
    }

    #[test]
    fn a_machine_with_v2_only_is_unified() {
        let found =
            Hierarchies::parse("30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
        assert!(found.is_unified());
    }
}
