//! Checks of names, quotes for messages, and suggestions for typos.

pub(super) use outrigger_text::name::{
    as_dns_label, dns_label_fault, dns_subdomain_fault, port_name_fault, qualified_name_fault, value_fault,
};

use crate::source::{FieldPath, Finding};

/// The most names that are compared with a typo, and the longest one. Edit distance takes quadratic time.
const CANDIDATES_MAX: usize = 128;
const CANDIDATE_BYTES_MAX: usize = 256;

/// The longest part of a user's value that a message quotes.
const QUOTE_CHARS_MAX: usize = 80;

/// Quotes a value for a message: in backticks, with visible control characters, shortened if it is long.
pub(super) fn quote(value: &str) -> String {
    let mut text: String = value.chars().take(QUOTE_CHARS_MAX).flat_map(char::escape_debug).collect();
    if value.chars().nth(QUOTE_CHARS_MAX).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}

/// Joins words as `A`, `B` or `C`.
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
        // Words of one or two letters are too short to guess from.
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

/// Why a text is not a valid name of an environment variable, if it is not.
pub(super) fn env_name_fault(name: &str) -> Option<&'static str> {
    if name.contains('=') {
        return Some("must not contain `=`");
    }
    (!name.bytes().all(|b| (b' '..=b'~').contains(&b)))
        .then_some("must consist of printable ASCII characters")
}

/// Why a path could leave the directory that it is meant for, if it could.
pub(super) fn local_path_fault(path: &str) -> Option<&'static str> {
    if path.starts_with('/') {
        return Some("must be relative");
    }
    path.split('/').any(|part| part == "..").then_some("must not contain `..`")
}
