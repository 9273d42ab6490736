//! `outrigger validate`: reports errors in manifests.

use std::path::PathBuf;

use clap::ValueEnum;
use outrigger_agent::options::OnFailure;
use outrigger_lifecycle::PodSecurityLevel;
use outrigger_manifest::{Diagnostic, Manifest, Partial, Severity, SourceFile, check, check_level, to_json};
use outrigger_node::read::{Machine, OciSettings, RuntimeKind, check_machine, class_of};
use serde_json::json;

use crate::input::{InputArgs, ReadArgs};
use crate::outcome::{Failure, Outcome};
use crate::runtime::given_or_default;
use crate::{runtime, terminal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger validate pod.yaml
  outrigger validate -R k8s/
  kubectl get deployment web -o yaml | outrigger validate --validate=ignore -
  outrigger validate --validate=strict -o json *.yaml
  outrigger validate --level restricted pod.yaml

Exit codes: 0 nothing wrong (or only warnings and notes), 1 errors (or warnings, with --validate=strict), 2 a file cannot be read.")]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
    /// Also check the pods against a Kubernetes Pod Security Standard, and refuse `rootfs:DIR` images.
    #[arg(long, value_enum, value_name = "LEVEL")]
    level: Option<LevelArg>,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LevelArg {
    /// Nothing that is known to give control of the host.
    Baseline,
    /// In addition, everything that hardens a pod.
    Restricted,
}

impl LevelArg {
    fn level(self) -> PodSecurityLevel {
        match self {
            LevelArg::Baseline => PodSecurityLevel::Baseline,
            LevelArg::Restricted => PodSecurityLevel::Restricted,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Text,
    /// JSON.
    Json,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let sources = args.input.sources(&args.read)?;
    // The valid parts are checked even if there are errors, so that one call shows all of them.
    let Partial { manifest, diagnostics, is_complete } = args.read.read_partial(&sources);
    let state_dir = std::env::var_os("OUTRIGGER_STATE_DIR").map(PathBuf::from);
    let state_dir = given_or_default(state_dir.as_deref()).ok();
    let runtime = Some(RuntimeKind::Embedded(oci_settings(&manifest)?));
    let machine = Machine { runtime, state_dir, on_failure: OnFailure::StopIfPermanent };
    let mut found: Vec<Diagnostic> =
        check(&manifest, &args.read.features()).into_iter().flat_map(|c| c.diagnostics).collect();
    found.extend(check_machine(&manifest, &machine));
    if let Some(level) = args.level {
        found.extend(check_level(&manifest, level.level()));
    }
    let diagnostics = combined(diagnostics, found, is_complete);
    let pods = manifest.pod_count();
    match args.output {
        Output::Json => {
            let all = json!({ "version": 1, "pods": pods, "findings": to_json(&diagnostics, &sources) });
            terminal::print(&format!("{all:#}\n"))?;
        }
        Output::Text => text(&diagnostics, &sources, pods)?,
    }
    let is_too_much = |d: &Diagnostic| d.severity >= Severity::Warning;
    let outcome = match args.read.is_strict() && diagnostics.iter().any(is_too_much) {
        true => Outcome::Findings,
        false => Outcome::of_diagnostics(&diagnostics),
    };
    Ok(outcome)
}

/// The runtime classes of this machine. They are needed only if a pod has one.
fn oci_settings(manifest: &Manifest) -> Result<OciSettings, Failure> {
    if manifest.pods.iter().all(|pod| class_of(pod).is_none()) {
        return Ok(OciSettings::default());
    }
    let file = std::env::var_os("OUTRIGGER_RUNTIMES").map(PathBuf::from);
    runtime::oci_settings(file.as_deref(), None)
}

/// Combines the findings about syntax and about meaning, sorted by position. If a text cannot be read,
/// findings about missing references are left out, because the object may be in that text.
fn combined(read: Vec<Diagnostic>, found: Vec<Diagnostic>, is_complete: bool) -> Vec<Diagnostic> {
    let is_told = |d: &Diagnostic| !d.follows_from(&read) && (is_complete || d.code != Some("reference"));
    let mut all: Vec<Diagnostic> = found.into_iter().filter(is_told).collect();
    all.extend(read);
    all.sort_by_key(|d| (d.span.is_none(), d.span));
    all
}

fn text(diagnostics: &[Diagnostic], sources: &[SourceFile], pods: usize) -> Result<(), Failure> {
    let mut out = terminal::diagnostics_text(diagnostics, sources);
    let count = |severity| diagnostics.iter().filter(|d| d.severity == severity).count();
    let several = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (errors, warnings, notes) = (count(Severity::Error), count(Severity::Warning), count(Severity::Note));
    let mut parts = Vec::new();
    if errors > 0 {
        parts.push(several(errors, "error"));
    }
    if warnings > 0 {
        parts.push(several(warnings, "warning"));
    }
    if notes > 0 {
        parts.push(several(notes, "note"));
    }
    if errors == 0 {
        parts.insert(0, format!("{} fine", several(pods, "pod")));
    }
    out.push_str(&format!("{}\n", parts.join(", ")));
    terminal::print(&out)?;
    Ok(())
}
