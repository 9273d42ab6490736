//! Draws the timelines of all pods of a file into one output.

use super::{Scale, Timeline, TimelineError, html, svg};
use crate::analyze::{analyze, analyze_workload};
use crate::events::{Events, Group};
use crate::style::{HEADING, paint};
use crate::text::shorten;

/// How a timeline is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Picture {
    /// Text for a terminal with this many columns.
    Text(usize),
    /// An SVG picture.
    Svg,
    /// A page with details on hover, and advice.
    Html,
}

/// Draws pods and workloads, and marks what their start and stop waited for.
///
/// # Errors
/// The events cannot be read as those of a pod.
pub fn draw(events: &Events, picture: Picture, scale: Scale) -> Result<String, TimelineError> {
    let mut drawn: Vec<(String, Timeline)> = Vec::new();
    for group in events.groups() {
        drawn.push(match group {
            Group::Pod(pod) => {
                let mut timeline = Timeline::read(&pod.entries)?;
                timeline.mark(&analyze(&pod.entries)?);
                (format!("Pod {}", pod.pod), timeline)
            }
            Group::Workload(workload, pods) => {
                let analysis = analyze_workload(workload, &pods)?;
                (workload.title(), Timeline::of_workload(workload.title(), &analysis, &pods)?)
            }
        });
    }
    if let Picture::Text(width) = picture {
        let one = |(heading, timeline): &(String, Timeline)| {
            let heading = paint(HEADING, &shorten(heading, width));
            format!("{heading}\n{}", timeline.ascii(width, scale))
        };
        return Ok(drawn.iter().map(one).collect::<Vec<_>>().join("\n"));
    }
    let timelines: Vec<Timeline> = drawn.into_iter().map(|(_, timeline)| timeline).collect();
    Ok(match picture {
        Picture::Html => html(&timelines, scale),
        Picture::Svg | Picture::Text(_) => svg(&timelines, scale),
    })
}
