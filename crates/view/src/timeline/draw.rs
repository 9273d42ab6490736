//! The timelines of several pods in one output.

use super::{Scale, Timeline, TimelineError, html, svg};
use crate::analyze::analyze;
use crate::events::PodEvents;
use crate::style::{HEADING, paint};

/// The same width as other output.
const WIDTH: usize = 100;

/// How a timeline is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Picture {
    /// Text, for a terminal.
    Text,
    /// A picture.
    Svg,
    /// A page with details on hover, and advice.
    Html,
}

/// Draws pods, and marks what their start and stop waited for.
///
/// # Errors
/// The events are not those of a pod.
pub fn draw(pods: &[PodEvents], picture: Picture, scale: Scale) -> Result<String, TimelineError> {
    let mut timelines = Vec::with_capacity(pods.len());
    for pod in pods {
        let mut timeline = Timeline::read(&pod.entries)?;
        timeline.mark(&analyze(&pod.entries)?);
        timelines.push(timeline);
    }
    Ok(match picture {
        Picture::Svg => svg(&timelines, scale),
        Picture::Html => html(&timelines, scale),
        Picture::Text => {
            let one = |(pod, timeline): (&PodEvents, &Timeline)| {
                let heading = paint(HEADING, &format!("Pod {}", pod.pod));
                format!("{heading}\n{}", timeline.ascii(WIDTH, scale))
            };
            pods.iter().zip(&timelines).map(one).collect::<Vec<_>>().join("\n")
        }
    })
}
