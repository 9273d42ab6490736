//! Input and output of the pure crates: a pod as the user wrote it, paths inside it, and findings about those
//! paths.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::finding_names;

/// A pod with the fields that Kubernetes' types do not have. Kubernetes' defaults have been applied.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodInput {
    /// The pod as a Kubernetes type.
    pub pod: Pod,
    /// `lifecycle.type` as written, by container. It is kept as text so that an invalid value can be
    /// reported.
    pub lifecycle_types: BTreeMap<ContainerRef, String>,
}

/// The list of the pod spec that a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum List {
    /// `spec.initContainers`
    Init,
    /// `spec.containers`
    Main,
    /// `spec.ephemeralContainers`
    Ephemeral,
}

impl List {
    /// The name of the field in the pod spec.
    pub fn field(self) -> &'static str {
        match self {
            List::Init => "initContainers",
            List::Main => "containers",
            List::Ephemeral => "ephemeralContainers",
        }
    }
}

/// A container by its place in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerRef {
    /// The list that it is in.
    pub list: List,
    /// Its index in that list.
    pub index: usize,
}

impl ContainerRef {
    /// The container's path, such as `spec.containers[1]`.
    pub fn path(self) -> FieldPath {
        FieldPath::root().field("spec").field(self.list.field()).index(self.index)
    }
}

/// One step of a [`FieldPath`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Segment {
    /// A field or map key.
    Field(Cow<'static, str>),
    /// A position in a list.
    Index(usize),
}

/// A path such as `spec.containers[1].lifecycle.type`. It is relative to the pod, so `metadata` and `spec`
/// are the roots, also for the template of a Job. A line of a text is addressed like a list entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath(pub Vec<Segment>);

impl FieldPath {
    /// The path of the object itself.
    pub fn root() -> Self {
        FieldPath(Vec::new())
    }

    /// Adds a field to the path.
    pub fn field(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.0.push(Segment::Field(name.into()));
        self
    }

    /// Adds a list index to the path.
    pub fn index(mut self, index: usize) -> Self {
        self.0.push(Segment::Index(index));
        self
    }

    /// The path `metadata.annotations[name]`.
    pub fn annotation(name: impl Into<Cow<'static, str>>) -> Self {
        FieldPath::root().field("metadata").field("annotations").field(name)
    }

    /// The path `spec.NAME`.
    pub fn spec(name: impl Into<Cow<'static, str>>) -> Self {
        FieldPath::root().field("spec").field(name)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(n) => write!(f, "[{n}]")?,
                // Without brackets, keys such as `outrigger.dev/depends-on` would read as several fields.
                Segment::Field(name) if name.contains(['.', '/']) => write!(f, "[{name}]")?,
                Segment::Field(name) if i == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The pod runs as intended. The finding is for information, and the manifest need not change.
    Note,
    /// The pod will run, but perhaps not as intended.
    Warning,
    /// The pod is refused.
    Error,
}

/// A message for the author of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The rule, such as `R8.3`, `LP-6` or `deadlock`. Users see its [`name`](Finding::name).
    pub code: &'static str,
    /// The path that the finding is about.
    pub path: FieldPath,
    /// The problem in one sentence, in lower case, with the offending value.
    pub message: String,
    /// The other side of a conflict, and other relevant paths, each with a short label.
    pub related: Vec<(FieldPath, String)>,
    /// How to fix it.
    pub hint: Option<String>,
}

impl Finding {
    /// The stable name of the rule for users. It is a word, never a rule id.
    pub fn name(&self) -> &'static str {
        finding_names::name(self.code)
    }

    /// An error: the pod is refused.
    pub fn error(code: &'static str, path: FieldPath, message: impl Into<String>) -> Self {
        Finding::new(Severity::Error, code, path, message)
    }

    /// A warning: the pod will run, but perhaps not as intended.
    pub fn warning(code: &'static str, path: FieldPath, message: impl Into<String>) -> Self {
        Finding::new(Severity::Warning, code, path, message)
    }

    fn new(severity: Severity, code: &'static str, path: FieldPath, message: impl Into<String>) -> Self {
        Finding { severity, code, path, message: message.into(), related: Vec::new(), hint: None }
    }

    /// Adds another path that is part of the problem, with a label.
    #[must_use]
    pub fn related(mut self, path: FieldPath, label: impl Into<String>) -> Self {
        self.related.push((path, label.into()));
        self
    }

    /// Adds a hint how to fix the problem.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Feature gates, as set on the command line: `--feature-gates SidecarLifecycleType=false`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FeatureGates {
    /// Init containers may have `restartPolicy: Always`. If off, the field is refused, as by Kubernetes
    /// before 1.29.
    pub sidecar_containers: bool,
    /// `lifecycle.type: Sidecar` is supported. If off, the field is ignored with a warning.
    pub sidecar_lifecycle_type: bool,
    /// Mains and init containers may have their own `restartPolicy`, and containers may have
    /// `restartPolicyRules`.
    pub container_restart_rules: bool,
    /// Rules may have the action `RestartAllContainers`, and sidecars may have rules.
    pub restart_all_containers: bool,
    /// `lifecycle.stopSignal` is supported.
    pub container_stop_signals: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        FeatureGates {
            sidecar_containers: true,
            sidecar_lifecycle_type: true,
            container_restart_rules: true,
            restart_all_containers: true,
            container_stop_signals: true,
        }
    }
}

impl FeatureGates {
    /// The gates by the names users type.
    pub const NAMES: [&'static str; 5] = [
        "SidecarContainers",
        "SidecarLifecycleType",
        "ContainerRestartRules",
        "RestartAllContainersOnContainerExits",
        "ContainerStopSignals",
    ];

    /// Sets one gate by its name. Returns false if there is no such gate.
    #[must_use]
    pub fn set(&mut self, name: &str, on: bool) -> bool {
        match name {
            "SidecarContainers" => self.sidecar_containers = on,
            "SidecarLifecycleType" => self.sidecar_lifecycle_type = on,
            "ContainerRestartRules" => self.container_restart_rules = on,
            "RestartAllContainersOnContainerExits" => self.restart_all_containers = on,
            "ContainerStopSignals" => self.container_stop_signals = on,
            _ => return false,
        }
        true
    }
}
