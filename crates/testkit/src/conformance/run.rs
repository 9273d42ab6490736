//! Runs one case against the binary.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

use crate::conformance::case::{self, Case};
use crate::conformance::driver::{Agent, Driver};
use crate::conformance::events::{self, Events, Log};
use crate::conformance::status;

const POLL: Duration = Duration::from_millis(20);

/// What all cases of a test program share.
pub struct Bench {
    pub binary: PathBuf,
    pub image: String,
    pub work: PathBuf,
    /// The prefix of the names of this bench's pods.
    pub prefix: String,
    pub lib: PathBuf,
    pub extra_flags: Vec<String>,
    /// What runs the pods.
    pub agent: Agent,
}

pub fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("open the directory");
}

/// Compares the events and the last status of a run with a reference. Returns the differences.
pub type Compare<'a> = &'a dyn Fn(&Events, Option<&Value>) -> Vec<String>;

/// How often a case is tried, because the end of the node may interrupt a hook. After the first attempt, the
/// node is killed only between hooks.
const TRIES: u64 = 6;

/// Runs a case. The error describes the failure.
pub fn case(bench: &Bench, case: &Case, compare: Compare<'_>) -> anyhow::Result<()> {
    for nth in 1.. {
        let mut run = Run::start(bench, case, nth)?;
        let played = judge(&mut run, compare);
        // An interrupted hook is not run again, so its expected effects may be missing.
        if played.is_ok() || nth >= TRIES || !run.driver.has_cut_a_hook_short() {
            return played;
        }
    }
    Ok(())
}

fn judge(run: &mut Run<'_>, compare: Compare<'_>) -> anyhow::Result<()> {
    let mut bad = match run.play() {
        Ok(mut bad) => {
            bad.extend(compare(&run.log.read(), run.status.as_ref()));
            bad
        }
        Err(failure) => vec![format!("{failure:#}")],
    };
    bad.extend(run.driver.finish());
    if bad.is_empty() {
        return Ok(());
    }
    let events = run.log.read();
    let zero = events.first().map_or(0.0, |e| e.0);
    let lines: Vec<String> = events.iter().map(|(t, e)| format!("  {:6.2} {e}", t - zero)).collect();
    let output = fs::read_to_string(run.dir.join("out")).unwrap_or_default();
    let status = run.status.as_ref().map(Value::to_string).unwrap_or_default();
    Err(anyhow!("{}\nevents:\n{}\nstatus: {status}\noutput:\n{output}", bad.join("\n"), lines.join("\n")))
}

struct Run<'c> {
    case: &'c Case,
    dir: PathBuf,
    log: Log,
    driver: Driver,
    began: Instant,
    deadline: Instant,
    ended: bool,
    status: Option<Value>,
    phases: Vec<String>,
}

impl<'c> Run<'c> {
    fn start(bench: &Bench, case: &'c Case, nth: u64) -> anyhow::Result<Self> {
        let again = if nth > 1 { format!("{nth}-") } else { String::new() };
        let run_name = format!("{}{again}{}", bench.prefix, case.name);
        let dir = bench.work.join(&run_name);
        let event_dir = dir.join("ev");
        let io = "prepare the case";
        fs::create_dir_all(&event_dir).context(io)?;
        fs::copy(&bench.lib, event_dir.join("lib.sh")).context(io)?;
        let log = Log(event_dir.join("log"));
        fs::write(&log.0, "").context(io)?;
        for (path, mode) in [(&dir, 0o755), (&event_dir, 0o777), (&log.0, 0o666)] {
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).context(io)?;
        }
        let pod_name: String = run_name.chars().take(50).collect();
        let pod = case::pod(case, &pod_name, &event_dir, &bench.image);
        let manifest = dir.join("pod.json");
        fs::write(&manifest, serde_json::to_vec_pretty(&pod)?).context(io)?;
        log.add("create");
        let driver = Driver::start(bench, case, &dir, &pod_name, nth)?;
        let began = Instant::now();
        Ok(Run {
            case,
            dir,
            log,
            driver,
            began,
            deadline: began + Duration::from_secs_f64(case.timeout + bench.agent.delay()),
            ended: false,
            status: None,
            phases: Vec::new(),
        })
    }

    /// Carries out the actions, waits for the end, and returns the failures.
    fn play(&mut self) -> anyhow::Result<Vec<String>> {
        for action in &self.case.actions {
            self.action(action)?;
        }
        let mut settle = 0.0;
        match &self.case.until {
            Value::String(until) if until == "terminal" => self.wait_for("the end", |run| run.ended)?,
            Value::String(until) if until == "deleted" => {
                self.wait_for("deletion", |run| run.ended)?;
                self.log.add("gone");
            }
            Value::String(until) if until == "refused" => {
                self.wait_for("the end", |run| run.ended)?;
                return Ok(self.refusal());
            }
            Value::String(event) => {
                self.wait_for(event, |run| run.ended || events::find(&run.log.read(), event).is_some())?;
                settle = self.case.settle;
            }
            seconds => {
                let end = self.began + Duration::from_secs_f64(seconds.as_f64().unwrap_or(0.0));
                self.wait_for("its time", |run| run.ended || Instant::now() >= end)?;
                settle = self.case.settle;
            }
        }
        let end = Instant::now() + Duration::from_secs_f64(settle);
        let mut bad = loop {
            self.refresh();
            let bad = status::check(&self.case.expect, self.status.as_ref(), &self.phases);
            if bad.is_empty() || Instant::now() >= end {
                break bad;
            }
            std::thread::park_timeout(POLL);
        };
        let events = self.log.read();
        if let Value::String(until) = &self.case.until
            && !["terminal", "deleted"].contains(&until.as_str())
            && events::find(&events, until).is_none()
        {
            bad.push(format!("the pod ended before {until}"));
        }
        bad.extend(events::check(&self.case.expect, &events));
        Ok(bad)
    }

    /// Checks that the pod is refused: exit code 2, a reason, and nothing started.
    fn refusal(&mut self) -> Vec<String> {
        let mut bad = Vec::new();
        let code = self.driver.exit_code();
        if code != Some(2) {
            bad.push(format!("exit code {code:?}, want 2"));
        }
        let output = fs::read_to_string(self.dir.join("out")).unwrap_or_default();
        let says = self.case.expect["says"].as_str().unwrap_or("the case does not say what is said");
        if !output.contains(says) {
            bad.push(format!("{says:?} is not said"));
        }
        let events = self.log.read();
        bad.extend(
            events.iter().filter(|(_, e)| !e.starts_with("runner:")).map(|(_, e)| format!("{e} happened")),
        );
        bad
    }

    fn action(&mut self, action: &Value) -> anyhow::Result<()> {
        if let Some(after) = action["after"].as_str() {
            self.wait_for(after, |run| run.ended || events::find(&run.log.read(), after).is_some())?;
            if events::find(&self.log.read(), after).is_none() {
                bail!("the pod ended before {after}");
            }
        }
        let seconds =
            |key: &str, default: f64| Duration::from_secs_f64(action[key].as_f64().unwrap_or(default));
        let due = (self.began + seconds("at", 0.0)).max(Instant::now() + seconds("plus", 0.0));
        while Instant::now() < due {
            self.refresh();
            std::thread::park_timeout(POLL.min(due - Instant::now()));
        }
        let file = || action["file"].as_str().unwrap_or_default();
        match action["do"].as_str().unwrap_or_default() {
            "delete" => {
                self.log.add("delete");
                self.driver.delete()?;
            }
            "touch" => {
                self.log.add(file());
                fs::write(self.dir.join("ev").join(file()), "").context("touch")?;
            }
            "rm" => {
                self.log.add(&format!("no-{}", file()));
                fs::remove_file(self.dir.join("ev").join(file())).context("rm")?;
            }
            "check" => self.check(&action["expect"], seconds("within", 30.0))?,
            "hold" => self.hold(&action["expect"], seconds("for", 3.0))?,
            other => bail!("unknown action {other:?}"),
        }
        Ok(())
    }

    /// Checks that the expectation becomes true within the time.
    fn check(&mut self, expect: &Value, within: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + within;
        loop {
            self.refresh();
            let bad = status::check(expect, self.status.as_ref(), &self.phases);
            if bad.is_empty() {
                return Ok(());
            }
            if Instant::now() >= end {
                bail!("check: {}", bad.join("; "));
            }
            std::thread::park_timeout(POLL);
        }
    }

    /// Checks that the expectation is true for the whole time.
    fn hold(&mut self, expect: &Value, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            self.refresh();
            if self.status.is_some() {
                let bad = status::check(expect, self.status.as_ref(), &self.phases);
                if !bad.is_empty() {
                    bail!("hold: {}", bad.join("; "));
                }
            }
            if Instant::now() >= end {
                return if self.status.is_some() {
                    Ok(())
                } else {
                    Err(anyhow!("hold: there is no pod status"))
                };
            }
            std::thread::park_timeout(POLL);
        }
    }

    fn wait_for(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        loop {
            self.refresh();
            if done(self) {
                return Ok(());
            }
            if Instant::now() > self.deadline {
                let phase = self.status.as_ref().map(|s| s["phase"].to_string()).unwrap_or_default();
                bail!("timeout waiting for {what} (phase {phase})");
            }
            std::thread::park_timeout(POLL);
        }
    }

    /// Reads the current state.
    fn refresh(&mut self) {
        // Whether the pod has ended is checked first. The status that is read after that is the last one.
        let ended = self.driver.has_ended();
        if let Ok(text) = fs::read(self.dir.join("status.json"))
            && let Ok(pod) = serde_json::from_slice::<Value>(&text)
        {
            let status = pod["status"].clone();
            let phase = status["phase"].as_str().unwrap_or_default();
            if self.phases.last().map(String::as_str) != Some(phase) {
                self.phases.push(phase.to_owned());
            }
            self.status = Some(status);
        }
        if ended && !self.ended {
            self.ended = true;
            self.log.add("end");
        }
    }
}
