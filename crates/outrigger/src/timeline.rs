//! `outrigger timeline`: draws what happened in a run.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use outrigger_node::input::is_stdin;
use outrigger_view::events::{Events, read_events};
use outrigger_view::timeline::{Picture, Scale, draw};

use crate::outcome::{Failure, Outcome};
use crate::terminal;
use crate::value::ValueError;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger run --events events.jsonl job.yaml; outrigger timeline events.jsonl
  outrigger timeline events.jsonl -o html > timeline.html
  outrigger simulate job.yaml -o json | outrigger timeline - -o svg > life.svg

The pods of a Job or another workload are drawn on one axis, with the back-off between them.

The critical path, which the start and the stop waited for, is marked; `outrigger analyze` shows it as text.

Exit codes: 0 drawn, 2 the events cannot be read.")]
pub(crate) struct Args {
    /// Events from `run --events` or `simulate -o json`; `-` is standard input.
    #[arg(value_name = "EVENTS")]
    events: PathBuf,
    /// Draw only this pod, on an axis of its own.
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Draw time to scale; by default long pauses are drawn short.
    #[arg(long)]
    linear: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    output: Format,
}

/// How a timeline is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text, for a terminal.
    Text,
    /// A picture.
    Svg,
    /// A page with details on hover, and advice.
    Html,
}

impl Format {
    fn picture(self) -> Picture {
        match self {
            Format::Text => Picture::Text(terminal::out_width().unwrap_or(terminal::WIDTH)),
            Format::Svg => Picture::Svg,
            Format::Html => Picture::Html,
        }
    }
}

pub(crate) fn execute(args: Args) -> Result<Outcome, Failure> {
    let events = events(&args.events, args.pod.as_deref())?;
    let scale = if args.linear { Scale::Linear } else { Scale::Compressed };
    let drawn = draw(&events, args.output.picture(), scale).map_err(|e| Failure::Input(e.into()))?;
    match args.output {
        Format::Text => terminal::print(&drawn)?,
        Format::Svg | Format::Html => terminal::print_plain(&drawn)?,
    }
    Ok(Outcome::Fine)
}

/// Reads all events of a file, or those of one pod.
pub(crate) fn events(file: &Path, pod: Option<&str>) -> Result<Events, Failure> {
    let text = if is_stdin(file) {
        std::io::read_to_string(std::io::stdin().lock())
    } else {
        std::fs::read_to_string(file)
    };
    let name = if is_stdin(file) { "<stdin>".to_owned() } else { file.display().to_string() };
    let text = text.with_context(|| format!("cannot read {name}")).map_err(Failure::Input)?;
    let mut events =
        read_events(&text).with_context(|| format!("cannot use {name}")).map_err(Failure::Input)?;
    if let Some(wanted) = pod {
        let names: Vec<String> = events.pods.iter().map(|p| format!("`{}`", p.pod)).collect();
        if !events.keep_pod(wanted) {
            let all = names.join(", ");
            return Err(Failure::Input(anyhow!("no pod `{wanted}` in {name}; its pods: {all}")));
        }
    }
    Ok(events)
}

/// The picture a run writes at its end.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    path: PathBuf,
    picture: Picture,
}

impl Target {
    /// Chooses the format by the file name.
    pub(crate) fn parse(text: &str) -> Result<Target, ValueError> {
        let path = PathBuf::from(text);
        let picture = match path.extension().and_then(|e| e.to_str()) {
            Some("svg") => Picture::Svg,
            Some("html" | "htm") => Picture::Html,
            _ => return Err(ValueError::Picture(text.to_owned())),
        };
        Ok(Target { path, picture })
    }
}

/// The events of a run whose timeline is drawn at its end.
#[derive(Debug)]
pub(crate) struct Recording {
    target: Target,
    events: PathBuf,
    /// Whether the events file is temporary.
    passing: bool,
}

impl Recording {
    /// Uses the events file that the user named, otherwise a temporary one next to the picture. The temporary
    /// file is created at once: if that fails, the picture cannot be written either.
    pub(crate) fn new(target: Target, events: &mut Option<PathBuf>) -> anyhow::Result<Recording> {
        let passing = events.is_none();
        let events = events.get_or_insert_with(|| {
            let name = target.path.file_name().unwrap_or_default().to_string_lossy();
            target.path.with_file_name(format!(".{name}.{}.events", std::process::id()))
        });
        if passing {
            let path = target.path.display();
            std::fs::File::create(&*events).with_context(|| format!("cannot write {path}"))?;
        }
        Ok(Recording { events: events.clone(), target, passing })
    }

    /// The path of the picture.
    pub(crate) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Draws the events, if there are any. The summary of the run has already printed the path.
    pub(crate) fn draw(&self) -> anyhow::Result<()> {
        let text = match std::fs::read_to_string(&self.events) {
            // The run did not begin, and its error says why.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            text => text.with_context(|| format!("cannot read {}", self.events.display()))?,
        };
        if self.passing {
            // A remaining file does no harm.
            let _ = std::fs::remove_file(&self.events);
        }
        if text.is_empty() {
            return Ok(());
        }
        let path = self.target.path.display();
        let drawn = draw(&read_events(&text)?, self.target.picture, Scale::Compressed)?;
        std::fs::write(&self.target.path, drawn).with_context(|| format!("cannot write {path}"))
    }
}
