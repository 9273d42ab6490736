//! Writes values as YAML or JSON.

use serde_json::Value;

use crate::scalar::{Resolved, resolve_plain};

/// The style of a value on one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// After `key: ` in block style.
    Block,
    /// Inside `{…}` or `[…]` of YAML.
    Flow,
    /// As JSON.
    Json,
}

/// A value on one line.
pub(crate) fn inline(value: &Value, style: Style) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => string_literal(text, style),
        Value::Array(items) => {
            let style = if style == Style::Json { Style::Json } else { Style::Flow };
            let items: Vec<_> = items.iter().map(|item| inline(item, style)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let style = if style == Style::Json { Style::Json } else { Style::Flow };
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", string_literal(key, style), inline(value, style)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Words as a list on one line, such as `[sleep, "1"]`. Words that YAML would not read as text are quoted.
pub fn flow_list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    inline(&words.into_iter().collect(), Style::Flow)
}

/// Whether a value needs its own lines in block style.
pub(crate) fn is_block(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        other => literal(other).is_some(),
    }
}

/// The header and lines of a multi-line string as a block scalar, if it can be read back unchanged.
pub(crate) fn literal(value: &Value) -> Option<(&'static str, Vec<String>)> {
    let text = value.as_str().filter(|text| text.contains('\n'))?;
    let (header, body) = match text.strip_suffix('\n') {
        Some(body) => ("|", body),
        None => ("|-", text),
    };
    // The first line determines the indentation, and at most one line break at the end is kept.
    let edges_ok =
        !body.starts_with([' ', '\t', '\n']) && !body.ends_with(['\n', ' ', '\t']) && !body.is_empty();
    let chars_ok = !body.contains(|c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{feff}');
    let lines: Vec<String> = body.split('\n').map(str::to_owned).collect();
    let blank_ok = lines.iter().all(|line| line.is_empty() || !line.trim().is_empty());
    (edges_ok && chars_ok && blank_ok).then_some((header, lines))
}

/// The lines of a value in block style, without indentation.
pub(crate) fn block(value: &Value) -> Vec<String> {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            entries.iter().flat_map(|(key, value)| entry(key, value)).collect()
        }
        Value::Array(items) if !items.is_empty() => items.iter().flat_map(item).collect(),
        other => match literal(other) {
            Some((header, lines)) => std::iter::once(header.to_owned()).chain(lines).collect(),
            None => vec![inline(other, Style::Block)],
        },
    }
}

/// The lines of `key: value`.
pub(crate) fn entry(key: &str, value: &Value) -> Vec<String> {
    let key = string_literal(key, Style::Block);
    if let Some((header, lines)) = literal(value) {
        let lines = lines.into_iter().map(|line| indent(2, line));
        return std::iter::once(format!("{key}: {header}")).chain(lines).collect();
    }
    if !is_block(value) {
        return vec![format!("{key}: {}", inline(value, Style::Block))];
    }
    // Like kubectl, do not indent lists below their key.
    let columns = if value.is_array() { 0 } else { 2 };
    let lines = block(value).into_iter().map(|line| indent(columns, line));
    std::iter::once(format!("{key}:")).chain(lines).collect()
}

/// The lines of `- value`.
pub(crate) fn item(value: &Value) -> Vec<String> {
    let lines = block(value).into_iter().enumerate();
    lines.map(|(i, line)| if i == 0 { format!("- {line}") } else { indent(2, line) }).collect()
}

fn indent(columns: usize, line: String) -> String {
    if line.is_empty() { line } else { format!("{}{line}", " ".repeat(columns)) }
}

/// A string, quoted if it must be.
pub(crate) fn string_literal(text: &str, style: Style) -> String {
    if style != Style::Json && is_plain(text) {
        return text.to_owned();
    }
    // A JSON string is also a double-quoted YAML scalar.
    Value::String(text.to_owned()).to_string()
}

/// Whether a string can be written without quotes in any style, and YAML (1.1 too) still reads it as that
/// string.
fn is_plain(text: &str) -> bool {
    let first_ok =
        text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | '$'));
    let last_ok = !text.ends_with([' ', ':']);
    let chars_ok = text.chars().all(|c| c.is_ascii_alphanumeric() || " /_.$:@+=~()-".contains(c));
    let number_like = text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !text.contains(|c: char| c.is_ascii_alphabetic());
    first_ok
        && last_ok
        && chars_ok
        && !number_like
        && !text.contains(": ")
        && text != "..."
        && resolve_plain(text) == Resolved::Str
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn strings_are_quoted_when_they_must_be() {
        for plain in ["Sidecar", "busybox:1.36", "/bin/sh", "a b", "$(X)", "500m", "apps.kruise.io/x"] {
            assert_eq!(string_literal(plain, Style::Block), plain);
        }
        for quoted in [
            "",
            "yes",
            "1",
            "1.5",
            "1:20",
            "2001-01-01",
            "a: b",
            "- a",
            "a #b",
            "#",
            "x:",
            "null",
            "~",
            "a, b",
        ] {
            assert_eq!(string_literal(quoted, Style::Flow), format!("\"{quoted}\""));
        }
        assert_eq!(inline(&json!("a\nb"), Style::Flow), "\"a\\nb\"");
        assert_eq!(string_literal("a", Style::Json), "\"a\"");
    }

    #[test]
    fn several_lines_are_written_as_lines() {
        let value = json!({"a": "x\n  y\n\nz\n", "b": ["p\nq", "tail\n\n"], "c": " lead\nx\n"});
        assert_eq!(
            block(&value).join("\n"),
            "a: |\n  x\n    y\n\n  z\nb:\n- |-\n  p\n  q\n- \"tail\\n\\n\"\nc: \" lead\\nx\\n\""
        );
    }

    #[test]
    fn block_style() {
        let value = json!({"name": "c", "args": ["a", "1"], "lifecycle": {"type": "Sidecar"}, "env": [], "x": [[1], {"b": {"c": 1}}]});
        assert_eq!(
            item(&value).join("\n"),
            "- name: c\n  args:\n  - a\n  - \"1\"\n  lifecycle:\n    type: Sidecar\n  env: []\n  x:\n  - - 1\n  - b:\n      c: 1"
        );
        assert_eq!(
            inline(&value, Style::Flow),
            "{name: c, args: [a, \"1\"], lifecycle: {type: Sidecar}, env: [], x: [[1], {b: {c: 1}}]}"
        );
    }
}
