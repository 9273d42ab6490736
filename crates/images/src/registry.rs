//! Pulls from a registry: the reading part of the OCI distribution protocol, over HTTP.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, RANGE, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::auth::Credential;
use super::digest::Digest;
use super::fault::{FailedTo, Fault, said};
use super::model::manifest_types;
use super::registries::{Endpoint, Tls, is_loopback};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The time without data after which a connection counts as broken.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest delay that a server can request. If it requests more, the pull fails.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The maximum size of error pages and tokens.
const SMALL_BODY_MAX: u64 = 1 << 20;

/// The time in which a small answer must arrive.
const SMALL_BODY_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of redirects in a row.
const REDIRECTS_MAX: usize = 10;
/// A layer counts as broken if fewer than [`PACE_BYTES`] arrive in this time.
const PACE_TIME: Duration = Duration::from_secs(60);
const PACE_BYTES: u64 = 64 << 10;

/// A manifest or index from a registry. Its bytes match the digest.
pub(super) struct Served {
    pub(super) bytes: Vec<u8>,
    pub(super) digest: Digest,
    /// The media type that the registry sent; empty if it sent none.
    pub(super) content_type: String,
}

/// One repository at one server, as one user.
pub(super) struct Registry {
    http: Client,
    /// A client that follows no redirects, because its requests contain credentials.
    token_http: Client,
    endpoint: Endpoint,
    credential: Option<Credential>,
    /// The last `Authorization` header that worked.
    authorization: Mutex<Option<String>>,
}

/// HTTP clients by kind of connection. They are created when they are first needed, because reading the
/// machine's certificates takes a while.
#[derive(Default)]
pub(super) struct Clients(std::sync::Mutex<HashMap<ClientKey, (Client, Client)>>);

/// How certificates are checked, whether the server is on this machine, and its additional certificates.
type ClientKey = (Tls, bool, Option<String>);

impl Clients {
    /// A client that follows redirects, and one that does not.
    fn get(&self, endpoint: &Endpoint) -> Result<(Client, Client), Fault> {
        let is_here = is_loopback(&endpoint.host);
        let certificates = match endpoint.tls {
            Tls::Verified => own_certificates(&endpoint.host)?,
            Tls::Unverified | Tls::None => Vec::new(),
        };
        let key = (endpoint.tls, is_here, (!certificates.is_empty()).then(|| endpoint.host.clone()));
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(both) = clients.get(&key) {
            return Ok(both.clone());
        }
        // This fails if a provider is already installed, which is no problem.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let build = |redirects: Policy| {
            let mut builder = Client::builder()
                .redirect(redirects)
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .user_agent(concat!("outrigger/", env!("CARGO_PKG_VERSION")));
            if is_here {
                builder = builder.no_proxy();
            }
            builder = match endpoint.tls {
                Tls::None => builder.tls_certs_only([]),
                Tls::Unverified => builder.tls_danger_accept_invalid_certs(true),
                Tls::Verified => builder.tls_certs_merge(certificates.clone()),
            };
            builder
                .build()
                .map_err(|error| Fault::new(format!("cannot set up a connection: {}", causes(&error))))
        };
        let both = (build(redirects())?, build(Policy::none())?);
        clients.insert(key, both.clone());
        Ok(both)
    }
}

/// The redirect policy. Registries redirect clients to the location of blobs. A redirect from an encrypted to
/// an unencrypted connection is refused, because the response could be changed there. The library does not
/// send `Authorization` to another host.
fn redirects() -> Policy {
    Policy::custom(|attempt| match check_redirect(attempt.previous(), attempt.url()) {
        Ok(()) => attempt.follow(),
        Err(why) => attempt.error(why),
    })
}

/// Why a redirect is not followed.
#[derive(Debug, thiserror::Error)]
enum RedirectError {
    #[error("it redirects more than {REDIRECTS_MAX} times")]
    TooMany,
    #[error("it redirects from https to {0}, which is not encrypted; that is never followed")]
    Unencrypted(String),
    #[error("it redirects to {0:?}, which is neither https nor http")]
    Scheme(String),
}

fn check_redirect(before: &[Url], next: &Url) -> Result<(), RedirectError> {
    if before.len() > REDIRECTS_MAX {
        return Err(RedirectError::TooMany);
    }
    match next.scheme() {
        "https" => Ok(()),
        "http" if before.iter().all(|url| url.scheme() == "http") => Ok(()),
        "http" => Err(RedirectError::Unencrypted(next.origin().ascii_serialization())),
        other => Err(RedirectError::Scheme(other.to_owned())),
    }
}

/// The certificate authorities that are installed for a registry, in the directories of docker and podman.
fn own_certificates(host: &str) -> Result<Vec<Certificate>, Fault> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let dirs = home
        .map(|home| home.join(".config/containers/certs.d"))
        .into_iter()
        .chain(["/etc/containers/certs.d".into(), "/etc/docker/certs.d".into()]);
    let mut certificates = Vec::new();
    for file in dirs.filter_map(|dir| std::fs::read_dir(dir.join(host)).ok()).flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ext| ext == "crt") {
            let pem = std::fs::read(&path).failed_to("read", &path)?;
            let found = Certificate::from_pem_bundle(&pem).map_err(|error| {
                Fault::new(format!("{} holds no certificate: {}", path.display(), causes(&error)))
            })?;
            certificates.extend(found);
        }
    }
    Ok(certificates)
}

/// The challenge in `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Registry {
    pub(super) fn new(
        clients: &Clients,
        endpoint: Endpoint,
        credential: Option<Credential>,
    ) -> Result<Self, Fault> {
        let (http, token_http) = clients.get(&endpoint)?;
        Ok(Registry { http, token_http, endpoint, credential, authorization: Mutex::new(None) })
    }

    /// A manifest or index by tag or digest.
    pub(super) async fn manifest(&self, tag_or_digest: &str, limit: u64) -> Result<Served, Fault> {
        retry(|| async {
            let path = format!("manifests/{tag_or_digest}");
            let response = self.get(&path, &manifest_types(), None).await?;
            let said = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
            let said = said.and_then(|text| Digest::try_from(text.to_owned()).ok());
            let content_types: Vec<&[u8]> =
                response.headers().get_all(CONTENT_TYPE).iter().map(|value| value.as_bytes()).collect();
            let content_type = String::from_utf8_lossy(&content_types.join(&b", "[..])).into_owned();
            let bytes = body(response, limit).await?;
            let digest = Digest::of_bytes(&bytes);
            let wanted = Digest::try_from(tag_or_digest.to_owned()).ok().or(said);
            match wanted {
                Some(wanted) if wanted != digest => {
                    Err(super::unpack::digest_mismatch("manifest", &wanted, &digest))
                }
                _ => Ok(Served { bytes, digest, content_type }),
            }
        })
        .await
    }

    /// Fetches and verifies a small blob.
    pub(super) async fn blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, Fault> {
        retry(|| async {
            let response = self.get(&format!("blobs/{digest}"), "*/*", None).await?;
            let bytes = body(response, limit).await?;
            let actual = Digest::of_bytes(&bytes);
            if actual != *digest {
                return Err(super::unpack::digest_mismatch("blob", digest, &actual));
            }
            Ok(bytes)
        })
        .await
    }

    /// Fetches a blob from `offset` on. The answer may still start at 0, so check its status.
    pub(super) async fn blob_from(&self, digest: &Digest, offset: u64) -> Result<Response, Fault> {
        self.get(&format!("blobs/{digest}"), "*/*", (offset > 0).then_some(offset)).await
    }

    /// The server's name, for messages.
    pub(super) fn server(&self) -> &str {
        &self.endpoint.host
    }

    fn base(&self) -> String {
        let scheme = if self.endpoint.tls == Tls::None { "http" } else { "https" };
        format!("{scheme}://{}/v2/{}", self.endpoint.host, self.endpoint.repository)
    }

    async fn get(&self, path: &str, accept: &str, offset: Option<u64>) -> Result<Response, Fault> {
        let url = format!("{}/{path}", self.base());
        let send = async |authorization: Option<&String>| {
            let mut request = self.http.get(&url).header(ACCEPT, accept);
            if let Some(value) = authorization {
                request = request.header(AUTHORIZATION, value);
            }
            if let Some(offset) = offset {
                request = request.header(RANGE, format!("bytes={offset}-"));
            }
            request.send().await.map_err(|error| self.no_answer(&error))
        };
        let used = self.authorization.lock().await.clone();
        let mut response = send(used.as_ref()).await?;
        // Only the registry itself gets credentials, and not a host that it redirected to. Such a host could
        // name its own token service and so get the registry's credentials.
        let is_registry = Url::parse(&url).is_ok_and(|asked| asked.origin() == response.url().origin());
        if response.status() == StatusCode::UNAUTHORIZED
            && is_registry
            && let Some(value) = self.authorize(response.headers(), used).await?
        {
            response = send(Some(&value)).await?;
        }
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            status => Err(self.refused(status, path, response).await),
        }
    }

    /// A new `Authorization` after a refusal, unless another task already has one.
    async fn authorize(&self, headers: &HeaderMap, used: Option<String>) -> Result<Option<String>, Fault> {
        let mut authorization = self.authorization.lock().await;
        if *authorization != used {
            return Ok(authorization.clone());
        }
        let challenges: Vec<Challenge> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .collect();
        for challenge in challenges {
            let value = match (challenge, &self.credential) {
                (_, Some(Credential::Token(token))) => Some(format!("Bearer {token}")),
                (Challenge::Basic, Some(Credential::Basic { username, password })) => {
                    Some(basic(username, password))
                }
                (Challenge::Basic, _) => None,
                (Challenge::Bearer { realm, service, scope }, _) => {
                    Some(format!("Bearer {}", self.token(&realm, service, scope).await?))
                }
            };
            // The same value would be refused again.
            if value.is_some() && value != used {
                authorization.clone_from(&value);
                return Ok(value);
            }
        }
        Ok(None)
    }

    /// Requests a token from the registry's token service.
    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<String, Fault> {
        let mut url = Url::parse(realm).map_err(|error| {
            Fault::new(format!(
                "{} names a token service {realm:?} that is not a URL: {error}",
                self.server()
            ))
        })?;
        if url.scheme() != "https" && self.endpoint.tls != Tls::None && self.credential.is_some() {
            return Err(Fault::new(format!("{realm} is not encrypted, so credentials are not sent there")));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.endpoint.repository));
        let mut pairs = vec![("scope", scope)];
        pairs.extend(service.map(|service| ("service", service)));
        let request = if let Some(Credential::IdentityToken(token)) = &self.credential {
            pairs.extend([
                ("grant_type", "refresh_token".to_owned()),
                ("client_id", "outrigger".to_owned()),
                ("refresh_token", token.clone()),
            ]);
            let mut form = url.clone();
            form.query_pairs_mut().clear().extend_pairs(pairs);
            let form = form.query().unwrap_or_default().to_owned();
            self.token_http
                .post(url.clone())
                .header("content-type", "application/x-www-form-urlencoded")
                .body(form)
        } else {
            url.query_pairs_mut().extend_pairs(pairs);
            let request = self.token_http.get(url.clone());
            match &self.credential {
                Some(Credential::Basic { username, password }) => {
                    request.header(AUTHORIZATION, basic(username, password))
                }
                _ => request,
            }
        };
        let response = request.send().await.map_err(|error| self.no_answer(&error))?;
        let status = response.status();
        if !status.is_success() {
            let message = message(response).await;
            let host = url.host_str().unwrap_or(realm);
            let text = format!("the token service {host} answered {status}{message}");
            return Err(match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                    Fault::Unauthorized(text)
                }
                status if is_passing(status) => Fault::Transient(text),
                _ => Fault::new(text),
            });
        }
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let bytes = body(response, SMALL_BODY_MAX).await?;
        serde_json::from_slice::<Answer>(&bytes)
            .ok()
            .and_then(|answer| answer.token.or(answer.access_token))
            .ok_or_else(|| Fault::new(format!("the token service {realm} sent no token")))
    }

    /// The failure for a request without an answer.
    fn no_answer(&self, error: &reqwest::Error) -> Fault {
        let host = self.server();
        let text = causes(error);
        if error.is_redirect() {
            return Fault::new(format!("{host} is not followed: {text}"));
        }
        if error.is_connect() {
            if text.contains("refused") {
                return Fault::Unreachable(format!(
                    "connection refused by {host}; check that the registry is running and that the port is right"
                ));
            }
            let is_tls =
                ["certificate", "corrupt message", "TLS", "tls"].iter().any(|word| text.contains(word));
            let text = format!("cannot connect to {host}: {text}");
            return if is_tls { Fault::Unreachable(text) } else { Fault::NoAnswer(text) };
        }
        Fault::NoAnswer(format!("no answer from {host}: {text}"))
    }

    /// The failure for an answer that is not the requested object.
    async fn refused(&self, status: StatusCode, path: &str, response: Response) -> Fault {
        let host = self.server().to_owned();
        let pause = response.headers().get(RETRY_AFTER).cloned();
        let message = message(response).await;
        match status {
            StatusCode::NOT_FOUND => {
                let repository = &self.endpoint.repository;
                Fault::NotFound(format!("not found: {host} has {}", missing(repository, path, &message)))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Fault::Unauthorized(format!(
                "unauthorized: {host} answered {status} for {}{message}",
                self.endpoint.repository
            )),
            // Go servers answer like this to http on an https port.
            StatusCode::BAD_REQUEST if message.contains("HTTP request to an HTTPS server") => {
                Fault::Unreachable(format!("{host} requires https{message}"))
            }
            status if is_passing(status) => {
                let patient = pause
                    .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
                    .is_none_or(|seconds| Duration::from_secs(seconds) <= PAUSE_MAX);
                let text = format!("{host} answered {status}{message}");
                if patient { Fault::Transient(text) } else { Fault::new(text) }
            }
            status => Fault::new(format!("{host} answered {status}{message}")),
        }
    }
}

impl Challenge {
    fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest.trim_start();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').unwrap_or((after, "")),
            };
            match key.trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                "scope" => scope = Some(value.to_owned()),
                _ => {}
            }
            rest = after.trim_start_matches([',', ' ']);
        }
        Some(Challenge::Bearer { realm: realm?, service, scope })
    }
}

fn basic(username: &str, password: &str) -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}")))
}

/// Whether a retry of the same request may succeed.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// The causes of an error. Users need them, and reqwest's own text leaves them out.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The registry's own error message, in a form that can be appended to another.
async fn message(response: Response) -> String {
    match body(response, SMALL_BODY_MAX).await {
        Ok(bytes) => words(&bytes),
        Err(_) => String::new(),
    }
}

/// A message that says what the registry does not have, from the requested path and the registry's message.
fn missing(repository: &str, path: &str, message: &str) -> String {
    let (kind, name) = path.rsplit_once('/').unwrap_or(("", path));
    match kind {
        // These are codes and messages of the distribution specification.
        "manifests"
            if ["NAME_UNKNOWN", "name not known", "name unknown"].iter().any(|w| message.contains(w)) =>
        {
            format!("no repository `{repository}`")
        }
        "manifests" if name.contains(':') => format!("no image `{repository}` with the digest {name}"),
        "manifests" => format!("no image `{repository}` with the tag `{name}`"),
        _ => format!("no part {name} of the image `{repository}`{message}"),
    }
}

fn words(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Envelope {
        errors: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let text = match serde_json::from_slice::<Envelope>(bytes) {
        Ok(envelope) => {
            let items: Vec<String> = envelope
                .errors
                .into_iter()
                .map(|item| if item.message.is_empty() { item.code } else { item.message })
                .collect();
            said(&items.join(", "))
        }
        // This is an error page, for example of a proxy.
        Err(_) => said(&String::from_utf8_lossy(bytes)),
    };
    if text.is_empty() { text } else { format!(": {text}") }
}

async fn body(response: Response, limit: u64) -> Result<Vec<u8>, Fault> {
    let whole = tokio::time::timeout(SMALL_BODY_TIMEOUT, read_body(response, limit)).await;
    whole.unwrap_or_else(|_| {
        Err(Fault::Transient(format!("the registry took longer to answer than {SMALL_BODY_TIMEOUT:?}")))
    })
}

async fn read_body(mut response: Response, limit: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > limit {
            return Err(Fault::new(format!("the registry's answer is larger than {limit} bytes")));
        }
    }
    Ok(bytes)
}

/// The failure for a connection that ended in the middle of an answer.
pub(super) fn broken(error: &reqwest::Error) -> Fault {
    Fault::Transient(format!("the connection broke: {}", causes(error)))
}

/// Measures the speed of a download, and fails if it is too slow.
pub(super) struct DownloadSpeed {
    since: Instant,
    bytes: u64,
}

impl DownloadSpeed {
    pub(super) fn new() -> Self {
        DownloadSpeed { since: Instant::now(), bytes: 0 }
    }

    /// Counts received bytes. Fails if the download is too slow.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes += bytes as u64;
        if self.since.elapsed() < PACE_TIME {
            return Ok(());
        }
        if self.bytes < PACE_BYTES {
            return Err(Fault::Transient(format!(
                "the registry sent {} bytes in {PACE_TIME:?}: too slow",
                self.bytes
            )));
        }
        *self = DownloadSpeed::new();
        Ok(())
    }
}

/// Counts attempts, and increases the delays between them.
pub(super) struct Retries {
    left: u32,
    pause: Duration,
}

impl Retries {
    pub(super) fn new() -> Self {
        Retries { left: ATTEMPTS - 1, pause: FIRST_PAUSE }
    }

    /// Waits if the failure may be temporary and there were not too many attempts. Otherwise returns the
    /// failure.
    pub(super) async fn after(&mut self, fault: Fault) -> Result<(), Fault> {
        if !fault.may_pass() || self.left == 0 {
            return Err(fault);
        }
        tracing::debug!(%fault, pause = ?self.pause, "trying again");
        tokio::time::sleep(self.pause).await;
        self.left -= 1;
        self.pause *= 3;
        Ok(())
    }
}

/// Retries temporary failures a few times.
async fn retry<T, F: Future<Output = Result<T, Fault>>>(mut attempt: impl FnMut() -> F) -> Result<T, Fault> {
    let mut patience = Retries::new();
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(fault) => patience.after(fault).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry must not decide how long our messages are.
    #[test]
    fn words_of_a_registry_are_cut() {
        let json = |message: &str, count: usize| {
            let errors = vec![serde_json::json!({"code": "DENIED", "message": message}); count];
            serde_json::json!({ "errors": errors }).to_string()
        };
        assert_eq!(words(json("no access", 1).as_bytes()), ": no access");
        assert_eq!(words(json("", 2).as_bytes()), ": DENIED, DENIED");
        let page = "x".repeat(50_000);
        for text in [json(&page, 1), json("no", 20_000), page.clone(), json(&"日".repeat(50_000), 1)] {
            let said = words(text.as_bytes());
            assert!(said.chars().count() < 210 && said.ends_with("..."), "{}", said.len());
        }
        assert_eq!(words(b""), "");
    }

    #[test]
    fn challenges() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.into(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Negotiate"), None);
        assert_eq!(Challenge::parse("Bearer service=\"x\""), None);
        assert_eq!(
            Challenge::parse(
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#
            ),
            bearer(
                "https://auth.docker.io/token",
                Some("registry.docker.io"),
                Some("repository:a/b:pull,push")
            )
        );
        assert_eq!(
            Challenge::parse("bearer realm=http://a/t, service=s"),
            bearer("http://a/t", Some("s"), None)
        );
    }

    #[test]
    fn no_redirect_leaves_https_or_goes_on_for_ever() {
        let url = |text: &str| Url::parse(text).unwrap();
        let table = [
            (&["https://a/x"][..], "https://b/y", true),
            (&["http://a/x"], "http://b/y", true),
            (&["http://a/x"], "https://b/y", true),
            (&["https://a/x"], "http://a/x", false),
            (&["http://a/x", "https://b/y"], "http://c/z", false),
            (&["https://a/x"], "file:///etc/passwd", false),
            (&["http://a/x"; 11], "http://a/x", false),
        ];
        for (before, next, allowed) in table {
            let before: Vec<Url> = before.iter().map(|text| url(text)).collect();
            assert_eq!(check_redirect(&before, &url(next)).is_ok(), allowed, "{before:?} {next}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_trickles_is_given_up() {
        let (mut fast, mut slow) = (DownloadSpeed::new(), DownloadSpeed::new());
        for second in 0..120 {
            tokio::time::advance(Duration::from_secs(1)).await;
            fast.received(2000).unwrap();
            assert_eq!(slow.received(1).is_err(), second >= 59, "second {second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_passing_failures_are_tried_again_and_not_for_ever() {
        let attempts = |fault: Fault| async move {
            let count = std::cell::Cell::new(0);
            let result: Result<(), Fault> = retry(|| {
                count.set(count.get() + 1);
                std::future::ready(Err(fault.clone()))
            })
            .await;
            assert!(result.is_err());
            count.get()
        };
        assert_eq!(attempts(Fault::Transient("busy".into())).await, ATTEMPTS);
        assert_eq!(attempts(Fault::NoAnswer("silence".into())).await, ATTEMPTS);
        assert_eq!(attempts(Fault::new("gone")).await, 1);
        assert_eq!(attempts(Fault::Unreachable("refused".into())).await, 1);
    }
}
