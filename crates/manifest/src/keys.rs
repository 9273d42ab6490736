//! Checks the keys of ConfigMaps and Secrets, which become file names.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::span::Span;
use crate::tree::Node;

/// The longest key (`IsConfigMapKey` of the Kubernetes API).
const LENGTH_MAX: usize = 253;

/// Reports keys that the Kubernetes API refuses.
pub(crate) fn check(kind: &str, node: &Node, out: &mut Vec<Diagnostic>) {
    let mut texts: BTreeMap<&Arc<str>, Span> = BTreeMap::new();
    for field in ["data", "binaryData", "stringData"] {
        for entry in node.get(field).and_then(Node::entries).unwrap_or_default() {
            if let Some(fault) = fault(&entry.key) {
                let key: String = entry.key.chars().take(80).flat_map(char::escape_debug).collect();
                let error = Diagnostic::error(entry.key_span, format!("key `{key}` of a {kind} {fault}"))
                    .hint("for a path with directories use `items` of the volume: `{key: KEY, path: a/b}`");
                out.push(Diagnostic { code: Some("key"), ..error });
            }
            match (field, texts.get(&entry.key)) {
                ("data", _) => drop(texts.insert(&entry.key, entry.key_span)),
                ("binaryData", Some(first)) => {
                    let message = format!("key `{}` is both in data and in binaryData", entry.key);
                    let error =
                        Diagnostic::error(entry.key_span, message).label(*first, "it is first used here");
                    out.push(Diagnostic { code: Some("key"), ..error.hint("rename one") });
                }
                _ => {}
            }
        }
    }
}

fn fault(key: &str) -> Option<&'static str> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(is_good) {
        return Some("must consist of letters, digits, `-`, `_` and `.`");
    }
    if key.len() > LENGTH_MAX {
        return Some("is longer than 253 characters");
    }
    (key == "." || key.starts_with("..")).then_some("must not be `.` nor begin with `..`")
}
