//! Formats log lines for people.

use std::collections::BTreeMap;

use outrigger_text::log_line::parse_line;

/// Maximum number of bytes kept of an incomplete line.
const LINE_MAX: usize = 128 << 10;

/// Whether lines start with their timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timestamps {
    /// Lines start with their timestamp.
    Shown,
    /// Lines do not show their timestamp.
    #[default]
    Omitted,
}

/// Converts lines in CRI format to plain text. Partial lines are joined, even if other containers write in
/// between.
#[derive(Debug, Default)]
pub struct Lines {
    /// Name prefixes of lines, by container index.
    names: BTreeMap<usize, String>,
    timestamps: Timestamps,
    begun: BTreeMap<usize, Vec<u8>>,
}

impl Lines {
    /// Creates a formatter. `names` has the prefixes of the containers' lines. `timestamps` applies to all
    /// lines.
    pub fn new(names: BTreeMap<usize, String>, timestamps: Timestamps) -> Self {
        Lines { names, timestamps, begun: BTreeMap::new() }
    }

    /// Formats lines of one container, given in CRI format.
    pub fn format(&mut self, container: usize, lines: &[u8]) -> Vec<u8> {
        let begun = self.begun.entry(container).or_default();
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|b| *b == b'\n').filter_map(parse_line) {
            if begun.is_empty() {
                if let Some(name) = self.names.get(&container) {
                    begun.extend_from_slice(format!("{name} | ").as_bytes());
                }
                if self.timestamps == Timestamps::Shown {
                    begun.extend_from_slice(format!("{} ", line.time).as_bytes());
                }
            }
            begun.extend_from_slice(line.text);
            // Without a prefix, partial lines do not have to be joined.
            let is_plain = self.names.is_empty() && self.timestamps == Timestamps::Omitted;
            let is_whole = !line.partial || (!is_plain && begun.len() > LINE_MAX);
            if is_whole {
                begun.push(b'\n');
            }
            if is_whole || is_plain {
                out.append(begun);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_named() {
        let mut lines = Lines::new([(1, "b".to_owned())].into(), Timestamps::Shown);
        assert_eq!(lines.format(1, b"T1 stdout P on\n"), b"");
        assert_eq!(lines.format(0, b"T2 stderr F other\n"), b"T2 other\n");
        let mut plain = Lines::default();
        assert_eq!(plain.format(0, b"T1 stdout P on\nT2 stdout F e\n"), b"one\n");
        assert_eq!(lines.format(1, b"T3 stdout F e\nT4 stdout F \n"), b"b | T1 one\nb | T4 \n");
    }
}
