//! What a runtime is, and what it lacks.

use super::client::{Client, Fault};
use super::wire::{StatusRequest, VersionRequest, VersionResponse};
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
}

impl CriInfo {
    /// Asks a runtime what it is.
    pub(super) async fn of(client: &Client) -> Result<Self, RuntimeError> {
        let endpoint = format!("unix://{}", client.path().display());
        let limit = client.limits().question;
        let request = VersionRequest { version: "v1".to_owned() };
        let version = client.call(request, limit).await.map_err(|fault| {
            RuntimeError::Other(match fault {
                Fault::Unimplemented(_) => format!(
                    "what listens at {endpoint} does not speak CRI v1; in containerd's configuration \"cri\" must not be among disabled_plugins"
                ),
                fault => format!("the container runtime at {endpoint} does not answer: {fault}"),
            })
        })?;
        let status = client.call(StatusRequest {}, limit).await.ok().and_then(|answer| answer.status);
        let conditions = status.map(|status| status.conditions).unwrap_or_default();
        let mut lacks = lacks(&version);
        for condition in conditions.iter().filter(|condition| !condition.status) {
            let what = match condition.kind.as_str() {
                "NetworkReady" => "only pods with hostNetwork can run: no network is set up",
                "RuntimeReady" => "no pod can run: the runtime is not ready",
                _ => continue,
            };
            lacks.push(format!("{what} ({})", condition.message));
        }
        Ok(CriInfo {
            endpoint,
            name: version.runtime_name,
            version: version.runtime_version,
            api_version: version.runtime_api_version,
            lacks,
        })
    }

    pub(super) fn is_containerd(&self) -> bool {
        self.name == "containerd"
    }
}

/// What a version is known to lack.
fn lacks(version: &VersionResponse) -> Vec<String> {
    let mut lacks = Vec::new();
    let number = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    let parts: Vec<Option<u32>> =
        version.runtime_version.trim_start_matches('v').split('.').map(number).collect();
    let (major, minor) = match parts[..] {
        [Some(major), Some(minor), ..] => (major, minor),
        _ => return lacks,
    };
    let stop_signals_since = match version.runtime_name.as_str() {
        "containerd" => (2, 2),
        "cri-o" => (1, 33),
        _ => return lacks,
    };
    if (major, minor) < stop_signals_since {
        lacks.push("lifecycle.stopSignal has no effect: containers get the signal of their image".to_owned());
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_old_versions_lack_is_known() {
        let table = [
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "v2.2.0", false),
            ("containerd", "2.1.4", true),
            ("cri-o", "1.32.1", true),
            ("cri-o", "1.33.0-dev", false),
            ("containerd", "custom", false),
            ("other", "0.1", false),
        ];
        for (name, version, expected) in table {
            let answer = VersionResponse {
                runtime_name: name.to_owned(),
                runtime_version: version.to_owned(),
                runtime_api_version: "v1".to_owned(),
            };
            assert_eq!(!lacks(&answer).is_empty(), expected, "{name} {version}");
        }
    }
}
