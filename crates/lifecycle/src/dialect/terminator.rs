//! OpenKruise's sidecar terminator: marked containers do not keep a finished Job alive (ST-1 to ST-9).

use super::Draft;
use crate::plan::{Counts, Dialect, RestartPolicy, Role};
use crate::source::{Finding, List};

const KILL: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
const IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
const IGNORE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";

pub(super) fn apply(draft: &mut Draft<'_>) {
    for index in 0..draft.plan.containers.len() {
        let place = draft.plan.containers[index].place;
        let is_true = |name: &str| {
            // ST-2: any entry of that name will do.
            let env = draft.container(place).and_then(|c| c.env.as_ref());
            env.into_iter()
                .flatten()
                .any(|e| e.name == name && e.value.as_deref().is_some_and(|v| v.eq_ignore_ascii_case("true")))
        };
        let with_image = draft
            .env(place, &[IMAGE])
            .is_some_and(|(_, e)| e.value.as_deref().is_some_and(|v| !v.is_empty()));
        let (kill, ignore) = (is_true(KILL), is_true(IGNORE));
        let path = draft.env_path(place, &[KILL, IMAGE, IGNORE]).unwrap_or_else(|| place.path());
        if !kill && !with_image {
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
                Finding::warning("ST-1", path, "the sidecar terminator does not look at init containers")
                    .hint(
                        "a native sidecar (`restartPolicy: Always`) ends with the mains anyway: drop the env",
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
            // A sidecar by another dialect already; only its exit code is left to talk about.
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
