//! The objects to install in a cluster: the manifests of `deploy/kustomize`, filled in.
//!
//! The files are the single source. `kubectl apply -k` takes them unchanged. This module fills in the
//! namespace, image and failure policy. The Helm chart is the same text with Helm's placeholders, and a test
//! compares them.

use crate::decide::admit::Launch;

/// The name of the MutatingWebhookConfiguration.
pub const WEBHOOKS: &str = "outrigger-operator";
/// The name of the CustomResourceDefinition.
pub const CRD: &str = "containerrecreaterequests.apps.kruise.io";
/// The namespace in the files, which is replaced.
const NAMESPACE: &str = "outrigger-system";
/// The image in the files, which is replaced.
const IMAGE: &str = "outrigger:latest";

/// The files, in the order they are applied.
pub const FILES: [(&str, &str); 6] = [
    ("namespace.yaml", include_str!("../../../deploy/kustomize/namespace.yaml")),
    ("crd.yaml", include_str!("../../../deploy/kustomize/crd.yaml")),
    ("rbac.yaml", include_str!("../../../deploy/kustomize/rbac.yaml")),
    ("operator.yaml", include_str!("../../../deploy/kustomize/operator.yaml")),
    ("agent.yaml", include_str!("../../../deploy/kustomize/agent.yaml")),
    ("webhook.yaml", include_str!("../../../deploy/kustomize/webhook.yaml")),
];

/// What happens to pods that use the operator while it does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// The API server refuses them, so that none starts without its order.
    #[default]
    Fail,
    /// The API server creates them without an order.
    Ignore,
}

/// Options of the installation.
#[derive(Debug, Clone)]
pub struct Options {
    /// The namespace that the operator runs in.
    pub namespace: String,
    /// The image of operator and agent.
    pub image: String,
    /// What happens to pods while the operator does not answer.
    pub failure_policy: FailurePolicy,
    /// Whether to leave out the node agent.
    pub without_agent: bool,
    /// The runtime's socket on every node. `None` means that the agent detects it.
    pub cri_endpoint: Option<String>,
    /// Whether users can create requests without permissions on the pods, as in OpenKruise.
    pub any_requester: bool,
    /// Whether every new pod gets the readiness gate that container recreate requests use.
    pub readiness_gate: bool,
    /// How containers of several launch priorities are ordered.
    pub launch: Launch,
    /// Whether operator and agent write their logs as JSON.
    pub json_logs: bool,
    /// The address at which the API server calls the webhook, instead of its Service. It is for operators
    /// that run outside the cluster.
    pub webhook_url: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            namespace: NAMESPACE.to_owned(),
            image: IMAGE.to_owned(),
            failure_policy: FailurePolicy::Fail,
            without_agent: false,
            cri_endpoint: None,
            any_requester: false,
            readiness_gate: false,
            launch: Launch::Barrier,
            json_logs: false,
            webhook_url: None,
        }
    }
}

/// An invalid option of the installation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The namespace is not a valid name, or YAML would not read it as text.
    #[error(
        "--namespace {0:?} cannot be used: use lower-case letters, digits and '-', at most 63, and not a number or truth value"
    )]
    Namespace(String),
    /// The namespace has other pods.
    #[error(
        "--namespace {0:?} cannot be used: pods in the operator's namespace are not served; choose one of its own"
    )]
    SharedNamespace(String),
    /// The image is not a valid reference.
    #[error(
        "--image {0:?} is not a reference to an image; write for example registry.example/outrigger:0.1.0"
    )]
    Image(String),
    /// The agent cannot reach the socket.
    #[error(
        "--cri-endpoint {0:?} cannot be used: the agent sees sockets below /run; write for example unix:///run/containerd/containerd.sock"
    )]
    CriEndpoint(String),
    /// The API server cannot call the address.
    #[error(
        "--webhook-url {0:?} is not an address the API server can call; write for example https://192.0.2.1:8443"
    )]
    WebhookUrl(String),
}

impl Options {
    /// Checks the values that go into the manifests.
    ///
    /// # Errors
    /// The first invalid value, and how to fix it.
    pub fn check(&self) -> Result<(), OptionError> {
        let namespace = &self.namespace;
        let is_label = outrigger_text::name::is_object_name(namespace)
            && !namespace.contains('.')
            && namespace.len() <= 63;
        // YAML reads some names as numbers or truth values.
        let is_text =
            serde_saphyr::from_str::<serde_json::Value>(namespace).is_ok_and(|value| value.is_string());
        if !is_label || !is_text {
            return Err(OptionError::Namespace(namespace.clone()));
        }
        if matches!(namespace.as_str(), "default" | "kube-system" | "kube-public" | "kube-node-lease") {
            return Err(OptionError::SharedNamespace(namespace.clone()));
        }
        if !is_image(&self.image) {
            return Err(OptionError::Image(self.image.clone()));
        }
        if let Some(endpoint) = self.cri_endpoint.as_ref().filter(|endpoint| !is_mounted_socket(endpoint)) {
            return Err(OptionError::CriEndpoint(endpoint.clone()));
        }
        match &self.webhook_url {
            Some(url) if !is_webhook_url(url) => Err(OptionError::WebhookUrl(url.clone())),
            _ => Ok(()),
        }
    }
}

/// Whether a text looks like an image reference. The container runtime of each node checks the rest.
fn is_image(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"./:@_-[]".contains(&b);
    let is_end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let name = text.split_once('@').map_or(text, |(name, _)| name);
    // A port can only be in the registry, and a tag only in the last part.
    let parts: Vec<&str> = name.split('/').collect();
    let has_colons = |(i, part): (usize, &&str)| {
        let colons = part.matches(':').count();
        let is_edge = i == 0 || i + 1 == parts.len();
        part.starts_with('[') || colons == 0 || (colons == 1 && is_edge)
    };
    text.len() <= 512
        && parts.iter().enumerate().all(has_colons)
        && parts.iter().all(|part| !part.is_empty())
        && text.bytes().all(is_allowed)
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'[')
        && is_end(text.bytes().last())
}

/// Whether an address is a socket that the DaemonSet mounts.
fn is_mounted_socket(text: &str) -> bool {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    let path = path.strip_prefix("/var").filter(|path| path.starts_with("/run/")).unwrap_or(path);
    let is_plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    path.starts_with("/run/") && path.len() <= 200 && is_plain && !path.contains("..")
}

/// Whether the API server can call this URL. It calls only https, and paths are appended to the address.
fn is_webhook_url(text: &str) -> bool {
    let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && !b"\"'\\{}<>`#?@".contains(&b));
    let parsed: Option<http::Uri> = text.parse().ok();
    is_plain
        && !text.ends_with('/')
        && parsed.is_some_and(|uri| {
            uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty())
        })
}

/// Renders the manifests as YAML documents.
pub fn manifests(options: &Options) -> Vec<String> {
    let wanted = |(name, _): &&(&str, &str)| {
        let outside = options.webhook_url.is_some() && matches!(*name, "operator.yaml" | "agent.yaml");
        let unwanted = options.without_agent && *name == "agent.yaml";
        !outside && !unwanted
    };
    let documents = FILES.iter().filter(wanted).flat_map(|(_, text)| text.split("\n---\n"));
    let is_agents = |document: &str| document.contains("\n  name: outrigger-agent");
    documents
        .filter(|document| !(options.without_agent && is_agents(document)))
        .map(|document| fill_in(document, options))
        .filter(|document| !document.trim().is_empty())
        .collect()
}

fn fill_in(document: &str, options: &Options) -> String {
    let mut text = document.replace(NAMESPACE, &options.namespace).replace(IMAGE, &options.image);
    if options.failure_policy == FailurePolicy::Ignore {
        // The policy applies only to pods. Requests always need the webhook, because they do not work without
        // it.
        text = text.replacen("failurePolicy: Fail # pods", "failurePolicy: Ignore # pods", 1);
    }
    if options.readiness_gate {
        text = text.replacen("\"false\" # readiness gate", "\"true\" # readiness gate", 1);
    }
    let mut more = String::new();
    if options.without_agent {
        more.push_str(", --without-agent");
    }
    if options.any_requester {
        more.push_str(", --any-requester");
    }
    if options.launch == Launch::Native {
        more.push_str(", --launch=native");
    }
    let mut of_agent = String::new();
    if let Some(endpoint) = &options.cri_endpoint {
        // Both paths name the same directory, but only `/run` is mounted.
        let endpoint = endpoint.replacen("/var/run/", "/run/", 1);
        of_agent.push_str(&format!(", \"--cri-endpoint={endpoint}\""));
    }
    if options.json_logs {
        more.push_str(", --log-format=json");
        of_agent.push_str(", --log-format=json");
    }
    text = text.replacen("args: [operator, run]", &format!("args: [operator, run{more}]"), 1);
    let health = "\"127.0.0.1:10221\"";
    text = text.replacen(&format!("{health}]"), &format!("{health}{of_agent}]"), 1);
    if let Some(url) = &options.webhook_url {
        text = by_url(&text, url);
    }
    text.trim_end().to_owned() + "\n"
}

/// Replaces references to the Service with URLs: `service:` and the lines below it become `url:`.
fn by_url(text: &str, url: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != "service:" {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let mut path = "";
        while let Some(next) = lines.peek().filter(|next| next.len() - next.trim_start().len() > indent) {
            path = next.trim().strip_prefix("path: ").unwrap_or(path);
            lines.next();
        }
        out.push_str(&format!("{}url: {url}{path}\n", " ".repeat(indent)));
    }
    out
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests read the files that users install")]
mod tests;
