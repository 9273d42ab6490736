//! Checks of names, and suggestions for typos.

use crate::source::{FieldPath, Finding};

/// The most names to compare with a typo, and the longest: edit distance is quadratic.
const CANDIDATES_MAX: usize = 128;
const CANDIDATE_BYTES_MAX: usize = 256;

/// The longest quote of a user's value in a message.
const QUOTE_CHARS_MAX: usize = 80;

/// A value in a message: in backticks, control characters visible, shortened if long.
pub(super) fn quote(value: &str) -> String {
    let mut text: String = value.chars().take(QUOTE_CHARS_MAX).flat_map(char::escape_debug).collect();
    if value.chars().nth(QUOTE_CHARS_MAX).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}

/// `A`, `B` or `C`.
pub(super) fn any_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| quote(w)).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., tail] => format!("{} or {tail}", head.join(", ")),
    }
}

/// The most likely correction of a typo.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > CANDIDATE_BYTES_MAX {
        return None;
    }
    let lower = word.to_lowercase();
    let near = |c: &&'a str| {
        let distance = strsim::osa_distance(&lower, &c.to_lowercase());
        // One or two letters are too few to guess from.
        let tells = word.len().max(c.len()) > 2 || distance == 0;
        (tells && distance <= (word.chars().count() / 3).max(1)).then_some((distance, *c))
    };
    candidates
        .into_iter()
        .take(CANDIDATES_MAX)
        .filter(|c| c.len() <= CANDIDATE_BYTES_MAX)
        .filter_map(|c| near(&c))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, c)| c)
}

/// An error for a value that is not one of the allowed ones.
pub(super) fn not_one_of(
    code: &'static str,
    path: FieldPath,
    what: &str,
    value: &str,
    allowed: &[&str],
) -> Finding {
    let finding = Finding::error(code, path, format!("{} is not {what}", quote(value)));
    match nearest(value, allowed.iter().copied()) {
        Some(near) => finding.hint(format!("did you mean {}?", quote(near))),
        None => finding.hint(format!("use {}", any_of(allowed))),
    }
}

fn is_alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Why a text is not a DNS-1123 label.
pub(super) fn dns_label_fault(name: &str) -> Option<&'static str> {
    let inner = |b| is_alphanumeric(b) || b == b'-';
    if name.len() > 63 {
        return Some("is longer than 63 characters");
    }
    let edges =
        name.bytes().next().is_some_and(is_alphanumeric) && name.bytes().last().is_some_and(is_alphanumeric);
    (!edges || !name.bytes().all(inner)).then_some(
        "must consist of lower case letters, digits and `-`, and begin and end with a letter or digit",
    )
}

/// Why a text is not a DNS-1123 subdomain.
pub(super) fn dns_subdomain_fault(name: &str) -> Option<&'static str> {
    if name.len() > 253 {
        return Some("is longer than 253 characters");
    }
    let label = |l: &str| {
        l.bytes().next().is_some_and(is_alphanumeric)
            && l.bytes().last().is_some_and(is_alphanumeric)
            && l.bytes().all(|b| is_alphanumeric(b) || b == b'-')
    };
    (!name.split('.').all(label)).then_some(
        "must consist of lower case letters, digits, `-` and `.`, each part beginning and ending with a letter or digit",
    )
}

/// The nearest valid label to a name, to propose in a hint: `My_App` gives `my-app`.
pub(super) fn as_dns_label(name: &str) -> Option<String> {
    let text: String = name
        .chars()
        .take(63)
        .map(|c| match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
            _ => '-',
        })
        .collect();
    let text = text.trim_matches('-');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Why a text is not a port name (IANA_SVC_NAME).
pub(super) fn port_name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > 15 {
        return Some("must have 1 to 15 characters");
    }
    if !name.bytes().all(|b| is_alphanumeric(b) || b == b'-') {
        return Some("must consist of lower case letters, digits and `-`");
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return Some("must contain a letter");
    }
    if name.starts_with('-') || name.ends_with('-') || name.contains("--") {
        return Some("must not begin or end with `-` nor contain `--`");
    }
    None
}

/// Why a text is not a name of an environment variable.
pub(super) fn env_name_fault(name: &str) -> Option<&'static str> {
    if name.contains('=') {
        return Some("must not contain `=`");
    }
    (!name.bytes().all(|b| (b' '..=b'~').contains(&b)))
        .then_some("must consist of printable ASCII characters")
}

/// Why a text is not a key of a label or annotation, or the name of an extended resource: `[domain/]name`.
pub(super) fn qualified_name_fault(key: &str) -> Option<&'static str> {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            if dns_subdomain_fault(&prefix.to_ascii_lowercase()).is_some() {
                return Some("has a prefix before the `/` that is not a domain name");
            }
            name
        }
        None => key,
    };
    value_fault(name).or_else(|| name.is_empty().then_some("has no name"))
}

/// Why a text is not a label value.
pub(super) fn value_fault(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        return Some("is longer than 63 characters");
    }
    let edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (!(edge(value.bytes().next()) && edge(value.bytes().last()) && value.bytes().all(inner))).then_some(
        "must consist of letters, digits, `-`, `_` and `.`, and begin and end with a letter or digit",
    )
}

/// Why a path could leave the directory it is meant for.
pub(super) fn local_path_fault(path: &str) -> Option<&'static str> {
    if path.starts_with('/') {
        return Some("must be relative");
    }
    path.split('/').any(|part| part == "..").then_some("must not contain `..`")
}
