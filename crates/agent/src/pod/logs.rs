//! Readers of a pod's logs: they may finish after the pod, and its directory, are gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PodContext;
use crate::log::{LogReader, attempts, open_all};

/// Logs of a pod whose directory is about to go, by container and attempt.
type Sealed = BTreeMap<(usize, u32), Vec<Arc<File>>>;

/// Who reads the logs of a pod.
#[derive(Debug, Default)]
pub(super) struct LogReaders(Mutex<Readers>);

#[derive(Debug, Default)]
struct Readers {
    count: usize,
    /// The logs, for those who read them, when their directory goes.
    sealed: Option<Arc<Sealed>>,
    /// The directory has gone.
    gone: bool,
}

impl LogReaders {
    fn lock(&self) -> MutexGuard<'_, Readers> {
        // Each change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodContext {
    /// Begins to read the pod's logs; `None` if they are gone.
    pub fn visit_logs(self: &Arc<Self>) -> Option<LogVisit> {
        let mut readers = self.log_readers.lock();
        if readers.gone && !self.keeps_logs() {
            return None;
        }
        readers.count += 1;
        Some(LogVisit(self.clone()))
    }

    /// The pod's directory is about to go: those who read its logs may finish all the same.
    pub(crate) fn seal_logs(&self) {
        let mut readers = self.log_readers.lock();
        if readers.count > 0 {
            readers.sealed = Some(Arc::new(self.open_logs()));
        }
    }

    /// The pod's directory has gone.
    pub(crate) fn files_are_gone(&self) {
        self.log_readers.lock().gone = true;
    }

    /// Opens all logs of the pod: once open they can be read to their end, whatever becomes of their names.
    fn open_logs(&self) -> Sealed {
        let all = (0..self.containers.len()).flat_map(|container| {
            attempts(&self.log_dir(container)).into_iter().map(move |attempt| (container, attempt))
        });
        all.filter_map(|key| Some((key, open_all(&self.traces(key.0, key.1).log).ok()?))).collect()
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

    /// Where the logs of a container are.
    pub fn dir(&self, container: usize) -> PathBuf {
        self.0.log_dir(container)
    }

    /// The instances of a container that have a log, the first one first. One that is made before its time has a log, but
    /// nothing to say.
    pub fn attempts(&self, container: usize) -> Vec<u32> {
        match self.sealed() {
            Some(sealed) => sealed.keys().filter(|(of, _)| *of == container).map(|(_, n)| *n).collect(),
            None => attempts(&self.dir(container)),
        }
    }

    /// An instance's log.
    pub fn log(&self, container: usize, attempt: u32) -> Option<LogReader> {
        let path = self.0.traces(container, attempt).log;
        let there = LogReader::open(&path).ok();
        there.or_else(|| Some(LogReader::sealed(&path, &self.sealed_log(container, attempt)?)))
    }

    /// The files of an instance's log, once their names are about to go.
    pub fn sealed_log(&self, container: usize, attempt: u32) -> Option<Vec<Arc<File>>> {
        self.sealed()?.get(&(container, attempt)).cloned()
    }

    fn sealed(&self) -> Option<Arc<Sealed>> {
        self.0.log_readers.lock().sealed.clone()
    }
}
