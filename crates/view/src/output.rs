//! The output of a run: trace entries and the containers' own output.
//!
//! A separate thread writes it, so that a stopped terminal or a waiting pager never delays a pod.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use outrigger_lifecycle::trace::{ContainerEvent, LogStream, Record, TraceEvent, WorkloadRecord};
use outrigger_lifecycle::{Observation, Plan, Wait};
use outrigger_text::log_line::parse_line;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::chunk::Chunk;
pub use crate::chunk::Now;
use crate::line::{Line, Look, Paint, columns, wrap};
use crate::live::{self, Scene, Stage, Stdout};
use crate::summary::summary;
use crate::text::{fit_message, shorten};
use crate::words::{Sentence, Weight, tell};
use crate::{PodView, workload_words};
use outrigger_text::terminal::{safe_text, scrub};

/// The maximum width of the column of names in front of lines. Longer names extend beyond it.
const LABEL_MAX: usize = 24;
/// Workloads create pods while they run. The column of names then grows in steps of this size, so that it
/// rarely changes.
const LABEL_STEP: usize = 8;
/// The maximum length of a pod's name in front of lines.
const POD_NAME_MAX: usize = 18;
/// The maximum number of lines of an event above the view. The events file has the whole text.
const EVENT_LINES_MAX: usize = 8;
/// The width of `^C`, which terminals echo in front of a message.
const ECHO: usize = 2;
/// Messages are not wrapped to fewer columns than this, because they would be unreadable.
const MESSAGE_MIN: usize = 20;
/// Longer lines are shown in pieces.
const LINE_MAX: usize = 128 << 10;

/// The output format of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Lines for people: events on standard error, the containers' output on standard output.
    Plain,
    /// A view of all pods below the containers' output, which is updated continuously. It needs a terminal.
    Live,
    /// One JSON object per line, all on standard output.
    Json,
}

/// Which streams use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Colors {
    /// Whether standard output uses colours.
    pub out: bool,
    /// Whether standard error uses colours.
    pub err: bool,
}

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// Events and the containers' own output.
    All,
    /// The containers' own output and failures.
    Quiet,
}

/// The names in front of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Labels {
    /// The container, because there is only one pod.
    Container,
    /// The pod and the container.
    PodAndContainer,
}

/// How a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputOptions {
    /// The output format.
    pub format: Format,
    /// How much is shown.
    pub verbosity: Verbosity,
    /// The names in front of lines.
    pub labels: Labels,
    /// Which streams use colours.
    pub colors: Colors,
}

/// The beginnings of incomplete lines, by pod and container.
type Partials = BTreeMap<(String, String), Vec<u8>>;

/// The output of a run. Clones are cheap and share the same output.
#[derive(Clone)]
pub struct Output {
    format: Format,
    verbosity: Verbosity,
    labels: Labels,
    colors: Colors,
    /// Whether standard output is a terminal. If so, control sequences of containers are removed.
    is_terminal: bool,
    tx: mpsc::Sender<Chunk>,
    stage: Stage,
    /// Incomplete lines, by pod and container.
    partial: Arc<Mutex<Partials>>,
    /// The time zone. It is read when the first time of day is shown, because finding it means looking
    /// through all time zones.
    zone: Arc<OnceLock<jiff::tz::TimeZone>>,
    /// Whether entries are kept for the closing summary.
    remembers: bool,
}

impl Output {
    /// Keeps nothing for a closing summary, for processes that run without an end.
    #[must_use]
    pub fn without_summary(mut self) -> Self {
        self.remembers = false;
        self
    }

    /// Creates output to standard output and standard error.
    ///
    /// # Errors
    /// The thread cannot be started, or the terminal cannot be used.
    pub fn new(options: OutputOptions) -> io::Result<Self> {
        if options.format == Format::Live {
            let terminal = Stdout::open()?;
            let look = Look { colors: options.colors.out, unicode: speaks_unicode() };
            return Output::with(options, move |rx, stage| live::run(rx, &stage, look, terminal));
        }
        let (mut out, mut err) = (io::stdout(), io::stderr());
        let is_terminal = out.is_terminal();
        let mut lost = false;
        let output = Output::plain(options, move |chunk| match chunk {
            Chunk::Out(..) if lost => Ok(()),
            Chunk::Out(bytes, _) => match out.write_all(bytes).and_then(|()| out.flush()) {
                // A closed pipe means that the reader needs no more output. Other errors lose output, so they
                // are reported.
                Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                    lost = true;
                    writeln!(err, "error: output is lost: cannot write to standard output: {e}")
                }
                written => written,
            },
            Chunk::Err(bytes) | Chunk::Close(bytes, _) => err.write_all(bytes),
            Chunk::Changed | Chunk::Continued => Ok(()),
        })?;
        Ok(Output { is_terminal, ..output })
    }

    fn plain(
        options: OutputOptions,
        mut write: impl FnMut(&Chunk) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        Output::with(options, move |rx, _| {
            // The reader may close our output at any time. The pods continue.
            let mut broken = false;
            for chunk in rx {
                if !broken {
                    broken = write(&chunk).is_err();
                }
                if let Chunk::Close(_, done) = chunk {
                    // The waiting task may be gone.
                    let _ = done.send(());
                }
            }
        })
    }

    fn with(
        options: OutputOptions,
        work: impl FnOnce(mpsc::Receiver<Chunk>, Stage) + Send + 'static,
    ) -> io::Result<Self> {
        let OutputOptions { format, verbosity, labels, colors } = options;
        let (tx, rx) = mpsc::channel::<Chunk>();
        let stage = Stage::default();
        let watched = stage.clone();
        std::thread::Builder::new()
            .name("output".into())
            .stack_size(256 << 10)
            .spawn(move || work(rx, watched))?;
        let is_terminal = format == Format::Live;
        Ok(Output {
            format,
            verbosity,
            labels,
            colors,
            is_terminal,
            tx,
            stage,
            partial: Arc::default(),
            zone: Arc::default(),
            remembers: true,
        })
    }

    /// Sets the clock of the run and, for a live view, starts to watch the terminal.
    ///
    /// # Errors
    /// The terminal cannot be watched.
    pub fn begin(&self, now: Now) -> io::Result<()> {
        self.stage.set_clock(now);
        match self.format {
            Format::Live => self.watch_terminal(),
            Format::Plain | Format::Json => Ok(()),
        }
    }

    /// Adds a pod and the workload it belongs to. Pods are shown in the order in which they were added.
    pub fn join(&self, pod: &str, workload: Option<String>, plan: &Plan) {
        if !self.remembers {
            return;
        }
        let mut scene = self.stage.scene();
        scene.ledger.join(pod, plan);
        let own = columns(&self.label(pod, None));
        let labels = plan.containers.iter().map(|c| columns(&self.label(pod, Some(&c.name))));
        let widest = labels.fold(own, usize::max);
        match &workload {
            Some(workload) if self.labels == Labels::PodAndContainer => {
                widen_in_steps(&mut scene, widest.max(columns(workload)));
            }
            _ => scene.label = scene.label.max(widest.min(LABEL_MAX)),
        }
        if self.format != Format::Live {
            return;
        }
        let now = self.stage.now();
        let mut view = PodView::new(pod.into(), Arc::new(plan.clone()), now);
        view.workload = workload.map(Into::into);
        scene.pods.push(view);
        drop(scene);
        self.changed();
    }

    fn watch_terminal(&self) -> io::Result<()> {
        let mut resized = signal(SignalKind::window_change())?;
        let mut continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
        let output = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = resized.recv() => output.send(Chunk::Changed),
                    _ = continued.recv() => output.send(Chunk::Continued),
                }
            }
        });
        let output = self.clone();
        // The thread ends with the process, because a read from the keyboard cannot be cancelled.
        std::thread::Builder::new()
            .name("keys".into())
            .stack_size(64 << 10)
            .spawn(move || live::wait_for_keys(|| output.send(Chunk::Changed)))?;
        Ok(())
    }

    /// Updates the state of a pod.
    pub fn observe(&self, pod: usize, obs: &Arc<Observation>, waits: &Arc<[(usize, Wait)]>) {
        if self.format != Format::Live {
            return;
        }
        if let Some(view) = self.stage.scene().pods.get_mut(pod) {
            view.obs = obs.clone();
            view.waits = waits.clone();
        }
        self.changed();
    }

    /// Updates the progress of pulling an image.
    pub fn pull(&self, pod: usize, container: usize, done_bytes: u64, total_bytes: Option<u64>) {
        let mut scene = self.stage.scene();
        let pull = scene.pods.get_mut(pod).and_then(|view| view.pulls.get_mut(container));
        if let Some(pull) = pull {
            *pull = Some((done_bytes, total_bytes));
            drop(scene);
            self.changed();
        }
    }

    /// Whether there is a live view.
    pub fn is_live(&self) -> bool {
        self.format == Format::Live
    }

    fn is_quiet(&self) -> bool {
        self.verbosity == Verbosity::Quiet
    }

    fn changed(&self) {
        if self.stage.must_tell() {
            self.send(Chunk::Changed);
        }
    }

    /// Adds a file to the summary, with a description and its path.
    pub fn mention(&self, what: &str, path: &Path) {
        self.stage.scene().written.push((what.to_owned(), path.display().to_string()));
    }

    /// Removes a file from the summary, because it could not be written.
    pub fn retract(&self, what: &str) {
        self.stage.scene().written.retain(|(known, _)| known != what);
    }

    /// Shows one trace entry of a pod.
    pub fn entry(&self, pod: usize, exact: Duration, record: &Record) {
        let ms = u64::try_from(exact.as_millis()).unwrap_or(u64::MAX);
        if self.remembers {
            self.stage.scene().ledger.enter(pod, ms, record);
        }
        let sentence = match self.format {
            Format::Json => {
                if !self.is_quiet() {
                    self.send(Chunk::Out(self.json_line(&record.to_json()), None));
                }
                return;
            }
            Format::Plain | Format::Live => tell(record),
        };
        let container = record.container.as_deref();
        self.show(exact, &self.label(&record.pod, container), container, sentence);
    }

    /// Shows one trace entry of a workload.
    pub fn workload_entry(&self, exact: Duration, record: &WorkloadRecord) {
        if self.remembers {
            let ms = u64::try_from(exact.as_millis()).unwrap_or(u64::MAX);
            self.stage.scene().ledger.enter_workload(ms, record);
        }
        match self.format {
            Format::Json if self.is_quiet() => {}
            Format::Json => self.send(Chunk::Out(self.json_line(&record.to_json()), None)),
            Format::Plain | Format::Live => {
                // With a single pod, only the workload's own lines extend beyond the column. The names of its
                // containers stay short.
                if self.remembers && self.labels == Labels::PodAndContainer {
                    // Lines with the names of its pods will follow.
                    let expected = columns(&record.workload).max(2 * LABEL_STEP);
                    widen_in_steps(&mut self.stage.scene(), expected);
                }
                self.show(exact, &record.workload, None, Some(workload_words::tell(record)));
            }
        }
    }

    fn json_line(&self, object: &Value) -> Vec<u8> {
        let line = format!("{object}\n");
        match self.is_terminal {
            true => safe_text(&line).into_owned().into_bytes(),
            false => line.into_bytes(),
        }
    }

    fn show(&self, exact: Duration, label: &str, container: Option<&str>, sentence: Option<Sentence>) {
        let least = match self.format {
            _ if self.is_quiet() => Weight::Trouble,
            Format::Live => Weight::Notable,
            _ => Weight::Routine,
        };
        if let Some(sentence) = sentence.filter(|t| t.weight >= least) {
            self.send(Chunk::Err(self.event_line(exact, label, container, &sentence).into_bytes()));
        }
    }

    fn event_line(
        &self,
        exact: Duration,
        label: &str,
        container: Option<&str>,
        sentence: &Sentence,
    ) -> String {
        let (place, width) = {
            let scene = self.stage.scene();
            (container.map(|c| scene.ledger.place(c)), scene.label)
        };
        let mut line = Line::new();
        let look = match self.format {
            Format::Live => Look { colors: self.colors.out, unicode: speaks_unicode() },
            _ => {
                line.push(Paint::Dim, &format!("{} ", self.clock(exact)));
                Look { colors: self.colors.err, unicode: true }
            }
        };
        let fill = " ".repeat(width.saturating_sub(columns(label)));
        line.push(place.map_or(Paint::Bold, Paint::Name), label);
        line.push(Paint::Dim, &fill);
        line.push(Paint::Dim, if self.format == Format::Live { " · " } else { "  " });
        let paint = match sentence.weight {
            Weight::Trouble => Paint::Bad,
            _ if self.format == Format::Live => Paint::Dim,
            _ => Paint::Plain,
        };
        let indent = line.width();
        let told_lines = |text: &str| match self.format {
            Format::Live => {
                let room = live::size().columns.saturating_sub(indent + 1).max(16);
                wrap(text, room, EVENT_LINES_MAX)
            }
            _ => vec![text.to_owned()],
        };
        let mut lines = String::new();
        for (text, paint) in [(Some(&sentence.text), paint), (sentence.hint.as_ref(), Paint::Bold)] {
            for text in text.iter().flat_map(|text| told_lines(text)) {
                line.push(paint, &text);
                lines.push_str(&format!("{}\n", line.render(look)));
                line = Line::of_text(Paint::Plain, &" ".repeat(indent));
            }
        }
        lines
    }

    /// The name in front of a line.
    fn label(&self, pod: &str, container: Option<&str>) -> String {
        // Lines in a file or a pipe have no width limit, and users search them for whole names.
        let pod = match self.format {
            Format::Live => shorten(pod, POD_NAME_MAX),
            Format::Plain | Format::Json => pod.to_owned(),
        };
        match (container, self.labels) {
            (Some(container), Labels::Container) => container.to_owned(),
            (Some(container), Labels::PodAndContainer) => format!("{pod}/{container}"),
            (None, Labels::Container) => "pod".to_owned(),
            (None, Labels::PodAndContainer) => pod,
        }
    }

    /// Shows a line about the run as a whole.
    pub fn note(&self, text: &str) {
        if !self.is_quiet() {
            self.send(Chunk::Err(on_stderr(format!("{}\n", safe_text(text))).into_bytes()));
        }
    }

    /// Shows a warning about the run, even if only warnings and errors are wanted.
    pub fn warn(&self, text: &str) {
        self.send(Chunk::Err(on_stderr(format!("warning: {}\n", safe_text(text))).into_bytes()));
    }

    /// A writer for messages of the process itself that does not disturb the view.
    pub fn writer(&self) -> Messages {
        Messages(self.clone())
    }

    fn clock(&self, exact: Duration) -> String {
        let nanos = i128::try_from(exact.as_nanos()).unwrap_or(0);
        match jiff::Timestamp::from_nanosecond(nanos) {
            Ok(at) => {
                let zone = self.zone.get_or_init(jiff::tz::TimeZone::system);
                at.to_zoned(zone.clone()).strftime("%H:%M:%S%.3f").to_string()
            }
            Err(_) => String::new(),
        }
    }

    /// Shows whole lines of a log in CRI format. `room` is dropped after they are written. The sender can
    /// wait for this, so that a slow reader does not fill the memory.
    pub fn log(&self, pod: &str, container: &str, lines: &[u8], room: impl Send + 'static) {
        let bytes = match self.format {
            Format::Plain | Format::Live => self.plain_log(pod, container, lines),
            Format::Json if self.is_terminal => {
                let text = String::from_utf8_lossy(&json_log(pod, container, lines)).into_owned();
                safe_text(&text).into_owned().into_bytes()
            }
            Format::Json => json_log(pod, container, lines),
        };
        if !bytes.is_empty() {
            self.send(Chunk::Out(bytes, Some(Box::new(room))));
        }
    }

    fn plain_log(&self, pod: &str, container: &str, lines: &[u8]) -> Vec<u8> {
        let label = self.label(pod, Some(container));
        let prefix = {
            let scene = self.stage.scene();
            let fill = match self.is_live() {
                true => scene.label.saturating_sub(columns(&label)),
                false => 0,
            };
            let bar = format!("{label}{} |", " ".repeat(fill));
            Paint::Name(scene.ledger.place(container)).text(&bar, self.colors.out)
        };
        let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = partial.entry((pod.to_owned(), container.to_owned())).or_default();
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|b| *b == b'\n').filter_map(parse_line) {
            begun.extend_from_slice(line.text);
            if line.partial && begun.len() < LINE_MAX {
                continue;
            }
            out.extend_from_slice(prefix.as_bytes());
            out.push(b' ');
            match self.is_terminal {
                true => {
                    out.extend_from_slice(scrub(begun, self.colors.out).as_bytes());
                    begun.clear();
                }
                false => out.append(begun),
            }
            out.push(b'\n');
        }
        out
    }

    fn send(&self, chunk: Chunk) {
        // The writer ends only after all senders are dropped.
        let _ = self.tx.send(chunk);
    }

    /// Prints the summary and waits until everything is written.
    pub async fn finish(&self) {
        let summary = match self.format {
            _ if self.is_quiet() => String::new(),
            Format::Json => String::new(),
            Format::Plain => self.summary(usize::MAX, self.colors.err, true),
            Format::Live => {
                self.summary(live::size().columns.saturating_sub(1), self.colors.out, speaks_unicode())
            }
        };
        self.stage.close();
        let (done, wait) = oneshot::channel();
        self.send(Chunk::Close(summary.into_bytes(), done));
        let _ = wait.await;
    }

    fn summary(&self, width: usize, colors: bool, unicode: bool) -> String {
        let scene = self.stage.scene();
        let lines = summary(&scene.ledger, &scene.written, width);
        lines.iter().map(|line| format!("{}\n", line.render(Look { colors, unicode }))).collect()
    }
}

/// Widens the column for the name of a workload or one of its pods.
fn widen_in_steps(scene: &mut Scene, widest: usize) {
    scene.label = scene.label.max(widest.next_multiple_of(LABEL_STEP).min(LABEL_MAX));
}

/// Prepares a message for standard error: wrapped on a terminal, unchanged in a file or a pipe.
fn on_stderr(message: String) -> String {
    match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
        Ok(size) if size.ws_col > 0 => {
            fit_message(&message, usize::from(size.ws_col).saturating_sub(ECHO).max(MESSAGE_MIN))
        }
        _ => message,
    }
}

/// Writes messages of the process itself, each as a whole. They go above the live view if there is one,
/// otherwise to standard error.
pub struct Messages(Output);

impl Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let safe = on_stderr(safe_text(&text).into_owned());
        match self.0.is_live() && !self.0.stage.is_closed() {
            true => self.0.send(Chunk::Err(safe.into_bytes())),
            false => io::stderr().write_all(safe.as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the terminal can show more than ASCII, according to the environment.
#[allow(clippy::disallowed_methods, reason = "a property of the terminal that is written to")]
fn speaks_unicode() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    // If nothing is set, all terminals can, except the Linux console.
    let locale = locale.map(|l| l.to_lowercase());
    locale.is_none_or(|l| l.contains("utf-8") || l.contains("utf8"))
        && set("TERM").as_deref() != Some("linux")
}

fn json_log(pod: &str, container: &str, lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len() * 2);
    for line in lines.split_inclusive(|b| *b == b'\n').filter_map(parse_line) {
        let text = String::from_utf8_lossy(line.text).into_owned();
        let stream = if line.stream == "stderr" { LogStream::Stderr } else { LogStream::Stdout };
        let record = Record {
            time: line.time.to_owned(),
            pod: pod.to_owned(),
            container: Some(container.to_owned()),
            event: TraceEvent::Container(ContainerEvent::Log { stream, partial: line.partial, text }),
            manifest: None,
            hint: None,
        };
        out.extend_from_slice(record.to_json().to_string().as_bytes());
        out.push(b'\n');
    }
    out
}

/// Captured output, for tests.
#[derive(Clone, Default)]
pub struct Shown(Arc<Mutex<Vec<u8>>>);

impl Shown {
    /// All output so far.
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Output {
    /// Creates output that is captured, for tests.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn captured(format: Format, verbosity: Verbosity) -> io::Result<(Self, Shown)> {
        let shown = Shown::default();
        let kept = shown.clone();
        let (labels, colors) = (Labels::Container, Colors::default());
        let options = OutputOptions { format, verbosity, labels, colors };
        let output = Output::plain(options, move |chunk| {
            if let Chunk::Out(bytes, _) | Chunk::Err(bytes) | Chunk::Close(bytes, _) = chunk {
                kept.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            }
            Ok(())
        })?;
        Ok((output, shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_lifecycle::trace::Line as TraceLine;
    use serde_json::json;

    fn record(entry: Value) -> Record {
        TraceLine::from_json(&entry).unwrap().pod().unwrap()
    }

    #[tokio::test]
    async fn json_has_one_object_a_line() {
        let (output, shown) = Output::captured(Format::Json, Verbosity::All).unwrap();
        output.entry(0, Duration::ZERO, &record(json!({"event": "started"})));
        let lines = b"2024-01-01T00:00:00Z stdout F a\n2024-01-01T00:00:01Z stderr F b\n".to_vec();
        output.log("p", "c", &lines, ());
        output.finish().await;
        let text = shown.text();
        let objects: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(objects.len(), 3);
        assert_eq!((&objects[1]["stream"], &objects[2]["text"]), (&json!("stdout"), &json!("b")));
    }

    #[tokio::test]
    async fn a_terminal_does_not_obey_containers() {
        let hostile = b"2024-01-01T00:00:00Z stdout F a\x1b[2J\x1b]0;t\x07b\xc2\x9b1m\n".to_vec();
        for (format, is_terminal, expected) in
            [(Format::Plain, false, "c | a\x1b[2J\x1b]0;t\x07b\u{9b}1m\n"), (Format::Plain, true, "c | ab\n")]
        {
            let (output, shown) = Output::captured(format, Verbosity::Quiet).unwrap();
            let output = Output { is_terminal, ..output };
            output.log("p", "c", &hostile, ());
            output.note("never shown when quiet");
            output.finish().await;
            assert_eq!(shown.text(), expected);
        }
        let (output, shown) = Output::captured(Format::Json, Verbosity::All).unwrap();
        let output = Output { is_terminal: true, ..output };
        output.log("p", "c", &hostile, ());
        output.entry(
            0,
            Duration::ZERO,
            &record(json!({"event": "hook-output", "hook": "preStop", "output": "\u{202e}"})),
        );
        output.finish().await;
        let text = shown.text();
        assert!(text.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}')), "{text:?}");
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text:?}");
    }

    #[tokio::test]
    async fn labels_are_short_and_name_the_pod_only_where_there_are_several() {
        let lines = b"2024-01-01T00:00:00Z stdout F a\n".to_vec();
        let pod = "checkout-frontend-7d4b9c6f5d-x7k2p";
        for (labels, expected) in [
            (Labels::Container, "app | a\n"),
            (Labels::PodAndContainer, "checkout-frontend-7d4b9c6f5d-x7k2p/app | a\n"),
        ] {
            let (mut output, shown) = Output::captured(Format::Plain, Verbosity::Quiet).unwrap();
            output.labels = labels;
            output.log(pod, "app", &lines, ());
            output.finish().await;
            assert_eq!(shown.text(), expected);
        }
    }

    #[tokio::test]
    async fn events_of_a_workload_and_its_pods_are_aligned() {
        let pod = json!({"metadata": {"name": "jf-x7k2p"}, "spec": {"containers": [{"name": "main"}, {"name": "log"}]}});
        let input = outrigger_lifecycle::PodInput {
            pod: serde_json::from_value(pod).unwrap(),
            ..outrigger_lifecycle::PodInput::default()
        };
        let plan =
            outrigger_lifecycle::plan(&input, &outrigger_lifecycle::FeatureGates::default()).unwrap().plan;
        let (mut output, shown) = Output::captured(Format::Plain, Verbosity::All).unwrap();
        output.labels = Labels::PodAndContainer;
        let created = json!({"workload": "Job/jf", "event": "pod-created", "pod": "jf-x7k2p"});
        let TraceLine::Workload(created) = TraceLine::from_json(&created).unwrap() else {
            panic!("a workload")
        };
        for name in ["jf-x7k2p", "jf-b3k9z"] {
            output.workload_entry(Duration::ZERO, &created);
            output.join(name, Some("Job/jf".to_owned()), &plan);
            output.entry(
                0,
                Duration::ZERO,
                &record(json!({"pod": name, "event": "sandbox-creating", "attempt": 0})),
            );
            for container in ["main", "log"] {
                let entry = json!({"pod": name, "container": container, "event": "started"});
                output.entry(0, Duration::ZERO, &record(entry));
            }
        }
        output.finish().await;
        let text = shown.text();
        let column = |line: &str| ["created", "creating", "running"].iter().find_map(|word| line.find(word));
        let columns: Vec<usize> = text.lines().filter_map(column).collect();
        assert_eq!(columns.len(), 8, "{text}");
        assert!(columns.iter().all(|at| *at == columns[0]), "{text}");
    }

    #[tokio::test]
    async fn quiet_leaves_the_containers_output() {
        let (output, shown) = Output::captured(Format::Plain, Verbosity::Quiet).unwrap();
        output.entry(0, Duration::ZERO, &record(json!({"event": "started"})));
        output.log("p", "c", b"2024-01-01T00:00:00Z stdout F a\n", ());
        output.finish().await;
        assert_eq!(shown.text(), "c | a\n");
    }

    #[tokio::test]
    async fn quiet_leaves_what_goes_wrong() {
        let (output, shown) = Output::captured(Format::Plain, Verbosity::Quiet).unwrap();
        for code in [0, 3] {
            let entry = json!({"pod": "p", "container": "c", "event": "exited", "code": code, "ran_ms": 7});
            output.entry(0, Duration::ZERO, &record(entry));
        }
        output.finish().await;
        assert!(shown.text().ends_with(" c  exited with code 3 after 7 ms\n"), "{}", shown.text());
        assert_eq!(shown.text().lines().count(), 1);
    }
}
