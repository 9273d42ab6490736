//! Makes the output of a command safe for the user's terminal while it arrives.
//!
//! This does the same as [`crate::terminal::safe_log`], for output in pieces. A sequence or a character may
//! be split between two pieces, and a prompt without a line end is shown at once.

use crate::terminal::{push_escaped, reorders};

/// The longest list of parameters that is kept. Colours need fewer.
const PARAMETERS_MAX: usize = 64;

/// Makes a stream of output safe for a terminal. Colours are kept, and all other control sequences are
/// removed. Characters that change the text direction are written as `\u202e`.
#[derive(Debug)]
pub struct SafeStream {
    colors: bool,
    /// Whether a colour was set in this line.
    is_colored: bool,
    /// The beginning of a character whose remaining bytes have not arrived.
    begun: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    Text,
    /// After ESC.
    Escape,
    /// After ESC and a character that requires another one.
    Intermediate,
    /// After `ESC [`, with the parameters so far.
    Parameters(String),
    /// In a title, a link or another string, which ends with BEL or ST.
    String,
    /// After ESC in a string.
    StringEscape,
}

impl SafeStream {
    /// A new stream. Without `colors`, colours are removed too.
    pub fn new(colors: bool) -> Self {
        SafeStream { colors, is_colored: false, begun: Vec::new(), state: State::Text }
    }

    /// The safe form of the next piece.
    pub fn next(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.begun);
        bytes.extend_from_slice(piece);
        let mut out = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            chunk.valid().chars().for_each(|c| self.take(c, &mut out));
            let invalid = chunk.invalid();
            let is_begun = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_begun && chunks.peek().is_none() {
                self.begun = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.take(char::REPLACEMENT_CHARACTER, &mut out);
            }
        }
        out.into_bytes()
    }

    /// The rest to show at the end of the stream.
    pub fn end(&mut self) -> Vec<u8> {
        let mut out = String::new();
        if !std::mem::take(&mut self.begun).is_empty() {
            self.take(char::REPLACEMENT_CHARACTER, &mut out);
        }
        self.reset(&mut out);
        out.into_bytes()
    }

    fn take(&mut self, c: char, out: &mut String) {
        // As in a log, a sequence ends at the end of its line. An unclosed one can only hide text of its own
        // line.
        if c == '\n' {
            self.reset(out);
            out.push(c);
            self.state = State::Text;
            return;
        }
        self.state = match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(c, out),
            State::Escape => match c {
                '[' => State::Parameters(String::new()),
                ']' | 'P' | 'X' | '^' | '_' => State::String,
                ' '..='/' => State::Intermediate,
                '\x1b' => State::Escape,
                _ => State::Text,
            },
            State::Intermediate if matches!(c, ' '..='/') => State::Intermediate,
            State::Intermediate => State::Text,
            State::Parameters(mut parameters) => match c {
                ' '..='?' => {
                    if parameters.len() < PARAMETERS_MAX {
                        parameters.push(c);
                    }
                    State::Parameters(parameters)
                }
                '@'..='~' => {
                    let is_color = c == 'm'
                        && parameters.len() < PARAMETERS_MAX
                        && parameters.chars().all(|c| matches!(c, '0'..=';'));
                    if is_color && self.colors {
                        out.push_str(&format!("\x1b[{parameters}m"));
                        self.is_colored = true;
                    }
                    State::Text
                }
                c => self.text(c, out),
            },
            State::String => match c {
                '\x07' | '\u{9c}' => State::Text,
                '\x1b' => State::StringEscape,
                _ => State::String,
            },
            State::StringEscape if c == '\\' => State::Text,
            State::StringEscape => self.text(c, out),
        };
    }

    fn text(&mut self, c: char, out: &mut String) -> State {
        match c {
            '\x1b' => return State::Escape,
            '\u{9b}' => return State::Parameters(String::new()),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => return State::String,
            // A carriage return goes back to the beginning of its own line, as progress bars do.
            '\t' | '\r' => out.push(c),
            c if c.is_control() => {}
            c if reorders(c) => push_escaped(out, c),
            c => out.push(c),
        }
        State::Text
    }

    fn reset(&mut self, out: &mut String) {
        if std::mem::take(&mut self.is_colored) {
            out.push_str("\x1b[0m");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [(&str, &str); 16] = [
        ("plain grün 日本\n", "plain grün 日本\n"),
        ("name: ", "name: "),
        ("10%\r50%\r\n", "10%\r50%\r\n"),
        ("\x1b[31mred\nnot red\x1b[m", "\x1b[31mred\x1b[0m\nnot red\x1b[m\x1b[0m"),
        ("\x1b[2J\x1b[Hcleared\x1bc", "cleared"),
        ("\x1b[?1049h\x1b[?25l\x1b[>4;2mhidden", "hidden"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;cm0gLXJm\x1b\\text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\dcs\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\", "dcs"),
        ("\u{9b}2Jx\u{9d}t\u{9c}y\u{90}q\u{9c}z", "xyz"),
        ("\x1b(0lines\x1b7\x1b\x1b[1;1Hend", "linesend"),
        ("\x1b]0;never closed\nnext", "\nnext"),
        ("\x1b[3\x1b[2J1m", "1m"),
        ("\u{202e}gpj.exe\u{2066}", "\\u202egpj.exe\\u2066"),
        ("a\tb\x08\x07\x00\x7fc", "a\tbc"),
    ];

    fn shown<'a>(pieces: impl Iterator<Item = &'a [u8]>, colors: bool) -> String {
        let mut stream = SafeStream::new(colors);
        let mut out: Vec<u8> = pieces.flat_map(|piece| stream.next(piece)).collect();
        out.extend(stream.end());
        String::from_utf8(out).unwrap()
    }

    /// No part of a sequence is shown, wherever the pieces split it.
    #[test]
    fn pieces_of_any_size_are_the_same() {
        for (input, expected) in TABLE {
            for size in 1..=input.len() {
                assert_eq!(shown(input.as_bytes().chunks(size), true), expected, "{input:?} by {size}");
            }
        }
        assert_eq!(shown([&b"\x1b[31mred\x1b[0m"[..]].into_iter(), false), "red");
        let long = format!("\x1b[{}mx", "1;".repeat(100));
        assert_eq!(shown([long.as_bytes()].into_iter(), true), "x");
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        // In terminals without UTF-8, the byte 0x9b is a control character.
        for (input, expected) in [
            (&b"\x9b2Jx"[..], "\u{fffd}2Jx"),
            (b"a\xffb", "a\u{fffd}b"),
            (b"cut \xe2\x80", "cut \u{fffd}"),
            (b"\xe2\x80x\xf0\x9f\x98\x80", "\u{fffd}x\u{1f600}"),
        ] {
            for size in 1..=input.len() {
                assert_eq!(shown(input.chunks(size), true), expected, "{input:?} by {size}");
            }
        }
    }
}
