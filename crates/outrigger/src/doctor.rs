//! `outrigger doctor`: checks whether this machine can run pods.

use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use outrigger_embedded::rootless;
use outrigger_runtime::doctor::{Finding, Level};
use outrigger_view::style::{DIM, paint};
use outrigger_view::text::fit;
use serde_json::json;

use crate::outcome::{Failure, Outcome};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger doctor
  sudo outrigger doctor                      what root can do here
  outrigger doctor --state-dir /srv/outrigger
  outrigger doctor -o json

The checks create real namespaces, mounts and interfaces, and remove them afterwards.

Exit codes: 0 pods can run here, 1 something that `outrigger run` needs is missing.")]
pub(crate) struct Args {
    /// Directory for images, pods and persistent volume claims.
    #[arg(long, value_name = "DIR", env = "OUTRIGGER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Text,
    /// JSON, for scripts.
    Json,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    // If this is refused, the findings show why.
    if !rootless::has_powers() && rootless::why_not_rootless().is_none() {
        let _ = rootless::enter(|_| {});
    }
    let state_dir = crate::runtime::given_or_default(args.state_dir.as_deref())?;
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut findings = outrigger_embedded::doctor::examine(&state_dir);
    findings.push(executor.block_on(outrigger_cri::doctor::examine()));
    let fit = findings.iter().all(|f| f.level != Level::Fail);
    match args.output {
        Output::Json => {
            let value = json!({ "version": 1, "fit": fit, "findings": findings });
            terminal::print_plain(&format!("{value:#}\n"))?;
        }
        Output::Text => terminal::print(&text(&findings, fit, terminal::out_width()))?,
    }
    Ok(if fit { Outcome::Fine } else { Outcome::Findings })
}

/// The width of a finding's level.
const WORD: usize = 6;

/// Indents a text and wraps it to `columns`.
fn within(text: &str, indent: usize, columns: Option<usize>) -> String {
    let text = format!("{:indent$}{text}", "");
    columns.map_or_else(|| text.clone(), |columns| fit(&text, columns))
}

/// Renders the findings, wrapped to `columns`.
fn text(findings: &[Finding], fit: bool, columns: Option<usize>) -> String {
    let width = findings.iter().map(|f| f.check.len()).max().unwrap_or(0);
    let mut out = String::new();
    for f in findings {
        let (style, word) = match f.level {
            Level::Ok => (AnsiColor::Green.on_default(), "ok  "),
            Level::Info => (Style::new(), "info"),
            Level::Warn => (AnsiColor::Yellow.on_default().bold(), "warn"),
            Level::Fail => (AnsiColor::Red.on_default().bold(), "FAIL"),
        };
        let indent = WORD + width + 2;
        let beside = |text: &str| within(text, indent, columns);
        let means = paint(DIM, &beside(&f.means));
        let found = beside(&f.found);
        let found = found.trim_start();
        out.push_str(&format!("{}  {:<width$}  {found}\n{means}\n", paint(style, word), f.check));
        if let Some(remedy) = &f.remedy {
            out.push_str(&format!("{}\n", beside(&format!("how to fix it: {remedy}"))));
        }
    }
    out.push_str(match fit {
        true => "\nthis machine can run pods\n",
        false => "\nthis machine cannot run pods yet\n",
    });
    out
}
