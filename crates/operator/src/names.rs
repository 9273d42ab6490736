//! Names of labels, annotations, envs and conditions that manifests, Kruise and this operator share.

/// The API group of OpenKruise's workloads and of the container recreate request.
pub const GROUP: &str = "apps.kruise.io";

/// The envs of a container's launch priority: as released, and as first proposed.
pub const PRIORITY_ENVS: [&str; 2] = ["KRUISE_CONTAINER_PRIORITY", "KRUISE_CONTAINER_LAUNCH_PRIORITY"];
/// The envs of a container's barrier, in the same order.
pub const BARRIER_ENVS: [&str; 2] = ["KRUISE_CONTAINER_BARRIER", "KRUISE_CONTAINER_LAUNCH_BARRIER"];
/// The annotation of a pod whose containers start in list order.
pub const ORDERED: &str = "apps.kruise.io/container-launch-priority";
/// The annotation of a pod whose barrier keys are all published.
pub const COMPLETED: &str = "apps.kruise.io/container-launch-priority-completed";

pub use outrigger_lifecycle::annotations::{
    BARRIER_OPENED, DEPENDS_ON, LAUNCH_TIMEOUT, RESULT_WRITTEN, SIDECAR_DELAY, SIDECAR_PHASE, SIDECARS,
    STOP_GRACE,
};

/// The label of barrier ConfigMaps that the operator manages.
pub const BARRIER_LABEL: &str = "outrigger.dev/barrier";
/// The condition of a pod whose launch is delayed.
pub const LAUNCHED: &str = "outrigger.dev/ContainersLaunched";
/// The condition of a pod whose sidecars were stopped because its mains are done.
pub const SIDECAR_TERMINATED: &str = "SidecarTerminated";

/// The label and value of virtual nodes.
pub const NODE_TYPE: (&str, &str) = ("type", "virtual-kubelet");

/// The value of the label `app` of agent pods.
pub const AGENT: &str = "outrigger-agent";

/// The label of a request with the uid of its pod.
pub const CRR_POD_UID: &str = "crr.apps.kruise.io/pod-uid";
/// The label of a request with the node whose agent serves it.
pub const CRR_NODE: &str = "crr.apps.kruise.io/node-name";
/// The label of a request that is not finished.
pub const CRR_ACTIVE: &str = "crr.apps.kruise.io/active";
/// The finalizer of a request that made its pod unready. In v1alpha1, it is also an annotation with the time.
pub const CRR_UNREADY: &str = "crr.apps.kruise.io/unready-acquired";
/// The annotation in v1alpha1 for `status.containerStatusSnapshot` of v1beta1.
pub const CRR_SNAPSHOT: &str = "crr.apps.kruise.io/sync-container-statuses";
/// The condition of a request whose pod was made unready.
pub const CRR_GRACE: &str = "PreRecreateGrace";
/// The condition with the result of a request as a whole (KD3).
pub const CRR_SUCCEEDED: &str = "Succeeded";
/// The annotation of a request whose last container is stopped only when its pod has a result. So the exit
/// code of that container cannot become the result.
pub const CRR_RESULT_FIRST: &str = "outrigger.dev/result-first";
/// The condition of such a request when the pod has its result.
pub const CRR_RESULT_WRITTEN: &str = "ResultWritten";
/// The readiness gate and condition of pods that requests can make unready.
pub const POD_READY: &str = "KruisePodReady";
