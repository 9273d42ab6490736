//! Runs the pod of a case: with `outrigger run`, or with a node that is killed at random moments.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::conformance::case::Case;
use crate::conformance::run::Bench;

const POLL: Duration = Duration::from_millis(20);

/// How often a node is queried. Each query starts a process.
const ASK_EVERY: Duration = Duration::from_millis(150);

/// How long a kill waits for the end of a hook.
const HOOKS_TAKE: Duration = Duration::from_secs(10);

/// How long a new node may take to answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What runs the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// `outrigger run`.
    Foreground,
    /// A node for each case, killed and restarted at moments that depend on this seed and the name of the
    /// case.
    KilledNode { seed: u64 },
}

impl Agent {
    /// How many more seconds a case may take.
    pub fn delay(self) -> f64 {
        match self {
            Agent::Foreground => 0.0,
            Agent::KilledNode { .. } => 60.0,
        }
    }
}

/// The process that runs the pod of a case.
pub enum Driver {
    Foreground(Child),
    Node(Box<KilledNode>),
}

impl Driver {
    /// Starts the pod. `out` receives the output.
    pub fn start(bench: &Bench, case: &Case, dir: &Path, pod: &str, nth: u64) -> anyhow::Result<Self> {
        let manifest = dir.join("pod.json");
        let out = fs::File::create(dir.join("out")).context("prepare the case")?;
        let grace = case.actions.iter().find_map(|a| a["grace"].as_u64());
        let mut flags = bench.extra_flags.clone();
        flags.extend(grace.into_iter().flat_map(|grace| ["--grace-period".to_owned(), grace.to_string()]));
        flags.extend(["--status".to_owned(), dir.join("status.json").display().to_string()]);
        let Agent::KilledNode { seed } = bench.agent else {
            let mut command = Command::new(&bench.binary);
            // The cases describe the kubelet, which never stops trying.
            command.arg("run").arg("--keep-trying").arg("--state-dir").arg(bench.work.join("state"));
            command.arg("--events").arg(dir.join("events.jsonl")).args(flags).arg(&manifest);
            command.stdin(Stdio::null()).stdout(clone(&out)).stderr(out).process_group(0);
            return command.spawn().map(Driver::Foreground).context("start the case");
        };
        let mut node =
            KilledNode::new(bench, dir, pod, seed ^ hash(pod) ^ nth.wrapping_mul(0x9e37_79b9), out);
        node.spares_hooks = nth > 1;
        node.grace = grace;
        node.spawn()?;
        node.wait_until_it_answers()?;
        node.begin(&flags, &manifest)?;
        Ok(Driver::Node(Box::new(node)))
    }

    /// Whether the pod has ended and nothing of it is left.
    pub fn has_ended(&mut self) -> bool {
        match self {
            Driver::Foreground(child) => matches!(child.try_wait(), Ok(Some(_))),
            Driver::Node(node) => node.has_ended(),
        }
    }

    /// The exit code of the command that received the pod, once it has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        match self {
            Driver::Foreground(child) => child.try_wait().ok().flatten().and_then(|status| status.code()),
            Driver::Node(node) => node.refused,
        }
    }

    /// Deletes the pod.
    pub fn delete(&mut self) -> anyhow::Result<()> {
        match self {
            Driver::Foreground(child) => signal(child, Signal::TERM),
            Driver::Node(node) => return node.delete(),
        }
        Ok(())
    }

    /// Stops what is still running, first gracefully. Anything that remains after that is a failure.
    pub fn finish(&mut self) -> Vec<String> {
        match self {
            Driver::Foreground(child) => finish_run(child),
            Driver::Node(node) => node.finish(),
        }
    }

    /// Whether the case cannot be judged, because the end of the node interrupted a hook. Such a hook is not
    /// run a second time.
    pub fn has_cut_a_hook_short(&self) -> bool {
        match self {
            Driver::Foreground(_) => false,
            Driver::Node(node) => node.said().contains("hook was running when the node ended"),
        }
    }
}

fn clone(file: &fs::File) -> fs::File {
    file.try_clone().expect("a descriptor")
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("not zero")
}

fn signal(child: &mut Child, signal: Signal) {
    if matches!(child.try_wait(), Ok(None)) {
        let _ = kill_process(pid(child), signal);
    }
}

/// Stops a run. Anything that remains of its process group is a failure.
fn finish_run(child: &mut Child) -> Vec<String> {
    for patience in [3, 7, 5] {
        signal(child, Signal::TERM);
        let end = Instant::now() + Duration::from_secs(patience);
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::park_timeout(POLL);
        }
    }
    let mut bad = Vec::new();
    if matches!(child.try_wait(), Ok(None)) {
        bad.push("it does not end after three signals".to_owned());
        signal(child, Signal::KILL);
    }
    let _ = child.wait();
    if kill_process_group(pid(child), Signal::KILL).is_ok() {
        bad.push("it left processes behind".to_owned());
    }
    bad
}

/// A hash that is the same on every machine (FNV-1a).
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// A node that is killed several times and restarted immediately.
pub struct KilledNode {
    binary: PathBuf,
    dir: PathBuf,
    pod: String,
    /// The flags for the node.
    flags: Vec<String>,
    out: fs::File,
    child: Option<Child>,
    random: u64,
    /// The times when it is killed.
    kills: Vec<Instant>,
    /// Whether kills wait for running hooks.
    spares_hooks: bool,
    /// The grace period for the stop of the pod, in seconds; `None` means the pod's own.
    grace: Option<u64>,
    asked: Instant,
    is_over: bool,
    /// The exit code of `outrigger run -d`, if it did not accept the pod.
    refused: Option<i32>,
}

impl KilledNode {
    fn new(bench: &Bench, dir: &Path, pod: &str, seed: u64, out: fs::File) -> Self {
        let own = ["--runtime", "--cri-endpoint"];
        let pairs = bench.extra_flags.chunks(2).filter(|pair| own.contains(&pair[0].as_str()));
        KilledNode {
            binary: bench.binary.clone(),
            dir: dir.to_owned(),
            pod: pod.to_owned(),
            flags: pairs.flatten().cloned().collect(),
            out,
            child: None,
            random: seed,
            kills: Vec::new(),
            spares_hooks: false,
            grace: None,
            asked: Instant::now(),
            is_over: false,
            refused: None,
        }
    }

    /// The next random number below a limit (SplitMix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("OUTRIGGER_RUNTIME_DIR", self.dir.join("sockets")).stdin(Stdio::null());
        command
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let mut command = self.command();
        command.arg("node").arg("--state-dir").arg(self.state()).args(&self.flags);
        command.stdout(Stdio::null()).stderr(clone(&self.out));
        self.child = Some(command.spawn().context("start a node")?);
        Ok(())
    }

    /// The output of a command, if it succeeded.
    fn ask(&self, args: &[&str]) -> Option<String> {
        let output = self.command().args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn wait_until_it_answers(&self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        let answers = || {
            let runs: Value = serde_json::from_str(&self.ask(&["ps", "-o", "json"])?).ok()?;
            let own = self.child.as_ref().map(|child| u64::from(child.id()));
            Some(runs.as_array()?.iter().any(|run| run["pid"].as_u64() == own))
        };
        while answers() != Some(true) {
            if Instant::now() > end {
                bail!("the node does not answer");
            }
            std::thread::park_timeout(POLL);
        }
        Ok(())
    }

    /// Hands over the pod, and chooses when the node is killed: once within the first seconds, and up to
    /// three more times.
    fn begin(&mut self, flags: &[String], manifest: &Path) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(["run", "-d"]).arg("--state-dir").arg(self.state()).args(flags).arg(manifest);
        let status = command.stdout(clone(&self.out)).stderr(clone(&self.out)).status();
        let code = status.context("hand over the pod")?.code();
        if code != Some(0) {
            (self.refused, self.is_over) = (code.or(Some(-1)), true);
            return Ok(());
        }
        let mut at = Instant::now() + Duration::from_millis(self.below(2_500));
        for _ in 0..=self.below(4) {
            self.kills.push(at);
            at += Duration::from_millis(100 + self.below(3_000));
        }
        self.kills.reverse();
        Ok(())
    }

    fn kill_if_due(&mut self) {
        let Some(due) = self.kills.last() else { return };
        let waits = self.spares_hooks && due.elapsed() < HOOKS_TAKE && self.runs_a_hook();
        if Instant::now() < *due || waits {
            return;
        }
        self.kills.pop();
        if let Some(mut child) = self.child.take() {
            signal(&mut child, Signal::KILL);
            let _ = child.wait();
        }
        self.spawn().expect("start a node");
    }

    /// Whether the node has reported the start of a hook, but not its end.
    fn runs_a_hook(&self) -> bool {
        let said = self.said();
        let count =
            |words: &[&str]| said.lines().filter(|line| words.iter().any(|word| line.contains(word))).count();
        count(&["running postStart hook", "running preStop hook", "running first preStop hook"])
            > count(&["hook done", "hook failed", "hook cancelled"])
    }

    fn has_ended(&mut self) -> bool {
        if self.is_over {
            return true;
        }
        self.kill_if_due();
        if self.asked.elapsed() >= ASK_EVERY {
            self.asked = Instant::now();
            let answer = self.ask(&["ps", "-o", "json", &self.pod]);
            let runs: Value = answer.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            self.is_over = runs[0]["pods"][0]["over"] == true;
        }
        self.is_over
    }

    fn delete(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        let (pod, grace) = (self.pod.clone(), self.grace.map(|grace| grace.to_string()));
        let mut stop = vec!["stop", "--no-wait", pod.as_str()];
        stop.extend(grace.iter().flat_map(|grace| ["--grace-period", grace.as_str()]));
        // The node may be stopping or starting.
        while self.ask(&stop).is_none() {
            if self.has_ended() {
                break;
            }
            if Instant::now() > end {
                bail!("the pod cannot be stopped");
            }
            std::thread::park_timeout(POLL);
        }
        Ok(())
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.join("out")).unwrap_or_default()
    }

    fn finish(&mut self) -> Vec<String> {
        let mut bad = Vec::new();
        if let Err(e) = self.wait_until_it_answers() {
            bad.push(e.to_string());
        }
        if self.ask(&["stop", "--all", "--grace-period", "1"]).is_none() {
            bad.push("the pod cannot be stopped".to_owned());
        }
        if let Some(mut child) = self.child.take() {
            signal(&mut child, Signal::TERM);
            let code = child.wait().ok().and_then(|status| status.code());
            if code != Some(0) {
                bad.push(format!("the node ended with {code:?}"));
            }
        }
        let sandboxes = crate::leaks::names(&self.state().join("node/pods"));
        let end = Instant::now() + PATIENCE;
        let left = || crate::leaks::left(&self.state(), &sandboxes);
        while !left().is_empty() && Instant::now() < end {
            std::thread::park_timeout(POLL);
        }
        bad.extend(left());
        bad
    }
}

impl Drop for KilledNode {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = self.ask(&["stop", "--all", "--grace-period", "0"]);
            signal(&mut child, Signal::KILL);
            let _ = child.wait();
        }
    }
}
