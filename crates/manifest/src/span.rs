//! Source files and positions in them.

use std::sync::Arc;

use crate::diagnostic::Diagnostic;

/// One file (or standard input) of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The name of the file in messages, usually its path.
    pub name: String,
    /// Its text.
    pub text: Arc<str>,
}

impl SourceFile {
    /// A source from text.
    pub fn new(name: impl Into<String>, text: impl Into<Arc<str>>) -> Self {
        SourceFile { name: name.into(), text: text.into() }
    }

    /// A source from the bytes of a file; fails if they are not UTF-8.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, Box<Diagnostic>> {
        let name = name.into();
        match String::from_utf8(bytes) {
            Ok(text) => Ok(SourceFile::new(name, text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let bytes = error.as_bytes();
                let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
                if let Some((what, hint)) = binary(bytes).filter(|_| !is_utf16) {
                    return Err(Diagnostic::error(None, format!("{name} is not text: {what}"))
                        .hint(hint)
                        .into());
                }
                let line = bytes[..at].iter().filter(|&&b| b == b'\n').count() + 1;
                let start = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
                let column = String::from_utf8_lossy(&bytes[start..at]).chars().count() + 1;
                let message =
                    format!("{name}:{line}:{column}: not UTF-8 text, found the byte 0x{:02x}", bytes[at]);
                let hint =
                    if is_utf16 { "the file is UTF-16: save it as UTF-8" } else { "save the file as UTF-8" };
                Err(Diagnostic::error(None, message).hint(hint).into())
            }
        }
    }

    /// Line and column of a byte offset, both counted from 1, the column in characters.
    pub fn position(&self, offset: usize) -> Position {
        let offset = floor_boundary(&self.text, offset);
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        Position {
            line: before.bytes().filter(|&b| b == b'\n').count() + 1,
            column: before[start..].chars().filter(|&c| c != '\u{feff}').count() + 1,
        }
    }

    /// The text a span covers.
    pub fn slice(&self, span: Span) -> &str {
        let start = floor_boundary(&self.text, span.start);
        let end = floor_boundary(&self.text, span.end).max(start);
        &self.text[start..end]
    }
}

/// The largest character boundary at or before `offset`.
pub(crate) fn floor_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// Line and column, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// A range of bytes of one source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Index of the file among the sources.
    pub file: usize,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// A span.
    pub fn new(file: usize, start: usize, end: usize) -> Self {
        Span { file, start, end: end.max(start) }
    }

    /// An empty span at an offset.
    pub fn at(file: usize, offset: usize) -> Self {
        Span::new(file, offset, offset)
    }

    /// Whether the span is empty.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// What a file is that was never text, and what to do about it.
fn binary(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const LOOKED_AT: usize = 8 << 10;
    match bytes {
        [0x1f, 0x8b, ..] => Some(("it is compressed with gzip", "decompress it with `gunzip`")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("it is compressed with zstd", "decompress it with `unzstd`")),
        _ if bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0) => {
            Some(("it holds binary data", "name a manifest, which is YAML or JSON"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let source = SourceFile::new("f", "a: é x\nb: 1\n");
        assert_eq!(source.position(0), Position { line: 1, column: 1 });
        assert_eq!(source.position(6), Position { line: 1, column: 6 });
        assert_eq!(source.position(8), Position { line: 2, column: 1 });
        assert_eq!(source.position(999), Position { line: 3, column: 1 });
    }

    #[test]
    fn what_is_not_utf8_is_refused_with_its_place() {
        let error = SourceFile::from_bytes("p.yaml", b"a: 1\nb: \xff\n".to_vec()).unwrap_err();
        assert_eq!(error.message, "p.yaml:2:4: not UTF-8 text, found the byte 0xff");
        let error = SourceFile::from_bytes("p.yaml", b"\xff\xfea\0".to_vec()).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("the file is UTF-16: save it as UTF-8"));
        for (bytes, message) in [
            (&b"\x1f\x8b\x08\0"[..], "p.yaml is not text: it is compressed with gzip"),
            (&b"\x7fELF\x02\x01\x01\0\xff"[..], "p.yaml is not text: it holds binary data"),
        ] {
            let error = SourceFile::from_bytes("p.yaml", bytes.to_vec()).unwrap_err();
            assert_eq!(error.message, message);
        }
    }
}
