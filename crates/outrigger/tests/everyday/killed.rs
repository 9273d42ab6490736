//! Tests runs that are killed. Their containers must be stopped in order, and nothing may be left.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::command::say;
use crate::leaks;
use crate::run::{Bench, Run, Test, helpers_of};

pub(crate) const ALL: [(&str, Test); 7] = [
    ("a_killed_run_stops_its_containers_in_order", in_order),
    ("a_killed_run_leaves_nothing_whenever_that_is", at_any_moment),
    ("a_killed_run_gives_its_containers_their_grace", grace),
    ("a_stop_shortens_the_grace_of_a_killed_run", hurried),
    ("everything_killed_at_once_is_cleaned_by_the_next_run", everything),
    ("any_processes_killed_at_any_moment_leave_nothing", any_processes),
    ("a_stopped_process_ends_with_its_run", stopped),
];

/// A function that creates a pod in a dialect that defines the stop order.
type Dialect = fn(&Killed<'_>) -> Value;

const DIALECTS: [(&str, Dialect); 3] = [("native", native), ("kep", kep), ("depends", depends_on)];

/// The containers that stop one after the other in all of these pods.
const ORDER: [&str; 2] = ["app", "proxy"];

/// A state directory and a log for the containers.
struct Killed<'a> {
    bench: &'a Bench,
    name: String,
    dir: PathBuf,
    /// The ids of the pods that the test has seen.
    sandboxes: RefCell<Vec<String>>,
}

impl<'a> Killed<'a> {
    fn new(bench: &'a Bench, name: &str) -> Self {
        let (name, dir) = (name.replace('_', "-"), bench.work.join(name));
        fs::create_dir_all(dir.join("ev")).expect("a directory");
        Killed { bench, name, dir, sandboxes: RefCell::default() }
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("ev/log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A container that logs its start and its stop. The stop takes a moment.
    fn container(&self, name: &str) -> Value {
        let script = format!(
            "trap 'sleep 0.2; echo stop {name} >> /ev/log; exit 0' TERM; echo start {name} >> /ev/log; \
             while :; do sleep 0.02; done"
        );
        let mut container = self.bench.container(name, &script);
        container["volumeMounts"] = json!([{"name": "ev", "mountPath": "/ev"}]);
        container
    }

    fn start(&self, spec: Value, annotations: Value) -> Run {
        let mut spec = spec;
        spec["volumes"] = json!([{"name": "ev", "hostPath": {"path": self.dir.join("ev")}}]);
        spec["restartPolicy"] = json!("Never");
        let metadata = json!({"name": self.name, "annotations": annotations});
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        let state = self.state();
        let state = state.to_str().expect("text");
        Run::start(self.bench, &self.name, &manifest, &["--state-dir", state])
    }

    /// Describes what is left of the pods.
    fn left(&self) -> Vec<String> {
        let mut known = self.sandboxes.borrow_mut();
        for id in leaks::names(&self.state().join("pods")) {
            if !known.contains(&id) {
                known.push(id);
            }
        }
        leaks::left(&self.state(), &known)
    }

    fn wait_until_nothing_is_left(&self, limit: Duration, run: &Run) {
        let begun = Instant::now();
        while !self.left().is_empty() {
            let (left, log) = (self.left(), self.log());
            assert!(begun.elapsed() < limit, "left: {left:#?}\nlog: {log:?}\n{}", run.account());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn wait_for_starts(&self, run: &mut Run) {
        let has = |name: &str| self.log().contains(&format!("start {name}"));
        run.wait_for("all containers run", |_| ORDER.iter().all(|name| has(name)));
    }

    /// The stopped containers, in order.
    fn stops(&self) -> Vec<String> {
        self.log().iter().filter_map(|line| line.strip_prefix("stop ").map(str::to_owned)).collect()
    }
}

fn native(killed: &Killed<'_>) -> Value {
    let mut proxy = killed.container("proxy");
    proxy["restartPolicy"] = json!("Always");
    json!({"initContainers": [proxy], "containers": [killed.container("app")]})
}

fn kep(killed: &Killed<'_>) -> Value {
    let mut proxy = killed.container("proxy");
    proxy["lifecycle"] = json!({"type": "Sidecar"});
    json!({"containers": [proxy, killed.container("app")]})
}

fn depends_on(killed: &Killed<'_>) -> Value {
    json!({"containers": [killed.container("app"), killed.container("proxy")]})
}

fn annotations(dialect: &str) -> Value {
    match dialect {
        "depends" => json!({"outrigger.dev/depends-on": "app: proxy"}),
        _ => json!({}),
    }
}

fn in_order(bench: &Bench, name: &str) {
    for (dialect, spec) in DIALECTS {
        let killed = Killed::new(bench, &format!("{name}_{dialect}"));
        let mut run = killed.start(spec(&killed), annotations(dialect));
        killed.wait_for_starts(&mut run);
        run.signal(Signal::KILL);
        run.end();
        let pid = run.pid();
        let begun = Instant::now();
        // Each container takes 0.2 s to stop. A command reports this in the meantime.
        let noted = loop {
            let said = say(bench, &["ps"]).err;
            if said.contains(&format!("run {pid} was killed; being stopped: default/{}", killed.name)) {
                break true;
            }
            if killed.left().is_empty() || begun.elapsed() > Duration::from_secs(60) {
                break false;
            }
        };
        killed.wait_until_nothing_is_left(Duration::from_secs(60), &run);
        assert_eq!(killed.stops(), ORDER, "{dialect}\n{}", run.account());
        assert!(noted, "{dialect}: ps does not tell");
    }
}

/// The seed of the random moments, which is printed. The other variable is their number.
const SEED_VARIABLE: &str = "OUTRIGGER_TEST_SEED";
const TIMES_VARIABLE: &str = "OUTRIGGER_TEST_KILLS";

/// Pseudo-random numbers (xorshift), from a seed that is printed.
struct Moments {
    seed: u64,
    random: u64,
}

impl Moments {
    fn new(name: &str) -> Self {
        let given = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse::<u64>().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
            u64::from(now.subsec_nanos()) | 1
        });
        eprintln!("{name}: {SEED_VARIABLE}={seed}");
        Moments { seed, random: seed }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// The number of moments: the requested one, otherwise the default.
    fn times(usual: u64) -> u64 {
        std::env::var(TIMES_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    }
}

/// A pod in one of the dialects, with or without a shared pid namespace.
fn random_spec(killed: &Killed<'_>, random: u64) -> (&'static str, Value) {
    let (dialect, spec) = DIALECTS[(random % 3) as usize];
    let mut spec = spec(killed);
    spec["terminationGracePeriodSeconds"] = json!(4);
    spec["shareProcessNamespace"] = json!((random / 7).is_multiple_of(2));
    (dialect, spec)
}

fn at_any_moment(bench: &Bench, name: &str) {
    let mut moments = Moments::new(name);
    for time in 0..Moments::times(6) {
        let random = moments.next();
        let after = Duration::from_micros(random / 3 % 400_000);
        let killed = Killed::new(bench, &format!("{name}_{time}"));
        let (dialect, spec) = random_spec(&killed, random);
        let mut run = killed.start(spec, annotations(dialect));
        std::thread::park_timeout(after);
        run.signal(Signal::KILL);
        run.end();
        killed.wait_until_nothing_is_left(Duration::from_secs(60), &run);
        let stops = killed.stops();
        // A container that was killed before it had set its trap logs nothing.
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let is_in_order = matches!(stops[..], ["app", "proxy"] | ["proxy"] | ["app"] | []);
        let seed = moments.seed;
        assert!(is_in_order, "seed {seed}, {time}: {dialect} after {after:?}: {:?}", killed.log());
    }
}

/// Some or all of the shims and the guard process are killed. The run is killed before, between or after
/// them. The next run removes the rest at the latest.
fn any_processes(bench: &Bench, name: &str) {
    let mut moments = Moments::new(name);
    for time in 0..Moments::times(4) {
        let random = moments.next();
        let killed = Killed::new(bench, &format!("{name}_{time}"));
        let (dialect, spec) = random_spec(&killed, random);
        let mut run = killed.start(spec, annotations(dialect));
        std::thread::park_timeout(Duration::from_micros(random / 3 % 500_000));
        let victims = helpers_of(run.pid());
        let is_hit = |nth: usize| (random / 11).is_multiple_of(3) || (random >> (16 + nth % 32)) & 1 == 1;
        let first = (random / 13).is_multiple_of(2);
        if first {
            run.signal(Signal::KILL);
        }
        for (_, victim) in victims.iter().enumerate().filter(|(nth, _)| is_hit(*nth)) {
            let _ = kill_process(*victim, Signal::KILL);
        }
        if !first {
            run.signal(Signal::KILL);
        }
        run.end();
        // Record the pods before the next run removes them.
        killed.left();
        let next = json!({"containers": [bench.container("next", "exit 3")]});
        let mut next = killed.start(next, json!({}));
        assert_eq!(next.end(), 3, "seed {}, {time}\n{}", moments.seed, next.account());
        killed.wait_until_nothing_is_left(Duration::from_secs(60), &next);
    }
}

fn grace(bench: &Bench, name: &str) {
    let killed = Killed::new(bench, name);
    let mut spec = native(&killed);
    let deaf = "trap '' TERM; echo start app >> /ev/log; while :; do sleep 0.05; done";
    spec["containers"][0]["command"] = json!(["/bin/sh", "-c", deaf]);
    spec["terminationGracePeriodSeconds"] = json!(3);
    let mut run = killed.start(spec, json!({}));
    killed.wait_for_starts(&mut run);
    run.signal(Signal::KILL);
    let begun = Instant::now();
    run.end();
    killed.wait_until_nothing_is_left(Duration::from_secs(60), &run);
    assert!(begun.elapsed() >= Duration::from_secs(3), "it had {:?}", begun.elapsed());
    assert_eq!(killed.stops(), ["proxy"], "what does not listen is killed, the others are told");
}

/// These pods would take an hour to stop. One is killed by name, one with all others, one with its run, and
/// one gets a second.
fn hurried(bench: &Bench, name: &str) {
    for (which, grace, told) in
        [("name", "0", false), ("all", "0", false), ("run", "0", false), ("second", "1", true)]
    {
        // Use a directory in which no other test looks for runs. `--run` excludes pods of other killed runs.
        let killed = Killed::new(bench, &format!("{name}_{which}"));
        let mut spec = native(&killed);
        let deaf = "trap '' TERM; echo start app >> /ev/log; while :; do sleep 0.05; done";
        spec["containers"][0]["command"] = json!(["/bin/sh", "-c", deaf]);
        spec["terminationGracePeriodSeconds"] = json!(3600);
        let mut run = killed.start(spec, json!({}));
        killed.wait_for_starts(&mut run);
        run.signal(Signal::KILL);
        run.end();
        let pid = run.pid().to_string();
        let of_run = format!("run/{pid}");
        let what = match which {
            "all" => "--all",
            "run" => &of_run,
            _ => &killed.name,
        };
        let said = say(bench, &["stop", what, "--run", &pid, "--grace-period", grace]);
        assert_eq!(said.code, 0, "{which}: {said:?}");
        assert!(said.err.ends_with(&format!("{} is gone\n", killed.name)), "{which}: {said:?}");
        killed.wait_until_nothing_is_left(Duration::from_secs(60), &run);
        let stops: &[&str] = if told { &["proxy"] } else { &[] };
        assert_eq!(killed.stops(), stops, "{which}: a pod that is killed is not told");
    }
}

fn everything(bench: &Bench, name: &str) {
    let killed = Killed::new(bench, name);
    let mut run = killed.start(native(&killed), json!({}));
    killed.wait_for_starts(&mut run);
    // Kill the shims and the guard process first, then the run.
    run.signal_helpers(Signal::KILL);
    run.signal(Signal::KILL);
    run.end();
    assert!(!killed.left().is_empty(), "the sandbox is left");
    let next = json!({"containers": [bench.container("next", "exit 3")]});
    let mut next = killed.start(next, json!({}));
    assert_eq!(next.end(), 3, "{}", next.account());
    killed.wait_until_nothing_is_left(Duration::from_secs(60), &next);
}

/// The process that forks the shims ends with the run, even if it is stopped and cannot notice the end.
fn stopped(bench: &Bench, name: &str) {
    let killed = Killed::new(bench, name);
    let mut run = killed.start(native(&killed), json!({}));
    killed.wait_for_starts(&mut run);
    let forks_shims = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        line.windows(12).any(|part| part == b"\0containers\0")
    };
    let it = helpers_of(run.pid()).into_iter().find(forks_shims).expect("what forks the shims");
    kill_process(it, Signal::STOP).expect("send a signal");
    run.signal(Signal::KILL);
    run.end();
    killed.wait_until_nothing_is_left(Duration::from_secs(60), &run);
    assert!(!forks_shims(&it), "it has ended");
}
