//! Determines the servers for a registry name: the registry itself and its mirrors, with or without TLS. They
//! are read from `registries.conf`, which podman, skopeo and CRI-O use too.

use std::env;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::fault::Fault;
use super::reference::Name;

/// One server to ask for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The host and port.
    pub(super) host: String,
    pub(super) repository: String,
    pub(super) tls: Tls,
}

/// The protocol for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Tls {
    /// https, with a checked certificate.
    Verified,
    /// https, without checking the certificate.
    Unverified,
    /// http.
    None,
}

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    registry: Vec<Registry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Registry {
    prefix: Option<String>,
    location: Option<String>,
    insecure: bool,
    blocked: bool,
    mirror: Vec<Mirror>,
}

#[derive(Debug, Deserialize)]
struct Mirror {
    location: String,
    #[serde(default)]
    insecure: bool,
}

/// The settings of `registries.conf` that matter here.
#[derive(Debug, Default)]
pub(super) struct Registries {
    registries: Vec<Registry>,
}

impl Registries {
    /// Reads `$CONTAINERS_REGISTRIES_CONF`, or else the user's file, or else the machine's file, and the
    /// directory beside it. A file that cannot be read is reported and skipped, because most files do not
    /// matter for the requested image.
    pub(super) fn load() -> Self {
        let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(file) = var("CONTAINERS_REGISTRIES_CONF") {
            return Self::read(&[file]);
        }
        let user = var("HOME").map(|home| home.join(".config/containers/registries.conf"));
        let main = user.filter(|file| file.exists()).unwrap_or("/etc/containers/registries.conf".into());
        let mut files = vec![main.clone()];
        let drop_ins = main.with_extension("conf.d");
        if let Ok(entries) = std::fs::read_dir(drop_ins) {
            let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            more.retain(|path| path.extension().is_some_and(|ext| ext == "conf"));
            more.sort();
            files.extend(more);
        }
        Self::read(&files)
    }

    fn read(files: &[PathBuf]) -> Self {
        let mut all = Registries::default();
        for file in files {
            match std::fs::read_to_string(file) {
                Ok(text) => all.add(file, &text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(file = %file.display(), %error, "cannot read registry settings"),
            }
        }
        all
    }

    fn add(&mut self, file: &Path, text: &str) {
        match toml::from_str::<Config>(text) {
            Ok(config) => self.registries.extend(config.registry),
            Err(error) => tracing::warn!(file = %file.display(), %error, "cannot read registry settings"),
        }
    }

    /// The servers to try, the preferred one first.
    pub(super) fn endpoints(&self, name: &Name) -> Result<Vec<Endpoint>, Fault> {
        let full = format!("{}/{}", name.registry, name.repository);
        let best = self
            .registries
            .iter()
            .filter_map(|registry| {
                let prefix = registry.prefix.as_deref().or(registry.location.as_deref())?;
                Some((matching(prefix, &full)?, prefix, registry))
            })
            // Among equal prefixes, the later file takes precedence.
            .max_by_key(|(length, ..)| *length);
        let mut endpoints = Vec::new();
        let Some((length, prefix, registry)) = best else {
            push(&mut endpoints, &full, false);
            return Ok(endpoints);
        };
        if registry.blocked {
            return Err(Fault::new(format!("registries.conf blocks {prefix}")));
        }
        let rest = &full[length..];
        for mirror in &registry.mirror {
            push(&mut endpoints, &format!("{}{rest}", mirror.location), mirror.insecure);
        }
        let own = match &registry.location {
            Some(location) if !prefix.starts_with("*.") => format!("{location}{rest}"),
            _ => full.clone(),
        };
        push(&mut endpoints, &own, registry.insecure);
        Ok(endpoints)
    }
}

/// The length of `prefix` if it covers `full`, or else `None`.
fn matching(prefix: &str, full: &str) -> Option<usize> {
    if let Some(suffix) = prefix.strip_prefix('*') {
        let host = full.split('/').next().unwrap_or(full);
        return (suffix.starts_with('.') && host.ends_with(suffix)).then_some(host.len());
    }
    let rest = full.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(prefix.len())
}

fn push(endpoints: &mut Vec<Endpoint>, location: &str, insecure: bool) {
    let (host, repository) = location.split_once('/').unwrap_or((location, ""));
    // The server of Docker Hub has another name.
    let server = if host == "docker.io" { "registry-1.docker.io" } else { host };
    let ways: &[Tls] = if is_loopback(host) {
        &[Tls::None, Tls::Unverified]
    } else if insecure {
        &[Tls::Unverified, Tls::None]
    } else {
        &[Tls::Verified]
    };
    endpoints.extend(ways.iter().map(|tls| Endpoint {
        host: server.to_owned(),
        repository: repository.to_owned(),
        tls: *tls,
    }));
}

/// Whether the host is this machine. TLS is not needed there, and certificates are rare.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(host),
    };
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(conf: &str, name: &str) -> Result<Vec<String>, String> {
        let mut registries = Registries::default();
        registries.add(Path::new("test"), conf);
        let endpoints =
            registries.endpoints(&Name::parse(name).unwrap()).map_err(|fault| fault.to_string())?;
        Ok(endpoints.iter().map(|e| format!("{:?} {}/{}", e.tls, e.host, e.repository)).collect())
    }

    #[test]
    fn without_settings_tls_is_left_out_on_this_machine_only() {
        for (name, wanted) in [
            ("busybox", &["Verified registry-1.docker.io/library/busybox"][..]),
            ("quay.io/a/b", &["Verified quay.io/a/b"]),
            ("localhost:5000/a", &["None localhost:5000/a", "Unverified localhost:5000/a"]),
            ("127.8.0.1:5000/a", &["None 127.8.0.1:5000/a", "Unverified 127.8.0.1:5000/a"]),
            ("[::1]:5000/a", &["None [::1]:5000/a", "Unverified [::1]:5000/a"]),
            ("10.0.0.1:5000/a", &["Verified 10.0.0.1:5000/a"]),
        ] {
            assert_eq!(asked("", name).unwrap(), wanted, "{name}");
        }
    }

    #[test]
    fn settings_of_registries_conf() {
        let conf = r#"
            unqualified-search-registries = ["docker.io"]
            [[registry]]
            location = "lan.example:5000"
            insecure = true
            [[registry]]
            prefix = "docker.io"
            location = "docker.io"
            [[registry.mirror]]
            location = "cache.example/hub"
            [[registry]]
            prefix = "quay.io/team"
            location = "own.example/moved"
            [[registry]]
            prefix = "bad.example"
            blocked = true
            [[registry]]
            prefix = "*.corp.example"
            insecure = true
        "#;
        assert_eq!(
            asked(conf, "lan.example:5000/a").unwrap(),
            ["Unverified lan.example:5000/a", "None lan.example:5000/a"]
        );
        assert_eq!(
            asked(conf, "busybox").unwrap(),
            ["Verified cache.example/hub/library/busybox", "Verified registry-1.docker.io/library/busybox"]
        );
        assert_eq!(asked(conf, "quay.io/team/app").unwrap(), ["Verified own.example/moved/app"]);
        assert_eq!(asked(conf, "quay.io/teamwork/app").unwrap(), ["Verified quay.io/teamwork/app"]);
        assert_eq!(asked(conf, "a.corp.example/x").unwrap()[0], "Unverified a.corp.example/x");
        assert!(asked(conf, "bad.example/x").unwrap_err().contains("blocks"));
    }
}
