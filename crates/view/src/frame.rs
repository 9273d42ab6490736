//! Composes the live view: which pods are shown, and how much of each, in the available space.

use outrigger_lifecycle::{Phase, Time, Wait, explain, explain_stop, phase, was_stopped};

use crate::PodView;
use crate::line::{Line, Paint, columns, cut, wrap};
use crate::row::{Columns, Rank, Row, grace_left};
use crate::words::age;

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Size {
    /// The size to assume if the terminal does not report one.
    pub(crate) const DEFAULT: Size = Size { columns: 80, rows: 24 };

    /// The number of lines the view may use. One line is for the cursor. A third of the lines, but at least
    /// one, is for the logs above.
    fn lines_max(self) -> usize {
        self.rows.saturating_sub(1 + (self.rows / 3).min(8))
    }

    /// The last column stays empty, because terminals differ in what happens after it.
    fn width(self) -> usize {
        self.columns.saturating_sub(1)
    }
}

/// With fewer lines than this, workloads are not shown, because pods are more important.
const HEADED_MIN: usize = 6;

/// The maximum number of lines for the reason of a wait.
fn details_max(width: usize) -> usize {
    if width < 40 { 6 } else { 3 }
}

/// The live view of all pods, and of the Jobs that wait before they create their next pod.
pub(crate) fn frame<'a>(
    pods: &[PodView],
    next_pods: impl Iterator<Item = (&'a str, Time)>,
    now: Time,
    size: Size,
) -> Vec<Line> {
    let (width, lines_max) = (size.width(), size.lines_max());
    // Pods are more important, so they get at least one line.
    let waiting: Vec<Line> =
        next_pods.take(lines_max.saturating_sub(1)).map(|(job, at)| next_pod(job, at, now, width)).collect();
    let mut lines = shown_pods(pods, now, width, lines_max - waiting.len());
    lines.extend(waiting.into_iter().filter(|_| width > 0));
    lines
}

/// A line such as `Job/report next pod in 8 s · back-off after a failure`.
fn next_pod(job: &str, at: Time, now: Time, width: usize) -> Line {
    let left = format!(" next pod in {}", age(at.since(now)));
    let mut line = Line::of_text(Paint::Bold, &cut(job, width.saturating_sub(columns(&left)).max(4)));
    line.push(Paint::Busy, &left);
    let why = " · back-off after a failure";
    if line.width() + columns(why) <= width {
        line.push(Paint::Dim, why);
    }
    line.cut(width)
}

fn shown_pods(pods: &[PodView], now: Time, width: usize, lines_max: usize) -> Vec<Line> {
    if width == 0 || lines_max == 0 || pods.is_empty() {
        return Vec::new();
    }
    if let [pod] = pods {
        let block = Block::new(pod, now, width);
        let heading = pod.workload.as_ref().filter(|_| lines_max >= HEADED_MIN);
        let mut lines: Vec<Line> =
            heading.map(|name| Line::of_text(Paint::Bold, name).cut(width)).into_iter().collect();
        lines.extend(block.lines(lines_max - lines.len()));
        return lines;
    }
    many(pods, now, width, lines_max)
}

/// Shows as many pods as fit with one line each, and a count of the rest. Remaining lines are used to show
/// pods with their containers. Pods of one workload are grouped below its name, if there is room.
fn many(pods: &[PodView], now: Time, width: usize, lines_max: usize) -> Vec<Line> {
    let blocks: Vec<Block<'_>> = pods.iter().map(|p| Block::new(p, now, width)).collect();
    let total = totals(&blocks, now).cut(width);
    let mut groups: Vec<Option<&str>> = Vec::new();
    for block in &blocks {
        if !groups.contains(&block.view.workload.as_deref()) {
            groups.push(block.view.workload.as_deref());
        }
    }
    // Pods without a workload come first. Below the name of a workload, they would seem to belong to it.
    groups.sort_by_key(|group| group.is_some());
    let named = groups.iter().flatten().count();
    let headed = named > 0 && lines_max >= HEADED_MIN + 3 * named;
    let room = lines_max - 1 - if headed { named } else { 0 };
    let shown = match blocks.len() <= room {
        true => blocks.len(),
        // One line is for the count of the rest.
        false => room.saturating_sub(1),
    };
    let mut by_interest: Vec<usize> = (0..blocks.len()).collect();
    by_interest.sort_by_key(|&i| (blocks[i].rank, !blocks[i].view.obs.over, i));
    let (picked, left_out) = by_interest.split_at(shown);
    let mut heights = vec![0; blocks.len()];
    picked.iter().for_each(|&i| heights[i] = 1);
    let mut spare = room - shown - usize::from(!left_out.is_empty()).min(room - shown);
    for &i in picked {
        let whole = blocks[i].height(details_max(width));
        // For a pod with one container, a separate line would add nothing.
        if !blocks[i].view.obs.over && whole > 2 && whole - 1 <= spare {
            heights[i] = whole;
            spare -= whole - 1;
        }
    }
    let mut lines = Vec::with_capacity(lines_max);
    // Pods that take one line each are aligned in columns.
    let names = picked.iter().map(|&i| columns(&blocks[i].view.name)).max().unwrap_or(0).min(width / 2);
    for group in groups {
        let of_group = |b: &&Block<'_>| b.view.workload.as_deref() == group;
        if let Some(name) = group.filter(|_| headed) {
            let words = format!("  {}", tally(blocks.iter().filter(of_group).map(Block::word)));
            let name = cut(name, width.saturating_sub(columns(&words)).max(width * 2 / 3));
            lines.push(Line::of_text(Paint::Bold, &name).with(Paint::Dim, &words).cut(width));
        }
        for (block, height) in blocks.iter().zip(&heights).filter(|(b, height)| of_group(b) && **height > 0) {
            match height {
                1 => lines.push(block.one_line(names)),
                _ => lines.extend(block.lines(*height)),
            }
        }
    }
    if !left_out.is_empty() && room > 0 {
        let text = format!("… and {}", counted(left_out.iter().map(|&i| blocks[i].word())));
        lines.push(Line::of_text(Paint::Dim, &text).cut(width));
    }
    lines.push(total);
    lines
}

/// A text such as `87 more running` or `87 more: 80 running, 7 succeeded`.
fn counted(words: impl Iterator<Item = &'static str>) -> String {
    let words: Vec<&str> = words.collect();
    let tally = tally(words.iter().copied());
    match words.iter().all(|word| *word == words[0]) {
        true if !words.is_empty() => format!("{} more {}", words.len(), words[0]),
        _ => format!("{} more: {tally}", words.len()),
    }
}

/// A text such as `80 running, 7 succeeded`.
fn tally<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for word in words {
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    let parts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    parts.join(", ")
}

fn totals(blocks: &[Block<'_>], now: Time) -> Line {
    let mut line = Line::of_text(Paint::Bold, &format!("{} pods", blocks.len()));
    let table = [
        ("pending", Paint::Dim),
        ("running", Paint::Good),
        ("stopping", Paint::Busy),
        ("succeeded", Paint::Good),
        ("stopped", Paint::Plain),
        ("failed", Paint::Bad),
    ];
    for (word, paint) in table {
        let count = blocks.iter().filter(|b| b.word() == word).count();
        if count > 0 {
            line.push(Paint::Plain, " · ");
            line.push(paint, &format!("{count} {word}"));
        }
    }
    let began = blocks.iter().map(|b| b.view.obs.since).min().unwrap_or(now);
    line.push(Paint::Dim, &format!(" · {}", age(now.since(began))));
    line
}

/// A pod and its rows, computed once per frame.
struct Block<'a> {
    view: &'a PodView,
    now: Time,
    phase: Phase,
    /// Whether the pod has the phase `Failed` only because it was stopped.
    was_stopped: bool,
    rank: Rank,
    rows: Vec<Row>,
    columns: Columns,
    /// What the pod as a whole waits for.
    waits: Option<String>,
}

impl<'a> Block<'a> {
    fn new(view: &'a PodView, now: Time, width: usize) -> Self {
        let rows: Vec<Row> = (0..view.plan.containers.len()).map(|i| Row::new(view, i, now)).collect();
        let columns = Row::columns(view, &rows, width);
        let phase = phase(&view.plan, &view.obs);
        let was_stopped = was_stopped(&view.plan, &view.obs);
        let rank = match phase {
            // Less urgent than failures that users can still fix, more urgent than healthy pods.
            Phase::Failed if view.obs.over && !was_stopped => Rank::Steady,
            _ if view.obs.over => Rank::Done,
            _ => rows.iter().map(|r| r.rank).filter(|r| *r != Rank::Done).min().unwrap_or(Rank::Steady),
        };
        let waits = view.waits.iter().find(|(_, wait)| *wait == Wait::Sandbox);
        let waits = waits.map(|(of, wait)| explain(&view.plan, &view.obs, *of, *wait, now));
        Block { view, now, phase, was_stopped, rank, rows, columns, waits }
    }

    /// How long the pod has existed. The time of a pod that has ended does not grow.
    fn lasted(&self) -> u64 {
        let obs = &self.view.obs;
        let ends = obs.containers.iter().filter_map(|c| Some(c.exit.as_ref()?.finished_at));
        let end = ends.max().filter(|_| obs.over).unwrap_or(self.now);
        end.since(obs.since)
    }

    fn word(&self) -> &'static str {
        match self.phase {
            _ if self.view.obs.stop.is_some() && !self.view.obs.over => "stopping",
            Phase::Pending => "pending",
            Phase::Running => "running",
            Phase::Succeeded => "succeeded",
            Phase::Failed if self.was_stopped => "stopped",
            Phase::Failed => "failed",
        }
    }

    fn paint(&self) -> Paint {
        match self.word() {
            "running" | "succeeded" => Paint::Good,
            "stopping" => Paint::Busy,
            "stopped" => Paint::Plain,
            "failed" => Paint::Bad,
            _ => Paint::Dim,
        }
    }

    /// The lines of the pod itself.
    fn header(&self, details: usize) -> Vec<Line> {
        let width = self.columns.width;
        // The state of the pod must be visible, so a long name is cut.
        let name = cut(&self.view.name, width.saturating_sub(self.word().len() + 1).max(4));
        let mut line = Line::of_text(Paint::Bold, &name);
        line.push(Paint::Plain, " ");
        line.push(self.paint(), self.word());
        if line.width() + 6 <= width {
            line.push(Paint::Dim, &format!(" {}", age(self.lasted())));
        }
        if let Some(left) = grace_left(self.view, self.now).filter(|_| width >= 40) {
            line.push(Paint::Busy, &format!(" · {left}"));
        }
        let mut below = Vec::new();
        if let Some(stop) = self.view.obs.stop.filter(|_| width >= 40) {
            let why = explain_stop(&self.view.plan, &self.view.obs, stop.cause);
            match details > 1 && line.width() + 3 + columns(&why) > width {
                true => below = wrap(&why, width.saturating_sub(2), details),
                false => line.push(Paint::Dim, &format!(" · {why}")),
            }
        }
        let mut lines = vec![line.cut(width)];
        lines.extend(below.iter().map(|why| Line::of_text(Paint::Dim, &format!("  {why}"))));
        for text in self.waits.iter().flat_map(|text| wrap(text, width.saturating_sub(2), details)) {
            lines.push(Line::of_text(Paint::Plain, &format!("  {text}")).cut(width));
        }
        lines
    }

    /// The pod in one line, with its most urgent container. Names are aligned.
    fn one_line(&self, name: usize) -> Line {
        let width = self.columns.width;
        let mut line = Line::new();
        line.push_cell(
            Paint::Bold,
            &self.view.name,
            name.min(width.saturating_sub(self.word().len() + 1)).max(4),
        );
        line.push(Paint::Plain, " ");
        line.push_cell(self.paint(), self.word(), 9);
        let ready = self.rows.iter().filter(|r| r.rank == Rank::Steady).count();
        let done = self.rows.iter().filter(|r| r.rank == Rank::Done).count();
        let up = match self.view.obs.over {
            true => String::new(),
            false => format!("{ready} of {} up", self.rows.len() - done),
        };
        line.push(Paint::Plain, " ");
        line.push_cell(Paint::Dim, &up, 10);
        line.push(Paint::Dim, &format!(" {}", age(self.lasted())));
        let pressing =
            self.rows.iter().enumerate().filter(|(_, r)| r.reason.is_some()).min_by_key(|(_, r)| r.rank);
        if let Some(reason) = &self.waits {
            line.push(Paint::Plain, &format!("  {reason}"));
        } else if let Some((i, row)) = pressing
            && let Some(reason) = &row.reason
        {
            line.push(Paint::Plain, "  ");
            line.push(Paint::Name(i), &self.view.plan.containers[i].name);
            line.push(Paint::Plain, &format!(" {reason}"));
        }
        line.cut(width)
    }

    fn row(&self, i: usize, details: usize) -> Vec<Line> {
        self.rows[i].lines(&self.view.plan.containers[i], i, self.columns, details)
    }

    fn height(&self, details: usize) -> usize {
        let rows = (0..self.rows.len()).map(|i| self.row(i, details).len());
        self.header(details).len() + rows.sum::<usize>()
    }

    /// The pod in one to `max` lines.
    fn lines(&self, max: usize) -> Vec<Line> {
        if max <= 2 {
            return vec![self.one_line(columns(&self.view.name))];
        }
        for details in (1..=details_max(self.columns.width)).rev() {
            if self.height(details) <= max {
                let rows = (0..self.rows.len()).flat_map(|i| self.row(i, details));
                return self.header(details).into_iter().chain(rows).collect();
            }
        }
        self.squeezed(max)
    }

    /// The most urgent containers, and a count of the rest.
    fn squeezed(&self, max: usize) -> Vec<Line> {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|&i| (self.rows[i].rank, i));
        // One line is for the count.
        let mut lines = self.header(usize::from(max > 3));
        let mut room = max - 1 - lines.len();
        let mut shown: Vec<Option<Vec<Line>>> = vec![None; self.rows.len()];
        for i in order {
            let mut row = self.row(i, 1);
            row.truncate(room);
            room -= row.len();
            shown[i] = Some(row).filter(|r| !r.is_empty());
        }
        let left_out = (0..self.rows.len()).filter(|&i| shown[i].is_none()).map(|i| self.rows[i].rank.word());
        let left_out = format!("  … and {}", counted(left_out));
        lines.extend(shown.into_iter().flatten().flatten());
        lines.push(Line::of_text(Paint::Dim, &left_out).cut(self.columns.width));
        lines
    }
}
