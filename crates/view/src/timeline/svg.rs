//! Draws lanes as a self-contained SVG.

use std::fmt::Write;

use outrigger_lifecycle::Need;

use super::{Bar, Kind, Lane, Places, Scale, Sign, Subject, Timeline, clock};

const BAR: f64 = 18.0;
/// The distance from the left edge to texts.
const INDENT: f64 = 20.0;
/// The distances from the last lane to the legend, between its lines, and below it.
const LEGEND: f64 = 36.0;
const LEGEND_LINE: f64 = 18.0;
const LEGEND_END: f64 = 26.0;
/// The space below the lanes if there is no legend.
const MARGIN: f64 = 18.0;
/// The minimum width of a pause that is marked as shortened.
const BREAK: f64 = 24.0;
/// The average width of a character, of small text and of ordinary text.
const SMALL_CHARACTER: f64 = 6.8;
const CHARACTER: f64 = 8.0;

/// The size of a picture and of its parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Layout {
    /// Its class in a page, which shows the picture that fits the window.
    class: &'static str,
    pub(super) width: f64,
    /// The x positions where time begins and, from the right edge, where it ends.
    left: f64,
    right: f64,
    /// The y position where the lanes begin.
    top: f64,
    /// The height of a lane, and the middle of its bars within the lane.
    lane: f64,
    middle: f64,
    /// Whether names of containers are above their bars instead of to the left of them.
    names_above: bool,
}

/// The layout for windows of ordinary width and for files.
pub(super) const WIDE: Layout = Layout {
    class: "wide",
    width: 1_080.0,
    left: 190.0,
    right: 30.0,
    top: 92.0,
    lane: 40.0,
    middle: 20.0,
    names_above: false,
};

/// The layout for narrow windows.
pub(super) const NARROW: Layout = Layout {
    class: "narrow",
    width: 460.0,
    left: 24.0,
    right: 30.0,
    top: 112.0,
    lane: 58.0,
    middle: 40.0,
    names_above: true,
};

impl Layout {
    /// The height of the picture of a trace.
    pub(super) fn height(&self, timeline: &Timeline, scale: Scale, with_legend: bool) -> f64 {
        let below = match with_legend {
            true => LEGEND + (self.legend(scale).len() - 1) as f64 * LEGEND_LINE + LEGEND_END,
            false => MARGIN,
        };
        self.bottom(timeline) + below
    }

    /// The y position where the lanes end.
    fn bottom(&self, timeline: &Timeline) -> f64 {
        self.lane_top(timeline.lanes.len())
    }

    fn lane_top(&self, lane: usize) -> f64 {
        self.top + lane as f64 * self.lane
    }

    fn lane_middle(&self, lane: usize) -> f64 {
        self.lane_top(lane) + self.middle
    }

    /// The lines of the legend, as many as its texts need.
    fn legend(&self, scale: Scale) -> Vec<Vec<Explained>> {
        let colors = COLORS.iter().map(|(class, text)| Explained { class: Some(class), text });
        let squeezed = (scale == Scale::Compressed).then_some("// long pause drawn short");
        let signs = SIGNS.into_iter().chain(squeezed).map(|text| Explained { class: None, text });
        [self.wrap(colors), self.wrap(signs)].concat()
    }

    fn wrap(&self, parts: impl Iterator<Item = Explained>) -> Vec<Vec<Explained>> {
        let mut lines = vec![Vec::new()];
        let mut x = INDENT;
        for part in parts {
            if x + part.width() > self.width && x > INDENT {
                lines.push(Vec::new());
                x = INDENT;
            }
            x += part.width();
            lines.last_mut().expect("there is a line").push(part);
        }
        lines
    }
}

/// One entry of the legend.
#[derive(Debug, Clone, Copy)]
struct Explained {
    /// The class of the colour that it explains.
    class: Option<&'static str>,
    text: &'static str,
}

impl Explained {
    /// The width, including the gap to the next entry.
    fn width(&self) -> f64 {
        let patch = if self.class.is_some() { 19.0 } else { 0.0 };
        patch + self.text.len() as f64 * SMALL_CHARACTER + 14.0
    }
}

const COLORS: [(&str, &str); 9] = [
    ("pull", "image, sandbox"),
    ("start", "starting"),
    ("run", "running"),
    ("ready", "ready"),
    ("hook", "hook"),
    ("stop", "stopping"),
    ("backoff", "back-off"),
    ("grace", "grace period"),
    ("crit", "critical path"),
];

const SIGNS: [&str; 5] =
    ["bars: TERM and KILL", "circles: success", "crosses: failures", "dots: probes", "arrows: gates"];

/// Colours follow the reader's light or dark setting. Shapes and titles have the same meaning without colour.
/// The style uses plain colours without variables, because not every viewer is a browser.
const STYLE: &str = "
  svg { font: 13px system-ui, 'DejaVu Sans', sans-serif } svg:root { background: #ffffff; min-width: 860px }
  .title { font-size: 17px; font-weight: 600 } .soft { font-size: 12px } .tick { stroke-dasharray: 2 3 }
  .break { stroke-width: 1.4; fill: none; stroke: #7b8794 } .term, .kill { stroke-width: 3 } .ok, .bad { stroke-width: 2.5 } .bad, .gate { fill: none } .gate { stroke-width: 1.4 }
  .over { paint-order: stroke; stroke: #ffffff; stroke-width: 3px } .halt { stroke-dasharray: 6 4; stroke-width: 1.5 } .backoff { fill-opacity: 0.2 }
  .paper, .ok { fill: #ffffff } .ink { fill: #1f2933 } .soft, .head { fill: #7b8794 } .gate { stroke: #7b8794 }
  .line, .tick { stroke: #e4e7eb } .pull { fill: #cbd2d9 } .start { fill: #f7c948 } .run { fill: #82cfff }
  .ready { fill: #3ebd93 } .stop { fill: #f29b4b } .hook { fill: #8a5cf0 } .backoff, .trouble, .failed { fill: #cf1124 }
  .term, .halt { stroke: #d9730d } .kill, .bad { stroke: #cf1124 } .ok { stroke: #199473 }
  .passed { fill: #199473 } .crit { fill: #d6249f } .grace { fill: #f29b4b; fill-opacity: 0.13 }
  @media (prefers-color-scheme: dark) {
    svg:root { background: #161b22 }
    .over { stroke: #161b22 } .paper, .ok { fill: #161b22 } .ink { fill: #f5f7fa } .soft, .head { fill: #9aa5b1 } .gate { stroke: #9aa5b1 }
    .break { stroke: #9aa5b1 } .line, .tick { stroke: #323f4b } .pull { fill: #52606d } .start { fill: #cb9b16 } .run { fill: #2b7cb8 }
    .ready { fill: #199473 } .stop { fill: #c2610c } .hook { fill: #a78bfa } .backoff, .trouble, .failed { fill: #ef4e4e }
    .term, .halt { stroke: #f29b4b } .kill, .bad { stroke: #ef4e4e } .ok { stroke: #3ebd93 }
    .passed { fill: #3ebd93 } .crit { fill: #ff6ac1 }
  }";

pub(super) fn draw(timeline: &Timeline, scale: Scale, layout: Layout, with_legend: bool) -> String {
    let mut drawing = Drawing { timeline, scale, layout, places: timeline.places(scale), out: String::new() };
    drawing.all(with_legend);
    drawing.out
}

/// A picture that is being drawn.
struct Drawing<'a> {
    timeline: &'a Timeline,
    scale: Scale,
    layout: Layout,
    places: Places,
    out: String,
}

impl Drawing<'_> {
    fn all(&mut self, with_legend: bool) {
        let Layout { class, width, .. } = self.layout;
        let height = self.layout.height(self.timeline, self.scale, with_legend);
        let pod = escape(&self.timeline.title);
        let _ = writeln!(
            self.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"timeline of {pod}\">\n<style>{STYLE}\n</style>"
        );
        // Each picture has its own arrow head, because a visible picture cannot use one of a hidden picture.
        let _ = writeln!(
            self.out,
            "<defs><marker id=\"{class}-head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>"
        );
        let _ = writeln!(self.out, "<rect class=\"paper\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>");
        self.heading();
        self.axis();
        self.breaks();
        self.phases(&self.timeline.phases, self.layout.top - 34.0);
        self.graces();
        self.sandbox(&self.timeline.sandbox, self.layout.top - 8.0);
        self.stops();
        for (i, lane) in self.timeline.lanes.iter().enumerate() {
            self.lane(i, lane);
        }
        self.critical();
        self.openings();
        for (i, lane) in self.timeline.lanes.iter().enumerate() {
            self.name(i, lane);
        }
        if with_legend {
            self.legend();
        }
        self.out.push_str("</svg>\n");
    }

    /// The x position of a moment.
    fn x(&self, at: u64) -> f64 {
        let Layout { width, left, right, .. } = self.layout;
        left + self.places.position(at) * (width - left - right)
    }

    fn end(&self) -> u64 {
        self.timeline.moments.last().copied().unwrap_or(0)
    }

    fn heading(&mut self) {
        // Titles are larger than names, and bold.
        let room = (self.layout.width - 2.0 * INDENT) / 1.5;
        let _ = writeln!(
            self.out,
            "<text class=\"ink title\" x=\"{INDENT}\" y=\"32\">{}<title>{}</title></text><text class=\"soft\" x=\"{INDENT}\" y=\"50\">{} in total</text>",
            escape(&shorten(&self.timeline.title, room)),
            escape(&self.timeline.title),
            clock(self.end())
        );
    }

    fn axis(&mut self) {
        let (top, bottom) = (self.layout.top, self.layout.bottom(self.timeline));
        // Labels are centred above their ticks, with a gap between them.
        let half = |at: u64| 5.0 + clock(at).len() as f64 * SMALL_CHARACTER / 2.0;
        // The end always has a label. Labels that are too close to it are left out.
        let last = self.end();
        let mut free_from = f64::MIN;
        let mut before = String::new();
        for &at in &self.timeline.moments {
            let (place, text) = (self.x(at), clock(at));
            let too_late =
                at != last && (place + half(at) > self.x(last) - half(last) || text == clock(last));
            if place - half(at) < free_from || too_late || text == before {
                continue;
            }
            let _ = writeln!(
                self.out,
                "<path class=\"tick\" d=\"M{place:.1} {:.1}V{bottom:.1}\"/><text class=\"soft\" text-anchor=\"middle\" x=\"{place:.1}\" y=\"{:.1}\">{text}</text>",
                top - 8.0,
                top - 14.0
            );
            free_from = place + half(at);
            before = text;
        }
    }

    /// Draws two slanted strokes where the axis is shortened.
    fn breaks(&mut self) {
        let Layout { width, left, right, top, .. } = self.layout;
        for (from, to) in self.timeline.breaks(self.scale, BREAK / (width - left - right)) {
            let (middle, y) = ((self.x(from) + self.x(to)) / 2.0, top - 4.0);
            let _ = writeln!(
                self.out,
                "<path class=\"break\" d=\"M{:.1} {y:.1}l4 -8m3 0l-4 8\"><title>{} drawn short</title></path>",
                middle - 3.5,
                clock(to - from)
            );
        }
    }

    fn phases(&mut self, phases: &[(u64, String)], y: f64) {
        let wide = |phase: &str| (phase.len() + 1) as f64 * CHARACTER;
        // From right to left: a label without room before the next one moves to the left.
        let mut free_to = self.layout.width;
        let mut places: Vec<f64> = Vec::with_capacity(phases.len());
        for (at, phase) in phases.iter().rev() {
            free_to = self.x(*at).min(free_to - wide(phase));
            places.push(free_to);
        }
        // From left to right: no label may begin before the first moment.
        let mut free_from = self.layout.left;
        for ((_, phase), place) in phases.iter().zip(places.into_iter().rev()) {
            let place = place.max(free_from);
            let _ =
                writeln!(self.out, "<text class=\"ink\" x=\"{place:.1}\" y=\"{y}\">{}</text>", escape(phase));
            free_from = place + wide(phase);
        }
    }

    fn graces(&mut self) {
        for grace in &self.timeline.graces {
            let (x1, x2) = (self.x(grace.from), self.x(grace.to));
            let _ = writeln!(
                self.out,
                "<rect class=\"grace\" x=\"{x1:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{:.1}\"><title>grace period: {} of {} used</title></rect>",
                self.layout.lane_top(grace.lanes.start),
                (x2 - x1).max(0.0),
                grace.lanes.len() as f64 * self.layout.lane,
                clock(grace.to - grace.from),
                clock(grace.grace_ms)
            );
        }
    }

    /// Draws a sandbox above the lanes of its pod, because all of them wait for it.
    fn sandbox(&mut self, bars: &[Bar], y: f64) {
        for bar in bars {
            let (from, to) = (self.x(bar.from), self.x(bar.to));
            let _ = writeln!(
                self.out,
                "<rect class=\"pull\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"5\" rx=\"2\"><title>{}: {} to {}</title></rect>",
                (to - from).max(1.5),
                escape(&bar.title),
                clock(bar.from),
                clock(bar.to)
            );
        }
    }

    fn stops(&mut self) {
        for halt in &self.timeline.stops {
            let (top, bottom) =
                (self.layout.lane_top(halt.lanes.start), self.layout.lane_top(halt.lanes.end));
            let x = self.x(halt.at);
            let _ = writeln!(
                self.out,
                "<path class=\"halt\" d=\"M{x:.1} {top}V{bottom}\"><title>the pod is stopping: {}</title></path>",
                escape(&halt.cause)
            );
        }
    }

    fn lane(&mut self, i: usize, lane: &Lane) {
        let (bottom, middle) = (self.layout.lane_top(i + 1), self.layout.lane_middle(i));
        let _ = writeln!(
            self.out,
            "<path class=\"line\" d=\"M{INDENT} {bottom:.1}H{}\"/>",
            self.layout.width - INDENT
        );
        if lane.subject == Subject::Pod {
            self.phases(&lane.phases, bottom - 20.0);
            self.sandbox(&lane.bars, bottom - 14.0);
            return;
        }
        // Hooks run while the container runs, so they are drawn on top.
        let (over, under): (Vec<_>, Vec<_>) = lane.bars.iter().partition(|b| b.kind == Kind::Hook);
        for bar in under.into_iter().chain(over) {
            let (class, thick) = match bar.kind {
                Kind::Pull => ("pull", 6.0),
                Kind::Start => ("start", BAR),
                Kind::Run => ("run", BAR),
                Kind::Ready => ("ready", BAR),
                Kind::Stop => ("stop", BAR),
                Kind::Backoff => ("backoff", BAR),
                Kind::Hook => ("hook", 6.0),
            };
            let (from, to) = (self.x(bar.from), self.x(bar.to));
            let _ = writeln!(
                self.out,
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{thick}\" rx=\"2\"><title>{}: {} to {}</title></rect>",
                middle - thick / 2.0,
                (to - from).max(1.5),
                escape(&bar.title),
                clock(bar.from),
                clock(bar.to)
            );
        }
        for mark in &lane.marks {
            let title = format!("<title>{} at {}</title>", escape(&mark.title), clock(mark.at));
            let shape = shape(mark.sign, self.x(mark.at), middle, &title);
            let _ = writeln!(self.out, "{shape}");
        }
    }

    /// The name of a container, and its role.
    fn name(&mut self, i: usize, lane: &Lane) {
        let Layout { width, left, names_above, .. } = self.layout;
        let (top, middle) = (self.layout.lane_top(i), self.layout.lane_middle(i));
        let name = escape(&lane.name);
        if names_above {
            let role =
                lane.role.as_deref().map(|role| format!("<tspan class=\"soft\" dx=\"8\">{role}</tspan>"));
            let role_width =
                lane.role.as_deref().map_or(0.0, |role| role.len() as f64 * SMALL_CHARACTER + 8.0);
            let _ = writeln!(
                self.out,
                "<text class=\"ink over\" x=\"{INDENT}\" y=\"{:.1}\">{}{}<title>{name}</title></text>",
                top + 16.0,
                escape(&shorten(&lane.name, width - 2.0 * INDENT - role_width)),
                role.unwrap_or_default()
            );
            return;
        }
        let y = if lane.role.is_some() { middle } else { middle + 4.5 };
        let _ = writeln!(
            self.out,
            "<text class=\"ink\" x=\"{INDENT}\" y=\"{y:.1}\">{}<title>{name}</title></text>",
            escape(&shorten(&lane.name, left - INDENT - 10.0))
        );
        if let Some(role) = &lane.role {
            let y = middle + 14.0;
            let _ = writeln!(self.out, "<text class=\"soft\" x=\"{INDENT}\" y=\"{y:.1}\">{role}</text>");
        }
    }

    /// Draws what the start and the stop really waited for.
    fn critical(&mut self) {
        for stretch in &self.timeline.critical {
            let (from, to) = (self.x(stretch.from), self.x(stretch.to));
            let y = match stretch.lane {
                Some(lane) => self.layout.lane_top(lane + 1) - 8.0,
                None => self.layout.top - 2.0,
            };
            let _ = writeln!(
                self.out,
                "<rect class=\"crit\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"4\" rx=\"2\"><title>critical: {}</title></rect>",
                (to - from).max(1.5),
                escape(&stretch.title)
            );
        }
    }

    /// Draws arrows from the event that opened a gate to the start it allowed.
    fn openings(&mut self) {
        for opening in &self.timeline.openings {
            let (x1, x2) = (self.x(opening.opened), self.x(opening.started));
            let (y1, y2) = (self.layout.lane_middle(opening.from), self.layout.lane_middle(opening.to));
            // The arrow ends at the edge of the bar, from above or below.
            let y2 = y2 + if opening.to > opening.from { -BAR / 2.0 } else { BAR / 2.0 };
            let bend = (y1 + y2) / 2.0;
            let _ = writeln!(
                self.out,
                "<path class=\"gate\" marker-end=\"url(#{}-head)\" d=\"M{x1:.1} {y1:.1}C{x1:.1} {bend:.1} {x2:.1} {bend:.1} {x2:.1} {y2:.1}\"><title>{} started: {} {}{}</title></path>",
                self.layout.class,
                escape(&self.timeline.lanes[opening.to].name),
                escape(&self.timeline.lanes[opening.from].name),
                if opening.need == Need::Completed { "" } else { "was " },
                escape(opening.need.name())
            );
        }
    }

    fn legend(&mut self) {
        let mut y = self.layout.bottom(self.timeline) + LEGEND;
        for line in self.layout.legend(self.scale) {
            let mut x = INDENT;
            for part in line {
                let mut text_x = x;
                if let Some(class) = part.class {
                    let _ = write!(
                        self.out,
                        "<rect class=\"{class}\" x=\"{x:.0}\" y=\"{:.0}\" width=\"14\" height=\"10\" rx=\"2\"/>",
                        y - 9.0
                    );
                    text_x += 19.0;
                }
                let text = part.text;
                let _ =
                    writeln!(self.out, "<text class=\"soft\" x=\"{text_x:.0}\" y=\"{y:.0}\">{text}</text>");
                x += part.width();
            }
            y += LEGEND_LINE;
        }
    }
}

/// Draws a mark of a lane.
fn shape(sign: Sign, at: f64, middle: f64, title: &str) -> String {
    match sign {
        Sign::Term => format!("<path class=\"term\" d=\"M{at:.1} {:.1}v24\">{title}</path>", middle - 12.0),
        Sign::Kill => format!("<path class=\"kill\" d=\"M{at:.1} {:.1}v28\">{title}</path>", middle - 14.0),
        Sign::Completed => {
            format!("<circle class=\"ok\" cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"5\">{title}</circle>")
        }
        Sign::Failed => format!(
            "<path class=\"bad\" d=\"M{:.1} {:.1}l10 10m0 -10l-10 10\">{title}</path>",
            at - 5.0,
            middle - 5.0
        ),
        Sign::ProbePassed | Sign::ProbeFailed => {
            let class = if sign == Sign::ProbePassed { "passed" } else { "failed" };
            let y = middle - BAR / 2.0 - 4.0;
            format!("<circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"2.5\">{title}</circle>")
        }
        Sign::Trouble => {
            format!("<path class=\"trouble\" d=\"M{at:.1} {:.1}l5 9h-10z\">{title}</path>", middle - 18.0)
        }
    }
}

/// Shortens a name to this width. The middle is left out, because names of pods differ at the end. Widths are
/// those of DejaVu Sans, the widest of the used fonts.
fn shorten(name: &str, room: f64) -> String {
    let width = |c: char| match c {
        'i' | 'j' | 'l' | '.' => 4.0,
        'f' | 't' | 'r' | '-' => 5.5,
        'm' | 'w' | 'M' | 'W' => 13.0,
        c if c.is_ascii() => 8.5,
        _ => 13.5,
    };
    if name.chars().map(width).sum::<f64>() <= room {
        return name.to_owned();
    }
    let up_to = |room: f64| {
        let mut used = 0.0;
        move |c: &char| {
            used += width(*c);
            used <= room
        }
    };
    let room = room - width('…');
    let head: String = name.chars().take_while(up_to(room * 0.7)).collect();
    let tail: Vec<char> = name.chars().rev().take_while(up_to(room * 0.3)).collect();
    format!("{head}…{}", tail.into_iter().rev().collect::<String>())
}

pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML cannot represent these characters.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
