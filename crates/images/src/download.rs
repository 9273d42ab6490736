//! Downloads a small file, such as a manifest, from a web server.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};

use crate::registries::is_loopback;
use crate::registry::causes;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The time in which everything must have arrived.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of redirects in a row.
const REDIRECTS_MAX: usize = 5;

/// Why a file cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The text is not a URL.
    #[error("it is not a URL")]
    Url,
    /// The connection would not be encrypted.
    #[error("it is not encrypted, so the file could be changed on the way; use https")]
    Unencrypted,
    /// It redirects somewhere else, which is not followed.
    #[error("it redirects to {0}, which is not followed; use that URL if you trust it")]
    Redirect(String),
    /// It redirects too often.
    #[error("it redirects more than {REDIRECTS_MAX} times")]
    TooManyRedirects,
    /// There was no answer.
    #[error("{0}")]
    NoAnswer(String),
    /// The server refused.
    #[error("the server answered {0}")]
    Status(StatusCode),
    /// The answer is a page for people.
    #[error("it is a web page, not a manifest; use the URL of the file itself")]
    Page,
    /// The answer is too large.
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
}

/// Downloads a file of at most `limit` bytes. The connection must be encrypted, unless the server is on this machine.
///
/// # Errors
/// Returns why it cannot be downloaded.
pub async fn download(url: &str, limit: u64) -> Result<Vec<u8>, DownloadError> {
    let url = Url::parse(url).map_err(|_| DownloadError::Url)?;
    let is_here = is_local(&url);
    if !is_allowed(&url, is_here) {
        return Err(DownloadError::Unencrypted);
    }
    // This fails if a provider is already installed, which is no problem.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let redirects = Policy::custom(move |attempt| {
        if attempt.previous().len() > REDIRECTS_MAX {
            attempt.error(DownloadError::TooManyRedirects)
        } else if is_allowed(attempt.url(), is_here) {
            attempt.follow()
        } else {
            let next = attempt.url().origin().ascii_serialization();
            attempt.error(DownloadError::Redirect(next))
        }
    });
    let mut builder = Client::builder()
        .redirect(redirects)
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(TIMEOUT)
        .user_agent(concat!("outrigger/", env!("CARGO_PKG_VERSION")));
    if is_here {
        builder = builder.no_proxy();
    }
    let failed = |error: reqwest::Error| DownloadError::NoAnswer(causes(&error));
    let mut response = builder.build().map_err(failed)?.get(url).send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(DownloadError::Status(response.status()));
    }
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if content_type.is_some_and(|text| text.starts_with("text/html")) {
        return Err(DownloadError::Page);
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > limit {
            return Err(DownloadError::TooLarge(limit));
        }
    }
    Ok(bytes)
}

fn is_local(url: &Url) -> bool {
    url.host_str().is_some_and(is_loopback)
}

/// Whether a file may be read from a URL. A server elsewhere must not make us ask the servers of this machine.
fn is_allowed(url: &Url, is_here: bool) -> bool {
    match (url.scheme(), is_local(url)) {
        ("https", false) => true,
        ("https" | "http", true) => is_here,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_encrypted_or_local_urls_are_read() {
        for (url, from_here, allowed) in [
            ("https://example.com/a.yaml", false, true),
            ("http://example.com/a.yaml", false, false),
            ("ftp://example.com/a.yaml", false, false),
            ("http://localhost:8080/a.yaml", true, true),
            ("http://127.0.0.1/a.yaml", true, true),
            ("http://[::1]:1/a.yaml", true, true),
            // Redirects.
            ("http://127.0.0.1/a.yaml", false, false),
            ("https://localhost/a.yaml", false, false),
            ("http://example.com/a.yaml", true, false),
            ("https://example.com/a.yaml", true, true),
            ("http://localhost.example.com/", true, false),
        ] {
            let parsed = Url::parse(url).expect("a URL");
            assert_eq!(is_allowed(&parsed, from_here), allowed, "{url} {from_here}");
        }
    }
}
