//! Tests the shutdown of the machine, announced by a mock of logind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 2] = [
    ("a_shutdown_waits_until_pods_are_stopped_by_priority", shutdown),
    ("a_machine_without_logind_runs_pods_all_the_same", no_logind),
];

/// Debian's python, which has the packages.
const PYTHON: &str = "/usr/bin/python3";

/// Queries the mock of logind for its locks, or makes it announce a shutdown.
const CLIENT: &str = "
import dbus, sys
bus = dbus.bus.BusConnection(sys.argv[1])
logind = bus.get_object('org.freedesktop.login1', '/org/freedesktop/login1')
if sys.argv[2] == 'locks':
    locks = logind.ListInhibitors(dbus_interface='org.freedesktop.login1.Manager')
    print(' '.join('%s/%s/%s' % (l[0], l[1], l[3]) for l in locks))
else:
    args = dbus.Array([dbus.Boolean(sys.argv[2] == 'begins')], signature='v')
    logind.EmitSignal('org.freedesktop.login1.Manager', 'PrepareForShutdown', 'b', args,
                      dbus_interface='org.freedesktop.DBus.Mock')
";

/// A system bus with a mock of logind.
struct Bus {
    address: String,
    processes: Vec<Child>,
}

impl Bus {
    fn start() -> Bus {
        let mut daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon; install the package dbus");
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().expect("its output"))
            .read_line(&mut address)
            .expect("its address");
        let address = address.trim().to_owned();
        let mock = Command::new(PYTHON)
            .args(["-m", "dbusmock", "--system", "--template", "logind"])
            .env("DBUS_SYSTEM_BUS_ADDRESS", &address)
            .stdout(Stdio::null())
            .spawn()
            .expect("python3");
        let bus = Bus { address, processes: vec![mock, daemon] };
        let began = Instant::now();
        while bus.ask("locks").is_none() {
            let limit = Duration::from_secs(60);
            assert!(began.elapsed() < limit, "no logind; install the package python3-dbusmock");
            std::thread::park_timeout(Duration::from_millis(50));
        }
        bus
    }

    fn ask(&self, what: &str) -> Option<String> {
        let asked = Command::new(PYTHON).args(["-c", CLIENT, &self.address, what]).output().expect("python3");
        asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).trim().to_owned())
    }

    fn announce(&self, what: &str) {
        self.ask(what).expect("logind announces it");
    }

    fn locks(&self) -> String {
        self.ask("locks").expect("logind lists its locks")
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

const LOCK: &str = "shutdown/outrigger node/delay";

fn shutdown(bench: &Bench, name: &str) {
    let bus = Bus::start();
    let grace = ["--shutdown-grace", "0=20s,1000=20s"];
    let mut node = Daemon::start_on_bus(bench, name, &grace, &bus.address);
    node.until("the node holds a lock", |_| bus.locks() == LOCK);
    let log = node.dir.join("log");
    fs::create_dir_all(&log).expect("a directory");
    let logged = |pod: &str, container: &str, wait: &str| {
        let script = format!(
            "trap 'sleep {wait}; echo {pod}/{container} >> /log/order; exit 0' TERM; while :; do sleep 0.05; done"
        );
        let mut main = bench.container(container, &script);
        main["volumeMounts"] = json!([{"name": "log", "mountPath": "/log"}]);
        main
    };
    let volumes = json!([{"name": "log", "hostPath": {"path": log}}]);
    let mut proxy = logged("low", "proxy", "0");
    proxy["restartPolicy"] = json!("Always");
    let items = json!([
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "important"}, "value": 5000},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "high"},
            "spec": {"priorityClassName": "important", "containers": [logged("high", "app", "0")], "volumes": volumes}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "low"},
            "spec": {"initContainers": [proxy], "containers": [logged("low", "app", "1")], "volumes": volumes}},
    ]);
    let said =
        node.run_object("pods", &json!({"apiVersion": "v1", "kind": "List", "items": items}), &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    bus.announce("begins");
    node.until("the lock is released", |_| bus.locks().is_empty());
    // Pods of lower priority stop first, and the containers of each pod stop in order. All of this happens
    // before the shutdown continues.
    let order = || fs::read_to_string(log.join("order")).unwrap_or_default();
    assert_eq!(order(), "low/app\nlow/proxy\nhigh/app\n");
    for pod in crate::leaks::names(&node.state().join("node/pods")) {
        let state =
            fs::read(node.state().join("node/pods").join(&pod).join("observation.json")).expect("a state");
        let state: Value = serde_json::from_slice(&state).expect("JSON");
        assert_eq!(state["observation"]["stop"]["cause"], "node-shutdown", "{pod}");
    }
    // The service does not start again before the machine is down. If the shutdown is cancelled, the pods
    // start again.
    let state = node.state().display().to_string();
    let listed = node.say(&["ps", "--state-dir", &state]);
    assert!(!listed.err.contains("no node is running"), "{listed:?}");
    let refused = node.run("other", &json!({"containers": [bench.container("app", "true")]}), &[]);
    assert!(refused.code != 0 && refused.err.contains("the machine is shutting down"), "{refused:?}");
    bus.announce("cancelled");
    node.until("the node answers", |node| node.pod("low").is_some());
    node.ready("low");
    node.ready("high");
    node.until("the node holds a lock again", |_| bus.locks() == LOCK);
    bus.announce("begins");
    node.until("the lock is released", |_| bus.locks().is_empty());
    assert_eq!(node.down(Signal::TERM), Some(0), "{}", node.said());
    node.up();
    node.ready("low");
    node.leaves_nothing();
}

fn no_logind(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let spec =
        json!({"containers": [bench.container("app", "trap 'exit 0' TERM; while :; do sleep 0.05; done")]});
    assert_eq!(node.run("web", &spec, &["--wait"]).code, 0, "{}", node.account());
    assert!(!node.said().contains("logind"), "it is nothing to warn of: {}", node.said());
    assert_eq!(node.down(Signal::TERM), Some(0));
    node.up();
    node.ready("web");
    node.leaves_nothing();
}
