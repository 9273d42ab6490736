//! Information about a runtime, and the features that it lacks.

use super::client::{Client, Fault};
use super::wire::{StatusRequest, VersionRequest};
use outrigger_runtime::RuntimeError;

/// A runtime that has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriInfo {
    /// Its endpoint: `unix:///…`.
    pub endpoint: String,
    /// Its name, such as `containerd` or `cri-o`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of CRI that it supports.
    pub api_version: String,
    /// Features of pods that it does not support, one sentence each.
    pub lacks: Vec<String>,
    /// Whether it can ignore the groups in the image (`supplementalGroupsPolicy: Strict`).
    pub strict_groups: bool,
}

/// The sentence for a runtime that does not report exits.
pub(super) const NO_EVENTS: &str =
    "it does not report when containers end: running ones are polled, at most every half second";

impl CriInfo {
    /// Its name, version and endpoint in one line.
    pub fn summary(&self) -> String {
        format!("{} {} at {}", self.name, self.version, self.endpoint)
    }

    /// Queries a runtime.
    pub(super) async fn query(client: &Client) -> Result<Self, RuntimeError> {
        let endpoint = format!("unix://{}", client.path().display());
        let limit = client.limits().question;
        let request = VersionRequest { version: "v1".to_owned() };
        let version = client.call_until_answered(request, limit).await.map_err(|fault| {
            RuntimeError::Other(match fault {
                Fault::Unimplemented(_) => format!(
                    "the service at {endpoint} does not support CRI v1; in containerd's configuration \"cri\" must not be among disabled_plugins"
                ),
                fault => format!("the container runtime at {endpoint} does not answer: {fault}"),
            })
        })?;
        let answer = client.call(StatusRequest {}, limit).await.unwrap_or_default();
        let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
        let strict_groups = answer.features.is_some_and(|features| features.supplemental_groups_policy);
        let mut lacks = Vec::new();
        for condition in conditions.iter().filter(|condition| !condition.status) {
            let what = match condition.r#type.as_str() {
                "NetworkReady" => "only pods with hostNetwork can run: no network is set up",
                "RuntimeReady" => "no pod can run: the runtime is not ready",
                _ => continue,
            };
            lacks.push(format!("{what} ({})", condition.message));
        }
        let mut info = CriInfo {
            endpoint,
            name: version.runtime_name,
            version: version.runtime_version,
            api_version: version.runtime_api_version,
            lacks,
            strict_groups,
        };
        if info.signals() == Signals::Lacking {
            let text = "lifecycle.stopSignal has no effect: containers get the signal of their image";
            info.lacks.push(text.to_owned());
        }
        Ok(info)
    }

    pub(super) fn is_containerd(&self) -> bool {
        self.name == "containerd"
    }

    /// How a container's stop signal is delivered.
    pub(super) fn signals(&self) -> Signals {
        match keeps_signals(&self.name, &self.version) {
            true => Signals::Kept,
            false if self.is_containerd() => Signals::Sent,
            false => Signals::Lacking,
        }
    }
}

/// How a container's stop signal is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signals {
    /// The runtime stores it when the container is created.
    Kept,
    /// This process sends it through containerd's own API.
    Sent,
    /// It cannot be delivered.
    Lacking,
}

/// Whether a version supports stop signals, which CRI has had since Kubernetes 1.33. Unknown runtimes are
/// assumed to support them.
fn keeps_signals(name: &str, version: &str) -> bool {
    let since = match name {
        "containerd" => (2, 2),
        "cri-o" => (1, 33),
        _ => return true,
    };
    let number =
        |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
    let mut parts = version.trim_start_matches('v').split('.').map(number);
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= since,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_do_not_keep_stop_signals() {
        let table = [
            ("containerd", "1.6.20~ds1", Signals::Sent),
            ("containerd", "v2.2.0", Signals::Kept),
            ("containerd", "2.1.4", Signals::Sent),
            ("cri-o", "1.32.1", Signals::Lacking),
            ("cri-o", "1.33.0-dev", Signals::Kept),
            ("containerd", "custom", Signals::Kept),
            ("other", "0.1", Signals::Kept),
        ];
        for (name, version, expected) in table {
            let info = CriInfo {
                endpoint: String::new(),
                name: name.to_owned(),
                version: version.to_owned(),
                api_version: "v1".to_owned(),
                lacks: Vec::new(),
                strict_groups: false,
            };
            assert_eq!(info.signals(), expected, "{name} {version}");
        }
    }
}
