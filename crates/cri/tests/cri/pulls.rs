//! Tests of images that containerd pulls from a registry. The tests start both themselves.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use outrigger_cri::CriRuntime;
use outrigger_runtime::{Image, ImageError, PullPolicy, PullRequest, Runtime};

use crate::containerd::{Containerd, eventually, image};
use crate::support::{Pod, connect, endpoint, limits};
use outrigger_testkit::trials;

trials!(credentials_and_policies_count, a_full_disk_is_told);

/// A registry that requires user `test`, password `secret`.
struct Registry {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Registry {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("outrigger-registry-").tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("htpasswd"), "test:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n")
            .expect("write");
        loop {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .and_then(|l| l.local_addr())
                .expect("a port")
                .port();
            let config = format!(
                "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
                 http: {{addr: '127.0.0.1:{port}'}}\nauth: {{htpasswd: {{realm: test, path: {}}}}}\n",
                at("storage").display(),
                at("htpasswd").display()
            );
            fs::write(at("config.yml"), config).expect("write");
            let log = fs::File::create(at("log")).expect("a log");
            let mut child = Command::new("docker-registry")
                .arg("serve")
                .arg(at("config.yml"))
                .stdout(log.try_clone().expect("a log"))
                .stderr(log)
                .spawn()
                .expect("docker-registry is installed");
            let mut up = false;
            eventually("the registry starts or ends", || {
                up = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
                up || child.try_wait().expect("a child").is_some()
            });
            // Otherwise the port was in use, and another one is tried.
            if up {
                return Registry { child, port, dir };
            }
        }
    }

    fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Pushes an image with busybox and `bytes` more bytes.
    fn push(&self, name: &str, bytes: usize) -> String {
        let archive = self.dir.path().join("push.tar");
        image::write(&archive, [("localhost/push:1", serde_json::json!({"Cmd": ["sh"]}))].into_iter(), bytes);
        let status = Command::new("skopeo")
            .args(["copy", "-q", "--insecure-policy", "--dest-tls-verify=false", "--dest-creds=test:secret"])
            .arg(format!("docker-archive:{}", archive.display()))
            .arg(format!("docker://{}", self.reference(name)))
            .status()
            .expect("skopeo is installed");
        assert!(status.success(), "skopeo: {status}");
        fs::remove_file(archive).expect("remove");
        self.reference(name)
    }

    /// How often the manifest of an image was served.
    fn pulls(&self, name: &str) -> usize {
        let log = fs::read_to_string(self.dir.path().join("log")).expect("a log");
        let path = format!("/v2/{name}/manifests/");
        log.lines()
            .filter(|line| line.contains("\"HEAD ") && line.contains(&path) && line.contains("\" 200 "))
            .count()
    }

    fn secret(&self, password: &str) -> String {
        format!(r#"{{"auths":{{"127.0.0.1:{}":{{"username":"test","password":"{password}"}}}}}}"#, self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn pull(
    runtime: &CriRuntime,
    reference: &str,
    policy: PullPolicy,
    auth: &[String],
) -> Result<Image, ImageError> {
    let request = PullRequest { reference: reference.to_owned(), policy, auth: auth.to_vec() };
    runtime.pull_image(request, Arc::new(|_| {})).await
}

async fn credentials_and_policies_count() {
    let registry = tokio::task::block_in_place(Registry::start);
    let reference = tokio::task::block_in_place(|| registry.push("private/app:1", 0));
    let runtime = connect(endpoint(), limits()).await;
    let (wrong, right) = (registry.secret("wrong"), registry.secret("secret"));
    let error = pull(&runtime, &reference, PullPolicy::IfNotPresent, &[]).await.expect_err("who are you");
    assert!(error.to_string().contains("imagePullSecrets (none given)"), "{error}");
    let error = pull(&runtime, &reference, PullPolicy::IfNotPresent, std::slice::from_ref(&wrong)).await;
    assert_eq!(error.expect_err("wrong password").reason(), "ErrImagePull");
    // If two credentials match, the second is tried as well. Two concurrent calls share one pull.
    let secrets = [wrong, right];
    let (one, two) = tokio::join!(
        pull(&runtime, &reference, PullPolicy::IfNotPresent, &secrets),
        pull(&runtime, &reference, PullPolicy::IfNotPresent, &secrets)
    );
    let (one, two) = (one.expect("pull"), two.expect("pull"));
    assert!(one.id.starts_with("sha256:") && one.id == two.id && !one.was_present, "{one:?}");
    let pulled = registry.pulls("private/app");
    let again = pull(&runtime, &reference, PullPolicy::IfNotPresent, &[]).await.expect("it is there");
    assert!(again.was_present);
    pull(&runtime, &reference, PullPolicy::Never, &[]).await.expect("it is there");
    assert_eq!(registry.pulls("private/app"), pulled, "nobody asked the registry");
    pull(&runtime, &reference, PullPolicy::Always, &secrets).await.expect("it is there");
    assert!(registry.pulls("private/app") > pulled, "the registry was asked");
    let pod = Pod::new().await;
    let mut spec = pod.script("echo pulled");
    spec.image = one;
    assert_eq!(pod.output(spec).await, "pulled\n");
    pod.finish().await;
}

/// Limits the space for images.
fn small(dir: &Path) {
    let root = dir.join("root");
    fs::create_dir(&root).expect("a directory");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("small", &root, "tmpfs", flags, c"size=48m").expect("a file system");
}

async fn a_full_disk_is_told() {
    let registry = tokio::task::block_in_place(Registry::start);
    let reference = tokio::task::block_in_place(|| registry.push("large/app:1", 64 << 20));
    let containerd = tokio::task::block_in_place(|| Containerd::start_in(None, small));
    let runtime = connect(containerd.endpoint(), limits()).await;
    let secrets = [registry.secret("secret")];
    let error = pull(&runtime, &reference, PullPolicy::IfNotPresent, &secrets).await.expect_err("too large");
    assert!(error.to_string().contains("no space left on device; free some space"), "{error}");
    containerd.finish();
}
