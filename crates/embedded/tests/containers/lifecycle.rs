//! Tests of start, end, signals and logs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use outrigger_runtime::{ExecRequest, Runtime as _, RuntimeError};

use outrigger_testkit::embedded::{DEADLINE, Pod, eventually, log_text};

outrigger_testkit::trials![
    exit_codes_are_reported,
    a_signal_shows_in_the_exit,
    a_trap_hears_term,
    pid_1_without_handler_ignores_term_and_dies_of_kill,
    stop_signal_is_the_container_s_own,
    a_missing_program_is_a_start_error,
    a_missing_program_in_path_is_a_start_error,
    a_program_with_an_endless_name_is_a_start_error,
    a_start_that_hangs_can_be_ended,
    a_file_that_cannot_be_executed_is_a_start_error,
    an_image_without_command_cannot_be_created,
    image_entrypoint_and_cmd_follow_the_rules,
    environment_is_merged,
    working_directory_is_made,
    logs_are_in_cri_format,
    long_lines_are_split,
    output_is_complete_at_the_exit,
    waiting_works_before_the_start_and_for_many,
    times_are_in_order,
    removing_a_running_container_kills_it,
    removing_a_created_container_leaves_nothing,
    the_same_id_can_be_used_again,
];

async fn exit_codes_are_reported() {
    let pod = Pod::new().await;
    for code in [0, 1, 42, 255] {
        let (exit, _) = pod.run(pod.script(&format!("exit {code}"))).await;
        assert_eq!((exit.code, exit.signal, exit.oom_killed), (code, None, false));
    }
    pod.finish().await;
}

async fn a_signal_shows_in_the_exit() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    pod.runtime.kill(&id).await.unwrap();
    let exit = pod.wait(&id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    pod.finish().await;
}

async fn a_trap_hears_term() {
    let pod = Pod::new().await;
    let spec = pod.script("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "ready").await;
    pod.runtime.terminate(&id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 7);
    assert_eq!(log_text(&log), "ready\nbye\n");
    // A container that has already ended is not an error.
    pod.runtime.terminate(&id, Duration::ZERO).await.unwrap();
    pod.runtime.kill(&id).await.unwrap();
    pod.finish().await;
}

async fn pid_1_without_handler_ignores_term_and_dies_of_kill() {
    let pod = Pod::new().await;
    let spec = pod.script("echo ready; while :; do sleep 0.01; echo alive; done");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "ready").await;
    pod.runtime.terminate(&id, Duration::ZERO).await.unwrap();
    fs::write(&log, "").unwrap();
    pod.saw(&log, "alive").await;
    pod.runtime.kill(&id).await.unwrap();
    assert_eq!(pod.wait(&id).await.signal, Some(9));
    pod.finish().await;
}

async fn stop_signal_is_the_container_s_own() {
    let pod = Pod::new().await;
    for (image, manifest, trap) in
        [(Some("SIGUSR1"), None, "USR1"), (Some("SIGUSR1"), Some("SIGUSR2"), "USR2")]
    {
        let mut spec = pod.script(&format!("trap 'exit 3' {trap}; echo ready; while :; do sleep 0.01; done"));
        spec.image.stop_signal = image.map(str::to_owned);
        spec.stop_signal = manifest.map(str::to_owned);
        let log = spec.log_path.clone();
        let id = pod.start(spec).await.unwrap();
        pod.saw(&log, "ready").await;
        pod.runtime.terminate(&id, Duration::ZERO).await.unwrap();
        assert_eq!(pod.wait(&id).await.code, 3);
    }
    let mut spec = pod.script("true");
    spec.stop_signal = Some("SIGNOTHING".to_owned());
    let error = pod.start(spec).await.unwrap_err();
    assert!(matches!(&error, RuntimeError::Config(text) if text.contains("SIGNOTHING")), "{error:?}");
    pod.finish().await;
}

async fn a_missing_program_is_a_start_error() {
    let pod = Pod::new().await;
    let mut spec = pod.script("");
    spec.command = Some(vec!["/bin/no-such-program".to_owned()]);
    let id = pod.runtime.create_container(&pod.id, spec).await.unwrap();
    let error = pod.runtime.start_container(&id).await.unwrap_err();
    let RuntimeError::Start(text) = &error else { panic!("{error:?}") };
    assert_eq!(text, "exec \"/bin/no-such-program\": no such file or directory");
    assert!(matches!(pod.runtime.wait(&id).await, Err(RuntimeError::Start(_))));
    pod.runtime.remove_container(&id).await.unwrap();
    pod.finish().await;
}

async fn a_missing_program_in_path_is_a_start_error() {
    let pod = Pod::new().await;
    let mut spec = pod.script("");
    spec.command = Some(vec!["no-such-program".to_owned()]);
    let error = pod.start(spec).await.unwrap_err();
    assert_eq!(error.to_string(), "exec \"no-such-program\": executable file not found in $PATH");
    assert_eq!(error.reason(), "StartError");
    pod.finish().await;
}

/// A message that is too long to be sent must not look like a start.
async fn a_program_with_an_endless_name_is_a_start_error() {
    let pod = Pod::new().await;
    for length in [1_000, 66_000, 131_100, 150_000, 300_000] {
        let name = format!("/{}", "x".repeat(length));
        let mut spec = pod.script("");
        spec.command = Some(vec![name.clone()]);
        let error = pod.start(spec).await.unwrap_err();
        assert_eq!(error.reason(), "StartError", "{length}");
        let text = error.to_string();
        assert!(text.starts_with("exec \"/xxx") && text.len() < 5_000, "{length}: {text}");
        let id = pod.start(pod.script("sleep 100")).await.unwrap();
        let request = ExecRequest { command: vec![name], timeout: Some(DEADLINE), output_limit: 10 };
        let error = pod.runtime.exec(&id, request).await.unwrap_err();
        assert_eq!(error.reason(), "StartError", "{length}: {error}");
    }
    pod.finish().await;
}

/// In a shared pid namespace, a process of another container may stop the first process before it has
/// executed the program.
async fn a_start_that_hangs_can_be_ended() {
    let pod = Pod::new().await;
    let id = pod.runtime.create_container(&pod.id, pod.script("sleep 100")).await.unwrap();
    let first = rustix::process::Pid::from_raw(pod.first_process(&id) as i32).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::STOP).unwrap();
    let mut start = Box::pin(pod.runtime.start_container(&id));
    // This request is sent before the one to kill it.
    tokio::select! {
        biased;
        started = &mut start => panic!("{started:?}"),
        () = std::future::ready(()) => {}
    }
    pod.runtime.kill(&id).await.unwrap();
    let started = tokio::time::timeout(Duration::from_secs(8), start).await.expect("soon");
    assert!(started.is_err(), "{started:?}");
    eventually("it is gone", || !Path::new(&format!("/proc/{}", first.as_raw_nonzero())).exists()).await;
    pod.finish().await;
}

async fn a_file_that_cannot_be_executed_is_a_start_error() {
    let pod = Pod::new().await;
    let mut spec = pod.script("");
    spec.command = Some(vec!["/etc/passwd".to_owned()]);
    let error = pod.start(spec).await.unwrap_err();
    assert_eq!(error.to_string(), "exec \"/etc/passwd\": permission denied");
    pod.finish().await;
}

async fn an_image_without_command_cannot_be_created() {
    let pod = Pod::new().await;
    let mut spec = pod.script("");
    spec.command = None;
    let error = pod.start(spec).await.unwrap_err();
    assert!(
        matches!(&error, RuntimeError::Image(text) if text.starts_with("no command specified")),
        "{error:?}"
    );
    pod.finish().await;
}

async fn image_entrypoint_and_cmd_follow_the_rules() {
    let pod = Pod::new().await;
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (command, args, expected) in [
        (None, None, "image cmd\n"),
        (None, Some("args"), "image args\n"),
        (Some("echo manifest"), None, "manifest\n"),
        (Some("echo manifest"), Some("args"), "manifest args\n"),
    ] {
        let mut spec = pod.script("");
        spec.image.entrypoint = words("echo image");
        spec.image.cmd = words("cmd");
        spec.command = command.map(words);
        spec.args = args.map(words);
        assert_eq!(pod.output(spec).await, expected);
    }
    pod.finish().await;
}

async fn environment_is_merged() {
    let pod = Pod::new().await;
    let mut spec = pod.script("echo $A $B $C $HOME $HOSTNAME $PATH");
    spec.image.env = vec!["A=image".to_owned(), "B=image".to_owned(), "C=x=y".to_owned()];
    spec.env = vec![("B".to_owned(), "manifest".to_owned())];
    let expected =
        "image manifest x=y /root test-pod /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n";
    assert_eq!(pod.output(spec).await, expected);
    pod.finish().await;
}

async fn working_directory_is_made() {
    let pod = Pod::new().await;
    let mut spec = pod.script("pwd; ls -la");
    spec.working_dir = Some("/made/for/it".to_owned());
    spec.image.working_dir = Some("/tmp".to_owned());
    assert!(pod.output(spec).await.starts_with("/made/for/it\n"));
    let mut spec = pod.script("pwd");
    spec.image.working_dir = Some("/tmp".to_owned());
    assert_eq!(pod.output(spec).await, "/tmp\n");
    assert_eq!(pod.output(pod.script("pwd")).await, "/\n");
    assert!(!outrigger_testkit::embedded::rootfs().join("made").exists(), "the image was written to");
    pod.finish().await;
}

async fn logs_are_in_cri_format() {
    let pod = Pod::new().await;
    let spec = pod.script("echo out; echo err >&2; printf 'no newline'");
    let log = spec.log_path.clone();
    pod.output(spec).await;
    let text = fs::read_to_string(&log).unwrap();
    let mut seen: Vec<(&str, &str, &str)> = Vec::new();
    for line in text.lines() {
        let parts: Vec<&str> = line.splitn(4, ' ').collect();
        let [time, stream, tag, message] = parts[..] else { panic!("{line:?}") };
        assert!(
            time.len() == 30 && time.starts_with("20") && time.ends_with('Z') && &time[10..11] == "T",
            "{time}"
        );
        seen.push((stream, tag, message));
    }
    seen.sort_unstable();
    assert_eq!(seen, [("stderr", "F", "err"), ("stdout", "F", "no newline"), ("stdout", "F", "out")]);
    pod.finish().await;
}

async fn long_lines_are_split() {
    let pod = Pod::new().await;
    let spec = pod.script("head -c 40000 /dev/zero | tr '\\0' x; echo; echo end");
    let log = spec.log_path.clone();
    pod.output(spec).await;
    let text = fs::read_to_string(&log).unwrap();
    let parts: Vec<(&str, usize)> = text
        .lines()
        .map(|line| line.splitn(4, ' ').collect::<Vec<_>>())
        .map(|p| (p[2], p[3].len()))
        .collect();
    assert_eq!(parts, [("P", 16384), ("P", 16384), ("F", 40000 - 2 * 16384), ("F", 3)]);
    pod.finish().await;
}

async fn output_is_complete_at_the_exit() {
    let pod = Pod::new().await;
    let log = pod.output(pod.script("seq 1 20000")).await;
    assert_eq!(log.lines().count(), 20000);
    assert!(log.ends_with("\n20000\n"));
    pod.finish().await;
}

async fn waiting_works_before_the_start_and_for_many() {
    let pod = Pod::new().await;
    let id = pod.runtime.create_container(&pod.id, pod.script("exit 5")).await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (runtime, id) = (pod.runtime.clone(), id.clone());
            tokio::spawn(async move { runtime.wait(&id).await.unwrap().code })
        })
        .collect();
    tokio::task::yield_now().await;
    pod.runtime.start_container(&id).await.unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), 5);
    }
    assert_eq!(pod.wait(&id).await.code, 5, "however long ago");
    pod.finish().await;
}

async fn times_are_in_order() {
    let mut seen = Vec::new();
    // The time of day may be changed while this runs. A real error would occur each time.
    for _ in 0..3 {
        let pod = Pod::new().await;
        let before = std::time::SystemTime::now();
        let id = pod.runtime.create_container(&pod.id, pod.script("sleep 100")).await.unwrap();
        let created = std::time::SystemTime::now();
        let started = pod.runtime.start_container(&id).await.unwrap();
        let running = std::time::SystemTime::now();
        pod.runtime.kill(&id).await.unwrap();
        let exit = pod.wait(&id).await;
        let over = std::time::SystemTime::now();
        pod.finish().await;
        assert!(started.pid > 1);
        assert_eq!(started.at, exit.started_at);
        let times = [before, created, started.at, running, exit.finished_at, over];
        if times.is_sorted() {
            return;
        }
        seen.push(times);
    }
    panic!("{seen:#?}");
}

async fn removing_a_running_container_kills_it() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    pod.runtime.remove_container(&id).await.unwrap();
    pod.runtime.remove_container(&id).await.unwrap();
    assert!(matches!(pod.runtime.wait(&id).await, Err(RuntimeError::NotFound { .. })));
    pod.finish().await;
}

async fn removing_a_created_container_leaves_nothing() {
    let pod = Pod::new().await;
    let id = pod.runtime.create_container(&pod.id, pod.script("true")).await.unwrap();
    pod.runtime.remove_container(&id).await.unwrap();
    assert!(!pod.container_dir(&id.0).exists() && !pod.layer_dir(&id.0).exists());
    pod.finish().await;
}

async fn the_same_id_can_be_used_again() {
    let pod = Pod::new().await;
    let spec = pod.script("touch /mark; ls /");
    for _ in 0..2 {
        let (exit, _) = pod.run(spec.clone()).await;
        assert_eq!(exit.code, 0);
        assert!(pod.runtime.create_container(&pod.id, spec.clone()).await.is_err(), "it is still there");
        pod.runtime.remove_container(&spec.id).await.unwrap();
    }
    pod.finish().await;
}
