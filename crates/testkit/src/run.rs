//! Starts the binary and observes its run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const POLL: Duration = Duration::from_millis(20);
/// How long a step may take. On an idle machine, it takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// What all tests of a program share.
pub struct Bench {
    pub binary: PathBuf,
    pub image: String,
    pub work: PathBuf,
}

/// A test. Its directory has the same name.
pub type Test = fn(&Bench, &str);

impl Bench {
    /// The directory of the control sockets.
    pub fn sockets(&self) -> PathBuf {
        self.work.join("sockets")
    }

    /// A container that runs a script.
    pub fn container(&self, name: &str, script: &str) -> Value {
        json!({"name": name, "image": self.image, "command": ["/bin/sh", "-c", script]})
    }

    /// A Job of one container that runs a script.
    pub fn job(&self, name: &str, spec: Value, script: &str) -> Value {
        let pod = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [self.container("main", script)]});
        let mut job =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
        job["spec"]["template"]["spec"] = pod;
        job
    }
}

/// One run.
pub struct Run {
    dir: PathBuf,
    child: Child,
    began: Instant,
}

impl Run {
    pub fn start(bench: &Bench, name: &str, manifest: &Value, flags: &[&str]) -> Self {
        let dir = bench.work.join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("manifest.json");
        fs::write(&file, manifest.to_string()).expect("write the manifest");
        let network: &[&str] = if flags.contains(&"--network") { &[] } else { &["--network", "none"] };
        Run::of_file(bench, name, &file, &[network, flags].concat())
    }

    /// Starts a run of an existing manifest.
    pub fn of_file(bench: &Bench, name: &str, file: &Path, flags: &[&str]) -> Self {
        let dir = bench.work.join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let out = fs::File::create(dir.join("out")).expect("a file");
        let err = fs::File::create(dir.join("err")).expect("a file");
        let state = match flags.contains(&"--state-dir") {
            true => Vec::new(),
            false => vec!["--state-dir".into(), bench.work.join("state")],
        };
        let child = Command::new(&bench.binary)
            .args(["run", "--output", "plain"])
            .args(state)
            .arg("--events")
            .arg(dir.join("events.jsonl"))
            .arg("--status")
            .arg(dir.join("status.json"))
            .args(flags)
            .env("OUTRIGGER_RUNTIME_DIR", bench.sockets())
            .arg(file)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("start outrigger");
        Run { dir, child, began: Instant::now() }
    }

    /// Waits until a condition holds.
    pub fn wait_for(&mut self, what: &str, mut test: impl FnMut(&Run) -> bool) {
        while !test(self) {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)));
            // The condition may have become true just before the end.
            assert!(!ended || test(self), "it ended before {what}\n{}", self.account());
            assert!(self.began.elapsed() < PATIENCE, "timeout waiting for {what}\n{}", self.account());
            std::thread::park_timeout(POLL);
        }
    }

    /// Waits for the end. Returns the exit code.
    pub fn end(&mut self) -> i32 {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code().unwrap_or(-1);
            }
            assert!(self.began.elapsed() < PATIENCE, "it does not end\n{}", self.account());
            std::thread::park_timeout(POLL);
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("send a signal");
    }

    /// Signals the helper processes of the run, but not the run itself.
    pub fn signal_helpers(&self, signal: Signal) {
        let helpers = helpers_of(self.child.id());
        assert!(
            helpers.len() > 2,
            "shims, what forks them, and the guard process: {helpers:?}\n{}",
            self.account()
        );
        for helper in helpers {
            kill_process(helper, signal).expect("send a signal");
        }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }

    /// The containers' output.
    pub fn output(&self) -> String {
        self.read("out")
    }

    /// Outrigger's own output.
    pub fn said(&self) -> String {
        self.read("err")
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Value> {
        let text = self.read("events.jsonl");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    /// The index of the first event with all of these fields.
    pub fn event(&self, fields: Value) -> Option<usize> {
        let wanted = fields.as_object().expect("fields").clone();
        self.events().iter().position(|e| wanted.iter().all(|(key, value)| e[key] == *value))
    }

    /// The index of an event that must exist.
    pub fn must(&self, fields: Value) -> usize {
        self.event(fields.clone()).unwrap_or_else(|| panic!("there is no event {fields}\n{}", self.account()))
    }

    pub fn events_named(&self, event: &str) -> Vec<Value> {
        self.events().into_iter().filter(|e| e["event"] == event).collect()
    }

    /// The current content of the status file.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.read("status.json")).unwrap_or_default()
    }

    /// Objects of a kind in the status file, which is a List.
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        let items = self.status()["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().filter(|item| item["kind"] == kind).collect()
    }

    /// The only Job of the run.
    pub fn job(&self) -> Value {
        let jobs = self.objects("Job");
        assert_eq!(jobs.len(), 1, "one Job\n{}", self.account());
        jobs[0].clone()
    }

    /// Type and reason of the Job's conditions.
    pub fn conditions(&self) -> Vec<(String, String)> {
        let job = self.job();
        let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        conditions.iter().map(|c| (text(&c["type"]), text(&c["reason"]))).collect()
    }

    /// All information that helps to understand a failed test.
    pub fn account(&self) -> String {
        let (out, err) = (self.output(), self.said());
        format!("output:\n{out}\nsaid:\n{err}\nstatus:\n{}", self.read("status.json"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A failed test leaves nothing running. The signals stop it gracefully, then immediately, and then
        // kill.
        for _ in 0..3 {
            if matches!(self.child.try_wait(), Ok(None)) {
                self.signal(Signal::TERM);
                let end = Instant::now() + Duration::from_secs(5);
                while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
                    std::thread::park_timeout(POLL);
                }
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a run: its children, and the shims, which are children of these.
pub fn helpers_of(run: u32) -> Vec<Pid> {
    let children = children(run);
    let shims =
        children.iter().flat_map(|child| self::children(child.as_raw_nonzero().get().cast_unsigned()));
    let shims: Vec<Pid> = shims.collect();
    [children, shims].concat()
}

/// Running child processes of all threads of a process.
fn children(pid: u32) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|t| fs::read_to_string(t.path().join("children")).unwrap_or_default());
    let all: String = lists.collect();
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw).collect()
}
