//! A GET over HTTP/1.1 or HTTPS for probes and hooks.

use std::time::Duration;

use http::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use outrigger_lifecycle::ProbeCause;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{PortError, Reach, Silence, brief, no_connection, tls};
use crate::tasks::Task;

/// Maximum number of response bytes read.
const BODY_MAX: usize = 10 << 10;

/// Maximum number of redirects followed.
const REDIRECTS_MAX: usize = 10;

/// A GET request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Get {
    /// The host from the manifest, if set.
    host: Option<String>,
    port: u16,
    tls: bool,
    path: String,
    headers: HeaderMap,
}

/// The response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status of the last response.
    pub(crate) status: u16,
    /// The target of a redirect to another host. Such a redirect is not followed.
    pub(crate) leads_to: Option<String>,
}

/// Why an `httpGet` action is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The name of a header is invalid.
    #[error("{0:?} is not the name of a header")]
    HeaderName(String),
    /// The header with this name has an invalid value.
    #[error("the value of header {0:?} is not valid")]
    HeaderValue(String),
    /// The host is not valid in a `Host` header.
    #[error("host {0:?} is not valid")]
    Host(String),
    /// The path is not valid in a request.
    #[error("path {0:?} is not valid")]
    Path(String),
    /// The port does not exist.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The request is invalid.
    Request(RequestError),
    /// No connection, no response in time, or a response that is not HTTP.
    Silence(Silence),
}

impl Get {
    /// The request of an httpGet action.
    pub(crate) fn new(
        container: &Container,
        action: &HTTPGetAction,
        user_agent: &str,
    ) -> Result<Get, RequestError> {
        let mut headers = HeaderMap::new();
        for header in action.http_headers.iter().flatten() {
            let name = HeaderName::try_from(&header.name)
                .map_err(|_| RequestError::HeaderName(header.name.clone()))?;
            let value = HeaderValue::try_from(&header.value)
                .map_err(|_| RequestError::HeaderValue(header.name.clone()))?;
            headers.append(name, value);
        }
        let default = |headers: &mut HeaderMap, name: HeaderName, value: &str| {
            if !headers.contains_key(&name)
                && let Ok(value) = HeaderValue::try_from(value)
            {
                headers.insert(name, value);
            }
        };
        default(&mut headers, USER_AGENT, user_agent);
        default(&mut headers, ACCEPT, "*/*");
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let path = action.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Get {
            host: action.host.clone().filter(|h| !h.is_empty()),
            port: super::port(container, &action.port)?,
            tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            path: format!("{slash}{path}"),
            headers,
        })
    }

    /// Sends the request, following redirects on the same host.
    pub(crate) async fn send(&self, reach: &Reach, timeout: Duration) -> Result<Answer, NoAnswer> {
        let silence = || {
            let text = format!("no answer within {timeout:?}");
            NoAnswer::Silence(Silence::new(ProbeCause::TimedOut, text))
        };
        match tokio::time::timeout(timeout, self.follow(reach, timeout)).await {
            Ok(answer) => answer,
            Err(_) => Err(silence()),
        }
    }

    async fn follow(&self, reach: &Reach, timeout: Duration) -> Result<Answer, NoAnswer> {
        let mut get = self.clone();
        for _ in 0..=REDIRECTS_MAX {
            let (status, location) = get.once(reach, timeout).await?;
            let Some(location) = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308)) else {
                return Ok(Answer { status, leads_to: None });
            };
            match get.redirected(reach, &location) {
                Some(next) => get = next,
                None => {
                    return Ok(Answer { status, leads_to: Some(location) });
                }
            }
        }
        let text = format!("more than {REDIRECTS_MAX} redirects");
        Err(NoAnswer::Silence(Silence::new(ProbeCause::BadAnswer, text)))
    }

    /// The request that follows a redirect; `None` if it leads to another host.
    fn redirected(&self, reach: &Reach, location: &str) -> Option<Get> {
        let mut next = self.clone();
        if let Some(path) = location.strip_prefix('/').filter(|p| !p.starts_with('/')) {
            next.path = format!("/{path}");
            return Some(next);
        }
        let scheme = if self.tls { "https:" } else { "http:" };
        let absolute = match location.starts_with("//") {
            true => format!("{scheme}{location}"),
            false => location.to_owned(),
        };
        let uri: Uri = absolute.parse().ok()?;
        match (uri.scheme_str(), uri.host()) {
            (Some(scheme @ ("http" | "https")), Some(host)) => {
                let here = self.host.clone().unwrap_or_else(|| reach.ip.to_string());
                if host.trim_matches(['[', ']']) != here.trim_matches(['[', ']']) {
                    return None;
                }
                next.tls = scheme == "https";
                next.port = uri.port_u16().unwrap_or(if next.tls { 443 } else { 80 });
                next.path = uri.path_and_query().map_or("/".into(), ToString::to_string);
                Some(next)
            }
            (Some(_), _) => None,
            _ => {
                // The target is relative to the directory of the current path.
                let path = self.path.split('?').next().unwrap_or("/");
                let dir = path.rfind('/').map_or("/", |at| &path[..=at]);
                next.path = format!("{dir}{location}");
                Some(next)
            }
        }
    }

    async fn once(&self, reach: &Reach, timeout: Duration) -> Result<(u16, Option<String>), NoAnswer> {
        let stream = reach
            .connect(self.host.as_deref(), self.port, timeout)
            .await
            .map_err(|e| NoAnswer::Silence(Silence::from_io(&e)))?;
        if self.tls {
            let stream = tls::handshake(stream, self.host.as_deref(), reach.ip)
                .await
                .map_err(|e| Silence::new(no_connection(&e), format!("tls: {}", brief(&e))))
                .map_err(NoAnswer::Silence)?;
            self.exchange(stream, reach).await
        } else {
            self.exchange(stream, reach).await
        }
    }

    async fn exchange<S>(&self, stream: S, reach: &Reach) -> Result<(u16, Option<String>), NoAnswer>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let silence =
            |e: hyper::Error| NoAnswer::Silence(Silence::new(ProbeCause::NoConnection, hyper_error(&e)));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(silence)?;
        let _connection = Task::spawn(connection);
        let response = sender.send_request(self.request(reach)?).await.map_err(silence)?;
        let status = response.status().as_u16();
        let location = response.headers().get(LOCATION).and_then(|l| l.to_str().ok()).map(str::to_owned);
        drain(response.into_body()).await.map_err(silence)?;
        Ok((status, location))
    }

    fn request(&self, reach: &Reach) -> Result<Request<Empty<Bytes>>, NoAnswer> {
        let mut request = Request::get(self.path.as_str());
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
            if !headers.contains_key(HOST) {
                let host = self.host.clone().unwrap_or_else(|| match reach.ip {
                    ip if ip.is_ipv6() => format!("[{ip}]"),
                    ip => ip.to_string(),
                });
                let value = HeaderValue::try_from(format!("{host}:{}", self.port))
                    .map_err(|_| NoAnswer::Request(RequestError::Host(host)))?;
                headers.insert(HOST, value);
            }
        }
        request.body(Empty::new()).map_err(|_| NoAnswer::Request(RequestError::Path(self.path.clone())))
    }

    /// For messages: `GET :15021/healthz`.
    pub(crate) fn shown(&self) -> String {
        let scheme = if self.tls { "https://" } else { "" };
        let host = self.host.as_deref().unwrap_or("");
        format!("GET {scheme}{host}:{}{}", self.port, self.path)
    }
}

async fn drain(mut body: Incoming) -> Result<(), hyper::Error> {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame?.data_ref().map_or(0, Bytes::len);
        if read >= BODY_MAX {
            break;
        }
    }
    Ok(())
}

/// Describes an error with its cause, which hyper's own messages omit.
fn hyper_error(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match cause.downcast_ref::<std::io::Error>() {
        Some(io) => brief(io),
        None => cause.to_string().to_lowercase(),
    }
}
