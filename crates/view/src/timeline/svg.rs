//! Lanes as a self-contained SVG.

use std::fmt::Write;

use super::{Kind, Lane, Scale, Sign, Timeline, clock};

pub(super) const WIDTH: f64 = 1_080.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 92.0;
const LANE: f64 = 40.0;
const BAR: f64 = 18.0;
/// What the legend takes below the lanes.
const LEGEND: f64 = 80.0;
/// Below the lanes where there is no legend.
const MARGIN: f64 = 18.0;
/// The least width of a pause that is marked as drawn short.
const BREAK: f64 = 24.0;
/// The second line of the legend.
const NOTE: f64 = 18.0;

/// Colours follow the reader's light or dark setting; shapes and titles carry the meaning for those who see none.
/// Plain colours, no variables: not every viewer is a browser.
const STYLE: &str = "
  svg { font: 13px system-ui, 'DejaVu Sans', sans-serif } svg:root { background: #ffffff; min-width: 860px }
  .title { font-size: 17px; font-weight: 600 } .soft { font-size: 11px } .tick { stroke-dasharray: 2 3 }
  .break { stroke-width: 1.4; fill: none; stroke: #7b8794 } .term, .kill { stroke-width: 3 } .ok, .bad { stroke-width: 2.5 } .bad, .gate { fill: none } .gate { stroke-width: 1.4 }
  .halt { stroke-dasharray: 6 4; stroke-width: 1.5 } .backoff { fill-opacity: 0.2 }
  .paper, .ok { fill: #ffffff } .ink { fill: #1f2933 } .soft, .head { fill: #7b8794 } .gate { stroke: #7b8794 }
  .line, .tick { stroke: #e4e7eb } .pull { fill: #cbd2d9 } .start { fill: #f7c948 } .run { fill: #82cfff }
  .ready { fill: #3ebd93 } .stop { fill: #f29b4b } .hook { fill: #8a5cf0 } .backoff, .trouble, .failed { fill: #cf1124 }
  .term, .halt { stroke: #d9730d } .kill, .bad { stroke: #cf1124 } .ok { stroke: #199473 }
  .passed { fill: #199473 } .crit { fill: #d6249f } .grace { fill: #f29b4b; fill-opacity: 0.13 }
  @media (prefers-color-scheme: dark) {
    svg:root { background: #161b22 }
    .paper, .ok { fill: #161b22 } .ink { fill: #f5f7fa } .soft, .head { fill: #9aa5b1 } .gate { stroke: #9aa5b1 }
    .break { stroke: #9aa5b1 } .line, .tick { stroke: #323f4b } .pull { fill: #52606d } .start { fill: #cb9b16 } .run { fill: #2b7cb8 }
    .ready { fill: #199473 } .stop { fill: #c2610c } .hook { fill: #a78bfa } .backoff, .trouble, .failed { fill: #ef4e4e }
    .term, .halt { stroke: #f29b4b } .kill, .bad { stroke: #ef4e4e } .ok { stroke: #3ebd93 }
    .passed { fill: #3ebd93 } .crit { fill: #ff6ac1 }
  }";

/// How tall the picture of a trace is.
pub(super) fn height(timeline: &Timeline, legend: bool) -> f64 {
    bottom(timeline) + if legend { LEGEND } else { MARGIN }
}

/// Where the lanes end.
fn bottom(timeline: &Timeline) -> f64 {
    TOP + timeline.lanes.len() as f64 * LANE
}

pub(super) fn draw(timeline: &Timeline, scale: Scale, with_legend: bool) -> String {
    let places = timeline.places(scale);
    let x = |at: u64| LEFT + places.of(at) * (WIDTH - LEFT - RIGHT);
    let (height, bottom) = (height(timeline, with_legend), bottom(timeline));
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline of {}\">\n<style>{STYLE}\n</style>",
        escape(&timeline.pod)
    );
    out.push_str("<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n");
    let _ = writeln!(out, "<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>");
    let end = clock(timeline.moments.last().copied().unwrap_or(0));
    let _ = writeln!(
        out,
        "<text class=\"ink title\" x=\"20\" y=\"32\">{}</text><text class=\"soft\" x=\"20\" y=\"50\">{end} in total</text>",
        escape(&timeline.pod)
    );
    axis(&mut out, timeline, &x, bottom);
    breaks(&mut out, timeline, scale, &x);
    phases(&mut out, timeline, &x);
    graces(&mut out, timeline, &x);
    sandbox(&mut out, timeline, &x);
    for (at, cause) in &timeline.stops {
        let x = x(*at);
        let _ = writeln!(
            out,
            "<path class=\"halt\" d=\"M{x:.1} {TOP}V{bottom}\"><title>the pod is stopping: {}</title></path>",
            escape(cause)
        );
    }
    for (i, lane) in timeline.lanes.iter().enumerate() {
        draw_lane(&mut out, lane, TOP + i as f64 * LANE, &x);
    }
    for stretch in &timeline.critical {
        let (from, to) = (x(stretch.from), x(stretch.to));
        let y = match stretch.lane {
            Some(lane) => TOP + lane as f64 * LANE + LANE - 8.0,
            None => TOP - 2.0,
        };
        let _ = writeln!(
            out,
            "<rect class=\"crit\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"4\" rx=\"2\"><title>critical: {}</title></rect>",
            (to - from).max(1.5),
            escape(&stretch.title)
        );
    }
    for opening in &timeline.openings {
        let y = |lane: usize| TOP + lane as f64 * LANE + LANE / 2.0;
        let (x1, y1, x2) = (x(opening.opened), y(opening.from), x(opening.started));
        // Ends at the edge of the bar it let start, from above or below.
        let y2 = y(opening.to) + if opening.to > opening.from { -BAR / 2.0 } else { BAR / 2.0 };
        let bend = (y1 + y2) / 2.0;
        let _ = writeln!(
            out,
            "<path class=\"gate\" marker-end=\"url(#head)\" d=\"M{x1:.1} {y1:.1}C{x1:.1} {bend:.1} {x2:.1} {bend:.1} {x2:.1} {y2:.1}\"><title>{} starts: {} is {}</title></path>",
            escape(&timeline.lanes[opening.to].name),
            escape(&timeline.lanes[opening.from].name),
            escape(opening.need.name())
        );
    }
    if with_legend {
        legend(&mut out, height - 26.0 - NOTE, scale);
    }
    out.push_str("</svg>\n");
    out
}

/// The pod's sandbox is nobody's lane, and everything waits for it.
fn sandbox(out: &mut String, timeline: &Timeline, x: &impl Fn(u64) -> f64) {
    for bar in &timeline.sandbox {
        let (from, to) = (x(bar.from), x(bar.to));
        let _ = writeln!(
            out,
            "<rect class=\"pull\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"5\" rx=\"2\"><title>{}: {} to {}</title></rect>",
            TOP - 8.0,
            (to - from).max(1.5),
            escape(&bar.title),
            clock(bar.from),
            clock(bar.to)
        );
    }
}

fn axis(out: &mut String, timeline: &Timeline, x: &impl Fn(u64) -> f64, bottom: f64) {
    // Labels stand in the middle above their tick, with something between them.
    let half = |at: u64| 5.0 + clock(at).len() as f64 * 3.3;
    // The end is always told, and what is too near to it is not.
    let last = timeline.moments.last().copied().unwrap_or(0);
    let mut free_from = f64::MIN;
    for &at in &timeline.moments {
        let (place, text) = (x(at), clock(at));
        let too_late = at != last && place + half(at) > x(last) - half(last);
        if place - half(at) < free_from || too_late {
            continue;
        }
        let _ = writeln!(
            out,
            "<path class=\"tick\" d=\"M{place:.1} {:.1}V{:.1}\"/><text class=\"soft\" text-anchor=\"middle\" x=\"{place:.1}\" y=\"{:.1}\">{text}</text>",
            TOP - 8.0,
            bottom,
            TOP - 14.0
        );
        free_from = place + half(at);
    }
}

/// Two slanted strokes where the axis is squeezed.
fn breaks(out: &mut String, timeline: &Timeline, scale: Scale, x: &impl Fn(u64) -> f64) {
    for (from, to) in timeline.breaks(scale, BREAK / (WIDTH - LEFT - RIGHT)) {
        let (middle, y) = ((x(from) + x(to)) / 2.0, TOP - 4.0);
        let _ = writeln!(
            out,
            "<path class=\"break\" d=\"M{:.1} {y:.1}l4 -8m3 0l-4 8\"><title>{} drawn short</title></path>",
            middle - 3.5,
            clock(to - from)
        );
    }
}

fn graces(out: &mut String, timeline: &Timeline, x: &impl Fn(u64) -> f64) {
    let end = timeline.moments.last().copied().unwrap_or(0);
    for grace in &timeline.graces {
        let to = end.min(grace.from + grace.grace_ms);
        let _ = writeln!(
            out,
            "<rect class=\"grace\" x=\"{:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"><title>grace period: {} of {} used</title></rect>",
            x(grace.from),
            (x(to) - x(grace.from)).max(0.0),
            timeline.lanes.len() as f64 * LANE,
            clock(to - grace.from),
            clock(grace.grace_ms)
        );
    }
}

fn phases(out: &mut String, timeline: &Timeline, x: &impl Fn(u64) -> f64) {
    let mut free_from = f64::MIN;
    for (at, phase) in &timeline.phases {
        let place = x(*at).max(free_from).min(WIDTH - RIGHT - phase.len() as f64 * 6.0);
        let _ = writeln!(out, "<text class=\"ink\" x=\"{place:.1}\" y=\"58\">{}</text>", escape(phase));
        free_from = place + phase.len() as f64 * 8.0 + 8.0;
    }
}

fn draw_lane(out: &mut String, lane: &Lane, top: f64, x: &impl Fn(u64) -> f64) {
    let middle = top + LANE / 2.0;
    let name = escape(&lane.name);
    let y = if lane.role.is_some() { middle } else { middle + 4.5 };
    let _ = writeln!(
        out,
        "<path class=\"line\" d=\"M20 {:.1}H{}\"/><text class=\"ink\" x=\"20\" y=\"{y:.1}\">{}<title>{name}</title></text>",
        top + LANE,
        WIDTH - 20.0,
        escape(&short(&lane.name)),
    );
    if let Some(role) = lane.role {
        let _ = writeln!(out, "<text class=\"soft\" x=\"20\" y=\"{:.1}\">{role}</text>", middle + 14.0);
    }
    // Hooks run while the container does: on top.
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
        let (from, to) = (x(bar.from), x(bar.to));
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{thick}\" rx=\"2\"><title>{}: {} to {}</title></rect>",
            middle - thick / 2.0,
            (to - from).max(1.5),
            escape(&bar.title),
            clock(bar.from),
            clock(bar.to)
        );
    }
    for mark in &lane.marks {
        let at = x(mark.at);
        let title = format!("<title>{} at {}</title>", escape(&mark.title), clock(mark.at));
        let shape = match mark.sign {
            Sign::Term => {
                format!("<path class=\"term\" d=\"M{at:.1} {:.1}v24\">{title}</path>", middle - 12.0)
            }
            Sign::Kill => {
                format!("<path class=\"kill\" d=\"M{at:.1} {:.1}v28\">{title}</path>", middle - 14.0)
            }
            Sign::Completed => {
                format!("<circle class=\"ok\" cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"5\">{title}</circle>")
            }
            Sign::Failed => format!(
                "<path class=\"bad\" d=\"M{:.1} {:.1}l10 10m0 -10l-10 10\">{title}</path>",
                at - 5.0,
                middle - 5.0
            ),
            Sign::ProbePassed | Sign::ProbeFailed => {
                let class = if mark.sign == Sign::ProbePassed { "passed" } else { "failed" };
                format!(
                    "<circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"2.5\">{title}</circle>",
                    middle - BAR / 2.0 - 4.0
                )
            }
            Sign::Trouble => {
                format!("<path class=\"trouble\" d=\"M{at:.1} {:.1}l5 9h-10z\">{title}</path>", middle - 18.0)
            }
        };
        let _ = writeln!(out, "{shape}");
    }
}

fn legend(out: &mut String, y: f64, scale: Scale) {
    let mut x = 20.0;
    for (class, word) in [
        ("pull", "image, sandbox"),
        ("start", "starting"),
        ("run", "running"),
        ("ready", "ready"),
        ("hook", "hook"),
        ("stop", "stopping"),
        ("backoff", "back-off"),
        ("grace", "grace period"),
        ("crit", "critical path"),
    ] {
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x:.0}\" y=\"{:.0}\" width=\"14\" height=\"10\" rx=\"2\"/><text class=\"soft\" x=\"{:.0}\" y=\"{y:.0}\">{word}</text>",
            y - 9.0,
            x + 19.0
        );
        x += 38.0 + word.len() as f64 * 6.2;
    }
    let squeezed = if scale == Scale::Compressed { "; // marks a long pause drawn short" } else { "" };
    let _ = writeln!(
        out,
        "<text class=\"soft\" x=\"20\" y=\"{:.0}\">bars: TERM and KILL; circles: exit 0; crosses: failures; dots: probes; arrows: gates{squeezed}</text>",
        y + NOTE
    );
}

/// As much of a name as fits in front of the lanes. Widths are those of DejaVu Sans, the widest of the fonts in use.
fn short(name: &str) -> String {
    const ROOM: f64 = LEFT - 20.0 - 10.0;
    let width = |c: char| match c {
        'i' | 'j' | 'l' | '.' => 4.0,
        'f' | 't' | 'r' | '-' => 5.5,
        'm' | 'w' | 'M' | 'W' => 13.0,
        c if c.is_ascii() => 8.5,
        _ => 13.5,
    };
    let whole: f64 = name.chars().map(width).sum();
    if whole <= ROOM {
        return name.to_owned();
    }
    let mut used = width('…');
    let fits = |c: &char| {
        used += width(*c);
        used <= ROOM
    };
    let head: String = name.chars().take_while(fits).collect();
    format!("{head}…")
}

pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write these.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
