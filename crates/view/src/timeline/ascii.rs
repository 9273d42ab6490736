//! Draws lanes in plain ASCII.

use std::fmt::Write;

use super::{Bar, Kind, Lane, Scale, Sign, Subject, Timeline, clock};
use crate::text::shorten;

/// The maximum width of the name column.
const NAME_MAX: usize = 20;

/// The minimum width of a picture with roles.
const WITH_ROLES: usize = 60;

impl Kind {
    fn letter(self) -> char {
        match self {
            Kind::Pull => 'p',
            Kind::Start => 's',
            Kind::Run => '-',
            Kind::Ready => '=',
            Kind::Stop => '~',
            Kind::Backoff => '.',
            Kind::Hook => 'h',
        }
    }

    /// The drawing order: higher layers hide lower ones.
    fn layer(self) -> u8 {
        match self {
            Kind::Pull => 0,
            Kind::Start | Kind::Run | Kind::Ready | Kind::Stop | Kind::Backoff => 1,
            Kind::Hook => 2,
        }
    }
}

pub(super) fn draw(timeline: &Timeline, width: usize, scale: Scale) -> String {
    let containers = || timeline.lanes.iter().filter(|l| l.subject == Subject::Container);
    let names = timeline.lanes.iter().filter(|l| l.subject != Subject::Pod).map(|l| l.name.chars().count());
    let roles = containers().filter_map(|l| l.role.as_ref()).map(|role| role.len() + 1).max().unwrap_or(0);
    // Roles are shown next to the names if there is room for both.
    let roles = if width >= WITH_ROLES { roles } else { 0 };
    let names = names.max().unwrap_or(0).clamp(5, NAME_MAX);
    let left = names + roles + 1;
    let cells = width.saturating_sub(left).max(20);
    let places = timeline.places(scale);
    let column = |at: u64| ((places.position(at) * (cells - 1) as f64).round() as usize).min(cells - 1);
    let mut out = String::new();
    let mut times = axis(timeline, cells, &column);
    for (from, to) in timeline.breaks(scale, 4.0 / cells as f64) {
        // A time needs the room of the mark.
        let at = (column(from) + column(to)) / 2;
        if let Some(free) = times.get_mut(at.saturating_sub(1)..at + 3)
            && free.iter().all(|c| *c == ' ')
        {
            (free[1], free[2]) = ('/', '/');
        }
    }
    let _ = writeln!(out, "{:left$}{}", "", times.into_iter().collect::<String>().trim_end());
    let phase_rows = |of: &[(u64, String)]| {
        let heads = std::iter::once("phase").chain(std::iter::repeat(""));
        let rows = phases(of, cells, &column);
        heads.zip(rows).map(|(head, row)| format!("{head:<left$}{}\n", row.trim_end())).collect::<String>()
    };
    out.push_str(&phase_rows(&timeline.phases));
    for lane in &timeline.lanes {
        if lane.subject == Subject::Pod {
            let _ = writeln!(out, "{}", shorten(&format!("Pod {}", lane.name), width));
            out.push_str(&phase_rows(&lane.phases));
            continue;
        }
        let name = shorten(&lane.name, names);
        let role = lane.role.as_deref().filter(|_| roles > 0 && lane.subject == Subject::Container);
        let head = format!("{name:<names$} {}", role.unwrap_or_default());
        let _ = writeln!(out, "{head:<left$}{}", row(lane, cells, &column).trim_end());
    }
    let squeezed = if scale == Scale::Compressed { Some("// pause drawn short") } else { None };
    for line in [&BARS[..], &MARKS[..]] {
        let parts = line.iter().copied().chain(squeezed.filter(|_| line.len() == MARKS.len()));
        out.push_str(&legend(parts, width));
    }
    out
}

const BARS: [&str; 7] =
    ["p pull", "s starting", "- running", "= ready", "h hook", "~ stopping", ". back-off"];
const MARKS: [&str; 5] = ["T TERM", "K KILL", "o exit 0", "x failed", "! trouble"];

/// Explains the letters, in as many lines as needed.
fn legend<'a>(parts: impl Iterator<Item = &'a str>, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + part.len() <= width => *line = format!("{line}  {part}"),
            _ => lines.push(part.to_owned()),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn row(lane: &Lane, cells: usize, column: &impl Fn(u64) -> usize) -> String {
    let mut row = vec![' '; cells];
    // Images are pulled while nothing else happens in the lane. Hooks run while the container runs, so they
    // are drawn above it.
    for layer in 0..3 {
        for bar in lane.bars.iter().filter(|b| b.kind.layer() == layer) {
            row[column(bar.from)..=column(bar.to)].fill(bar.kind.letter());
        }
    }
    if lane.subject == Subject::Workload {
        for bar in &lane.bars {
            name_bar(bar, &mut row[column(bar.from)..=column(bar.to)]);
        }
    }
    let mut marked = vec![false; cells];
    // There are too many probes for so few cells.
    let is_probe = |sign| matches!(sign, Sign::ProbePassed | Sign::ProbeFailed);
    // The end of a Job is not the exit of a container. Its pods show how they ended.
    let is_shown = |sign| lane.subject != Subject::Workload && !is_probe(sign);
    for mark in lane.marks.iter().filter(|m| is_shown(m.sign)) {
        // If two marks share a cell, the later one moves right, or the earlier one left.
        let mut cell = column(mark.at);
        if marked[cell] && cell + 1 < cells {
            cell += 1;
        } else if marked[cell] && cell > 0 {
            (row[cell - 1], marked[cell - 1]) = (row[cell], true);
        }
        marked[cell] = true;
        row[cell] = match mark.sign {
            Sign::Term => 'T',
            Sign::Kill => 'K',
            Sign::Completed => 'o',
            Sign::Failed => 'x',
            Sign::Trouble | Sign::ProbePassed | Sign::ProbeFailed => '!',
        };
    }
    row.into_iter().collect()
}

/// Writes the length of a bar into its middle, if there is room.
fn name_bar(bar: &Bar, cells: &mut [char]) {
    let text = format!(" {} ", clock(bar.to - bar.from));
    if let Some(spare) = cells.len().checked_sub(text.len() + 2) {
        for (cell, c) in cells[1 + spare / 2..].iter_mut().zip(text.chars()) {
            *cell = c;
        }
    }
}

/// The times above the lanes, as many as fit.
fn axis(timeline: &Timeline, cells: usize, column: &impl Fn(u64) -> usize) -> Vec<char> {
    let mut axis = vec![' '; cells];
    let mut free_from = 0;
    let end = timeline.moments.last().copied().unwrap_or(0);
    let last = clock(end);
    let end_from = cells.saturating_sub(last.len());
    let mut before = String::new();
    for &at in &timeline.moments {
        let text = clock(at);
        let from = column(at);
        // Two moments may be so close that their times have the same text.
        let is_said = text == before || text == last;
        if at != end && (from < free_from || from + text.len() >= end_from || is_said) {
            continue;
        }
        let from = from.min(cells - text.len().min(cells));
        for (place, c) in axis[from..].iter_mut().zip(text.chars()) {
            *place = c;
        }
        free_from = from + text.len() + 2;
        before = text;
    }
    axis
}

/// The places where phases began. A phase without room before the next one moves a little to the left, or to
/// a row above.
fn phases(phases: &[(u64, String)], cells: usize, column: &impl Fn(u64) -> usize) -> Vec<String> {
    let mut rows: Vec<(Vec<char>, usize)> = Vec::new();
    for (at, phase) in phases.iter().rev() {
        // A phase that does not fit at the right edge ends there.
        let wanted = column(*at).min(cells.saturating_sub(phase.len()));
        let in_row = |free_to: usize| {
            let from = free_to.checked_sub(phase.len()).map(|latest| wanted.min(latest));
            from.filter(|from| wanted - from <= MOVED_MAX)
        };
        let found = rows.iter().enumerate().find_map(|(i, (_, free_to))| Some((i, in_row(*free_to)?)));
        if found.is_none() && rows.len() == PHASE_ROWS_MAX {
            continue;
        }
        let (i, from) = found.unwrap_or_else(|| {
            rows.push((vec![' '; cells], cells));
            (rows.len() - 1, wanted)
        });
        let row = &mut rows[i];
        for (place, c) in row.0[from..].iter_mut().zip(phase.chars()) {
            *place = c;
        }
        row.1 = from.saturating_sub(1);
    }
    rows.into_iter().rev().map(|(row, _)| row.into_iter().collect()).collect()
}

/// The maximum number of rows of phases. A pod that restarts many times does not show all of them.
const PHASE_ROWS_MAX: usize = 3;

/// The maximum distance of a phase from the place where it began.
const MOVED_MAX: usize = 4;
