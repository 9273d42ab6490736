//! Runs every example unchanged on the host's own file system, and checks its order in the events file.

use std::path::{Path, PathBuf};

use outrigger_testkit::run::{Bench, Run};
use rustix::process::Signal;
use serde_json::json;

struct Example {
    run: Run,
    _work: tempfile::TempDir,
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

impl Example {
    fn start(name: &str, flags: &[&str]) -> Example {
        let work = tempfile::Builder::new().prefix("outrigger-examples-").tempdir().expect("a directory");
        let bench = Bench {
            binary: PathBuf::from(env!("CARGO_BIN_EXE_outrigger")),
            image: String::new(),
            work: work.path().to_owned(),
        };
        let run = Run::of_file(&bench, name, &examples().join(format!("{name}.yaml")), flags);
        Example { run, _work: work }
    }

    /// The index of the first `event` of a container.
    fn at(&self, container: &str, event: &str) -> usize {
        self.run.must(json!({"container": container, "event": event}))
    }

    /// Checks that each of these comes before the next.
    fn in_order(&self, steps: &[(&str, &str)]) {
        for pair in steps.windows(2) {
            let [(a, x), (b, y)] = [pair[0], pair[1]];
            assert!(self.at(a, x) < self.at(b, y), "{a} {x} before {b} {y}\n{}", self.run.account());
        }
    }

    fn wait_for(&mut self, container: &str, event: &str) {
        let wanted = json!({"container": container, "event": event});
        self.run.wait_for(&format!("{container} {event}"), |run| run.event(wanted.clone()).is_some());
    }

    /// The line number of a text in a container's output.
    fn said(&self, line: &str) -> usize {
        let output = self.run.output();
        output
            .lines()
            .position(|l| l == line)
            .unwrap_or_else(|| panic!("{line:?} in\n{}", self.run.account()))
    }

    /// Checks what every dialect's Job promises. Nothing is lost, the proxy starts before the work and ends
    /// after it, and the Job ends.
    fn is_the_report(&mut self, ready: &str) {
        assert_eq!(self.run.end(), 0, "{}", self.run.account());
        self.in_order(&[
            ("prepare", "exited"),
            ("shipper", "starting"),
            ("shipper", "started"),
            ("work", "starting"),
            ("work", "exited"),
            ("shipper", "terminating"),
        ]);
        self.in_order(&[
            ("prepare", "exited"),
            ("proxy", "starting"),
            ("proxy", ready),
            ("work", "starting"),
            ("work", "exited"),
            ("proxy", "terminating"),
            ("proxy", "exited"),
        ]);
        for line in ["shipper | line 1", "shipper | line 3", "shipper | done"] {
            self.said(line);
        }
        let job = self.run.job();
        assert_eq!(job["status"]["succeeded"], 1, "{job:#}");
    }
}

#[test]
fn every_example_is_run_here() {
    let tested = [
        "deployment",
        "graph",
        "job",
        "job-depends-on",
        "job-kep",
        "job-priority",
        "job-terminator",
        "launch-priority",
        "mesh",
    ];
    let files = std::fs::read_dir(examples()).expect("the examples");
    let mut names: Vec<String> = files
        .filter_map(|f| f.expect("a file").file_name().to_str()?.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(names, tested, "an example that nothing runs");
    let index = std::fs::read_to_string(examples().join("README.md")).expect("the index");
    for name in names {
        assert!(index.contains(&format!("[{name}.yaml]({name}.yaml)")), "{name} is not in the index");
    }
}

#[test]
fn the_job_with_native_sidecars() {
    let mut example = Example::start("job", &[]);
    example.is_the_report("startup-passed");
    // Sidecars start in list order and stop in reverse order.
    example.in_order(&[("shipper", "started"), ("proxy", "starting")]);
    example.in_order(&[("proxy", "exited"), ("shipper", "terminating")]);
}

#[test]
fn the_job_as_the_kep_writes_it() {
    let mut example = Example::start("job-kep", &[]);
    example.is_the_report("ready");
    example.in_order(&[("shipper", "ready"), ("work", "starting")]);
}

#[test]
fn the_job_with_launch_priority() {
    let mut example = Example::start("job-priority", &[]);
    example.is_the_report("ready");
    example.in_order(&[
        ("proxy", "ready"),
        ("shipper", "starting"),
        ("shipper", "ready"),
        ("work", "starting"),
    ]);
}

#[test]
fn the_job_with_the_terminator() {
    let mut example = Example::start("job-terminator", &[]);
    assert_eq!(example.run.end(), 0, "{}", example.run.account());
    for helper in ["shipper", "proxy"] {
        example.in_order(&[("prepare", "exited"), (helper, "starting")]);
        example.in_order(&[("work", "exited"), (helper, "terminating")]);
    }
    example.said("shipper | done");
}

#[test]
fn the_job_as_a_graph() {
    let mut example = Example::start("job-depends-on", &[]);
    example.is_the_report("ready");
    example.in_order(&[("shipper", "started"), ("proxy", "starting")]);
    example.in_order(&[("proxy", "exited"), ("shipper", "terminating")]);
    // The shipper outlives the proxy, so it has the proxy's last output.
    example.said("shipper | the work is done, so the proxy may go");
}

#[test]
fn the_deployment() {
    let mut example = Example::start("deployment", &["--grace-period", "2"]);
    example.run.wait_for("a line of the log", |run| run.output().contains("log | logging\n"));
    example.run.signal(Signal::INT);
    assert_eq!(example.run.end(), 130, "{}", example.run.account());
    // Its shell ignores TERM, so it uses the whole grace period. The sidecar is stopped only after that.
    example.in_order(&[
        ("log", "started"),
        ("main", "starting"),
        ("main", "terminating"),
        ("main", "killing"),
    ]);
    let turn = example.at("log", "terminating");
    assert!(turn > example.at("main", "terminating"), "{}", example.run.account());
    let (told, over) =
        (&example.run.events()[example.at("main", "terminating")], &example.run.events()[turn]);
    assert_ne!(told["time"], over["time"], "the sidecar is not told with the main");
}

#[test]
fn launch_priority() {
    let mut example = Example::start("launch-priority", &[]);
    for last in ["app", "metrics"] {
        example.wait_for(last, "started");
    }
    example.run.wait_for("the app's word", |run| run.output().contains("app | serving\n"));
    for last in ["app", "metrics"] {
        example.in_order(&[("mesh", "ready"), ("cache", "starting"), ("cache", "ready"), (last, "starting")]);
    }
    example.run.signal(Signal::INT);
    assert_eq!(example.run.end(), 130, "{}", example.run.account());
}

#[test]
fn a_graph() {
    let mut example = Example::start("graph", &[]);
    assert_eq!(example.run.end(), 0, "{}", example.run.account());
    // Both begin before either of them has ended.
    for (a, b) in [("schema", "warm-up"), ("warm-up", "schema")] {
        example.in_order(&[(a, "starting"), (b, "exited")]);
        example.in_order(&[(a, "exited"), ("db", "starting")]);
    }
    example.in_order(&[
        ("db", "ready"),
        ("api", "starting"),
        ("api", "ready"),
        ("worker", "starting"),
        ("worker", "exited"),
        ("api", "terminating"),
        ("api", "exited"),
        ("db", "terminating"),
    ]);
    assert!(example.said("api | api stops") < example.said("db | db stops last"));
}

#[test]
fn a_proxy_that_outlives_the_app() {
    takes_its_leave(|run| run.signal(Signal::TERM));
}

/// docs/guide/ordering.md: a system shutdown signals the run and the shims of its containers at the same
/// time.
#[test]
fn a_proxy_that_outlives_the_app_when_the_session_is_ended() {
    takes_its_leave(|run| {
        run.signal_helpers(Signal::TERM);
        run.signal(Signal::TERM);
    });
}

fn takes_its_leave(end: impl Fn(&Run)) {
    let mut example = Example::start("mesh", &[]);
    example.run.wait_for("the first request", |run| run.output().contains("app | ok: sign on\n"));
    end(&example.run);
    assert_eq!(example.run.end(), 143, "{}", example.run.account());
    example.in_order(&[
        ("proxy", "startup-passed"),
        ("app", "starting"),
        ("app", "terminating"),
        ("app", "exited"),
        ("proxy", "terminating"),
        ("proxy", "exited"),
    ]);
    // The app's last request went through the proxy and was answered.
    example.said("proxy | proxied: sign off");
    example.said("app | ok: sign off");
    let left = example.run.events();
    let exit = left.iter().find(|e| e["container"] == "app" && e["event"] == "exited").expect("its end");
    assert_eq!(exit["code"], 0, "{exit}");
}
