//! Checks whether this machine has a container runtime that can run pods.

use outrigger_runtime::doctor::{Finding, Level, finding};

use crate::{CriConfig, CriRuntime};

/// Looks for a container runtime and asks what it can do.
pub async fn examine() -> Finding {
    match CriRuntime::connect(CriConfig::default()).await {
        Ok(runtime) => {
            let (found, lacks) = (runtime.info().summary(), runtime.lacks().await);
            match lacks.is_empty() {
                true => {
                    finding("container runtime", Level::Ok, found, "pods can run on it with --runtime cri")
                }
                false => finding("container runtime", Level::Info, found, lacks.join("; ")),
            }
        }
        // With `--runtime cri`, a run lists the sockets it tried.
        Err(_) => finding("container runtime", Level::Info, "none found", "only needed for --runtime cri"),
    }
}
