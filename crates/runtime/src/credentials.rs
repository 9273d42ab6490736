//! Credentials for registries: the pod's pull secrets first, then the files of docker, podman and skopeo.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

/// A helper that asks for a password interactively is cancelled after this time.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// The name under which docker keeps the credentials of Docker Hub.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// User name and password.
    Basic {
        /// The name of the user.
        username: String,
        /// The password of the user.
        password: String,
    },
    /// A refresh token, exchanged for an access token at the registry's token service.
    IdentityToken(String),
    /// A ready access token.
    Token(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credential::Basic { username, .. } => write!(f, "Basic({username})"),
            Credential::IdentityToken(_) => write!(f, "IdentityToken"),
            Credential::Token(_) => write!(f, "Token"),
        }
    }
}

/// Matching credentials, the best first, and the places that were searched.
#[derive(Debug, Default)]
pub struct Found {
    /// The credentials to try, in this order.
    pub credentials: Vec<Credential>,
    /// One text for each place that was searched, for the error message if no credential works.
    looked_at: Vec<String>,
}

impl Found {
    /// The places that were searched for credentials, for messages.
    pub fn places(&self) -> String {
        self.looked_at.join(", ")
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl DockerConfig {
    /// Reads `config.json`, `auth.json` or the older `.dockercfg`, whose entries are at the top level.
    fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let modern = ["auths", "credHelpers", "credsStore"].iter().any(|key| value.get(key).is_some());
        let looks_old = value
            .as_object()
            .is_some_and(|map| map.values().any(|v| v.get("auth").or(v.get("username")).is_some()));
        if !modern && looks_old {
            serde_json::from_value(value).map(|auths| DockerConfig { auths, ..Default::default() })
        } else {
            serde_json::from_value(value)
        }
    }
}

impl AuthEntry {
    fn credential(&self) -> Option<Credential> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = given(&self.identitytoken) {
            return Some(Credential::IdentityToken(token));
        }
        if let Some(token) = given(&self.registrytoken) {
            return Some(Credential::Token(token));
        }
        if let Some(username) = given(&self.username) {
            return Some(Credential::Basic { username, password: self.password.clone().unwrap_or_default() });
        }
        // Hand-written files often have no padding.
        let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let bytes =
            GeneralPurpose::new(&alphabet::STANDARD, config).decode(given(&self.auth)?.trim()).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (username, password) = text.split_once(':')?;
        let password = password.trim_end_matches('\0').to_owned();
        Some(Credential::Basic { username: username.to_owned(), password })
    }
}

/// How well a key of a configuration matches: the length of the key, or `None` if it does not match.
fn fits(key: &str, registry: &str, repository: &str) -> Option<usize> {
    let key = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or(key.strip_suffix("/v2")).unwrap_or(key);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let hubs = is_hub(host) && is_hub(registry);
    let host_fits = host.eq_ignore_ascii_case(registry) || hubs || glob(host, registry);
    let path_fits = path.is_empty()
        || repository == path
        || repository.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    (host_fits && path_fits).then_some(key.len())
}

/// Whether a host is Docker Hub, which has several names.
fn is_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// Matches patterns such as `*.example.com`, as Kubernetes does. A star stands for a label or a part of one.
fn glob(pattern: &str, host: &str) -> bool {
    if !pattern.contains('*') {
        return false;
    }
    let (pattern, host): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), host.split('.').collect());
    pattern.len() == host.len()
        && pattern.iter().zip(&host).all(|(pattern, label)| match pattern.split_once('*') {
            Some((start, end)) => {
                label.len() >= start.len() + end.len() && label.starts_with(start) && label.ends_with(end)
            }
            None => pattern.eq_ignore_ascii_case(label),
        })
}

/// The files with credentials, in the order they are read.
pub fn default_files() -> Vec<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = var("HOME");
    let mut files = Vec::new();
    files.extend(var("REGISTRY_AUTH_FILE"));
    files.extend(var("XDG_RUNTIME_DIR").map(|dir| dir.join("containers/auth.json")));
    let config = var("XDG_CONFIG_HOME").or(home.as_ref().map(|home| home.join(".config")));
    files.extend(config.map(|dir| dir.join("containers/auth.json")));
    let docker = var("DOCKER_CONFIG").or(home.map(|home| home.join(".docker")));
    files.extend(docker.map(|dir| dir.join("config.json")));
    files
}

/// Collects the credentials for `registry`/`repository` from pull secrets and files.
pub async fn find(secrets: &[String], files: &[PathBuf], registry: &str, repository: &str) -> Found {
    let mut found = Found::default();
    let mut broken = 0;
    let before = found.credentials.len();
    for secret in secrets {
        match DockerConfig::parse(secret) {
            Ok(config) => collect(&config, registry, repository, false, &mut found).await,
            Err(_) => broken += 1, // do not keep the text, because it is a secret
        }
    }
    let hits = found.credentials.len() - before;
    found.looked_at.push(match (secrets.len(), broken) {
        (0, _) => "imagePullSecrets (none given)".to_owned(),
        (n, 0) => format!("{n} imagePullSecrets ({hits} match)"),
        (n, broken) => format!("{n} imagePullSecrets ({hits} match, {broken} not readable)"),
    });
    for file in files {
        let note = look_in_file(file, registry, repository, &mut found).await;
        found.looked_at.push(format!("{} ({note})", file.display()));
    }
    let mut seen = Vec::new();
    found.credentials.retain(|credential| {
        let new = !seen.contains(credential);
        seen.push(credential.clone());
        new
    });
    found
}

async fn look_in_file(file: &Path, registry: &str, repository: &str, found: &mut Found) -> String {
    let text = match tokio::fs::read_to_string(file).await {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return "missing".to_owned(),
        Err(error) => return error.to_string(),
    };
    match DockerConfig::parse(&text) {
        Ok(config) => {
            let before = found.credentials.len();
            collect(&config, registry, repository, true, found).await;
            match found.credentials.len() - before {
                0 => "no entry matches".to_owned(),
                n => format!("{n} match"),
            }
        }
        Err(error) => format!("not readable: {error}"),
    }
}

/// Collects the credentials in one configuration. Helpers are programs, so only the user's own files may name
/// them. A manifest's secrets may not.
async fn collect(config: &DockerConfig, registry: &str, repository: &str, helpers: bool, found: &mut Found) {
    if helpers {
        let named = config
            .cred_helpers
            .iter()
            .filter_map(|(key, helper)| Some((fits(key, registry, "")?, helper)))
            .max_by_key(|(length, _)| *length)
            .map(|(_, helper)| helper);
        if let Some(helper) = named.or(config.creds_store.as_ref()).filter(|helper| !helper.is_empty()) {
            match ask_helper(helper, registry).await {
                Ok(credential) => found.credentials.extend(credential),
                Err(error) => found.looked_at.push(format!("docker-credential-{helper} ({error})")),
            }
        }
    }
    let mut entries: Vec<(usize, &AuthEntry)> = config
        .auths
        .iter()
        .filter_map(|(key, entry)| Some((fits(key, registry, repository)?, entry)))
        .collect();
    entries.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.credentials.extend(entries.into_iter().filter_map(|(_, entry)| entry.credential()));
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Why a credential helper did not answer.
#[derive(Debug, thiserror::Error)]
enum HelperError {
    #[error("its name has a slash")]
    Name,
    #[error(transparent)]
    Run(#[from] std::io::Error),
    #[error("no answer in {} seconds", HELPER_TIMEOUT.as_secs())]
    Late,
    #[error("{status}: {text}")]
    Failed { status: std::process::ExitStatus, text: String },
    #[error("its answer is not readable")]
    Answer(#[source] serde_json::Error),
}

/// Runs `docker-credential-NAME get`. A helper without credentials for the registry fails, which is not an
/// error here.
async fn ask_helper(helper: &str, registry: &str) -> Result<Option<Credential>, HelperError> {
    if helper.contains('/') {
        return Err(HelperError::Name);
    }
    let server = if is_hub(registry) { DOCKER_HUB_KEY } else { registry };
    let ask = async {
        let mut child = tokio::process::Command::new(format!("docker-credential-{helper}"))
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // The helper may end without reading its input.
            let _ = stdin.write_all(server.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = match tokio::time::timeout(HELPER_TIMEOUT, ask).await {
        Ok(output) => output?,
        Err(_) => return Err(HelperError::Late),
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(HelperError::Failed { status: output.status, text: text.trim().to_owned() });
    }
    let answer: HelperAnswer = serde_json::from_slice(&output.stdout).map_err(HelperError::Answer)?;
    Ok(Some(match answer.username.as_str() {
        "<token>" => Credential::IdentityToken(answer.secret),
        _ => Credential::Basic { username: answer.username, password: answer.secret },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(username: &str, password: &str) -> Credential {
        Credential::Basic { username: username.into(), password: password.into() }
    }

    #[test]
    fn keys_fit_as_docker_podman_and_kubernetes_mean_them() {
        for (key, registry, repository, wanted) in [
            ("https://index.docker.io/v1/", "docker.io", "library/busybox", true),
            ("docker.io", "docker.io", "library/busybox", true),
            ("quay.io", "quay.io", "a/b", true),
            ("https://quay.io/v2/", "quay.io", "a/b", true),
            ("quay.io/a", "quay.io", "a/b", true),
            ("quay.io/a/b", "quay.io", "a/b", true),
            ("quay.io/a/bc", "quay.io", "a/b", false),
            ("quay.io/a", "quay.io", "ab/c", false),
            ("localhost:5000", "localhost:5000", "x", true),
            ("localhost", "localhost:5000", "x", false),
            ("*.example.com", "reg.example.com", "x", true),
            ("*.example.com", "a.b.example.com", "x", false),
            ("reg-*.example.com:443", "reg-7.example.com:443", "x", true),
            ("evil.com", "quay.io", "x", false),
        ] {
            assert_eq!(
                fits(key, registry, repository).is_some(),
                wanted,
                "{key} for {registry}/{repository}"
            );
        }
    }

    #[tokio::test]
    async fn secrets_come_first_then_files_longest_key_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("auth.json");
        // The values are `u:p` and `v:q`. The first has no padding.
        std::fs::write(
            &file,
            r#"{"auths":{"quay.io":{"auth":"dTpw"},"quay.io/team":{"auth":"djpx"},"other.io":{"auth":"dTpw"}}}"#,
        )
        .unwrap();
        let secrets = [
            r#"{"auths":{"quay.io":{"username":"s","password":"t"}}}"#.to_owned(),
            r#"{"quay.io":{"username":"old","password":"form"}}"#.to_owned(),
            "not json".to_owned(),
        ];
        let files = [file.clone(), dir.path().join("no-such.json")];
        let found = find(&secrets, &files, "quay.io", "team/app").await;
        assert_eq!(
            found.credentials,
            [basic("s", "t"), basic("old", "form"), basic("v", "q"), basic("u", "p")]
        );
        let places = found.places();
        for part in
            ["3 imagePullSecrets (2 match, 1 not readable)", "auth.json (2 match)", "no-such.json (missing)"]
        {
            assert!(places.contains(part), "{places} lacks {part}");
        }
        let none = find(&[], &files, "elsewhere.io", "x").await;
        assert!(
            none.credentials.is_empty() && none.places().contains("no entry matches"),
            "{}",
            none.places()
        );
    }

    #[test]
    fn identity_tokens_win_over_passwords() {
        let config =
            DockerConfig::parse(r#"{"auths":{"x.io":{"auth":"dTpw","identitytoken":"refresh"}}}"#).unwrap();
        assert_eq!(config.auths["x.io"].credential(), Some(Credential::IdentityToken("refresh".into())));
        assert_eq!(format!("{:?}", basic("u", "secret")), "Basic(u)", "no password in logs");
    }
}
