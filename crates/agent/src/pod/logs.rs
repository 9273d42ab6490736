//! Readers of a pod's logs, which may finish after the pod and its directory are deleted.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PodContext;
use crate::log::{LogReader, attempts, open_all};

/// Open logs of a pod whose directory is about to be deleted, by container and attempt.
type Sealed = BTreeMap<(usize, u32), Vec<Arc<File>>>;

/// The readers of a pod's logs.
#[derive(Debug, Default)]
pub(super) struct LogReaders(Mutex<Readers>);

#[derive(Debug, Default)]
struct Readers {
    count: usize,
    /// The open logs for the readers, once the directory is about to be deleted.
    sealed: Option<Arc<Sealed>>,
    /// Whether the directory is deleted.
    gone: bool,
}

impl LogReaders {
    fn lock(&self) -> MutexGuard<'_, Readers> {
        // Each change is a single assignment, so the value is valid even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodContext {
    /// Starts reading the pod's logs. Returns `None` if they are deleted.
    pub fn visit_logs(self: &Arc<Self>) -> Option<LogVisit> {
        let mut readers = self.log_readers.lock();
        if readers.gone && !self.keeps_logs() {
            return None;
        }
        readers.count += 1;
        Some(LogVisit(self.clone()))
    }

    /// Called before the pod's directory is deleted: opens the logs so that readers can finish.
    pub(crate) fn seal_logs(&self) {
        let mut readers = self.log_readers.lock();
        if readers.count > 0 {
            readers.sealed = Some(Arc::new(self.open_logs()));
        }
    }

    /// Called after the pod's directory is deleted.
    pub(crate) fn files_are_gone(&self) {
        self.log_readers.lock().gone = true;
    }

    /// Opens all logs of the pod. Open files can be read to their end even after they are deleted.
    fn open_logs(&self) -> Sealed {
        let all = (0..self.containers.len()).flat_map(|container| {
            attempts(&self.log_dir(container)).into_iter().map(move |attempt| (container, attempt))
        });
        all.filter_map(|key| Some((key, open_all(&self.instance_paths(key.0, key.1).log).ok()?))).collect()
    }
}

/// A reader of a pod's logs, until this is dropped.
#[derive(Debug)]
pub struct LogVisit(Arc<PodContext>);

impl Drop for LogVisit {
    fn drop(&mut self) {
        let mut readers = self.0.log_readers.lock();
        readers.count -= 1;
        if readers.count == 0 {
            readers.sealed = None;
        }
    }
}

impl LogVisit {
    /// The pod.
    pub fn pod(&self) -> &Arc<PodContext> {
        &self.0
    }

    /// The directory of a container's logs.
    pub fn dir(&self, container: usize) -> PathBuf {
        self.0.log_dir(container)
    }

    /// The instances of a container that have a log, oldest first. An instance that was created ahead has an
    /// empty log.
    pub fn attempts(&self, container: usize) -> Vec<u32> {
        match self.sealed() {
            Some(sealed) => sealed.keys().filter(|(of, _)| *of == container).map(|(_, n)| *n).collect(),
            None => attempts(&self.dir(container)),
        }
    }

    /// An instance's log.
    pub fn log(&self, container: usize, attempt: u32) -> Option<LogReader> {
        let path = self.0.instance_paths(container, attempt).log;
        let there = LogReader::open(&path).ok();
        there.or_else(|| Some(LogReader::sealed(&path, &self.sealed_log(container, attempt)?)))
    }

    /// The files of an instance's log, if they were opened before the deletion.
    pub fn sealed_log(&self, container: usize, attempt: u32) -> Option<Vec<Arc<File>>> {
        self.sealed()?.get(&(container, attempt)).cloned()
    }

    fn sealed(&self) -> Option<Arc<Sealed>> {
        self.0.log_readers.lock().sealed.clone()
    }
}
