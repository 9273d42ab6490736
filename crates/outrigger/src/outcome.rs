//! How a command ends.

use std::process::ExitCode;

use outrigger_manifest::{Diagnostic, Severity, SourceFile, render};

use crate::terminal;

/// A command that did its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing to complain about: exit code 0.
    Fine,
    /// The manifest was understood, and something is wrong with it: exit code 1.
    Findings,
}

impl Outcome {
    /// Findings if one of the diagnostics refuses the manifest.
    pub(crate) fn of(diagnostics: &[Diagnostic]) -> Outcome {
        match diagnostics.iter().any(|d| d.severity == Severity::Error) {
            true => Outcome::Findings,
            false => Outcome::Fine,
        }
    }
}

/// A command that could not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input cannot be used: exit code 2.
    Input(anyhow::Error),
    /// The manifest cannot be read, shown with the lines in question: exit code 2.
    Manifest(Vec<Diagnostic>, Vec<SourceFile>),
    /// Outrigger's own fault, or the machine's: exit code 125.
    Own(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Own(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Own(error.into())
    }
}

/// Shows what went wrong, if anything did, and gives the exit code.
pub(crate) fn exit_code(result: Result<Outcome, Failure>) -> ExitCode {
    match result {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Findings) => ExitCode::from(1),
        Err(Failure::Input(error)) => {
            terminal::error(&error);
            ExitCode::from(2)
        }
        Err(Failure::Manifest(diagnostics, sources)) => {
            terminal::eprint(&render(&diagnostics, &sources, true));
            ExitCode::from(2)
        }
        // The reader of our output has closed it, as in `outrigger plan … | head`.
        Err(Failure::Own(error)) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(Failure::Own(error)) => {
            terminal::error(&error);
            ExitCode::from(125)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(broken)
}
