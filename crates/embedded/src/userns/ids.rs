//! Allocates host ids to pods.
//!
//! All runs on this machine share a directory with one file per range, which contains the path of the pod's
//! directory. A range is free when the pod's directory no longer exists for any reason. Nothing has to be
//! cleaned up after a run that was killed.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::IDS;

pub(crate) const DIRECTORY: &str = "/run/outrigger/ids";

/// The first id. It is above the range that systemd uses for its containers, and the ranges stay below the
/// numbers that programs take for negative.
const FIRST: u32 = 0x7000_0000;
const RANGES: u32 = 4095;

/// Reserves a range for a pod and returns its first id.
pub(super) fn claim(pod_dir: &Path) -> io::Result<u32> {
    claim_in(Path::new(DIRECTORY), pod_dir, &delegated())
}

fn claim_in(directory: &Path, pod_dir: &Path, taken: &[(u64, u64)]) -> io::Result<u32> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let lock = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    // The search starts elsewhere for every pod, so that ids are reused as late as possible.
    let seed = pod_dir
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    for offset in 0..RANGES {
        let first = FIRST + (seed.wrapping_add(offset) % RANGES) * IDS;
        let overlaps = |(start, count): &(u64, u64)| {
            *start < u64::from(first) + u64::from(IDS) && u64::from(first) < start.saturating_add(*count)
        };
        if taken.iter().any(overlaps) {
            continue;
        }
        let path = directory.join(first.to_string());
        match fs::read(&path) {
            Ok(owner) if Path::new(std::ffi::OsStr::from_bytes(&owner)).exists() => continue,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The file is written atomically, because a partial path would be a directory that does not exist.
        let temporary = directory.join("new");
        let mut file =
            fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(pod_dir.as_os_str().as_bytes())?;
        fs::rename(&temporary, &path)?;
        return Ok(first);
    }
    Err(io::Error::other("all ranges are in use"))
}

/// Releases a pod's range.
pub(crate) fn release(first: u32, pod_dir: &Path) {
    release_in(Path::new(DIRECTORY), first, pod_dir);
}

fn release_in(directory: &Path, first: u32, pod_dir: &Path) {
    let path = directory.join(first.to_string());
    if fs::read(&path).is_ok_and(|owner| owner == pod_dir.as_os_str().as_bytes()) {
        let _ = fs::remove_file(path);
    }
}

/// Releases all ranges of a pod whose run was killed before it could record its range.
pub(crate) fn release_all(pod_dir: &Path) {
    release_all_in(Path::new(DIRECTORY), pod_dir);
}

fn release_all_in(directory: &Path, pod_dir: &Path) {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for first in names.filter_map(|name| name.to_str()?.parse().ok()) {
        release_in(directory, first, pod_dir);
    }
}

/// Removes the files of ranges that are free. `is_free` decides that by the file and the pod's directory.
pub(crate) fn reclaim(directory: &Path, is_free: impl Fn(&Path, &Path) -> bool) {
    let path = directory.join("lock");
    let lock = fs::File::options().write(true).create(true).truncate(false).mode(0o600).open(path);
    // If a range is taken in the meantime, its file has a new owner.
    let Some(_lock) = lock.ok().filter(|lock| flock(lock, FlockOperation::LockExclusive).is_ok()) else {
        return;
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(|n| n.parse::<u32>().is_ok()))
    {
        let owner = fs::read(entry.path()).unwrap_or_default();
        let owner = Path::new(std::ffi::OsStr::from_bytes(&owner));
        if owner.is_absolute() && is_free(&entry.path(), owner) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The ranges that are delegated to users of this machine.
fn delegated() -> Vec<(u64, u64)> {
    let texts = ["/etc/subuid", "/etc/subgid"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let lines = texts.iter().flat_map(|text| text.lines());
    lines
        .filter_map(|line| {
            let mut fields = line.split(':').skip(1);
            Some((fields.next()?.trim().parse().ok()?, fields.next()?.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pods_have_the_same_ids_and_gone_pods_none() {
        let base = tempfile::tempdir().unwrap();
        let (ids, pods) = (base.path().join("ids"), base.path().join("pods"));
        let mut firsts = Vec::new();
        for name in ["a", "b", "c"] {
            let pod = pods.join(name);
            fs::create_dir_all(&pod).unwrap();
            firsts.push(claim_in(&ids, &pod, &[]).unwrap());
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 3);
        // The same range is free again when the directory no longer exists or the range is released.
        let again = pods.join("a");
        let first = claim_in(&ids, &again, &[]).unwrap();
        assert!(!firsts.contains(&first));
        release_in(&ids, first, &pods.join("other"));
        assert!(ids.join(first.to_string()).exists());
        release_in(&ids, first, &again);
        assert!(!ids.join(first.to_string()).exists());
        let again_first = claim_in(&ids, &again, &[]).unwrap();
        release_all_in(&ids, &pods.join("other"));
        assert!(ids.join(again_first.to_string()).exists());
        release_all_in(&ids, &again);
        assert!(!ids.join(again_first.to_string()).exists() && ids.join("lock").exists());
        fs::remove_dir(&again).unwrap();
        assert!(firsts.contains(&claim_in(&ids, &again, &[]).unwrap()));
    }

    #[test]
    fn ranges_of_users_are_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let all = (u64::from(FIRST), u64::from(RANGES - 1) * u64::from(IDS));
        let first = claim_in(&base.path().join("ids"), base.path(), &[all]).unwrap();
        assert_eq!(first, FIRST + (RANGES - 1) * IDS);
    }

    #[test]
    fn many_at_once_get_different_ranges() {
        let base = tempfile::tempdir().unwrap();
        let claims = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let pod = base.path().join(number.to_string());
                    fs::create_dir(&pod).unwrap();
                    let ids = base.path().join("ids");
                    scope.spawn(move || claim_in(&ids, &pod, &[]).unwrap())
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<std::collections::BTreeSet<_>>()
        });
        assert_eq!(claims.len(), 8);
    }
}
