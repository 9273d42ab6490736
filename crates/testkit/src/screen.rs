//! A minimal terminal. It supports only the sequences that the view may use.

use unicode_width::UnicodeWidthChar;

/// The contents and the state of a terminal.
#[derive(Debug)]
pub struct Screen {
    columns: usize,
    rows: usize,
    /// The lines that have scrolled away, and the visible ones.
    lines: Vec<Vec<char>>,
    /// Index of the first visible line.
    top: usize,
    cursor: (usize, usize),
    /// Whether the last character was written into the last column, so that the next one starts a new line.
    wrap: bool,
    pub colored: bool,
    /// Whether a synchronised update is in progress.
    pub held: bool,
    /// The number of coloured sequences so far.
    pub colors: usize,
    /// The number of complete updates so far.
    pub drawings: usize,
    /// Sequences that no view should need, such as hidden cursors, other screens and titles.
    pub strange: Vec<String>,
    rest: Vec<u8>,
}

impl Screen {
    pub fn new(columns: usize, rows: usize) -> Self {
        Screen {
            columns,
            rows,
            lines: vec![Vec::new()],
            top: 0,
            cursor: (0, 0),
            wrap: false,
            colored: false,
            held: false,
            colors: 0,
            drawings: 0,
            strange: Vec::new(),
            rest: Vec::new(),
        }
    }

    /// Resizes the terminal. It keeps long lines when it becomes narrower.
    pub fn resize(&mut self, columns: usize, rows: usize) {
        (self.columns, self.rows) = (columns, rows);
        self.top = (self.cursor.0 + 1).saturating_sub(rows).max(self.top);
    }

    /// The text of all lines, including those that have scrolled away.
    pub fn text(&self) -> String {
        let line = |l: &Vec<char>| l.iter().filter(|c| **c != '\0').collect::<String>().trim_end().to_owned();
        self.lines.iter().map(|l| line(l) + "\n").collect()
    }

    /// The last lines of the text, from the line that begins with `start`.
    pub fn since(&self, start: &str) -> Vec<String> {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.iter().rposition(|l| l.starts_with(start)).unwrap_or(lines.len());
        lines[from..].iter().map(|l| (*l).to_owned()).filter(|l| !l.is_empty()).collect()
    }

    /// The problems with the final state of a terminal.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.strange.clone();
        if self.colored {
            all.push("colours are still on".into());
        }
        if self.held {
            all.push("output is still held back".into());
        }
        if self.cursor.1 != 0 {
            all.push(format!("the cursor stands in column {}", self.cursor.1));
        }
        let below: Vec<_> = self.lines[self.cursor.0..].iter().flatten().filter(|c| **c != ' ').collect();
        if !below.is_empty() {
            all.push(format!("{below:?} stands at or below the cursor"));
        }
        all
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.rest);
        let valid = match std::str::from_utf8(&bytes) {
            Ok(_) => bytes.len(),
            Err(e) => e.valid_up_to(),
        };
        let text = std::str::from_utf8(&bytes[..valid]).expect("checked").to_owned();
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            match c {
                '\x1b' => match self.sequence(rest) {
                    Some(end) => rest = &rest[end..],
                    None => break,
                },
                c => {
                    self.put(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        self.rest = [rest.as_bytes(), &bytes[valid..]].concat();
    }

    fn put(&mut self, c: char) {
        match c {
            '\r' => (self.cursor.1, self.wrap) = (0, false),
            '\n' => self.down(),
            '\t' => self.cursor.1 = (self.cursor.1 / 8 + 1) * 8,
            c if c.is_control() => self.strange.push(format!("{c:?}")),
            c => {
                // A character without a width belongs to the one before it.
                let Some(width) = c.width().filter(|width| *width > 0) else { return };
                if self.wrap {
                    self.down();
                    self.cursor.1 = 0;
                }
                let (row, column) = self.cursor;
                let line = &mut self.lines[row];
                line.resize(line.len().max(column + width), ' ');
                line[column] = c;
                (1..width).for_each(|i| line[column + i] = '\0');
                self.wrap = column + width >= self.columns;
                self.cursor.1 = (column + width).min(self.columns - 1);
            }
        }
    }

    fn down(&mut self) {
        self.wrap = false;
        self.cursor.0 += 1;
        if self.cursor.0 == self.lines.len() {
            self.lines.push(Vec::new());
        }
        self.top = self.top.max((self.cursor.0 + 1).saturating_sub(self.rows));
    }

    /// Handles an escape sequence at the beginning of `text`. Returns its length, or `None` if it is
    /// incomplete.
    fn sequence(&mut self, text: &str) -> Option<usize> {
        let Some(body) = text.strip_prefix("\x1b[") else {
            text.chars().nth(1)?;
            self.strange.push(format!("{:?}", &text[..2]));
            return Some(2);
        };
        let end = body.find(|c: char| ('@'..='~').contains(&c))?;
        let (parameters, last) = (&body[..end], &body[end..=end]);
        let number = parameters.parse::<usize>().unwrap_or(1).max(1);
        self.wrap = false;
        match (parameters, last) {
            (_, "A") => self.cursor.0 = self.cursor.0.saturating_sub(number).max(self.top),
            (_, "B") => self.cursor.0 = (self.cursor.0 + number).min(self.lines.len() - 1),
            ("" | "0", "K") => self.lines[self.cursor.0].truncate(self.cursor.1),
            ("" | "0", "J") => {
                let is_whole = self.cursor == (self.top, 0);
                if is_whole && self.lines[self.top..].iter().any(|line| !line.is_empty()) {
                    self.strange.push("clears the whole screen, of which tmux keeps a copy".to_owned());
                }
                self.lines[self.cursor.0].truncate(self.cursor.1);
                self.lines.truncate(self.cursor.0 + 1);
            }
            (_, "m") => {
                self.colored = !matches!(parameters, "" | "0");
                self.colors += 1;
            }
            ("?2026", "h") => self.held = true,
            ("?2026", "l") => {
                self.held = false;
                self.drawings += 1;
            }
            _ => self.strange.push(format!("{:?}", &text[..end + 3])),
        }
        Some(end + 3)
    }
}
