//! `outrigger simulate`: simulates the life of a pod on a virtual clock.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use outrigger_lifecycle::{Plan, Severity, Time, explain, phase, trace};
use outrigger_manifest::{Diagnostic, ReadOptions, check_with_references, parse, to_json};
use outrigger_node::input::read_file;
pub(crate) use outrigger_simulate::ScriptDuration;
use outrigger_simulate::{Ending, Options, Script, StopScript, simulate};
use outrigger_view::analyze::analyze;
use outrigger_view::style::{HEADING, paint};
use outrigger_view::timeline::{Scale, Timeline, html};
use outrigger_view::trace::{trace_json, trace_records, trace_text};
use serde_json::{Value, json};

use crate::input::{InputArgs, ReadArgs};
use crate::outcome::{Failure, Outcome};
use crate::terminal;
use crate::value::ValueError;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger simulate job.yaml
  outrigger simulate web.yaml --stop-at 20s --grace-period 5
  outrigger simulate job.yaml --script crash.yaml --seed 7
  outrigger simulate job.yaml -o html > life.html

A script describes what the containers do and what goes wrong; everything in it is optional:
  containers:
    proxy: {ready_after: 3s, on_term: {ignore: true}}
    work: {runs: 5s, exit: 1, instances: [{}, {exit: 0}]}
  faults: {lose: 0.1, duplicate: 0.1, agent_restarts: [{at: 2s}]}

Without one, init containers exit after 0.1 s, mains after 1 s unless they always restart, and everything else \
runs until it is told to stop. A pod that would run forever is stopped after 30 s.

The same manifest, script and seed give the same trace, byte for byte.

Exit codes: 0 the pod ended, 1 it has errors, refers to a ConfigMap, Secret or key that is missing, or never ends, 2 the manifest or the script cannot be read.")]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// Script of what the containers do, YAML or JSON.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Seed for random choices.
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Stop the pod at this time, for example 20s.
    #[arg(long, value_parser = span, value_name = "TIME")]
    stop_at: Option<ScriptDuration>,
    /// Grace period of that stop in seconds, instead of the pod's own.
    #[arg(long, requires = "stop_at", value_name = "SECONDS")]
    grace_period: Option<u64>,
    /// Simulate only this pod, or the first pod of the object with this name.
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Draw time to scale; by default long pauses are drawn short.
    #[arg(long)]
    linear: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The trace and a timeline.
    Text,
    /// The trace as JSON.
    Json,
    /// The timeline as a picture.
    Svg,
    /// The timeline as a page, with advice.
    Html,
}

/// Parses a time on the command line: `20s`, `1m30s`, or a number of seconds.
pub(crate) fn span(text: &str) -> Result<ScriptDuration, ValueError> {
    ScriptDuration::parse(text).ok_or_else(|| ValueError::Time(text.to_owned()))
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let mut script = match &args.script {
        Some(file) => read_script(file)?,
        None => Script::default(),
    };
    if let Some(at) = args.stop_at {
        script.stops.push(StopScript { at, grace: args.grace_period.map(ScriptDuration::seconds) });
    }
    let sources = args.input.sources(&args.read)?;
    let manifest = match args.read.read(&sources) {
        Ok(manifest) => manifest,
        Err(refused) => return Err(Failure::Manifest(refused.0, sources)),
    };
    let mut checked = check_with_references(&manifest, &args.read.features());
    if let Some(name) = &args.pod {
        checked.retain(|c| c.pod.name() == name || c.pod.origin.name == *name);
        if checked.is_empty() {
            return Err(Failure::Input(anyhow!("no pod `{name}` in {}", args.input.names().join(", "))));
        }
    }
    let errors: Vec<Diagnostic> = checked
        .iter()
        .flat_map(|c| c.diagnostics.iter().filter(|d| d.severity == Severity::Error).cloned())
        .collect();
    if !errors.is_empty() {
        match args.output {
            // JSON is printed even if there are errors, because programs expect an answer.
            Output::Json => print_json(&[], &to_json(&errors, &sources))?,
            Output::Text | Output::Svg | Output::Html => terminal::diagnostics(&errors, &sources),
        }
        return Ok(Outcome::Findings);
    }
    let plans: Vec<&Plan> = checked.iter().filter_map(|c| Some(&c.planned.as_ref()?.plan)).collect();
    show(&args, &script, &plans)
}

fn print_json(pods: &[Value], findings: &Value) -> Result<(), Failure> {
    let all = json!({ "version": 1, "pods": pods, "findings": findings });
    terminal::print_plain(&format!("{all:#}\n"))?;
    Ok(())
}

fn show(args: &Args, script: &Script, plans: &[&Plan]) -> Result<Outcome, Failure> {
    if args.output == Output::Svg && plans.len() > 1 {
        let names: Vec<&str> = plans.iter().map(|p| p.pod.as_str()).collect();
        return Err(Failure::Input(anyhow!(
            "an SVG shows one pod, but there are {}: choose one with --pod, or use -o html",
            names.join(", ")
        )));
    }
    let scale = if args.linear { Scale::Linear } else { Scale::Compressed };
    let mut outcome = Outcome::Fine;
    let mut pods: Vec<Value> = Vec::new();
    let mut timelines: Vec<Timeline> = Vec::new();
    for plan in plans {
        let played = simulate(plan, script, args.seed, &Options::default())
            .map_err(|e| Failure::Input(anyhow::Error::from(e).context("the script does not fit the pod")))?;
        if played.ending != Ending::Finished {
            outcome = Outcome::Findings;
        }
        let name = phase(plan, &played.observation).name();
        let ended = ended(played.ending);
        let now = Time(played.duration_ms);
        let waits: Vec<(&str, String)> = played
            .waits
            .iter()
            .map(|&(c, wait)| {
                (plan.containers[c].name.as_str(), explain(plan, &played.observation, c, wait, now))
            })
            .collect();
        match args.output {
            Output::Html => timelines.push(page(plan, &played.trace)?),
            Output::Svg => terminal::print_plain(&Timeline::new(plan, &played.trace).svg(scale))?,
            Output::Json => pods.push(json!({
                "name": plan.pod,
                "seed": args.seed,
                "ending": ended.0,
                "phase": name,
                "durationMs": played.duration_ms,
                "containers": trace::containers(plan),
                "waits": waits.iter().map(|(c, why)| json!({"container": c, "text": why})).collect::<Vec<_>>(),
                "trace": trace_json(plan, &played.trace),
            })),
            Output::Text => {
                let heading = terminal::within_out_width(format!("Pod {}", plan.pod));
                let mut out = format!("{}\n", paint(HEADING, &heading));
                out.push_str(&trace_text(plan, &played.trace, terminal::out_width()));
                out.push('\n');
                out.push_str(&Timeline::new(plan, &played.trace).ascii(terminal::out_width().unwrap_or(terminal::WIDTH), scale));
                let took = outrigger_text::HumanDuration(played.duration_ms);
                let mut end = format!("\n{name}: {} after {took}, seed {}\n", ended.1, args.seed);
                for (container, why) in waits {
                    end.push_str(&format!("  `{container}` {why}\n"));
                }
                out.push_str(&terminal::within_out_width(end));
                terminal::print(&out)?;
            }
        }
    }
    if args.output == Output::Html {
        terminal::print_plain(&html(&timelines, scale))?;
    }
    if args.output == Output::Json {
        print_json(&pods, &json!([]))?;
    }
    Ok(outcome)
}

/// The timeline of a trace, marked with what the start and the stop waited for.
fn page(plan: &Plan, trace: &[trace::Entry]) -> Result<Timeline, Failure> {
    let mut timeline = Timeline::new(plan, trace);
    let analysis = analyze(&trace_records(plan, trace)).map_err(|e| Failure::Own(e.into()))?;
    timeline.mark(&analysis);
    Ok(timeline)
}

/// How the pod ended, as a name for programs and as a text.
fn ended(ending: Ending) -> (&'static str, &'static str) {
    match ending {
        Ending::Finished => ("finished", "ended"),
        Ending::AtRest => ("at-rest", "nothing more will happen, but it has not ended"),
        Ending::OutOfTime => ("out-of-time", "still running at the end of the simulation"),
        Ending::OutOfSteps => ("out-of-steps", "never settles"),
    }
}

fn read_script(file: &Path) -> Result<Script, Failure> {
    let source = read_file(file)?;
    let documents = parse(0, &source, &ReadOptions::default())
        .map_err(|refused| Failure::Manifest(refused.0, vec![source.clone()]))?;
    let script = match documents.as_slice() {
        [] => return Ok(Script::default()),
        [one] if one.root.is_null() => return Ok(Script::default()),
        [one] => serde_json::from_value(one.root.to_json()).map_err(anyhow::Error::from),
        _ => Err(anyhow!("a script is one document")),
    };
    script.with_context(|| format!("{} is not a script", source.name)).map_err(Failure::Input)
}
