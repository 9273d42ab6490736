//! Helpers for human-readable text.

/// Maximum length of command output in messages.
const EXCERPT_MAX: usize = 200;

/// The start of an output as a single line; `None` if it is blank.
pub(crate) fn excerpt(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return None;
    }
    if line.len() > EXCERPT_MAX {
        let end = (0..=EXCERPT_MAX).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt(b" \n"), None);
        assert_eq!(excerpt(b"no\n such  file\n").as_deref(), Some("no such file"));
        let long = excerpt("ä".repeat(300).as_bytes()).unwrap();
        assert!(long.len() <= EXCERPT_MAX + '…'.len_utf8() && long.ends_with('…'));
    }
}
