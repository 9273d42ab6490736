//! Draws the pods of a workload on one axis, with its waits between them.

use super::{Bar, Critical, Kind, Lane, Mark, Sign, Subject, Timeline, TimelineError, clock};
use crate::analyze::{Stretch, StretchKind, WorkloadAnalysis, analyze_since};
use crate::events::PodEvents;

impl Timeline {
    /// Creates the timeline of a workload. Its lanes are the back-off, then each pod with its containers.
    pub(super) fn of_workload(
        title: String,
        analysis: &WorkloadAnalysis,
        pods: &[&PodEvents],
    ) -> Result<Timeline, TimelineError> {
        let mut all = Timeline { title, ..Timeline::default() };
        all.advice = analysis.advice.iter().map(|advice| advice.text.clone()).collect();
        all.moments.push(0);
        all.back_off(analysis);
        for pod in pods {
            let mut one = Timeline::since(&pod.entries, Some(analysis.zero_ms))?;
            one.mark(&analyze_since(&pod.entries, analysis.zero_ms)?);
            all.append(pod, one);
        }
        all.moments.sort_unstable();
        all.moments.dedup();
        Ok(all)
    }

    /// Adds the lane of the waits between pods, if there are any.
    fn back_off(&mut self, analysis: &WorkloadAnalysis) {
        let waits: Vec<&Stretch> =
            analysis.stretches.iter().filter(|s| s.kind == StretchKind::BackOff && s.ms() > 0).collect();
        if waits.is_empty() {
            return;
        }
        let total: u64 = waits.iter().map(|wait| wait.ms()).sum();
        let mut lane = Lane {
            subject: Subject::Workload,
            name: "back-off".to_owned(),
            role: Some(format!("{} between pods", clock(total))),
            ..Lane::default()
        };
        for wait in waits {
            let (from, to, title) = (wait.from_ms, wait.to_ms, wait.text.clone());
            self.moments.extend([from, to]);
            self.critical.push(Critical { lane: Some(0), from, to, title: title.clone() });
            lane.bars.push(Bar { from, to, kind: Kind::Backoff, title });
        }
        if let Some(end) = &analysis.end {
            let sign = if end.is_success { Sign::Completed } else { Sign::Failed };
            self.moments.push(analysis.took_ms);
            lane.marks.push(Mark { at: analysis.took_ms, sign, title: end.text.clone() });
        }
        self.lanes.push(lane);
    }

    /// Adds a pod below the others.
    fn append(&mut self, pod: &PodEvents, one: Timeline) {
        let Timeline { sandbox, phases, .. } = one;
        let head = self.lanes.len();
        self.lanes.push(Lane {
            subject: Subject::Pod,
            name: pod.pod.clone(),
            role: Some("pod".to_owned()),
            bars: sandbox,
            phases,
            ..Lane::default()
        });
        let first = self.lanes.len();
        let lanes = head..first + one.lanes.len();
        self.lanes.extend(one.lanes);
        self.openings.extend(one.openings.into_iter().map(|mut opening| {
            opening.from += first;
            opening.to += first;
            opening
        }));
        self.stops.extend(one.stops.into_iter().map(|mut halt| {
            halt.lanes = lanes.clone();
            halt
        }));
        self.graces.extend(one.graces.into_iter().map(|mut grace| {
            grace.lanes = lanes.clone();
            grace
        }));
        self.critical.extend(one.critical.into_iter().map(|mut critical| {
            critical.lane = Some(critical.lane.map_or(head, |lane| lane + first));
            critical
        }));
        for text in one.advice {
            if !self.advice.contains(&text) {
                self.advice.push(text);
            }
        }
        self.moments.extend(one.moments);
    }
}
