//! A directory of manifests whose pods a node runs.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_agent::log::Watcher;

/// Changes within this time are handled together: saving a file in an editor causes several.
const GATHER: Duration = Duration::from_millis(200);

/// Polling interval of a directory that cannot be watched.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// More of a file is not read: the limit of a manifest is 8 MiB, and a file beyond it is refused when it is parsed.
const READ_MAX: u64 = (8 << 20) + 1;

/// A directory of manifests.
pub(super) struct Manifests {
    dir: PathBuf,
    watcher: Option<Watcher>,
    /// A change was reported and not handled yet.
    is_changed: AtomicBool,
}

impl Manifests {
    /// Watches a directory, which may be created later.
    pub(super) fn new(dir: PathBuf) -> Self {
        let watcher =
            Watcher::new().inspect_err(|e| tracing::warn!("cannot watch {}: {e}", dir.display())).ok();
        Manifests { dir, watcher, is_changed: AtomicBool::new(false) }
    }

    /// The current manifests, by path.
    pub(super) fn files(&self) -> io::Result<BTreeMap<PathBuf, String>> {
        let mut files = BTreeMap::new();
        if let Some(watcher) = &self.watcher {
            // Before reading, so that later changes are reported.
            let _ = watcher.watch_files(&self.dir);
        }
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if !is_manifest(&path) {
                continue;
            }
            match read(&path) {
                Ok(text) => drop(files.insert(path, text)),
                // The file was deleted meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => tracing::error!("cannot read {}: {e}", path.display()),
            }
        }
        Ok(files)
    }

    /// Waits for a change. Cancel safe.
    pub(super) async fn changed(&self) {
        if !self.is_changed.load(Ordering::Relaxed) {
            let told = match &self.watcher {
                Some(watcher) if self.dir.is_dir() => watcher.grown().await.is_ok(),
                _ => false,
            };
            if !told {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            self.is_changed.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(GATHER).await;
        self.is_changed.store(false, Ordering::Relaxed);
    }
}

/// The text of a manifest, or enough of it to see that it is too large.
fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(READ_MAX).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == READ_MAX {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Whether a file is a manifest; editors create other files next to it.
fn is_manifest(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) && path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_huge_file_only_a_part_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("huge.yaml");
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, READ_MAX);
    }

    #[tokio::test]
    async fn only_manifests_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.json", ".c.yaml", "d.yaml~", "e.txt", "f.yml"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("g.yaml")).unwrap();
        let files = Manifests::new(dir.path().to_owned()).files().unwrap();
        assert_eq!(files.values().collect::<Vec<_>>(), ["a.yaml", "b.json", "f.yml"]);
    }
}
