//! The I/O around the decisions: watches, writes, webhooks.
//!
//! | module | does |
//! |---|---|
//! | `queue` | which object is reconciled next, and when |
//! | `store` | the trimmed state of the cluster |
//! | `controllers` | watches the cluster, asks [`crate::decide`], writes |
//! | `launch`, `ending`, `requests` | carry out the steps of a decision |
//! | `leader` | leader election |
//! | `lenient` | reads objects that other people wrote |
//! | `webhook`, `certificates` | answers the API server, over TLS |
//! | `agent` | serves the requests of one node |

mod agent;
mod apply;
mod certificates;
mod controllers;
mod ending;
mod events;
mod launch;
mod leader;
mod lenient;
mod metrics;
mod queue;
mod requests;
mod server;
mod status;
mod store;
mod webhook;

use std::time::{SystemTime, UNIX_EPOCH};

pub use agent::{AgentOptions, run_agent};
pub use apply::{apply, clashes};
pub use metrics::Metrics;
pub use server::{RunOptions, run};
pub use status::{PodStatus, status};
pub use store::Agents;
pub use webhook::Requesters;

pub use crate::decide::admit::Launch;

use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use outrigger_lifecycle::Time;

/// Errors between the operator and the cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server returned an error or cannot be reached.
    #[error("{what}: {}", reason(.cause))]
    Api {
        /// The operation that failed.
        what: String,
        /// The cause. It is not a `source`, because the message already contains it.
        cause: Box<kube::Error>,
    },
    /// There is no usable configuration, socket or runtime.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        let what = what.into();
        move |cause| Error::Api { what, cause: Box::new(cause) }
    }

    /// Whether another client changed, created or removed the object in the meantime. Then the operator
    /// checks again.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Error::Api { cause, .. } if has_code(cause, &[404, 409, 422]))
    }
}

/// A short description of an error: the API server's own message if there is one.
pub(crate) fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// A short description of a watch error.
pub(crate) fn watch_reason(error: &kube::runtime::watcher::Error) -> String {
    use kube::runtime::watcher::Error;
    match error {
        Error::InitialListFailed(error) | Error::WatchStartFailed(error) | Error::WatchFailed(error) => {
            reason(error)
        }
        Error::WatchError(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

fn has_code(error: &kube::Error, codes: &[u16]) -> bool {
    matches!(error, kube::Error::Api(status) if codes.contains(&status.code))
}

/// Connects to the cluster of the kubeconfig, or to the cluster this process runs in.
///
/// # Errors
/// There is no kubeconfig, and the process does not run in a cluster.
pub async fn connect() -> Result<Client, Error> {
    install_crypto();
    let none =
        |error: String| Error::Setup(format!("no cluster: {error}; set KUBECONFIG to a file that is there"));
    let config = match std::env::var_os("KUBERNETES_SERVICE_HOST") {
        Some(_) => Config::infer().await.map_err(|error| none(error.to_string())),
        // The process is not in a pod, so only the kubeconfig matters.
        None => Config::from_kubeconfig(&KubeConfigOptions::default())
            .await
            .map_err(|error| none(error.to_string())),
    }?;
    Client::try_from(config).map_err(|error| Error::Setup(format!("cannot use the cluster: {error}")))
}

/// Installs the cryptography provider that TLS needs, once per process.
pub(crate) fn install_crypto() {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The current time, in milliseconds.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
