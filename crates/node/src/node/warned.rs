//! Remembers which warnings about the manifest directory were shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outrigger_manifest::{Diagnostic, SourceFile, render};

/// The warnings about each file of the manifest directory, so that each is shown once.
#[derive(Debug, Default)]
pub(super) struct Warned(BTreeMap<PathBuf, String>);

impl Warned {
    /// The warnings about a file as text, unless they are the same as when it was last read.
    pub(super) fn news(
        &mut self,
        file: &Path,
        warnings: &[Diagnostic],
        sources: &[SourceFile],
    ) -> Option<String> {
        if warnings.is_empty() {
            self.0.remove(file);
            return None;
        }
        let text = render(warnings, sources, false);
        let before = self.0.insert(file.to_owned(), text.clone());
        (before.as_ref() != Some(&text)).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_shown_once() {
        let mut warned = Warned::default();
        let warnings = [Diagnostic::warning(None, "this has no effect")];
        let mut news = |warnings: &[Diagnostic]| warned.news(Path::new("/pods/p.yaml"), warnings, &[]);
        assert!(news(&warnings).is_some_and(|text| text.contains("this has no effect")));
        assert_eq!(news(&warnings), None, "once");
        assert_eq!(news(&[]), None, "it was corrected");
        assert!(news(&warnings).is_some(), "it is there again");
    }
}
