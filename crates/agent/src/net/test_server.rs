//! Loopback servers for tests.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::Reach;

type Body = BoxBody<Bytes, Infallible>;

/// The answer of a health service.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GrpcAnswer {
    Status(u8),
    Error(u8),
    Http(u16),
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(HeaderMap, Vec<u8>)>>);

/// A server whose answer depends on the path.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Seen,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn http() -> Server {
        Server::start(|stream, seen| async move { http1(stream, seen).await }).await
    }

    pub(crate) async fn https() -> Server {
        let cert = CertificateDer::from_pem_slice(include_bytes!("testdata/cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("testdata/key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Server::start(move |stream, seen| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    http1(stream, seen).await;
                }
            }
        })
        .await
    }

    pub(crate) async fn grpc(answer: GrpcAnswer) -> Server {
        Server::start(move |stream, seen| async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let seen = seen.clone();
                async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let headers = request.headers().clone();
                    let body = request.into_body().collect().await.unwrap().to_bytes().to_vec();
                    *seen.0.lock().unwrap_or_else(PoisonError::into_inner) = (headers, body);
                    Ok::<_, Infallible>(health(answer))
                }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        })
        .await
    }

    async fn start<F, W>(serve: F) -> Server
    where
        F: Fn(tokio::net::TcpStream, Seen) -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Seen::default();
        let kept = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, kept.clone()));
            }
        });
        Server { port, seen, task }
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach { netns: None, ip: Ipv4Addr::LOCALHOST.into() }
    }

    pub(crate) fn last_headers(&self) -> HeaderMap {
        self.seen.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    pub(crate) fn last_body(&self) -> Vec<u8> {
        self.seen.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Stops listening.
    pub(crate) async fn close(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

async fn http1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, seen: Seen) {
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            seen.0.lock().unwrap_or_else(PoisonError::into_inner).0 = request.headers().clone();
            Ok::<_, Infallible>(answer(request.uri()).await)
        }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// `/404` answers 404; `/redirect?to=X` redirects to X; `/loop` to itself; `/silent` never answers.
async fn answer(uri: &http::Uri) -> Response<Body> {
    let response = Response::builder();
    let full = |bytes: &'static [u8]| Full::new(Bytes::from_static(bytes)).boxed();
    match (uri.path(), uri.query().and_then(|q| q.strip_prefix("to="))) {
        ("/redirect", Some(to)) => response.status(302).header("location", to).body(full(b"")),
        ("/loop", _) => response.status(307).header("location", "/loop").body(full(b"")),
        ("/silent", _) => std::future::pending().await,
        ("/big", _) => response.body(full(&[b'x'; 100 << 10])),
        (path, _) => {
            response.status(path.trim_start_matches('/').parse::<u16>().unwrap_or(200)).body(full(b"body"))
        }
    }
    .unwrap()
}

fn health(answer: GrpcAnswer) -> Response<Body> {
    let trailers = |code: u8| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.to_string().parse().unwrap());
        trailers.insert("grpc-message", "so it is".parse().unwrap());
        trailers
    };
    let response = Response::builder().header("content-type", "application/grpc");
    match answer {
        GrpcAnswer::Status(status) => {
            let message = Bytes::from(vec![0, 0, 0, 0, 2, 8, status]);
            let body = Full::new(message).with_trailers(async move { Some(Ok(trailers(0))) });
            response.body(body.boxed())
        }
        GrpcAnswer::Error(code) => {
            let mut response = response.body(Full::new(Bytes::new()).boxed()).unwrap();
            response.headers_mut().extend(trailers(code));
            Ok(response)
        }
        GrpcAnswer::Http(status) => response.status(status).body(Full::new(Bytes::new()).boxed()),
    }
    .unwrap()
}
