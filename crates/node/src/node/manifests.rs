//! A directory of manifests whose pods a node runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_agent::log::{Changed, Watcher};
use outrigger_agent::options::PodOptions;
use outrigger_manifest::SourceFile;
use outrigger_runtime::trusted;
use rustix::fs::Dir;
use tokio::time::Instant;

use crate::read::RunReadOptions;
use crate::record::RunRecord;

/// Changes within this time are handled together, because an editor that saves a file causes several.
const GATHER: Duration = Duration::from_millis(200);

/// How often to check for changes that the kernel does not report: a changed target of a link, or another
/// directory at the same path. If the directory cannot be watched, this finds all changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The maximum size of a manifest.
const SIZE_MAX: u64 = 8 << 20;

/// A directory of manifests that a node runs.
#[derive(Debug, Clone)]
pub struct ManifestDir {
    /// The directory. Absolute.
    pub path: PathBuf,
    /// How its files are read.
    pub reading: RunReadOptions,
    /// The options of their pods.
    pub pods: PodOptions,
}

/// The state of a directory of manifests.
pub(super) struct Manifests {
    dir: PathBuf,
    settings: ManifestDir,
    watcher: Option<Watcher>,
    /// Whether a change was reported and not handled yet.
    is_changed: AtomicBool,
    state: Mutex<State>,
}

/// What is kept between two scans.
struct State {
    /// The watch of the directory.
    watch: Option<i32>,
    /// The scan when the files were read.
    seen: Scan,
    /// The last scan. A file that differs from scan to scan is still being written.
    last: Scan,
    next_look: Instant,
    /// Files that cannot be read, and why; each is reported once.
    reported: BTreeMap<PathBuf, String>,
}

/// The properties by which a change of a file is recognised.
type Scan = BTreeMap<PathBuf, [i128; 5]>;

/// The content of the directory.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The text of each manifest.
    pub(super) texts: BTreeMap<PathBuf, String>,
    /// Manifests that exist but cannot be read.
    pub(super) unreadable: BTreeSet<PathBuf>,
}

impl Manifests {
    /// Watches a directory, which may be created later.
    pub(super) fn new(settings: ManifestDir) -> Self {
        let dir = settings.path.clone();
        let watcher =
            Watcher::new().inspect_err(|e| tracing::warn!("cannot watch {}: {e}", dir.display())).ok();
        let state = State {
            watch: None,
            seen: Scan::new(),
            last: Scan::new(),
            next_look: Instant::now() + LOOK_EVERY,
            reported: BTreeMap::new(),
        };
        Manifests { dir, settings, watcher, is_changed: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// The record of a run for a file of the directory.
    pub(super) fn record(&self, path: &Path, text: &str) -> RunRecord {
        let name = path.display().to_string();
        let source = SourceFile::new(name.clone(), text);
        let ManifestDir { reading, pods, .. } = &self.settings;
        let record = RunRecord::new(vec![name], &[source], reading.clone(), pods.clone());
        RunRecord { manifest: Some(path.to_owned()), ..record }
    }

    /// The current manifests, by path.
    pub(super) fn files(&self) -> io::Result<Files> {
        let mut state = self.state();
        // The watch begins before reading, so that later changes are reported.
        self.watch(&mut state);
        state.seen = self.scan(state.watch.is_some());
        let mut files = Files::default();
        let mut reported = BTreeMap::new();
        // A directory that others can change is not trusted. From here on the descriptor is used, because the
        // path may lead elsewhere later.
        let dir = trusted::open_dir(&self.dir)?;
        for entry in Dir::read_from(&dir)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            let path = self.dir.join(&name);
            if !is_named_as_manifest(&path) {
                continue;
            }
            match read(dir.as_fd(), &self.dir, &name) {
                Ok(text) => drop(files.texts.insert(path, text)),
                // The file was deleted meanwhile.
                Err(_) if fs::symlink_metadata(&path).is_err() => {}
                Err(e) => {
                    let why = e.to_string();
                    if state.reported.get(&path) != Some(&why) {
                        tracing::error!("{} {why}", path.display());
                    }
                    reported.insert(path.clone(), why);
                    files.unreadable.insert(path);
                }
            }
        }
        state.reported = reported;
        Ok(files)
    }

    /// Watches the directory that is at the path now.
    fn watch(&self, state: &mut State) {
        let Some(watcher) = &self.watcher else { return };
        let watch = watcher.watch_files(&self.dir).ok();
        let before = std::mem::replace(&mut state.watch, watch);
        if let Some(before) = before.filter(|_| before != watch) {
            watcher.forget(before);
        }
    }

    /// Waits for a change. Cancel safe.
    pub(super) async fn changed(&self) {
        if !self.is_changed.load(Ordering::Relaxed) {
            tokio::select! {
                () = self.told() => {}
                () = self.noticed() => {}
            }
            self.is_changed.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(GATHER).await;
        self.is_changed.store(false, Ordering::Relaxed);
    }

    /// Waits until the kernel reports a change.
    async fn told(&self) {
        let Some(watcher) = &self.watcher else { return std::future::pending().await };
        // A link is complete when it is created. For other files, the kernel reports the end of writing.
        let is_link = |name: &Path| {
            fs::symlink_metadata(self.dir.join(name)).is_ok_and(|meta| meta.is_symlink() || meta.nlink() > 1)
        };
        loop {
            let Ok(changed) = watcher.changed().await else { return std::future::pending().await };
            let is_change = |change: &Changed| match &change.name {
                Some(name) if change.is_new => is_link(Path::new(name)),
                _ => true,
            };
            if changed.iter().any(is_change) {
                return;
            }
        }
    }

    /// Waits until a scan finds a change, and the next scan finds no further one.
    async fn noticed(&self) {
        loop {
            let at = self.state().next_look;
            tokio::time::sleep_until(at).await;
            let mut state = self.state();
            state.next_look = Instant::now() + LOOK_EVERY;
            let scan = self.scan(state.watch.is_some());
            let is_complete = scan == state.last;
            state.last = scan;
            if is_complete && state.last != state.seen {
                state.seen = state.last.clone();
                return;
            }
        }
    }

    /// The identity of the directory, and of the files whose changes the kernel does not report.
    fn scan(&self, is_watched: bool) -> Scan {
        let mut scan = Scan::new();
        let Ok(dir) = fs::metadata(&self.dir) else { return scan };
        scan.insert(self.dir.clone(), [dir.dev().into(), dir.ino().into(), access(&dir), 0, 0]);
        let paths = fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in paths.filter(|path| is_named_as_manifest(path)) {
            let is_silent = !is_watched || path.is_symlink();
            let identity = |meta: Metadata| {
                let modified = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
                match is_silent {
                    true => {
                        [meta.dev().into(), meta.ino().into(), access(&meta), modified, meta.size().into()]
                    }
                    false => [0, 0, access(&meta), 0, 0],
                }
            };
            scan.insert(path.clone(), fs::metadata(&path).map_or([0; 5], identity));
        }
        scan
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a file of the manifest directory is not run.
#[derive(Debug, thiserror::Error)]
enum UnreadableManifest {
    /// It is a link to a file that does not exist.
    #[error("is a link to {0}, which does not exist; correct or remove it")]
    DanglingLink(String),
    /// The kernel refuses to open the file, or its owner or mode is not trusted.
    #[error("cannot be read: {0}")]
    Open(#[from] io::Error),
    /// The file is too large.
    #[error("is larger than 8 MiB, the limit of a manifest; split it into several files")]
    TooLarge,
    /// The file is not UTF-8.
    #[error("is not text: {0}")]
    NotText(#[from] FromUtf8Error),
}

/// The text of a manifest.
fn read(dir: BorrowedFd<'_>, at: &Path, name: &OsStr) -> Result<String, UnreadableManifest> {
    let failed = |e: io::Error| match rustix::fs::readlinkat(dir, name, Vec::new()) {
        Ok(target) if e.kind() == io::ErrorKind::NotFound => {
            UnreadableManifest::DanglingLink(String::from_utf8_lossy(target.as_bytes()).into_owned())
        }
        _ => e.into(),
    };
    let file = trusted::open_in(dir, at, name).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    if size <= SIZE_MAX {
        file.take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if size > SIZE_MAX || bytes.len() as u64 > SIZE_MAX {
        return Err(UnreadableManifest::TooLarge);
    }
    Ok(String::from_utf8(bytes)?)
}

/// Owner, mode and number of hard links, which decide whether a file is trusted.
fn access(meta: &Metadata) -> i128 {
    // For a directory, the number of links only counts its subdirectories.
    let names = if meta.is_dir() { 0 } else { i128::from(meta.nlink()) };
    names << 64 | i128::from(meta.uid()) << 32 | i128::from(meta.mode())
}

/// Whether a file is a manifest by its name; editors create other files next to it.
fn is_named_as_manifest(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_runtime::NetworkMode;
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn manifests(path: &Path) -> Manifests {
        let (path, reading, pods) =
            (path.to_owned(), RunReadOptions::default(), PodOptions::new(NetworkMode::None));
        Manifests::new(ManifestDir { path, reading, pods })
    }

    #[test]
    fn what_is_not_a_small_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        File::create(at("huge.yaml")).unwrap().set_len(20 << 30).unwrap();
        fs::create_dir(at("dir.yaml")).unwrap();
        symlink("/dev/zero", at("zero.yaml")).unwrap();
        symlink("/etc/passwd", at("passwd.yaml")).unwrap();
        fs::write(at("open.yaml"), "").unwrap();
        fs::set_permissions(at("open.yaml"), PermissionsExt::from_mode(0o666)).unwrap();
        symlink("nowhere", at("dangling.yaml")).unwrap();
        symlink("loop.yaml", at("loop.yaml")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let manifests = [
            ("huge.yaml", "is larger than 8 MiB"),
            ("dir.yaml", "cannot be read: it is a directory"),
            ("zero.yaml", "cannot be read: it is a link to /dev/zero, which is outside of the directory"),
            ("passwd.yaml", "cannot be read: it is a link to /etc/passwd, which is outside of the directory"),
            ("open.yaml", "cannot be read: "),
            ("dangling.yaml", "is a link to nowhere, which does not exist"),
            ("loop.yaml", "cannot be read: Too many levels of symbolic links"),
            ("fifo.yaml", "cannot be read: it is a fifo"),
        ];
        let open = trusted::open_dir(dir.path()).unwrap();
        for (name, why) in manifests {
            let said = read(open.as_fd(), dir.path(), OsStr::new(name)).unwrap_err().to_string();
            assert!(said.starts_with(why), "{name}: {said}");
        }
    }

    #[tokio::test]
    async fn a_directory_that_others_can_write_to_is_not_read() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("way/manifests");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("a.yaml"), "a").unwrap();
        for open in [&dir, &base.path().join("way")] {
            fs::set_permissions(open, PermissionsExt::from_mode(0o777)).unwrap();
            let error = manifests(&dir).files().unwrap_err().to_string();
            assert!(error.ends_with(&format!("chmod go-w {}", open.display())), "{error}");
            fs::set_permissions(open, PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(manifests(&dir).files().unwrap().texts.len(), 1);
        }
    }

    #[tokio::test]
    async fn only_manifests_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.json", ".c.yaml", "d.yaml~", "e.txt", "f.yml"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("g.yaml")).unwrap();
        let files = manifests(dir.path()).files().unwrap();
        assert_eq!(files.texts.values().collect::<Vec<_>>(), ["a.yaml", "b.json", "f.yml"]);
        assert_eq!(files.unreadable, [dir.path().join("g.yaml")].into());
    }
}
