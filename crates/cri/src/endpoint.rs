//! Finds the runtime's socket.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The variable used by crictl and the kubelet's tools.
const VARIABLE: &str = "CONTAINER_RUNTIME_ENDPOINT";

/// The default sockets of runtimes, the most likely first.
const USUAL: [&str; 11] = [
    "/run/containerd/containerd.sock",
    "/run/containerd.sock",
    "/run/crio/crio.sock",
    "/run/crio.sock",
    // This path also works where only the host's /run is mounted, as in the operator's agent.
    "/run/cri-dockerd.sock",
    "/run/cri-dockerd/cri-dockerd.sock",
    "/var/run/cri-dockerd.sock",
    // k3s and rke2
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    // containerd of older versions of Bottlerocket
    "/run/dockershim.sock",
];

/// Why no runtime was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndpointError {
    #[error("CRI endpoint {endpoint:?} is not a unix socket; write unix:///PATH{origin}")]
    NotASocket { endpoint: String, origin: Origin },
    #[error("no container runtime at {}{origin}: {error}", path.display())]
    NoAnswer {
        path: PathBuf,
        origin: Origin,
        #[source]
        error: io::Error,
    },
    #[error(
        "no container runtime found; tried {}; name one with --cri-endpoint unix:///PATH or use --runtime embedded",
        .0.join(", ")
    )]
    NoneFound(Vec<String>),
}

/// The source of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Flag,
    Environment,
}

impl fmt::Display for Origin {
    /// The addition to a message that names the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => Ok(()),
            Origin::Environment => write!(f, " (from {VARIABLE})"),
        }
    }
}

/// Finds the socket: `given`, or the one in the environment, or the first default socket that accepts
/// connections.
///
/// # Errors
/// Lists what was tried and why each failed.
pub(super) fn find(given: Option<&str>) -> Result<PathBuf, EndpointError> {
    let variable = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    choose(given, variable.as_deref(), &USUAL.map(Path::new))
}

fn choose(given: Option<&str>, variable: Option<&str>, usual: &[&Path]) -> Result<PathBuf, EndpointError> {
    if let Some(endpoint) = given.or(variable) {
        let origin = if given.is_some() { Origin::Flag } else { Origin::Environment };
        let path = socket(endpoint)
            .ok_or_else(|| EndpointError::NotASocket { endpoint: endpoint.to_owned(), origin })?;
        return match UnixStream::connect(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(EndpointError::NoAnswer { path, origin, error }),
        };
    }
    let mut tried = Vec::new();
    for path in usual {
        match UnixStream::connect(path) {
            Ok(_) => return Ok(path.to_path_buf()),
            Err(error) => tried.push(format!("{} ({})", path.display(), brief(&error))),
        }
    }
    Err(EndpointError::NoneFound(tried))
}

fn brief(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "missing".to_owned(),
        io::ErrorKind::ConnectionRefused => "nothing is listening".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// Parses `unix:///PATH`, `unix:PATH` or a path.
fn socket(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.strip_prefix("unix://").or(endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    path.starts_with('/').then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_unix_socket_has_three_spellings() {
        for given in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
            assert_eq!(socket(given), Some(PathBuf::from("/run/a.sock")), "{given}");
        }
        for given in ["tcp://127.0.0.1:1", "a.sock", "unix://a.sock", ""] {
            assert_eq!(socket(given), None, "{given}");
        }
    }

    #[test]
    fn every_usual_place_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let flag = dir.path().join("crio.sock");
        assert!(choose(flag.to_str(), None, &[]).is_err(), "CRR-D-01");
        let _listener = UnixListener::bind(&flag).unwrap();
        assert_eq!(choose(flag.to_str(), None, &[]).unwrap(), flag, "CRR-D-02");
        for (id, place) in [
            ("CRR-D-03", "/run/containerd.sock"),
            ("CRR-D-04", "/run/containerd/containerd.sock"),
            ("CRR-D-05", "/run/crio.sock"),
            ("CRR-D-06", "/run/crio/crio.sock"),
            ("CRR-D-07", "/run/cri-dockerd.sock"),
            ("CRR-D-08", "/run/cri-dockerd/cri-dockerd.sock"),
        ] {
            assert!(USUAL.contains(&place), "{id}");
            let here = dir.path().join(&place[1..]);
            std::fs::create_dir_all(here.parent().unwrap()).unwrap();
            let listener = UnixListener::bind(&here).unwrap();
            let places: Vec<PathBuf> = USUAL.iter().map(|usual| dir.path().join(&usual[1..])).collect();
            let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
            assert_eq!(choose(None, None, &places).unwrap(), here, "{id}");
            drop(listener);
            std::fs::remove_file(here).unwrap();
            assert!(choose(None, None, &places).is_err(), "CRR-D-09");
        }
    }

    #[test]
    fn what_was_tried_is_told_and_a_dead_socket_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(at("dead")).unwrap());
        let (missing, dead, live) = (at("missing"), at("dead"), at("live"));
        let error = choose(None, None, &[&missing, &dead]).unwrap_err().to_string();
        assert!(
            error.contains("missing (missing)") && error.contains("dead (nothing is listening)"),
            "{error}"
        );
        assert!(error.contains("--cri-endpoint"), "{error}");
        let _listener = UnixListener::bind(&live).unwrap();
        assert_eq!(choose(None, None, &[&missing, &dead, &live]).unwrap(), live);
        // A default endpoint does not replace an explicit one.
        let error = choose(None, dead.to_str(), &[&live]).unwrap_err().to_string();
        assert!(error.contains("CONTAINER_RUNTIME_ENDPOINT"), "{error}");
        assert_eq!(choose(live.to_str(), dead.to_str(), &[]).unwrap(), live);
    }
}
