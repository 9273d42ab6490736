//! The results of commands, and their exit codes.

use std::process::ExitCode;

use outrigger_manifest::{Diagnostic, Severity, SourceFile};
use outrigger_node::input::InputError;
use outrigger_node::read::ReadError;

use crate::terminal;

/// The result of a command that completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There are no findings: exit code 0.
    Fine,
    /// The manifest could be read and has errors: exit code 1.
    Findings,
}

impl Outcome {
    /// `Findings` if one of the diagnostics is an error.
    pub(crate) fn of_diagnostics(diagnostics: &[Diagnostic]) -> Outcome {
        match diagnostics.iter().any(|d| d.severity == Severity::Error) {
            true => Outcome::Findings,
            false => Outcome::Fine,
        }
    }
}

/// Why a command could not complete.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input cannot be used: exit code 2.
    Input(anyhow::Error),
    /// The manifest cannot be read. The affected lines are shown: exit code 2.
    Manifest(Vec<Diagnostic>, Vec<SourceFile>),
    /// A failure of outrigger or of the machine: exit code 125.
    Own(anyhow::Error),
    /// A failure of outrigger or of the machine whose reason the log already has: exit code 125.
    Logged,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Own(error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Manifest { diagnostics, sources } => Failure::Manifest(diagnostics, sources),
            ReadError::Option(text) => Failure::Input(anyhow::anyhow!(text)),
        }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        match error {
            InputError::NotText(diagnostic) => Failure::Manifest(vec![*diagnostic], Vec::new()),
            other => Failure::Input(other.into()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Own(error.into())
    }
}

/// Prints the error, if any, and returns the exit code.
pub(crate) fn exit_code(result: Result<Outcome, Failure>) -> ExitCode {
    match result {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Findings) => ExitCode::from(1),
        Err(Failure::Input(error)) => {
            terminal::error(&error);
            ExitCode::from(2)
        }
        Err(Failure::Manifest(diagnostics, sources)) => {
            terminal::diagnostics(&diagnostics, &sources);
            ExitCode::from(2)
        }
        // The reader of our output has closed it, as in `outrigger plan … | head`.
        Err(Failure::Own(error)) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(Failure::Own(error)) => {
            terminal::error(&error);
            ExitCode::from(125)
        }
        Err(Failure::Logged) => ExitCode::from(125),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(broken)
}
