//! Removes cgroups and ranges of ids that belong to pods whose directory no longer exists.
//!
//! Usually the run of such a pod, or the next run, removes them. But a state directory that was removed as a
//! whole is never looked at again. A file that all runs on this machine share therefore records the directory
//! that a sandbox's cgroups belong to.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use super::cgroup::{self, Hierarchies};
use super::{rootless, userns};

const DIRECTORY: &str = "/run/outrigger/cgroups";

/// The minimum age of what is removed. Younger cgroups and ranges may be about to be used.
const OLD: Duration = Duration::from_secs(10 * 60);

/// Records the directory that the cgroups of a sandbox belong to. Without this note, they are never
/// reclaimed.
pub(super) fn note(sandbox: &str, pod_dir: &Path) {
    if !rootless::standing().is_rootless() {
        let _ = note_in(Path::new(DIRECTORY), sandbox, pod_dir);
    }
}

/// Removes the note after the cgroups were removed.
pub(super) fn forget(sandbox: &str) {
    let _ = fs::remove_file(Path::new(DIRECTORY).join(sandbox));
}

/// Reclaims what is left, only at the first call in this process. Blocks.
pub(super) fn once(hierarchies: &Hierarchies) {
    static DONE: Once = Once::new();
    if !rootless::standing().is_rootless() {
        DONE.call_once(|| reclaim(Path::new(DIRECTORY), Path::new(userns::IDS_DIRECTORY), hierarchies, OLD));
    }
}

fn note_in(notes: &Path, sandbox: &str, pod_dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(notes)?;
    let mut text = mount_namespace().to_string().into_bytes();
    text.push(b'\n');
    text.extend_from_slice(pod_dir.as_os_str().as_bytes());
    fs::write(notes.join(sandbox), text)
}

/// The directory in a note, if it was written in this mount namespace. Whether a path exists in another one
/// cannot be checked from here.
fn read(note: &Path) -> Option<PathBuf> {
    let text = outrigger_runtime::private::read(note, 64 << 10).ok()?;
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let namespace: u64 = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    let dir = PathBuf::from(std::ffi::OsString::from_vec(text[end + 1..].to_vec()));
    Some(dir).filter(|dir| namespace == mount_namespace() && dir.is_absolute())
}

fn mount_namespace() -> u64 {
    fs::metadata("/proc/self/ns/mnt").map_or(0, |namespace| namespace.ino())
}

fn reclaim(notes: &Path, ids: &Path, hierarchies: &Hierarchies, old: Duration) {
    for entry in fs::read_dir(notes).into_iter().flatten().flatten() {
        let Ok(sandbox) = entry.file_name().into_string() else { continue };
        let Some(dir) = read(&entry.path()) else { continue };
        let path = cgroup::sandbox_path(&sandbox);
        let is_idle = || hierarchies.processes(&path).is_empty();
        if is_older(&entry.path(), old) && is_gone(&dir) && is_idle() && hierarchies.remove(&path).is_empty()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
    userns::reclaim_ids(ids, |file, dir| {
        let sandbox = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // A note that still exists belongs to a pod that may still run.
        let is_noted = notes.join(sandbox).exists() || hierarchies.exists(&cgroup::sandbox_path(sandbox));
        is_older(file, old) && is_gone(dir) && !is_noted
    });
}

/// Whether a directory certainly does not exist.
fn is_gone(dir: &Path) -> bool {
    matches!(dir.try_exists(), Ok(false))
}

fn is_older(file: &Path, old: Duration) -> bool {
    let modified = fs::metadata(file).and_then(|file| file.modified());
    modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_empty_old_and_of_a_directory_that_is_gone_is_reclaimed() {
        let base = tempfile::tempdir().unwrap();
        let [notes, ids, root, pods] = ["notes", "ids", "cgroup", "pods"].map(|name| base.path().join(name));
        let hierarchies = Hierarchies { unified: Some(root.clone()), ..Hierarchies::default() };
        let cgroup = |name: &str| root.join(cgroup::sandbox_path(name));
        for name in ["gone", "alive", "busy", "foreign", "unnoted"] {
            fs::create_dir_all(cgroup(name).join("container")).unwrap();
            if name != "unnoted" {
                note_in(&notes, name, &pods.join(name)).unwrap();
            }
        }
        fs::create_dir_all(pods.join("alive")).unwrap();
        fs::write(cgroup("busy").join("container/cgroup.procs"), std::process::id().to_string()).unwrap();
        fs::write(notes.join("foreign"), format!("1\n{}", pods.join("foreign").display())).unwrap();
        fs::create_dir_all(&ids).unwrap();
        for (number, name) in [(1, "gone"), (2, "alive"), (3, "busy"), (4, "foreign"), (5, "unnoted")] {
            fs::write(ids.join(number.to_string()), pods.join(name).as_os_str().as_bytes()).unwrap();
        }
        let left = |dir: &Path| {
            let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names.into_iter().map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        reclaim(&notes, &ids, &hierarchies, Duration::from_secs(3600));
        assert_eq!((left(&notes).len(), left(&root.join("outrigger")).len()), (4, 5), "all are young");
        reclaim(&notes, &ids, &hierarchies, Duration::ZERO);
        assert_eq!(left(&root.join("outrigger")), ["alive", "busy", "foreign", "unnoted"]);
        assert_eq!(left(&notes), ["alive", "busy", "foreign"]);
        assert_eq!(left(&ids), ["2", "3", "4", "5", "lock"]);
    }
}
