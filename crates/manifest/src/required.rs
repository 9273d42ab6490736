//! The required fields of types. The generated types read a missing field as empty, which would be noticed
//! only much later.

/// The required fields of a type, by the type's name.
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
        "PodFailurePolicy" | "SuccessPolicy" => &["rules"],
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
        "ServicePort" => &["port"],
        "EndpointSlice" => &["addressType"],
        "Endpoint" => &["addresses"],
        "Service" | "Pod" | "Job" | "CronJob" | "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            &["spec"]
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{
        DaemonSetSpec, DeploymentSpec, ReplicaSetSpec, StatefulSetOrdinals, StatefulSetSpec,
    };
    use k8s_openapi::api::batch::v1::{
        CronJobSpec, JobSpec, JobTemplateSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
        PodFailurePolicyRule, SuccessPolicy,
    };
    use k8s_openapi::api::core::v1::*;
    use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
        LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
    };
    use serde::Serialize;

    use super::required_fields;

    /// The fields that a generated type always writes. These are the required ones.
    fn always_written<T: Default + Serialize>() -> (String, Vec<String>) {
        let name = std::any::type_name::<T>().rsplit("::").next().unwrap().to_owned();
        let object = serde_json::to_value(T::default()).unwrap();
        let fields = object.as_object().unwrap().keys().cloned().collect();
        (name, fields)
    }

    macro_rules! always_written {
        ($($type:ty),* $(,)?) => { [$(always_written::<$type>()),*] };
    }

    #[test]
    fn the_table_agrees_with_the_generated_types() {
        let types = always_written![
            Affinity,
            AppArmorProfile,
            CSIVolumeSource,
            Capabilities,
            ConfigMapEnvSource,
            ConfigMapKeySelector,
            ConfigMapProjection,
            ConfigMapVolumeSource,
            Container,
            ContainerPort,
            ContainerResizePolicy,
            ContainerRestartRule,
            ContainerRestartRuleOnExitCodes,
            CronJobSpec,
            DaemonSetSpec,
            DeploymentSpec,
            DownwardAPIProjection,
            DownwardAPIVolumeFile,
            DownwardAPIVolumeSource,
            EmptyDirVolumeSource,
            EnvFromSource,
            EnvVar,
            EnvVarSource,
            EphemeralContainer,
            EphemeralVolumeSource,
            ExecAction,
            FileKeySelector,
            GRPCAction,
            HTTPGetAction,
            HostAlias,
            HostPathVolumeSource,
            ImageVolumeSource,
            JobSpec,
            JobTemplateSpec,
            KeyToPath,
            LabelSelector,
            LabelSelectorRequirement,
            Lifecycle,
            LifecycleHandler,
            LocalObjectReference,
            NFSVolumeSource,
            NodeSelectorRequirement,
            ObjectFieldSelector,
            ObjectMeta,
            OwnerReference,
            PersistentVolumeClaimSpec,
            PersistentVolumeClaimTemplate,
            PersistentVolumeClaimVolumeSource,
            PodAffinityTerm,
            PodDNSConfig,
            PodDNSConfigOption,
            PodFailurePolicyOnExitCodesRequirement,
            PodFailurePolicyRule,
            PodOS,
            PodReadinessGate,
            PodResourceClaim,
            PodSchedulingGate,
            PodSecurityContext,
            PodSpec,
            PodTemplateSpec,
            Probe,
            ProjectedVolumeSource,
            ReplicaSetSpec,
            ResourceClaim,
            ResourceFieldSelector,
            ResourceRequirements,
            SELinuxOptions,
            SeccompProfile,
            Endpoint,
            EndpointPort,
            ServicePort,
            ServiceSpec,
            SecretEnvSource,
            SecretKeySelector,
            SecretProjection,
            SecurityContext,
            ServiceAccountTokenProjection,
            SleepAction,
            StatefulSetOrdinals,
            StatefulSetSpec,
            Sysctl,
            TCPSocketAction,
            Toleration,
            TopologySpreadConstraint,
            TypedLocalObjectReference,
            TypedObjectReference,
            Volume,
            VolumeDevice,
            VolumeMount,
            VolumeProjection,
            VolumeResourceRequirements,
            SuccessPolicy,
            PodFailurePolicy,
        ];
        for (name, fields) in types {
            assert_eq!(required_fields(&name), fields, "{name}");
        }
    }
}
