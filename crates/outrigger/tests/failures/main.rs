//! Checks the messages of the real binary, with real containers, for failures that users commonly meet. Each
//! message says what happened, which line of the manifest caused it, and how to fix it.

mod registry;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_testkit::rootfs;
use registry::{Registry, free_port};
use rustix::process::{Pid, Signal, kill_process};

/// No case takes more than a few seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(90);

struct Bench {
    dir: tempfile::TempDir,
    image: String,
}

/// How a case ends.
#[derive(Clone, Copy)]
enum Ends {
    /// By itself, with this exit code.
    With(i32),
    /// It would retry forever, so it is stopped when all messages were printed.
    WhenStopped,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::Builder::new().prefix("outrigger-failures-").tempdir().expect("a directory");
        // An unprivileged user must be able to read the manifest.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("its own");
        let image = format!("rootfs:{}", rootfs::make(&dir.path().join("rootfs")).display());
        Bench { dir, image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a manifest, with the image filled in.
    fn case(&self, name: &str, manifest: &str) -> Case<'_> {
        let file = format!("{name}.yaml");
        fs::write(self.path(&file), manifest.replace("IMAGE", &self.image)).expect("a manifest");
        Case { bench: self, file, flags: Vec::new(), before: Vec::new(), stdout: "/dev/null" }
    }
}

/// One case: a failure and how to cause it.
struct Case<'a> {
    bench: &'a Bench,
    file: String,
    flags: Vec<String>,
    /// A command that runs the rest of its arguments in another environment.
    before: Vec<String>,
    /// Where standard output goes.
    stdout: &'static str,
}

impl Case<'_> {
    fn flags(mut self, flags: &[&str]) -> Self {
        self.flags = flags.iter().map(|f| (*f).to_owned()).collect();
        self
    }

    fn under(mut self, before: &[&str]) -> Self {
        self.before = before.iter().map(|b| (*b).to_owned()).collect();
        self
    }

    fn stdout_is_full(mut self) -> Self {
        self.stdout = "/dev/full";
        self
    }

    /// Runs it in its own directory, so that paths look as for a user. Checks the messages.
    fn says(&self, ends: Ends, expected: &[&str]) -> String {
        let err = self.bench.path(&format!("{}.err", self.file));
        let mut line = self.before.clone();
        line.push(env!("CARGO_BIN_EXE_outrigger").to_owned());
        line.push("run".to_owned());
        if !self.flags.iter().any(|f| f == "-d") {
            line.extend(["-o", "plain"].map(str::to_owned));
        }
        if !self.flags.iter().any(|f| f == "--state-dir") {
            line.extend(["--state-dir".to_owned(), self.bench.path("state").display().to_string()]);
        }
        line.extend(self.flags.iter().cloned());
        line.push(self.file.clone());
        let child = Command::new(&line[0])
            .args(&line[1..])
            .current_dir(self.bench.dir.path())
            .env("HOME", self.bench.dir.path())
            .env_remove("OUTRIGGER_STATE_DIR")
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.stdout).expect("a device"))
            .stderr(fs::File::create(&err).expect("a file"))
            .spawn()
            .expect("the binary runs");
        let mut run = Running { child, began: Instant::now(), err };
        if matches!(ends, Ends::WhenStopped) {
            run.until(|said| expected.iter().all(|e| said.contains(e)));
            run.stop();
        }
        let code = run.end();
        let said = run.said();
        for part in expected {
            assert!(said.contains(part), "{}: {part:?} in\n{said}", self.file);
        }
        if let Ends::With(expected) = ends {
            assert_eq!(code, Some(expected), "{}\n{said}", self.file);
        }
        said
    }
}

struct Running {
    child: Child,
    began: Instant,
    err: PathBuf,
}

impl Running {
    fn said(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    fn until(&mut self, test: impl Fn(&str) -> bool) {
        while !test(&self.said()) {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)));
            assert!(!ended || test(&self.said()), "it ended without saying it:\n{}", self.said());
            assert!(self.began.elapsed() < PATIENCE, "it does not say it:\n{}", self.said());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn stop(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        let _ = kill_process(pid, Signal::TERM);
    }

    fn end(&mut self) -> Option<i32> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code();
            }
            assert!(self.began.elapsed() < PATIENCE, "it does not end:\n{}", self.said());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves nothing running: the run is stopped in order, then at once, then killed.
        for _ in 0..3 {
            if matches!(self.child.try_wait(), Ok(None)) {
                self.stop();
                let end = Instant::now() + Duration::from_secs(5);
                while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
                    std::thread::park_timeout(Duration::from_millis(20));
                }
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pod with one container, whose fields are given from the image on.
fn pod(container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: app\n{container}"
    )
}

#[test]
fn an_image_that_is_not_there() {
    let bench = Bench::new();
    let registry = Registry::start(&bench.path("registry"), false);
    let manifest = pod(&format!("    image: 127.0.0.1:{}/shop/web:1.2\n", registry.port));
    bench.case("missing", &manifest).flags(&["--network", "none"]).says(
        Ends::WhenStopped,
        &[
            "app  could not pull image: ErrImagePull: ",
            "not found: ",
            " has no image `shop/web` with the tag `1.2`",
            "; next try in 10 s\n",
            " missing.yaml:9: check the spelling of the name and that the tag exists\n",
        ],
    );
    bench
        .case("unreachable", &pod(&format!("    image: 127.0.0.1:{}/web\n", free_port())))
        .flags(&["--network", "none"])
        .says(
            Ends::WhenStopped,
            &[
                "connection refused by 127.0.0.1:",
                " unreachable.yaml:9: check that 127.0.0.1:",
                "is a registry this machine can reach",
            ],
        );
    bench.case("tree", &pod("    image: rootfs:/no/such/tree\n")).flags(&["--network", "none"]).says(
        Ends::With(2),
        &[
            "image `rootfs:/no/such/tree`: directory /no/such/tree does not exist on this machine",
            "tree.yaml:9:12",
            "write a path that exists on this machine",
        ],
    );
    // A directory that is not an image will not become one.
    fs::create_dir_all(bench.path("empty")).expect("a directory");
    for (name, image, fault) in [
        ("file", "oci-archive:/etc/passwd", "cannot read /etc/passwd as a tar file"),
        ("saved", "docker-archive:/etc/passwd", "cannot read /etc/passwd as a tar file"),
        ("dir", "oci:empty", "empty is not an OCI image layout: it has no index.json"),
    ] {
        bench.case(name, &pod(&format!("    image: {image}\n"))).flags(&["--network", "none"]).says(
            Ends::With(2),
            &[
                &format!("image `{image}`: {fault}"),
                &format!("{name}.yaml:9:12"),
                "a path that holds an image",
            ],
        );
    }
    let absolute = bench.dir.path().canonicalize().expect("it exists").join("empty");
    bench.case("relative", &pod("    image: rootfs:./empty\n    command: [ls]\n")).says(
        Ends::With(2),
        &["rootfs: needs an absolute path", &format!("help: write `rootfs:{}`", absolute.display())],
    );
}

#[test]
fn an_image_without_credentials() {
    let bench = Bench::new();
    let registry = Registry::start(&bench.path("registry"), true);
    let manifest = pod(&format!("    image: 127.0.0.1:{}/private:1\n", registry.port));
    let host = format!("`docker login 127.0.0.1:{}`", registry.port);
    bench.case("private", &manifest).flags(&["--network", "none"]).says(
        Ends::WhenStopped,
        &[
            "unauthorized: ",
            "no credentials found",
            " private.yaml:9: check the name: the image may not exist; if it is private, log in with ",
            &host,
            "or name a Secret in imagePullSecrets",
        ],
    );
}

#[test]
fn a_command_that_cannot_be_run() {
    let bench = Bench::new();
    let none = ["--network", "none"];
    let said = bench.case("typo", &pod("    image: IMAGE\n    command: [slep, \"1\"]\n")).flags(&none).says(
        Ends::With(128),
        &[
            "app  could not start (code 128): exec \"slep\": executable file not found in $PATH\n",
            " typo.yaml:10: check that the image has \"slep\", that it is executable and in PATH",
            "web failed after ",
            "`app` exited with code 128 (not started)",
        ],
    );
    // It is reported when it happens, and again at the end.
    assert_eq!(said.matches("typo.yaml:10: ").count(), 2, "{said}");
    bench.case("line", &pod("    image: IMAGE\n    command: [\"sleep 1\"]\n")).flags(&none).says(
        Ends::With(128),
        &[" line.yaml:10: \"sleep 1\" is read as the name of one program; write each word as its own entry ([sleep, \"1\"])"],
    );
    bench.case("shell", &pod("    image: IMAGE\n    command: [sh, -c, no-such-tool]\n")).flags(&none).says(
        Ends::With(127),
        &[
            "app  exited with code 127",
            " shell.yaml:10: code 127 means that a shell did not find the program",
        ],
    );
}

#[test]
fn a_key_a_config_map_does_not_have() {
    let bench = Bench::new();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {colour: blue}\n---\n";
    let env = "    image: IMAGE\n    command: [\"true\"]\n    env:\n    - name: COLOR\n      valueFrom:\n        configMapKeyRef:\n          name: settings\n          key: color\n";
    // The key can come from nowhere else, so nothing is started.
    let said = bench.case("key", &format!("{map}{}", pod(env))).flags(&["--network", "none"]).says(
        Ends::With(2),
        &["ConfigMap `settings` has no key `color`", "key.yaml:21:16", "did you mean `colour`?"],
    );
    assert!(!said.contains("started"), "{said}");
    bench.case("map", &pod(env)).flags(&["--network", "none"]).says(
        Ends::With(2),
        &[
            "ConfigMap `settings` is not in the manifest",
            "map.yaml:15:17",
            "add ConfigMap `settings` to the manifest",
        ],
    );
    let optional = env.replace("          key: color\n", "          key: color\n          optional: true\n");
    bench.case("optional", &pod(&optional)).flags(&["--network", "none"]).says(Ends::With(0), &[]);
}

#[test]
fn what_can_never_heal_is_found_before_anything_starts() {
    let bench = Bench::new();
    let app = "    image: IMAGE\n    command: [\"true\"]\n";
    let volume = |kind: &str| {
        format!("{app}  volumes:\n  - name: v\n    hostPath: {{path: /etc/passwd, type: {kind}}}\n")
    };
    let profile = "{seccompProfile: {type: Localhost, localhostProfile: none.json}}";
    let table = [
        ("program", "    image: IMAGE\n".to_owned(), "is a directory and does not say which program to run"),
        ("profile", format!("{app}    securityContext: {profile}\n"), "there is no seccomp profile"),
        ("class", format!("{app}  runtimeClassName: nobody\n"), "nobody"),
        (
            "variable",
            format!(
                "{app}    volumeMounts:\n    - {{name: v, mountPath: /v, subPathExpr: $(NOPE)}}\n  \
                 volumes: [{{name: v, emptyDir: {{}}}}]\n"
            ),
            "there is no variable `NOPE`",
        ),
    ];
    for (name, spec, expected) in table {
        let said =
            bench.case(name, &pod(&spec)).flags(&["--network", "none"]).says(Ends::With(2), &[expected]);
        assert!(said.contains(&format!("{name}.yaml:")) && !said.contains("sandbox"), "{said}");
        let checked = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["validate", &format!("{name}.yaml")])
            .current_dir(bench.dir.path())
            .output()
            .expect("the binary runs");
        let text = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    for kind in ["File", "FileOrCreate"] {
        bench.case("file", &pod(&volume(kind))).flags(&["--network", "none"]).says(Ends::With(0), &[]);
    }
    // The kubelet keeps such a pod pending. A run refuses it, unless `--keep-trying` is set.
    let root = format!("{app}    securityContext: {{runAsNonRoot: true}}\n");
    let words = ["runAsNonRoot forbids root", "`app` cannot start", "add `runAsUser`", "root.yaml:"];
    let said = bench.case("root", &pod(&root)).flags(&["--network", "none"]).says(Ends::With(2), &words);
    assert!(!said.contains("sandbox"), "{said}");
    let patient = ["--network", "none", "--keep-trying", "--timeout", "2s"];
    bench.case("root", &pod(&root)).flags(&patient).says(Ends::With(124), &words);
    // The user of an image is known only after the pull. Then the pod ends at once.
    let image = image_of(&bench, "0");
    let root = root.replace("IMAGE", &image);
    bench.case("pulled", &pod(&root)).flags(&["--network", "none"]).says(
        Ends::With(1),
        &["image will run as root", "trying again cannot help", "runAsNonRoot", "runAsUser"],
    );
    // A pod that can never start is refused before anything starts.
    let tiny = format!("{app}    resources: {{limits: {{memory: 100m}}}}\n");
    bench
        .case("tiny", &pod(&tiny))
        .flags(&["--network", "none"])
        .says(Ends::With(2), &["memory limit `100m` is too small", "did you mean `100M`?", "tiny.yaml:"]);
    bench
        .case("upper", &pod("    image: Nginx:latest\n"))
        .flags(&["--network", "none"])
        .says(Ends::With(2), &["image `Nginx:latest`", "in lower case", "upper.yaml:9"]);
    // Only that pod ends. The others continue.
    let well = pod("    image: IMAGE\n    command: [sh, -c, \"sleep 2; echo all-done\"]\n")
        .replace("name: web", "name: well");
    let job = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: sick}}\nspec:\n  template:\n    spec:\n      restartPolicy: OnFailure\n      \
         securityContext:\n        runAsNonRoot: true\n      containers:\n      - name: app\n        image: {image}\n        command: [\"true\"]\n"
    );
    let said = bench.case("two", &format!("{well}---\n{job}")).flags(&["--network", "none"]).says(
        Ends::With(1),
        &[
            "well succeeded",
            "trying again cannot help",
            "two.yaml:20",
            "set `runAsUser` to a number",
            "1 failed",
        ],
    );
    assert!(!said.contains("was asked to stop") && !said.contains("next try"), "{said}");
    // Something that can still be fixed from outside is waited for and reported.
    bench.case("directory", &pod(&volume("Directory"))).flags(&["--network", "none"]).says(
        Ends::With(2),
        &["hostPath `/etc/passwd` is not a directory, as its type Directory says\n", "directory.yaml:13"],
    );
    bench.case("directory", &pod(&volume("Directory"))).flags(&patient).says(
        Ends::With(124),
        &["hostPath `/etc/passwd` is not a directory, as its type Directory says: the pod waits until it is"],
    );
    let later = volume("Socket").replace("/etc/passwd", "/nowhere/socket");
    bench.case("later", &pod(&later)).flags(&["--network", "none", "--fail-fast"]).says(
        Ends::With(1),
        &["hostPath `/nowhere/socket` does not exist: the pod waits until it does", "type check failed"],
    );
}

#[test]
fn what_waiting_cannot_heal_ends_the_pod_at_once() {
    let bench = Bench::new();
    let app = "    image: IMAGE\n    command: [\"true\"]\n";
    let sysctl = |name: &str, value: &str| {
        format!("{app}  securityContext:\n    sysctls:\n    - {{name: {name}, value: {value}}}\n")
    };
    let mount = |at: &str, volume: &str| {
        format!(
            "{app}    volumeMounts:\n    - name: v\n      mountPath: {at}\n  volumes:\n  - {{name: v, {volume}}}\n"
        )
    };
    let (nobody, nothing) = (image_of(&bench, "nobody-knows"), image_of(&bench, "0"));
    let table = [
        (
            "sysctl",
            sysctl("net.ipv4.no_such_setting", "\"1\""),
            &[
                "cannot set sysctl net.ipv4.no_such_setting to \"1\": no such file or directory",
                "sysctl.yaml:13: use a sysctl that this machine has below /proc/sys, and a value that it accepts",
            ][..],
        ),
        (
            "value",
            sysctl("net.ipv4.ip_forward", "many"),
            &["cannot set sysctl net.ipv4.ip_forward to \"many\": invalid argument", "value.yaml:13: "],
        ),
        (
            "file",
            mount("/bin/busybox", "emptyDir: {}"),
            &[
                " at /bin/busybox: not a directory",
                "file.yaml:13: use another path: a directory can be mounted only on a",
            ],
        ),
        (
            "directory",
            mount("/tmp", "hostPath: {path: /etc/passwd}"),
            &["cannot mount /etc/passwd at /tmp: invalid argument", "directory.yaml:13: use another path"],
        ),
        (
            "proc",
            mount("/proc/settings", "emptyDir: {}"),
            &[" at /proc/settings: nothing can be mounted inside /proc", "proc.yaml:13: use another path"],
        ),
        (
            "dir",
            format!("{app}    workingDir: /bin/busybox\n"),
            &[
                "cannot make working directory /bin/busybox: not a directory",
                "dir.yaml:11: use a directory of the image, or a path that does not exist",
            ],
        ),
        (
            // Whether `envFrom` has the variable is known only when the container starts.
            "variable",
            mount("/data", "emptyDir: {}").replace("/data\n", "/data\n      subPathExpr: $(NOPE)\n").replace(
                "    volumeM",
                "    envFrom:\n    - configMapRef: {name: none, optional: true}\n    volumeM",
            ),
            &[
                "subPathExpr \"$(NOPE)\": variable \"NOPE\" has no value",
                "variable.yaml:16: give the variable a value in `env` of this container",
            ],
        ),
        (
            "user",
            app.replace("IMAGE", &nobody),
            &[
                "unable to find user nobody-knows: no matching entries in passwd file",
                "user.yaml:9: set `runAsUser` to a number, or use an image whose USER exists",
            ],
        ),
        (
            "program",
            format!("    image: {nothing}\n"),
            &["has neither ENTRYPOINT nor CMD, set command", "program.yaml:9"],
        ),
    ];
    for (name, spec, expected) in table {
        let always = pod(&spec).replace("restartPolicy: Never", "restartPolicy: Always");
        let said = bench.case(name, &always).flags(&["--network", "none"]).says(Ends::With(1), expected);
        assert!(said.contains("trying again cannot help") && !said.contains("next try"), "{name}: {said}");
    }
    // The content of a volume can change, because another container or a program of this machine may write to
    // it.
    fs::create_dir(bench.path("data")).expect("a directory");
    fs::write(bench.path("data/file"), "").expect("a file");
    let inside = format!(
        "{app}    workingDir: /data/file\n    volumeMounts:\n    - {{name: v, mountPath: /data}}\n  volumes:\n  \
         - {{name: v, hostPath: {{path: {}}}}}\n",
        bench.path("data").display()
    );
    bench.case("inside", &pod(&inside)).flags(&["--network", "none"]).says(
        Ends::WhenStopped,
        &["cannot make working directory /data/file: not a directory", "next try in "],
    );
    // The same is true for links and files on the path of a subPath.
    std::os::unix::fs::symlink("/", bench.path("data/out")).expect("a link");
    std::os::unix::fs::symlink("loop", bench.path("data/loop")).expect("a link");
    for (name, sub_path, what) in [
        ("out", "out/etc", "\"out\" in the volume is a symbolic link that leads out of the volume"),
        ("loop", "loop/x", "\"loop\" in the volume is a symbolic link that leads back to itself"),
        ("below", "file/x", "\"file\" in the volume is not a directory"),
    ] {
        let spec = mount("/data", &format!("hostPath: {{path: {}}}", bench.path("data").display()))
            .replace("/data\n", &format!("/data\n      subPath: {sub_path}\n"));
        bench.case(name, &pod(&spec)).flags(&["--network", "none"]).says(
            Ends::WhenStopped,
            &[
                &format!("subPath \"{sub_path}\" cannot be used: {what}"),
                "next try in ",
                &format!("{name}.yaml:14: write a path that exists in the volume"),
            ],
        );
    }
    // A layer can be copied again, so the run waits.
    let layers = fs::read_dir(bench.path("layout-0/blobs/sha256")).expect("blobs").flatten();
    let layer =
        layers.map(|entry| entry.path()).find(|path| fs::read(path).is_ok_and(|bytes| bytes == [0; 1024]));
    fs::write(layer.expect("a layer"), [1; 1024]).expect("another layer");
    let state = bench.path("another-state");
    bench
        .case("damaged", &pod(&app.replace("IMAGE", &nothing)))
        .flags(&["--network", "none", "--state-dir", state.to_str().expect("text")])
        .says(
            Ends::WhenStopped,
            &[
                "digest mismatch: layer should be",
                "damaged.yaml:9: the image is damaged: copy, save or build it again",
            ],
        );
    // An image that must not be pulled can still be loaded while the pod waits.
    let never = "    image: registry.invalid/none:1\n    imagePullPolicy: Never\n";
    bench
        .case("never", &pod(never))
        .flags(&["--network", "none"])
        .says(Ends::WhenStopped, &["ErrImageNeverPull", "next try in 10 s", "never.yaml:"]);
}

/// A workload would only create the next pod that cannot start, so it ends with the first one.
#[test]
fn workloads_of_pods_that_can_never_start_end() {
    let bench = Bench::new();
    let image = image_of(&bench, "0");
    for (kind, more) in [("Deployment", ""), ("StatefulSet", "  serviceName: web\n"), ("ReplicaSet", "")] {
        let manifest = format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec:\n{more}  replicas: 2\n  \
             selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec:\n      \
             securityContext: {{runAsNonRoot: true}}\n      containers:\n      - name: app\n        image: {image}\n        \
             command: [\"true\"]\n"
        );
        let words = ["image will run as root", "trying again cannot help", "set `runAsUser` to a number"];
        let said = bench.case(kind, &manifest).flags(&["--network", "none"]).says(Ends::With(1), &words);
        let after = said.rsplit("trying again cannot help: its pod ends").next().expect("the rest");
        assert!(!after.contains("created pod"), "{kind}: {said}");
    }
}

/// `run -d` refuses the same manifests as `run`, before it starts or contacts a node.
#[test]
fn a_detached_run_refuses_what_run_refuses() {
    let bench = Bench::new();
    let root = "    image: IMAGE\n    command: [\"true\"]\n    securityContext: {runAsNonRoot: true}\n";
    let typed = "    image: IMAGE\n    command: [\"true\"]\n  volumes:\n  - name: v\n    hostPath: {path: /etc, type: File}\n";
    for (name, spec, expected) in [
        ("missing", "    image: rootfs:/no/such/tree\n", "missing.yaml:9:12"),
        ("root", root, "root.yaml:11"),
        ("typed", typed, "hostPath `/etc` is not a file, as its type File says"),
    ] {
        bench.case(name, &pod(spec)).flags(&["-d", "--wait"]).says(Ends::With(2), &[expected]);
    }
    assert!(!bench.path("state/node").exists(), "no node was started");
}

/// An image with an empty layer and this user.
fn image_of(bench: &Bench, user: &str) -> String {
    let dir = bench.dir.path().join(format!("layout-{user}"));
    fs::create_dir_all(dir.join("blobs/sha256")).expect("a directory");
    let digest = |bytes: &[u8]| {
        let file = bench.dir.path().join("blob");
        fs::write(&file, bytes).expect("a file");
        let sum = Command::new("sha256sum").arg(&file).output().expect("sha256sum runs");
        String::from_utf8_lossy(&sum.stdout).split(' ').next().expect("a sum").to_owned()
    };
    let blob = |bytes: &[u8]| {
        let hex = digest(bytes);
        fs::write(dir.join("blobs/sha256").join(&hex), bytes).expect("a blob");
        serde_json::json!({"digest": format!("sha256:{hex}"), "size": bytes.len()})
    };
    // An empty archive is enough, because nothing of it is ever run.
    let layer = [0; 1024];
    let config = serde_json::json!({"os": "linux", "config": {"User": user},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]}});
    let manifest = serde_json::json!({"schemaVersion": 2, "config": blob(config.to_string().as_bytes()),
        "layers": [blob(&layer)]});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [blob(manifest.to_string().as_bytes())]});
    fs::write(dir.join("index.json"), index.to_string()).expect("an index");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file");
    format!("oci:{}", dir.display())
}

#[test]
fn a_run_that_takes_too_long() {
    let bench = Bench::new();
    let app = pod("    image: IMAGE\n    command: [sleep, \"1000\"]\n");
    let said = bench
        .case("long", &app)
        .flags(&["--network", "none", "--timeout", "1s"])
        .says(Ends::With(124), &["--timeout: 1 s passed; stopping in order", "app  "]);
    assert!(said.contains("stop"), "{said}");
    // A pod that completes in time is not affected.
    let quick = pod("    image: IMAGE\n    command: [sh, -c, exit 7]\n");
    bench.case("quick", &quick).flags(&["--network", "none", "--timeout", "1m"]).says(Ends::With(7), &[]);
}

#[test]
fn a_failure_that_ends_the_run() {
    let bench = Bench::new();
    let flags = ["--network", "none", "--fail-fast"];
    let always = |text: String| text.replace("restartPolicy: Never", "restartPolicy: Always");
    // One main would be restarted forever, and another one runs forever.
    let other = "  - name: other\n    image: IMAGE\n    command: [sleep, \"1000\"]\n";
    let crash = always(pod(&format!("    image: IMAGE\n    command: [sh, -c, exit 3]\n{other}")));
    let said = bench
        .case("crash", &crash)
        .flags(&flags)
        .says(Ends::With(3), &["--fail-fast: `app` failed with exit code 3; stopping in order"]);
    assert!(!said.contains("restart 1"), "it was not started again: {said}");
    assert!(said.contains("web failed after "), "{said}");
    assert!(said.contains(": container `app` failed with code 3\n"), "{said}");
    let image = pod(&format!("    image: 127.0.0.1:{}/web\n", free_port()));
    bench
        .case("image", &image)
        .flags(&flags)
        .says(Ends::With(1), &["--fail-fast: the image of `app` cannot be pulled: "]);
    // A container that can never start has failed with and without the option, and the summary says why it
    // never ran.
    let runs = "    image: IMAGE\n    command: [\"true\"]\n";
    for (name, more, why) in [
        ("dir", "    workingDir: /bin/busybox\n", "could not start: cannot make working directory"),
        (
            "sysctl",
            "  securityContext:\n    sysctls:\n    - {name: net.ipv4.nosuch, value: \"1\"}\n",
            ": could not be set up: cannot set sysctl net.ipv4.nosuch",
        ),
        (
            "mount",
            "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes:\n  - {name: v, hostPath: {path: /nosuch, type: Directory}}\n",
            ": could not be set up: volume \"v\": hostPath type check failed",
        ),
    ] {
        // Without the option, a missing path is waited for.
        for flags in [&flags[..], &flags[..2]].iter().take(if name == "mount" { 1 } else { 2 }) {
            let case = format!("{name}-{}", flags.len());
            let said =
                bench.case(&case, &pod(&format!("{runs}{more}"))).flags(flags).says(Ends::With(1), &[why]);
            assert!(said.contains("web failed after "), "{said}");
            for wrong in ["next try in", "for the sandbox", " stopped"] {
                assert!(!said.contains(wrong), "{wrong:?} in {said}");
            }
        }
    }
    // Without the option, the failed pod of a Job would be retried.
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - {name: app, image: IMAGE, command: [sh, -c, exit 4]}\n";
    bench
        .case("job", job)
        .flags(&flags)
        .says(Ends::With(4), &["--fail-fast: a pod failed; stopping in order"]);
    // One main is never restarted, and another one runs forever. The pod can only fail.
    let never = pod(&format!("    image: IMAGE\n    command: [sh, -c, exit 5]\n{other}"));
    bench
        .case("never", &never)
        .flags(&flags)
        .says(Ends::With(5), &["--fail-fast: `app` failed with exit code 5; stopping in order"]);
    // A probe cannot be run, and another container waits for its container.
    let probe = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  restartPolicy: Never\n  initContainers:\n  - name: proxy\n    image: IMAGE\n    restartPolicy: Always\n    command: [sleep, \"1000\"]\n    startupProbe:\n      exec:\n        command: [nosuch]\n      periodSeconds: 1\n      failureThreshold: 2\n  containers:\n  - name: app\n    image: IMAGE\n    command: [\"true\"]\n";
    bench.case("probe", probe).flags(&flags).says(
        Ends::With(1),
        &[
            "startup probe could not run, which does not count as a failure: ",
            " probe.yaml:13: \"nosuch\" is looked for in the PATH of the container: check that the image has it",
            "--fail-fast: the startup probe of `proxy` cannot be run: ",
        ],
    );
    // A success, or a restart without a failure, does not count as a failure.
    let fine = pod("    image: IMAGE\n    command: [sh, -c, exit 0]\n");
    bench.case("fine", &fine).flags(&flags).says(Ends::With(0), &[]);
}

#[test]
fn a_port_that_is_taken() {
    let bench = Bench::new();
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let own = format!("(process {}) listens there: stop it", std::process::id());
    let sleeper = "    image: IMAGE\n    command: [sleep, \"1\"]\n";
    let host_port = format!(
        "{sleeper}    ports:\n    - containerPort: 80\n      hostIP: 127.0.0.1\n      hostPort: {port}\n"
    );
    let in_use = format!("host port {port} is already in use");
    bench
        .case("port", &pod(&host_port))
        .says(Ends::With(2), &[&in_use, " port.yaml:14: ", &own, ", or write another hostPort\n"]);
    let publish = format!("127.0.0.1:{port}:80");
    bench
        .case("publish", &pod(sleeper))
        .flags(&["--publish", &publish])
        .says(Ends::With(2), &[&in_use, &own, ", or give --publish another port of this machine\n"]);
    // 192.0.2.0/24 is reserved for documentation.
    let elsewhere = host_port.replace("127.0.0.1", "192.0.2.1");
    let no_address =
        format!("host port {port} cannot be opened: tcp 192.0.2.1 is not an address of this machine");
    let said = bench.case("elsewhere", &pod(&elsewhere)).says(
        Ends::With(2),
        &[&no_address, " elsewhere.yaml:13: write an address of this machine", "or leave hostIP out"],
    );
    assert!(!said.contains("stop what listens"), "{said}");
    bench
        .case("address", &pod(sleeper))
        .flags(&["--publish", &format!("192.0.2.1:{port}:80")])
        .says(Ends::With(2), &[&no_address, "give --publish an address of this machine"]);
}

#[test]
fn a_probe_that_can_never_pass() {
    let bench = Bench::new();
    let server = |listen: &str, port: u16| {
        format!(
            "    image: IMAGE\n    command: [httpd, -f, -p, \"{listen}\"]\n    startupProbe:\n      httpGet:\n        path: /\n        port: {port}\n      periodSeconds: 1\n      failureThreshold: 3\n"
        )
    };
    bench.case("probe", &pod(&server("8080", 8081))).says(
        Ends::With(137),
        &[
            "startup probe failed (3 of 3): GET :8081/: connection refused, the pod listens on 8080\n",
            " probe.yaml:12: use the port the program listens on",
            "if it only needs more time than 3 s, raise failureThreshold",
            "`app` was stopped: its startup probe failed",
        ],
    );
    bench.case("loopback", &pod(&server("127.0.0.1:8080", 8080))).says(
        Ends::With(137),
        &[
            "connection refused, the pod listens on 127.0.0.1:8080 only, not on its own address\n",
            "make it listen on all addresses (0.0.0.0)",
        ],
    );
}

#[test]
fn files_that_cannot_be_written() {
    let bench = Bench::new();
    let app = pod("    image: IMAGE\n    command: [sh, -c, echo hello]\n");
    let none = ["--network", "none"];
    for (flag, file) in
        [("--events", "/nowhere/e"), ("--status", "/nowhere/s"), ("--timeline", "/nowhere/t.html")]
    {
        let flags = [&none[..], &[flag, file]].concat();
        let said = bench
            .case("nowhere", &app)
            .flags(&flags)
            .says(Ends::With(125), &[&format!("cannot write {file}: No such file or directory")]);
        assert!(!said.contains("hello"), "nothing was started: {said}");
    }
    // Even a quiet run reports a file that is lost later. The summary does not mention the file.
    for quiet in [&["-q"][..], &[]] {
        let flags = [&none[..], &["--events", "/dev/full"], quiet].concat();
        let said = bench
            .case("full", &app)
            .flags(&flags)
            .says(Ends::With(0), &["events are lost: cannot write /dev/full: No space left"]);
        assert!(!said.contains("events: /dev/full"), "{said}");
        let flags = [&none[..], quiet].concat();
        let said = bench
            .case("stdout", &app)
            .flags(&flags)
            .stdout_is_full()
            .says(Ends::With(0), &["output is lost: cannot write to standard output: No space left"]);
        assert_eq!(said.contains("succeeded"), quiet.is_empty(), "the rest is still said: {said}");
    }
}

#[test]
fn a_sidecar_that_never_becomes_ready() {
    let bench = Bench::new();
    let native = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 0\n  initContainers:\n  - name: proxy\n    image: IMAGE\n    restartPolicy: Always\n    command: [sleep, \"1000\"]\n    startupProbe:\n      tcpSocket:\n        port: 15001\n      periodSeconds: 1\n      failureThreshold: 2\n  containers:\n  - name: app\n    image: IMAGE\n    command: [\"true\"]\n";
    bench.case("native", native).says(
        Ends::WhenStopped,
        &[
            "app    waits for `proxy` to be started: ",
            "startup probe failed (2 of 2): port 15001: connection refused, nothing in the pod listens on any port\n",
            " native.yaml:13: use the port the program listens on",
            "Until it passes, `app` does not start\n",
            "proxy  starting again (restart 1)\n",
        ],
    );
    let graph = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations:\n    outrigger.dev/depends-on: |\n      proxy: sidecar\n      app: proxy ready\nspec:\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: app\n    image: IMAGE\n    command: [\"true\"]\n  - name: proxy\n    image: IMAGE\n    command: [sleep, \"1000\"]\n    readinessProbe:\n      exec:\n        command: [sh, -c, \"echo no route; exit 1\"]\n      periodSeconds: 1\n      failureThreshold: 2\n";
    bench.case("graph", graph).flags(&["--network", "none"]).says(
        Ends::WhenStopped,
        &[
            "app    waits for `proxy` to be ready: ",
            "readiness probe failed (2 of 2): exit code 1: no route\n",
            " graph.yaml:20: the command must exit with code 0 once the container is healthy. Until it passes, `app` does not start\n",
        ],
    );
}

#[test]
fn whoever_is_not_root() {
    let bench = Bench::new();
    // Root without privileges is like any other user. The tests of `rootless` cover this.
    let case = bench.case("pod", &pod("    image: IMAGE\n    command: [\"true\"]\n"));
    case.under(&["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
        .flags(&["--network", "none"])
        .says(Ends::With(0), &["web succeeded after "]);
    // A user namespace without privileges and without nested namespaces.
    let refused = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-ec",
        "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"",
        "sh",
    ];
    let case = bench.case("pod", &pod("    image: IMAGE\n"));
    case.under(&refused).says(
        Ends::With(125),
        &[
            "error: user 0 cannot create a user namespace",
            "have root run `sysctl -w user.max_user_namespaces=15000`",
            "--runtime cri",
            "`outrigger doctor`",
        ],
    );
    let doctor = doctor(&refused, &bench.path("state"));
    assert_eq!(doctor.0, Some(1), "{}", doctor.1);
    for expected in [
        "FAIL  privileges         root without CAP_SYS_ADMIN\n",
        "how to fix it: if this is a container, make it privileged\n",
        "this machine cannot run pods yet\n",
    ] {
        assert!(doctor.1.contains(expected), "{expected:?} in\n{}", doctor.1);
    }
}

/// Runs a shell line and then the rest of the arguments in a new mount namespace.
fn apart(line: &str) -> Vec<String> {
    ["unshare", "--mount", "sh", "-ec", &format!("{line}; exec \"$@\""), "sh"].map(str::to_owned).to_vec()
}

#[test]
fn a_sidecar_that_nobody_marked_keeps_a_job_running() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      \
               terminationGracePeriodSeconds: 1\n      containers:\n      - {name: work, image: \"IMAGE\", command: [\"true\"]}\n      \
               - {name: istio-proxy, image: \"IMAGE\", command: [sleep, \"3600\"]}\n";
    let bench = Bench::new();
    bench.case("forgotten", job).flags(&["--network", "none", "--quiet"]).says(
        Ends::WhenStopped,
        &[
            "has done its work, but `istio-proxy` keeps it running: not marked as a sidecar\n",
            "write `outrigger.dev/sidecars: istio-proxy` into the annotations of the pod or template",
            "or move it to `initContainers` and add `restartPolicy: Always`",
        ],
    );
}

fn doctor(before: &[&str], state: &Path) -> (Option<i32>, String) {
    let line: Vec<&str> =
        before.iter().copied().chain([env!("CARGO_BIN_EXE_outrigger"), "doctor", "--state-dir"]).collect();
    let out = Command::new(line[0]).args(&line[1..]).arg(state).output().expect("the binary runs");
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn a_machine_without_writable_cgroups() {
    let bench = Bench::new();
    // This is like a container with a read-only /sys/fs/cgroup.
    let read_only = apart(
        "findmnt -rn -t cgroup,cgroup2 -o TARGET | while read -r m; do mount -o remount,bind,ro \"$m\"; done",
    );
    let read_only: Vec<&str> = read_only.iter().map(String::as_str).collect();
    let limited = pod(
        "    image: IMAGE\n    command: [\"true\"]\n    resources:\n      limits:\n        memory: 64Mi\n",
    );
    let began = Instant::now();
    let said = bench.case("limits", &limited).under(&read_only).flags(&["--network", "none"]).says(
        Ends::With(0),
        &[
            "warning: the limits of `app` do not apply on this machine (cgroups version",
            "--> limits.yaml:12:7\n",
            "= help: run as root, and in a container with /sys/fs/cgroup mounted writable\n",
            "memory limits do not apply: read-only file system\n",
            "web succeeded after ",
        ],
    );
    assert!(
        !said.contains("still in use"),
        "there was nothing to remove after {:?}:\n{said}",
        began.elapsed()
    );
    let doctor = doctor(&read_only, &bench.path("state"));
    for expected in [
        "warn  cgroups ",
        ", not writable\n",
        "limits of containers do not apply: read-only file system in /sys/fs/cgroup",
        "how to fix it: run as root, and in a container with /sys/fs/cgroup mounted writable\n",
    ] {
        assert!(doctor.1.contains(expected), "{expected:?} in\n{}", doctor.1);
    }
}

#[test]
fn a_place_overlayfs_refuses() {
    let bench = Bench::new();
    // This is like a container whose own root is an overlay. The kernel does not accept an overlay as the
    // upper layer of another one.
    let dir = bench.path("disk");
    fs::create_dir(&dir).expect("a directory");
    let line = format!(
        "cd {0}; mount -t tmpfs none .; cd {0}; mkdir lower upper work merged; mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged; cd {1}",
        dir.display(),
        bench.dir.path().display()
    );
    let overlaid = apart(&line);
    let overlaid: Vec<&str> = overlaid.iter().map(String::as_str).collect();
    let state = dir.join("merged/state");
    let refused = format!(
        "overlayfs is refused in {} (invalid argument): every container gets a copy of its whole image",
        state.display()
    );
    bench
        .case("copied", &pod("    image: IMAGE\n    command: [sh, -c, \"touch /new && test -e /bin/sh\"]\n"))
        .under(&overlaid)
        .flags(&["--network", "none", "--state-dir", state.to_str().expect("text")])
        .says(
            Ends::With(0),
            &[
                &refused,
                "choose a --state-dir on ext4, xfs or tmpfs, and see `outrigger doctor`\n",
                "web succeeded after ",
            ],
        );
    let doctor = doctor(&overlaid, &state);
    for expected in [
        "warn  overlayfs          refused in ",
        "every container gets a copy of its image",
        "how to fix it: choose a --state-dir",
    ] {
        assert!(doctor.1.contains(expected), "{expected:?} in\n{}", doctor.1);
    }
}

/// A warning that cannot be written must not end the task that writes it. Otherwise the run would wait for
/// that task forever.
#[test]
fn a_run_goes_on_when_nobody_reads_its_messages() {
    let bench = Bench::new();
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: unread}\nspec:\n  restartPolicy: Never\n  containers:\n  - {name: app, image: 'IMAGE', command: [sh, -c, 'exit 7']}\n";
    let case = bench.case("unread", manifest);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["run", "--log", "debug", "--timeout", "60s", "--state-dir"])
        .arg(bench.path("state"))
        .arg(bench.path(&case.file))
        .env_remove("OUTRIGGER_STATE_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .status();
    assert_eq!(ended.expect("the binary runs").code(), Some(7));
}
