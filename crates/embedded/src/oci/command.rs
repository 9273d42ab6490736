//! Calls of an OCI runtime's command line, with a time limit. Errors contain the runtime's own message.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::fault::Fault;
use crate::oci_runtime::{OciRuntime, PLACES, wait};
use crate::sys;

/// A runtime that takes longer than this for one command counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The maximum number of bytes of a runtime's log that are read.
const LOG_MAX: u64 = 256 * 1024;

/// The maximum length of a message that is passed on.
const MESSAGE_MAX: usize = 2000;

/// One container of a runtime. `dir` is its bundle, which also contains the runtime's own files.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) runtime: OciRuntime,
    pub(crate) dir: PathBuf,
    pub(crate) id: String,
}

impl Calls {
    /// Prepares a command of the runtime. `log` is the file for its messages.
    pub(crate) fn command(&self, verb: &str, log: &Path) -> Command {
        let mut command = Command::new(self.runtime.path());
        command
            .args(self.runtime.args())
            .arg("--root")
            .arg(self.dir.join("state"))
            .arg("--log")
            .arg(log)
            .args(["--log-format", "json", verb])
            .current_dir(&self.dir)
            .env_clear()
            .env("PATH", PLACES.join(":"))
            .env("HOME", "/root")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(|| {
                // Otherwise the container would inherit the signals that the shim ignores and blocks.
                sys::reset_signals();
                Ok(())
            });
        }
        command
    }

    /// Runs a command about this container until it ends.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, verb: &str, args: &[S]) -> Result<(), Fault> {
        let log = self.dir.join(format!("{verb}-{}.log", std::process::id()));
        let mut command = self.command(verb, &log);
        let result = command
            .args(args)
            .spawn()
            .and_then(|mut child| wait(&mut child, PATIENCE))
            .map_err(|error| self.cannot_run(&error))
            .and_then(|status| self.verdict(verb, status, &log));
        let _ = fs::remove_file(&log);
        result
    }

    /// The result of a command.
    pub(crate) fn verdict(&self, verb: &str, status: Option<ExitStatus>, log: &Path) -> Result<(), Fault> {
        let name = self.runtime.name();
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(match last_error(log) {
                Some(message) => self.fault(&message),
                None => Fault::create(format!("{name} {verb} failed without saying why ({status})")),
            }),
            None => {
                let seconds = PATIENCE.as_secs();
                Err(Fault::create(format!(
                    "{name} {verb} did not end within {seconds} seconds: it was killed"
                )))
            }
        }
    }

    /// The fault for a runtime whose program cannot be run.
    pub(crate) fn cannot_run(&self, error: &io::Error) -> Fault {
        Fault::create(format!("cannot run {}: {}", self.runtime.path().display(), sys::errno_text(error)))
    }

    /// Turns a message of the runtime into a fault. It is a start error if it is about the program.
    fn fault(&self, message: &str) -> Fault {
        let text = plain(message);
        match is_about_the_program(text) {
            // In the wording of the embedded runtime, which is the wording of execve.
            true => Fault::start(as_execve_says(text)),
            false => Fault::create(format!("{}: {text}", self.runtime.name())),
        }
    }
}

/// The last error in a log of JSON lines.
fn last_error(log: &Path) -> Option<String> {
    let mut text = Vec::new();
    fs::File::open(log).ok()?.take(LOG_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let is_error = |line: &Value| matches!(line["level"].as_str(), Some("error" | "fatal"));
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let message = lines.rev().filter(is_error).find_map(|line| Some(line["msg"].as_str()?.to_owned()))?;
    let mut message = message.trim().replace('\n', "; ");
    message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    Some(message).filter(|message| !message.is_empty())
}

/// Removes prefixes that only say that something failed.
fn plain(message: &str) -> &str {
    const SAYS_NOTHING: [&str; 6] = [
        "runc create failed: ",
        "runc run failed: ",
        "runc start failed: ",
        "exec failed: ",
        "unable to start container process: ",
        "error during container init: ",
    ];
    let mut rest = message;
    while let Some(shorter) = SAYS_NOTHING.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = shorter;
    }
    rest
}

/// Converts a message about a program to the wording of the embedded runtime, which is the wording of execve.
fn as_execve_says(text: &str) -> String {
    // runc: exec: "NAME": [stat NAME: ]WHY
    if let Some((name, why)) = text.strip_prefix("exec: \"").and_then(|rest| rest.split_once("\": ")) {
        let why = why.strip_prefix(&format!("stat {name}: ")).unwrap_or(why);
        return format!("exec {name:?}: {why}");
    }
    // crun: executable file `NAME` not found in $PATH: WHY
    if let Some((name, _)) =
        text.strip_prefix("executable file `").and_then(|rest| rest.split_once("` not found"))
    {
        let why = if name.contains('/') {
            "no such file or directory"
        } else {
            "executable file not found in $PATH"
        };
        return format!("exec {name:?}: {why}");
    }
    text.to_owned()
}

/// Whether the problem is the program, not the container: it is missing, is not executable, or has no working
/// directory.
fn is_about_the_program(message: &str) -> bool {
    const WORDS: [&str; 6] =
        ["exec: ", "exec ", "executable file", "open executable", "chdir to cwd", "chdir: "];
    WORDS.iter().any(|words| message.starts_with(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;

    #[test]
    fn a_runtime_s_own_words_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let runtime = OciRuntime::for_tests("/x/runc");
        let calls = Calls { runtime, dir: dir.path().to_owned(), id: "c".into() };
        for (text, kind, expected) in [
            (
                r#"{"level":"error","msg":"runc create failed: unable to start container process: exec: \"x\": executable file not found in $PATH"}"#,
                FaultKind::Start,
                "exec \"x\": executable file not found in $PATH",
            ),
            (
                r#"{"level":"error","msg":"runc create failed: unable to start container process: exec: \"/x\": stat /x: no such file or directory"}"#,
                FaultKind::Start,
                "exec \"/x\": no such file or directory",
            ),
            (
                r#"{"level":"error","msg":"executable file `x` not found in $PATH: No such file or directory"}"#,
                FaultKind::Start,
                "exec \"x\": executable file not found in $PATH",
            ),
            (
                "{\"level\":\"warning\",\"msg\":\"w\"}\n{\"level\":\"error\",\"msg\":\"runc create failed: no such mount\"}",
                FaultKind::Create,
                "runc: no such mount",
            ),
            ("garbage", FaultKind::Create, "runc create failed without saying why (exit status: 1)"),
        ] {
            fs::write(&log, text).unwrap();
            let status = Command::new("/bin/false").status().unwrap();
            let fault = calls.verdict("create", Some(status), &log).unwrap_err();
            assert_eq!((fault.kind, fault.text.as_str()), (kind, expected));
        }
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let mut child = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_millis(20)).unwrap().is_none());
        let mut child = Command::new("/bin/true").spawn().unwrap();
        assert!(wait(&mut child, PATIENCE).unwrap().is_some_and(|status| status.success()));
    }
}
