//! Makes texts safe for the user's terminal.
//!
//! Colours are kept. Sequences that move the cursor, clear the screen, or change a mode or the title are
//! removed. They would break the output and leave the terminal in a different state.

use std::borrow::Cow;

/// The part of a line that remains visible after carriage returns, without control sequences except colours.
pub fn scrub(line: &[u8], colors: bool) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\r', '\n']);
    // For progress bars, only the last state counts.
    let text = text.rsplit('\r').next().unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    let mut colored = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' | '\u{9b}' => {
                if let Some(sequence) = escape(c, &mut chars)
                    && colors
                {
                    out.push_str(&sequence);
                    colored = true;
                }
            }
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => skip_string(&mut chars),
            '\t' => out.push('\t'),
            c if c.is_control() => {}
            c if reorders(c) => push_escaped(&mut out, c),
            c => out.push(c),
        }
    }
    if colored {
        out.push_str("\x1b[0m");
    }
    out
}

/// Makes our own text safe to show. Colours are kept. All other control characters, and characters that
/// change the text direction, are written as `\u001b`. JSON uses the same notation, so the meaning of JSON
/// does not change.
pub fn safe_text(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || reorders(c));
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                let mut ahead = chars.clone();
                match escape(c, &mut ahead) {
                    Some(color) => {
                        out.push_str(&color);
                        chars = ahead;
                    }
                    None => push_escaped(&mut out, c),
                }
            }
            // This is the line end of a file from Windows.
            '\r' if chars.peek() == Some(&'\n') => {}
            c if is_harmless(c) => out.push(c),
            c => push_escaped(&mut out, c),
        }
    }
    Cow::Owned(out)
}

/// Makes container output safe for a terminal, line by line. Line ends are kept.
pub fn safe_log(lines: &[u8], colors: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        out.extend_from_slice(scrub(line, colors).as_bytes());
        if line.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
    out
}

/// The text as one line, without control characters.
pub fn one_line(text: &str) -> String {
    let is_hidden = |c: char| c.is_control() || reorders(c);
    if !text.contains(is_hidden) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => out.push_str(" / "),
            c if is_hidden(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Whether a character changes the text direction. With such characters, one text can look like another.
pub(crate) fn reorders(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

pub(crate) fn push_escaped(out: &mut String, c: char) {
    out.push_str(&format!("\\u{:04x}", u32::from(c)));
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Skips an escape sequence. A colour is returned.
fn escape(first: char, chars: &mut Chars<'_>) -> Option<String> {
    if first == '\x1b' {
        match chars.next()? {
            '[' => {}
            ']' | 'P' | 'X' | '^' | '_' => {
                skip_string(chars);
                return None;
            }
            // Sequences such as `ESC ( B` have intermediate characters before the last one.
            ' '..='/' => {
                while chars.next_if(|c| matches!(c, ' '..='/')).is_some() {}
                chars.next();
                return None;
            }
            _ => return None,
        }
    }
    let mut parameters = String::new();
    while let Some(c) = chars.next_if(|c| matches!(c, ' '..='?')) {
        parameters.push(c);
    }
    let last = chars.next_if(|c| matches!(c, '@'..='~'))?;
    let is_color = last == 'm' && parameters.chars().all(|c| matches!(c, '0'..=';'));
    is_color.then(|| format!("\x1b[{parameters}m"))
}

/// Skips a title, a link or another string, up to BEL or ST.
fn skip_string(chars: &mut Chars<'_>) {
    while let Some(c) = chars.next() {
        match c {
            '\x07' | '\u{9c}' => return,
            '\x1b' => {
                chars.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_pass() {
        let table: [(&[u8], &str); 12] = [
            (b"plain", "plain"),
            (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
            (b"\x1b[38;5;200mx", "\x1b[38;5;200mx\x1b[0m"),
            (b"\x1b[2J\x1b[Hcleared", "cleared"),
            (b"\x1b[?1049h\x1b[?25lhidden", "hidden"),
            (b"\x1b[>4;2mkeys", "keys"),
            (b"\x1b]0;title\x07text", "text"),
            (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            (b"\x1b(0lines\x1b7\x1bc", "lines"),
            (b"10%\r50%\r100%\r\n", "100%"),
            (b"a\tb\x08\x07\x00c\xff", "a\tbc\u{fffd}"),
            (b"\x1b[31", ""),
        ];
        for (input, expected) in table {
            assert_eq!(scrub(input, true), expected, "{:?}", String::from_utf8_lossy(input));
        }
        assert_eq!(scrub(b"\x1b[31mred\x1b[0m", false), "red");
        assert_eq!(scrub("a\u{202e}b".as_bytes(), true), "a\\u202eb");
        assert_eq!(scrub("\u{9b}2Jx\u{9d}t\u{9c}y".as_bytes(), true), "xy");
    }

    #[test]
    fn messages_hold_nothing_a_terminal_obeys() {
        for (text, expected) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\x1b[1m\x1b[31merror:\x1b[0m x", "\x1b[1m\x1b[31merror:\x1b[0m x"),
            ("\x1b[2J\x1b[H", "\\u001b[2J\\u001b[H"),
            ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
            ("\x1bP1$r\x1b\\", "\\u001bP1$r\\u001b\\"),
            ("\u{9b}2J\u{9d}0;t\u{9c}", "\\u009b2J\\u009d0;t\\u009c"),
            ("a\rb\r\nc\x7f\x08", "a\\u000db\nc\\u007f\\u0008"),
            ("\u{202e}gpj.exe\u{2066}", "\\u202egpj.exe\\u2066"),
            ("grün 日本", "grün 日本"),
        ] {
            assert_eq!(safe_text(text), expected);
        }
        let json = "{\"a\":\"\u{9b}\u{202e}\"}";
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&safe_text(json)), value(json));
        assert_eq!(safe_log(b"a\x1b[2Jb\nc\x1b]0;t\x07d", false), b"ab\ncd");
    }
}
