//! Fits messages and names into a width.

use outrigger_text::terminal::one_line;

use crate::line::{columns, wrap_all};

/// Wraps a message to lines of at most `width` columns. Its level may be coloured, which needs no columns.
pub fn fit_message(message: &str, width: usize) -> String {
    const PLAIN_AGAIN: &str = "\x1b[0m ";
    let Some((level, text)) = message.split_once(PLAIN_AGAIN) else { return fit(message, width) };
    // Colours in the text itself would be lost.
    if text.contains('\x1b') {
        return message.to_owned();
    }
    let lead = columns(level.rsplit('m').next().unwrap_or_default()) + 1;
    let fitted = fit(&format!("{:lead$}{text}", ""), width);
    format!("{level}{PLAIN_AGAIN}{}", &fitted[lead..])
}

/// Wraps a text to lines of at most `width` columns. Its own line breaks stay. Further lines of a paragraph
/// are indented.
pub fn fit(text: &str, width: usize) -> String {
    const HANG: usize = 2;
    let mut out = String::with_capacity(text.len());
    for paragraph in text.split_inclusive('\n') {
        let (line, end) = match paragraph.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (paragraph, ""),
        };
        if columns(line) <= width {
            out.push_str(paragraph);
            continue;
        }
        let line = &one_line(line);
        let lead = line.len() - line.trim_start_matches(' ').len();
        let first =
            wrap_all(line.trim_start(), width.saturating_sub(lead)).into_iter().next().unwrap_or_default();
        let rest = &line[lead + first.len()..];
        out.push_str(&format!("{:lead$}{first}", ""));
        for more in wrap_all(rest, width.saturating_sub(lead + HANG)) {
            out.push_str(&format!("\n{:1$}{more}", "", lead + HANG));
        }
        out.push_str(end);
    }
    out
}

/// Shortens a name to at most `most` characters. The middle is left out, because names of one workload differ
/// at the end.
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
    fn sentences_fit_and_keep_their_own_lines() {
        let text = "no pod \"web\"; did you mean deploy/web?\n  one more\n";
        assert_eq!(fit(text, 80), text);
        assert_eq!(fit(text, 24), "no pod \"web\"; did you\n  mean deploy/web?\n  one more\n");
        assert!(fit(&"x".repeat(70), 60).lines().all(|line| line.len() <= 60));
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("web-x7k2p", 18), "web-x7k2p");
        assert_eq!(shorten("checkout-frontend-7d4b9c6f5d-x7k2p", 18), "checkout…f5d-x7k2p");
        assert_eq!(shorten("checkout-frontend-7d4b9c6f5d-x7k2p", 18).chars().count(), 18);
    }
}
