//! Helpers for tests of a runtime: async tests by name, waiting with a deadline, logs, and the spec of a
//! sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use outrigger_runtime::{NetworkMode, Resources, SandboxId, SandboxSpec};

/// A step that takes longer than this hangs.
pub const DEADLINE: Duration = Duration::from_secs(40);

/// A test by its function's name.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        /// The tests of this file.
        pub fn trials() -> Vec<libtest_mimic::Trial> {
            let prefix = module_path!().rsplit("::").next().unwrap_or_default();
            vec![$($crate::trial::trial(format!("{prefix}::{}", stringify!($name)), $name)),*]
        }
    };
}

/// Runs an async test on its own tokio runtime.
pub fn trial<F>(name: String, test: fn() -> F) -> Trial
where
    F: Future<Output = ()> + 'static,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime
            .block_on(async { tokio::time::timeout(DEADLINE * 6, test()).await })
            .map_err(|_| Failed::from("still not over"))
    })
}

/// A sandbox without a network, with nothing else set.
pub fn sandbox_spec(id: SandboxId, pod_dir: PathBuf) -> SandboxSpec {
    SandboxSpec {
        pod_dir,
        id,
        pod_name: "test".to_owned(),
        pod_namespace: "default".to_owned(),
        pod_uid: "0".to_owned(),
        hostname: "test-pod".to_owned(),
        network: NetworkMode::None,
        ports: Vec::new(),
        host_pid: false,
        host_ipc: false,
        share_pid: false,
        user_namespace: Default::default(),
        host_paths: Vec::new(),
        images: Vec::new(),
        privileged: false,
        runtime_class: None,
        sysctls: BTreeMap::new(),
        resources: Resources::default(),
        stop: Default::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// The messages of a log in CRI format.
pub fn log_text(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(|line| format!("{line}\n")).collect()
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !check() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
