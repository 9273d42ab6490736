//! `outrigger exec`.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::json;

use crate::command::{is_up, must, outrigger, say, start};
use crate::pty;
use crate::run::{Bench, Run, Test};

pub(crate) const ALL: [(&str, Test); 11] = [
    ("a_command_has_its_own_code_and_streams", streams),
    ("what_cannot_be_run_says_why", refused),
    ("ten_megabytes_arrive_as_they_were_sent", much),
    ("arguments_may_be_as_long_as_the_kernel_takes_them", long_arguments),
    ("input_nobody_reads_holds_nobody_up", unread),
    ("a_terminal_obeys_no_command_without_one", escapes),
    ("a_shell_has_a_terminal", shell),
    ("a_shell_ends_with_its_input", end_of_input),
    ("messages_on_a_raw_terminal_are_whole_lines", raw_messages),
    ("a_command_ends_with_whoever_asked_for_it", abandoned),
    ("a_command_ends_with_its_container", ended),
];

fn idle(bench: &Bench, name: &str) -> Run {
    let spec = json!({"terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
        "containers": [bench.container("app", "trap 'exit 0' TERM; while :; do sleep 0.1; done")]});
    start(bench, name, spec, is_up)
}

fn streams(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-streams");
    let said = say(bench, &["exec", "exec-streams", "--", "sh", "-c", "echo out; echo err >&2; cat; exit 3"]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (3, "out\n", "err\n"));
    let said = say(bench, &["exec", "pod/exec-streams", "-c", "app", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(said.code, 137, "{said:?}");
    let begun = Instant::now();
    let out = must(bench, &["exec", "exec-streams", "--", "sh", "-c", "sleep 600 & echo done"]);
    assert_eq!(out, "done\n");
    assert!(begun.elapsed() < Duration::from_secs(60), "what is left behind is not waited for");
}

/// 128 KiB per argument, of characters that take six bytes in JSON.
fn long_arguments(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-long");
    let long = "\u{1}".repeat((128 << 10) - 1);
    let mut args = vec!["exec", "exec-long", "--", "sh", "-c", "echo $# ${#1}", "sh"];
    args.extend([long.as_str(); 12]);
    assert_eq!(must(bench, &args), format!("12 {}\n", long.len()));
}

fn refused(bench: &Bench, _: &str) {
    let setup = bench.container("setup", "sleep 600");
    let spec = json!({"terminationGracePeriodSeconds": 0, "initContainers": [setup],
        "containers": [bench.container("app", "true")]});
    let _run = start(bench, "exec-refused", spec, |pod| pod["containers"][0]["state"] == "running");
    let exec = |container: &str, command: &[&str]| {
        say(bench, &[&["exec", "exec-refused", "-c", container, "--"], command].concat())
    };
    let said = exec("app", &["true"]);
    assert_eq!(said.code, 2, "{said:?}");
    let why = "container \"app\" is not running (waiting): it waits for `setup` to complete";
    assert!(said.err.contains(why), "{said:?}");
    for (command, code, why) in [
        (&["nothing"][..], 127, "exec \"nothing\": executable file not found in $PATH"),
        (&["/no/such"], 127, "exec \"/no/such\": no such file or directory"),
        (&["/etc"], 126, "exec \"/etc\": permission denied"),
    ] {
        let said = exec("setup", command);
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains(why), "{said:?}");
    }
    assert_eq!(exec("nobody", &["true"]).code, 2);
    assert_eq!(say(bench, &["exec", "exec-refused"]).code, 2, "there is no command");
}

fn much(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-much");
    let sent: Vec<u8> = (0..10 << 20_u32).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut command = outrigger(bench, &["exec", "-i", "exec-much", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).expect("it reads"));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("all was written");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), sent.len()), "{said}");
    assert!(output.stdout == sent, "they are not the same");
}

fn unread(bench: &Bench, _: &str) {
    let mut run = idle(bench, "exec-unread");
    let zeros = || Stdio::from(File::open("/dev/zero").expect("zeros"));
    // One command ends by itself, and one is stopped with its pod.
    let mut command = outrigger(bench, &["exec", "-i", "exec-unread", "--", "sh", "-c", "sleep 1; exit 4"]);
    assert_eq!(command.stdin(zeros()).status().expect("it runs").code(), Some(4));
    let mut command = outrigger(bench, &["exec", "-i", "exec-unread", "--", "sleep", "600"]);
    let mut child = command.stdin(zeros()).spawn().expect("it starts");
    until(bench, "exec-unread", "600", true);
    must(bench, &["stop", "exec-unread"]);
    assert_eq!(run.end(), 0, "{}", run.account());
    assert_eq!(child.wait().expect("it ends").code(), Some(137));
}

/// Without `-t`, a command cannot set the terminal's title or clipboard, query the terminal, or write from
/// right to left. This holds for both streams. Pipes, and terminals with `-t`, get the output unchanged.
fn escapes(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-escapes");
    let script = r"printf '\033]52;c;eA==\007\033P$q\033\\\033[6n\302\2332J\342\200\256\033[31mred\033[0m\n'; \
                   printf '\033]0;ti'; sleep 0.3; printf 'tle\007title\n' >&2; printf 'tle\007done\n'";
    let on_terminal = |flags: &[&str], script: &str| {
        let command =
            outrigger(bench, &[&["exec"], flags, &["exec-escapes", "--", "sh", "-c", script]].concat());
        let (status, _, written) = pty::Run::spawn(command, (80, 24)).end();
        assert!(status.success(), "{written}");
        written
    };
    let shown = on_terminal(&[], script);
    let plain = shown.replace("\x1b[31m", "").replace("\x1b[0m", "");
    // There is no order between the two streams.
    let mut lines: Vec<&str> = plain.split("\r\n").collect();
    lines.sort_unstable();
    assert_eq!(lines, ["", "\\u202ered", "done", "tletitle"], "{shown:?}");
    let raw = on_terminal(&["-t"], r"printf '\033]52;c;eA==\007'");
    assert!(raw.contains("\x1b]52;c;eA==\x07"), "{raw:?}");
    let piped = must(bench, &["exec", "exec-escapes", "--", "sh", "-c", script]);
    assert!(
        piped.starts_with("\x1b]52;c;eA==\x07\x1bP$q\x1b\\\x1b[6n\u{9b}2J\u{202e}\x1b[31mred"),
        "{piped:?}"
    );
}

fn shell(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-shell");
    let mut command = outrigger(bench, &["exec", "-it", "exec-shell", "--", "sh"]);
    command.env("TERM", "xterm");
    let mut shell = pty::Run::spawn(command, (91, 17));
    let master = shell.terminal();
    // The terminal's settings before the command changed them.
    let cooked = tcgetattr(pty::fresh()).expect("a terminal").local_modes;
    assert!(cooked.contains(LocalModes::ICANON | LocalModes::ECHO));
    shell.until("prompt", |s| s.text().contains("/ #"));
    assert!(!tcgetattr(&master).expect("a terminal").local_modes.contains(LocalModes::ICANON));
    shell.press(b"stty size; tty\r");
    shell.until("size", |s| s.text().contains("17 91\n") && s.text().contains("/dev/pts/0\n"));
    shell.resize((60, 20));
    shell.press(b"while [ \"$(stty size)\" != '20 60' ]; do sleep 0.1; done; echo resi''zed\r");
    shell.until("new size", |s| s.text().contains("resized\n"));
    // Keys go to the command, so the sleep is interrupted.
    shell.press(b"sleep 600; echo interr''upted $?\r");
    until(bench, "exec-shell", "600", true);
    shell.press(b"\x03");
    shell.until("prompt after the interrupt", |s| s.text().contains("^C"));
    shell.press(b"echo still ''here; exit 7\r");
    shell.until("the rest", |s| s.text().contains("still here\n"));
    let (status, screen, written) = shell.end();
    assert_eq!(status.code(), Some(7), "{}\n{written:?}", screen.text());
    let after = tcgetattr(&master).expect("a terminal").local_modes;
    assert_eq!(after, cooked, "the terminal is as it was");
    // The settings are also restored after a signal.
    let mut command = outrigger(bench, &["exec", "-it", "exec-shell", "--", "sleep", "601"]);
    command.env("TERM", "xterm");
    let mut held = pty::Run::spawn(command, (80, 24));
    let master = held.terminal();
    until(bench, "exec-shell", "601", true);
    held.signal(Signal::TERM);
    held.until("nothing", |_| true);
    let (status, screen, _) = held.end();
    assert_eq!(status.code(), Some(143), "{}", screen.text());
    assert_eq!(tcgetattr(&master).expect("a terminal").local_modes, cooked);
    until(bench, "exec-shell", "601", false);
}

fn end_of_input(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-eof");
    // Standard input has ended or will end, and a command that reads from the terminal notices it.
    for (command, input, expected) in
        [(&["sh"][..], "", ""), (&["sh"], "echo he''llo", "hello"), (&["cat"], "copied\n", "copied")]
    {
        let mut exec = outrigger(bench, &[&["exec", "-it", "exec-eof", "--"], command].concat());
        let mut child = exec.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {text}");
        assert!(text.contains(expected), "{command:?}: {text}");
    }
}

fn raw_messages(bench: &Bench, _: &str) {
    let mut run = idle(bench, "exec-raw");
    let mut command = outrigger(bench, &["exec", "-it", "exec-raw", "--", "sleep", "604"]);
    command.env("TERM", "xterm");
    let mut held = pty::Run::spawn(command, (80, 24));
    until(bench, "exec-raw", "604", true);
    must(bench, &["stop", "exec-raw"]);
    held.until("message", |s| s.text().contains("and the command with it"));
    let (status, _, written) = held.end();
    assert_eq!(status.code(), Some(137), "{written:?}");
    assert!(written.contains("and the command with it\r\n"), "{written:?}");
    assert_eq!(run.end(), 0, "{}", run.account());
}

fn abandoned(bench: &Bench, _: &str) {
    let _run = idle(bench, "exec-abandoned");
    let mut command =
        outrigger(bench, &["exec", "exec-abandoned", "--", "sh", "-c", "sleep 602 & sleep 602"]);
    let mut child = command.spawn().expect("it starts");
    until(bench, "exec-abandoned", "602", true);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, Signal::KILL).expect("it is there");
    child.wait().expect("it ends");
    until(bench, "exec-abandoned", "602", false);
}

fn ended(bench: &Bench, _: &str) {
    let mut run = idle(bench, "exec-ended");
    let mut child =
        outrigger(bench, &["exec", "exec-ended", "--", "sleep", "603"]).spawn().expect("it starts");
    until(bench, "exec-ended", "603", true);
    must(bench, &["stop", "exec-ended"]);
    assert_eq!(run.end(), 0, "{}", run.account());
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(137), "{said}");
    assert!(said.contains("has ended, and the command with it"), "{said}");
}

/// Waits until a `sleep` is running in a pod, or no longer running.
fn until(bench: &Bench, pod: &str, seconds: &str, runs: bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let script = format!("ps -o args | grep -q '^sleep {seconds}'");
    loop {
        let code = say(bench, &["exec", pod, "--", "sh", "-c", &script]).code;
        if code == i32::from(!runs) {
            return;
        }
        assert!(Instant::now() < deadline, "sleep {seconds} in {pod}: wanted {runs}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
