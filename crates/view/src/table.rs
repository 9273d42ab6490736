//! Renders tables for people.

use crate::line::{columns, wrap_all};

/// The space between two columns.
const GAP: usize = 2;
/// The indent of values that are shown below their row.
const INDENT: usize = 2;

/// Renders aligned columns with a heading. Empty if there are no rows. The last column is omitted if it is
/// empty.
///
/// With a `width`, no line is wider. Columns that do not fit are shown below their row, each value with its
/// heading. Nothing is cut off.
pub fn table<const N: usize>(
    heading: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    width: Option<usize>,
) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let is_shown = |column: usize| column + 1 < N || rows.iter().any(|row| !row[N - 1].is_empty());
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| columns(&row[column]));
        cells.fold(heading[column].len(), usize::max)
    };
    let shown: Vec<usize> = (0..N).filter(|column| is_shown(*column)).collect();
    let widths: Vec<usize> = shown.iter().map(|column| widest(*column)).collect();
    let beside = fitting(&widths, width.unwrap_or(usize::MAX));
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths).take(beside) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width - columns(cell) + GAP));
        }
        format!("{}\n", line.trim_end())
    };
    let mut out = line(&heading[..shown.len()]);
    for row in &rows {
        let cells: Vec<&str> = row[..shown.len()].iter().map(String::as_str).collect();
        out.push_str(&line(&cells));
        let room = width.unwrap_or(usize::MAX).saturating_sub(INDENT);
        for text in below(&heading[beside..shown.len()], &cells[beside..], room) {
            out.push_str(&format!("{:INDENT$}{text}\n", ""));
        }
    }
    out
}

/// The number of columns that fit beside each other. It is at least one.
fn fitting(widths: &[usize], width: usize) -> usize {
    let mut used = 0;
    let fits = |column: &&usize| {
        used += **column + GAP;
        used <= width.saturating_add(GAP)
    };
    widths.iter().take_while(fits).count().max(1)
}

/// Values with their headings in lines of at most `width` columns, without empty ones.
fn below(heading: &[&str], cells: &[&str], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let said = heading.iter().zip(cells).filter(|(_, cell)| !cell.is_empty() && **cell != NONE);
    for (i, (name, cell)) in said.enumerate() {
        let text = format!("{name} {cell}");
        match lines.last_mut() {
            Some(line) if i > 0 && columns(line) + GAP + columns(&text) <= width => {
                *line = format!("{line}{:GAP$}{text}", "");
            }
            _ => lines.extend(wrap_all(&text, width)),
        }
    }
    lines
}

/// kubectl's text for an empty cell.
pub const NONE: &str = "<none>";

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(last: &str) -> impl Iterator<Item = [String; 2]> {
        [["a".to_owned(), last.to_owned()], ["long".to_owned(), String::new()]].into_iter()
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        assert_eq!(table(["X", "WHY"], rows("it waits"), None), "X     WHY\na     it waits\nlong\n");
        assert_eq!(table(["X", "WHY"], rows(""), None), "X\na\nlong\n");
        assert_eq!(table(["X", "WHY"], std::iter::empty(), None), "");
    }

    #[test]
    fn what_does_not_fit_stands_below_and_nothing_is_lost() {
        let row = |cells: [&str; 5]| cells.map(str::to_owned);
        let heading = ["POD", "PHASE", "IP", "FILE", "REASON"];
        let rows = [
            row(["web-x7k2p", "Running", "10.88.0.2", "web.yaml", "`app` waits for its readiness probe"]),
            row(["db-0", "Stopped", NONE, "", ""]),
        ];
        assert_eq!(
            table(heading, rows.clone().into_iter(), Some(30)),
            "POD        PHASE    IP\n\
             web-x7k2p  Running  10.88.0.2\n\
             \u{20} FILE web.yaml\n\
             \u{20} REASON `app` waits for its\n\
             \u{20} readiness probe\n\
             db-0       Stopped  <none>\n"
        );
        for width in [5, 12, 30, 60, 80, 120] {
            let text = table(heading, rows.clone().into_iter(), Some(width));
            let is_wide = |line: &str| columns(line) > width && !line.starts_with(['P', 'w', 'd']);
            assert!(!text.lines().any(is_wide), "{width}: {text}");
            let joined: String = text.split_whitespace().collect();
            assert!(joined.contains("10.88.0.2") && joined.contains("readinessprobe"), "{width}: {text}");
        }
    }
}
