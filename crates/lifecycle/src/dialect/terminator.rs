//! OpenKruise's sidecar terminator: marked containers do not keep a Job running after its mains have ended
//! (ST-1 to ST-9).

use k8s_openapi::api::core::v1::Container;

use super::{Draft, options};
use crate::plan::{Counts, Dialect, RestartPolicy, Role};
use crate::source::{ContainerRef, Finding, List};

const KILL: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
const IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
const IGNORE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";

/// The sidecar terminator's environment variables of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TerminatorMarks {
    /// It is stopped when the mains have ended.
    pub kill: bool,
    /// The image that ends the container on nodes without an agent.
    pub image: Option<String>,
    /// Its exit code does not count.
    pub ignore_exit_code: bool,
}

impl TerminatorMarks {
    /// Reads a container's environment variables. Only literal values count, and any entry of a name is
    /// enough (ST-1, ST-2).
    pub fn of_container(container: &Container) -> Self {
        let values = |name: &'static str| {
            let entries = container.env.as_deref().unwrap_or_default().iter().filter(move |e| e.name == name);
            entries.filter_map(|e| e.value.as_deref())
        };
        let is_true = |name| values(name).any(|v| v.eq_ignore_ascii_case("true"));
        TerminatorMarks {
            kill: is_true(KILL),
            image: values(IMAGE).rfind(|v| !v.is_empty()).map(str::to_owned),
            ignore_exit_code: is_true(IGNORE),
        }
    }

    /// Whether the terminator treats the container as a sidecar.
    pub fn is_sidecar(&self) -> bool {
        self.kill || self.image.is_some()
    }
}

pub(super) fn apply(draft: &mut Draft<'_>) {
    for index in 0..draft.plan.containers.len() {
        let place = draft.plan.containers[index].place;
        let marks = draft.container(place).map(TerminatorMarks::of_container).unwrap_or_default();
        let ignore = marks.ignore_exit_code;
        let path = draft.env_path(place, &[KILL, IMAGE, IGNORE]).unwrap_or_else(|| place.path());
        if !marks.is_sidecar() {
            if ignore {
                draft.findings.push(
                    Finding::warning("ST-4", path, format!("{IGNORE} does nothing without {KILL}"))
                        .hint(format!("add the env {KILL}: \"true\"")),
                );
            }
            continue;
        }
        if place.list != List::Main {
            draft.findings.push(
                Finding::warning("ST-1", path, "the sidecar terminator ignores init containers")
                    .hint(
                        "a native sidecar (`restartPolicy: Always`) ends with the main containers anyway: remove the env",
                    ),
            );
            continue;
        }
        if draft.plan.restart_policy == RestartPolicy::Always {
            draft.findings.push(
                Finding::warning(
                    "ST-6",
                    path,
                    "the sidecar terminator has no effect with restartPolicy Always",
                )
                .related(crate::source::FieldPath::spec("restartPolicy"), "this pod never completes")
                .hint("use restartPolicy Never or OnFailure"),
            );
            continue;
        }
        if draft.plan.containers[index].role == Role::Sidecar {
            // Another dialect has already made it a sidecar. Here only its exit code matters.
            draft.uses(Dialect::Terminator);
            continue;
        }
        draft.make_sidecar(
            index,
            Dialect::Terminator,
            if ignore { Counts::No } else { Counts::UnlessStopped },
        );
    }
}

/// Whether the terminator stops the container and ignores its exit code in every case (ST-4).
pub(super) fn ignores_exit_code(draft: &Draft<'_>, place: ContainerRef) -> bool {
    let marks = draft.container(place).map(TerminatorMarks::of_container).unwrap_or_default();
    let has_effect = place.list == List::Main && draft.plan.restart_policy != RestartPolicy::Always;
    has_effect && marks.is_sidecar() && marks.ignore_exit_code
}

/// A sidecar that is restarted after every failure never counts. Either it is restarted, or the pod ends
/// first, and then a running sidecar would have been stopped.
pub(super) fn retried_do_not_count(draft: &mut Draft<'_>) {
    for c in draft.plan.containers.iter_mut().filter(|c| c.role == Role::Sidecar) {
        if c.counts == Counts::UnlessStopped && c.restart.policy != RestartPolicy::Never {
            c.counts = Counts::No;
        }
    }
}

/// In a pod with restartPolicy Never, restarts marked sidecars that crash, so that the result of the pod is
/// that of its mains.
///
/// This does not apply to sidecars with a policy of their own, nor if sidecars count for the result. If
/// marked sidecars stop one after the other, it applies only to the last one: in a cluster, the kubelet would
/// restart the others after they have been stopped.
pub(super) fn restart_crashed(draft: &mut Draft<'_>) {
    let off = !draft.features.container_restart_rules || options::sidecars_count(draft);
    if draft.plan.restart_policy != RestartPolicy::Never || off {
        return;
    }
    let containers = draft.plan.containers.iter().enumerate();
    let mut marked: Vec<usize> =
        containers.filter(|(_, c)| c.dialect == Some(Dialect::Terminator)).map(|(i, _)| i).collect();
    let stage = |i: usize| draft.plan.containers[i].stop_stage;
    marked.sort_by_key(|&i| stage(i));
    if let [first, .., last] = *marked.as_slice()
        && stage(first) != stage(last)
    {
        marked = vec![last];
    }
    for i in marked {
        let place = draft.plan.containers[i].place;
        let has_own = draft.container(place).is_some_and(|c| c.restart_policy.is_some());
        let c = &mut draft.plan.containers[i];
        if !has_own && !c.fatal {
            c.restart.policy = RestartPolicy::OnFailure;
        }
    }
}
