//! The spanned tree: the content of a text, with the position of every key and value.

use std::sync::Arc;

use outrigger_lifecycle::{FieldPath, Segment};

use crate::scalar::{Resolved, Scalar, resolve};
use crate::span::Span;

/// One document of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The content.
    pub root: Node,
    /// The size with expanded aliases: the bytes of text, plus a constant for each node.
    pub weight: usize,
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The position of the value. If the value is used through an alias, this is the position of the anchor.
    pub span: Span,
    /// The position of the alias, if the value is used through one.
    pub alias: Option<Span>,
    /// Whether it is written in flow style, `{a: 1}`. In JSON it always is.
    pub flow: bool,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string, number, boolean or null.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Node>),
    /// A map, in the order written.
    Map(Vec<Entry>),
}

/// One key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Arc<str>,
    /// The position of the key.
    pub key_span: Span,
    /// Whether the key is written without quotes.
    pub key_plain: bool,
    /// Whether the entry comes from a merge key, `<<`.
    pub merged: bool,
    /// The value.
    pub value: Node,
}

impl Node {
    /// The entries of a map.
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The items of a list.
    pub fn items(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Seq(items) => Some(items),
            _ => None,
        }
    }

    /// The entry of a map by its key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries()?.iter().find(|entry| &*entry.key == key)
    }

    /// The value of a map by its key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The text of a scalar of any type.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// Whether the value is null or empty.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if resolve(scalar) == Resolved::Null)
    }

    /// The position that represents the value in a message: the whole scalar, or the beginning of a map or
    /// list.
    pub fn head(&self) -> Span {
        if let Some(alias) = self.alias {
            return alias;
        }
        match &self.value {
            Value::Scalar(_) => self.span,
            _ if self.flow => Span::new(self.span.file, self.span.start, self.span.start + 1),
            Value::Seq(items) => items.first().map_or(self.span, Node::head),
            Value::Map(entries) => entries.first().map_or(self.span, |entry| entry.key_span),
        }
    }

    /// The value without positions, as it would be sent to Kubernetes.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Seq(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => {
                let entries = entries.iter().map(|entry| (entry.key.to_string(), entry.value.to_json()));
                Json::Object(entries.collect())
            }
            Value::Scalar(scalar) => match resolve(scalar) {
                Resolved::Null => Json::Null,
                Resolved::Bool(value) => value.into(),
                Resolved::Int(value) => match i64::try_from(value) {
                    Ok(value) => value.into(),
                    Err(_) => (value as u64).into(),
                },
                Resolved::Float(value) => value.into(),
                Resolved::NotFinite | Resolved::Str => scalar.text.to_string().into(),
            },
        }
    }

    /// Follows a path as far as it exists.
    pub fn walk<'n>(&'n self, path: &FieldPath) -> Walk<'n> {
        let mut walk = Walk { node: self, key: None, steps: 0 };
        for segment in &path.0 {
            let (node, key) = match (segment, &walk.node.value) {
                (Segment::Field(name), Value::Map(_)) => match walk.node.entry(name) {
                    Some(entry) => (&entry.value, Some(entry.key_span)),
                    None => return walk,
                },
                (Segment::Index(index), Value::Seq(items)) => match items.get(*index) {
                    Some(item) => (item, None),
                    None => return walk,
                },
                _ => return walk,
            };
            walk = Walk { node, key, steps: walk.steps + 1 };
        }
        walk
    }

    /// The node at a path.
    pub fn at(&self, path: &FieldPath) -> Option<&Node> {
        let walk = self.walk(path);
        (walk.steps == path.0.len()).then_some(walk.node)
    }
}

/// The end point of a path that was followed.
#[derive(Debug, Clone, Copy)]
pub struct Walk<'n> {
    /// The deepest node on the path.
    pub node: &'n Node,
    /// The position of its key, if it has one.
    pub key: Option<Span>,
    /// The number of segments of the path that exist.
    pub steps: usize,
}
