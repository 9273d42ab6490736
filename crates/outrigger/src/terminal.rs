//! The terminal: colours, widths, and output that can fail.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use outrigger_manifest::{Diagnostic, SourceFile, render, render_within};
use outrigger_text::terminal::safe_text;
use outrigger_view::output::Colors;
use outrigger_view::style::paint;
use outrigger_view::text::{fit, shorten};

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Applies the setting to all further output.
    pub(crate) fn apply(self) {
        match self {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// Which streams use colours, according to all settings.
pub(crate) fn colors() -> Colors {
    let wanted = |choice| choice != anstream::ColorChoice::Never;
    Colors {
        out: wanted(anstream::AutoStream::choice(&io::stdout())),
        err: wanted(anstream::AutoStream::choice(&io::stderr())),
    }
}

/// Whether the output is a terminal with a movable cursor.
pub(crate) fn is_lively() -> bool {
    let moves = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    moves && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// The width of output that is not for a terminal.
pub(crate) const WIDTH: usize = 100;
/// The minimum width of output, because narrower output cannot be read.
const WIDTH_MIN: usize = 40;

/// The width from `COLUMNS`, as in other tools, otherwise that of the terminal, if there is one.
fn asked_width(stream: impl rustix::fd::AsFd) -> Option<usize> {
    let variable = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(stream).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    };
    variable.filter(|columns| *columns > 0).or_else(terminal).map(|columns| columns.max(WIDTH_MIN))
}

/// The width of standard output. `None` for a file or a pipe, whose lines may have any length.
pub(crate) fn out_width() -> Option<usize> {
    asked_width(io::stdout())
}

/// A text wrapped to the width of standard output.
pub(crate) fn within_out_width(text: String) -> String {
    within(text, out_width())
}

fn within(text: String, width: Option<usize>) -> String {
    match width {
        Some(width) => fit(&text, width),
        None => text,
    }
}

/// The width of standard error, as in [`out_width`].
fn err_width() -> Option<usize> {
    asked_width(io::stderr())
}

/// The maximum length of a pod's name in front of a line on a terminal.
const POD_NAME_MAX: usize = 18;

/// The name of a pod in front of a line of standard output. It is shortened only on a terminal, where lines
/// would wrap.
pub(crate) fn pod_name(name: &str) -> String {
    match io::stdout().is_terminal() {
        true => shorten(name, POD_NAME_MAX),
        false => name.to_owned(),
    }
}

const NOTE: Style = AnsiColor::Blue.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Writes to standard output. The text may come from manifests, containers and registries, so control
/// sequences are removed or escaped.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(safe_text(text).as_bytes())?;
    out.flush()
}

/// Whether the terminal is in raw mode. If so, lines need a carriage return.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// Records whether the terminal is in raw mode.
pub(crate) fn set_raw(is_raw: bool) {
    IS_RAW.store(is_raw, Ordering::Relaxed);
}

/// Writes to standard error. If it is closed, the text is lost.
pub(crate) fn eprint(text: &str) {
    let mut out = anstream::stderr().lock();
    let safe = safe_text(text);
    let raw = IS_RAW.load(Ordering::Relaxed).then(|| safe.replace('\n', "\r\n"));
    let bytes = raw.as_deref().unwrap_or(&safe).as_bytes();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// Writes the user's own text to standard output. It is unchanged in a file, and made safe on a terminal.
pub(crate) fn print_plain(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.is_terminal() {
        true => out.write_all(safe_text(text).as_bytes())?,
        false => out.write_all(text.as_bytes())?,
    }
    out.flush()
}

/// Prints sentences on standard error, wrapped to its width.
pub(crate) fn say(text: &str) {
    eprint(&format!("{}\n", within(text.to_owned(), err_width())));
}

/// Prints a sentence after a coloured word.
fn say_as(style: Style, word: &str, text: &str, width: Option<usize>) {
    let text = within(format!("{word} {text}"), width);
    eprint(&format!("{}{}\n", paint(style, word), text.strip_prefix(word).unwrap_or(&text)));
}

/// Prints a note on standard error.
pub(crate) fn note(text: &str) {
    say_as(NOTE, "note:", text, err_width());
}

/// Prints a note on standard error after Ctrl-C, which the terminal has echoed at the beginning of the line.
pub(crate) fn note_after_interrupt(text: &str) {
    const ECHO: usize = "^C".len();
    say_as(NOTE, "note:", text, err_width().map(|width| width - ECHO));
}

/// Prints an error with its causes.
pub(crate) fn error(error: &anyhow::Error) {
    say_as(ERROR, "error:", &with_causes(error), err_width());
}

/// Prints diagnostics on standard error, with the lines of the manifest.
pub(crate) fn diagnostics(diagnostics: &[Diagnostic], sources: &[SourceFile]) {
    eprint(&show(diagnostics, sources, err_width()));
}

/// Diagnostics as text for standard output.
pub(crate) fn diagnostics_text(diagnostics: &[Diagnostic], sources: &[SourceFile]) -> String {
    show(diagnostics, sources, out_width())
}

fn show(diagnostics: &[Diagnostic], sources: &[SourceFile], width: Option<usize>) -> String {
    match width {
        Some(width) => render_within(diagnostics, sources, true, width),
        None => render(diagnostics, sources, true),
    }
}

/// An error and its causes on one line. Many errors include the text of their cause, which is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.is_empty() {
            true => text = cause,
            false if text.contains(&cause) => {}
            false => text = format!("{text}: {cause}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_cause_is_said_once() {
        let missing = || io::Error::from_raw_os_error(2);
        let plain = Err::<(), _>(missing()).context("cannot read x").unwrap_err();
        assert_eq!(with_causes(&plain), "cannot read x: No such file or directory (os error 2)");
        let said = outrigger_node::run::RunError::File { path: "x".into(), source: missing() };
        let said = anyhow::Error::from(said);
        assert_eq!(with_causes(&said), "cannot write x: No such file or directory (os error 2)");
    }
}
