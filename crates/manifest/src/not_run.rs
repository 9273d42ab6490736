//! Objects that are accepted but not run, and why.

use std::collections::BTreeMap;

use outrigger_lifecycle::{FieldPath, Severity};

use crate::decode::{abbreviate, nearest};
use crate::diagnostic::Diagnostic;
use crate::tree::Node;

/// The annotation that makes an object a hook of a Helm chart.
const HELM_HOOK: &str = "helm.sh/hook";

/// The hooks that are part of an installation.
const INSTALL_HOOKS: [&str; 3] = ["pre-install", "post-install", "crd-install"];

/// The most kinds that the message about all objects names.
const KINDS_SHOWN_MAX: usize = 20;

/// The objects that were not run.
#[derive(Debug)]
pub(crate) struct NotRun {
    /// Whether each of them gets its own message.
    is_listed: bool,
    counts: BTreeMap<String, usize>,
}

/// Pods are less confined than the user wanted without a NetworkPolicy. Nothing else that is not run is a concern.
fn severity(kind: &str) -> Severity {
    if kind == "NetworkPolicy" { Severity::Warning } else { Severity::Note }
}

impl NotRun {
    /// No objects yet.
    pub(crate) fn new(is_listed: bool) -> Self {
        NotRun { is_listed, counts: BTreeMap::new() }
    }

    /// Notes that an object is not run.
    pub(crate) fn add(&mut self, node: &Node, kind: &str, reason: &str, out: &mut Vec<Diagnostic>) {
        *self.counts.entry(abbreviate(kind)).or_default() += 1;
        if self.is_listed {
            let span = node.entry("kind").map_or(node.head(), |entry| entry.value.head());
            let name = node.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Node::text);
            let named = name.map(|name| format!(" `{}`", abbreviate(name))).unwrap_or_default();
            let note = Diagnostic::note(span, format!("{}{named} is not run: {reason}", abbreviate(kind)));
            out.push(Diagnostic { severity: severity(kind), ..note });
        }
    }

    /// Whether every object is run.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The message about objects that were not listed one by one: `not run: 2 Roles, 1 Ingress`.
    pub(crate) fn summary(&self) -> Option<Diagnostic> {
        if self.is_listed {
            return None;
        }
        let several = |kind: &str| match kind {
            "Endpoints" => kind.to_owned(),
            kind if kind.ends_with('s') => format!("{kind}es"),
            kind if kind.ends_with('y') => format!("{}ies", &kind[..kind.len() - 1]),
            kind => format!("{kind}s"),
        };
        let part = |(kind, count): (&String, &usize)| match count {
            1 => format!("1 {kind}"),
            count => format!("{count} {}", several(kind)),
        };
        let mut parts: Vec<String> = self.counts.iter().take(KINDS_SHOWN_MAX).map(part).collect();
        match self.counts.values().skip(KINDS_SHOWN_MAX).sum::<usize>() {
            0 => {}
            others => parts.push(format!("{others} others")),
        }
        let all = parts.join(", ");
        let severity = self.counts.keys().map(|kind| severity(kind)).max()?;
        let note = Diagnostic::note(None, format!("not run: {all} (-v lists them with the reason)"));
        Some(Diagnostic { severity, ..note })
    }
}

/// How to correct the kind or the apiVersion of an object, if it looks like a mistake in one of the known ones.
pub(crate) fn correction(api_version: &str, kind: &str, known: &[(&str, &str)]) -> Option<String> {
    // Kinds of others may have any name: Knative has a Service, and Volcano a Job.
    if !is_kubernetes(api_version) {
        return None;
    }
    if let Some((_, right)) = known.iter().find(|(known, _)| *known == kind) {
        return Some(format!("write `apiVersion: {right}`"));
    }
    let kinds: Vec<&str> = known.iter().map(|(kind, _)| *kind).collect();
    nearest(kind, &kinds).map(|kind| format!("did you mean `kind: {kind}`?"))
}

/// Whether an apiVersion is in one of Kubernetes' own API groups, such as `apps` and `networking.k8s.io`.
fn is_kubernetes(api_version: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// Why objects of a kind are not run.
pub(crate) fn reason(api_version: &str, kind: &str) -> &'static str {
    if !is_kubernetes(api_version) {
        return "it is a custom resource, and its controller does not run here";
    }
    match kind {
        "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" | "ServiceAccount" => {
            "there is no API server that it could give access to"
        }
        "CustomResourceDefinition"
        | "APIService"
        | "MutatingWebhookConfiguration"
        | "ValidatingWebhookConfiguration"
        | "MutatingAdmissionPolicy"
        | "MutatingAdmissionPolicyBinding"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding" => "there is no API server that it could extend",
        "PodDisruptionBudget" => "pods are not evicted here",
        "HorizontalPodAutoscaler" => "the number of pods does not follow their load; set `replicas`",
        "NetworkPolicy" => "the traffic of pods is not filtered",
        "Ingress" | "IngressClass" | "Gateway" | "GatewayClass" | "HTTPRoute" | "GRPCRoute" | "TCPRoute"
        | "TLSRoute" => "requests are not routed; publish a port of the pod with --publish",
        "Service" | "EndpointSlice" => "pods do not reach each other by the names of Services yet",
        "Endpoints" => "only EndpointSlices are read; write one instead",
        "Namespace" => "a namespace exists as soon as an object is in it",
        "PersistentVolume" | "StorageClass" => "claims are directories of this machine",
        "LimitRange" | "ResourceQuota" => "namespaces have no limits here",
        _ => "only pods and the objects that they use are run",
    }
}

/// Why an installation with Helm would not create an object, from its hooks.
pub(crate) fn helm_reason(node: &Node) -> Option<String> {
    let text = node.at(&FieldPath::annotation(HELM_HOOK)).and_then(Node::text)?;
    let hooks: Vec<&str> = text.split(',').map(str::trim).filter(|hook| !hook.is_empty()).collect();
    if hooks.iter().any(|hook| INSTALL_HOOKS.contains(hook)) {
        return None;
    }
    let is_test = |hook: &&str| ["test", "test-success", "test-failure"].contains(hook);
    if hooks.iter().any(is_test) {
        return Some("it is a test of a Helm chart, which `helm test` would run".to_owned());
    }
    let first = hooks.first()?;
    Some(format!("it is a Helm hook for `{first}`, which is not part of an installation"))
}
