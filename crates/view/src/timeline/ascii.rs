//! Lanes in plain ASCII.

use std::fmt::Write;

use super::{Kind, Scale, Sign, Timeline, clock};

/// Maximum width of the name column.
const NAME_MAX: usize = 20;

/// Minimum width of a picture with roles.
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
    let names = timeline.lanes.iter().map(|l| l.name.chars().count()).max().unwrap_or(0);
    let roles = timeline.lanes.iter().filter_map(|l| l.role).map(str::len).max().map_or(0, |role| role + 1);
    // Roles are shown next to the names if there is room for both.
    let roles = if width >= WITH_ROLES { roles } else { 0 };
    let names = names.clamp(5, NAME_MAX);
    let left = names + roles + 1;
    let cells = width.saturating_sub(left).max(20);
    let places = timeline.places(scale);
    let column = |at: u64| ((places.of(at) * (cells - 1) as f64).round() as usize).min(cells - 1);
    let mut out = String::new();
    let mut times = axis(timeline, cells, &column);
    for (from, to) in timeline.breaks(scale, 4.0 / cells as f64) {
        // There is no room for a mark where there is a time.
        let at = (column(from) + column(to)) / 2;
        if let Some(free) = times.get_mut(at.saturating_sub(1)..at + 3)
            && free.iter().all(|c| *c == ' ')
        {
            (free[1], free[2]) = ('/', '/');
        }
    }
    let _ = writeln!(out, "{:left$}{}", "", times.into_iter().collect::<String>().trim_end());
    if !timeline.phases.is_empty() {
        let _ = writeln!(out, "{:<left$}{}", "phase", phases(timeline, cells, &column).trim_end());
    }
    for lane in &timeline.lanes {
        let mut row = vec![' '; cells];
        // Images are pulled while nothing else happens in the lane; hooks run while the container does.
        for layer in 0..3 {
            for bar in lane.bars.iter().filter(|b| b.kind.layer() == layer) {
                row[column(bar.from)..=column(bar.to)].fill(bar.kind.letter());
            }
        }
        let mut marked = vec![false; cells];
        // There are too many probes for this few cells.
        let is_probe = |sign| matches!(sign, Sign::ProbePassed | Sign::ProbeFailed);
        for mark in lane.marks.iter().filter(|m| !is_probe(m.sign)) {
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
        let name: String = lane.name.chars().take(NAME_MAX).collect();
        let row: String = row.into_iter().collect();
        let role = lane.role.filter(|_| roles > 0).unwrap_or_default();
        let head = format!("{name:<names$} {role}");
        let _ = writeln!(out, "{head:<left$}{}", row.trim_end());
    }
    let squeezed = if scale == Scale::Compressed { "  // pause drawn short" } else { "" };
    let _ = writeln!(out, "p pull  s starting  - running  = ready  h hook  ~ stopping  . back-off");
    let _ = writeln!(out, "T TERM  K KILL  o exit 0  x failed  ! trouble{squeezed}");
    out
}

/// As many times above the lanes as fit.
fn axis(timeline: &Timeline, cells: usize, column: &impl Fn(u64) -> usize) -> Vec<char> {
    let mut axis = vec![' '; cells];
    let mut free_from = 0;
    let end = timeline.moments.last().copied().unwrap_or(0);
    let last = clock(end);
    let end_from = cells.saturating_sub(last.len());
    for &at in &timeline.moments {
        let text = clock(at);
        let from = column(at);
        if at != end && (from < free_from || from + text.len() >= end_from) {
            continue;
        }
        let from = from.min(cells - text.len().min(cells));
        for (place, c) in axis[from..].iter_mut().zip(text.chars()) {
            *place = c;
        }
        free_from = from + text.len() + 2;
    }
    axis
}

fn phases(timeline: &Timeline, cells: usize, column: &impl Fn(u64) -> usize) -> String {
    let mut row = vec![' '; cells];
    for (i, (at, phase)) in timeline.phases.iter().enumerate() {
        let from = column(*at).min(cells.saturating_sub(phase.len()));
        let to = timeline.phases.get(i + 1).map_or(cells, |(at, _)| column(*at).max(from));
        for (place, c) in row[from..]
            .iter_mut()
            .zip(phase.chars().chain(std::iter::repeat(' ')))
            .take(to.max(from + phase.len()) - from)
        {
            *place = c;
        }
    }
    row.into_iter().collect()
}
