//! Runs the same tests with an OCI runtime.

use std::path::Path;

use outrigger_embedded::{OciRuntime, OciRuntimes};
use outrigger_runtime::RuntimeError;
use tokio::process::Command;

use outrigger_testkit::embedded::{OCI_RUNTIME_VARIABLE, runtime};

outrigger_testkit::trials![
    runc_does_the_same,
    crun_does_the_same,
    a_program_that_is_no_runtime_is_refused,
    several_runtimes_are_tried_at_the_same_time,
    an_interrupted_trial_is_cleaned_up,
    an_unknown_class_is_refused,
];

/// The tests that are run with an OCI runtime in every test run. The others do not depend on the runtime.
const TESTS: [&str; 46] = [
    "lifecycle::exit_codes_are_reported",
    "lifecycle::a_signal_shows_in_the_exit",
    "lifecycle::a_trap_hears_term",
    "lifecycle::pid_1_without_handler",
    "lifecycle::stop_signal_is",
    "lifecycle::a_missing_program_in_path",
    "lifecycle::environment_is_merged",
    "lifecycle::working_directory_is_made",
    "lifecycle::output_is_complete",
    "lifecycle::removing_a",
    "lifecycle::the_same_id",
    "exec::code_and_output",
    "exec::the_container_s_environment",
    "exec::a_missing_command",
    "exec::the_timeout_kills",
    "exec::a_dropped_call_kills",
    "exec::commands_killed",
    "exec::background_children",
    "exec::it_ends_with",
    "exec::many_at_once",
    "exec::streams_are",
    "exec::a_terminal_is",
    "exec::a_command_that",
    "identity::users_and_groups",
    "identity::capabilities_of",
    "identity::no_new",
    "identity::exec_has",
    "identity::the_default_filter",
    "identity::a_profile_file",
    "identity::privileged_has",
    "identity::stdout_can",
    "filesystem::the_root_can",
    "filesystem::volumes_are",
    "filesystem::read_only_reaches",
    "filesystem::files_can",
    "filesystem::mounts_of_the_host",
    "filesystem::the_container_s_mounts",
    "filesystem::masked_paths",
    "filesystem::a_terminal_when",
    "limits::too_much_memory",
    "limits::exec_is_limited",
    "limits::devices_can",
    "pods::namespaces_are",
    "pods::pids_can",
    "ownership::orphans_are",
    "filter::arguments_decide",
];

/// The tests in which crun 1.8 differs, as described in docs/guide/oci-runtimes.md.
const NOT_CRUN: [&str; 2] = ["exec::a_terminal_is", "filesystem::mounts_of_the_host"];

async fn runc_does_the_same() {
    run_with("runc", &[]).await;
}

async fn crun_does_the_same() {
    // Not every test machine has it.
    if Path::new("/usr/bin/crun").exists() {
        run_with("crun", &NOT_CRUN).await;
    }
}

/// Runs the tests in a separate process, which uses the runtime for all of them.
async fn run_with(name: &str, except: &[&str]) {
    let all = Command::new("/proc/self/exe")
        .args(["--list", "--format", "terse"])
        .output()
        .await
        .expect("the names");
    let all = String::from_utf8(all.stdout).expect("names");
    let wanted = all
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| TESTS.iter().any(|test| name.starts_with(test) && !except.contains(test)));
    let mut run = Command::new("/proc/self/exe");
    run.env(OCI_RUNTIME_VARIABLE, name).args(["--exact", "--test-threads", "4"]);
    // Several names at a time are not supported, so all others are skipped.
    let wanted: Vec<&str> = wanted.collect();
    assert!(wanted.len() >= TESTS.len() - except.len(), "{wanted:?}");
    let others =
        all.lines().filter_map(|line| line.strip_suffix(": test")).filter(|name| !wanted.contains(name));
    for other in others {
        run.args(["--skip", other]);
    }
    let run = run.kill_on_drop(true).output().await.expect("a run");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
    assert!(text.contains(&format!("{} passed", wanted.len())), "{text}");
}

async fn a_program_that_is_no_runtime_is_refused() {
    let state = tempfile::tempdir().expect("temporary directory");
    let runtime = runtime(state.path());
    let Ok(found) = OciRuntime::find("/bin/busybox", &[]).or_else(|_| OciRuntime::find("/bin/ls", &[]))
    else {
        return;
    };
    let error = tokio::task::spawn_blocking(move || runtime.try_oci_runtime(&found))
        .await
        .expect("no panic")
        .unwrap_err();
    assert!(error.to_string().contains("cannot run containers on this machine"), "{error}");
    assert_eq!(std::fs::read_dir(state.path().join("pods")).expect("pods").count(), 0);
}

async fn several_runtimes_are_tried_at_the_same_time() {
    let state = tempfile::tempdir().expect("temporary directory");
    let trials = (0..6).map(|number| {
        let runtime = runtime(&state.path().join(number.to_string()));
        let found = OciRuntime::find("runc", &[]).expect("runc");
        tokio::task::spawn_blocking(move || runtime.try_oci_runtime(&found))
    });
    for trial in trials.collect::<Vec<_>>() {
        trial.await.expect("no panic").expect("runc works here");
    }
}

async fn an_interrupted_trial_is_cleaned_up() {
    let state = tempfile::tempdir().expect("temporary directory");
    let runtime = runtime(state.path());
    let found = OciRuntime::find("runc", &[]).expect("runc");
    let mut child = std::process::Command::new("true").spawn().expect("true");
    child.wait().expect("an end");
    let (left, other) = (state.path().join(format!(".try-{}-0", child.id())), state.path().join(".try-me"));
    std::fs::create_dir_all(left.join("layer")).expect("directory");
    std::fs::create_dir_all(&other).expect("directory");
    tokio::task::spawn_blocking(move || runtime.try_oci_runtime(&found))
        .await
        .expect("no panic")
        .expect("runc works here");
    assert!(!left.exists(), "{} is left", left.display());
    assert!(other.exists(), "{} is not a trial's", other.display());
}

async fn an_unknown_class_is_refused() {
    let runtimes = OciRuntimes::default();
    let error = runtimes.of_class(Some("gvisor")).unwrap_err();
    assert!(
        matches!(&error, RuntimeError::Config(text) if text.contains("\"gvisor\" is not configured")),
        "{error}"
    );
}
