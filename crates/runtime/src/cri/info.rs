//! What a runtime is, and what it lacks.

use super::client::{Client, Fault};
use super::wire::{StatusRequest, VersionRequest};
use crate::RuntimeError;

/// A runtime that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriInfo {
    /// Where it listens: `unix:///…`.
    pub endpoint: String,
    /// `containerd`, `cri-o` …
    pub name: String,
    /// Its version.
    pub version: String,
    /// Version of CRI it speaks.
    pub api_version: String,
    /// What pods may ask for and it cannot do, a sentence each.
    pub lacks: Vec<String>,
    /// Whether it can leave out the groups of the image (`supplementalGroupsPolicy: Strict`).
    pub strict_groups: bool,
}

/// What a runtime lacks that does not tell when containers end.
pub(super) const NO_EVENTS: &str =
    "it does not report when containers end: running ones are polled, at most every half second";

impl CriInfo {
    /// Name, version and place in one line.
    pub fn summary(&self) -> String {
        format!("{} {} at {}", self.name, self.version, self.endpoint)
    }

    /// Asks a runtime what it is.
    pub(super) async fn of(client: &Client) -> Result<Self, RuntimeError> {
        let endpoint = format!("unix://{}", client.path().display());
        let limit = client.limits().question;
        let request = VersionRequest { version: "v1".to_owned() };
        let version = client.insist(request, limit).await.map_err(|fault| {
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
            let what = match condition.kind.as_str() {
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

    /// How containers come by a stop signal of the pod's choice.
    pub(super) fn signals(&self) -> Signals {
        match keeps_signals(&self.name, &self.version) {
            true => Signals::Kept,
            false if self.is_containerd() => Signals::Sent,
            false => Signals::Lacking,
        }
    }
}

/// Who knows a container's stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signals {
    /// The runtime: it was told when the container was made.
    Kept,
    /// This process: it has containerd, beside CRI, send it.
    Sent,
    /// Nobody.
    Lacking,
}

/// Whether a version knows of stop signals, which CRI has since Kubernetes 1.33. One that nobody has heard of does.
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
