//! Hints on containers that cannot start with this pod, image and machine.

use k8s_openapi::api::core::v1::Container;
use outrigger_lifecycle::{FieldPath, StartCause};

use super::{Hint, Subject};

/// The line that must change. `None` if only the message is known.
pub(super) fn hint(
    pod: Subject<'_>,
    container: &Container,
    path: &FieldPath,
    cause: Option<StartCause>,
) -> Option<Hint> {
    let context = |is_set: fn(&Container) -> bool| match is_set(container) {
        true => path.clone().field("securityContext"),
        false => FieldPath::spec("securityContext"),
    };
    match cause? {
        StartCause::RootForbidden => {
            let own =
                |c: &Container| c.security_context.as_ref().is_some_and(|s| s.run_as_non_root.is_some());
            Some(Hint::at(
                context(own).field("runAsNonRoot"),
                "set `runAsUser` to a number other than 0, for example 1000, or use an image whose USER is such a number",
            ))
        }
        StartCause::NoSuchId => {
            let own = |c: &Container| c.security_context.as_ref().is_some_and(|s| s.run_as_user.is_some());
            let all = pod.pod.spec.as_ref().and_then(|s| s.security_context.as_ref()?.run_as_user).is_some();
            match own(container) || all {
                // The message already says what to do.
                true => Some(Hint::at(context(own).field("runAsUser"), "")),
                false => Some(Hint::at(
                    path.clone().field("image"),
                    "set `runAsUser` to a number, or use an image whose USER exists",
                )),
            }
        }
        // The message already says what to do.
        StartCause::OtherUser => Some(Hint::at(path.clone().field("image"), "")),
        StartCause::SubPath { mount } => {
            let is_expr = container
                .volume_mounts
                .iter()
                .flatten()
                .nth(mount)
                .is_some_and(|m| m.sub_path_expr.is_some());
            let field = if is_expr { "subPathExpr" } else { "subPath" };
            Some(Hint::at(
                path.clone().field("volumeMounts").index(mount).field(field),
                "write a path that exists in the volume or can be created there, without links that lead out of it; \
                 or change the volume",
            ))
        }
        StartCause::SubPathExpr { mount } => Some(Hint::at(
            path.clone().field("volumeMounts").index(mount).field("subPathExpr"),
            "give the variable a value in `env` of this container, which is a relative path without `..`; or use `subPath`",
        )),
        StartCause::MountPoint { mount } => Some(Hint::at(
            path.clone().field("volumeMounts").index(mount).field("mountPath"),
            "use another path: a directory can be mounted only on a directory, a file only on a file, and nothing below /proc",
        )),
        StartCause::WorkingDir => {
            let hint = "use a directory of the image, or a path that does not exist: it is created";
            Some(Hint::at(path.clone().field("workingDir"), hint))
        }
        StartCause::UnusableImage => Some(Hint::at(path.clone().field("image"), "")),
        // The caller looks for missing references. Otherwise the message already says what to do.
        StartCause::BadReference | StartCause::Unsupported => None,
    }
}
