//! Draws several pods into one SVG file or HTML page.

use std::fmt::Write;

use super::svg::{NARROW, WIDE, draw, escape};
use super::{Scale, Timeline};

/// The style of the page around the pictures, which also follows light and dark mode.
const STYLE: &str = "
  :root { color-scheme: light dark }
  body { margin: 2rem auto; max-width: 1180px; padding: 0 1rem; font: 15px system-ui, 'DejaVu Sans', sans-serif;
    background: #f5f7fa; color: #1f2933 }
  figure { margin: 0 0 1.5rem } figure > svg { display: block; width: 100%; height: auto } figure > .narrow { display: none }
  @media (max-width: 899px) {
    body { margin: 1rem auto; padding: 0 0.5rem } figure > .wide { display: none }
    figure > .narrow { display: block; max-width: 640px; margin: 0 auto }
  }
  .advice { margin: 0 0 2rem; padding: 0.8rem 1rem 0.8rem 2.2rem; border-left: 4px solid #d6249f; background: #ffffff }
  .advice h2 { margin: 0 0 0.4rem -1.2rem; font-size: 1rem } .advice li { margin: 0.2rem 0 }
  rect[class]:hover, circle:hover, path:hover { opacity: 0.75 }
  @media (prefers-color-scheme: dark) { body { background: #0d1117; color: #f5f7fa } .advice { background: #161b22 } }";

/// Renders one picture of all pods, one below the other.
pub fn svg(timelines: &[Timeline], scale: Scale) -> String {
    if let [one] = timelines {
        return one.svg(scale);
    }
    // One legend is enough for all.
    let legend = |i: usize| i + 1 == timelines.len();
    let total: f64 = timelines.iter().enumerate().map(|(i, t)| WIDE.height(t, scale, legend(i)) + GAP).sum();
    let width = WIDE.width;
    let mut out =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {total}\" role=\"img\">\n");
    let mut y = 0.0;
    for (i, timeline) in timelines.iter().enumerate() {
        let height = WIDE.height(timeline, scale, legend(i));
        let picture = draw(timeline, scale, WIDE, legend(i));
        let rest = picture.strip_prefix("<svg ").unwrap_or(&picture);
        let _ = write!(out, "<svg y=\"{y}\" width=\"{width}\" height=\"{height}\" {rest}");
        y += height + GAP;
    }
    out.push_str("</svg>\n");
    out
}

/// The gap between two pods.
const GAP: f64 = 16.0;

/// Renders a self-contained page with a picture of each pod, with details on hover. Every pod is drawn twice,
/// for wide and for narrow windows. The browser shows the one that fits.
pub fn html(timelines: &[Timeline], scale: Scale) -> String {
    let names: Vec<&str> = timelines.iter().map(|t| t.title.as_str()).collect();
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>timeline of {}</title>\n<style>{STYLE}\n</style>\n</head>\n<body>\n",
        escape(&names.join(", "))
    );
    for (i, timeline) in timelines.iter().enumerate() {
        let last = i + 1 == timelines.len();
        let pictures = [WIDE, NARROW].map(|layout| draw(timeline, scale, layout, last)).concat();
        let _ = writeln!(out, "<figure>\n{pictures}</figure>");
        if timeline.advice.is_empty() {
            continue;
        }
        let items = timeline.advice.iter().map(|text| format!("<li>{}</li>\n", escape(text)));
        let heading = format!("What would make {} faster", escape(&timeline.title));
        let _ = writeln!(out, "<ul class=\"advice\"><h2>{heading}</h2>\n{}</ul>", items.collect::<String>());
    }
    out.push_str("</body>\n</html>\n");
    out
}
