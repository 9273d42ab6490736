//! One container of the live view: its state in one word, for how long, and why it waits.

use outrigger_lifecycle::{ContainerPlan, Image, KillReason, Role, State, Time, Wait, explain, rules};
use outrigger_text::HumanDuration;

use crate::PodView;
use crate::line::{Line, Paint, wrap};
use crate::words::{age, signal, span};

/// The priority of a row if there is not enough room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Failed, or blocking others.
    Trouble,
    /// Changing now.
    Moving,
    /// Waiting for its turn.
    Waiting,
    /// Fine.
    Steady,
    /// Done.
    Done,
}

impl Rank {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Rank::Trouble => "in trouble",
            Rank::Moving => "in progress",
            Rank::Waiting => "waiting",
            Rank::Steady => "ready",
            Rank::Done => "done",
        }
    }
}

/// The state of a container at this moment.
pub(crate) struct Row {
    pub(crate) rank: Rank,
    mark: &'static str,
    paint: Paint,
    pub(crate) state: String,
    restarts: u32,
    /// How long it has been in its state. After its end, how long it ran.
    pub(crate) ms: Option<u64>,
    age: String,
    /// The engine's reason for a wait.
    pub(crate) reason: Option<String>,
    bar: Option<(u64, Option<u64>)>,
}

/// The widths of the columns of one pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    pub(crate) name: usize,
    pub(crate) state: usize,
    pub(crate) restarts: usize,
    pub(crate) age: usize,
    pub(crate) width: usize,
}

impl Row {
    /// Computes the row of a container.
    pub(crate) fn new(view: &PodView, i: usize, now: Time) -> Row {
        let (plan, obs) = (&view.plan, &view.obs);
        let (p, c) = (&plan.containers[i], &obs.containers[i]);
        let wait = view.waits.iter().find(|(of, _)| *of == i).map(|(_, wait)| *wait);
        let (rank, mark, paint, state, since) = state(view, i, wait, now);
        let bar = match c.image {
            Image::Pulling => view.pulls[i],
            _ => None,
        };
        // The line of the pod already says that there is no sandbox.
        let reason = wait.filter(|w| *w != Wait::Sandbox && (*w != Wait::Image || bar.is_none()));
        let ran = c.exit.as_ref().and_then(|e| e.started_at.map(|at| e.finished_at.since(at)));
        let ms = if c.state == State::Exited { ran } else { Some(since) };
        Row {
            rank,
            mark,
            paint,
            state,
            restarts: c.restarts,
            ms,
            age: match ms {
                Some(ran) if c.state == State::Exited => span(ran),
                Some(since) => age(since),
                None => String::new(),
            },
            reason: reason
                .filter(|_| !obs.over && !quiet_wait(p, wait))
                .map(|w| explain(plan, obs, i, w, now)),
            bar,
        }
    }

    fn restarts(&self) -> String {
        match self.restarts {
            0 => String::new(),
            1 => "1 restart".to_owned(),
            n => format!("{n} restarts"),
        }
    }

    /// Columns wide enough for all rows.
    pub(crate) fn columns(view: &PodView, rows: &[Row], width: usize) -> Columns {
        use crate::line::columns as of;
        let most = |text: &dyn Fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or(0);
        let name_max = if width < 40 { width.saturating_sub(11).max(4) } else { 28 };
        Columns {
            name: view.plan.containers.iter().map(|c| of(&c.name)).max().unwrap_or(0).min(name_max),
            state: most(&|r| of(&r.state)),
            restarts: most(&|r| of(&r.restarts())),
            // Ages grow, but their column should not move with every digit.
            age: most(&|r| of(&r.age)).max(5),
            width,
        }
    }

    /// The line of the container, and at most `details` lines with the reason of its wait.
    pub(crate) fn lines(&self, p: &ContainerPlan, i: usize, at: Columns, details: usize) -> Vec<Line> {
        let mut line = Line::of_text(Paint::Plain, if at.width < 40 { "" } else { "  " });
        line.push(self.paint, &format!("{} ", self.mark));
        line.push_cell(Paint::Name(i), &p.name, at.name);
        line.push(Paint::Plain, " ");
        if at.width >= 60 {
            line.push(Paint::Plain, " ");
            line.push_cell(Paint::Dim, p.role.name(), 8);
        }
        line.push_cell(self.paint, &self.state, at.state + 1);
        if at.width >= 40 {
            if at.restarts > 0 {
                line.push_cell(Paint::Busy, &self.restarts(), at.restarts + 1);
            }
            line.push_cell(Paint::Dim, &self.age, at.age);
        }
        let beside = at.width.saturating_sub(line.width() + 2);
        // With enough room, the reason is on the same line. Otherwise it is below.
        let inline = beside >= 60;
        let (indent, room) = match (inline, at.width >= 40) {
            (true, _) => (line.width() + 2, beside),
            (false, true) => (6, at.width.saturating_sub(6)),
            (false, false) => (2, at.width.saturating_sub(2)),
        };
        let mut told: Vec<Line> = match &self.reason {
            Some(reason) => {
                wrap(reason, room, details).iter().map(|text| Line::of_text(Paint::Plain, text)).collect()
            }
            None => Vec::new(),
        };
        if let Some((done, total)) = self.bar
            && told.len() < details
        {
            told.push(bar(done, total, room));
        }
        let mut lines = Vec::with_capacity(1 + told.len());
        let mut told = told.into_iter();
        if inline && let Some(first) = told.next() {
            line.push(Paint::Plain, "  ");
            line.append(first);
        }
        lines.push(line.cut(at.width));
        for rest in told {
            let mut line = Line::of_text(Paint::Plain, &" ".repeat(indent));
            line.append(rest);
            lines.push(line.cut(at.width));
        }
        lines
    }
}

/// Whether a wait is not shown. An init container never becomes ready, so a running one does not wait.
fn quiet_wait(p: &ContainerPlan, wait: Option<Wait>) -> bool {
    p.role == Role::Init && matches!(wait, Some(Wait::ReadinessProbe))
}

type Seen = (Rank, &'static str, Paint, String, u64);

fn state(view: &PodView, i: usize, wait: Option<Wait>, now: Time) -> Seen {
    let (p, c) = (&view.plan.containers[i], &view.obs.containers[i]);
    let seen = |rank, mark, paint, word: &str, since| (rank, mark, paint, word.to_owned(), since);
    let since = |at: Time| now.since(at);
    match c.state {
        State::Waiting if view.obs.over || view.obs.stop.is_some() => {
            seen(Rank::Done, "○", Paint::Dim, "not run", since(view.obs.since))
        }
        State::Waiting => match wait {
            Some(Wait::ImageRetry { .. }) => {
                seen(Rank::Trouble, "✗", Paint::Bad, "no image", since(view.obs.since))
            }
            Some(Wait::StartRetry { .. }) => {
                seen(Rank::Trouble, "✗", Paint::Bad, "not started", since(view.obs.since))
            }
            Some(Wait::Image) => seen(Rank::Moving, "◐", Paint::Busy, "pulling", since(view.obs.since)),
            _ => seen(Rank::Waiting, "○", Paint::Dim, "waiting", since(view.obs.since)),
        },
        State::Starting { since: at } => seen(Rank::Moving, "◐", Paint::Busy, "starting", since(at)),
        State::Unknown => seen(Rank::Trouble, "✗", Paint::Bad, "lost", since(view.obs.since)),
        State::Running { since: at } if c.kill.is_some() => {
            let (paint, word) = match c.kill {
                Some(kill) if kill.killed_at.is_some() => (Paint::Bad, "killed"),
                Some(kill) if kill.signalled_at.is_some() => (Paint::Busy, "stopping"),
                _ => (Paint::Busy, "to stop"),
            };
            seen(Rank::Moving, "◐", paint, word, since(at))
        }
        State::Running { since: at } if p.role == Role::Init => {
            seen(Rank::Moving, "●", Paint::Busy, "running", since(at))
        }
        State::Running { since: at } if rules::is_ready(p, c) => {
            let word = if p.probes.iter().any(Option::is_some) { "ready" } else { "running" };
            seen(Rank::Steady, "●", Paint::Good, word, since(at))
        }
        State::Running { since: at } if rules::is_started(p, c) => {
            seen(Rank::Moving, "◐", Paint::Busy, "not ready", since(at))
        }
        State::Running { since: at } => seen(Rank::Moving, "◐", Paint::Busy, "starting", since(at)),
        State::Exited => ended(view, i),
    }
}

fn ended(view: &PodView, i: usize) -> Seen {
    let (p, c) = (&view.plan.containers[i], &view.obs.containers[i]);
    let Some(exit) = &c.exit else { return (Rank::Done, "✓", Paint::Dim, "ended".to_owned(), 0) };
    let code = match exit.signal {
        Some(number) => format!("exit {} {}", exit.code, signal(number)),
        None => format!("exit {}", exit.code),
    };
    let comes_back = view.obs.stop.is_none() && rules::restarts_after(p, exit);
    match (exit.failed(), exit.killed_for) {
        (false, _) if comes_back => (Rank::Moving, "◐", Paint::Busy, code, 0),
        (false, _) => (Rank::Done, "✓", Paint::Good, "done".to_owned(), 0),
        // It did not do what it should.
        (
            true,
            Some(KillReason::Liveness | KillReason::Startup | KillReason::PostStart | KillReason::Unknown),
        ) => (Rank::Trouble, "✗", Paint::Bad, code, 0),
        // It was asked to stop, and its exit code shows that. This is neither a success nor a failure.
        (true, Some(_)) if !comes_back && c.kill.is_none_or(|k| k.killed_at.is_none()) => {
            (Rank::Done, "■", Paint::Plain, code, 0)
        }
        (true, _) => (Rank::Trouble, "✗", Paint::Bad, code, 0),
    }
}

/// A progress bar in `width` columns, such as `██████░░░░  62 %  12 of 20 MiB`.
pub(crate) fn bar(done: u64, total: Option<u64>, width: usize) -> Line {
    let mib = |bytes: u64| match bytes {
        0..10_485_760 => format!("{}.{}", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20),
        _ => (bytes >> 20).to_string(),
    };
    let Some(total) = total.filter(|t| *t > 0) else {
        return Line::of_text(Paint::Busy, &format!("image: {} MiB", mib(done))).cut(width);
    };
    let done = done.min(total);
    let percent = u128::from(done) * 100 / u128::from(total);
    let amount = match width {
        0..14 => String::new(),
        14..40 => format!(" {percent:>3} %"),
        _ => format!(" {percent:>3} %  {} of {} MiB", mib(done), mib(total)),
    };
    let room = width.saturating_sub(amount.len()).min(40);
    let full = usize::try_from(u128::from(done) * room as u128 / u128::from(total)).unwrap_or(room);
    Line::of_text(Paint::Good, &"█".repeat(full))
        .with(Paint::Dim, &"░".repeat(room - full))
        .with(Paint::Plain, &amount)
}

/// The rest of the grace period, for the line of the pod.
pub(crate) fn grace_left(view: &PodView, now: Time) -> Option<String> {
    let stop = view.obs.stop.as_ref().filter(|_| !view.obs.over)?;
    Some(format!("{} of {} grace left", age(stop.deadline.since(now)), HumanDuration(stop.grace_ms)))
}
