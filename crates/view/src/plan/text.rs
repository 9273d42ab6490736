//! Renders the plan as text.

use outrigger_lifecycle::{Amounts, RestartPolicy, Role, annotations};

use super::view::View;
use super::words;
use crate::line::wrap_all;
use crate::style::{DIM, HEADING, INIT, MAIN, SIDECAR, paint};

/// The maximum width on any terminal, because plans are copied into logs and reviews.
const WIDTH_MAX: usize = 100;
/// A longer name gets its own line. On a narrow terminal, this leaves room for the sentences.
const NAME_WIDTH_MAX: usize = 24;
const NAME_WIDTH_NARROW: usize = 10;
/// A terminal with fewer columns is narrow.
const NARROW: usize = 80;

/// Renders one pod in lines of at most `width` columns.
pub fn render(view: &View<'_>, width: usize) -> String {
    let mut page = Page::new(view, width.min(WIDTH_MAX));
    page.title();
    page.section("Start");
    for (number, stage) in view.start.iter().enumerate() {
        page.stage(number + 1, stage, |c| (words::starts(view, c), words::opens(view, c)));
    }
    page.section("Run");
    for c in (0..view.plan.containers.len()).map(|c| vec![c]) {
        page.stage(0, &c, |c| (words::runs(view, c), None));
    }
    page.section("Stop");
    page.paragraph(&budget(view));
    for (number, stage) in view.stop.iter().enumerate() {
        page.stage(number + 1, stage, |c| (words::stops(view, c), None));
    }
    page.section("Resources");
    page.resources();
    let written = view.pod.input.pod.metadata.annotations.iter();
    let idle: Vec<_> = written.flat_map(annotations::without_effect).collect();
    if !idle.is_empty() {
        page.section("Without effect");
    }
    for row in idle {
        let in_cluster = row.in_cluster.words();
        page.paragraph(&format!("{} has no effect on this machine. In a cluster: {in_cluster}.", row.name));
    }
    page.out
}

struct Page<'v> {
    view: &'v View<'v>,
    width: usize,
    name_width: usize,
    out: String,
}

impl<'v> Page<'v> {
    fn new(view: &'v View<'v>, width: usize) -> Self {
        let lengths = view.plan.containers.iter().map(|c| c.name.len());
        let most = if width < NARROW { NAME_WIDTH_NARROW } else { NAME_WIDTH_MAX };
        let name_width = lengths.filter(|l| *l <= most).max().unwrap_or(0);
        Page { view, width, name_width, out: String::new() }
    }

    fn title(&mut self) {
        let (view, plan) = (self.view, self.view.plan);
        let origin = &view.pod.origin;
        let what = match origin.kind {
            "Pod" => format!("Pod {}", view.pod.name()),
            kind if view.count > 1 => format!("{kind} {}, {} identical pods", origin.name, view.count),
            kind => format!("{kind} {}", origin.name),
        };
        for line in wrap_all(&what, self.width) {
            self.out.push_str(&format!("{}\n", paint(HEADING, &line)));
        }
        let dialects: Vec<&str> = plan.dialects.iter().map(|d| d.name()).collect();
        let mut facts = vec![match dialects.len() {
            0 => "no dialect".to_owned(),
            1 => format!("dialect {}", dialects[0]),
            _ => format!("dialects {}", dialects.join(", ")),
        }];
        facts.push(format!("restart policy {:?}", plan.restart_policy));
        facts.push(format!("grace period {}", words::duration(plan.grace_ms)));
        if let Some(ms) = plan.active_deadline_ms {
            facts.push(format!("deadline {}", words::duration(ms)));
        }
        for line in wrap_all(&facts.join(" · "), self.width) {
            self.out.push_str(&format!("{}\n", paint(DIM, &line)));
        }
    }

    fn section(&mut self, name: &str) {
        self.out.push_str(&format!("\n{}\n", paint(HEADING, name)));
    }

    fn paragraph(&mut self, text: &str) {
        for line in wrap_all(text, self.width.saturating_sub(2)) {
            self.out.push_str(&format!("  {}\n", paint(DIM, &line)));
        }
    }

    fn resources(&mut self) {
        let totals = &self.view.resources;
        let sum = |amounts: &Amounts| match amounts.is_empty() {
            true => "none".to_owned(),
            false => amounts.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", "),
        };
        let rows = [
            ("requests", sum(&totals.requests)),
            ("limits", sum(&totals.limits)),
            ("class", self.view.qos.name().to_owned()),
        ];
        for (name, value) in rows {
            for (i, line) in wrap_all(&value, self.width.saturating_sub(12)).iter().enumerate() {
                let name = if i == 0 { name } else { "" };
                self.out.push_str(&format!("  {name:8}  {line}\n"));
            }
        }
    }

    /// The containers of a stage, grouped. Stage 0 has no number.
    fn stage(
        &mut self,
        number: usize,
        containers: &[usize],
        says: impl Fn(usize) -> (String, Option<String>),
    ) {
        let last = containers.len() - 1;
        let digits = self.view.plan.containers.len().to_string().len();
        for (i, &c) in containers.iter().enumerate() {
            let rail = match (number, i) {
                (0, _) => String::new(),
                (n, 0) if last == 0 => format!("{n:>digits$} ─── "),
                (n, 0) => format!("{n:>digits$} ─┬─ "),
                (_, i) if i == last => format!("{:digits$}  └─ ", ""),
                _ => format!("{:digits$}  ├─ ", ""),
            };
            let below = match (number, i) {
                (0, _) => String::new(),
                (_, i) if i < last => format!("{:digits$}  │  ", ""),
                _ => format!("{:digits$}     ", ""),
            };
            let (text, more) = says(c);
            self.entry(&rail, &below, c, &text, more.as_deref());
        }
    }

    fn entry(&mut self, rail: &str, below: &str, container: usize, text: &str, more: Option<&str>) {
        let c = &self.view.plan.containers[container];
        let role = words::role(c.role);
        let style = match c.role {
            Role::Init => INIT,
            Role::Sidecar => SIDECAR,
            Role::Main | Role::Ephemeral => MAIN,
        };
        let indent = 2 + rail.chars().count() + self.name_width + 2 + 7 + 2;
        let room = self.width.saturating_sub(indent);
        let mut lines: Vec<String> = wrap_all(text, room);
        let plain = lines.len();
        lines.extend(more.into_iter().flat_map(|m| wrap_all(m, room)));
        let width = self.name_width;
        let mut head = format!("  {rail}{}", paint(style, &format!("{:width$}", c.name)));
        if c.name.len() > self.name_width {
            // The name has its own line or lines, and the text begins on the next.
            let (side, room) =
                (rail.chars().count() + 2, self.width.saturating_sub(rail.chars().count() + 2));
            for (i, part) in wrap_all(&c.name, room).iter().enumerate() {
                let left =
                    if i == 0 { format!("  {rail}") } else { format!("{:side$}", format!("  {below}")) };
                self.out.push_str(&format!("{left}{}\n", paint(style, part)));
            }
            head = format!("  {below}{:width$}", "");
        }
        head.push_str(&format!("  {}  ", paint(style, &format!("{role:7}"))));
        for (i, line) in lines.iter().enumerate() {
            let line = if i < plain { line.clone() } else { paint(DIM, line) };
            match i {
                0 => self.out.push_str(&format!("{head}{line}\n")),
                _ => {
                    let gap = indent - 2 - below.chars().count();
                    self.out.push_str(&format!("  {below}{:gap$}{line}\n", ""));
                }
            }
        }
    }
}

/// How much of the grace period each stage may use.
fn budget(view: &View<'_>) -> String {
    let plan = view.plan;
    let grace = words::duration(plan.grace_ms);
    let mut text = match plan.restart_policy {
        RestartPolicy::Always => format!("The pod runs until it is deleted. It then has {grace} to stop."),
        _ => format!("When the pod is complete or deleted, it has {grace} to stop."),
    };
    if plan.sidecar_grace_ms > 0 && view.stop.len() > 1 {
        text.push_str(&format!(
            " The last {} are reserved for containers that stop after the first stage.",
            words::duration(plan.sidecar_grace_ms)
        ));
    } else if view.stop.len() > 1 {
        text.push_str(" All stages share this time.");
    }
    if plan.sidecar_delay_ms > 0 {
        text.push_str(&format!(
            " Sidecars run for {} after the mains are done.",
            words::duration(plan.sidecar_delay_ms)
        ));
    }
    if plan.containers.iter().any(|c| c.role == Role::Init) {
        text.push_str(" An init container that is still running is stopped too.");
    }
    text
}
