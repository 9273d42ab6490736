//! Parses YAML text into spanned trees.

use std::collections::BTreeMap;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::scalar::Scalar;
use crate::scalar::resolve_plain;
use crate::span::{Span, floor_boundary};
use crate::tree::{Document, Entry, Node, Value};

/// The documents of a source, and warnings about them (duplicate keys).
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) documents: Vec<Document>,
    pub(crate) duplicates: Vec<Diagnostic>,
}

/// The number of nodes and bytes below a node, with aliases expanded.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    nodes: usize,
    bytes: usize,
}

/// A collection that is still open.
struct Open {
    start: usize,
    /// The end of its last element so far.
    end: usize,
    flow: bool,
    anchor: usize,
    weight: Weight,
    what: OpenWhat,
}

enum OpenWhat {
    Seq(Vec<Node>),
    Map { map: MapBuilder, key: Option<(Node, bool)>, merges: Vec<Node> },
}

/// A map under construction: entries in order, and an index that keeps large maps fast.
#[derive(Default)]
pub(crate) struct MapBuilder {
    pub(crate) entries: Vec<Entry>,
    index: BTreeMap<Arc<str>, usize>,
}

impl MapBuilder {
    /// Adds an entry. A duplicate key is reported, and the last value is used, as in Kubernetes without
    /// strict validation.
    pub(crate) fn push(&mut self, entry: Entry, duplicates: &mut Vec<Diagnostic>) {
        match self.index.get(&entry.key) {
            None => self.insert(entry),
            Some(&at) => {
                let message = format!("the key `{}` is written twice", entry.key);
                let duplicate = Diagnostic::error(entry.key_span, message)
                    .label(self.entries[at].key_span, "first here")
                    .hint("keep one of them: only the last one would count");
                duplicates.push(duplicate);
                self.entries[at] = entry;
            }
        }
    }

    fn insert(&mut self, entry: Entry) {
        self.index.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry);
    }

    /// Adds the entries of `<<`. The map's own entries take precedence, then the first of several merges.
    fn merge(&mut self, merge: Node) -> Result<(), Box<Diagnostic>> {
        let maps = match merge.value {
            Value::Map(_) => vec![merge],
            Value::Seq(items) => items,
            Value::Scalar(_) => return Err(wrong_merge(&merge).into()),
        };
        for map in maps {
            let Value::Map(entries) = map.value else {
                return Err(wrong_merge(&map).into());
            };
            for entry in entries {
                if !self.index.contains_key(&entry.key) {
                    self.insert(Entry { merged: true, ..entry });
                }
            }
        }
        Ok(())
    }
}

fn wrong_merge(node: &Node) -> Diagnostic {
    Diagnostic::error(node.head(), "a merge key `<<` takes a map, or a list of maps")
        .hint("for example `<<: *name`, where `&name` marks a map")
}

/// Parses the YAML documents of a source.
pub(crate) fn parse(file: usize, text: &str, limits: &Limits) -> Result<Parsed, Box<Diagnostic>> {
    let mut builder = Builder {
        file,
        text,
        offsets: Offsets::new(text),
        limits,
        open: Vec::new(),
        anchors: BTreeMap::new(),
        total: Weight::default(),
        last_end: 0,
        parsed: Parsed::default(),
        root: None,
    };
    let mut parser = Parser::new_from_str(text);
    loop {
        match parser.next_event() {
            None | Some(Ok((Event::StreamEnd, _))) => break,
            Some(Ok((event, span))) => {
                let start = builder.offsets.byte(&span.start);
                let end = builder.offsets.byte(&span.end);
                builder.event(event, start, end)?;
            }
            Some(Err(error)) => return Err(builder.scan_error(&error).into()),
        }
    }
    Ok(builder.parsed)
}

/// Converts positions of the parser to byte offsets. The parser counts characters, and its running count can
/// be wrong (a non-ASCII directive is enough). Its line and column are correct, so these are used.
struct Offsets {
    /// The byte offset of every character; `None` if all characters have one byte.
    chars: Option<Vec<u32>>,
    /// The index of the first character of every line. A lone carriage return also ends a line.
    lines: Vec<u32>,
    len: usize,
}

impl Offsets {
    fn new(text: &str) -> Self {
        let chars = (!text.is_ascii()).then(|| text.char_indices().map(|(at, _)| at as u32).collect());
        // A byte order mark does not count as a column.
        let mut lines = vec![u32::from(text.starts_with('\u{feff}'))];
        let mut rest = text.chars().enumerate().peekable();
        while let Some((at, c)) = rest.next() {
            if c == '\n' || (c == '\r' && rest.peek().is_none_or(|(_, next)| *next != '\n')) {
                lines.push(at as u32 + 1);
            }
        }
        Offsets { chars, lines, len: text.len() }
    }

    fn byte(&self, marker: &Marker) -> usize {
        let line = self.lines.get(marker.line().saturating_sub(1)).copied().unwrap_or(u32::MAX);
        let at = (line as usize).saturating_add(marker.col());
        match &self.chars {
            None => at.min(self.len),
            Some(chars) => chars.get(at).map_or(self.len, |&at| at as usize),
        }
    }
}

struct Builder<'t> {
    file: usize,
    text: &'t str,
    offsets: Offsets,
    limits: &'t Limits,
    open: Vec<Open>,
    anchors: BTreeMap<usize, (Node, Weight)>,
    total: Weight,
    /// The end of the last token. The header of a block scalar comes after it.
    last_end: usize,
    parsed: Parsed,
    root: Option<(Node, Weight)>,
}

impl Builder<'_> {
    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.file, start, end)
    }

    fn event(&mut self, event: Event<'_>, start: usize, end: usize) -> Result<(), Box<Diagnostic>> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd => {}
            Event::DocumentStart(_) => {
                // Anchors are valid only in their own document.
                self.anchors.clear();
                if self.parsed.documents.len() >= self.limits.documents_max {
                    let message = format!("more than {} documents in one file", self.limits.documents_max);
                    return Err(Diagnostic::error(self.span(start, end), message)
                        .hint("split the file")
                        .into());
                }
            }
            Event::DocumentEnd => {
                if let Some((root, weight)) = self.root.take() {
                    let weight = weight.bytes + weight.nodes * size_of::<Node>();
                    self.parsed.documents.push(Document { root, weight });
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(&text, style, anchor, tag.as_deref(), start, end)?
            }
            Event::Alias(id) => self.alias(id, start, end)?,
            Event::SequenceStart(anchor, tag) => {
                self.open(OpenWhat::Seq(Vec::new()), anchor, tag.as_deref(), start, end)?;
            }
            Event::MappingStart(anchor, tag) => {
                let map = OpenWhat::Map { map: MapBuilder::default(), key: None, merges: Vec::new() };
                self.open(map, anchor, tag.as_deref(), start, end)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(end)?,
        }
        self.last_end = self.last_end.max(end);
        Ok(())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        start: usize,
        end: usize,
    ) -> Result<(), Box<Diagnostic>> {
        let plain = match (style, core_tag(tag)) {
            (_, Err(tag)) => return Err(unknown_tag(&tag, self.span(start, end)).into()),
            (_, Ok(Some("str"))) => false,
            (style, Ok(_)) => style == ScalarStyle::Plain,
        };
        let (start, end) = match style {
            ScalarStyle::Literal | ScalarStyle::Folded => {
                let body = &self.text[start.min(end)..end];
                (self.block_header(start).unwrap_or(start), start + body.trim_end().len())
            }
            _ => (start, end),
        };
        let head = match style {
            ScalarStyle::Literal | ScalarStyle::Folded => {
                self.text[start..end].find('\n').map_or(0, |line| line + 1)
            }
            _ => 0,
        };
        // The text of a block begins on a line after its header, so even a single piece has a position of its
        // own.
        let pieces_min = if head > 0 { 1 } else { 2 };
        let pieces = self.pieces(start + head, end, text, pieces_min);
        let scalar = Scalar { text: Arc::from(text), plain, pieces };
        let node =
            Node { span: self.span(start, end), alias: None, flow: false, value: Value::Scalar(scalar) };
        let weight = Weight { nodes: 1, bytes: text.len() };
        self.finished(node, weight, anchor, true)
    }

    /// The positions of the pieces of a text that is written between `start` and `end`. Empty if there are
    /// fewer than `least`, or if a piece cannot be found literally because of escapes.
    fn pieces(&self, start: usize, end: usize, text: &str, least: usize) -> Arc<[Span]> {
        /// The most pieces of a text whose positions are recorded.
        const PIECES_MAX: usize = 1_000;
        let separators = ['\n', ';'];
        let count = text.split(separators).take(PIECES_MAX + 1).count();
        if !(least..=PIECES_MAX).contains(&count) {
            return Arc::default();
        }
        let mut at = start;
        let mut found = Vec::with_capacity(count);
        for piece in text.split(separators) {
            // Folded text has other line ends than its content, so the words are searched one after another.
            let mut first = None;
            for word in piece.split_whitespace() {
                let Some(offset) = self.text.get(at..end).and_then(|rest| rest.find(word)) else {
                    return Arc::default();
                };
                first = first.or(Some(at + offset));
                at += offset + word.len();
            }
            let first = first.unwrap_or(at);
            let line = self.text[first..at].lines().next().unwrap_or_default();
            found.push(self.span(first, first + line.trim_end().len()));
        }
        found.into()
    }

    /// The position of the `|` or `>` of a block scalar. The parser's span starts at the first line of the
    /// content.
    fn block_header(&self, content: usize) -> Option<usize> {
        let mut at = self.last_end;
        for line in self.text.get(at..content)?.split_inclusive('\n') {
            let mut word_start = true;
            let mut skip_word = false;
            for (i, c) in line.char_indices() {
                match c {
                    '#' if word_start => break,
                    '&' | '!' if word_start => skip_word = true,
                    '|' | '>' if !skip_word => return Some(at + i),
                    _ => {}
                }
                word_start = c.is_whitespace();
                skip_word &= !word_start;
            }
            at += line.len();
        }
        None
    }

    fn alias(&mut self, id: usize, start: usize, end: usize) -> Result<(), Box<Diagnostic>> {
        let span = self.span(start, end);
        let Some((node, weight)) = self.anchors.get(&id) else {
            return Err(Diagnostic::error(span, "this alias is inside the value it refers to")
                .hint("write the value out")
                .into());
        };
        let (mut node, weight) = (node.clone(), *weight);
        node.alias = Some(span);
        self.finished(node, weight, 0, true)
    }

    fn open(
        &mut self,
        what: OpenWhat,
        anchor: usize,
        tag: Option<&Tag>,
        start: usize,
        end: usize,
    ) -> Result<(), Box<Diagnostic>> {
        if let Err(tag) = core_tag(tag) {
            return Err(unknown_tag(&tag, self.span(start, end)).into());
        }
        if self.open.len() >= self.limits.depth_max {
            let message = format!("nested more than {} levels deep", self.limits.depth_max);
            return Err(Diagnostic::error(self.span(start, end), message).into());
        }
        let flow = self.text.get(start..end).is_some_and(opens_flow);
        let weight = Weight { nodes: 1, bytes: 0 };
        self.open.push(Open { start, end, flow, anchor, weight, what });
        self.charge(weight, self.span(start, end))
    }

    fn close(&mut self, end: usize) -> Result<(), Box<Diagnostic>> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        // The parser's end of a flow collection can be wrong if a comma or a comment precedes it.
        let end = if open.flow { self.flow_end(open.end).unwrap_or(end) } else { open.end };
        let value = match open.what {
            OpenWhat::Seq(items) => Value::Seq(items),
            OpenWhat::Map { mut map, merges, .. } => {
                for merge in merges {
                    map.merge(merge)?;
                }
                Value::Map(map.entries)
            }
        };
        let start = match &value {
            Value::Seq(_) if !open.flow => self.first_dash(open.start),
            _ => open.start,
        };
        let span = self.span(start, end);
        let node = Node { span, alias: None, flow: open.flow, value };
        self.finished(node, open.weight, open.anchor, false)
    }

    /// The start of a block list. The parser skips the first dash of a list that is not indented.
    fn first_dash(&self, start: usize) -> usize {
        let line = self.text[..start].rfind('\n').map_or(0, |i| i + 1);
        let before = self.text[line..start].trim_end();
        let dash = before.ends_with('-') && !self.text[start..].starts_with(['-', '&', '!']);
        if dash { line + before.len() - 1 } else { start }
    }

    /// The end of the closing bracket of a flow collection whose last value ends at `from`.
    fn flow_end(&self, from: usize) -> Option<usize> {
        let mut rest = self.text[from..].char_indices();
        while let Some((at, c)) = rest.next() {
            match c {
                ']' | '}' => return Some(from + at + 1),
                '#' => {
                    rest.find(|(_, c)| *c == '\n');
                }
                _ => {}
            }
        }
        None
    }

    /// Adds a finished value to its parent.
    fn finished(
        &mut self,
        node: Node,
        weight: Weight,
        anchor: usize,
        new: bool,
    ) -> Result<(), Box<Diagnostic>> {
        if new {
            self.charge(weight, node.alias.unwrap_or(node.span))?;
        }
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), weight));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some((node, weight));
            return Ok(());
        };
        open.weight.nodes += weight.nodes;
        open.weight.bytes += weight.bytes;
        open.end = open.end.max(node.alias.unwrap_or(node.span).end);
        match &mut open.what {
            OpenWhat::Seq(items) => items.push(node),
            OpenWhat::Map { map, key, merges } => {
                match key.take() {
                    None => {
                        let Value::Scalar(_) = &node.value else {
                            return Err(Diagnostic::error(node.head(), "a map key must be a string, not a list or a map")
                            .hint("text in braces such as `{{ … }}` is a template: render it first, or quote it").into());
                        };
                        let merge = matches!(&node.value, Value::Scalar(s) if s.plain && &*s.text == "<<");
                        *key = Some((node, merge));
                    }
                    Some((_, true)) => merges.push(node),
                    Some((key, false)) => {
                        let Value::Scalar(Scalar { text, plain, .. }) = key.value else {
                            return Ok(());
                        };
                        let entry = Entry {
                            key: text,
                            key_span: key.alias.unwrap_or(key.span),
                            key_plain: plain,
                            merged: false,
                            value: node,
                        };
                        map.push(entry, &mut self.parsed.duplicates);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds to the content read so far, and checks it against the limits.
    fn charge(&mut self, weight: Weight, span: Span) -> Result<(), Box<Diagnostic>> {
        self.total.nodes += weight.nodes;
        self.total.bytes += weight.bytes;
        let what = if self.total.nodes > self.limits.nodes_max {
            format!("the file has more than {} values", self.limits.nodes_max)
        } else if self.total.bytes > self.limits.scalar_bytes_max {
            format!("the file has more than {} MiB of values", self.limits.scalar_bytes_max >> 20)
        } else {
            return Ok(());
        };
        Err(Diagnostic::error(span, format!("{what} once its aliases are expanded"))
            .hint("split the file, or use fewer anchors and aliases")
            .into())
    }

    fn scan_error(&self, error: &ScanError) -> Diagnostic {
        let at = self.offsets.byte(error.marker());
        let start = floor_boundary(self.text, at);
        // The scanner reports the beginning of the token, which may be several lines above.
        let start = match error.info().contains("tab") {
            true => indenting_tab(self.text, start).unwrap_or(start),
            false => start,
        };
        let width = self.text[start..].chars().next().filter(|c| *c != '\n').map_or(0, char::len_utf8);
        let span = self.span(start, start + width);
        if error.info().contains("recursion limit") {
            return Diagnostic::error(
                span,
                format!("nested more than {} levels deep", self.limits.depth_max),
            );
        }
        let diagnostic = Diagnostic::error(span, format!("not valid YAML: {}", error.info()));
        let line = self.text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line = self.text[line..].lines().next().unwrap_or_default();
        if line.contains("{{") {
            diagnostic.hint("this looks like a template: render it first (`helm template …`)")
        } else if line.trim_start_matches(' ').starts_with('\t') {
            diagnostic.hint("indent with spaces: YAML does not allow tabs")
        } else if error.info().contains("mapping values are not allowed") {
            diagnostic.hint("check the indentation, and quote values that contain `: `")
        } else if error.info().contains("unknown anchor") {
            diagnostic.hint("an alias `*name` needs an anchor `&name` before it in the same document")
        } else {
            diagnostic
        }
    }
}

/// The first tab that indents a line, from the line of an offset on.
fn indenting_tab(text: &str, from: usize) -> Option<usize> {
    let mut start = text[..from].rfind('\n').map_or(0, |i| i + 1);
    for line in text[start..].split_inclusive('\n') {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        if line[spaces..].starts_with('\t') && !line.trim().is_empty() {
            return Some(start + spaces);
        }
        start += line.len();
    }
    None
}

/// Whether the head of a collection opens it in flow style. The head consists of an anchor or tag (if any),
/// the bracket, and the spaces and comment after it.
fn opens_flow(head: &str) -> bool {
    let line = head.rsplit('\n').next().unwrap_or_default();
    let code = [" #", "\t#"].iter().filter_map(|c| line.find(c)).min().map_or(line, |at| &line[..at]);
    code.trim_end().ends_with(['[', '{'])
}

/// The name of a core tag, such as `str` for `!!str`. A tag that Kubernetes does not support is an error.
fn core_tag(tag: Option<&Tag>) -> Result<Option<&str>, String> {
    let Some(tag) = tag else { return Ok(None) };
    if tag.is_yaml_core_schema() {
        match tag.suffix.as_str() {
            "str" | "int" | "float" | "bool" | "null" | "seq" | "map" => return Ok(Some(&tag.suffix)),
            other => return Err(format!("!!{other}")),
        }
    }
    if tag.handle == "!" && tag.suffix.is_empty() {
        return Ok(Some("str"));
    }
    Err(format!("{}{}", tag.handle, tag.suffix))
}

fn unknown_tag(tag: &str, span: Span) -> Diagnostic {
    Diagnostic::error(span, format!("the YAML tag `{tag}` has no meaning in a Kubernetes manifest"))
        .hint("remove the tag, or quote the text if it is meant literally")
}

/// The name as which Kubernetes would read an unquoted key, if that is another one.
pub(crate) fn key_misread(key: &str) -> Option<String> {
    use crate::scalar::Resolved;
    match resolve_plain(key) {
        Resolved::Str => None,
        Resolved::Null => Some("null".to_owned()),
        Resolved::Bool(value) => (key != value.to_string()).then(|| value.to_string()),
        Resolved::Int(value) => (key != value.to_string()).then(|| value.to_string()),
        Resolved::Float(value) => (key != value.to_string()).then(|| value.to_string()),
        Resolved::NotFinite => Some("a float".to_owned()),
    }
}
