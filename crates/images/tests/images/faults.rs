//! Pulls that fail or almost fail.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_images::ImageStore;
use outrigger_runtime::{PullPolicy, PullRequest};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

#[tokio::test]
async fn what_the_registry_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("v1", json!({}), &[Layer::new().file("f", "x").gzip()]);
    registry.push(&layout, "v1", "app:v1");
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    for (name, says) in [
        ("no/such:image", "not found: 127.0.0.1:"),
        ("app:v2", "with the tag `v2`"),
        (
            "app@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "with the digest sha256:0000",
        ),
    ] {
        let text = failure(&store, registry.reference(name)).await;
        assert!(text.contains(says), "{name}: {text:?} lacks {says:?}");
    }
    let text = failure(&store, "no-such-host.invalid/app:v1").await;
    assert!(text.contains("cannot connect to no-such-host.invalid"), "{text}");
}

#[tokio::test]
async fn damage_at_the_registry_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let layer = Layer::new().file("f", vec![b'x'; 100_000]).build(Compression::None);
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("v1", json!({}), std::slice::from_ref(&layer));
    registry.push(&layout, "v1", "app:v1");
    let blob = registry.blob_file(&sha256(&layer.bytes));
    let mut bytes = layer.bytes.clone();
    bytes[50_000] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    let state = dir.path().join("state");
    let store = ImageStore::open(&state).unwrap();
    let text = failure(&store, registry.reference("app:v1")).await;
    for part in ["digest mismatch", &sha256(&layer.bytes), &sha256(&bytes)] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    assert_eq!(fs::read_dir(state.join("images/layers")).unwrap().count(), 0);
    assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
    fs::write(&blob, &layer.bytes).unwrap();
    assert!(ensure(&store, registry.reference("app:v1")).await.is_ok(), "repaired, it works");
}

/// A mount that is removed at the end of the test.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(at: &'a Path, size: &str) -> Self {
        fs::create_dir_all(at).unwrap();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", at.to_str().unwrap()]);
        Tmpfs(at)
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let mut layout = OciLayout::new(dir.path().join("layout"));
    // The first does not fit compressed. The second fits, but not unpacked.
    layout.image("big", json!({}), &[busybox().build(Compression::None)]);
    layout.image("bomb", json!({}), &[Layer::new().file("zeros", vec![0; 8 << 20]).gzip()]);
    registry.push(&layout, "big", "app:big");
    registry.push(&layout, "bomb", "app:bomb");
    let state = dir.path().join("state");
    let tmpfs = Tmpfs::mount(&state, "1m");
    let store = ImageStore::open(&state).unwrap();
    for tag in ["big", "bomb"] {
        let text = failure(&store, registry.reference(&format!("app:{tag}"))).await;
        assert!(text.contains("no space left on device") && text.contains("--state-dir"), "{text}");
        assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
    }
    run("mount", &["-o", "remount,size=64m", state.to_str().unwrap()]);
    assert!(ensure(&store, registry.reference("app:big")).await.is_ok(), "with more room it works");
    drop((store, tmpfs));
}

/// Forwards connections to the registry. Breaks the first `broken` connections after `after` bytes of the
/// answer.
async fn flaky_proxy(to: SocketAddr, broken: usize, after: usize) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let breaks = Arc::new(AtomicUsize::new(0));
    let count = breaks.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = TcpStream::connect(to).await.unwrap().into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                let mut sent = 0;
                let mut buffer = vec![0; 16 << 10];
                while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
                    if sent + n > after && count.load(Ordering::SeqCst) < broken {
                        count.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    sent += n;
                    if to_client.write_all(&buffer[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, breaks)
}

#[tokio::test]
async fn a_broken_connection_is_taken_up_where_it_broke() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("v1", json!({}), &[busybox().build(Compression::None)]);
    registry.push(&layout, "v1", "app:v1");
    let (port, breaks) = flaky_proxy(registry.address(), 2, 700_000).await;
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let (sink, heard) = listening();
    let image =
        store.ensure(request(format!("127.0.0.1:{port}/app:v1"), PullPolicy::Always), sink).await.unwrap();
    assert_eq!(breaks.load(Ordering::SeqCst), 2);
    let log = fs::read_to_string(registry.dir.join("log")).unwrap();
    assert!(log.contains("\" 206 "), "the rest was asked for, not the whole");
    let last = heard.lock().unwrap().last().cloned().unwrap();
    assert_eq!(Some(last.done_bytes), last.total_bytes);
    assert!(image.layers[0].join("bin/busybox").exists());
    // The connection breaks more often than the retry limit allows.
    let (port, _) = flaky_proxy(registry.address(), usize::MAX, 100_000).await;
    let store = ImageStore::open(&dir.path().join("other")).unwrap();
    let text = failure(&store, format!("127.0.0.1:{port}/app:v1")).await;
    assert!(text.contains("connection broke") || text.contains("ended after"), "{text}");
}

/// A fake token service and registry. All real ones that exchange identity tokens are in clouds.
async fn token_registry(blobs: Vec<(String, Vec<u8>)>) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let exchanges = Arc::new(AtomicUsize::new(0));
    let count = exchanges.clone();
    let blobs = Arc::new(blobs);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (blobs, count) = (blobs.clone(), count.clone());
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let lower = head.to_ascii_lowercase();
                let length =
                    lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                let mut form = vec![0; length.unwrap_or(0)];
                stream.read_exact(&mut form).await.unwrap();
                let form = String::from_utf8(form).unwrap();
                let path = head.split(' ').nth(1).unwrap();
                let wanted = [
                    "grant_type=refresh_token",
                    "refresh_token=re%2Ffresh",
                    "scope=repository%3Aapp%3Apull",
                    "service=svc",
                ];
                let (status, extra, body) = if head.starts_with("POST /token ")
                    && wanted.iter().all(|part| form.contains(part))
                {
                    count.fetch_add(1, Ordering::SeqCst);
                    ("200 OK", String::new(), br#"{"access_token":"good"}"#.to_vec())
                } else if path.starts_with("/token") {
                    ("401 Unauthorized", String::new(), b"{}".to_vec())
                } else if !lower.contains("authorization: bearer good") {
                    let challenge = format!(
                        "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"svc\"\r\n"
                    );
                    ("401 Unauthorized", challenge, b"{}".to_vec())
                } else if let Some((_, body)) = blobs.iter().find(|(name, _)| path.ends_with(name)) {
                    ("200 OK", String::new(), body.clone())
                } else {
                    ("404 Not Found", String::new(), b"{}".to_vec())
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\n{extra}Content-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&body).await.unwrap();
            });
        }
    });
    (port, exchanges)
}

#[tokio::test]
async fn identity_tokens_are_exchanged() {
    let dir = tempfile::tempdir().unwrap();
    let layout = OciLayout::new(dir.path().join("layout"));
    let layer = Layer::new().file("f", "x").gzip();
    let manifest = layout.manifest(this_architecture(), json!({}), &[layer]);
    let mut blobs = Vec::new();
    for entry in fs::read_dir(layout.dir.join("blobs/sha256")).unwrap().flatten() {
        let bytes = fs::read(entry.path()).unwrap();
        if sha256(&bytes) == manifest["digest"].as_str().unwrap() {
            blobs.push(("/manifests/v1".to_owned(), bytes.clone()));
        }
        blobs.push((format!("sha256:{}", entry.file_name().display()), bytes));
    }
    let (port, exchanges) = token_registry(blobs).await;
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let reference = format!("127.0.0.1:{port}/app:v1");
    let secret =
        |token: &str| json!({"auths": {format!("127.0.0.1:{port}"): {"identitytoken": token}}}).to_string();
    let ask = |auth| PullRequest { reference: reference.clone(), policy: PullPolicy::Always, auth };
    let text = store.ensure(ask(vec![secret("stale")]), silent()).await.unwrap_err().to_string();
    assert!(text.contains("the token service 127.0.0.1 answered 401") && !text.contains("stale"), "{text}");
    store.ensure(ask(vec![secret("re/fresh")]), silent()).await.unwrap();
    assert_eq!(exchanges.load(Ordering::SeqCst), 1, "one token serves the whole pull");
}
