//! `outrigger plan`: shows what starts and stops when, and why.

use clap::ValueEnum;
use outrigger_manifest::check_with_references;
use outrigger_view::plan::{self, View};

use crate::input::{InputArgs, ReadArgs};
use crate::outcome::{Failure, Outcome};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger plan pod.yaml
  outrigger plan job.yaml -o svg > job.svg   a picture for the browser
  outrigger plan web.yaml -o mermaid         a diagram for Markdown
  outrigger plan web.yaml -o json | jq '.pods[].startStages'
  helm template chart | outrigger plan -

Exit codes: 0 fine, 1 a pod has errors, or refers to a ConfigMap, Secret or key that is missing, 2 the manifest cannot be read.")]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text.
    Text,
    /// JSON; see docs/reference/plan.md.
    Json,
    /// Mermaid flowcharts, one per pod.
    Mermaid,
    /// An SVG picture.
    Svg,
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let sources = args.input.sources(&args.read)?;
    let manifest = match args.read.read(&sources) {
        Ok(manifest) => manifest,
        Err(refused) => {
            if args.output == Output::Json {
                terminal::print(&format!("{:#}\n", plan::json(&[], &refused.0, &sources)))?;
            }
            return Err(Failure::Manifest(refused.0, sources));
        }
    };
    let checked = check_with_references(&manifest, &args.read.features());
    let views: Vec<View<'_>> = checked.iter().filter_map(View::new).collect();
    let out = match args.output {
        Output::Text => {
            let width = terminal::out_width().unwrap_or(terminal::WIDTH);
            views.iter().map(|view| plan::text(view, width)).collect::<Vec<_>>().join("\n")
        }
        Output::Json => format!("{:#}\n", plan::json(&checked, &manifest.warnings, &sources)),
        Output::Mermaid => views.iter().map(plan::mermaid).collect::<Vec<_>>().join("\n"),
        Output::Svg => plan::svg(&views),
    };
    // JSON is printed even without a plan, because programs expect an answer.
    if !views.is_empty() || args.output == Output::Json {
        terminal::print(&out)?;
    }
    let mut diagnostics = manifest.warnings.clone();
    diagnostics.extend(checked.iter().flat_map(|c| c.diagnostics.iter().cloned()));
    if args.output != Output::Json {
        terminal::diagnostics(&diagnostics, &sources);
    }
    Ok(Outcome::of_diagnostics(&diagnostics))
}
