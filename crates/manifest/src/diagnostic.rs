//! Errors, warnings and notes about a manifest, and their text and JSON output.

use std::fmt;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Element, Group, Level, Renderer, Snippet};
use outrigger_lifecycle::Severity;
use serde_json::json;

use crate::span::{SourceFile, Span, floor_boundary};

/// The longest source line that is shown. A manifest on one line would fill the terminal.
const LINE_BYTES_SHOWN_MAX: usize = 400;

/// One error, warning or note for the author of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error, warning or note.
    pub severity: Severity,
    /// The name of the rule, if it has one.
    pub code: Option<&'static str>,
    /// What is wrong, in one sentence.
    pub message: String,
    /// The position.
    pub span: Option<Span>,
    /// Related positions, each with a short text.
    pub labels: Vec<(Span, String)>,
    /// How to fix it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error, with a position if there is one.
    pub fn error(span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Diagnostic::new(Severity::Error, span.into(), message.into())
    }

    /// A warning, with a position if there is one.
    pub fn warning(span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Diagnostic::new(Severity::Warning, span.into(), message.into())
    }

    /// A note, with a position if there is one.
    pub fn note(span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Diagnostic::new(Severity::Note, span.into(), message.into())
    }

    fn new(severity: Severity, span: Option<Span>, message: String) -> Self {
        Diagnostic { severity, code: None, message, span, labels: Vec::new(), hint: None }
    }

    /// Adds a related position.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push((span, text.into()));
        self
    }

    /// Adds how to fix it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether one of these errors is about the same text. A value that cannot be read has no meaning, so
    /// further messages about it do not help.
    pub fn follows_from(&self, errors: &[Diagnostic]) -> bool {
        let overlaps = |a: Span, b: Span| a.file == b.file && a.start < b.end && b.start < a.end;
        let errors = errors.iter().filter(|d| d.severity == Severity::Error).filter_map(|d| d.span);
        self.span.is_some_and(|span| errors.into_iter().any(|error| overlaps(span, error)))
    }
}

/// Why a manifest was rejected: at least one error, and the warnings that were found too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut errors = self.0.iter().filter(|d| d.severity == Severity::Error);
        let Some(first) = errors.next() else {
            return f.write_str("the manifest was refused");
        };
        f.write_str(&first.message)?;
        match errors.count() {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

impl std::error::Error for Diagnostics {}

/// Shows diagnostics with file, line, column and the source lines.
pub fn render(diagnostics: &[Diagnostic], sources: &[SourceFile], color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    show(diagnostics, sources, renderer.term_width(110))
}

/// The same as [`render`], but with at most `width` columns if names and paths are not longer. Sentences are
/// wrapped, and long source lines are cut.
pub fn render_within(
    diagnostics: &[Diagnostic],
    sources: &[SourceFile],
    color: bool,
    width: usize,
) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let narrow: Vec<Diagnostic> = diagnostics.iter().map(|d| narrow(d, sources, width)).collect();
    show(&narrow, sources, renderer.term_width(width))
}

fn show(diagnostics: &[Diagnostic], sources: &[SourceFile], renderer: Renderer) -> String {
    let renderer = renderer.decor_style(DecorStyle::Ascii);
    let mut out = String::new();
    for diagnostic in diagnostics {
        let text = renderer.render(&[group(diagnostic, sources)]);
        if diagnostic.span.is_none() && diagnostic.labels.is_empty() {
            // Without a source line, the renderer's vertical bar has no meaning.
            let lines: Vec<&str> = text.lines().filter(|line| !is_bar(line)).collect();
            out.push_str(&lines.join("\n"));
        } else {
            out.push_str(&text);
        }
        out.push_str("\n\n");
    }
    out
}

/// Wraps the sentences of a diagnostic to a width. The renderer indents the lines after the first. Labels
/// that do not fit beside their text are moved below.
fn narrow(diagnostic: &Diagnostic, sources: &[SourceFile], width: usize) -> Diagnostic {
    let lines = diagnostic.span.iter().chain(diagnostic.labels.iter().map(|(span, _)| span));
    let position = |span: &Span| sources.get(span.file).map(|source| source.position(span.start));
    let digits = lines.filter_map(position).map(|at| at.line.to_string().len()).max().unwrap_or(0);
    let code = diagnostic.code.map_or(0, |code| code.len() + 2);
    let head = "warning: ".len() + code;
    let mut narrow = diagnostic.clone();
    narrow.message = wrap(&diagnostic.message, width.saturating_sub(head));
    // The renderer does not cut marked text, so it is cut here.
    let clip = |span: &mut Span| span.end = span.end.min(span.start + width / 2);
    narrow.span.iter_mut().for_each(clip);
    let mut below: Vec<String> = diagnostic.hint.iter().cloned().collect();
    let primary = narrow.span;
    narrow.labels.retain_mut(|(span, text)| {
        clip(span);
        let Some(at) = position(span) else { return true };
        // Two marked texts that are far apart do not fit on one line.
        let is_far = primary.is_some_and(|first| {
            let line = |span: &Span| position(span).map(|at| at.line);
            let (from, to) = (first.start.min(span.start), first.end.max(span.end));
            first.file == span.file
                && line(&first) == Some(at.line)
                && to - from + "... ...".len() + digits > width / 2
        });
        if is_far {
            below.push(format!("line {}: {text}", at.line));
            return false;
        }
        let beside = digits + " | ".len() + at.column + (span.end - span.start);
        if beside + text.chars().count() >= width {
            below.push(format!("line {}: {}", at.line, std::mem::take(text)));
        }
        true
    });
    let room = width.saturating_sub(digits + " = help: ".len() + 1);
    narrow.hint = (!below.is_empty()).then(|| wrap(&below.join("\n"), room));
    narrow
}

/// Breaks lines at spaces. Indented lines are kept, because they are meant to be copied.
fn wrap(text: &str, width: usize) -> String {
    let mut out: Vec<String> = Vec::new();
    for paragraph in text.split('\n') {
        if paragraph.starts_with(' ') || paragraph.chars().count() <= width {
            out.push(paragraph.to_owned());
            continue;
        }
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                out.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        out.push(line);
    }
    out.join("\n")
}

/// Whether a line has only a vertical bar, possibly in colour.
fn is_bar(line: &str) -> bool {
    let mut shown = String::new();
    let mut rest = line;
    while let Some((before, sequence)) = rest.split_once('\u{1b}') {
        shown.push_str(before);
        rest = sequence.split_once('m').map_or("", |(_, after)| after);
    }
    shown.push_str(rest);
    shown.trim() == "|"
}

fn group<'a>(diagnostic: &'a Diagnostic, sources: &'a [SourceFile]) -> Group<'a> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let mut title = level.primary_title(&diagnostic.message);
    if let Some(code) = diagnostic.code {
        title = title.id(code);
    }
    let mut group = Group::with_title(title);

    // There is one snippet per file. The file of the diagnostic itself comes first.
    let mut places: Vec<(Span, Option<&str>, bool)> = Vec::new();
    places.extend(diagnostic.span.map(|span| (span, None, true)));
    places.extend(
        diagnostic
            .labels
            .iter()
            .map(|(span, text)| (*span, Some(text.as_str()).filter(|text| !text.is_empty()), false)),
    );
    let mut files: Vec<usize> = Vec::new();
    for (span, ..) in &places {
        if !files.contains(&span.file) {
            files.push(span.file);
        }
    }
    for file in files {
        let Some(source) = sources.get(file) else { continue };
        let here: Vec<_> = places.iter().filter(|(span, ..)| span.file == file).copied().collect();
        group = group.element(snippet(source, &here));
    }
    if let Some(hint) = &diagnostic.hint {
        group = group.element(Level::HELP.message(hint));
    }
    group
}

fn snippet<'a>(source: &'a SourceFile, places: &[(Span, Option<&'a str>, bool)]) -> Element<'a> {
    let text: &str = &source.text;
    let from = places.iter().map(|(span, ..)| floor_boundary(text, span.start)).min().unwrap_or(0);
    let to = places.iter().map(|(span, ..)| floor_boundary(text, span.end)).max().unwrap_or(0).max(from);
    // Only the affected lines are passed to the renderer, so that its work does not grow with the file.
    let first = text[..from].rfind('\n').map_or(0, |i| i + 1);
    let last = text[to..].find('\n').map_or(text.len(), |i| to + i);
    let window = &text[first..last];
    let origin = source.position(from);
    if window.trim().is_empty() || window.lines().any(|line| line.len() > LINE_BYTES_SHOWN_MAX) {
        return annotate_snippets::Origin::path(&source.name)
            .line(origin.line)
            .char_column(origin.column)
            .into();
    }
    let mut snippet = Snippet::source(window).line_start(origin.line).path(&source.name).fold(true);
    for (span, label, primary) in places {
        let start = floor_boundary(text, span.start) - first;
        let end = floor_boundary(text, span.end).max(span.start) - first;
        let kind = if *primary { AnnotationKind::Primary } else { AnnotationKind::Context };
        // In a block of several lines, only the first one is marked.
        let end = window[start..end.max(start)].find('\n').map_or(end, |i| start + i);
        snippet = snippet.annotation(kind.span(start..end).label(*label));
    }
    snippet.into()
}

/// The diagnostics as JSON: an array of objects with `severity`, `message`, `file`, `line`, `column`, ….
pub fn to_json(diagnostics: &[Diagnostic], sources: &[SourceFile]) -> serde_json::Value {
    let place = |span: Span| {
        sources.get(span.file).map(|source| {
            let (start, end) = (source.position(span.start), source.position(span.end));
            json!({
                "file": source.name, "line": start.line, "column": start.column,
                "endLine": end.line, "endColumn": end.column,
            })
        })
    };
    diagnostics
        .iter()
        .map(|diagnostic| {
            let mut object = json!({
                "severity": match diagnostic.severity {
                    Severity::Error => "error",
                    Severity::Warning => "warning",
                    Severity::Note => "note",
                },
                "code": diagnostic.code,
                "message": diagnostic.message,
                "hint": diagnostic.hint,
                "related": diagnostic.labels.iter().map(|(span, text)| {
                    let mut related = place(*span).unwrap_or_else(|| json!({}));
                    related["label"] = json!(text);
                    related
                }).collect::<Vec<_>>(),
            });
            let place = diagnostic.span.and_then(place);
            if let (Some(object), Some(serde_json::Value::Object(place))) = (object.as_object_mut(), place) {
                object.extend(place);
            }
            object
        })
        .collect()
}
