//! Tests `outrigger run` as a user at a terminal sees it: real pods on a real pseudo-terminal.

use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_testkit::{pty, screen};
use pty::Run;
use rustix::process::Signal;
use screen::Screen;

const WIDE: (u16, u16) = (80, 24);

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// A pod that is never ready and ends when it gets TERM.
const NAPPING: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: sleepy}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  containers:
    - name: nap
      image: rootfs:/
      command: [sh, -c, "trap 'exit 3' TERM; printf '\\033[?25l\\033[2Jnapping\\n'; while :; do sleep 0.1; done"]
      readinessProbe: {exec: {command: [sh, -c, "echo not yet; false"]}, periodSeconds: 1}
"#;

struct Manifest(tempfile::NamedTempFile);

impl Manifest {
    fn napping() -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), NAPPING).expect("a manifest");
        Manifest(file)
    }

    fn run(&self, size: (u16, u16), args: &[&str], env: &[(&str, &str)]) -> Run {
        let mut run = Run::start(self.0.path(), size, args, env);
        // When it has printed something, its trap is set.
        run.until("failed probe", |s| s.text().contains("probe") && s.text().contains("nap | napping"));
        run
    }
}

fn assert_clean(screen: &Screen, written: &str) {
    let complaints = screen.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}\n{}\n{written:?}", screen.text());
}

#[test]
fn a_run_ends_with_its_summary_on_a_clean_terminal() {
    let run = Run::start(&example("job.yaml"), WIDE, &[], &[]);
    let (status, screen, written) = run.end();
    let text = screen.text();
    assert_eq!(status.code(), Some(0), "{text}");
    assert_clean(&screen, &written);
    for expected in
        ["prepare | preparing\n", "shipper | done\n", "proxy   | the work is done, so the proxy may go\n"]
    {
        assert_eq!(text.matches(expected).count(), 1, "{expected:?} once in\n{text}");
    }
    let last = screen.since("report-");
    assert!(last[0].contains("succeeded after"), "{last:#?}");
    for expected in ["  prepare  init     code 0  ran", "  work     main     code 0  ran", "  stopping took "]
    {
        assert!(last.iter().any(|line| line.starts_with(expected)), "{expected:?} in {last:#?}");
    }
    let headed = text.lines().filter(|line| line.starts_with("report-")).count();
    assert_eq!(headed, 1, "the view itself is gone:\n{text}");
    assert!(screen.drawings > 2, "{}", screen.drawings);
    assert!(screen.colors > 0);
}

#[test]
fn a_waiting_container_shows_why_and_interrupts_stop_it() {
    let manifest = Manifest::napping();
    let mut run = manifest.run(WIDE, &[], &[]);
    // The first visible number depends on when the view is drawn.
    let tells = |line: &str| {
        let count = line.trim_start().strip_prefix("running, not ready: readiness probe failed (");
        let count = count.and_then(|rest| rest.split_once(" of 3), last: exit")?.0.parse::<u32>().ok());
        count.is_some_and(|count| count >= 1)
    };
    run.until("reason", |s| s.text().lines().any(tells));
    let shown = run.screen.since("sleepy ");
    assert!(shown[0].starts_with("sleepy running"), "{shown:#?}");
    assert!(shown[1].starts_with("  ◐ nap  main    not ready "), "{shown:#?}");
    assert!(shown[2].starts_with("      running, not ready: readiness probe"), "{shown:#?}");
    assert!(run.screen.text().contains("nap | napping\n"), "containers do not steer the terminal");
    run.press(b"\x03");
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), Some(130), "{}", screen.text());
    assert_clean(&screen, &written);
    assert!(screen.text().contains("SIGINT: stopping in order"), "{}", screen.text());
    assert!(screen.text().contains("  nap  main     code 3  ran"), "{}", screen.text());
}

/// The note of `attach` after Ctrl-C fits a narrow terminal, together with the `^C` that the terminal echoes.
#[test]
fn the_note_of_an_interrupted_attach_fits_beside_the_echo_as_root() {
    const NARROW: (u16, u16) = (60, 24);
    let state = tempfile::tempdir().expect("a directory");
    let dir = state.path().to_str().expect("a path");
    let outrigger = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command.args(args).env("TERM", "xterm-256color").env_remove("COLUMNS").env_remove("NO_COLOR");
        command
    };
    let mut node = outrigger(&["node", "--state-dir", dir]).spawn().expect("a node");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let answers = || {
        let asked = outrigger(&["ps", "-o", "json", "--state-dir", dir]).output().expect("outrigger runs");
        String::from_utf8_lossy(&asked.stdout).contains("\"node\"")
    };
    while !answers() {
        assert!(std::time::Instant::now() < deadline, "the node does not answer");
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    let manifest = Manifest::napping();
    let file = manifest.0.path().to_str().expect("a path");
    let began = outrigger(&["run", "-d", "--state-dir", dir, file]).output().expect("outrigger runs");
    assert!(began.status.success(), "{began:?}");
    let mut attached = Run::spawn(outrigger(&["attach", "sleepy", "--state-dir", dir]), NARROW);
    attached.until("output of the pod", |s| s.text().contains("napping"));
    attached.press(b"\x03");
    let (status, screen, written) = attached.end();
    let stopped = outrigger(&["stop", "--all", "--state-dir", dir, "--grace-period", "0"]).output();
    let pid = rustix::process::Pid::from_child(&node);
    rustix::process::kill_process(pid, Signal::TERM).expect("the node is there");
    let ended = node.wait().expect("its end");
    assert!(stopped.expect("outrigger runs").status.success() && ended.success(), "{ended:?}");
    assert_eq!(status.code(), Some(130), "{}", screen.text());
    let note: Vec<&str> = written.lines().skip_while(|line| !line.contains("keep running")).collect();
    assert!(note.len() >= 2, "{written:?}");
    let plain = |line: &str| line.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[34m", "");
    for line in note {
        assert!(plain(line).trim_end().chars().count() <= NARROW.0.into(), "{line:?} of {written:?}");
    }
}

#[test]
fn colours_are_off_where_they_are_not_wanted() {
    let cases: [(&[&str], &[(&str, &str)]); 2] = [(&[], &[("NO_COLOR", "1")]), (&["--color", "never"], &[])];
    for (args, env) in cases {
        let (status, screen, written) = Run::start(&example("job.yaml"), WIDE, args, env).end();
        assert_eq!(status.code(), Some(0), "{}", screen.text());
        assert_eq!(screen.colors, 0, "{args:?} {env:?}: {written:?}");
        assert!(screen.drawings > 2, "the view is there all the same");
        assert_clean(&screen, &written);
    }
}

#[test]
fn the_view_follows_the_window() {
    let manifest = Manifest::napping();
    let mut run = manifest.run(WIDE, &["--color", "never"], &[]);
    for size in [(20, 24), (160, 40), (20, 5), (7, 3), (1, 1), (80, 24)] {
        run.resize(size);
        let drawn = run.screen.drawings;
        run.until("drawing", |s| s.drawings > drawn);
    }
    run.until("view as wide as the window", |s| {
        s.since("sleepy ").get(2).is_some_and(|l| l.starts_with("      running, not ready: readiness probe"))
    });
    assert_eq!(run.screen.strange, [""; 0]);
    run.press(b"\x03");
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), Some(130), "{}", screen.text());
    assert_clean(&screen, &written);
}

#[test]
fn enter_leaves_no_copies_of_the_view() {
    let manifest = Manifest::napping();
    let mut run = manifest.run(WIDE, &["--color", "never"], &[]);
    for _ in 0..30 {
        run.press(b"\n");
        let drawn = run.screen.drawings;
        run.until("drawing", |s| s.drawings > drawn);
    }
    // Ctrl-C discards unread input, and the view may be drawn at the same moment.
    run.press(b"typed\n");
    let drawn = run.screen.drawings;
    run.until("two drawings", |s| s.drawings > drawn + 1);
    run.press(b"\x03");
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), Some(130), "{}", screen.text());
    assert_clean(&screen, &written);
    let headers = screen.text().lines().filter(|line| line.starts_with("sleepy ")).count();
    assert_eq!(headers, 1, "the summary's, and no other:\n{}", screen.text());
}

#[test]
fn enter_that_is_held_leaves_no_copies_on_a_small_terminal() {
    let manifest = Manifest::napping();
    let mut run = manifest.run((80, 10), &["--color", "never"], &[]);
    // Keys repeat as fast as on a keyboard, while the view itself is drawn once a second.
    for _ in 0..20 {
        run.press(b"\n");
        let drawn = run.screen.drawings;
        run.until("a drawing for the key", |s| s.drawings > drawn);
    }
    run.press(b"\x03");
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), Some(130), "{}", screen.text());
    assert_clean(&screen, &written);
    let headers = screen.text().lines().filter(|line| line.starts_with("sleepy ")).count();
    assert_eq!(headers, 1, "the summary's, and no other:\n{}", screen.text());
}

#[test]
fn a_narrow_window_is_enough() {
    let manifest = Manifest::napping();
    let mut run = manifest.run((20, 12), &["--color", "never"], &[]);
    run.until("state", |s| s.text().contains("◐ nap not ready\n"));
    let shown = run.screen.since("sleepy running");
    assert!(shown.iter().all(|l| l.chars().count() < 20), "{shown:#?}");
    run.signal(Signal::TERM);
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), Some(143), "{}", screen.text());
    assert_clean(&screen, &written);
}

#[test]
fn a_closed_window_stops_the_pods() {
    let manifest = Manifest::napping();
    let run = manifest.run(WIDE, &[], &[]);
    run.signal(Signal::HUP);
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), Some(129), "{}", screen.text());
    assert_clean(&screen, &written);
    assert!(screen.text().contains("  nap  main     code 3  ran"), "{}", screen.text());
}

#[test]
fn even_a_killed_run_leaves_the_terminal_clean() {
    let manifest = Manifest::napping();
    let mut run = manifest.run(WIDE, &[], &[]);
    run.until("view", |s| !s.since("sleepy running").is_empty());
    let state = run.take_state();
    run.signal(Signal::KILL);
    let (status, screen, written) = run.end();
    assert_eq!(status.code(), None);
    assert_clean(&screen, &written);
    // The next run removes the leftovers of this one.
    let mut next = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    next.args(["run", "--quiet", "--state-dir"]).arg(state.path()).arg(example("job.yaml"));
    assert_eq!(next.output().expect("a run").status.code(), Some(0));
}

#[test]
fn without_a_cursor_to_move_lines_are_plain() {
    let (status, screen, written) =
        Run::start(&example("job.yaml"), WIDE, &["--color", "never"], &[("TERM", "dumb")]).end();
    assert_eq!(status.code(), Some(0), "{}", screen.text());
    assert!(!written.contains('\x1b'), "{written:?}");
    assert!(written.contains("work     exited with code 0 after"), "{written}");
}

/// Every kind of control sequence, and text that imitates other text.
const HOSTILE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: hostile}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: rootfs:/
      command: [sh, -c, "printf '\\033]0;title\\007\\033[2J\\033[31mred\\033[m\\033P1$$r\\033\\\\\\302\\2332J\\342\\200\\256text\\n'; printf '\\033[6n' > /dev/termination-log; exit 3"]
"#;

#[test]
fn containers_do_not_steer_a_plain_terminal() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), HOSTILE).expect("a manifest");
    for args in [&["-o", "plain"][..], &["-o", "json"], &["-o", "plain", "--color", "never"]] {
        let state = tempfile::tempdir().expect("a directory for state");
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command.arg("run").args(args).arg("--state-dir").arg(state.path()).arg(file.path());
        let (status, screen, written) = Run::spawn(command, WIDE).end();
        assert_eq!(status.code(), Some(3), "{}", screen.text());
        assert!(written.contains("red") && written.contains("text"), "{written:?}");
        for obeyed in ["\x1b]", "\x1b[2J", "\x1bP", "\x1b[6n", "\u{9b}", "\u{202e}", "\x07"] {
            assert!(!written.contains(obeyed), "{args:?}: {obeyed:?} in {written:?}");
        }
    }
}
