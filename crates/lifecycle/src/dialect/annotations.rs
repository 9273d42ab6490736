//! The table of Outrigger's own annotations: the object that each belongs to, its value, its effect on this
//! machine and in a cluster, and the rule that applies it.
//!
//! A new annotation is a name, a row of [`TABLE`] and its rule. Validation, the operator's warnings, what `plan` says and
//! docs/reference/annotations.md come from the row.

use std::collections::BTreeMap;

use super::{Draft, nearest, options};
use crate::backoff::backoff_range;

/// The prefix of all of Outrigger's annotations.
pub const PREFIX: &str = "outrigger.dev/";

/// The graph of dependencies between the containers of a pod.
pub const DEPENDS_ON: &str = "outrigger.dev/depends-on";
/// Names the sidecars among `spec.containers`. It means the same as `lifecycle.type: Sidecar`, a field that
/// API servers drop.
pub const SIDECARS: &str = "outrigger.dev/sidecars";
/// Whether exit codes of sidecars count for the result of a pod.
pub const SIDECAR_PHASE: &str = "outrigger.dev/sidecar-phase";
/// Whether restarts of sidecars count against the `backoffLimit` of a Job.
pub const SIDECAR_RESTARTS: &str = "outrigger.dev/sidecar-restarts";
/// How long sidecars run after the last main container.
pub const SIDECAR_DELAY: &str = "outrigger.dev/sidecar-delay";
/// The part of the grace period that is reserved for sidecars.
pub const SIDECAR_GRACE: &str = "outrigger.dev/sidecar-grace";
/// How long each named container may take to stop.
pub const STOP_GRACE: &str = "outrigger.dev/stop-grace";
/// When preStop hooks run.
pub const PRE_STOP: &str = "outrigger.dev/pre-stop";
/// How long a postStart hook may take.
pub const POST_START_TIMEOUT: &str = "outrigger.dev/post-start-timeout";
/// Whether containers that depend on a sidecar wait for it at every start.
pub const FENCE: &str = "outrigger.dev/fence";
/// The waits before restarts.
pub const RESTART_BACKOFF: &str = "outrigger.dev/restart-backoff";
/// The init containers that do not run again when the pod starts over.
pub const RUN_ONCE: &str = "outrigger.dev/run-once";
/// The time after which the operator reports a launch without progress.
pub const LAUNCH_TIMEOUT: &str = "outrigger.dev/launch-timeout";
/// The waits before a Job replaces a failed pod.
pub const POD_BACKOFF: &str = "outrigger.dev/pod-backoff";
/// When the operator opened a barrier. The kubelet syncs a pod at once when its metadata changes (KD9).
pub const BARRIER_OPENED: &str = "outrigger.dev/barrier-opened";
/// When the operator wrote the result of a pod. The kubelet syncs a pod when its metadata changes, not its status.
pub const RESULT_WRITTEN: &str = "outrigger.dev/result-written";

/// A row of [`TABLE`].
#[derive(Debug, Clone, Copy)]
pub struct Annotation {
    /// The full name.
    pub name: &'static str,
    /// The object that it is written to.
    pub place: Place,
    /// The values that are accepted. The hint about any other value is "expected" and this text.
    pub value: &'static str,
    /// What it does on this machine, if anything.
    pub effect: Option<&'static str>,
    /// What it does in a cluster.
    pub in_cluster: InCluster,
    /// The section of docs/guide that explains it.
    pub guide: Option<&'static str>,
    pub(super) rule: Rule,
}

/// The object that an annotation is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A pod, or the pod template of a workload.
    Pod,
    /// A Job itself.
    Job,
    /// A pod in a cluster. Only the operator writes it.
    OperatorOnly,
}

/// What an annotation does in a cluster, where kubelets run the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InCluster {
    /// The operator implements it, with this effect.
    Served(&'static str),
    /// The operator applies it to containers that are marked with `KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT`.
    MarkedSidecars,
    /// None: the kubelet is in charge of this, and it does not know the annotation.
    NoEffect,
}

impl InCluster {
    /// It in a few words.
    pub fn words(self) -> &'static str {
        match self {
            InCluster::Served(text) => text,
            InCluster::MarkedSidecars => "marked sidecars only",
            InCluster::NoEffect => "no effect",
        }
    }
}

/// How an annotation is applied.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// The function changes the plan after all dialects have been applied, or rejects the value.
    Plan(fn(&mut Draft<'_>, &str) -> Result<(), Unexpected>),
    /// It changes the plan of a Job. The function only checks the value.
    Job(fn(&str) -> Result<(), Unexpected>),
    /// A dialect or the operator reads it.
    Elsewhere,
}

/// The value of an annotation is not what its row says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unexpected;

/// All annotations of Outrigger. Their rules run in this order, and the documentation lists them in it.
pub static TABLE: [Annotation; 16] = [
    Annotation {
        name: DEPENDS_ON,
        place: Place::Pod,
        value: "one line per container, such as `app: proxy ready`",
        effect: Some("containers start and stop along this graph"),
        in_cluster: InCluster::Served("start order only"),
        guide: Some("dialects.md#depends-on"),
        rule: Rule::Elsewhere,
    },
    Annotation {
        name: SIDECARS,
        place: Place::Pod,
        value: "names such as `proxy,log`",
        effect: Some("these entries of `containers` are sidecars"),
        in_cluster: InCluster::Served("they become native sidecars"),
        guide: Some("dialects.md#kep"),
        rule: Rule::Elsewhere,
    },
    Annotation {
        name: SIDECAR_PHASE,
        place: Place::Pod,
        value: "`Count` or `Ignore`",
        effect: Some(
            "whether exit codes of sidecars count for the pod's result. By default they do not count",
        ),
        in_cluster: InCluster::MarkedSidecars,
        guide: None,
        rule: Rule::Plan(options::sidecar_phase),
    },
    Annotation {
        name: SIDECAR_RESTARTS,
        place: Place::Pod,
        value: "`Count` or `Ignore`",
        effect: Some(
            "whether restarts of sidecars count against a Job's `backoffLimit`. By default those of native sidecars count",
        ),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Plan(options::sidecar_restarts),
    },
    Annotation {
        name: SIDECAR_DELAY,
        place: Place::Pod,
        value: "a duration such as `5s` or `1500ms`, at most `24h`",
        effect: Some(
            "sidecars keep running this long after the last main container has ended. A pod that you stop does not wait",
        ),
        in_cluster: InCluster::MarkedSidecars,
        guide: None,
        rule: Rule::Plan(options::sidecar_delay),
    },
    Annotation {
        name: SIDECAR_GRACE,
        place: Place::Pod,
        value: "a duration such as `5s` or `1500ms`, within the pod's grace period",
        effect: Some("reserves this part of the grace period for sidecars"),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Plan(options::sidecar_grace),
    },
    Annotation {
        name: STOP_GRACE,
        place: Place::Pod,
        value: "containers and durations such as `proxy=5s, logs=1500ms`",
        effect: Some(
            "kills a container this long after its stop signal, instead of at the end of the grace period",
        ),
        in_cluster: InCluster::MarkedSidecars,
        guide: None,
        rule: Rule::Plan(options::stop_grace),
    },
    Annotation {
        name: PRE_STOP,
        place: Place::Pod,
        value: "`own-turn` or `at-once`",
        effect: Some(
            "when preStop hooks run: when it is the container's turn to stop, or when the stop begins",
        ),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Plan(options::pre_stop),
    },
    Annotation {
        name: POST_START_TIMEOUT,
        place: Place::Pod,
        value: "a duration such as `30s`",
        effect: Some("a postStart hook that takes longer has failed"),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Plan(options::post_start_timeout),
    },
    Annotation {
        name: RESTART_BACKOFF,
        place: Place::Pod,
        value: "a range such as `1s..60s` or `proxy=1s..10s`",
        effect: Some("first and longest wait before a restart, for all or some containers"),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Plan(options::restart_backoff),
    },
    Annotation {
        name: RUN_ONCE,
        place: Place::Pod,
        value: "names of init containers, such as `migrate`",
        effect: Some("these init containers run once, also if the pod starts over"),
        in_cluster: InCluster::NoEffect,
        guide: Some("node.md#init-containers-that-run-once"),
        rule: Rule::Plan(options::run_once),
    },
    Annotation {
        name: FENCE,
        place: Place::Pod,
        value: "`start` or `restart`",
        effect: Some(
            "containers behind a sidecar start and restart only while it is ready. With `restart`, they also stop while it is not",
        ),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Plan(options::fence),
    },
    Annotation {
        name: LAUNCH_TIMEOUT,
        place: Place::Pod,
        value: "a duration such as `90s`",
        effect: None,
        in_cluster: InCluster::Served(
            "the operator reports a launch that takes longer. The default is `10m`",
        ),
        guide: None,
        rule: Rule::Plan(options::launch_timeout),
    },
    Annotation {
        name: POD_BACKOFF,
        place: Place::Job,
        value: "a range such as `1s..60s`",
        effect: Some("first and longest wait before a Job replaces a failed pod"),
        in_cluster: InCluster::NoEffect,
        guide: None,
        rule: Rule::Job(|value| backoff_range(value).map(|_| ()).ok_or(Unexpected)),
    },
    Annotation {
        name: BARRIER_OPENED,
        place: Place::OperatorOnly,
        value: "a time",
        effect: None,
        in_cluster: InCluster::Served("the kubelet looks at the pod at once after a barrier has opened"),
        guide: None,
        rule: Rule::Elsewhere,
    },
    Annotation {
        name: RESULT_WRITTEN,
        place: Place::OperatorOnly,
        value: "a time",
        effect: None,
        in_cluster: InCluster::Served("the kubelet looks at the pod at once after its result was written"),
        guide: None,
        rule: Rule::Elsewhere,
    },
];

/// The row of an annotation, by its name.
pub fn find(name: &str) -> Option<&'static Annotation> {
    TABLE.iter().find(|row| row.name == name)
}

/// The annotations of a pod that have no effect on this machine.
pub fn without_effect(written: &BTreeMap<String, String>) -> impl Iterator<Item = &'static Annotation> {
    TABLE
        .iter()
        .filter(|row| row.place != Place::Job && row.effect.is_none() && written.contains_key(row.name))
}

/// The annotation that is most similar to an unknown name, if one is similar enough.
pub fn meant(name: &str) -> Option<&'static str> {
    let written = TABLE.iter().filter(|row| row.place != Place::OperatorOnly);
    nearest(name, written.map(|row| row.name))
}

/// The annotations of a Job whose values their rows do not accept.
pub(crate) fn invalid_on_job(
    written: &BTreeMap<String, String>,
) -> impl Iterator<Item = (&'static Annotation, &str)> {
    TABLE.iter().filter_map(|row| {
        let (Rule::Job(check), value) = (row.rule, written.get(row.name)?) else { return None };
        check(value).is_err().then_some((row, value.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_complete() {
        for row in &TABLE {
            assert!(row.name.starts_with(PREFIX), "{}", row.name);
            assert_eq!(TABLE.iter().filter(|other| other.name == row.name).count(), 1, "{}", row.name);
            let texts = [row.value].into_iter().chain(row.effect);
            for text in texts {
                assert!(
                    !text.is_empty() && !text.ends_with('.') && !text.contains('|'),
                    "{}: {text}",
                    row.name
                );
            }
            let does_something = row.effect.is_some() || row.in_cluster != InCluster::NoEffect;
            assert!(does_something, "{} has no effect anywhere", row.name);
        }
    }
}
