//! The output files of a run: the events file, and the status file with the current status of all pods.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::{ContainerRef, FieldPath};
use outrigger_manifest::to_value;
use outrigger_runtime::lines;
use serde::Serialize;
use serde_json::Value;

use crate::work::PlannedPod;

/// `lifecycle.type` of a pod's containers. Kubernetes' types have no field for it.
pub(crate) type LifecycleTypes = BTreeMap<ContainerRef, String>;

/// Maximum number of ended pods in the file; older ones are omitted.
const OVER_MAX: usize = 500;

/// With many pods, changes within this time are written together.
const GATHER: Duration = Duration::from_millis(10);

/// The events file: JSON Lines, each line written completely.
#[derive(Debug)]
pub(crate) struct EventsFile(Option<Mutex<Lines>>);

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
    /// Data that is not written yet.
    pending: Vec<u8>,
    /// Whether the last write failed. An error is logged only for the first failure.
    losing: bool,
    /// Whether any write failed, so that events are missing in the file.
    is_incomplete: bool,
}

impl EventsFile {
    /// Creates or truncates the file.
    pub(crate) fn create(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(EventsFile::none()) };
        let lines = Lines {
            path: path.to_owned(),
            file: File::create(path)?,
            pending: Vec::new(),
            losing: false,
            is_incomplete: false,
        };
        Ok(EventsFile(Some(Mutex::new(lines))))
    }

    /// No events file.
    pub(crate) fn none() -> Self {
        EventsFile(None)
    }

    /// Whether there is an events file.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Whether events were lost.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.0.as_ref().is_some_and(|file| lock(file).is_incomplete)
    }

    /// Appends lines with a single write.
    pub(crate) fn append(&self, lines: &str) {
        if let Some(file) = &self.0 {
            lock(file).append(lines.as_bytes());
        }
    }
}

impl Lines {
    fn append(&mut self, lines: &[u8]) {
        self.pending.extend_from_slice(lines);
        match lines::append(&mut self.file, &mut self.pending) {
            Ok(()) => self.losing = false,
            Err(e) => {
                self.is_incomplete = true;
                // Errors are shown at every verbosity.
                if !std::mem::replace(&mut self.losing, true) {
                    tracing::error!("events are lost: cannot write {}: {e}", self.path.display());
                }
            }
        }
    }
}

/// The status file: one Pod, or a List of all objects.
#[derive(Clone)]
pub(crate) struct StatusFile(Option<Arc<Mutex<Objects>>>);

/// The format of a status file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusContent {
    /// One Pod.
    Pod,
    /// A List of all objects.
    List,
}

impl StatusContent {
    /// The format for these pods.
    pub(crate) fn for_pods(pods: &[PlannedPod]) -> Self {
        match pods {
            [one] if one.manifest.origin.kind == "Pod" => StatusContent::Pod,
            _ => StatusContent::List,
        }
    }
}

struct Objects {
    path: PathBuf,
    /// Whether the file contains a single Pod.
    alone: bool,
    /// As JSON: workloads, then pods in the order of creation.
    workloads: Vec<String>,
    pods: Vec<String>,
    /// Ended pods, oldest first.
    over: VecDeque<usize>,
    /// Whether a write is scheduled.
    scheduled: bool,
    /// Whether the last write failed. A warning is logged only for the first failure.
    stale: bool,
}

impl StatusFile {
    /// Creates a status file with this format.
    pub(crate) fn new(path: Option<&Path>, content: StatusContent) -> Self {
        StatusFile(path.map(|path| {
            Arc::new(Mutex::new(Objects {
                path: path.to_owned(),
                alone: content == StatusContent::Pod,
                workloads: Vec::new(),
                pods: Vec::new(),
                over: VecDeque::new(),
                scheduled: false,
                stale: false,
            }))
        }))
    }

    /// Checks that the file can be written, so that nothing is started without its status.
    pub(crate) fn check(&self) -> io::Result<()> {
        let Some(status_file) = &self.0 else { return Ok(()) };
        let (_, temporary) = target(&lock(status_file).path)?;
        File::create(&temporary)?;
        fs::remove_file(&temporary)
    }

    /// Whether there is a status file.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the last status could not be written.
    pub(crate) fn is_stale(&self) -> bool {
        self.0.as_ref().is_some_and(|status_file| lock(status_file).stale)
    }

    /// Updates a pod.
    pub(crate) fn put(&self, index: usize, pod: &Pod, types: &LifecycleTypes) {
        let whole = to_value(pod, &FieldPath::root(), types);
        self.place(whole, |objects| slot(&mut objects.pods, index));
    }

    /// Updates a workload.
    pub(crate) fn put_object(&self, index: usize, workload: &impl Serialize, types: &LifecycleTypes) {
        let whole = to_value(workload, &FieldPath::spec("template"), types);
        self.place(whole, |objects| slot(&mut objects.workloads, index));
    }

    fn place(&self, object: serde_json::Result<Value>, slot: impl Fn(&mut Objects) -> &mut String) {
        let Some(status_file) = &self.0 else { return };
        let mut objects = lock(status_file);
        *slot(&mut objects) = match object {
            Ok(object) => object.to_string(),
            Err(e) => return tracing::warn!("cannot write a status: {e}"),
        };
        if objects.alone {
            objects.replace();
        } else if !objects.scheduled {
            objects.scheduled = true;
            let status_file = status_file.clone();
            tokio::spawn(async move {
                tokio::time::sleep(GATHER).await;
                lock(&status_file).replace();
            });
        }
    }

    /// Marks a pod as ended.
    pub(crate) fn is_over(&self, index: usize) {
        let Some(status_file) = &self.0 else { return };
        let mut objects = lock(status_file);
        objects.over.push_back(index);
        if objects.over.len() > OVER_MAX
            && let Some(oldest) = objects.over.pop_front()
            && let Some(pod) = objects.pods.get_mut(oldest)
        {
            *pod = String::new();
        }
    }

    /// Writes pending changes.
    pub(crate) fn finish(&self) {
        if let Some(status_file) = &self.0 {
            lock(status_file).replace();
        }
    }
}

fn slot(list: &mut Vec<String>, index: usize) -> &mut String {
    if list.len() <= index {
        list.resize(index + 1, String::new());
    }
    &mut list[index]
}

impl Objects {
    fn replace(&mut self) {
        self.scheduled = false;
        // Pods of a node are numbered across its runs, so most numbers may belong to other runs.
        let all = self.workloads.iter().chain(&self.pods);
        let known: Vec<&str> = all.map(String::as_str).filter(|o| !o.is_empty()).collect();
        let text = match known.as_slice() {
            [one] if self.alone => (*one).to_owned(),
            [] if self.alone => return,
            all => {
                format!(r#"{{"apiVersion":"v1","kind":"List","metadata":{{}},"items":[{}]}}"#, all.join(","))
            }
        };
        match replace_file(&self.path, &text) {
            Ok(()) => self.stale = false,
            Err(e) if !std::mem::replace(&mut self.stale, true) => {
                tracing::error!("the status is out of date: cannot write {}: {e}", self.path.display());
            }
            Err(_) => {}
        }
    }
}

/// Replaces a file atomically: readers see either the old or the new content.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let (path, temporary) = target(path)?;
    let replaced = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    replaced
}

/// The file to be replaced, and the temporary one that replaces it.
fn target(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    // A link is kept and its target replaced. A device or a pipe must not be replaced by a file.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok((path, temporary.into()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic the data may be incomplete, but continuing is better than failing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    }

    fn none() -> LifecycleTypes {
        LifecycleTypes::new()
    }

    #[test]
    fn only_files_are_replaced_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file, link) = (dir.path().join("s"), dir.path().join("f"), dir.path().join("l"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        for path in [&socket, &link] {
            assert!(replace_file(path, "text").unwrap_err().to_string().contains("not a regular file"));
        }
        assert!(!fs::symlink_metadata(&socket).unwrap().is_file());
        fs::remove_file(&link).unwrap();
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace_file(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[tokio::test]
    async fn one_pod_is_a_pod_and_many_are_a_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        let read = || -> Value { serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap() };
        StatusFile::new(Some(&path), StatusContent::Pod).put(0, &pod("a"), &none());
        assert_eq!((&read()["kind"], &read()["metadata"]["name"]), (&json!("Pod"), &json!("a")));
        let status_file = StatusFile::new(Some(&path), StatusContent::List);
        status_file.put(1, &pod("b"), &none());
        status_file.put(0, &pod("a"), &none());
        status_file.finish();
        assert_eq!(read()["kind"], "List");
        let names: Vec<Value> =
            read()["items"].as_array().unwrap().iter().map(|p| p["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }
}
