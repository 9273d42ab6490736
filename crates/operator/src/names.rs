//! Names shared by manifests, Kruise and this operator.

/// API group of OpenKruise's workloads, and of the container recreate request.
pub const GROUP: &str = "apps.kruise.io";

/// Launch priority of a container: as released, and as first proposed.
pub const PRIORITY_ENVS: [&str; 2] = ["KRUISE_CONTAINER_PRIORITY", "KRUISE_CONTAINER_LAUNCH_PRIORITY"];
/// The barrier of a container, in the same order.
pub const BARRIER_ENVS: [&str; 2] = ["KRUISE_CONTAINER_BARRIER", "KRUISE_CONTAINER_LAUNCH_BARRIER"];
/// Annotation of a pod whose containers start in list order.
pub const ORDERED: &str = "apps.kruise.io/container-launch-priority";
/// Annotation of a pod whose barrier keys are all published.
pub const COMPLETED: &str = "apps.kruise.io/container-launch-priority-completed";

pub use outrigger_lifecycle::annotations::{
    BARRIER_OPENED, DEPENDS_ON, LAUNCH_TIMEOUT, RESULT_WRITTEN, SIDECAR_DELAY, SIDECAR_PHASE, SIDECARS,
    STOP_GRACE,
};

/// Label of the barriers the operator manages.
pub const BARRIER_LABEL: &str = "outrigger.dev/barrier";
/// Condition of a pod whose launch is delayed.
pub const LAUNCHED: &str = "outrigger.dev/ContainersLaunched";
/// Condition of a pod whose sidecars were stopped because its mains are done.
pub const SIDECAR_TERMINATED: &str = "SidecarTerminated";

/// Label and value of nodes that are not machines.
pub const NODE_TYPE: (&str, &str) = ("type", "virtual-kubelet");

/// Label `app` of the agent pods.
pub const AGENT: &str = "outrigger-agent";

/// Labels of a container recreate request.
pub const CRR_POD_UID: &str = "crr.apps.kruise.io/pod-uid";
/// The node whose agent serves it.
pub const CRR_NODE: &str = "crr.apps.kruise.io/node-name";
/// Present until it is finished.
pub const CRR_ACTIVE: &str = "crr.apps.kruise.io/active";
/// Finalizer of a request that made its pod unready; in v1alpha1 an annotation with the time, too.
pub const CRR_UNREADY: &str = "crr.apps.kruise.io/unready-acquired";
/// The annotation in v1alpha1 for `status.containerStatusSnapshot` of v1beta1.
pub const CRR_SNAPSHOT: &str = "crr.apps.kruise.io/sync-container-statuses";
/// Condition of a request whose pod was made unready.
pub const CRR_GRACE: &str = "PreRecreateGrace";
/// Condition with the result of a request as a whole (KD3).
pub const CRR_SUCCEEDED: &str = "Succeeded";
/// Annotation of a request whose last container is stopped only when its pod has a result, so that the exit
/// code of that container cannot become the result.
pub const CRR_RESULT_FIRST: &str = "outrigger.dev/result-first";
/// Condition of such a request: the pod has its result.
pub const CRR_RESULT_WRITTEN: &str = "ResultWritten";
/// Readiness gate and condition of pods.
pub const POD_READY: &str = "KruisePodReady";
