//! The cgroups that an ordinary user can use: those of this process, if they are delegated to the user.
//! systemd does that for user services, and with `systemd-run --user --scope -p Delegate=yes`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::Hierarchies;

/// The name prefix of the cgroups of runs; a pid follows.
const RUN: &str = "outrigger-run-";

/// The parts of all hierarchies that belong to this user. Moves this process to a child cgroup first.
pub(super) fn own(all: Hierarchies) -> Hierarchies {
    let mut own = found(all);
    own.unified = own.unified.map(|dir| step_aside(&dir));
    own
}

/// The parts of all hierarchies that belong to this user.
pub(super) fn found(all: Hierarchies) -> Hierarchies {
    let paths = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut own = restrict(all, &paths);
    own.v1.retain(|_, dir| is_writable(dir, &["cgroup.procs"]));
    own.unified = own.unified.filter(|dir| is_writable(dir, &["cgroup.procs", "cgroup.subtree_control"]));
    own
}

/// Restricts the hierarchies to the directories of the cgroups in /proc/self/cgroup.
fn restrict(all: Hierarchies, paths: &str) -> Hierarchies {
    let path_of = |controller: &str| {
        paths.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let controllers = fields.nth(1)?;
            let path = fields.next()?;
            let named = controllers.split(',').any(|name| name == controller);
            // A path outside of the visible part does not belong to this user.
            (named && !path.contains("..")).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let v1 = all.v1.into_iter().filter_map(|(controller, root)| {
        let dir = root.join(path_of(&controller)?);
        Some((controller, dir))
    });
    Hierarchies {
        v1: v1.collect(),
        unified: all.unified.and_then(|root| Some(root.join(path_of("")?))),
        unified_controllers: Vec::new(),
    }
}

fn is_writable(dir: &Path, files: &[&str]) -> bool {
    let may = |path: &Path| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    may(dir) && files.iter().all(|file| may(&dir.join(file)))
}

/// Moves this process to a child cgroup, beside those of the pods, because a cgroup of the unified hierarchy
/// has either processes or children with limits. Returns the cgroup that has the children.
fn step_aside(dir: &Path) -> PathBuf {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let (true, Some(parent)) = (name.starts_with(RUN), dir.parent()) {
        return parent.to_owned();
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(RUN)) {
            // This fails for a cgroup that is in use.
            let _ = fs::remove_dir(entry.path());
        }
    }
    let own = dir.join(format!("{RUN}{}", std::process::id()));
    // If this fails, the kernel refuses limits later, and the message has its reason.
    let _ = fs::create_dir(&own).and_then(|()| fs::write(own.join("cgroup.procs"), "0"));
    dir.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_this_process_is_in_counts() {
        let all = Hierarchies {
            unified: Some("/sys/fs/cgroup/unified".into()),
            unified_controllers: vec!["cpu".to_owned()],
            v1: [("cpu", "/c/cpu,cpuacct"), ("memory", "/c/memory"), ("pids", "/c/pids")]
                .map(|(name, dir)| (name.to_owned(), PathBuf::from(dir)))
                .into(),
        };
        let own = restrict(
            all,
            "4:memory:/a/b\n2:cpuacct,cpu:/\n3:pids:/../x\n1:name=systemd:/s\n0::/u.slice/u:1\n",
        );
        assert_eq!(own.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/u.slice/u:1")));
        assert_eq!(own.v1["memory"], Path::new("/c/memory/a/b"));
        assert_eq!(own.v1["cpu"], Path::new("/c/cpu,cpuacct/"));
        assert!(!own.v1.contains_key("pids"), "outside of what can be seen");
    }

    #[test]
    fn nothing_of_root_s_is_taken() {
        assert!(!is_writable(Path::new("/proc/self"), &["no-such-file"]));
    }
}
