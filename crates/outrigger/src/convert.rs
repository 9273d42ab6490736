//! `outrigger convert`: rewrites a pod in another dialect.

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use outrigger_lifecycle::convert::Target;
use outrigger_manifest::convert::{ConvertError, convert};
use outrigger_manifest::{Diagnostic, Format, Severity, SourceFile, check, in_format};

use crate::input::{InputArgs, ReadArgs};
use crate::outcome::{Failure, Outcome};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger convert job.yaml --to native
  outrigger convert web.yaml --to depends-on --output-file web-ordered.yaml
  outrigger convert pod.yaml --to kep --lossy 2>losses.txt

Comments, field order and everything else that does not order containers stay as they are. What \
the other dialect cannot express is reported on standard error.

Exit codes: 0 converted, 1 something would be lost (nothing is written, unless --lossy), 2 the manifest cannot be read or has errors.")]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// The dialect to write.
    #[arg(long, value_enum, value_name = "DIALECT")]
    to: To,
    /// Convert even if something is lost.
    #[arg(long)]
    lossy: bool,
    /// Output format; that of the manifest by default. In the other one, comments are lost.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// Write to a file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

impl Output {
    fn format(self) -> Format {
        match self {
            Output::Yaml => Format::Yaml,
            Output::Json => Format::Json,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum To {
    /// Sidecars are init containers with `restartPolicy: Always`.
    Native,
    /// Sidecars are containers with `lifecycle.type: Sidecar`.
    Kep,
    /// OpenKruise's launch priorities, and its sidecar terminator in pods that end; also `terminator`.
    #[value(alias = "terminator")]
    Priority,
    /// The annotation outrigger.dev/depends-on.
    DependsOn,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let target = match args.to {
        To::Native => Target::Native,
        To::Kep => Target::Kep,
        To::Priority => Target::Priority,
        To::DependsOn => Target::DependsOn,
    };
    let sources = args.input.sources(&args.read)?;
    let [source] = sources.as_slice() else {
        return Err(Failure::Input(anyhow!(
            "one manifest is converted at a time, these are {}",
            sources.len()
        )));
    };
    let manifest = match args.read.read(&sources) {
        Ok(manifest) => manifest,
        Err(refused) => return Err(Failure::Manifest(refused.0, sources)),
    };
    let checked = check(&manifest, &args.read.features());
    let errors: Vec<Diagnostic> = checked
        .iter()
        .flat_map(|c| c.diagnostics.iter().filter(|d| d.severity == Severity::Error).cloned())
        .collect();
    if !errors.is_empty() {
        return Err(Failure::Manifest(errors, sources));
    }
    let (options, features) = (args.read.options().manifest_options(), args.read.features());
    let converted = convert(&source.text, &checked, target, &options, &features).map_err(|e| match e {
        ConvertError::Unreadable(_) => Failure::Own(e.into()),
        ConvertError::Edit(_) | ConvertError::NotExpressible { .. } => Failure::Input(e.into()),
    })?;
    let severity = if args.lossy { Severity::Warning } else { Severity::Error };
    let losses: Vec<Diagnostic> = converted.losses(severity);
    terminal::diagnostics(&losses, &sources);
    for note in &converted.notes {
        terminal::note(note);
    }
    if !losses.is_empty() && !args.lossy {
        terminal::note("nothing was written; use `--lossy` to convert anyway");
        return Ok(Outcome::Findings);
    }
    let format = args.output.map_or_else(|| Format::of(&converted.text), Output::format);
    let text = in_format(&converted.text, format, &options).map_err(|refused| {
        Failure::Manifest(refused.0, vec![SourceFile::new("result", converted.text.as_str())])
    })?;
    match args.output_file {
        Some(file) => std::fs::write(&file, &text)
            .with_context(|| format!("cannot write {}", file.display()))
            .map_err(Failure::Input)?,
        None => terminal::print_plain(&text)?,
    }
    Ok(Outcome::Fine)
}
