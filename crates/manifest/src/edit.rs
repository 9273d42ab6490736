//! Edits the text of a manifest, and keeps everything else: comments, field order, style and blank lines.
//!
//! Every edit replaces some bytes. The text is then parsed again, and must contain exactly the old content
//! plus the requested change; otherwise the edit is refused. If the editor cannot handle a layout, or a value
//! is shared through an anchor, the result is an error and never a wrong manifest.
//!
//! ```
//! use outrigger_lifecycle::FieldPath;
//! use outrigger_manifest::edit::Editor;
//!
//! let text = "spec: # the pod\n  containers:\n  - name: a # main\n";
//! let mut editor = Editor::new(text, 0).unwrap();
//! editor.set(&FieldPath::spec("restartPolicy"), &"Never".into()).unwrap();
//! let expected = "spec: # the pod\n  containers:\n  - name: a # main\n  restartPolicy: Never\n";
//! assert_eq!(editor.finish(), expected);
//! ```

mod layout;
mod model;

use outrigger_lifecycle::{FieldPath, Segment};
use serde_json::Value as Json;

use crate::emit::{self, Style};
use crate::read::{ReadOptions, parse};
use crate::span::SourceFile;
use crate::tree::{Document, Entry, Node, Value};
use crate::{Diagnostics, json};

use layout::{
    after_colon, block_start, column, comments_end, dash, entry_end, first_on_line, last_on_line, line_end,
    line_start, newline, next_line, shift, used,
};

/// Why a text could not be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The text cannot be parsed.
    #[error("the manifest cannot be read: {0}")]
    Unreadable(#[from] Diagnostics),
    /// The text has fewer documents.
    #[error("there is no document {0} in the manifest")]
    NoSuchDocument(usize),
    /// Nothing exists at the path.
    #[error("there is no `{0}`")]
    NoSuchPath(FieldPath),
    /// The value at the path is not a map.
    #[error("`{0}` is not a map")]
    NotAMap(FieldPath),
    /// The value at the path is not a list.
    #[error("`{0}` is not a list")]
    NotAList(FieldPath),
    /// The value belongs to an anchor and is used in several places.
    #[error("`{0}` is shared through a YAML anchor: write it out where it is used, then try again")]
    Shared(FieldPath),
    /// The editor does not support the layout of the text around the path.
    #[error("cannot edit the text around `{0}`: reformat it, then try again")]
    Unusual(FieldPath),
}

/// Edits one document of a text.
#[derive(Debug, Clone)]
pub struct Editor {
    text: String,
    document: usize,
    documents: Vec<Document>,
    json: bool,
}

/// What happens to the comments below a removed value that are indented like a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comments {
    /// They are kept.
    Stay,
    /// They are removed too, because they were copied before.
    Go,
}

/// A replacement of `text[start..end]`.
#[derive(Debug)]
struct Patch {
    start: usize,
    end: usize,
    with: String,
}

impl Editor {
    /// An editor for the `document`th document of a text, counted from 0 (see
    /// [`Origin::document_index`](crate::Origin::document_index)).
    pub fn new(text: &str, document: usize) -> Result<Self, EditError> {
        let documents = read_documents(text)?;
        if document >= documents.len() {
            return Err(EditError::NoSuchDocument(document));
        }
        let limits = ReadOptions::default().limits;
        let json = json::looks_like_json(text) && json::parse(0, text, &limits).is_ok();
        Ok(Editor { text: text.to_owned(), document, documents, json })
    }

    /// The document as it is now.
    pub fn root(&self) -> &Node {
        &self.documents[self.document].root
    }

    /// The text as it is now.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The edited text.
    pub fn finish(self) -> String {
        self.text
    }

    /// Sets the value at a path. A missing value is added at the end of its map, and missing maps on the path
    /// are created.
    pub fn set(&mut self, path: &FieldPath, value: &Json) -> Result<(), EditError> {
        let walk = self.root().walk(path);
        let missing = &path.0[walk.steps..];
        if missing.is_empty() {
            let merged = self.entry_at(path).is_some_and(|(_, entry)| entry.merged);
            if !merged {
                return self.replace(path, value);
            }
            // An entry of the map overrides one from a merge key.
            let (parent, key) = split_field(path)?;
            return self.insert_entry(&parent, None, &key, value);
        }
        let exists = FieldPath(path.0[..walk.steps].to_vec());
        let [Segment::Field(key), deeper @ ..] = missing else {
            return Err(EditError::NoSuchPath(path.clone()));
        };
        let key = key.to_string();
        let value = nest(deeper, value).ok_or_else(|| EditError::NoSuchPath(path.clone()))?;
        if walk.node.is_null() {
            let mut map = serde_json::Map::new();
            map.insert(key, value);
            return self.replace(&exists, &Json::Object(map));
        }
        self.insert_entry(&exists, None, &key, &value)
    }

    /// Adds an entry to a map, after the entry `after` (or at the end). An existing key is set in place.
    pub fn insert(
        &mut self,
        map: &FieldPath,
        key: &str,
        value: &Json,
        after: Option<&str>,
    ) -> Result<(), EditError> {
        let node = self.node(map)?;
        let entries = node.entries().ok_or_else(|| EditError::NotAMap(map.clone()))?;
        if entries.iter().any(|entry| &*entry.key == key && !entry.merged) {
            return self.set(&map.clone().field(key.to_owned()), value);
        }
        let after =
            after.and_then(|after| entries.iter().position(|entry| &*entry.key == after && !entry.merged));
        self.insert_entry(map, after.map(|i| i + 1), key, value)
    }

    /// Removes a map entry or a list entry. A map or list that becomes empty stays, as `{}` or `[]`.
    pub fn remove(&mut self, path: &FieldPath) -> Result<(), EditError> {
        self.remove_with(path, Comments::Stay)
    }

    fn remove_with(&mut self, path: &FieldPath, comments: Comments) -> Result<(), EditError> {
        let Some((parent, last)) = split(path) else { return Err(EditError::Unusual(path.clone())) };
        let node = self.node(&parent)?;
        let mut patch = match (&node.value, &last) {
            (Value::Map(entries), Segment::Field(name)) => {
                let found = entries.iter().position(|entry| *entry.key == **name);
                let index = found.ok_or_else(|| EditError::NoSuchPath(path.clone()))?;
                if entries[index].merged {
                    return Err(EditError::Shared(path.clone()));
                }
                let own: Vec<&Entry> = entries.iter().filter(|entry| !entry.merged).collect();
                if own.len() == 1 && !node.flow {
                    return self.replace_checked(&parent, &Json::Object(serde_json::Map::new()), path);
                }
                let at = own.iter().position(|entry| entry.key == entries[index].key).unwrap_or_default();
                self.remove_entry_patch(node, &own, at)
            }
            (Value::Seq(items), Segment::Index(index)) if *index < items.len() => {
                if items.len() == 1 && !node.flow {
                    return self.replace(&parent, &Json::Array(Vec::new()));
                }
                self.remove_item_patch(node, items, *index).ok_or_else(|| EditError::Unusual(path.clone()))?
            }
            _ => return Err(EditError::NoSuchPath(path.clone())),
        };
        let apply =
            |editor: &mut Editor, patch: Patch| editor.apply(path, patch, |root| model::remove(root, path));
        let below = self.comments_below(&patch);
        if comments == Comments::Go {
            patch.end = below.map_or(patch.end, |(end, _)| end);
            return apply(self, patch);
        }
        let Some((end, moved)) = below else { return apply(self, patch) };
        // In their place they could become part of a multi-line text above. Then they are moved.
        let moved = Patch { start: patch.start, end, with: moved };
        apply(self, patch).or_else(|_| apply(self, moved))
    }

    /// The comments below removed lines that are indented like a part of them: their end, and their text with
    /// the indentation of the removed lines.
    fn comments_below(&self, patch: &Patch) -> Option<(usize, String)> {
        let text = &self.text;
        if !patch.with.is_empty()
            || !text[..patch.end].ends_with('\n')
            || !text[..patch.start].ends_with('\n')
        {
            return None;
        }
        let first = &text[patch.start..line_end(text, patch.start)];
        let column = first.len() - first.trim_start_matches(' ').len();
        let end = comments_end(text, patch.end, column);
        let lines: Vec<String> = text[patch.end..end]
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| format!("{}{}{}", " ".repeat(column), line.trim(), newline(text)))
            .collect();
        (end > patch.end).then(|| (next_line(text, end), lines.concat()))
    }

    /// Removes the value at a path, and the maps and lists around it that become empty.
    pub fn prune(&mut self, path: &FieldPath) -> Result<(), EditError> {
        let mut path = path.clone();
        self.node(&path)?;
        while let Some((parent, _)) = split(&path) {
            let node = self.node(&parent)?;
            let alone = match &node.value {
                Value::Map(entries) => entries.len() == 1,
                Value::Seq(items) => items.len() == 1,
                Value::Scalar(_) => false,
            };
            if !alone || parent.0.is_empty() {
                break;
            }
            path = parent;
        }
        self.remove(&path)
    }

    /// Adds an entry at the end of a list. A missing list is created.
    pub fn append_item(&mut self, list: &FieldPath, value: &Json) -> Result<(), EditError> {
        let len = self.root().at(list).and_then(Node::items).map_or(0, <[Node]>::len);
        self.insert_item(list, len, value)
    }

    /// Adds an entry to a list at the given index. A missing list is created.
    pub fn insert_item(&mut self, list: &FieldPath, index: usize, value: &Json) -> Result<(), EditError> {
        let lines = emit::item(value).join("\n");
        self.together(|editor| editor.insert_item_lines(list, index, value, &lines))
    }

    /// [`Editor::insert_item`] with the entry given as YAML, which keeps its comments and style.
    pub fn insert_item_yaml(&mut self, list: &FieldPath, index: usize, yaml: &str) -> Result<(), EditError> {
        let documents = read_documents(yaml)?;
        let [document] = documents.as_slice() else { return Err(EditError::NoSuchDocument(0)) };
        let value = document.root.to_json();
        let lines = shift(yaml.trim_end(), 0, 2).replace("\r\n", "\n");
        let lines = format!("- {}", lines.trim_start());
        self.together(|editor| editor.insert_item_lines(list, index, &value, &lines))
    }

    /// Moves a list entry, with its comments, to another list or to another index in its own list. A missing
    /// target list is created. A list that becomes empty is removed.
    pub fn move_item(&mut self, from: &FieldPath, to: &FieldPath, index: usize) -> Result<(), EditError> {
        let Some((from_list, Segment::Index(from_index))) = split(from) else {
            return Err(EditError::NoSuchPath(from.clone()));
        };
        let list = self.node(&from_list)?;
        let items = list.items().ok_or_else(|| EditError::NotAList(from_list.clone()))?;
        let item = items.get(from_index).ok_or_else(|| EditError::NoSuchPath(from.clone()))?;
        let value = item.to_json();
        let (lines, comments) = match self.item_lines(list, item) {
            Some(lines) => (lines, Comments::Go),
            None => (emit::item(&value).join("\n"), Comments::Stay),
        };
        let alone = items.len() == 1;

        self.together(|editor| {
            editor.make_list_before(to, &from_list)?;
            editor.insert_item_lines(to, index, &value, &lines)?;
            if alone && *to != from_list {
                return editor.remove_with(&from_list, comments);
            }
            // Within one list, the inserted copy may have shifted the original entry.
            let pushed = *to == from_list && index <= from_index;
            editor.remove_with(&from_list.index(from_index + usize::from(pushed)), comments)
        })
    }

    /// Applies several edits as one. If one fails, none is applied.
    fn together(
        &mut self,
        edits: impl FnOnce(&mut Editor) -> Result<(), EditError>,
    ) -> Result<(), EditError> {
        let mut work = self.clone();
        edits(&mut work)?;
        *self = work;
        Ok(())
    }

    /// Creates a missing list before its neighbour, the list that its first entry comes from.
    fn make_list_before(&mut self, list: &FieldPath, neighbour: &FieldPath) -> Result<(), EditError> {
        let (Some((map, Segment::Field(key))), Some((other, Segment::Field(neighbour)))) =
            (split(list), split(neighbour))
        else {
            return Ok(());
        };
        if map != other || self.root().at(list).is_some() {
            return Ok(());
        }
        let entries = self.node(&map)?.entries().unwrap_or_default();
        let place = entries.iter().filter(|entry| !entry.merged).position(|entry| *entry.key == *neighbour);
        self.insert_entry(&map, place, &key, &Json::Array(Vec::new()))
    }

    fn node(&self, path: &FieldPath) -> Result<&Node, EditError> {
        self.root().at(path).ok_or_else(|| EditError::NoSuchPath(path.clone()))
    }

    /// The entry at a path, with the map that contains it.
    fn entry_at(&self, path: &FieldPath) -> Option<(&Node, &Entry)> {
        let (parent, Segment::Field(name)) = split(path)? else { return None };
        let map = self.root().at(&parent)?;
        Some((map, map.entry(&name)?))
    }

    fn style(&self, flow: bool) -> Style {
        match (self.json, flow) {
            (true, _) => Style::Json,
            (false, true) => Style::Flow,
            (false, false) => Style::Block,
        }
    }

    /// Replaces the value at a path.
    fn replace(&mut self, path: &FieldPath, value: &Json) -> Result<(), EditError> {
        let patch = if path.0.is_empty() {
            let (start, end) = used(self.root());
            let lines = emit::block(value).join(newline(&self.text));
            let with = if self.root().flow { emit::inline(value, self.style(true)) } else { lines };
            Patch { start, end, with }
        } else if let Some((map, entry)) = self.entry_at(path) {
            self.replace_entry_patch(map, entry, value)
        } else {
            let Some((parent, _)) = split(path) else { return Err(EditError::NoSuchPath(path.clone())) };
            let (list, item) = (self.node(&parent)?, self.node(path)?);
            self.replace_item_patch(list, item, value).ok_or_else(|| EditError::Unusual(path.clone()))?
        };
        let (path_for_model, value) = (path.clone(), value.clone());
        self.apply(path, patch, move |root| model::set(root, &path_for_model, value))
    }

    /// The same as [`Editor::replace`], but errors name another path.
    fn replace_checked(
        &mut self,
        path: &FieldPath,
        value: &Json,
        blame: &FieldPath,
    ) -> Result<(), EditError> {
        self.replace(path, value).map_err(|error| match error {
            EditError::Unusual(_) => EditError::Unusual(blame.clone()),
            other => other,
        })
    }

    fn replace_entry_patch(&self, map: &Node, entry: &Entry, value: &Json) -> Patch {
        let text = &self.text;
        let colon = after_colon(text, entry);
        let inline_now =
            matches!(entry.value.value, Value::Scalar(_)) || entry.value.flow || entry.value.alias.is_some();
        if map.flow || (inline_now && !emit::is_block(value)) {
            let with = emit::inline(value, self.style(map.flow));
            if entry.value.span.is_empty() && entry.value.alias.is_none() {
                return Patch { start: colon, end: colon, with: format!(" {with}") };
            }
            let (start, end) = used(&entry.value);
            return Patch { start, end, with };
        }
        let end = if inline_now { entry_end(text, entry) } else { line_end(text, used(&entry.value).1) };
        let with = if emit::is_block(value) {
            let indent = column(text, entry.key_span.start) + if value.is_array() { 0 } else { 2 };
            // A comment after the key or the old value stays after the key.
            let comment = text[end..line_end(text, end)].trim_end();
            let (header, lines) = match emit::literal(value) {
                Some((header, lines)) => (format!(" {header}"), lines),
                None => (String::new(), emit::block(value)),
            };
            let lines = indented(&lines.join("\n"), indent, newline(text));
            let with = format!("{header}{comment}{}{lines}", newline(text));
            return Patch { start: colon, end: line_end(text, end), with };
        } else {
            format!(" {}", emit::inline(value, Style::Block))
        };
        Patch { start: colon, end, with }
    }

    fn replace_item_patch(&self, list: &Node, item: &Node, value: &Json) -> Option<Patch> {
        let (start, end) = used(item);
        if list.flow {
            return Some(Patch { start, end, with: emit::inline(value, self.style(true)) });
        }
        let dash = dash(&self.text, item)?;
        let lines = indented(&emit::item(value).join("\n"), column(&self.text, dash), newline(&self.text));
        let inline_now = matches!(item.value, Value::Scalar(_)) || item.flow || item.alias.is_some();
        let end = if inline_now { end.max(dash + 1) } else { line_end(&self.text, end) };
        Some(Patch { start: dash, end, with: lines.trim_start().to_owned() })
    }

    /// Adds an entry to a map, before its own entry number `at` or at the end.
    fn insert_entry(
        &mut self,
        path: &FieldPath,
        at: Option<usize>,
        key: &str,
        value: &Json,
    ) -> Result<(), EditError> {
        let node = self.node(path)?;
        let Value::Map(entries) = &node.value else { return Err(EditError::NotAMap(path.clone())) };
        if node.alias.is_some() {
            return Err(EditError::Shared(path.clone()));
        }
        let own: Vec<&Entry> = entries.iter().filter(|entry| !entry.merged).collect();
        let at = at.unwrap_or(own.len()).min(own.len());
        let patch = if node.flow {
            self.flow_insert_patch(
                node,
                own.iter().map(|entry| (entry.key_span.start, entry_end(&self.text, entry))).collect(),
                at,
                &format!(
                    "{}: {}",
                    emit::string_literal(key, self.style(true)),
                    emit::inline(value, self.style(true))
                ),
            )
        } else {
            self.block_insert_entry_patch(node, &own, at, key, value)
        };
        let (path_for_model, key, value) = (path.clone(), key.to_owned(), value.clone());
        self.apply(path, patch, move |root| model::set(root, &path_for_model.field(key), value))
    }

    fn block_insert_entry_patch(
        &self,
        map: &Node,
        own: &[&Entry],
        at: usize,
        key: &str,
        value: &Json,
    ) -> Patch {
        let text = &self.text;
        let key_column = own.first().map_or(column(text, map.span.start), |e| column(text, e.key_span.start));
        let lines = indented(&emit::entry(key, value).join("\n"), key_column, newline(text));
        if at == own.len() {
            return self.lines_after(map.span.end, key_column, &lines);
        }
        if at > 0 {
            return self.lines_after(entry_end(text, own[at - 1]), key_column, &lines);
        }
        let first = own[0].key_span.start;
        if first_on_line(text, first) {
            let start = block_start(text, first);
            return Patch { start, end: start, with: lines + newline(text) };
        }
        // The first entry follows a dash. The new entry takes its place there.
        let with = format!("{}{}{}", lines.trim_start(), newline(text), " ".repeat(key_column));
        Patch { start: first, end: first, with }
    }

    /// Inserts whole lines after the line of an offset, and after comments below it that are indented deeper
    /// than `column`.
    fn lines_after(&self, at: usize, column: usize, lines: &str) -> Patch {
        let start = next_line(&self.text, comments_end(&self.text, at, column));
        let with = if start > 0 && self.text[..start].ends_with('\n') {
            format!("{lines}{}", newline(&self.text))
        } else {
            format!("{}{lines}", newline(&self.text))
        };
        Patch { start, end: start, with }
    }

    /// Adds an element to a flow collection, before element number `at`.
    fn flow_insert_patch(&self, node: &Node, elements: Vec<(usize, usize)>, at: usize, with: &str) -> Patch {
        let text = &self.text;
        if let Some(&(start, _)) = elements.get(at) {
            let separator = if first_on_line(text, start) {
                format!(",{}{}", newline(text), " ".repeat(column(text, start)))
            } else {
                ", ".to_owned()
            };
            return Patch { start, end: start, with: format!("{with}{separator}") };
        }
        match elements.last() {
            None => Patch { start: node.span.end - 1, end: node.span.end - 1, with: with.to_owned() },
            Some(&(start, end)) => {
                let line = line_start(text, start);
                let indent = &text[line..start];
                // If each element is on its own line, so is the new one.
                let with = if indent.trim().is_empty() {
                    format!(",{}{indent}{with}", newline(text))
                } else {
                    format!(", {with}")
                };
                Patch { start: end, end, with }
            }
        }
    }

    /// Removes an element and one comma from a flow collection.
    fn flow_remove_patch(elements: &[(usize, usize)], at: usize) -> Patch {
        let (start, end) = elements[at];
        let (start, end) = match (elements.get(at + 1), at.checked_sub(1)) {
            (Some(&(next, _)), _) => (start, next),
            (None, Some(before)) => (elements[before].1, end),
            (None, None) => (start, end),
        };
        Patch { start, end, with: String::new() }
    }

    fn remove_entry_patch(&self, map: &Node, own: &[&Entry], at: usize) -> Patch {
        let text = &self.text;
        let entry = own[at];
        if map.flow {
            let elements: Vec<_> =
                own.iter().map(|entry| (entry.key_span.start, entry_end(text, entry))).collect();
            return Editor::flow_remove_patch(&elements, at);
        }
        let start = entry.key_span.start;
        let end = entry_end(text, entry);
        if first_on_line(text, start) {
            return Patch { start: line_start(text, start), end: next_line(text, end), with: String::new() };
        }
        // The entry follows a dash. The next entry takes its place, unless there are comments in between.
        let next = own.get(at + 1).map(|entry| entry.key_span.start);
        match next {
            Some(next)
                if text.get(line_end(text, end)..next).is_some_and(|between| between.trim().is_empty()) =>
            {
                Patch { start, end: next, with: String::new() }
            }
            _ => Patch {
                start: text[..start].trim_end_matches(' ').len(),
                end: line_end(text, end),
                with: String::new(),
            },
        }
    }

    fn remove_item_patch(&self, list: &Node, items: &[Node], at: usize) -> Option<Patch> {
        let text = &self.text;
        if list.flow {
            let elements: Vec<_> = items.iter().map(used).collect();
            return Some(Editor::flow_remove_patch(&elements, at));
        }
        let dash = dash(text, &items[at])?;
        if !first_on_line(text, dash) {
            return None;
        }
        let end = used(&items[at]).1.max(dash + 1);
        Some(Patch { start: block_start(text, dash), end: next_line(text, end), with: String::new() })
    }

    /// The lines of an entry of a block list, moved so that its dash is in the first column.
    fn item_lines(&self, list: &Node, item: &Node) -> Option<String> {
        let text = &self.text;
        if list.flow || item.alias.is_some() {
            return None;
        }
        let dash = dash(text, item)?;
        let end = used(item).1.max(dash + 1);
        if !first_on_line(text, dash) || !last_on_line(text, end) {
            return None;
        }
        let end = comments_end(text, end, column(text, dash));
        let lines = &text[block_start(text, dash)..line_end(text, end)];
        Some(shift(lines, column(text, dash), 0).replace("\r\n", "\n"))
    }

    fn insert_item_lines(
        &mut self,
        path: &FieldPath,
        index: usize,
        value: &Json,
        lines: &str,
    ) -> Result<(), EditError> {
        let missing = self.root().at(path).is_none_or(Node::is_null);
        if missing {
            self.set(path, &Json::Array(Vec::new()))?;
        }
        let node = self.node(path)?;
        let Value::Seq(items) = &node.value else { return Err(EditError::NotAList(path.clone())) };
        if node.alias.is_some() {
            return Err(EditError::Shared(path.clone()));
        }
        let index = index.min(items.len());
        let text = &self.text;
        let entry = self.entry_at(path);
        let in_block = entry.is_some_and(|(map, _)| !map.flow);
        let patch = if items.is_empty() && in_block && !self.json {
            // `key: []` becomes a block list.
            let Some((_, entry)) = entry else { return Err(EditError::Unusual(path.clone())) };
            let colon = after_colon(text, entry);
            let indent = column(text, entry.key_span.start);
            let end = entry_end(text, entry);
            let comment = text[end..line_end(text, end)].trim_end();
            let with = format!("{comment}{}{}", newline(text), indented(lines, indent, newline(text)));
            Patch { start: colon, end: line_end(text, end), with }
        } else if node.flow {
            let elements = items.iter().map(used).collect();
            self.flow_insert_patch(node, elements, index, &emit::inline(value, self.style(true)))
        } else {
            let near = items.get(index).or(items.last());
            let dash =
                near.and_then(|item| dash(text, item)).ok_or_else(|| EditError::Unusual(path.clone()))?;
            let dash_column = column(text, dash);
            let lines = indented(lines, dash_column, newline(text));
            match items.get(index) {
                Some(_) if first_on_line(text, dash) => {
                    let start = block_start(text, dash);
                    Patch { start, end: start, with: lines + newline(text) }
                }
                Some(_) => return Err(EditError::Unusual(path.clone())),
                None => self.lines_after(node.span.end.max(dash + 1), dash_column, &lines),
            }
        };
        let (path_for_model, value) = (path.clone(), value.clone());
        self.apply(path, patch, move |root| model::insert_item(root, &path_for_model, index, value))
    }

    /// Applies a patch, if the text then has the expected content.
    fn apply(
        &mut self,
        path: &FieldPath,
        patch: Patch,
        change: impl FnOnce(&mut Json) -> Option<()>,
    ) -> Result<(), EditError> {
        let shared = || {
            let on_the_way = (0..path.0.len()).any(|n| {
                let walk = self.root().walk(&FieldPath(path.0[..n].to_vec()));
                walk.node.alias.is_some()
            });
            let anchors = self.text.contains('&');
            if on_the_way || anchors {
                EditError::Shared(path.clone())
            } else {
                EditError::Unusual(path.clone())
            }
        };
        let mut expected: Vec<Json> = self.documents.iter().map(|document| document.root.to_json()).collect();
        change(&mut expected[self.document]).ok_or_else(|| EditError::NoSuchPath(path.clone()))?;
        let mut text = self.text.clone();
        if !text.is_char_boundary(patch.start) || !text.is_char_boundary(patch.end) || patch.start > patch.end
        {
            return Err(EditError::Unusual(path.clone()));
        }
        text.replace_range(patch.start..patch.end, &patch.with);
        let documents = read_documents(&text).map_err(|_| shared())?;
        let found: Vec<Json> = documents.iter().map(|document| document.root.to_json()).collect();
        if found != expected {
            return Err(shared());
        }
        self.text = text;
        self.documents = documents;
        Ok(())
    }
}

fn read_documents(text: &str) -> Result<Vec<Document>, Diagnostics> {
    parse(0, &SourceFile::new("manifest", text), &ReadOptions::default())
}

/// A path's parent and its last segment.
fn split(path: &FieldPath) -> Option<(FieldPath, Segment)> {
    let (last, rest) = path.0.split_last()?;
    Some((FieldPath(rest.to_vec()), last.clone()))
}

fn split_field(path: &FieldPath) -> Result<(FieldPath, String), EditError> {
    match split(path) {
        Some((parent, Segment::Field(name))) => Ok((parent, name.into_owned())),
        _ => Err(EditError::NoSuchPath(path.clone())),
    }
}

/// The value wrapped in the maps of a path; `None` if a list would have to be created.
fn nest(segments: &[Segment], value: &Json) -> Option<Json> {
    segments.iter().rev().try_fold(value.clone(), |value, segment| match segment {
        Segment::Field(name) => {
            let mut map = serde_json::Map::new();
            map.insert(name.to_string(), value);
            Some(Json::Object(map))
        }
        Segment::Index(_) => None,
    })
}

/// Moves all lines that are not empty to a column, with the line breaks of the text.
fn indented(lines: &str, column: usize, newline: &str) -> String {
    shift(lines, 0, column).replace('\n', newline)
}
