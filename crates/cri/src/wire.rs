//! The messages of CRI v1 that are used here.
//!
//! Written by hand: a message has only the fields Outrigger sets or reads, so nothing has to be generated.
//! Unknown fields are skipped on both sides.

use std::collections::BTreeMap;

use prost::Message;

/// A request, its method, and the type of its answer.
pub(crate) trait Rpc: Message + Clone + Default + 'static {
    /// The method, as HTTP/2 path.
    const PATH: &'static str;
    /// The answer, single or as a stream.
    type Answer: Message + Default + 'static;
}

macro_rules! rpcs {
    ($($service:literal / $method:literal: $request:ident -> $answer:ident;)*) => {
        $(impl Rpc for $request {
            const PATH: &'static str = concat!("/", $service, "/", $method);
            type Answer = $answer;
        })*
    };
}

rpcs! {
    "runtime.v1.RuntimeService" / "Version": VersionRequest -> VersionResponse;
    "runtime.v1.RuntimeService" / "Status": StatusRequest -> StatusResponse;
    "runtime.v1.RuntimeService" / "RunPodSandbox": RunPodSandboxRequest -> RunPodSandboxResponse;
    "runtime.v1.RuntimeService" / "StopPodSandbox": StopPodSandboxRequest -> Nothing;
    "runtime.v1.RuntimeService" / "RemovePodSandbox": RemovePodSandboxRequest -> Nothing;
    "runtime.v1.RuntimeService" / "PodSandboxStatus": PodSandboxStatusRequest -> PodSandboxStatusResponse;
    "runtime.v1.RuntimeService" / "ListPodSandbox": ListPodSandboxRequest -> ListPodSandboxResponse;
    "runtime.v1.RuntimeService" / "CreateContainer": CreateContainerRequest -> CreateContainerResponse;
    "runtime.v1.RuntimeService" / "StartContainer": StartContainerRequest -> Nothing;
    "runtime.v1.RuntimeService" / "StopContainer": StopContainerRequest -> Nothing;
    "runtime.v1.RuntimeService" / "RemoveContainer": RemoveContainerRequest -> Nothing;
    "runtime.v1.RuntimeService" / "ListContainers": ListContainersRequest -> ListContainersResponse;
    "runtime.v1.RuntimeService" / "ContainerStatus": ContainerStatusRequest -> ContainerStatusResponse;
    "runtime.v1.RuntimeService" / "ContainerStats": ContainerStatsRequest -> ContainerStatsResponse;
    "runtime.v1.RuntimeService" / "ExecSync": ExecSyncRequest -> ExecSyncResponse;
    "runtime.v1.RuntimeService" / "GetContainerEvents": GetEventsRequest -> ContainerEvent;
    "runtime.v1.ImageService" / "ImageStatus": ImageStatusRequest -> ImageStatusResponse;
    "runtime.v1.ImageService" / "PullImage": PullImageRequest -> PullImageResponse;
    "containerd.services.events.v1.Events" / "Subscribe": SubscribeRequest -> Envelope;
    "containerd.services.containers.v1.Containers" / "Get": StoredRequest -> StoredResponse;
    "containerd.services.tasks.v1.Tasks" / "Exec": ExecRequest -> Nothing;
    "containerd.services.tasks.v1.Tasks" / "Start": StartExecRequest -> StartExecResponse;
    "containerd.services.tasks.v1.Tasks" / "CloseIO": CloseRequest -> Nothing;
    "containerd.services.tasks.v1.Tasks" / "ResizePty": ResizeRequest -> Nothing;
    "containerd.services.tasks.v1.Tasks" / "DeleteProcess": DeleteExecRequest -> Nothing;
    "containerd.services.tasks.v1.Tasks" / "Kill": KillRequest -> Nothing;
    "containerd.services.tasks.v1.Tasks" / "Get": GetRequest -> GetResponse;
    "containerd.services.tasks.v1.Tasks" / "Wait": WaitRequest -> WaitResponse;
}

/// An answer whose content is not read.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionRequest {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionResponse {
    #[prost(string, tag = "2")]
    pub(crate) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(crate) runtime_version: String,
    #[prost(string, tag = "4")]
    pub(crate) runtime_api_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<RuntimeStatus>,
    #[prost(message, optional, tag = "4")]
    pub(crate) features: Option<RuntimeFeatures>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RuntimeFeatures {
    #[prost(bool, tag = "1")]
    pub(crate) supplemental_groups_policy: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub(crate) conditions: Vec<RuntimeCondition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(bool, tag = "2")]
    pub(crate) status: bool,
    #[prost(string, tag = "3")]
    pub(crate) reason: String,
    #[prost(string, tag = "4")]
    pub(crate) message: String,
}

// Sandboxes.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    pub(crate) hostname: String,
    #[prost(string, tag = "3")]
    pub(crate) log_directory: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) port_mappings: Vec<PortMapping>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxPodSandboxConfig>,
}

/// 0 is TCP.
pub(crate) const PROTOCOL_UDP: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PortMapping {
    #[prost(int32, tag = "1")]
    pub(crate) protocol: i32,
    #[prost(int32, tag = "2")]
    pub(crate) container_port: i32,
    #[prost(int32, tag = "3")]
    pub(crate) host_port: i32,
    #[prost(string, tag = "4")]
    pub(crate) host_ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxPodSandboxConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxSandboxSecurityContext>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) sysctls: BTreeMap<String, String>,
    #[prost(message, optional, tag = "5")]
    pub(crate) resources: Option<LinuxContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
    #[prost(bool, tag = "6")]
    pub(crate) privileged: bool,
    #[prost(message, optional, tag = "9")]
    pub(crate) seccomp: Option<SecurityProfile>,
}

/// Shared by the containers of a pod.
pub(crate) const NAMESPACE_POD: i32 = 0;
/// Of each container.
pub(crate) const NAMESPACE_CONTAINER: i32 = 1;
/// The host's.
pub(crate) const NAMESPACE_NODE: i32 = 2;

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
    #[prost(int32, tag = "2")]
    pub(crate) pid: i32,
    #[prost(int32, tag = "3")]
    pub(crate) ipc: i32,
}

/// No filter; 0 is the runtime's own.
pub(crate) const PROFILE_UNCONFINED: i32 = 1;
/// The file in `localhost_ref`.
pub(crate) const PROFILE_LOCALHOST: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecurityProfile {
    #[prost(int32, tag = "1")]
    pub(crate) profile_type: i32,
    #[prost(string, tag = "2")]
    pub(crate) localhost_ref: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<PodSandboxConfig>,
    #[prost(string, tag = "2")]
    pub(crate) runtime_handler: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunPodSandboxResponse {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StopPodSandboxRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemovePodSandboxRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
    #[prost(bool, tag = "2")]
    pub(crate) verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<PodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(crate) info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxStatus {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(message, optional, tag = "5")]
    pub(crate) network: Option<PodSandboxNetworkStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub(crate) ip: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodIp {
    #[prost(string, tag = "1")]
    pub(crate) ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter: Option<PodSandboxFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxFilter {
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<PodSandbox>,
}

/// The state of a sandbox whose containers can run; all others are stopping or gone.
pub(crate) const SANDBOX_READY: i32 = 0;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) annotations: BTreeMap<String, String>,
}

// Containers.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
    #[prost(string, tag = "18")]
    pub(crate) user_specified_image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    #[prost(bool, tag = "3")]
    pub(crate) readonly: bool,
    #[prost(int32, tag = "5")]
    pub(crate) propagation: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) args: Vec<String>,
    #[prost(string, tag = "5")]
    pub(crate) working_dir: String,
    #[prost(message, repeated, tag = "6")]
    pub(crate) envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
    #[prost(bool, tag = "12")]
    pub(crate) stdin: bool,
    #[prost(bool, tag = "14")]
    pub(crate) tty: bool,
    #[prost(message, optional, tag = "15")]
    pub(crate) linux: Option<LinuxContainerConfig>,
    /// Known to runtimes of Kubernetes 1.33 and later.
    #[prost(int32, tag = "18")]
    pub(crate) stop_signal: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) resources: Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainerResources {
    #[prost(int64, tag = "1")]
    pub(crate) cpu_period: i64,
    #[prost(int64, tag = "2")]
    pub(crate) cpu_quota: i64,
    #[prost(int64, tag = "3")]
    pub(crate) cpu_shares: i64,
    #[prost(int64, tag = "4")]
    pub(crate) memory_limit_in_bytes: i64,
    #[prost(int64, tag = "5")]
    pub(crate) oom_score_adj: i64,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) unified: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Capability {
    #[prost(string, repeated, tag = "1")]
    pub(crate) add_capabilities: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) drop_capabilities: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Int64Value {
    #[prost(int64, tag = "1")]
    pub(crate) value: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) capabilities: Option<Capability>,
    #[prost(bool, tag = "2")]
    pub(crate) privileged: bool,
    #[prost(message, optional, tag = "3")]
    pub(crate) namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = "5")]
    pub(crate) run_as_user: Option<Int64Value>,
    #[prost(string, tag = "6")]
    pub(crate) run_as_username: String,
    #[prost(bool, tag = "7")]
    pub(crate) readonly_rootfs: bool,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) supplemental_groups: Vec<i64>,
    #[prost(bool, tag = "11")]
    pub(crate) no_new_privs: bool,
    #[prost(message, optional, tag = "12")]
    pub(crate) run_as_group: Option<Int64Value>,
    #[prost(string, repeated, tag = "13")]
    pub(crate) masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub(crate) readonly_paths: Vec<String>,
    #[prost(message, optional, tag = "15")]
    pub(crate) seccomp: Option<SecurityProfile>,
    #[prost(message, optional, tag = "4")]
    pub(crate) selinux_options: Option<SelinuxOption>,
    #[prost(message, optional, tag = "16")]
    pub(crate) apparmor: Option<SecurityProfile>,
    #[prost(int32, tag = "17")]
    pub(crate) supplemental_groups_policy: i32,
}

/// Only the manifest's groups; 0 adds those of the image.
pub(crate) const GROUPS_STRICT: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SelinuxOption {
    #[prost(string, tag = "1")]
    pub(crate) user: String,
    #[prost(string, tag = "2")]
    pub(crate) role: String,
    #[prost(string, tag = "3")]
    pub(crate) kind: String,
    #[prost(string, tag = "4")]
    pub(crate) level: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(crate) sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainerResponse {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(int64, tag = "2")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemoveContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerFilter {
    #[prost(string, tag = "3")]
    pub(crate) pod_sandbox_id: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(crate) label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_sandbox_id: String,
    #[prost(int32, tag = "6")]
    pub(crate) state: i32,
    #[prost(int64, tag = "7")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Created, not started.
pub(crate) const CONTAINER_CREATED: i32 = 0;
/// Ended, or never ran.
pub(crate) const CONTAINER_EXITED: i32 = 2;
/// The runtime lost track of it.
pub(crate) const CONTAINER_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    /// Nanoseconds since 1970, as all times here.
    #[prost(int64, tag = "5")]
    pub(crate) started_at: i64,
    #[prost(int64, tag = "6")]
    pub(crate) finished_at: i64,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
    #[prost(string, tag = "10")]
    pub(crate) reason: String,
    #[prost(string, tag = "11")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatsRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatsResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) stats: Option<ContainerStats>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStats {
    #[prost(message, optional, tag = "2")]
    pub(crate) cpu: Option<CpuUsage>,
    #[prost(message, optional, tag = "3")]
    pub(crate) memory: Option<MemoryUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CpuUsage {
    #[prost(message, optional, tag = "2")]
    pub(crate) usage_core_nano_seconds: Option<UInt64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemoryUsage {
    #[prost(message, optional, tag = "2")]
    pub(crate) working_set_bytes: Option<UInt64Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) cmd: Vec<String>,
    #[prost(int64, tag = "3")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) exit_code: i32,
}

// Images.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(bool, tag = "2")]
    pub(crate) verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<Image>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(crate) info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) uid: Option<Int64Value>,
    #[prost(string, tag = "6")]
    pub(crate) username: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub(crate) auth: Option<AuthConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthConfig {
    #[prost(string, tag = "1")]
    pub(crate) username: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
    #[prost(string, tag = "5")]
    pub(crate) identity_token: String,
    #[prost(string, tag = "6")]
    pub(crate) registry_token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PullImageResponse {
    #[prost(string, tag = "1")]
    pub(crate) image_ref: String,
}

// Events.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetEventsRequest {}

/// The type of an exit event.
pub(crate) const EVENT_STOPPED: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerEvent {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(int32, tag = "2")]
    pub(crate) kind: i32,
}

/// Subscribes to the events of containerd's own API.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Envelope {
    #[prost(string, tag = "3")]
    pub(crate) topic: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) event: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// The topic of start events.
pub(crate) const TOPIC_START: &str = "/tasks/start";
/// The topic of exit events.
pub(crate) const TOPIC_EXIT: &str = "/tasks/exit";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskStart {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExit {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    /// The container's id for its first process, another for a command in it.
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(uint32, tag = "4")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "5")]
    pub(crate) exited_at: Option<Timestamp>,
}

/// Sends a signal to a process through containerd's own API.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KillRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    /// A command; empty is the container's first process.
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    /// The kernel's number.
    #[prost(uint32, tag = "3")]
    pub(crate) signal: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Process>,
}

/// Created, not started.
pub(crate) const PROCESS_CREATED: i32 = 1;
/// Ended.
pub(crate) const PROCESS_STOPPED: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Process {
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    #[prost(int32, tag = "4")]
    pub(crate) status: i32,
    #[prost(uint32, tag = "9")]
    pub(crate) exit_status: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WaitRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    /// A command; empty is the container's first process.
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

/// containerd's own record of a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoredRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoredResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) container: Option<Stored>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Stored {
    /// The OCI specification, as JSON.
    #[prost(message, optional, tag = "5")]
    pub(crate) spec: Option<Any>,
}

/// Runs a command in a container through containerd's own API. Streams are named pipes; empty is none.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) stdin: String,
    #[prost(string, tag = "3")]
    pub(crate) stdout: String,
    #[prost(string, tag = "4")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "5")]
    pub(crate) terminal: bool,
    /// The OCI process, as JSON.
    #[prost(message, optional, tag = "6")]
    pub(crate) spec: Option<Any>,
    #[prost(string, tag = "7")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartExecRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartExecResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CloseRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(bool, tag = "3")]
    pub(crate) stdin: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResizeRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) width: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) height: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteExecRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WaitResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) exited_at: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}
