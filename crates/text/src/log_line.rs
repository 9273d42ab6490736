//! Lines of a container's log, in the CRI format that all runtimes write.

/// One line of a log in CRI format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// When it was written, in RFC 3339 format.
    pub time: &'a str,
    /// `stdout` or `stderr`.
    pub stream: &'a str,
    /// Whether the line continues in the next entry.
    pub partial: bool,
    /// The text, without its line end.
    pub text: &'a [u8],
}

/// Parses `TIME STREAM TAGS TEXT\n`.
pub fn parse_line(line: &[u8]) -> Option<LogLine<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |b| *b == b' ');
    let mut word = || std::str::from_utf8(parts.next()?).ok();
    let (time, stream, tags) = (word()?, word()?, word()?);
    Some(LogLine {
        time,
        stream,
        partial: tags.split(':').next() == Some("P"),
        text: parts.next().unwrap_or(b""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let line = parse_line(b"2024-01-01T00:00:00.1Z stderr F a b  c\n").unwrap();
        assert_eq!((line.stream, line.partial, line.text), ("stderr", false, &b"a b  c"[..]));
        let line = parse_line(b"2024-01-01T00:00:00.1Z stdout P \n").unwrap();
        assert_eq!((line.partial, line.text), (true, &b""[..]));
        assert_eq!(parse_line(b"nonsense\n"), None);
    }
}
