//! Styled lines: text with colours, and its width on a terminal.

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthChar;

use outrigger_text::terminal::one_line;

/// The meaning of a text, which determines its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Paint {
    /// Ordinary text.
    #[default]
    Plain,
    /// Less important text.
    Dim,
    /// More important text.
    Bold,
    /// A good state.
    Good,
    /// A state that is changing.
    Busy,
    /// A bad state.
    Bad,
    /// The name of the container with this index in its plan.
    Name(usize),
}

/// The colours of containers. Red is reserved for failures.
const NAMES: [AnsiColor; 10] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
    AnsiColor::BrightGreen,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightYellow,
    AnsiColor::BrightBlue,
];

impl Paint {
    fn style(self) -> Style {
        match self {
            Paint::Plain => Style::new(),
            Paint::Dim => Style::new().dimmed(),
            Paint::Bold => Style::new().bold(),
            Paint::Good => AnsiColor::Green.on_default(),
            Paint::Busy => AnsiColor::Yellow.on_default(),
            Paint::Bad => AnsiColor::Red.on_default().bold(),
            Paint::Name(place) => NAMES[place % NAMES.len()].on_default(),
        }
    }

    /// Renders text in this paint, with or without colours.
    pub(crate) fn text(self, text: &str, colors: bool) -> String {
        match colors && self != Paint::Plain {
            true => format!("{0}{text}{0:#}", self.style()),
            false => text.to_owned(),
        }
    }
}

/// One line. It never contains control characters, because they are removed from every added text. Messages
/// come from containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Line {
    spans: Vec<(Paint, String)>,
}

impl Line {
    /// An empty line.
    pub(crate) fn new() -> Self {
        Line::default()
    }

    /// A line with one piece of text.
    pub(crate) fn of_text(paint: Paint, text: &str) -> Self {
        Line::new().with(paint, text)
    }

    /// The line with a piece of text added.
    pub(crate) fn with(mut self, paint: Paint, text: &str) -> Self {
        self.push(paint, text);
        self
    }

    /// Adds a piece of text.
    pub(crate) fn push(&mut self, paint: Paint, text: &str) {
        let text = one_line(text);
        match self.spans.last_mut() {
            _ if text.is_empty() => {}
            Some((last, before)) if *last == paint => before.push_str(&text),
            _ => self.spans.push((paint, text)),
        }
    }

    /// Adds a piece of text, cut or padded to exactly `width` columns.
    pub(crate) fn push_cell(&mut self, paint: Paint, text: &str, width: usize) {
        let text = cut(&one_line(text), width);
        let fill = width - columns(&text);
        self.push(paint, &text);
        self.push(Paint::Plain, &" ".repeat(fill));
    }

    /// Adds another line.
    pub(crate) fn append(&mut self, other: Line) {
        for (paint, text) in other.spans {
            self.push(paint, &text);
        }
    }

    /// Its width in columns.
    pub(crate) fn width(&self) -> usize {
        self.spans.iter().map(|(_, text)| columns(text)).sum()
    }

    /// The line in at most `width` columns. An ellipsis shows that it was cut.
    pub(crate) fn cut(mut self, width: usize) -> Self {
        // Spaces at the end can be dropped.
        while let Some((_, text)) = self.spans.last_mut() {
            text.truncate(text.trim_end_matches(' ').len());
            match text.is_empty() {
                true => self.spans.pop(),
                false => break,
            };
        }
        if self.width() <= width {
            return self;
        }
        let mut left = width.saturating_sub(1);
        let mut end = 0;
        for (_, text) in &mut self.spans {
            end += 1;
            let taken = prefix(text, left);
            left -= columns(&text[..taken]);
            if taken < text.len() {
                text.truncate(taken);
                break;
            }
        }
        self.spans.truncate(end);
        if width > 0 {
            self.push(Paint::Dim, "…");
        }
        self
    }

    /// Renders the line for a terminal.
    pub(crate) fn render(&self, look: Look) -> String {
        let mut out = String::new();
        for (paint, text) in &self.spans {
            match look.unicode {
                true => out.push_str(&paint.text(text, look.colors)),
                false => out.push_str(&paint.text(&ascii(text), look.colors)),
            }
        }
        out.truncate(out.trim_end_matches(' ').len());
        out
    }
}

/// What a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Whether it shows colours.
    pub(crate) colors: bool,
    /// Whether it shows more than ASCII.
    pub(crate) unicode: bool,
}

/// Replaces symbols with ASCII, one column each.
fn ascii(text: &str) -> String {
    let sign = |c: char| match c {
        '…' => '~',
        '·' => '-',
        '█' => '#',
        '░' => '.',
        '✓' => '+',
        '✗' => 'x',
        '●' => '*',
        '○' => 'o',
        '◐' => '~',
        '■' => '=',
        c => c,
    };
    text.chars().map(sign).collect()
}

/// The width of a text in columns.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Cuts the text to at most `width` columns.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut out = text[..prefix(text, width.saturating_sub(1))].to_owned();
    if width > 0 {
        out.push('…');
    }
    out
}

/// The number of bytes of the text that fit into `width` columns.
fn prefix(text: &str, width: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > width {
            return at;
        }
    }
    text.len()
}

/// Wraps text at spaces to lines of at most `width` columns, and breaks longer words. After `lines` lines, an
/// ellipsis replaces the rest.
pub(crate) fn wrap(text: &str, width: usize, lines: usize) -> Vec<String> {
    let text = one_line(text);
    let mut out: Vec<String> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() && out.len() < lines && width > 0 {
        if columns(rest) <= width || out.len() + 1 == lines {
            out.push(cut(rest, width));
            break;
        }
        // Look at one character more than fits, because the space at a line break needs no room.
        let room = prefix(rest, width);
        let reach = rest[room..].chars().next().map_or(room, |c| room + c.len_utf8());
        let blanks = || rest[..reach].match_indices(' ').map(|(at, _)| at).filter(|at| *at > 0);
        let end = match blanks().rfind(|at| !parts_number(rest, *at)).or_else(|| blanks().next_back()) {
            Some(at) => at,
            None => room.max(rest.chars().next().map_or(1, char::len_utf8)),
        };
        out.push(rest[..end].trim_end().to_owned());
        rest = rest[end..].trim_start();
    }
    out
}

/// Wraps text without a limit of lines.
pub(crate) fn wrap_all(text: &str, width: usize) -> Vec<String> {
    wrap(text, width.max(1), usize::MAX)
}

/// Whether a space is between a number and its unit.
fn parts_number(text: &str, blank: usize) -> bool {
    let (before, after) = (text[..blank].chars().next_back(), text[blank + 1..].chars().next());
    before.is_some_and(|c| c.is_ascii_digit()) && after.is_some_and(|c| c.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look { colors: false, unicode: true };

    #[test]
    fn lines_are_cut_to_columns_not_bytes() {
        let line = Line::of_text(Paint::Bold, "größer").with(Paint::Plain, " 日本語 text");
        assert_eq!(line.width(), 6 + 1 + 6 + 5);
        for (width, expected) in
            [(18, "größer 日本語 text"), (10, "größer 日…"), (9, "größer …"), (1, "…"), (0, "")]
        {
            let cut = line.clone().cut(width);
            assert!(cut.width() <= width, "{width}");
            assert_eq!(cut.render(PLAIN), expected, "{width}");
        }
    }

    #[test]
    fn text_cannot_steer_the_terminal() {
        let line = Line::of_text(Paint::Plain, "a\x1b[2Jb\r\nc\u{9b}d\n");
        assert_eq!(line.render(PLAIN), "a [2Jb  / c d");
    }

    #[test]
    fn words_stay_whole_where_they_can() {
        let text = "waits for `proxy` to be ready";
        assert_eq!(wrap(text, 80, 3), [text]);
        assert_eq!(wrap(text, 17, 3), ["waits for `proxy`", "to be ready"]);
        assert_eq!(wrap(text, 16, 2), ["waits for", "`proxy` to be r…"]);
        assert_eq!(wrap("waited 6.1 s", 10, 3), ["waited", "6.1 s"], "numbers keep their unit");
        assert_eq!(wrap("10 s", 3, 3), ["10", "s"]);
        assert_eq!(wrap("abcdefgh", 3, 9), ["abc", "def", "gh"]);
        assert_eq!(wrap("日本", 1, 9).len(), 2, "makes progress even where nothing fits");
        assert!(wrap("", 3, 3).is_empty() && wrap("a", 0, 3).is_empty());
    }

    #[test]
    fn colours_end_with_the_text() {
        let line = Line::of_text(Paint::Bad, "x").with(Paint::Plain, " y");
        assert_eq!(line.render(Look { colors: true, unicode: true }), "\x1b[1m\x1b[31mx\x1b[0m y");
        assert_eq!(line.render(PLAIN), "x y");
        let signs = Line::of_text(Paint::Good, "✓ ●…");
        assert_eq!(signs.render(Look { colors: false, unicode: false }), "+ *~");
    }
}
