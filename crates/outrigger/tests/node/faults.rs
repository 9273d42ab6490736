//! Tests faults around a running node: disks that are full or read-only, damaged files, containers that
//! freeze, write or fork endlessly, and registries that stall, truncate or send wrong data.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::daemon::{Daemon, Said};
use crate::kill::shims_of;
use crate::leaks::names;
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 9] = [
    ("a_full_disk_under_the_state_is_said_and_survived", full_disk),
    ("a_read_only_state_is_said_and_survived", read_only),
    ("a_state_that_becomes_read_only_is_said_and_survived", becomes_read_only),
    ("damaged_files_are_the_trouble_of_their_pods_only", damaged),
    ("a_frozen_container_is_stopped_in_time", frozen),
    ("endless_output_takes_no_memory", endless_output),
    ("rotated_logs_outlive_their_pod", rotated_logs),
    ("a_fork_bomb_harms_nobody_else", fork_bomb),
    ("registries_that_stall_truncate_or_lie_hold_up_their_pods_only", registries),
];

/// Logs its start and runs until it is stopped.
const STAYS: &str = "echo start; trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A small file system. Dropping the value removes it.
struct Small(PathBuf);

impl Small {
    fn new(path: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&path).expect("a directory");
        let options = std::ffi::CString::new(format!("size={size},mode=700")).expect("options");
        mount("small", &path, "tmpfs", MountFlags::empty(), options.as_c_str()).expect("mount it");
        Small(path)
    }

    /// Fills all space with a file. Removing the file frees it.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filling");
        let mut file = fs::File::create(&path).expect("a file");
        for piece in [64 << 10, 1] {
            while file.write_all(&vec![0; piece]).is_ok() {}
        }
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Two pods: one runs until it is stopped, and one exits with 7 when the file it waits for exists.
struct Pair {
    flag: PathBuf,
}

impl Pair {
    fn start(bench: &Bench, node: &Daemon<'_>) -> Self {
        let flag = node.dir.join("flag");
        fs::create_dir_all(&flag).expect("a directory");
        let said = node.run("stays", &json!({"containers": [bench.container("app", STAYS)]}), &["--wait"]);
        assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
        let mut main = bench.container("main", "while [ ! -e /flag/go ]; do sleep 0.05; done; exit 7");
        main["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
        let spec = json!({"restartPolicy": "Never", "containers": [main],
            "volumes": [{"name": "flag", "hostPath": {"path": flag}}]});
        let said = node.run("ends", &spec, &["--wait=running"]);
        assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
        Pair { flag }
    }

    /// Checks that the second pod ends with its exit code.
    fn end(&self, node: &Daemon<'_>) {
        fs::write(self.flag.join("go"), "").expect("a flag");
        assert_eq!(node.over("ends"), "Failed");
        let pod = node.pod("ends").expect("it is shown");
        assert_eq!(pod["containers"][0]["exit_code"], 7, "{pod:#}\n{}", node.account());
    }

    /// Checks that the first pod is still running, without interruption.
    fn goes_on(&self, node: &Daemon<'_>) {
        node.ready("stays");
        assert_eq!(node.pod("stays").expect("it is shown")["restarts"], 0, "{}", node.account());
        assert_eq!(node.must(&["logs", "stays"]), "start\n", "{}", node.account());
        assert_eq!(node.must(&["exec", "stays", "--", "echo", "hello"]), "hello\n");
    }
}

fn full_disk(bench: &Bench, name: &str) {
    let disk = Small::new(bench.work.join(name).join("state"), "8m");
    let mut node = Daemon::start(bench, name, &[]);
    let pods = Pair::start(bench, &node);
    let filling = disk.fill();
    // Another pod is refused with the reason, and nothing is left of it.
    let said = node.run("more", &json!({"containers": [bench.container("app", STAYS)]}), &[]);
    is_refused(&node, &said, "No space left");
    // Running pods continue, and exit codes are not lost.
    pods.end(&node);
    assert!(node.said().contains("cannot save the state of a pod"), "{}", node.said());
    pods.goes_on(&node);
    // The same holds for pods whose node is killed while the disk is full.
    node.down(Signal::KILL);
    node.up();
    pods.goes_on(&node);
    let pod = node.pod("ends").expect("it is shown");
    assert_eq!(pod["containers"][0]["exit_code"], 7, "{pod:#}\n{}", node.account());
    fs::remove_file(filling).expect("make room");
    let said = node.run("more", &json!({"containers": [bench.container("app", STAYS)]}), &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    node.leaves_nothing();
}

/// Checks that a further pod is refused with the reason, and not because of the manifest. Nothing may be left
/// of it.
fn is_refused(node: &Daemon<'_>, said: &Said, why: &str) {
    assert_eq!(said.code, 125, "{said:?}\n{}", node.account());
    let sentence = format!("cannot write in its state directory {}: {why}", node.state().display());
    assert!(said.err.contains(&sentence), "{said:?}\n{}", node.account());
    assert!(node.pod("more").is_none(), "{}", node.account());
}

fn becomes_read_only(bench: &Bench, name: &str) {
    let disk = Small::new(bench.work.join(name).join("state"), "8m");
    let mut node = Daemon::start(bench, name, &[]);
    let pods = Pair::start(bench, &node);
    let forced = lock_read_only(&disk);
    let more = json!({"containers": [bench.container("app", STAYS)]});
    is_refused(&node, &node.run("more", &more, &[]), "Read-only file system");
    // Running pods continue, and exit codes are not lost. A pod that has ended cannot be removed yet.
    fs::write(pods.flag.join("go"), "").expect("a flag");
    let ends = |node: &Daemon<'_>| node.pod("ends").expect("it is shown");
    node.until("it has ended", |node| ends(node)["containers"][0]["exit_code"] == 7);
    assert!(node.said().contains("cannot save the state of a pod"), "{}", node.said());
    assert_eq!(ends(&node)["over"], false, "{}", node.account());
    pods.goes_on(&node);
    // The next process cannot become the node before it can write.
    node.down(Signal::KILL);
    let said = node.say(&["node", "--state-dir", &node.state().display().to_string()]);
    assert!(said.code == 125 && said.err.contains("Read-only file system"), "{said:?}");
    drop(forced);
    node.up();
    pods.goes_on(&node);
    assert_eq!(node.over("ends"), "Failed");
    assert_eq!(ends(&node)["containers"][0]["exit_code"], 7, "{}", node.account());
    let said = node.run("more", &more, &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.account());
    node.leaves_nothing();
}

fn read_only(bench: &Bench, name: &str) {
    let disk = Small::new(bench.work.join(name).join("state"), "8m");
    let mut node = Daemon::start(bench, name, &[]);
    let pods = Pair::start(bench, &node);
    node.down(Signal::KILL);
    let state = node.state().display().to_string();
    let forced = lock_read_only(&disk);
    let said = node.say(&["node", "--state-dir", &state]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("Read-only file system"), "{said:?}");
    drop(forced);
    node.up();
    pods.goes_on(&node);
    pods.end(&node);
    node.leaves_nothing();
}

/// Mounts a read-only view of a state directory over itself, until the returned value is dropped.
fn lock_read_only(disk: &Small) -> Covered {
    rustix::mount::mount_bind_recursive(&disk.0, &disk.0).expect("bind it");
    let covered = Covered(disk.0.clone());
    rustix::mount::mount_remount(&disk.0, MountFlags::BIND | MountFlags::RDONLY, "")
        .expect("make it read-only");
    covered
}

struct Covered(PathBuf);

impl Drop for Covered {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Files below the state directory and their damage, each in a separate pod.
const DAMAGES: [(&str, Damage); 18] = [
    ("node/pods/POD/observation.json", Damage::Half),
    ("node/pods/POD/observation.json", Damage::Garbage),
    ("node/pods/POD/observation.json", Damage::Missing),
    ("node/pods/POD/pod.json", Damage::Empty),
    ("node/pods/POD/pod.json", Damage::Missing),
    ("node/runs/RUN/run.json", Damage::Half),
    ("node/runs/RUN/run.json", Damage::Missing),
    ("node/runs/RUN/workloads.json", Damage::Garbage),
    ("pods/POD/sandbox.json", Damage::Half),
    ("pods/POD/sandbox.json", Damage::Missing),
    ("pods/POD/ns/containers/CONTAINER/state.json", Damage::Garbage),
    ("pods/POD/node.json", Damage::Empty),
    // Opening a pipe blocks until another process opens its other end.
    ("node/pods/POD/observation.json", Damage::Pipe),
    ("node/pods/POD/pod.json", Damage::Pipe),
    ("node/runs/RUN/run.json", Damage::Pipe),
    ("node/runs/RUN/workloads.json", Damage::Pipe),
    ("pods/POD/sandbox.json", Damage::Pipe),
    ("pods/POD/node.json", Damage::Pipe),
];

#[derive(Debug, Clone, Copy)]
enum Damage {
    Half,
    Garbage,
    Empty,
    Missing,
    Pipe,
}

impl Damage {
    fn inflict(self, path: &Path) {
        let content = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        match self {
            Damage::Half => fs::write(path, &content[..content.len() / 2]),
            Damage::Garbage => fs::write(path, b"\xff\0{]garbage"),
            Damage::Empty => fs::write(path, b""),
            Damage::Missing => fs::remove_file(path),
            Damage::Pipe => fs::remove_file(path).and_then(|()| {
                let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
                Ok(rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0)?)
            }),
        }
        .expect("damage it");
    }
}

fn damaged(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let pods = Pair::start(bench, &node);
    let bad: Vec<String> = (0..DAMAGES.len()).map(|nth| format!("bad-{nth}")).collect();
    for pod in &bad {
        let said = node.run(pod, &json!({"containers": [bench.container("app", STAYS)]}), &[]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    bad.iter().for_each(|pod| node.ready(pod));
    node.down(Signal::KILL);
    for (pod, (file, damage)) in bad.iter().zip(DAMAGES) {
        let sandbox = node.sandboxes().into_iter().find(|id| id.ends_with(pod)).expect("its files");
        let run = sandbox.split('-').next().expect("its run");
        let containers = names(&node.state().join("pods").join(&sandbox).join("ns/containers"));
        let file = file.replace("POD", &sandbox).replace("RUN", run).replace("CONTAINER", &containers[0]);
        damage.inflict(&node.state().join(file));
    }
    // Damage files of the node itself.
    Damage::Garbage.inflict(&node.state().join("node/clock.json"));
    node.up();
    pods.goes_on(&node);
    for (pod, damage) in bad.iter().zip(DAMAGES) {
        // The pod runs, starts again, or is completely gone.
        let sandbox = |id: &String| id.ends_with(pod.as_str());
        node.until(&format!("{pod} runs or is gone ({damage:?})"), |node| match node.pod(pod) {
            Some(pod) => pod["phase"] == "Running" && pod["ready"] == pod["total"],
            None => !names(&node.state().join("pods")).iter().any(sandbox),
        });
    }
    pods.end(&node);
    node.leaves_nothing();
}

/// The processes of a pod's container, with their host pids.
fn processes_of(node: &Daemon<'_>, pod: &str) -> Vec<Pid> {
    let shims = shims_of(node).into_iter().filter(|shim| shim.pod == pod).map(|shim| shim.pid);
    let mut found = Vec::new();
    let mut pending: Vec<i32> = shims.map(|pid| pid.as_raw_nonzero().get()).collect();
    while let Some(next) = pending.pop() {
        let children = fs::read_to_string(format!("/proc/{next}/task/{next}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            found.extend(Pid::from_raw(child));
            pending.push(child);
        }
    }
    found
}

fn frozen(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let spec = json!({"terminationGracePeriodSeconds": 2, "containers": [bench.container("app", STAYS)]});
    let said = node.run("frozen", &spec, &["--wait"]);
    assert_eq!(said.code, 0, "{said:?}");
    let processes = processes_of(&node, "frozen");
    assert!(!processes.is_empty(), "{}", node.account());
    for process in &processes {
        // Child processes of the shell start and end at any time.
        let _ = kill_process(*process, Signal::STOP);
    }
    // The node adopts it in this state, and commands can be run in it.
    node.down(Signal::KILL);
    node.up();
    node.ready("frozen");
    assert_eq!(node.must(&["exec", "frozen", "--", "echo", "hello"]), "hello\n");
    let began = Instant::now();
    node.must(&["stop", "frozen"]);
    assert!(began.elapsed() >= Duration::from_secs(2), "it had {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    let pod = node.pod("frozen").expect("it is shown");
    assert_eq!(pod["containers"][0]["exit_code"], 137, "{pod:#}");
    node.leaves_nothing();
}

/// The memory of a process without its program, in KiB.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its memory");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Bytes a process has read.
fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("it runs");
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).and_then(|n| n.parse().ok()).expect("a number")
}

fn endless_output(bench: &Bench, name: &str) {
    const BYTES: u64 = 300 << 20;
    let mut node = Daemon::start(bench, name, &[]);
    let script = format!("exec yes {}", "x".repeat(1_000));
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [bench.container("app", &script)]});
    let flags = ["--wait", "--log-max-size", "1Mi", "--log-max-files", "3"];
    let said = node.run("loud", &spec, &flags);
    assert_eq!(said.code, 0, "{said:?}");
    // It follows the log, and nobody reads its output.
    let mut reader = node.start_command(&["logs", "-f", "loud"]);
    let shim = shims_of(&node).into_iter().find(|shim| shim.pod == "loud").expect("its shim");
    let shim = shim.pid.as_raw_nonzero().get().cast_unsigned();
    let (began, from) = (Instant::now(), bytes_read(shim));
    let mut most = (0, 0, 0);
    let mut was_killed = false;
    while bytes_read(shim) - from < BYTES {
        assert!(began.elapsed() < Duration::from_secs(90), "only {} bytes", bytes_read(shim) - from);
        let logs = names(&node.state().join("pods")).into_iter().flat_map(|pod| {
            let dir = node.state().join("pods").join(pod).join("logs/app");
            names(&dir).into_iter().map(move |file| fs::metadata(dir.join(file)).map_or(0, |meta| meta.len()))
        });
        most = (most.0.max(memory(node.pid())), most.1.max(memory(shim)), most.2.max(logs.sum::<u64>()));
        if !was_killed && bytes_read(shim) - from > BYTES / 2 {
            was_killed = true;
            node.down(Signal::KILL);
            node.up();
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let rate = BYTES as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64();
    eprintln!(
        "{name}: {rate:.0} MiB/s; at most: node {} KiB, shim {} KiB, logs {} bytes",
        most.0, most.1, most.2
    );
    assert!(most.0 < 64 << 10, "the node: {} KiB", most.0);
    assert!(most.1 < 8 << 10, "the shim: {} KiB", most.1);
    assert!(most.2 <= (4 << 20) + (256 << 10), "{} bytes of logs", most.2);
    node.must(&["stop", "loud"]);
    reader.kill().expect("it is there");
    reader.wait().expect("it ends");
    node.leaves_nothing();
}

fn rotated_logs(bench: &Bench, name: &str) {
    const LINES: usize = 30_000;
    let mut node = Daemon::start(bench, name, &[]);
    let spec =
        json!({"restartPolicy": "Never", "containers": [bench.container("main", &format!("seq 1 {LINES}"))]});
    let said = node.run("wordy", &spec, &["--wait", "--log-max-size", "64Ki", "--log-max-files", "100"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(node.over("wordy"), "Succeeded");
    let all: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
    assert!(node.must(&["logs", "wordy"]) == all, "all lines, once and in order");
    node.down(Signal::KILL);
    node.up();
    assert!(node.must(&["logs", "wordy"]) == all, "all lines after a restart");
    assert_eq!(node.must(&["logs", "wordy", "--tail", "1"]), format!("{LINES}\n"));
    node.leaves_nothing();
}

fn fork_bomb(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let pods = Pair::start(bench, &node);
    let bomb = "bomb() { bomb | bomb & }; echo start; while :; do bomb 2>/dev/null; sleep 0.01; done";
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [bench.container("app", bomb)]});
    let said = node.run("bomb", &spec, &["--wait", "--pids-limit", "64"]);
    assert_eq!(said.code, 0, "{said:?}");
    let counts = || -> Vec<u64> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"].map(|root| Path::new(root).join("outrigger"));
        let pods = roots.iter().flat_map(|root| names(root).into_iter().map(|pod| root.join(pod)));
        let own = pods.filter(|pod| pod.to_string_lossy().ends_with("-bomb"));
        let containers = own.flat_map(|pod| names(&pod).into_iter().map(move |c| pod.join(c)));
        let count = containers.filter_map(|c| fs::read_to_string(c.join("pids.current")).ok());
        count.filter_map(|count| count.trim().parse().ok()).collect()
    };
    let mut most = 0;
    node.until("the bomb has all the processes it may have", |_| counts().into_iter().max() >= Some(60));
    for _ in 0..50 {
        most = counts().into_iter().max().unwrap_or(0).max(most);
        std::thread::park_timeout(Duration::from_millis(10));
    }
    assert!(most <= 64, "{most} processes");
    pods.goes_on(&node);
    node.down(Signal::KILL);
    node.up();
    node.must(&["stop", "bomb"]);
    pods.end(&node);
    pods.goes_on(&node);
    node.leaves_nothing();
}

/// How a registry misbehaves.
#[derive(Debug, Clone, Copy)]
enum Registry {
    /// It accepts connections and never answers.
    Stalls,
    /// It truncates its answers.
    Truncates,
    /// It answers with something that is not an image.
    Lies,
}

impl Registry {
    /// Listens as long as this program runs. Returns the port.
    fn start(self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().flatten() {
                match self {
                    Registry::Stalls => held.push(stream),
                    _ => self.answer(stream),
                }
            }
        });
        port
    }

    fn answer(self, mut stream: TcpStream) {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let body = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "size": 2, "digest":
                "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
            "layers": [{"mediaType": "text/plain", "size": -1, "digest": "sha256:../../etc/passwd"}]});
        let body = body.to_string();
        let sent = match self {
            Registry::Truncates => &body[..body.len() / 2],
            _ => &body,
        };
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent.as_bytes()));
    }
}

fn registries(bench: &Bench, name: &str) {
    let mut node = Daemon::start(bench, name, &[]);
    let pods = Pair::start(bench, &node);
    let all = [("stalls", Registry::Stalls), ("truncates", Registry::Truncates), ("lies", Registry::Lies)];
    for (pod, registry) in all {
        let image = format!("localhost:{}/app:1", registry.start());
        let container: Value = json!({"name": "app", "image": image, "command": ["/bin/true"]});
        let said = node.run(pod, &json!({"containers": [container]}), &[]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    for pod in ["truncates", "lies"] {
        node.until(&format!("{pod} cannot be pulled"), |node| {
            let reason = node.pod(pod).map(|pod| pod["containers"][0]["reason"].to_string());
            reason.is_some_and(|reason| reason.contains("ImagePull"))
        });
    }
    pods.goes_on(&node);
    node.down(Signal::KILL);
    node.up();
    pods.goes_on(&node);
    for (pod, _) in all {
        let began = Instant::now();
        node.must(&["stop", pod]);
        assert!(began.elapsed() < Duration::from_secs(20), "{pod} took {:?} to stop", began.elapsed());
    }
    pods.end(&node);
    node.leaves_nothing();
}
