//! Finds positions in the lines of a text: line ends, columns, dashes and comments.

use crate::tree::{Entry, Node};

/// The start of the line that contains an offset.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |i| i + 1)
}

/// The end of the line that contains an offset, without its line break.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    let end = text[at..].find('\n').map_or(text.len(), |i| at + i);
    if end > at && text[..end].ends_with('\r') { end - 1 } else { end }
}

/// The start of the next line, or the end of the text.
pub(super) fn next_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |i| at + i + 1)
}

/// How far an offset is from the start of its line.
pub(super) fn column(text: &str, at: usize) -> usize {
    at - line_start(text, at)
}

/// Whether only spaces precede an offset on its line.
pub(super) fn first_on_line(text: &str, at: usize) -> bool {
    text[line_start(text, at)..at].bytes().all(|b| b == b' ')
}

/// Whether only a comment follows an offset on its line, or nothing.
pub(super) fn last_on_line(text: &str, at: usize) -> bool {
    let rest = text[at..line_end(text, at)].trim_start();
    rest.is_empty() || rest.starts_with('#')
}

/// The line break the text uses.
pub(super) fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// The end of an entry's value. If there is no value, the end of its colon.
pub(super) fn entry_end(text: &str, entry: &Entry) -> usize {
    match entry.value.alias {
        Some(alias) => alias.end,
        None if entry.value.span.is_empty() => after_colon(text, entry),
        None => entry.value.span.end,
    }
}

/// The end of an entry's colon.
pub(super) fn after_colon(text: &str, entry: &Entry) -> usize {
    let key_end = entry.key_span.end;
    text[key_end..].find(':').map_or(key_end, |i| key_end + i + 1)
}

/// The position where a node is used. For an aliased node, this is the alias.
pub(super) fn used(node: &Node) -> (usize, usize) {
    let span = node.alias.unwrap_or(node.span);
    (span.start, span.end)
}

/// The position of the dash of a block list's entry.
pub(super) fn dash(text: &str, item: &Node) -> Option<usize> {
    let mut at = used(item).0;
    loop {
        let start = line_start(text, at);
        let line = &text[start..at];
        // There may be a comment between the dash and its entry. Only the text before the comment counts.
        let code = line.find(" #").map_or(line, |i| &line[..i]);
        let code = if code.trim_start().starts_with('#') { "" } else { code };
        let trimmed = code.trim_end();
        if trimmed.ends_with('-') {
            return Some(start + trimmed.len() - 1);
        }
        if !trimmed.is_empty() || start == 0 {
            return None;
        }
        at = start - 1;
    }
}

/// The start of the line of a dash or key, including the comment lines directly above it with the same
/// indentation.
pub(super) fn block_start(text: &str, at: usize) -> usize {
    let indent = column(text, at);
    let mut start = line_start(text, at);
    while start > 0 {
        let above = line_start(text, start - 1);
        let line = &text[above..start];
        if !line.trim_start().starts_with('#') || line.len() - line.trim_start().len() != indent {
            break;
        }
        start = above;
    }
    start
}

/// The end of the comment lines below an offset that are indented deeper than a column, and so belong to the
/// value above them. If there are none, the offset itself.
pub(super) fn comments_end(text: &str, at: usize, column: usize) -> usize {
    let mut end = at;
    let mut start = if text[..at].ends_with('\n') { at } else { next_line(text, at) };
    while start < text.len() {
        let line = &text[start..line_end(text, start)];
        let words = line.trim_start();
        if words.starts_with('#') && line.len() - words.len() > column {
            end = start + line.len();
        } else if !words.is_empty() {
            break;
        }
        start = next_line(text, start);
    }
    end
}

/// Moves lines to the right, or to the left as far as there are spaces. Empty lines stay empty.
pub(super) fn shift(lines: &str, from: usize, to: usize) -> String {
    let mut out = String::with_capacity(lines.len());
    for line in lines.split_inclusive('\n') {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        if line.trim().is_empty() {
            out.push_str(line);
        } else if to >= from {
            out.push_str(&" ".repeat(to - from));
            out.push_str(line);
        } else {
            out.push_str(&line[spaces.min(from - to)..]);
        }
    }
    out
}
