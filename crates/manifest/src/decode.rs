//! Decodes the spanned tree into Kubernetes types.
//!
//! This is a serde deserializer over the spanned tree. The generated types pass it the names of all their
//! fields, so it finds unknown fields without a schema of its own. Every message has a position. It reports
//! an error and continues if it can, so that one run reports all errors.

mod mistakes;
mod rejected;
mod visit;

use std::cell::RefCell;
use std::fmt;

use outrigger_lifecycle::{FieldPath, Severity};
use serde::de;

use crate::Validate;
use crate::diagnostic::Diagnostic;
use crate::required::required_fields;
use crate::scalar::{Resolved, Scalar, is_quantity, is_yaml11_bool, resolve};
use crate::span::Span;
use crate::tree::{Entry, Node, Value};

/// The maximum number of messages about one object that get a hint.
const HINTS_MAX: usize = 200;

/// A decoded object, and the fields its type does not have.
pub(crate) struct Decoded<T> {
    /// The object; `None` if an error made it unreadable.
    pub(crate) object: Option<T>,
    /// The `lifecycle.type` of containers: the path in the object, and the text.
    pub(crate) lifecycle_types: Vec<(FieldPath, String)>,
    /// The errors and warnings.
    pub(crate) diagnostics: Vec<Diagnostic>,
}

/// Decodes an object.
pub(crate) fn decode<T: de::DeserializeOwned>(root: &Node, validate: Validate) -> Decoded<T> {
    let context =
        Context { validate, root, diagnostics: RefCell::default(), lifecycle_types: RefCell::default() };
    let path = Path { parent: None, segment: PathSegment::Root };
    let de = De { node: root, at: root.head(), path: &path, want: Want::Any, context: &context };
    let object = match T::deserialize(de) {
        Ok(object) => Some(object),
        Err(error) => {
            let span = error.span.unwrap_or_else(|| root.head());
            context.report(Diagnostic::error(span, error.message));
            None
        }
    };
    let diagnostics = context.diagnostics.into_inner();
    Decoded { object, lifecycle_types: context.lifecycle_types.into_inner(), diagnostics }
}

struct Context<'c> {
    validate: Validate,
    /// The whole object. A hint may need more than the value it is about.
    root: &'c Node,
    diagnostics: RefCell<Vec<Diagnostic>>,
    lifecycle_types: RefCell<Vec<(FieldPath, String)>>,
}

impl Context<'_> {
    fn report(&self, diagnostic: Diagnostic) {
        self.diagnostics.borrow_mut().push(diagnostic);
    }
}

/// The path from the object to here, kept on the stack.
struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    segment: PathSegment<'p>,
}

#[derive(Clone, Copy)]
enum PathSegment<'p> {
    Root,
    /// A field, with the names of all fields of its type (none for the keys of a free map).
    Field(&'p str, &'static [&'static str]),
    Index(usize),
}

impl Path<'_> {
    fn to_field_path(&self) -> FieldPath {
        let path = self.parent.map_or_else(FieldPath::root, Path::to_field_path);
        match self.segment {
            PathSegment::Root => path,
            PathSegment::Field(name, _) => path.field(name.to_owned()),
            PathSegment::Index(index) => path.index(index),
        }
    }

    /// The text `` in `spec.containers[0]` ``, or nothing at the top.
    fn inside(&self) -> String {
        match self.to_field_path() {
            path if path.0.is_empty() => String::new(),
            path => format!(" in `{path}`"),
        }
    }
}

/// The required form of a scalar, if serde's request is not specific enough.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Want {
    Any,
    Quantity,
    Time,
    Base64,
}

#[derive(Clone, Copy)]
struct De<'c> {
    node: &'c Node,
    /// The position for messages about the value.
    at: Span,
    path: &'c Path<'c>,
    want: Want,
    context: &'c Context<'c>,
}

/// Why decoding of an object had to stop.
#[derive(Debug)]
struct DecodeError {
    message: String,
    span: Option<Span>,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        DecodeError { message: message.to_string(), span: None }
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = match expected.to_string().as_str() {
            "IntOrString" => "a number or a name".to_owned(),
            other => other.to_owned(),
        };
        DecodeError { message: format!("expected {expected}, found {found}"), span: None }
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        DecodeError { message: format!("expected {expected}, found {found}"), span: None }
    }
}

impl<'c> De<'c> {
    fn describe(&self) -> String {
        match &self.node.value {
            Value::Seq(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
            Value::Scalar(scalar) => {
                let text = abbreviate(&scalar.text);
                match resolve(scalar) {
                    Resolved::Null => "nothing".to_owned(),
                    Resolved::Bool(_) => format!("the boolean `{text}`"),
                    Resolved::Int(_) | Resolved::Float(_) | Resolved::NotFinite => {
                        format!("the number `{text}`")
                    }
                    Resolved::Str => format!("the string `{text}`"),
                }
            }
        }
    }

    /// Reports that something else was expected here.
    fn wrong(&self, expected: &str, hint: Option<String>) {
        let field = self.path.to_field_path();
        let mut diagnostic =
            Diagnostic::error(self.at, format!("`{field}`: expected {expected}, found {}", self.describe()));
        diagnostic.hint = hint;
        self.context.report(diagnostic);
    }

    /// Reports a null that the type does not allow. Kubernetes reads it as the empty value.
    fn null_as(&self, empty: &str) {
        let field = self.path.to_field_path();
        let message = format!("`{field}` has no value and is read as {empty}");
        let hint = format!("write {empty}, or remove it");
        self.context.report(Diagnostic::warning(self.at, message).hint(hint));
    }

    fn scalar(&self) -> Option<&'c Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// The text of a string. Reports an error if the value is not a string.
    fn string(&self) -> &'c str {
        let Some(scalar) = self.scalar() else {
            self.wrong("a string", None);
            return "";
        };
        let text: &'c str = &scalar.text;
        match resolve(scalar) {
            Resolved::Str => {
                if self.want == Want::Base64 && !is_base64(text) {
                    let field = self.path.to_field_path();
                    let hint = "encode it with `base64`, or put the plain text under `stringData`";
                    let diagnostic = Diagnostic::error(self.at, format!("`{field}`: not base64")).hint(hint);
                    self.context.report(diagnostic);
                    return "";
                }
                if self.want == Want::Time && text.parse::<k8s_openapi::jiff::Timestamp>().is_err() {
                    self.wrong("a time such as `2026-01-31T12:00:00Z`", None);
                    return "1970-01-01T00:00:00Z";
                }
            }
            Resolved::Null => self.null_as("the empty string, `\"\"`"),
            Resolved::Bool(_) if is_yaml11_bool(text) => {
                let hint = format!(
                    "Kubernetes reads YAML 1.1, where unquoted yes, no, on, off, y and n are booleans: write \"{text}\""
                );
                self.wrong("a string", Some(hint));
            }
            _ => self.wrong("a string", Some(format!("quote it: \"{text}\""))),
        }
        text
    }

    fn int(&self, min: i64, max: i64) -> i64 {
        let Some(scalar) = self.scalar() else {
            self.wrong("a whole number", None);
            return 0;
        };
        let value = match resolve(scalar) {
            Resolved::Int(value) => value,
            Resolved::Float(value) if value.fract() == 0.0 && value.abs() < 1e18 => value as i128,
            Resolved::Null => {
                self.null_as("0");
                0
            }
            Resolved::Str if scalar.text.parse::<i64>().is_ok() => {
                self.wrong("a whole number", Some("remove the quotes".to_owned()));
                return 0;
            }
            _ => {
                self.wrong("a whole number", None);
                return 0;
            }
        };
        i64::try_from(value).ok().filter(|value| (min..=max).contains(value)).unwrap_or_else(|| {
            self.wrong(&format!("a whole number from {min} to {max}"), None);
            0
        })
    }

    fn boolean(&self) -> bool {
        match self.scalar().map(resolve) {
            Some(Resolved::Bool(value)) => value,
            Some(Resolved::Null) => {
                self.null_as("false");
                false
            }
            _ => {
                let quoted = self.scalar().is_some_and(|s| matches!(&*s.text, "true" | "false"));
                self.wrong("true or false", quoted.then(|| "remove the quotes".to_owned()));
                false
            }
        }
    }

    fn float(&self) -> f64 {
        match self.scalar().map(resolve) {
            Some(Resolved::Int(value)) => value as f64,
            Some(Resolved::Float(value)) => value,
            Some(Resolved::Null) => 0.0,
            _ => {
                self.wrong("a number", None);
                0.0
            }
        }
    }

    /// The text of a quantity, which may also be a number.
    fn quantity(&self) -> String {
        let text = match self.scalar().map(|scalar| (scalar, resolve(scalar))) {
            Some((_, Resolved::Int(value))) => value.to_string(),
            Some((_, Resolved::Float(value))) => value.to_string(),
            Some((scalar, Resolved::Str)) => scalar.text.to_string(),
            _ => String::new(),
        };
        if is_quantity(&text) {
            return text;
        }
        self.wrong("a quantity such as `500m`, `2` or `256Mi`", None);
        "0".to_owned()
    }

    /// Adds the position of the value to an error from a visitor.
    fn place<T>(&self, result: Result<T, DecodeError>) -> Result<T, DecodeError> {
        result.map_err(|mut error| {
            if error.span.is_none() {
                error.span = Some(self.at);
                error.message = format!("`{}`: {}", self.path.to_field_path(), error.message);
            }
            error
        })
    }

    fn entries(&self, expected: &str) -> &'c [Entry] {
        match &self.node.value {
            Value::Map(entries) => entries,
            _ if self.node.is_null() => &[],
            Value::Seq(items) if items.iter().all(|item| item.entries().is_some()) && !items.is_empty() => {
                self.wrong(expected, Some("remove the `- `: this is a map, not a list".to_owned()));
                &[]
            }
            _ => {
                self.wrong(expected, mistakes::no_map(&self.path.to_field_path(), self.node));
                &[]
            }
        }
    }

    /// The entries of a struct that its type knows, with their names. All others are reported. A misspelt field is
    /// read as the field that was meant, so that it is not reported as missing, too.
    fn known_fields(&self, name: &str, fields: &'static [&'static str]) -> Vec<(&'c str, &'c Entry)> {
        let mut known = Vec::new();
        if let ("Lifecycle", Value::Scalar(scalar)) = (name, &self.node.value)
            && let Some(hint) = rejected::lifecycle_word(&scalar.text)
        {
            self.wrong("a map of fields", Some(hint));
            return known;
        }
        for entry in self.entries("a map of fields") {
            if fields.contains(&&*entry.key) {
                known.push((&*entry.key, entry));
            } else if name == "Lifecycle" && &*entry.key == "type" {
                self.lifecycle_type(entry);
            } else if let Some(meant) = self.unknown_field(name, entry, fields)
                && !known.iter().any(|(name, _)| *name == meant)
                && self.node.get(meant).is_none()
            {
                known.push((meant, entry));
            }
        }
        known
    }

    /// Stores `lifecycle.type` of the sidecar proposal beside the object, because Kubernetes' types do not
    /// have this field.
    fn lifecycle_type(&self, entry: &'c Entry) {
        let path = Path { parent: Some(self.path), segment: PathSegment::Field(&entry.key, &[]) };
        let de = De {
            node: &entry.value,
            at: place_of(entry),
            path: &path,
            want: Want::Any,
            context: self.context,
        };
        if entry.value.is_null() {
            return de.wrong("`Sidecar` or `Standard`", None);
        }
        let text = de.string().to_owned();
        self.context.lifecycle_types.borrow_mut().push((path.to_field_path(), text));
    }

    /// Reports a field. Returns the one that was meant if the report is an error.
    fn unknown_field(
        &self,
        name: &str,
        entry: &Entry,
        fields: &'static [&'static str],
    ) -> Option<&'static str> {
        let severity = match self.context.validate {
            Validate::Strict => Severity::Error,
            Validate::Warn => Severity::Warning,
            Validate::Ignore => return None,
        };
        let mut meant = None;
        let message = format!("unknown field `{}`{}", abbreviate(&entry.key), self.path.inside());
        let mut diagnostic = Diagnostic::error(entry.key_span, message);
        diagnostic.severity = severity;
        // Searching for similar names takes time, and more hints would not be useful.
        if self.context.diagnostics.borrow().len() < HINTS_MAX {
            let path = self.path.to_field_path();
            diagnostic.hint = rejected::rejected_field_hint(name, entry, &path, self.context.root)
                .or_else(|| mistakes::unknown_field(name, entry, &path));
            if diagnostic.hint.is_none() {
                meant = nearest(&entry.key, fields);
                diagnostic.hint = meant
                    .map(|name| format!("did you mean `{name}`?"))
                    .or_else(|| self.field_of_ancestor(&entry.key));
            }
        }
        self.context.report(diagnostic);
        meant.filter(|_| severity == Severity::Error)
    }

    /// The parent that has this field, for a field that is indented too far.
    fn field_of_ancestor(&self, key: &str) -> Option<String> {
        let mut at = Some(self.path);
        while let Some(path) = at {
            if let PathSegment::Field(_, siblings) = path.segment
                && siblings.contains(&key)
            {
                let owner = path.parent.map(Path::to_field_path).unwrap_or_default();
                let owner =
                    if owner.0.is_empty() { "the object itself".to_owned() } else { format!("`{owner}`") };
                return Some(format!("`{key}` is a field of {owner}: check the indentation"));
            }
            at = path.parent;
        }
        None
    }

    fn check_required(&self, name: &str, fields: &[&str], entries: &[(&str, &Entry)]) {
        if self.node.entries().is_none() {
            return;
        }
        for &required in required_fields(name) {
            debug_assert!(fields.contains(&required), "{name} has no field {required}");
            if !entries.iter().any(|(key, entry)| *key == required && !entry.value.is_null()) {
                let message = format!("missing field `{required}`{}", self.path.inside());
                self.context.report(Diagnostic::error(self.at, message));
            }
        }
    }
}

/// The position for messages about an entry's value: the scalar itself, or the key of a map or list.
fn place_of(entry: &Entry) -> Span {
    match &entry.value.value {
        Value::Scalar(_) if !entry.value.span.is_empty() => entry.value.head(),
        _ => entry.key_span,
    }
}

pub(crate) fn abbreviate(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let line: String = text.chars().take(CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(CHARS_MAX).is_some() { format!("{line}…") } else { line }
}

/// The most similar name, if one is similar enough to be a likely typo.
pub fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    // Comparing takes quadratic time, and no field has a name this long.
    if name.len() > 64 {
        return None;
    }
    if let Some(same) = known.iter().find(|k| k.eq_ignore_ascii_case(name)) {
        return Some(same);
    }
    let lower = name.to_ascii_lowercase();
    known
        .iter()
        .map(|k| (strsim::damerau_levenshtein(&lower, &k.to_ascii_lowercase()), *k))
        .min_by_key(|(distance, k)| (*distance, k.len()))
        // Words of one or two letters are too short to guess from.
        .filter(|(distance, k)| *distance <= 1 + k.len().min(name.len()) / 6 && k.len().max(name.len()) > 2)
        .map(|(_, k)| k)
}

fn is_base64(text: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}
