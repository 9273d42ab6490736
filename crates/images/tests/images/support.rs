//! Handmade images, a registry for each test, and helpers that inspect the results.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrigger_images::ImageStore;
use outrigger_runtime::{Image, ImageError, ProgressSink, PullPolicy, PullProgress, PullRequest};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[derive(Clone, Copy)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A layer under construction.
pub(crate) struct Layer {
    tar: tar::Builder<Vec<u8>>,
}

impl Layer {
    pub(crate) fn new() -> Self {
        Layer { tar: tar::Builder::new(Vec::new()) }
    }

    /// Adds any entry. Its name is used unchanged.
    pub(crate) fn raw(
        mut self,
        name: &str,
        kind: tar::EntryType,
        link: &str,
        data: &[u8],
        set: impl FnOnce(&mut tar::Header),
    ) -> Self {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        set(&mut header);
        header.set_cksum();
        self.tar.append(&header, data).unwrap();
        self
    }

    pub(crate) fn file(self, name: &str, data: impl AsRef<[u8]>) -> Self {
        self.raw(name, tar::EntryType::Regular, "", data.as_ref(), |_| {})
    }

    pub(crate) fn file_as(self, name: &str, data: impl AsRef<[u8]>, mode: u32, uid: u64, gid: u64) -> Self {
        self.raw(name, tar::EntryType::Regular, "", data.as_ref(), |header| {
            header.set_mode(mode);
            header.set_uid(uid);
            header.set_gid(gid);
        })
    }

    pub(crate) fn dir(self, name: &str, mode: u32) -> Self {
        self.raw(name, tar::EntryType::Directory, "", b"", |header| header.set_mode(mode))
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.raw(name, tar::EntryType::Symlink, target, b"", |header| header.set_mode(0o777))
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.raw(name, tar::EntryType::Link, target, b"", |_| {})
    }

    pub(crate) fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.tar.append_pax_extensions(records.iter().copied()).unwrap();
        self
    }

    pub(crate) fn build(self, compression: Compression) -> BuiltLayer {
        let tar = self.tar.into_inner().unwrap();
        let diff_id = sha256(&tar);
        let (bytes, suffix) = match compression {
            Compression::None => (tar, ""),
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(&tar).unwrap();
                (encoder.finish().unwrap(), "+gzip")
            }
            Compression::Zstd => (zstd::encode_all(&tar[..], 1).unwrap(), "+zstd"),
        };
        BuiltLayer { diff_id, bytes, media_type: format!("application/vnd.oci.image.layer.v1.tar{suffix}") }
    }

    pub(crate) fn gzip(self) -> BuiltLayer {
        self.build(Compression::Gzip)
    }
}

#[derive(Clone)]
pub(crate) struct BuiltLayer {
    pub(crate) diff_id: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) media_type: String,
}

/// An OCI layout in a directory.
pub(crate) struct OciLayout {
    pub(crate) dir: PathBuf,
    manifests: Vec<Value>,
}

pub(crate) fn this_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl OciLayout {
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        OciLayout { dir, manifests: Vec::new() }
    }

    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = sha256(bytes);
        fs::write(self.dir.join("blobs/sha256").join(&digest[7..]), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    /// The manifest of an image. It is not yet in the index.
    pub(crate) fn manifest(&self, architecture: &str, config: Value, layers: &[BuiltLayer]) -> Value {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let config = json!({
            "architecture": architecture, "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let layers: Vec<Value> =
            layers.iter().map(|layer| self.blob(&layer.media_type, &layer.bytes)).collect();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers});
        self.blob(media_type, manifest.to_string().as_bytes())
    }

    /// Adds a descriptor to the index under a tag.
    pub(crate) fn tag(&mut self, mut descriptor: Value, tag: &str) {
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        self.manifests.push(descriptor);
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }

    /// Adds an image for this machine under a tag.
    pub(crate) fn image(&mut self, tag: &str, config: Value, layers: &[BuiltLayer]) -> &mut Self {
        let manifest = self.manifest(this_architecture(), config, layers);
        self.tag(manifest, tag);
        self
    }
}

/// A layer with a real program of two megabytes.
pub(crate) fn busybox() -> Layer {
    let program = fs::read("/bin/busybox").expect("busybox-static is installed");
    Layer::new().dir("bin/", 0o755).file_as("bin/busybox", program, 0o755, 0, 0).symlink("bin/sh", "busybox")
}

/// A real registry with its own storage. It is stopped at the end of the test.
pub(crate) struct Registry {
    child: Child,
    pub(crate) port: u16,
    pub(crate) dir: PathBuf,
}

impl Registry {
    pub(crate) async fn start(dir: &Path) -> Self {
        Self::start_at(dir, "127.0.0.1", "", "").await
    }

    /// Starts a registry with user `test` and password `secret`.
    pub(crate) async fn start_with_password(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let file = dir.join("htpasswd");
        fs::write(&file, "test:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n").unwrap();
        let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", file.display());
        Self::start_at(dir, "127.0.0.1", "", &auth).await
    }

    /// Starts a registry with an unknown certificate, `cert.pem` in `dir`, at an address that other machines
    /// could reach.
    pub(crate) async fn start_with_tls(dir: &Path, ip: IpAddr) -> Self {
        fs::create_dir_all(dir).unwrap();
        let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        let name = format!("subjectAltName=IP:{ip},IP:127.0.0.1");
        let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
        let mut args =
            vec!["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"];
        args.extend([
            "-addext",
            &name,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-out",
            cert,
            "-keyout",
            key,
        ]);
        run("openssl", &args);
        Self::start_at(dir, "0.0.0.0", &format!(", tls: {{certificate: {cert}, key: {key}}}"), "").await
    }

    /// Starts a registry without TLS, at an address that other machines could reach.
    pub(crate) async fn start_open(dir: &Path) -> Self {
        Self::start_at(dir, "0.0.0.0", "", "").await
    }

    async fn start_at(dir: &Path, ip: &str, http: &str, more: &str) -> Self {
        let deadline = Instant::now() + Duration::from_secs(30);
        fs::create_dir_all(dir.join("storage")).unwrap();
        loop {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            let storage = dir.join("storage");
            let config = format!(
                "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
                 http: {{addr: '{ip}:{port}'{http}}}\n{more}",
                storage.display()
            );
            fs::write(dir.join("config.yml"), config).unwrap();
            let log = fs::File::create(dir.join("log")).unwrap();
            let mut child = Command::new("docker-registry")
                .arg("serve")
                .arg(dir.join("config.yml"))
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .expect("docker-registry is installed");
            // If the process has ended, the port was in use, so another one is tried.
            while child.try_wait().unwrap().is_none() {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Registry { child, port, dir: dir.to_owned() };
                }
                let log = || fs::read_to_string(dir.join("log")).unwrap();
                assert!(Instant::now() < deadline, "registry did not start: {}", log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// Copies an image from a layout to this registry with skopeo.
    pub(crate) fn push(&self, layout: &OciLayout, tag: &str, name: &str) {
        let from = format!("oci:{}:{tag}", layout.dir.display());
        let to = format!("docker://{}", self.reference(name));
        run(
            "skopeo",
            &[
                "copy",
                "-q",
                "--all",
                "--preserve-digests",
                "--insecure-policy",
                "--dest-tls-verify=false",
                "--dest-creds=test:secret",
                &from,
                &to,
            ],
        );
    }

    pub(crate) fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// How often a path with this part was requested and served.
    pub(crate) fn count_gets(&self, part: &str) -> usize {
        let log = fs::read_to_string(self.dir.join("log")).unwrap();
        log.lines()
            .filter(|line| line.contains("\"GET ") && line.contains(part) && line.contains("\" 200 "))
            .count()
    }

    /// The file in which the registry keeps a blob.
    pub(crate) fn blob_file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.dir.join("storage/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn request(reference: impl Into<String>, policy: PullPolicy) -> PullRequest {
    PullRequest { reference: reference.into(), policy, auth: Vec::new() }
}

pub(crate) fn silent() -> ProgressSink {
    Arc::new(|_| {})
}

/// A sink that records progress reports.
pub(crate) fn listening() -> (ProgressSink, Arc<Mutex<Vec<PullProgress>>>) {
    let heard: Arc<Mutex<Vec<PullProgress>>> = Arc::default();
    let sink = heard.clone();
    (Arc::new(move |progress| sink.lock().unwrap().push(progress)), heard)
}

pub(crate) async fn ensure(store: &ImageStore, reference: impl Into<String>) -> Result<Image, ImageError> {
    store.ensure(request(reference, PullPolicy::IfNotPresent), silent()).await
}

/// The text of an expected failure.
pub(crate) async fn failure(store: &ImageStore, reference: impl Into<String>) -> String {
    match ensure(store, reference).await {
        Ok(image) => panic!("{} was pulled", image.reference),
        Err(error) => {
            assert_eq!(error.reason(), "ErrImagePull", "{error}");
            error.to_string()
        }
    }
}

/// The layers of an image, merged by the kernel's overlayfs.
pub(crate) struct Merged {
    pub(crate) path: PathBuf,
}

impl Merged {
    pub(crate) fn mount(image: &Image, at: &Path) -> Self {
        for name in ["merged", "upper", "work"] {
            fs::create_dir_all(at.join(name)).unwrap();
        }
        // Overlayfs lists the uppermost layer first.
        let lower: Vec<String> = image.layers.iter().rev().map(|dir| dir.display().to_string()).collect();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.join(":"),
            at.join("upper").display(),
            at.join("work").display()
        );
        let path = at.join("merged");
        run("mount", &["-t", "overlay", "overlay", "-o", &options, path.to_str().unwrap()]);
        Merged { path }
    }

    /// All paths in the merged layers, sorted.
    pub(crate) fn tree(&self) -> Vec<String> {
        fn walk(dir: &Path, root: &Path, out: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                out.push(path.strip_prefix(root).unwrap().display().to_string());
                if path.symlink_metadata().unwrap().is_dir() {
                    walk(&path, root, out);
                }
            }
        }
        let mut out = Vec::new();
        walk(&self.path, &self.path, &mut out);
        out.sort();
        out
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).stderr(Stdio::null()).status();
    }
}

/// The incomplete files in the store. There must be none after a test.
pub(crate) fn scratch_entries(state_dir: &Path) -> Vec<PathBuf> {
    let mut left = Vec::new();
    for owner in fs::read_dir(state_dir.join("images/tmp")).unwrap().flatten() {
        if owner.path().is_dir() {
            left.extend(fs::read_dir(owner.path()).unwrap().flatten().map(|entry| entry.path()));
        }
    }
    left
}
