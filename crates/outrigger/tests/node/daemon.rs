//! Runs a node, and commands that talk to it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::leaks::{self, names};
use crate::run::Bench;

const POLL: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(90);

/// The output of a command, and its exit code.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A state directory with a node, which can be killed and started again.
pub(crate) struct Daemon<'b> {
    bench: &'b Bench,
    pub(crate) dir: PathBuf,
    flags: Vec<String>,
    /// Additional flags for `outrigger run -d`.
    run_flags: Vec<String>,
    /// Environment variables of the node.
    env: Vec<(String, String)>,
    child: Option<Child>,
}

impl<'b> Daemon<'b> {
    /// Starts a node with its own directory.
    pub(crate) fn start(bench: &'b Bench, name: &str, flags: &[&str]) -> Self {
        Self::start_with(bench, name, flags, &["--network", "none"])
    }

    /// Starts a node with other flags for `outrigger run -d`.
    pub(crate) fn start_with(bench: &'b Bench, name: &str, flags: &[&str], run_flags: &[&str]) -> Self {
        // No test talks to the machine's own logind.
        let no_bus = format!("unix:path={}", bench.work.join(name).join("no-bus").display());
        Self::start_fully(bench, name, flags, run_flags, &no_bus)
    }

    /// Starts a node with a system bus.
    pub(crate) fn start_on_bus(bench: &'b Bench, name: &str, flags: &[&str], bus: &str) -> Self {
        Self::start_fully(bench, name, flags, &["--network", "none"], bus)
    }

    fn start_fully(bench: &'b Bench, name: &str, flags: &[&str], run_flags: &[&str], bus: &str) -> Self {
        let dir = bench.work.join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let strings = |flags: &[&str]| flags.iter().map(ToString::to_string).collect();
        let (flags, run_flags) = (strings(flags), strings(run_flags));
        let env = vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), bus.to_owned())];
        let mut daemon = Daemon { bench, dir, flags, run_flags, env, child: None };
        daemon.up();
        daemon
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("a node that runs").id()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn command(&self) -> Command {
        self.command_by(&[])
    }

    /// The command of the node, started by another program that gets it as arguments.
    fn command_by(&self, by: &[&str]) -> Command {
        let mut command = match by {
            [] => Command::new(&self.bench.binary),
            [starter, args @ ..] => {
                let mut command = Command::new(starter);
                command.args(args).arg(&self.bench.binary);
                command
            }
        };
        command.env("OUTRIGGER_RUNTIME_DIR", self.dir.join("sockets")).env_remove("NO_COLOR");
        command.stdin(Stdio::null());
        command
    }

    /// Starts the process, without waiting until it is ready.
    pub(crate) fn spawn(&mut self) {
        self.spawn_by(&[]);
    }

    fn spawn_by(&mut self, by: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("err")).expect("a file");
        let mut command = self.command_by(by);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.arg("node").arg("--state-dir").arg(self.state()).args(&self.flags);
        command.stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("start a node"));
    }

    /// Starts the process and waits until it answers.
    pub(crate) fn up(&mut self) {
        self.up_by(&[]);
    }

    /// Starts the process by another program, which becomes the node.
    pub(crate) fn up_by(&mut self, by: &[&str]) {
        self.spawn_by(by);
        self.until("the node answers", |daemon| daemon.answers());
    }

    fn answers(&self) -> bool {
        let runs: Value = serde_json::from_str(&self.say(&["ps", "-o", "json"]).out).unwrap_or_default();
        let pid = self.child.as_ref().map(Child::id);
        runs.as_array().is_some_and(|runs| runs.iter().any(|run| run["pid"].as_u64() == pid.map(u64::from)))
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let child = self.child.as_ref().expect("a node that runs");
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("send a signal");
    }

    /// Ends the process with a signal and waits for it. Returns its exit code.
    pub(crate) fn down(&mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        let mut child = self.child.take().expect("a node that runs");
        child.wait().expect("its end").code()
    }

    /// Runs a command to completion.
    pub(crate) fn say(&self, args: &[&str]) -> Said {
        let output = self.command().args(args).output().expect("outrigger runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Starts a second node, which must be refused.
    pub(crate) fn refused(&self) -> Said {
        let mut command = self.command_by(&["timeout", "60"]);
        let output =
            command.arg("node").arg("--state-dir").arg(self.state()).output().expect("outrigger runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Starts a command whose output is not read.
    pub(crate) fn start_command(&self, args: &[&str]) -> Child {
        let mut command = self.command();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("outrigger runs")
    }

    /// Starts a command whose output is read at its end.
    pub(crate) fn start_listening(&self, args: &[&str]) -> Child {
        let mut command = self.command();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("outrigger runs")
    }

    /// The number of commands that the node serves.
    pub(crate) fn clients(&self) -> usize {
        let text = fs::read_to_string("/proc/net/unix").expect("the sockets");
        // The node's own sockets listen. Accepted ones have its path, too.
        let is_client =
            |line: &&str| line.contains(&*format!("{}-", self.pid())) && !line.contains(" 00010000 ");
        text.lines().filter(is_client).count()
    }

    /// Kills the shims of all containers, and with them the containers.
    pub(crate) fn kill_shims(&self) {
        let pods = self.state().join("pods");
        for pod in names(&pods) {
            let containers = pods.join(pod).join("ns/containers");
            for container in names(&containers) {
                let text = fs::read(containers.join(container).join("state.json")).expect("a state");
                let state: Value = serde_json::from_slice(&text).expect("JSON");
                for process in ["shim", "init"] {
                    let pid = state[process]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
                    let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
                    let _ = kill_process(pid, Signal::KILL);
                    self.until("it has ended", |_| {
                        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
                        stat.map_or(true, |stat| stat.contains(") Z "))
                    });
                }
            }
        }
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub(crate) fn must(&self, args: &[&str]) -> String {
        let said = self.say(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}\n{}", self.account());
        said.out
    }

    /// Writes a manifest.
    pub(crate) fn file(&self, name: &str, manifest: &Value) -> String {
        let path = self.dir.join(name);
        fs::write(&path, manifest.to_string()).expect("write the manifest");
        path.display().to_string()
    }

    /// Submits a pod.
    pub(crate) fn run(&self, name: &str, spec: &Value, flags: &[&str]) -> Said {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.run_object(name, &pod, flags)
    }

    /// Submits a manifest.
    pub(crate) fn run_object(&self, name: &str, object: &Value, flags: &[&str]) -> Said {
        let file = self.file(&format!("{name}.json"), object);
        let state = self.state().display().to_string();
        let given: Vec<&str> = match flags.contains(&"--network") {
            true => Vec::new(),
            false => self.run_flags.iter().map(String::as_str).collect(),
        };
        self.say(&[&["run", "-d", "--state-dir", &state, &file][..], &given, flags].concat())
    }

    /// A pod as `outrigger ps` shows it.
    pub(crate) fn pod(&self, name: &str) -> Option<Value> {
        let said = self.say(&["ps", "-o", "json", name]);
        let runs: Value = serde_json::from_str(&said.out).ok()?;
        Some(runs[0]["pods"][0].clone()).filter(|pod| said.code == 0 && pod.is_object())
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&self, what: &str, test: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !test(self) {
            assert!(began.elapsed() < PATIENCE, "timeout: {what}\n{}", self.account());
            std::thread::park_timeout(POLL);
        }
    }

    /// Waits until a pod is ready.
    pub(crate) fn ready(&self, name: &str) {
        self.until(&format!("{name} is ready"), |daemon| {
            daemon.pod(name).is_some_and(|pod| pod["ready"] == pod["total"] && pod["phase"] == "Running")
        });
    }

    /// Waits until a pod has ended. Returns its phase.
    pub(crate) fn over(&self, name: &str) -> String {
        self.until(&format!("{name} is over"), |daemon| daemon.pod(name).is_some_and(|p| p["over"] == true));
        self.pod(name).expect("it is shown")["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// The output of the node.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.dir.join("err")).unwrap_or_default()
    }

    /// All information for a failed test.
    pub(crate) fn account(&self) -> String {
        let ps = self.say(&["ps", "-a", "-c"]);
        format!("the node said:\n{}\nps:\n{}{}", self.said(), ps.out, ps.err)
    }

    /// The ids of all pods that have files in the state directory.
    pub(crate) fn sandboxes(&self) -> Vec<String> {
        names(&self.state().join("node/pods"))
    }

    /// Stops everything. Checks that nothing is left of the pods, except the logs and the status of each.
    pub(crate) fn leaves_nothing(&mut self) {
        self.must(&["stop", "--all"]);
        assert_eq!(self.down(Signal::TERM), Some(0), "{}", self.account());
        let (state, sandboxes) = (self.state(), self.sandboxes());
        assert!(!sandboxes.is_empty() || names(&state.join("node/runs")).is_empty(), "nothing to look for");
        // The resources of a process are released a moment after its end.
        let began = Instant::now();
        while !leaks::left(&state, &sandboxes).is_empty() {
            let left = leaks::left(&state, &sandboxes);
            assert!(began.elapsed() < PATIENCE, "left: {left:#?}\n{}", self.said());
            std::thread::park_timeout(POLL);
        }
        let unfinished: Vec<String> = sandboxes
            .iter()
            .flat_map(|id| names(&state.join("node/pods").join(id)))
            .filter(|file| !["logs", "pod.json", "observation.json"].contains(&file.as_str()))
            .collect();
        assert!(unfinished.is_empty(), "files are left: {unfinished:?}");
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        if self.child.is_none() && !self.state().join("pods").exists() {
            return;
        }
        if self.child.is_none() && !names(&self.state().join("pods")).is_empty() {
            self.spawn();
            std::thread::park_timeout(Duration::from_secs(1));
        }
        if let Some(mut child) = self.child.take() {
            let _ = self.say(&["stop", "--all", "--grace-period", "0"]);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
