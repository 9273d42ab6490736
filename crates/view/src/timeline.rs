//! Draws a trace as a picture with one lane per container. The pods of a workload share one picture and one
//! time axis.
//!
//! The input is a trace, from a simulation or from a file of `run --events`.

mod ascii;
mod draw;
mod page;
mod svg;
mod workload;

use std::collections::BTreeMap;
use std::ops::Range;

use outrigger_lifecycle::trace::{
    ContainerEvent, Entry, OpenedGate, PlannedContainer, PodEvent, Record, TraceEvent, WaitReason,
};
use outrigger_lifecycle::{ExitReason, Need, Plan, ProbeKind, ProbeOutcome};

use crate::analyze::{Analysis, LinkKind};
use crate::timed::{Line, lines};

pub use crate::timed::TimelineError;
pub use draw::{Picture, draw};
pub use page::{html, svg};

/// How time is mapped to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Long pauses are shortened, so that short events stay visible.
    Compressed,
    /// Positions are proportional to time.
    Linear,
}

/// The kind of a bar in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pull,
    Start,
    /// The container runs and is not ready.
    Run,
    Ready,
    /// The container is being stopped.
    Stop,
    Backoff,
    Hook,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) kind: Kind,
    pub(crate) title: String,
}

/// The kind of a mark in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    Term,
    Kill,
    Completed,
    Failed,
    Trouble,
    /// A successful probe whose result changed something.
    ProbePassed,
    ProbeFailed,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mark {
    pub(crate) at: u64,
    pub(crate) sign: Sign,
    pub(crate) title: String,
}

/// What a lane shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Subject {
    #[default]
    Container,
    /// A pod of a workload. The lanes of its containers follow.
    Pod,
    /// The waits of a workload between its pods.
    Workload,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lane {
    pub(crate) subject: Subject,
    pub(crate) name: String,
    /// The role of a container, or another word about the lane.
    pub(crate) role: Option<String>,
    pub(crate) bars: Vec<Bar>,
    pub(crate) marks: Vec<Mark>,
    /// The phases of a pod, each with the time it began.
    pub(crate) phases: Vec<(u64, String)>,
}

/// A gate that opened and allowed a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) from: usize,
    pub(crate) opened: u64,
    pub(crate) to: usize,
    pub(crate) started: u64,
    pub(crate) need: Need,
}

/// A part of a lane that everything after it waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Critical {
    /// The lane. `None` for the sandbox of a pod that has no lane.
    pub(crate) lane: Option<usize>,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) title: String,
}

/// The grace period of a stop, shared by all containers of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grace {
    pub(crate) from: u64,
    /// The end of the grace period, or of the pod.
    pub(crate) to: u64,
    pub(crate) grace_ms: u64,
    /// The lanes of the pod.
    pub(crate) lanes: Range<usize>,
}

/// The moment at which a pod began to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Halt {
    pub(crate) at: u64,
    pub(crate) cause: String,
    /// The lanes of the pod.
    pub(crate) lanes: Range<usize>,
}

/// A trace with its layout.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    /// The pod, or the workload and all its pods, such as `report` or `Job report`.
    pub(crate) title: String,
    pub(crate) lanes: Vec<Lane>,
    /// The times in which its sandbox was created. Pods with a lane of their own have them there.
    pub(crate) sandbox: Vec<Bar>,
    pub(crate) openings: Vec<Opening>,
    /// The phases, each with the time it began. Pods with a lane of their own have them there.
    pub(crate) phases: Vec<(u64, String)>,
    /// When and why pods began to stop.
    pub(crate) stops: Vec<Halt>,
    pub(crate) graces: Vec<Grace>,
    pub(crate) critical: Vec<Critical>,
    /// Advice on making the pod faster, one sentence each.
    pub(crate) advice: Vec<String>,
    /// The times of all events, sorted.
    pub(crate) moments: Vec<u64>,
}

impl Timeline {
    /// Creates the timeline of a trace, with lanes in the order of the plan.
    pub fn new(plan: &Plan, entries: &[Entry]) -> Timeline {
        let mut builder = Builder::new(&plan.pod);
        for c in &plan.containers {
            let lane = builder.lane(&c.name);
            builder.timeline.lanes[lane].role = Some(c.role.name().to_owned());
        }
        for entry in entries {
            builder.line(&Line {
                at: entry.time.0,
                container: entry.container.map(|c| plan.containers[c].name.as_str()),
                event: &entry.event,
            });
        }
        builder.finish()
    }

    /// Creates the timeline of a trace from a file. Lanes are in the order of the plan if the trace begins
    /// with it (`planned`), otherwise in the order in which containers appear. Only the first pod of the
    /// trace is used. [`crate::events`] splits files with several pods.
    pub fn read(entries: &[Record]) -> Result<Timeline, TimelineError> {
        Timeline::since(entries, None)
    }

    /// Creates a timeline whose axis begins at `zero`, in milliseconds. `None` means at the first entry.
    fn since(entries: &[Record], zero: Option<u64>) -> Result<Timeline, TimelineError> {
        let pod = entries.first().map(|e| e.pod.as_str()).unwrap_or_default();
        let mut builder = Builder::new(pod);
        for line in lines(entries, zero)? {
            builder.line(&line);
        }
        Ok(builder.finish())
    }

    /// Marks what the start and the stop waited for. Keeps the advice for the page.
    pub fn mark(&mut self, analysis: &Analysis) {
        let began = analysis.began_ms;
        self.advice = analysis.advice.iter().map(|advice| advice.text.clone()).collect();
        let links =
            analysis.start.iter().flat_map(|s| &s.chain).chain(analysis.stop.iter().flat_map(|s| &s.chain));
        for link in links {
            let lane = |name: &String| self.lanes.iter().position(|l| l.name == *name);
            let lane = match &link.container {
                Some(name) if lane(name).is_none() => continue,
                Some(name) => lane(name),
                None if link.kind == LinkKind::Sandbox => None,
                None => continue,
            };
            self.critical.push(Critical {
                lane,
                from: began + link.from_ms,
                to: began + link.to_ms,
                title: link.text.clone(),
            });
        }
    }

    /// Renders the timeline in plain ASCII, `width` columns wide.
    pub fn ascii(&self, width: usize, scale: Scale) -> String {
        ascii::draw(self, width, scale)
    }

    /// Renders the timeline as SVG, light or dark as the browser prefers.
    pub fn svg(&self, scale: Scale) -> String {
        svg::draw(self, scale, svg::WIDE, true)
    }

    /// The pauses that are drawn much shorter than the rest and take at least this part of the width, each
    /// with its beginning and end.
    fn breaks(&self, scale: Scale, least: f64) -> Vec<(u64, u64)> {
        let places = self.places(scale);
        let pairs = self.moments.windows(2).map(|pair| (pair[0], pair[1]));
        let width = |(from, to): (u64, u64)| places.position(to) - places.position(from);
        // Moments are sorted and unique.
        let density = |pause: (u64, u64)| width(pause) / (pause.1 - pause.0) as f64;
        let densest = pairs.clone().map(density).fold(0.0, f64::max);
        pairs.filter(|pause| width(*pause) >= least && density(*pause) * SQUEEZED < densest).collect()
    }

    /// The positions of all moments, from 0 to 1.
    fn places(&self, scale: Scale) -> Places {
        let mut place = 0.0;
        let mut places = BTreeMap::new();
        let mut before = self.moments.first().copied().unwrap_or(0);
        for &at in &self.moments {
            let gap = (at - before) as f64;
            place += match scale {
                Scale::Linear => gap,
                // 20 ms are about one step, and a minute is about eight.
                Scale::Compressed => (1.0 + gap / 20.0).ln(),
            };
            places.insert(at, place);
            before = at;
        }
        if place > 0.0 {
            for at in places.values_mut() {
                *at /= place;
            }
        }
        Places(places)
    }
}

/// A pause is marked as shortened if a millisecond of it is this many times narrower than elsewhere.
const SQUEEZED: f64 = 8.0;

/// The positions of all moments at which something happened.
struct Places(BTreeMap<u64, f64>);

impl Places {
    /// The position of a moment, interpolated between the two events around it.
    fn position(&self, at: u64) -> f64 {
        let before = self.0.range(..=at).next_back();
        let after = self.0.range(at..).next();
        match (before, after) {
            (Some((a, x)), Some((b, y))) if a < b => x + (y - x) * (at - a) as f64 / (b - a) as f64,
            (Some((_, x)), _) | (None, Some((_, x))) => *x,
            (None, None) => 0.0,
        }
    }
}

/// Builds lanes, entry by entry.
struct Builder {
    timeline: Timeline,
    open: Vec<Open>,
    /// When the creation of the sandbox began.
    sandbox: Option<u64>,
}

/// The unfinished bars of a lane.
#[derive(Debug, Clone, Default)]
struct Open {
    life: Option<(u64, Kind, String)>,
    pull: Option<u64>,
    hook: Option<(u64, String)>,
}

impl Builder {
    fn new(pod: &str) -> Builder {
        Builder {
            timeline: Timeline { title: pod.to_string(), ..Timeline::default() },
            open: Vec::new(),
            sandbox: None,
        }
    }

    fn lane(&mut self, name: &str) -> usize {
        if let Some(i) = self.timeline.lanes.iter().position(|l| l.name == name) {
            return i;
        }
        self.timeline.lanes.push(Lane { name: name.to_string(), ..Lane::default() });
        self.open.push(Open::default());
        self.open.len() - 1
    }

    fn line(&mut self, line: &Line<'_>) {
        self.timeline.moments.push(line.at);
        match (line.event, line.container) {
            (TraceEvent::Pod(event), _) => self.pod(line.at, event),
            (TraceEvent::Container(event), Some(name)) => {
                let lane = self.lane(name);
                self.container(lane, line.at, event);
            }
            // A file that does not name the container. There is no lane for it.
            (TraceEvent::Container(_), None) => {}
        }
    }

    /// Handles an event of the pod as a whole.
    fn pod(&mut self, at: u64, event: &PodEvent) {
        match event {
            PodEvent::Phase { from, to } => {
                if self.timeline.phases.is_empty() {
                    let began = self.timeline.moments.first().copied().unwrap_or(0);
                    self.timeline.phases.push((began, from.name().to_owned()));
                }
                self.timeline.phases.push((at, to.name().to_owned()));
            }
            PodEvent::Planned { containers } => self.planned(containers),
            PodEvent::SandboxCreating { .. } => self.sandbox = Some(at),
            PodEvent::SandboxReady => self.sandbox_bar(at, "sandbox".to_owned()),
            PodEvent::SandboxFailed { message, .. } => {
                self.sandbox_bar(at, format!("sandbox, refused ({message})"));
            }
            PodEvent::StopBegun { cause, grace_ms, .. } => {
                // The lanes are known only at the end.
                let halt = Halt { at, cause: cause.name().to_owned(), lanes: 0..0 };
                self.timeline.stops.push(halt);
                if let Some(grace_ms) = *grace_ms {
                    self.timeline.graces.push(Grace { from: at, to: at, grace_ms, lanes: 0..0 });
                }
            }
            // These events are not drawn, but their effects are.
            PodEvent::SandboxLost
            | PodEvent::StopShortened { .. }
            | PodEvent::RerunBegun { .. }
            | PodEvent::Rerun
            | PodEvent::Finished { stopped: false, .. } => {}
            // `ps` and the summary use the same word.
            PodEvent::Finished { stopped: true, .. } => {
                if let Some((_, phase)) = self.timeline.phases.last_mut() {
                    *phase = "Stopped".to_owned();
                }
            }
        }
    }

    fn sandbox_bar(&mut self, to: u64, title: String) {
        if let Some(from) = self.sandbox.take().filter(|from| *from < to) {
            self.timeline.sandbox.push(Bar { from, to, kind: Kind::Pull, title });
        }
    }

    /// Adds the containers of the plan in its order, with their roles.
    fn planned(&mut self, containers: &[PlannedContainer]) {
        for container in containers {
            let lane = self.lane(&container.name);
            self.timeline.lanes[lane].role = container.role.map(|role| role.name().to_owned());
        }
    }

    /// Handles an event of a container.
    fn container(&mut self, lane: usize, at: u64, event: &ContainerEvent) {
        match event {
            ContainerEvent::Pulling => self.open[lane].pull = Some(at),
            ContainerEvent::Pulled => self.pulled(lane, at),
            ContainerEvent::PullFailed { message, .. } => {
                self.pulled(lane, at);
                self.mark(lane, at, Sign::Trouble, or(message, "pull failed"));
            }
            ContainerEvent::Starting { attempt, opened_last, opened_ms_ago, .. } => {
                self.turn(lane, at, Some((Kind::Start, format!("instance {attempt}"))));
                if let Some(gate) = opened_last {
                    self.opening(lane, at, gate, opened_ms_ago.unwrap_or(0));
                }
            }
            ContainerEvent::Started { .. } | ContainerEvent::Unready => {
                self.turn(lane, at, Some((Kind::Run, "runs".into())));
            }
            ContainerEvent::Ready => self.turn(lane, at, Some((Kind::Ready, "ready".into()))),
            ContainerEvent::StartFailed { message, .. } => {
                self.turn(lane, at, None);
                self.mark(lane, at, Sign::Trouble, or(message, "start failed"));
            }
            ContainerEvent::Lost { .. } => self.mark(lane, at, Sign::Trouble, "the runtime lost track of it"),
            ContainerEvent::Terminating { .. } => {
                self.turn(lane, at, Some((Kind::Stop, "stops".into())));
                self.mark(lane, at, Sign::Term, "TERM");
            }
            ContainerEvent::Killing { .. } => self.mark(lane, at, Sign::Kill, "KILL"),
            ContainerEvent::Exited { code, reason, .. } => self.exited(lane, at, *code, *reason),
            ContainerEvent::Waiting { wait: WaitReason::BackOff { .. }, .. } => {
                self.turn(lane, at, Some((Kind::Backoff, "back-off".into())));
            }
            ContainerEvent::Probe { kind, outcome, message, .. } => {
                self.probe(lane, at, *kind, *outcome, message.as_deref());
            }
            ContainerEvent::HookStarted { hook, .. } => {
                self.open[lane].hook = Some((at, hook.name().to_owned()));
            }
            ContainerEvent::HookCancelled { .. } => self.hook_ended(lane, at, None),
            ContainerEvent::HookEnded { error, .. } => self.hook_ended(lane, at, error.as_deref()),
            // These events are not drawn, but their effects are.
            ContainerEvent::ImageChanged
            | ContainerEvent::StartupPassed
            | ContainerEvent::HookOutput { .. }
            | ContainerEvent::Waiting { .. }
            | ContainerEvent::KillBegun { .. }
            | ContainerEvent::StopSignalIgnored { .. }
            | ContainerEvent::Log { .. } => {}
        }
    }

    fn pulled(&mut self, lane: usize, at: u64) {
        if let Some(from) = self.open[lane].pull.take() {
            self.bar(lane, from, at, Kind::Pull, "image".into());
        }
    }

    fn exited(&mut self, lane: usize, at: u64, code: i32, reason: Option<ExitReason>) {
        self.turn(lane, at, None);
        let is_good = code == 0 && reason != Some(ExitReason::OomKilled);
        let sign = if is_good { Sign::Completed } else { Sign::Failed };
        let reason = reason.map(ExitReason::name).unwrap_or_default();
        self.mark(lane, at, sign, &format!("exit {code} {reason}"));
    }

    fn probe(&mut self, lane: usize, at: u64, kind: ProbeKind, outcome: ProbeOutcome, message: Option<&str>) {
        let sign = match outcome {
            ProbeOutcome::Success => Sign::ProbePassed,
            ProbeOutcome::Failure | ProbeOutcome::Error => Sign::ProbeFailed,
        };
        let message = message.map(|m| format!(": {m}")).unwrap_or_default();
        self.mark(lane, at, sign, &format!("{} probe {}{message}", kind.name(), outcome.name()));
    }

    fn hook_ended(&mut self, lane: usize, at: u64, error: Option<&str>) {
        if let Some((from, title)) = self.open[lane].hook.take() {
            self.bar(lane, from, at, Kind::Hook, title);
        }
        if let Some(error) = error {
            self.mark(lane, at, Sign::Trouble, error);
        }
    }

    fn opening(&mut self, lane: usize, at: u64, gate: &OpenedGate, opened_ms_ago: u64) {
        let from = self.lane(&gate.container);
        self.timeline.openings.push(Opening {
            from,
            opened: at.saturating_sub(opened_ms_ago),
            to: lane,
            started: at,
            need: gate.need,
        });
    }

    /// Ends the current bar of a lane and begins another.
    fn turn(&mut self, lane: usize, at: u64, next: Option<(Kind, String)>) {
        // A container that is being stopped may still become ready or unready. It is drawn as stopping.
        let stops = matches!(self.open[lane].life, Some((_, Kind::Stop, _)));
        if stops && matches!(next, Some((Kind::Run | Kind::Ready, _))) {
            return;
        }
        let next = next.map(|(kind, title)| (at, kind, title));
        if let Some((from, kind, title)) = std::mem::replace(&mut self.open[lane].life, next) {
            self.bar(lane, from, at, kind, title);
        }
    }

    fn bar(&mut self, lane: usize, from: u64, to: u64, kind: Kind, title: String) {
        if from < to {
            self.timeline.lanes[lane].bars.push(Bar { from, to, kind, title });
        }
    }

    fn mark(&mut self, lane: usize, at: u64, sign: Sign, title: &str) {
        self.timeline.lanes[lane].marks.push(Mark { at, sign, title: title.to_string() });
    }

    fn finish(mut self) -> Timeline {
        let end = self.timeline.moments.iter().copied().max().unwrap_or(0);
        for lane in 0..self.open.len() {
            self.turn(lane, end, None);
            if let Some(from) = self.open[lane].pull.take() {
                self.bar(lane, from, end, Kind::Pull, "image".into());
            }
            if let Some((from, title)) = self.open[lane].hook.take() {
                self.bar(lane, from, end, Kind::Hook, title);
            }
        }
        let all = 0..self.open.len();
        self.timeline.stops.iter_mut().for_each(|halt| halt.lanes = all.clone());
        for grace in &mut self.timeline.graces {
            grace.lanes = all.clone();
            grace.to = end.min(grace.from.saturating_add(grace.grace_ms));
        }
        let moments = &mut self.timeline.moments;
        moments.push(0);
        moments.sort_unstable();
        moments.dedup();
        self.timeline
    }
}

/// A text, or a default if it is empty.
fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

/// A time for people, such as `350 ms`, `1.35 s` or `2m 5s`.
pub(crate) fn clock(ms: u64) -> String {
    match ms {
        0 => "0".into(),
        1..1_000 => format!("{ms}ms"),
        1_000..60_000 => {
            // Three significant digits are enough.
            let text = match ms {
                0..10_000 => format!("{:.2}", ms as f64 / 1e3),
                _ => format!("{:.1}", ms as f64 / 1e3),
            };
            format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => match (ms / 60_000, ms % 60_000 / 1_000) {
            (m, 0) => format!("{m}m"),
            (m, s) => format!("{m}m{s}s"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_lifecycle::trace::Line as Read;
    use serde_json::{Value, json};

    fn records(entries: &[Value]) -> Vec<Record> {
        entries.iter().map(|entry| Read::from_json(entry).unwrap().pod().unwrap()).collect()
    }

    #[test]
    fn clocks_are_short() {
        let texts = [0, 350, 1_350, 10_000, 125_000, 120_000, 1_234, 12_345].map(clock);
        assert_eq!(texts, ["0", "350ms", "1.35s", "10s", "2m5s", "2m", "1.23s", "12.3s"]);
    }

    #[test]
    fn roles_come_from_the_trace_and_older_traces_have_none() {
        let line = |time: &str, fields: Value| {
            let mut entry = json!({"time": time, "pod": "p"});
            entry.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            entry
        };
        let planned = line(
            "0.000",
            json!({"event": "planned", "containers": [
            {"name": "setup", "role": "init"}, {"name": "proxy", "role": "sidecar"}, {"name": "app", "role": "main"}]}),
        );
        let rest = [
            line("0.000", json!({"event": "starting", "container": "app", "attempt": 0})),
            line("40.000", json!({"event": "exited", "container": "app", "code": 0})),
        ];
        let timeline = Timeline::read(&records(&[&[planned], &rest[..]].concat())).unwrap();
        let lanes: Vec<_> = timeline.lanes.iter().map(|l| (l.name.as_str(), l.role.as_deref())).collect();
        assert_eq!(lanes, [("setup", Some("init")), ("proxy", Some("sidecar")), ("app", Some("main"))]);
        let old = Timeline::read(&records(&rest)).unwrap();
        assert_eq!(old.lanes[0].role, None);
    }

    #[test]
    fn no_phase_is_left_out_however_narrow() {
        let phase = |time: &str, from: &str, to: &str| json!({"time": time, "pod": "p", "event": "phase", "from": from, "to": to});
        let start = json!({"time": "0.000", "pod": "p", "event": "starting", "container": "a", "attempt": 0});
        let entries = [
            start,
            phase("0.000", "Pending", "Pending"),
            phase("0.001", "Pending", "Running"),
            phase("0.002", "Running", "Succeeded"),
        ];
        let timeline = Timeline::read(&records(&entries)).unwrap();
        for width in [30, 60, 120] {
            let drawn = timeline.ascii(width, Scale::Compressed);
            for name in timeline.phases.iter().map(|(_, name)| name) {
                assert!(drawn.contains(name.as_str()), "{name} at {width}:\n{drawn}");
            }
            let rows = drawn.lines().filter(|line| line.contains("Succeeded") || line.contains("Running"));
            assert!(rows.clone().all(|line| line.len() <= width), "{drawn}");
        }
    }

    #[test]
    fn the_end_of_a_job_is_no_exit_of_a_container() {
        let job = |time: &str, fields: Value| {
            let mut entry = json!({"time": time, "workload": "Job/j"});
            entry.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            format!("{entry}\n")
        };
        let exited = |time: &str, pod: &str, code: i32| {
            format!(
                "{}\n",
                json!({"time": time, "pod": pod, "event": "exited", "container": "a", "code": code})
            )
        };
        let text = [
            job(
                "0.000",
                json!({"event": "job-started", "parallelism": 1, "completions": 1, "mode": "NonIndexed"}),
            ),
            job("0.000", json!({"event": "pod-created", "pod": "j-1"})),
            exited("1.000", "j-1", 1),
            job("1.000", json!({"event": "job-back-off", "wait_ms": 10_000})),
            job("11.000", json!({"event": "pod-created", "pod": "j-2"})),
            exited("12.000", "j-2", 0),
            job(
                "12.000",
                json!({"event": "job-complete", "reason": "CompletionsReached", "message": "done", "succeeded": 1, "failed": 1, "took_ms": 12_000}),
            ),
        ];
        let events = crate::events::read_events(&text.concat()).unwrap();
        let drawn = draw(&events, Picture::Text(60), Scale::Compressed).unwrap();
        let lane = drawn.lines().find(|line| line.starts_with("back-off")).expect("its lane");
        let bar = lane.trim_start_matches("back-off").trim();
        assert!(bar.chars().all(|c| ". 0123456789s".contains(c)), "{drawn}");
    }

    #[test]
    fn long_pauses_are_marked_where_they_are_drawn_short() {
        let entry = |time: &str| json!({"time": time, "pod": "p", "event": "started", "container": "a"});
        let entries = ["0.000", "0.100", "0.200", "60.000", "60.100"].map(entry);
        let timeline = Timeline::read(&records(&entries)).unwrap();
        assert_eq!(timeline.breaks(Scale::Compressed, 0.01), [(200, 60_000)]);
        assert_eq!(timeline.breaks(Scale::Linear, 0.01), []);
        assert!(timeline.svg(Scale::Compressed).contains("59.8s drawn short"));
        assert!(timeline.ascii(100, Scale::Compressed).lines().next().unwrap().contains("//"));
        assert!(!timeline.ascii(100, Scale::Linear).contains("//"));
    }
}
