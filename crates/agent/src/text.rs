//! Small helpers for text people read.

/// What is shown of a command's output.
const EXCERPT_MAX: usize = 200;

/// The beginning of an output on one line; `None` if there is nothing to see.
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

/// A name no longer than `most` characters: what is too much is left out of its middle, for names of one workload
/// differ at their end.
pub fn shorten(name: &str, most: usize) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= most || most < 3 {
        return name.to_owned();
    }
    let head = (most - 1) / 2;
    let tail = most - 1 - head;
    chars[..head].iter().chain(&['…']).chain(&chars[chars.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("web-x7k2p", 18), "web-x7k2p");
        assert_eq!(shorten("checkout-frontend-7d4b9c6f5d-x7k2p", 18), "checkout…f5d-x7k2p");
        assert_eq!(shorten("checkout-frontend-7d4b9c6f5d-x7k2p", 18).chars().count(), 18);
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt(b" \n"), None);
        assert_eq!(excerpt(b"no\n such  file\n").as_deref(), Some("no such file"));
        let long = excerpt("ä".repeat(300).as_bytes()).unwrap();
        assert!(long.len() <= EXCERPT_MAX + '…'.len_utf8() && long.ends_with('…'));
    }
}
