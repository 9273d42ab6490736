//! Runs a real kube-apiserver and etcd for the duration of the tests.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The directory of the binaries, by the convention of envtest.
pub(crate) fn assets() -> PathBuf {
    std::env::var_os("KUBEBUILDER_ASSETS").map_or_else(|| "/usr/local/kubebuilder/bin".into(), PathBuf::from)
}

/// What these tests need and the machine lacks, if anything.
pub(crate) fn missing() -> Option<String> {
    let needs = ["kube-apiserver", "kubectl"];
    let absent: Vec<&str> = needs.into_iter().filter(|name| !assets().join(name).exists()).collect();
    if !absent.is_empty() {
        return Some(format!("{} not in {}", absent.join(" and "), assets().display()));
    }
    etcd().is_none().then(|| "no etcd".to_owned())
}

fn etcd() -> Option<PathBuf> {
    let places = [assets().join("etcd"), "/usr/bin/etcd".into(), "/usr/local/bin/etcd".into()];
    places.into_iter().find(|path| path.exists())
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Polls until a condition holds. Fails with the description of the condition.
#[allow(clippy::disallowed_methods)] // there is no event for this
pub(crate) fn eventually<T>(what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = test() {
            return found;
        }
        // The limit is long, for a thousand pods on a machine that is busy with other work.
        assert!(begun.elapsed() < Duration::from_secs(180), "not within three minutes: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that ends with its owner.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Asks it to stop, and waits until it has stopped.
    pub(crate) fn terminate(&mut self) {
        let told = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(told.is_ok_and(|status| status.success()), "it runs");
        let _ = self.0.wait();
    }

    /// The processor time it has used so far. Unlike elapsed time, it does not depend on other work on the
    /// machine.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it runs");
        // The name, in parentheses, may contain spaces. User and system time are the 12th and 13th fields
        // after it.
        let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("ticks")).sum();
        // A tick is 10 ms for programs, regardless of the kernel's own setting.
        Duration::from_millis(ticks * 10)
    }

    /// Its own memory in KiB, without the pages of its binary. A debug build has many of those.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
        line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) struct Cluster {
    dir: TempDir,
    /// The namespaces of the current scene. The first one is the default of every command.
    namespaces: Vec<String>,
    port: u16,
    etcd_port: u16,
    api: Option<Process>,
    _etcd: Process,
}

/// The users: token, name, group.
const USERS: [(&str, &str, &str); 2] = [
    ("admin", "admin", "system:masters"),
    ("operator", "system:serviceaccount:outrigger-system:outrigger-operator", "system:serviceaccounts"),
];

impl Cluster {
    pub(crate) fn start() -> Self {
        let dir = TempDir::new().expect("a directory");
        let (port, etcd_port, peer) = (free_port(), free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = Command::new(etcd().expect("etcd"))
            .args(["--data-dir"])
            .arg(dir.path().join("data"))
            .args(["--listen-client-urls", &url(etcd_port), "--advertise-client-urls", &url(etcd_port)])
            .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
            .args(["--initial-cluster", &format!("default={}", url(peer)), "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(log(dir.path(), "etcd"))
            .spawn()
            .expect("etcd starts");
        let mut cluster =
            Cluster { port, etcd_port, api: None, _etcd: Process(etcd), namespaces: Vec::new(), dir };
        cluster.prepare();
        cluster.start_api();
        cluster
    }

    fn prepare(&self) {
        let at = |name: &str| self.dir.path().join(name);
        let run = Command::new("openssl").args(["genrsa", "-out"]).arg(at("sa.key")).arg("2048").output();
        assert!(run.expect("openssl").status.success());
        let tokens: String = USERS
            .iter()
            .map(|(token, name, group)| format!("{token}-token,{name},{token},\"{group}\"\n"))
            .collect();
        fs::write(at("tokens.csv"), tokens).expect("tokens");
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n  userGroups: [\"system:serviceaccounts\"]\n- level: None\n";
        fs::write(at("audit.yaml"), policy).expect("a policy");
        for (token, ..) in USERS {
            self.write_config(token, token, self.port, "default");
        }
    }

    fn write_config(&self, name: &str, token: &str, port: u16, namespace: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:{port}\", insecure-skip-tls-verify: true}}}}]\nusers: [{{name: u, user: {{token: {token}-token}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u, namespace: {namespace}}}}}]\ncurrent-context: x\n",
        );
        fs::write(self.config(name), text).expect("a kubeconfig");
    }

    /// The kubeconfig of a user.
    pub(crate) fn config(&self, user: &str) -> PathBuf {
        self.dir.path().join(format!("{user}.conf"))
    }

    /// Creates the namespace of a new scene and empties those of the previous scene, because no controller
    /// does.
    pub(crate) fn enter(&mut self, namespace: &str) {
        for namespace in std::mem::take(&mut self.namespaces) {
            for collection in [
                format!("/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0"),
                format!("/api/v1/namespaces/{namespace}/configmaps"),
                format!("/apis/apps.kruise.io/v1beta1/namespaces/{namespace}/containerrecreaterequests"),
            ] {
                let output = self.kubectl(&["delete", "--raw", &collection]);
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        self.add_namespace(namespace.to_owned());
        self.write_config("admin", "admin", self.port, namespace);
    }

    /// Creates another namespace for this scene, named after it.
    pub(crate) fn another_namespace(&mut self, name: &str) -> String {
        let namespace = format!("{}-{name}", self.namespace());
        self.add_namespace(namespace.clone());
        namespace
    }

    fn add_namespace(&mut self, namespace: String) {
        let output = self.kubectl(&["create", "namespace", &namespace]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.namespaces.push(namespace);
    }

    /// The namespace of the current scene, which kubectl and our own commands use by default.
    pub(crate) fn namespace(&self) -> &str {
        self.namespaces.first().map_or("default", String::as_str)
    }

    /// Calls of service accounts, from the audit log of the API server.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("audit.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn start_api(&mut self) {
        let at = |name: &str| self.dir.path().join(name);
        let api = Command::new(assets().join("kube-apiserver"))
            .args(["--etcd-servers", &format!("http://127.0.0.1:{}", self.etcd_port)])
            .args(["--secure-port", &self.port.to_string(), "--bind-address", "127.0.0.1"])
            .args(["--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "RBAC"])
            .args(["--service-account-issuer", "https://kubernetes.default.svc", "--allow-privileged"])
            // There are no controllers, so nothing creates service accounts or removes deleted objects.
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .arg("--cert-dir")
            .arg(at("certs"))
            .arg("--service-account-key-file")
            .arg(at("sa.key"))
            .arg("--service-account-signing-key-file")
            .arg(at("sa.key"))
            .arg("--token-auth-file")
            .arg(at("tokens.csv"))
            .arg("--audit-policy-file")
            .arg(at("audit.yaml"))
            .arg("--audit-log-path")
            .arg(at("audit.log"))
            .stdout(Stdio::null())
            .stderr(log(self.dir.path(), "apiserver"))
            .spawn()
            .expect("kube-apiserver starts");
        self.api = Some(Process(api));
        eventually("the API server is ready", || {
            self.kubectl(&["get", "--raw", "/readyz"]).status.success().then_some(())
        });
    }

    /// Kills the API server, like a crash.
    pub(crate) fn stop_api(&mut self) {
        self.api = None;
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// kubectl with a user's token.
    pub(crate) fn kubectl_as(&self, token: &str, args: &[&str]) -> (bool, String) {
        let output = self.kubectl(&[&["--token", token][..], args].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// kubectl with Outrigger as its plugin.
    pub(crate) fn kubectl_plugin(&self, args: &[&str]) -> (bool, String) {
        let plugins = self.dir.path().join("plugins");
        let _ = fs::create_dir(&plugins);
        let _ =
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_outrigger"), plugins.join("kubectl-outrigger"));
        let path = format!("{}:{}", plugins.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new(assets().join("kubectl"))
            .args(args)
            .env("PATH", path)
            .env("KUBECONFIG", self.config("admin"))
            .output()
            .expect("kubectl runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> Output {
        let mut command = Command::new(assets().join("kubectl"));
        command.arg("--kubeconfig").arg(self.config("admin")).args(args).stdin(Stdio::null());
        command.output().expect("kubectl runs")
    }

    /// Applies a manifest with kubectl. Returns whether it was accepted, and the output.
    pub(crate) fn apply(&self, manifest: &str) -> (bool, String) {
        let file = self.dir.path().join("manifest.yaml");
        fs::write(&file, manifest).expect("a file");
        let output = self.kubectl(&["create", "-f", file.to_str().expect("a path")]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// An object as JSON. `None` if it does not exist.
    pub(crate) fn get(&self, what: &[&str]) -> Option<Value> {
        let mut args = vec!["get", "-o", "json"];
        args.extend(what);
        let output = self.kubectl(&args);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    pub(crate) fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(30)..].join("\n")
        };
        format!("operator:\n{}\n", tail("operator.log"))
    }

    /// A replica of the operator.
    pub(crate) fn operator(&self, identity: &str, webhook: u16, health: u16) -> Process {
        self.operator_at(self.port, identity, webhook, health, &[])
    }

    /// A replica that uses the API server at another port, with more options.
    pub(crate) fn operator_at(
        &self,
        port: u16,
        identity: &str,
        webhook: u16,
        health: u16,
        more: &[&str],
    ) -> Process {
        let config = format!("operator-{port}");
        self.write_config(&config, "operator", port, "default");
        let child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["operator", "run", "--identity", identity, "--webhook-name", "127.0.0.1"])
            .args(["--webhook-address", &format!("127.0.0.1:{webhook}")])
            .args(["--health-address", &format!("127.0.0.1:{health}"), "--certificate-check", "1"])
            .args(more)
            .env("KUBECONFIG", self.config(&config))
            .env("OUTRIGGER_LOG", "info")
            .env_remove("POD_NAMESPACE")
            .stdout(Stdio::null())
            .stderr(log(self.dir.path(), "operator.log"))
            .spawn()
            .expect("the operator starts");
        Process(child)
    }

    pub(crate) fn outrigger(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(args)
            .env("KUBECONFIG", self.config("admin"))
            .output()
            .expect("outrigger runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

fn log(dir: &Path, name: &str) -> Stdio {
    let file = fs::OpenOptions::new().create(true).append(true).open(dir.join(name)).expect("a log");
    file.into()
}
