//! Draws the view below the scrolling output.
//!
//! Between two writes, the terminal is always in its normal state. No mode is changed and no colour is on.
//! The cursor is visible and at the beginning of the line below the view. So nothing must be restored, even
//! if the process is killed. Output of other processes appears below the view, not inside it. The terminal
//! echoes Enter, which moves the cursor down. These rows are counted ([`Painter::moved_down`]).

use crate::frame::Size;
use crate::line::{Line, Look};

/// Terminals that support this sequence show everything up to `END` at once. Others ignore it.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";
/// Clears to the end of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears a row and moves to the next.
const CLEAR_ROW: &str = "\x1b[K\x1b[B";
/// Clears to the end of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

/// What is on the terminal now.
#[derive(Debug)]
pub(crate) struct Painter {
    look: Look,
    shown: Vec<Line>,
    size: Size,
    /// The number of rows that the cursor has moved down since the last write.
    below: usize,
}

impl Painter {
    /// Creates the state for a terminal on which nothing was drawn yet.
    pub(crate) fn new(look: Look, size: Size) -> Self {
        Painter { look, shown: Vec::new(), size, below: 0 }
    }

    /// Discards the state, because another process used the terminal.
    pub(crate) fn forget(&mut self) {
        self.shown.clear();
        self.below = 0;
    }

    /// Records that Enter was pressed this many times, which the terminal has echoed.
    pub(crate) fn moved_down(&mut self, rows: usize) {
        self.below = self.below.saturating_add(rows);
    }

    /// Returns what to write in one piece to have `scrolled` above and `view` below it. Empty if nothing
    /// changed.
    pub(crate) fn paint(&mut self, scrolled: &str, view: Vec<Line>, size: Size) -> String {
        let resized = size != self.size;
        let is_moved = self.below > 0;
        if scrolled.is_empty() && view == self.shown && !resized && !is_moved {
            return String::new();
        }
        let mut out = String::with_capacity(scrolled.len() + 128 * (view.len() + 1));
        out.push_str(BEGIN);
        out.push('\r');
        let up = self.height(size);
        move_up(&mut out, up);
        if resized || is_moved || !scrolled.is_empty() {
            // Clear row by row, because tmux copies a screen that is cleared as a whole to its history.
            out.push_str(&CLEAR_ROW.repeat(up));
            out.push_str(CLEAR_BELOW);
            move_up(&mut out, up);
        }
        out.push_str(scrolled);
        for line in &view {
            out.push_str(&line.render(self.look));
            out.push_str(CLEAR_LINE);
            out.push('\n');
        }
        // Clears lines that are no longer shown, and echoed keys.
        out.push_str(CLEAR_BELOW);
        out.push_str(END);
        (self.shown, self.size, self.below) = (view, size, 0);
        out
    }

    /// The number of rows that the shown lines take. A terminal that became narrower has wrapped them.
    fn height(&self, size: Size) -> usize {
        let rows = |line: &Line| match size.columns {
            0 => 1,
            columns => line.width().max(1).div_ceil(columns),
        };
        let view: usize = self.shown.iter().map(rows).sum();
        let all = view.saturating_add(self.below);
        // Rows above the top of the screen cannot be reached.
        all.min(size.rows.saturating_sub(1))
    }
}

fn move_up(out: &mut String, rows: usize) {
    if rows > 0 {
        out.push_str(&format!("\x1b[{rows}A"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Paint;

    const LOOK: Look = Look { colors: false, unicode: true };
    const SIZE: Size = Size { columns: 20, rows: 10 };

    fn lines(texts: &[&str]) -> Vec<Line> {
        texts.iter().map(|text| Line::of_text(Paint::Bold, text)).collect()
    }

    #[test]
    fn one_write_replaces_the_view() {
        let mut painter = Painter::new(LOOK, SIZE);
        assert_eq!(
            painter.paint("", lines(&["a", "b"]), SIZE),
            "\x1b[?2026h\ra\x1b[K\nb\x1b[K\n\x1b[J\x1b[?2026l"
        );
        assert_eq!(painter.paint("", lines(&["a", "b"]), SIZE), "", "nothing changed");
        assert_eq!(
            painter.paint("log\n", lines(&["c"]), SIZE),
            "\x1b[?2026h\r\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[J\x1b[2Alog\nc\x1b[K\n\x1b[J\x1b[?2026l"
        );
        assert_eq!(
            painter.paint("end\n", Vec::new(), SIZE),
            "\x1b[?2026h\r\x1b[1A\x1b[K\x1b[B\x1b[J\x1b[1Aend\n\x1b[J\x1b[?2026l"
        );
    }

    #[test]
    fn a_narrower_terminal_has_broken_the_lines() {
        let mut painter = Painter::new(LOOK, SIZE);
        painter.paint("", lines(&["0123456789012345", "x"]), SIZE);
        let narrow = Size { columns: 6, rows: 10 };
        let out = painter.paint("", lines(&["x"]), narrow);
        assert!(out.contains(&format!("\x1b[4A{}\x1b[J\x1b[4A", CLEAR_ROW.repeat(4))), "{out:?}");
        let mut painter = Painter::new(LOOK, SIZE);
        painter.paint("", lines(&["0123456789012345"; 5]), SIZE);
        let out = painter.paint("", lines(&["x"]), Size { columns: 2, rows: 5 });
        assert!(out.contains("\x1b[4A"), "no further than the screen: {out:?}");
    }

    #[test]
    fn enter_leaves_nothing_behind() {
        let mut painter = Painter::new(LOOK, SIZE);
        painter.paint("", lines(&["a", "b"]), SIZE);
        painter.moved_down(2);
        let out = painter.paint("", lines(&["a", "b"]), SIZE);
        let cleared = format!("{}\x1b[J", CLEAR_ROW.repeat(4));
        assert!(out.starts_with(&format!("\x1b[?2026h\r\x1b[4A{cleared}\x1b[4Aa")), "{out:?}");
        assert_eq!(painter.paint("", lines(&["a", "b"]), SIZE), "", "it is counted once");
    }

    #[test]
    fn after_a_pause_it_begins_below() {
        let mut painter = Painter::new(LOOK, SIZE);
        painter.paint("", lines(&["a"]), SIZE);
        painter.forget();
        assert!(!painter.paint("", lines(&["a"]), SIZE).contains('A'));
    }
}
