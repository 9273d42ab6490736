//! Small text helpers.

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
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("web-x7k2p", 18), "web-x7k2p");
        assert_eq!(shorten("checkout-frontend-7d4b9c6f5d-x7k2p", 18), "checkout…f5d-x7k2p");
        assert_eq!(shorten("checkout-frontend-7d4b9c6f5d-x7k2p", 18).chars().count(), 18);
    }
}
