//! Errors of references in containers and volumes: to fields, resources, ConfigMaps and Secrets.

use outrigger_lifecycle::QuantityError;

/// Why a reference cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// `fieldRef` names a field that the downward API does not have.
    #[error("field {0:?} cannot be referred to; see the fields of the downward API")]
    Field(String),
    /// `resourceFieldRef` names neither a limit nor a request.
    #[error("resource {0:?} is not known; use `limits.cpu`, `requests.memory` …")]
    ResourceKind(String),
    /// `resourceFieldRef` names a resource that does not exist.
    #[error("resource {0:?} is not known")]
    Resource(String),
    /// The amount of a resource, or its divisor, is invalid.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// `resourceFieldRef` names a container that the pod does not have.
    #[error("container {0:?} of a resourceFieldRef does not exist")]
    Container(String),
    /// A ConfigMap or Secret is missing.
    #[error("{kind} {name:?} not found; add it to the manifest")]
    Object {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A variable refers to a key that its ConfigMap or Secret does not have.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    VariableKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The missing key.
        key: String,
    },
    /// A volume refers to a key that its ConfigMap or Secret does not have.
    #[error("{kind} {name:?} has no key {key:?}")]
    FileKey {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The missing key.
        key: String,
    },
    /// A variable refers to a file.
    #[error("valueFrom.fileKeyRef is not supported; write the value into a ConfigMap")]
    FileKeyRef,
}
