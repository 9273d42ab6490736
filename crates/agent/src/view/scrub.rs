//! A container's output on a terminal that is not its own.
//!
//! Colours pass; whatever would move the cursor, clear the screen, change a mode or the title does not, or the view
//! below would break and the terminal would be left as the container likes it.

/// The last part of a line that is still visible when carriage returns have overwritten the rest, without anything a
/// terminal would obey but colours.
pub(crate) fn scrub(line: &[u8], colors: bool) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\r', '\n']);
    // Progress bars: only what was drawn last counts.
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
            c => out.push(c),
        }
    }
    if colored {
        out.push_str("\x1b[0m");
    }
    out
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Takes an escape sequence; a colour is returned.
fn escape(first: char, chars: &mut Chars<'_>) -> Option<String> {
    if first == '\x1b' {
        match chars.next()? {
            '[' => {}
            ']' | 'P' | 'X' | '^' | '_' => {
                skip_string(chars);
                return None;
            }
            // `ESC ( B` and the like have intermediate characters before the last.
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

/// Titles, links and other strings: up to BEL or ST.
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
        assert_eq!(scrub("\u{9b}2Jx\u{9d}t\u{9c}y".as_bytes(), true), "xy");
    }
}
