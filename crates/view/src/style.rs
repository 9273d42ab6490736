//! Colours of printed text.

use anstyle::{AnsiColor, Style};

/// Headings.
pub const HEADING: Style = Style::new().bold();
/// Less important text.
pub const DIM: Style = Style::new().dimmed();
/// Init containers.
pub const INIT: Style = AnsiColor::Yellow.on_default();
/// Sidecars.
pub const SIDECAR: Style = AnsiColor::Cyan.on_default();
/// Mains.
pub const MAIN: Style = AnsiColor::Green.on_default().bold();

/// Renders text in a style. The output stream removes the style if colours are off.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
