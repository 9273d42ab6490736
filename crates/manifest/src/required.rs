//! Fields that must be there. The generated types read a missing one as empty, which would only be noticed much later.

/// The fields a type cannot do without, by the type's name.
pub(crate) fn required_fields(name: &str) -> &'static [&'static str] {
    match name {
        "PodSpec" => &["containers"],
        "Container" | "EphemeralContainer" | "EnvVar" | "Volume" => &["name"],
        "ConfigMapEnvSource"
        | "SecretEnvSource"
        | "LocalObjectReference"
        | "PodOS"
        | "PodResourceClaim"
        | "ResourceClaim"
        | "PodSchedulingGate"
        | "HTTPHeader"
        | "ConfigMapVolumeSource"
        | "ConfigMapProjection"
        | "SecretProjection" => &["name"],
        "ContainerPort" => &["containerPort"],
        "VolumeMount" => &["mountPath", "name"],
        "VolumeDevice" => &["devicePath", "name"],
        "KeyToPath" => &["key", "path"],
        "ConfigMapKeySelector" | "SecretKeySelector" => &["key", "name"],
        "FileKeySelector" => &["key", "path", "volumeName"],
        "PersistentVolumeClaimVolumeSource" => &["claimName"],
        "PersistentVolumeClaimTemplate" => &["spec"],
        "SecretVolumeSource" => &["secretName"],
        "HTTPGetAction" | "TCPSocketAction" | "GRPCAction" => &["port"],
        "SleepAction" => &["seconds"],
        "HostPathVolumeSource" | "DownwardAPIVolumeFile" | "ServiceAccountTokenProjection" => &["path"],
        "NFSVolumeSource" => &["path", "server"],
        "CSIVolumeSource" => &["driver"],
        "ObjectFieldSelector" => &["fieldPath"],
        "ResourceFieldSelector" => &["resource"],
        "HostAlias" => &["ip"],
        "ContainerRestartRule" | "PodFailurePolicyRule" => &["action"],
        "ContainerRestartRuleOnExitCodes" => &["operator"],
        "PodFailurePolicyOnExitCodesRequirement" => &["operator", "values"],
        "ContainerResizePolicy" => &["resourceName", "restartPolicy"],
        "PodReadinessGate" => &["conditionType"],
        "Sysctl" => &["name", "value"],
        "SeccompProfile" | "AppArmorProfile" => &["type"],
        "LabelSelectorRequirement" | "NodeSelectorRequirement" => &["key", "operator"],
        "TopologySpreadConstraint" => &["maxSkew", "topologyKey", "whenUnsatisfiable"],
        "PodAffinityTerm" => &["topologyKey"],
        "OwnerReference" => &["apiVersion", "kind", "name", "uid"],
        "TypedLocalObjectReference" | "TypedObjectReference" => &["kind", "name"],
        "JobSpec" => &["template"],
        "CronJobSpec" => &["jobTemplate", "schedule"],
        "DeploymentSpec" | "StatefulSetSpec" | "DaemonSetSpec" => &["selector", "template"],
        "ReplicaSetSpec" => &["selector"],
        "Pod" | "Job" | "CronJob" | "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => &["spec"],
        _ => &[],
    }
}
