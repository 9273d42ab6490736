//! Parses JSON text into a spanned tree. The YAML parser cannot do this, because tabs, surrogate escapes and
//! long keys differ.

use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::scalar::Scalar;
use crate::span::Span;
use crate::tree::{Document, Node, Value};
use crate::yaml::{MapBuilder, Parsed};

/// Whether a text looks like JSON.
pub(crate) fn looks_like_json(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '['])
}

/// Parses one or more JSON values.
pub(crate) fn parse(file: usize, text: &str, limits: &Limits) -> Result<Parsed, Box<Diagnostic>> {
    let bom = text.len() - text.trim_start_matches('\u{feff}').len();
    let mut reader = Reader { file, text, at: bom, limits, nodes: 0, parsed: Parsed::default() };
    loop {
        reader.space();
        if reader.at == text.len() {
            return Ok(reader.parsed);
        }
        if reader.parsed.documents.len() >= limits.documents_max {
            let message = format!("more than {} documents in one file", limits.documents_max);
            return Err(Diagnostic::error(reader.here(), message).hint("split the file").into());
        }
        let (start, nodes) = (reader.at, reader.nodes);
        let root = reader.value(0)?;
        let weight = reader.at - start + (reader.nodes - nodes) * size_of::<Node>();
        reader.parsed.documents.push(Document { root, weight });
    }
}

struct Reader<'t> {
    file: usize,
    text: &'t str,
    at: usize,
    limits: &'t Limits,
    nodes: usize,
    parsed: Parsed,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn here(&self) -> Span {
        let width = self.text[self.at..].chars().next().map_or(0, char::len_utf8);
        Span::new(self.file, self.at, self.at + width)
    }

    fn expected(&self, what: &str) -> Box<Diagnostic> {
        let found = match self.text[self.at..].chars().next() {
            None => "the end of the file".to_owned(),
            Some(c) => format!("`{}`", c.escape_debug()),
        };
        Diagnostic::error(self.here(), format!("not valid JSON: expected {what}, found {found}")).into()
    }

    fn node(&self, start: usize, flow: bool, value: Value) -> Node {
        Node { span: Span::new(self.file, start, self.at), alias: None, flow, value }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Box<Diagnostic>> {
        self.nodes += 1;
        if self.nodes > self.limits.nodes_max {
            let message = format!("the file has more than {} values", self.limits.nodes_max);
            return Err(Diagnostic::error(self.here(), message).hint("split the file").into());
        }
        if depth > self.limits.depth_max {
            let message = format!("nested more than {} levels deep", self.limits.depth_max);
            return Err(Diagnostic::error(self.here(), message).into());
        }
        let start = self.at;
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => {
                let text = Arc::from(self.string()?);
                Ok(self.node(
                    start,
                    false,
                    Value::Scalar(Scalar { text, plain: false, pieces: Arc::default() }),
                ))
            }
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Node, Box<Diagnostic>> {
        let start = self.at;
        let mut map = MapBuilder::default();
        self.at += 1;
        self.space();
        if self.peek() != Some(b'}') {
            loop {
                self.space();
                let key_start = self.at;
                if self.peek() != Some(b'"') {
                    return Err(self.expected("a key in double quotes"));
                }
                let key = Arc::from(self.string()?);
                let key_span = Span::new(self.file, key_start, self.at);
                self.space();
                self.token(b':', "`:`")?;
                self.space();
                let value = self.value(depth + 1)?;
                let entry = crate::tree::Entry { key, key_span, key_plain: false, merged: false, value };
                map.push(entry, &mut self.parsed.duplicates);
                self.space();
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b'}') => break,
                    _ => return Err(self.expected("`,` or `}`")),
                }
            }
        }
        self.at += 1;
        Ok(self.node(start, true, Value::Map(map.entries)))
    }

    fn array(&mut self, depth: usize) -> Result<Node, Box<Diagnostic>> {
        let start = self.at;
        let mut items = Vec::new();
        self.at += 1;
        self.space();
        if self.peek() != Some(b']') {
            loop {
                self.space();
                items.push(self.value(depth + 1)?);
                self.space();
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b']') => break,
                    _ => return Err(self.expected("`,` or `]`")),
                }
            }
        }
        self.at += 1;
        Ok(self.node(start, true, Value::Seq(items)))
    }

    fn token(&mut self, byte: u8, what: &str) -> Result<(), Box<Diagnostic>> {
        if self.peek() != Some(byte) {
            return Err(self.expected(what));
        }
        self.at += 1;
        Ok(())
    }

    /// Parses `true`, `false`, `null` or a number.
    fn word(&mut self) -> Result<Node, Box<Diagnostic>> {
        let start = self.at;
        let rest = &self.text[start..];
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
            .unwrap_or(rest.len());
        let word = &rest[..end];
        if !matches!(word, "true" | "false" | "null") && !is_json_number(word) {
            return Err(self.expected("a value"));
        }
        self.at += end;
        let scalar = Scalar { text: Arc::from(word), plain: true, pieces: Arc::default() };
        Ok(self.node(start, false, Value::Scalar(scalar)))
    }

    fn string(&mut self) -> Result<String, Box<Diagnostic>> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(run) = rest.find(|c: char| c == '"' || c == '\\' || c < ' ') else {
                let span = Span::new(self.file, start, start + 1);
                return Err(Diagnostic::error(span, "not valid JSON: this string does not end").into());
            };
            out.push_str(&rest[..run]);
            self.at += run;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                _ => {
                    return Err(self
                        .expected("the end of the string")
                        .hint(r"write a line break as `\n`, a tab as `\t`")
                        .into());
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Box<Diagnostic>> {
        let start = self.at;
        let code = self.text.as_bytes().get(start + 1).copied();
        self.at = (start + 2).min(self.text.len());
        let c = match code {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.hex(start)?;
                match first {
                    0xd800..=0xdbff => {
                        if !self.text[self.at..].starts_with("\\u") {
                            return Err(self.bad_escape(start));
                        }
                        self.at += 2;
                        let second = self.hex(start)?;
                        let (0xdc00..=0xdfff) = second else {
                            return Err(self.bad_escape(start));
                        };
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        char::from_u32(code).ok_or_else(|| self.bad_escape(start))?
                    }
                    _ => char::from_u32(first).ok_or_else(|| self.bad_escape(start))?,
                }
            }
            _ => {
                self.at = start;
                return Err(self.bad_escape(start));
            }
        };
        Ok(c)
    }

    fn hex(&mut self, start: usize) -> Result<u32, Box<Diagnostic>> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let value =
            digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or_else(|| self.bad_escape(start))?;
        self.at += 4;
        Ok(value)
    }

    fn bad_escape(&self, start: usize) -> Box<Diagnostic> {
        Diagnostic::error(Span::new(self.file, start, start + 1), "not valid JSON: this is not a JSON escape")
            .hint(r#"JSON knows `\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t` and `\uXXXX`"#)
            .into()
    }
}

fn is_json_number(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    digits.starts_with(|c: char| c.is_ascii_digit())
        && !(digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit())
        && word.parse::<f64>().is_ok()
        && !word.ends_with('.')
        && !word.contains(".e")
        && !word.contains(".E")
}
