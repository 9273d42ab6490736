//! Hints on programs that cannot be run, or whose end shows the cause.

use k8s_openapi::api::core::v1::Container;
use outrigger_lifecycle::{ExitReason, FieldPath, KillReason};

use outrigger_manifest::flow_list;

use super::Hint;

pub(super) fn hint(
    container: &Container,
    path: FieldPath,
    code: i32,
    reason: Option<ExitReason>,
    killed_for: Option<KillReason>,
) -> Option<Hint> {
    match (reason, code) {
        (Some(ExitReason::StartError), _) => Some(not_started(container, path)),
        (Some(ExitReason::OomKilled), _) => Some(Hint::at(
            path.field("resources").field("limits").field("memory"),
            "it used more memory than its limit: raise the limit, or make the program use less",
        )),
        (_, 127) if killed_for.is_none() => Some(Hint::at(
            command_path(container, path),
            "code 127 means that a shell did not find the program: check the spelling, and that the image has it",
        )),
        (_, 126) if killed_for.is_none() => Some(Hint::at(
            command_path(container, path),
            "code 126 means that a shell may not execute the file: check its mode (chmod +x)",
        )),
        _ => None,
    }
}

fn not_started(container: &Container, path: FieldPath) -> Hint {
    let program = container.command.as_ref().and_then(|c| c.first());
    let hint = match program {
        Some(program) if program.contains(' ') => one_word(program),
        Some(program) => format!(
            "check that the image has {program:?}, that it is executable and in PATH; built-ins and pipes need a shell: [sh, -c, …]"
        ),
        None => {
            "the image's own entrypoint cannot be run; write a `command`, or use another image".to_owned()
        }
    };
    Hint::at(command_path(container, path), hint)
}

/// The hint on a command that is written as one string but has several words.
pub(super) fn one_word(program: &str) -> String {
    format!(
        "{program:?} is read as the name of one program; write each word as its own entry ({}), or use a shell: [sh, -c, {program:?}]",
        flow_list(program.split_whitespace())
    )
}

/// The field that sets the program: the command, otherwise the arguments, otherwise the image.
fn command_path(container: &Container, path: FieldPath) -> FieldPath {
    let written = |words: &Option<Vec<String>>| words.as_ref().is_some_and(|w| !w.is_empty());
    match () {
        () if written(&container.command) => path.field("command").index(0),
        () if written(&container.args) => path.field("args").index(0),
        () => path.field("image"),
    }
}
