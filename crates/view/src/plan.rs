//! Renders a plan in formats for people and for programs.

mod json;
mod mermaid;
mod svg;
#[cfg(test)]
mod tests;
mod text;
mod view;
mod words;

pub use json::render as json;
pub use mermaid::render as mermaid;
pub use svg::render as svg;
pub use text::render as text;
pub use view::View;
