//! Tests access to a run's socket, and clients that misbehave.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::command::{is_up, must, outrigger, pod, say, start};
use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 4] = [
    ("another_user_is_refused", other_user),
    ("what_a_killed_run_left_is_cleaned", stale),
    ("clients_that_hang_or_lie_hold_nobody_up", bad_clients),
    ("a_run_without_a_socket_runs_all_the_same", no_socket),
];

const NOBODY: u32 = 65534;

fn idle(bench: &Bench, name: &str) -> Run {
    let spec =
        json!({"terminationGracePeriodSeconds": 1, "containers": [bench.container("app", "sleep 600")]});
    start(bench, name, spec, is_up)
}

/// The socket of a run.
fn socket(dir: &Path, run: &Run) -> Option<PathBuf> {
    let names = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let of_run = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{}-", run.pid())))
    };
    names.into_iter().find(of_run)
}

fn other_user(bench: &Bench, _: &str) {
    // Other users cannot even reach the socket, so this test opens its parent directories.
    let open = tempfile::Builder::new().prefix("outrigger-open-").tempdir().expect("a directory");
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
    mode(open.path(), 0o755);
    let bench =
        &Bench { binary: bench.binary.clone(), image: bench.image.clone(), work: open.path().to_owned() };
    let run = idle(bench, "private");
    let (dir, path) = (bench.sockets(), socket(&bench.sockets(), &run).expect("a socket"));
    assert_eq!(std::fs::metadata(&dir).expect("a directory").permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
    let knock = |path: PathBuf| {
        std::thread::spawn(move || {
            // SAFETY: the raw call changes the ids of this thread only, which ends right after.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(changed, 0);
            let mut stream = UnixStream::connect(path)?;
            let mut answer = String::new();
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.read_to_string(&mut answer)?;
            Ok::<String, std::io::Error>(answer)
        })
        .join()
        .expect("the thread ends")
    };
    let kept_out = knock(path.clone()).expect_err("the directory is closed");
    assert_eq!(kept_out.kind(), std::io::ErrorKind::PermissionDenied);
    mode(&dir, 0o755);
    mode(&path, 0o666);
    let answer = knock(path).expect("the door is open");
    assert!(answer.contains("this run belongs to user 0, not to user 65534"), "{answer:?}");
    let said = say(bench, &["ps"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("has mode 755: it must be yours, with mode 700"), "{said:?}");
    mode(&dir, 0o700);
    must(bench, &["ps", "private"]);
}

fn stale(bench: &Bench, name: &str) {
    // Use a directory in which no other test looks for runs.
    let work = bench.work.join(name);
    std::fs::create_dir_all(&work).expect("a directory");
    let bench = &Bench { binary: bench.binary.clone(), image: bench.image.clone(), work };
    let mut run = idle(bench, "killed");
    let path = socket(&bench.sockets(), &run).expect("a socket");
    run.signal(Signal::KILL);
    assert_eq!(run.end(), -1);
    assert!(path.exists(), "nobody could remove it");
    assert_eq!(pod(bench, "killed"), None);
    assert!(!path.exists(), "whoever asked has");
    // The next run removes the pod.
    idle(bench, "after-the-killed");
}

fn bad_clients(bench: &Bench, _: &str) {
    let mut run = idle(bench, "pestered");
    let (path, run_pid) = (socket(&bench.sockets(), &run).expect("a socket"), run.pid());
    let connect = || UnixStream::connect(&path).expect("the run listens");
    // One client sends nothing, one half a message, one nonsense and one too much. One sends a request and
    // does not read.
    let mut clients: Vec<UnixStream> = (0..5).map(|_| connect()).collect();
    clients[1].write_all(&[0, 10]).expect("the run reads");
    let _cut_off = clients[2].write_all(b"GET / HTTP/1.1\r\n\r\n");
    let _cut_off = clients[3].write_all(&[0, 255, 255, 255, 255, 0]);
    clients[4].write_all(&hello(&json!({"version": 1, "request": "list"}))).expect("the run reads");
    let mut answer = String::new();
    let mut old = connect();
    old.write_all(&hello(&json!({"version": 0, "request": {"something": "else"}}))).expect("the run reads");
    old.read_to_string(&mut answer).expect("the run answers");
    assert!(answer.contains("the run speaks version 1 of the protocol, not 0"), "{answer:?}");
    // Connections without a request are closed in favour of those with one.
    let more: Vec<UnixStream> = (0..80).map(|_| connect()).collect();
    assert!(pod(bench, "pestered").is_some(), "a command is served: {:?}", say(bench, &["ps"]));
    drop(more);
    let wait = hello(&json!({"version": 1, "request": {"await": {"run": "none", "over": true}}}));
    let mut busy: Vec<UnixStream> = (0..80).map(|_| connect()).collect();
    for stream in &mut busy {
        // Some were refused already.
        let _refused = stream.write_all(&wait);
    }
    run.wait_for("refusal while all places are taken", |_| {
        let said = say(bench, &["ps"]);
        assert!(!said.err.contains("no pods are running"), "{said:?}");
        said.err.contains(&format!("run {} is not listed: the run already serves 64 other", run_pid))
    });
    drop(busy);
    run.wait_for("end of those that were too many", |_| pod(bench, "pestered").is_some());
    must(bench, &["stop", "pestered"]);
    run.end();
    drop(clients);
}

fn hello(message: &serde_json::Value) -> Vec<u8> {
    let content = message.to_string();
    let length = u32::try_from(content.len()).expect("short");
    [&[0], &length.to_le_bytes()[..], content.as_bytes()].concat()
}

fn no_socket(bench: &Bench, name: &str) {
    let dir = bench.work.join(name);
    std::fs::create_dir_all(&dir).expect("a directory");
    let (file, taken) = (dir.join("manifest.json"), dir.join("taken"));
    std::fs::write(&taken, "").expect("a file");
    let spec = json!({"restartPolicy": "Never", "containers": [bench.container("app", "echo here")]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mute"}, "spec": spec});
    std::fs::write(&file, pod.to_string()).expect("a manifest");
    let mut command = outrigger(bench, &["run", "-o", "plain", "--network", "none", "--state-dir"]);
    command.arg(bench.work.join("state")).arg(&file).env("OUTRIGGER_RUNTIME_DIR", &taken);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"app | here\n"[..]), "{said}");
    assert_eq!(said.matches("cannot reach this run").count(), 1, "{said}");
}
