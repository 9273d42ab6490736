//! Finds references to ConfigMaps, Secrets and keys that the manifest does not contain. There is no other
//! source for them, so such a reference can never be resolved.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, KeyToPath, Pod};
use outrigger_lifecycle::{Companions, ContainerRef, FieldPath, List, ROOT_CA, is_launch_barrier};

use crate::decode::nearest;
use crate::diagnostic::Diagnostic;
use crate::pod::PodManifest;
use crate::read::Manifest;

/// The kind of a referenced object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ConfigMap,
    Secret,
}

/// A reference to a missing object or key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingReference {
    /// The path of the reference in the pod.
    pub path: FieldPath,
    /// What is missing.
    pub message: String,
    /// How to fix it.
    pub hint: String,
    /// The kind, namespace and name of an equally named object in another namespace.
    elsewhere: Option<(&'static str, String, String)>,
}

/// The references of a pod that cannot be resolved in its namespace.
pub fn missing_references(pod: &Pod, companions: &Companions) -> Vec<MissingReference> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut search = Search { companions, namespace, found: Vec::new() };
    let Some(spec) = &pod.spec else { return search.found };
    let inits = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| (List::Init, i, c));
    let mains = spec.containers.iter().enumerate().map(|(i, c)| (List::Main, i, c));
    for (list, index, container) in inits.chain(mains) {
        search.environment(container, &ContainerRef { list, index }.path());
    }
    search.volumes(pod);
    search.found
}

/// The same as [`missing_references`] for a pod of a manifest, as errors with positions.
pub fn check_references(manifest: &Manifest, pod: &PodManifest) -> Vec<Diagnostic> {
    let found = missing_references(&pod.input.pod, &manifest.companions);
    found
        .into_iter()
        .map(|missing| {
            let mut error = Diagnostic::error(pod.point(&missing.path), missing.message).hint(missing.hint);
            error.code = Some("reference");
            if let Some(span) = missing.elsewhere.as_ref().and_then(|id| manifest.places.get(id)) {
                let (kind, namespace, _) = missing.elsewhere.clone().unwrap_or_default();
                error = error.label(*span, format!("this {kind} is in namespace `{namespace}`"));
            }
            error
        })
        .collect()
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::ConfigMap => "ConfigMap",
            Kind::Secret => "Secret",
        }
    }
}

/// A reference as written in the pod.
struct Reference<'r> {
    kind: Kind,
    name: &'r str,
    optional: Option<bool>,
    /// The path of the map that contains the reference, and the field that has the object's name.
    at: FieldPath,
    name_field: &'static str,
}

struct Search<'s> {
    companions: &'s Companions,
    namespace: &'s str,
    found: Vec<MissingReference>,
}

impl Search<'_> {
    fn environment(&mut self, container: &Container, path: &FieldPath) {
        for (i, from) in container.env_from.iter().flatten().enumerate() {
            let at = path.clone().field("envFrom").index(i);
            if let Some(r) = &from.config_map_ref {
                self.object(Kind::ConfigMap, &r.name, r.optional, at.clone().field("configMapRef"));
            }
            if let Some(r) = &from.secret_ref {
                self.object(Kind::Secret, &r.name, r.optional, at.field("secretRef"));
            }
        }
        let variables = container.env.iter().flatten().enumerate();
        for (i, variable) in variables.filter(|(_, v)| !is_launch_barrier(&v.name)) {
            let Some(from) = &variable.value_from else { continue };
            let at = path.clone().field("env").index(i).field("valueFrom");
            if let Some(r) = &from.config_map_key_ref {
                let at = at.clone().field("configMapKeyRef");
                if self.object(Kind::ConfigMap, &r.name, r.optional, at.clone()) {
                    // Binary data cannot become a variable.
                    self.key(Kind::ConfigMap, &r.name, &r.key, r.optional, at.field("key"), false);
                }
            }
            if let Some(r) = &from.secret_key_ref {
                let at = at.field("secretKeyRef");
                if self.object(Kind::Secret, &r.name, r.optional, at.clone()) {
                    self.key(Kind::Secret, &r.name, &r.key, r.optional, at.field("key"), false);
                }
            }
        }
    }

    fn volumes(&mut self, pod: &Pod) {
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        for (i, volume) in volumes.enumerate() {
            let at = FieldPath::spec("volumes").index(i);
            if let Some(s) = &volume.config_map {
                let at = at.clone().field("configMap");
                self.files(Kind::ConfigMap, &s.name, "name", s.optional, s.items.as_deref(), at);
            }
            if let Some(s) = &volume.secret {
                let name = s.secret_name.as_deref().unwrap_or_default();
                let at = at.clone().field("secret");
                self.files(Kind::Secret, name, "secretName", s.optional, s.items.as_deref(), at);
            }
            let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
            for (n, source) in sources.enumerate() {
                let at = at.clone().field("projected").field("sources").index(n);
                if let Some(s) = source.config_map.as_ref().filter(|s| s.name != ROOT_CA) {
                    let at = at.clone().field("configMap");
                    self.files(Kind::ConfigMap, &s.name, "name", s.optional, s.items.as_deref(), at);
                }
                if let Some(s) = &source.secret {
                    let at = at.field("secret");
                    self.files(Kind::Secret, &s.name, "name", s.optional, s.items.as_deref(), at);
                }
            }
        }
    }

    /// Checks a reference to an object whose keys become files.
    fn files(
        &mut self,
        kind: Kind,
        name: &str,
        name_field: &'static str,
        optional: Option<bool>,
        items: Option<&[KeyToPath]>,
        at: FieldPath,
    ) {
        let reference = Reference { kind, name, optional, at: at.clone(), name_field };
        if !self.look_up(&reference) {
            return;
        }
        for (i, item) in items.unwrap_or_default().iter().enumerate() {
            let at = at.clone().field("items").index(i).field("key");
            self.key(kind, name, &item.key, optional, at, true);
        }
    }

    fn object(&mut self, kind: Kind, name: &str, optional: Option<bool>, at: FieldPath) -> bool {
        self.look_up(&Reference { kind, name, optional, at, name_field: "name" })
    }

    /// Whether an object exists. A required reference that cannot be resolved is recorded.
    fn look_up(&mut self, reference: &Reference<'_>) -> bool {
        let Reference { kind, name, optional, at, name_field } = reference;
        if self.keys(*kind, name, true).is_some() {
            return true;
        }
        if *optional != Some(true) {
            let kind_name = kind.name();
            let names = self.names(*kind);
            let elsewhere = names.iter().find(|(ns, n)| n == name && ns != self.namespace);
            let here: Vec<&str> =
                names.iter().filter(|(ns, _)| ns == self.namespace).map(|(_, n)| n.as_str()).collect();
            let hint = match (elsewhere, nearest(name, &here)) {
                (Some((ns, _)), _) => format!(
                    "it is in namespace `{ns}` and the pod is in `{}`: give both the same `metadata.namespace`",
                    self.namespace
                ),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => format!(
                    "add {kind_name} `{name}` to the manifest, pass its file too (outrigger run FILE FILE), or write \
                     `optional: true`"
                ),
            };
            self.found.push(MissingReference {
                path: at.clone().field(*name_field),
                message: format!("{kind_name} `{name}` is not in the manifest"),
                hint,
                elsewhere: elsewhere.map(|(ns, n)| (kind_name, ns.clone(), n.clone())),
            });
        }
        false
    }

    fn key(
        &mut self,
        kind: Kind,
        name: &str,
        key: &str,
        optional: Option<bool>,
        path: FieldPath,
        binary: bool,
    ) {
        let keys = self.keys(kind, name, binary).unwrap_or_default();
        if optional == Some(true) || keys.contains(key) {
            return;
        }
        let kind = kind.name();
        let known: Vec<&str> = keys.iter().map(String::as_str).collect();
        let hint = match (nearest(key, &known), known.as_slice()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, []) => format!("it has no keys: add `{key}` to it, or write `optional: true`"),
            (None, known) => format!(
                "its keys are `{}`: use one of them, add `{key}`, or write `optional: true`",
                known.join("`, `")
            ),
        };
        let message = format!("{kind} `{name}` has no key `{key}`");
        self.found.push(MissingReference { path, message, hint, elsewhere: None });
    }

    /// The namespaces and names of all objects of a kind.
    fn names(&self, kind: Kind) -> Vec<(String, String)> {
        match kind {
            Kind::ConfigMap => self.companions.config_maps.keys().cloned().collect(),
            Kind::Secret => self.companions.secrets.keys().cloned().collect(),
        }
    }

    /// The keys of an object; `None` if it does not exist.
    fn keys(&self, kind: Kind, name: &str, binary: bool) -> Option<BTreeSet<String>> {
        let id = (self.namespace.to_owned(), name.to_owned());
        match kind {
            Kind::ConfigMap => {
                let map = self.companions.config_maps.get(&id)?;
                let texts = map.data.iter().flatten().map(|(key, _)| key);
                let others = map.binary_data.iter().flatten().map(|(key, _)| key).filter(|_| binary);
                Some(texts.chain(others).cloned().collect())
            }
            Kind::Secret => {
                let secret = self.companions.secrets.get(&id)?;
                Some(secret.data.iter().flatten().map(|(key, _)| key.clone()).collect())
            }
        }
    }
}
