//! Computes the positions of all parts of the picture.

use outrigger_lifecycle::Need;

use crate::plan::view::View;

/// The space around the picture.
pub(super) const MARGIN: f64 = 28.0;
/// The height of the title and the column headings.
pub(super) const HEAD: f64 = 92.0;
/// The height of a lane.
pub(super) const LANE: f64 = 60.0;
/// The height of a box.
pub(super) const BOX: f64 = 42.0;
/// The width of the stop boxes.
pub(super) const STOP_WIDTH: f64 = 136.0;
/// The distance between two columns of starts. Arrows change lanes here, and their labels are here.
const START_GAP: f64 = 104.0;
/// The distance between two columns of stops.
const STOP_GAP: f64 = 46.0;
/// The minimum width of the part in which all containers run.
const RUNS: f64 = 130.0;
/// The distance between arrows of different containers at the place where they change lanes.
const CHANNEL: f64 = 9.0;
/// Longer names are shortened. The tooltip has the whole name.
const NAME_CHARS_MAX: usize = 26;

/// The positions in one pod's picture.
pub(super) struct Layout<'v> {
    pub(super) view: &'v View<'v>,
    pub(super) start_column: Vec<usize>,
    pub(super) stop_column: Vec<Option<usize>>,
    start_widths: Vec<f64>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl<'v> Layout<'v> {
    pub(super) fn new(view: &'v View<'v>) -> Self {
        let n = view.plan.containers.len();
        let column = |stages: &[Vec<usize>], c: usize| stages.iter().position(|s| s.contains(&c));
        let width = |stage: &Vec<usize>| {
            let chars = stage.iter().map(|&c| shorten(view.name(c)).chars().count()).max().unwrap_or(0);
            (chars as f64 * 8.0 + 26.0).max(120.0)
        };
        let mut layout = Layout {
            view,
            start_column: (0..n).map(|c| column(&view.start, c).unwrap_or(0)).collect(),
            stop_column: (0..n).map(|c| column(&view.stop, c)).collect(),
            start_widths: view.start.iter().map(width).collect(),
            width: 0.0,
            height: HEAD + LANE * n as f64 + 52.0,
        };
        layout.width = layout.stop_x(view.stop.len().max(1) - 1) + STOP_WIDTH + MARGIN;
        layout
    }

    pub(super) fn start_x(&self, column: usize) -> f64 {
        let before = self.start_widths.iter().take(column);
        MARGIN + before.map(|width| width + START_GAP).sum::<f64>()
    }

    pub(super) fn start_width(&self, column: usize) -> f64 {
        self.start_widths.get(column).copied().unwrap_or_default()
    }

    /// The x position where a container's lane leaves its start box.
    pub(super) fn up(&self, container: usize) -> f64 {
        let column = self.start_column[container];
        self.start_x(column) + self.start_width(column)
    }

    pub(super) fn runs_from(&self) -> f64 {
        let last = self.view.start.len().max(1) - 1;
        self.start_x(last) + self.start_width(last)
    }

    pub(super) fn stop_x(&self, column: usize) -> f64 {
        self.runs_from() + RUNS + column as f64 * (STOP_WIDTH + STOP_GAP)
    }

    /// The middle of a container's lane.
    pub(super) fn middle(&self, container: usize) -> f64 {
        HEAD + LANE * (container as f64 + 0.5)
    }

    /// The x position where the arrows of a container leave its lane.
    pub(super) fn channel(&self, container: usize) -> f64 {
        let column = self.start_column[container];
        let before =
            (0..container).filter(|&c| self.start_column[c] == column && self.is_waited_for(c)).count();
        self.up(container) + 13.0 + (before % 3) as f64 * CHANNEL
    }

    /// Whether another container waits for this one.
    pub(super) fn is_waited_for(&self, container: usize) -> bool {
        let all = 0..self.view.plan.containers.len();
        all.into_iter()
            .any(|c| self.view.gates(c).iter().any(|g| g.on == container && g.need != Need::Launched))
    }
}

/// A name short enough for its box.
pub(super) fn shorten(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS_MAX {
        return name.to_owned();
    }
    let head: String = name.chars().take(NAME_CHARS_MAX - 1).collect();
    format!("{head}…")
}
