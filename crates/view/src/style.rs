//! Colours of what is printed.

use anstyle::{AnsiColor, Style};

/// Headings.
pub const HEADING: Style = Style::new().bold();
/// What matters less.
pub const DIM: Style = Style::new().dimmed();
/// Init containers.
pub const INIT: Style = AnsiColor::Yellow.on_default();
/// Sidecars.
pub const SIDECAR: Style = AnsiColor::Cyan.on_default();
/// Mains.
pub const MAIN: Style = AnsiColor::Green.on_default().bold();

/// Text in a style; the stream takes the style out again where there are no colours.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
