//! Builds a container's environment and command line as Kubernetes does.

use k8s_openapi::api::core::v1::{Container, EnvVarSource};
use outrigger_lifecycle::Companions;
use outrigger_lifecycle::is_launch_barrier;

use crate::expand::expand;
use crate::fields::Fields;
use crate::reference::ReferenceError;

/// Variables in the order they were first set; a later value replaces an earlier one.
#[derive(Debug, Default)]
struct Variables(Vec<(String, String)>);

impl Variables {
    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// The command line and environment of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// `command`, expanded.
    pub(crate) command: Option<Vec<String>>,
    /// `args`, expanded.
    pub(crate) args: Option<Vec<String>>,
    /// All variables from the manifest.
    pub(crate) env: Vec<(String, String)>,
}

/// Resolves references in a container's variables.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    /// The pod's own fields.
    pub(crate) fields: Fields<'a>,
    /// ConfigMaps and Secrets.
    pub(crate) objects: &'a Companions,
    /// All containers of the pod: a `resourceFieldRef` may name another container.
    pub(crate) containers: &'a [Container],
}

impl Environment<'_> {
    fn namespace(&self) -> &str {
        self.fields.pod.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// The command line and environment of a container. The error is the message of a
    /// `CreateContainerConfigError`.
    pub(crate) fn command_line(&self, container: &Container) -> Result<CommandLine, ReferenceError> {
        let variables = self.variables(container)?;
        let all = |words: &Option<Vec<String>>| {
            words
                .as_ref()
                .map(|words| words.iter().map(|word| expand(word, |name| variables.get(name))).collect())
        };
        let (command, args) = (all(&container.command), all(&container.args));
        Ok(CommandLine {
            command: command.filter(|c: &Vec<String>| !c.is_empty()),
            args: args.filter(|a: &Vec<String>| !a.is_empty()),
            env: variables.0,
        })
    }

    fn variables(&self, container: &Container) -> Result<Variables, ReferenceError> {
        let mut variables = Variables::default();
        for from in container.env_from.iter().flatten() {
            let prefix = from.prefix.as_deref().unwrap_or("");
            let mut take = |key: &str, value: String| {
                let name = format!("{prefix}{key}");
                if is_variable_name(&name) {
                    variables.set(&name, value);
                } else {
                    tracing::warn!("{}: {name:?} is not a valid variable name; skipped", container.name);
                }
            };
            if let Some(source) = &from.config_map_ref {
                match self.config_map(&source.name) {
                    Some(map) => map.data.iter().flatten().for_each(|(key, value)| take(key, value.clone())),
                    None if source.optional == Some(true) => {}
                    None => return Err(missing("configmap", &source.name)),
                }
            }
            if let Some(source) = &from.secret_ref {
                match self.secret(&source.name) {
                    Some(secret) => {
                        secret.data.iter().flatten().for_each(|(key, value)| {
                            take(key, String::from_utf8_lossy(&value.0).into_owned())
                        })
                    }
                    None if source.optional == Some(true) => {}
                    None => return Err(missing("secret", &source.name)),
                }
            }
        }
        for variable in container.env.iter().flatten().filter(|v| !is_launch_barrier(&v.name)) {
            let written = variable.value.as_deref().unwrap_or("");
            let value = match &variable.value_from {
                Some(from) if written.is_empty() => match self.value_from(container, from)? {
                    Some(value) => value,
                    // The reference is optional and does not resolve, so the variable is not set.
                    None => continue,
                },
                _ => expand(written, |name| variables.get(name)),
            };
            variables.set(&variable.name, value);
        }
        Ok(variables)
    }

    fn value_from(
        &self,
        container: &Container,
        from: &EnvVarSource,
    ) -> Result<Option<String>, ReferenceError> {
        if let Some(field) = &from.field_ref {
            return self.fields.field(&field.field_path).map(Some);
        }
        if let Some(resource) = &from.resource_field_ref {
            let of = match resource.container_name.as_deref() {
                Some(name) if !name.is_empty() => self
                    .containers
                    .iter()
                    .find(|c| c.name == name)
                    .ok_or_else(|| ReferenceError::Container(name.to_owned()))?,
                _ => container,
            };
            return self.fields.resource(of, resource).map(Some);
        }
        if let Some(key) = &from.config_map_key_ref {
            let optional = key.optional == Some(true);
            return match self.config_map(&key.name) {
                None if optional => Ok(None),
                None => Err(missing("configmap", &key.name)),
                Some(map) => match map.data.as_ref().and_then(|d| d.get(&key.key)) {
                    Some(value) => Ok(Some(value.clone())),
                    None if optional => Ok(None),
                    None => Err(self.no_key("ConfigMap", &key.name, &key.key)),
                },
            };
        }
        if let Some(key) = &from.secret_key_ref {
            let optional = key.optional == Some(true);
            return match self.secret(&key.name) {
                None if optional => Ok(None),
                None => Err(missing("secret", &key.name)),
                Some(secret) => match secret.data.as_ref().and_then(|d| d.get(&key.key)) {
                    Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
                    None if optional => Ok(None),
                    None => Err(self.no_key("Secret", &key.name, &key.key)),
                },
            };
        }
        if from.file_key_ref.is_some() {
            return Err(ReferenceError::FileKeyRef);
        }
        Ok(Some(String::new()))
    }

    fn config_map(&self, name: &str) -> Option<&k8s_openapi::api::core::v1::ConfigMap> {
        let key = (self.namespace().to_owned(), name.to_owned());
        self.objects.config_maps.get(&key)
    }

    fn secret(&self, name: &str) -> Option<&k8s_openapi::api::core::v1::Secret> {
        let key = (self.namespace().to_owned(), name.to_owned());
        self.objects.secrets.get(&key)
    }

    fn no_key(&self, kind: &'static str, name: &str, key: &str) -> ReferenceError {
        ReferenceError::VariableKey {
            kind,
            namespace: self.namespace().to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
        }
    }
}

fn missing(kind: &'static str, name: &str) -> ReferenceError {
    ReferenceError::Object { kind, name: name.to_owned() }
}

/// Whether all characters are printable ASCII, and none is `=`.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=')
}

/// Expands the command of an exec probe: only references to literal variables of the container (R6.1).
pub(crate) fn expand_literals(container: &Container, command: &[String]) -> Vec<String> {
    let mut variables = Variables::default();
    for variable in container.env.iter().flatten() {
        if let Some(value) = &variable.value {
            let value = expand(value, |name| variables.get(name));
            variables.set(&variable.name, value);
        }
    }
    command.iter().map(|word| expand(word, |name| variables.get(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Host;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn host() -> Host {
        Host { name: "node".into(), ip: None, cpu_milli: 1_000, memory_bytes: 1 << 20 }
    }

    fn objects() -> Companions {
        let mut objects = Companions::default();
        let map = json!({"data": {"color": "blue", "a=b": "bad name", "size": "L"}});
        let secret = json!({"data": {"password": "aHVudGVyMg=="}});
        let key = |name: &str| ("default".to_owned(), name.to_owned());
        objects.config_maps.insert(key("map"), serde_json::from_value(map).unwrap());
        objects.secrets.insert(key("secret"), serde_json::from_value(secret).unwrap());
        objects
    }

    fn make(container: serde_json::Value) -> Result<CommandLine, ReferenceError> {
        let container: Container = serde_json::from_value(container).unwrap();
        let pod = Pod::default();
        let (host, objects) = (host(), objects());
        let containers = [container.clone()];
        Environment {
            fields: Fields { pod: &pod, pod_ips: &["10.1.2.3".parse().unwrap()], host: &host },
            objects: &objects,
            containers: &containers,
        }
        .command_line(&container)
    }

    fn value(line: &CommandLine, name: &str) -> Option<String> {
        line.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    }

    #[test]
    fn references_see_what_came_before_them() {
        let line = make(json!({
            "name": "c",
            "envFrom": [{"prefix": "MAP_", "configMapRef": {"name": "map"}}, {"secretRef": {"name": "secret"}}],
            "env": [
                {"name": "A", "value": "one"},
                {"name": "B", "value": "$(A)-two-$(MAP_color)"},
                {"name": "Z", "value": "$(LATER)"},
                {"name": "LATER", "value": "x"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "size"}}},
                {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "password"}}},
                {"name": "URL", "value": "http://$(IP)/$$(IP)"},
                {"name": "A", "value": "again"}
            ],
            "command": ["$(B)", "$$(B)", "$(NOPE)"],
            "args": ["x$(A)y"]
        }))
        .unwrap();
        let expected = [
            ("MAP_color", Some("blue")),
            ("MAP_a=b", None),
            ("password", Some("hunter2")),
            ("B", Some("one-two-blue")),
            ("Z", Some("$(LATER)")),
            ("IP", Some("10.1.2.3")),
            ("SIZE", Some("L")),
            ("PW", Some("hunter2")),
            ("URL", Some("http://10.1.2.3/$(IP)")),
            ("A", Some("again")),
        ];
        for (name, expected) in expected {
            assert_eq!(value(&line, name).as_deref(), expected, "{name}");
        }
        assert_eq!(line.command.unwrap(), ["one-two-blue", "$(B)", "$(NOPE)"]);
        assert_eq!(line.args.unwrap(), ["xagainy"]);
    }

    #[test]
    fn what_is_missing_is_an_error_unless_optional() {
        let from =
            |source: serde_json::Value| json!({"name": "c", "env": [{"name": "V", "valueFrom": source}]});
        let table = [
            (json!({"configMapKeyRef": {"name": "no", "key": "k"}}), Some("configmap \"no\" not found")),
            (
                json!({"configMapKeyRef": {"name": "map", "key": "k"}}),
                Some("couldn't find key k in ConfigMap default/map"),
            ),
            (json!({"secretKeyRef": {"name": "no", "key": "k"}}), Some("secret \"no\" not found")),
            (
                json!({"secretKeyRef": {"name": "secret", "key": "k"}}),
                Some("couldn't find key k in Secret default/secret"),
            ),
            (json!({"configMapKeyRef": {"name": "no", "key": "k", "optional": true}}), None),
            (json!({"secretKeyRef": {"name": "secret", "key": "k", "optional": true}}), None),
            (json!({"fieldRef": {"fieldPath": "status.phase"}}), Some("field \"status.phase\"")),
        ];
        for (source, expected) in table {
            let got = make(from(source.clone()));
            match expected {
                Some(text) => {
                    assert!(got.clone().unwrap_err().to_string().starts_with(text), "{source}: {got:?}")
                }
                None => assert_eq!(value(&got.unwrap(), "V"), None, "{source}"),
            }
        }
        let optional = json!({"name": "c", "envFrom": [{"configMapRef": {"name": "no", "optional": true}}]});
        assert!(make(optional).is_ok());
        let required = json!({"name": "c", "envFrom": [{"secretRef": {"name": "no"}}]});
        assert!(make(required).is_err());
    }

    /// The pod from Kruise's proposal, and one dumped from a cluster (LP-9).
    #[test]
    fn launch_barriers_are_left_out() {
        for (name, key) in [("KRUISE_CONTAINER_LAUNCH_BARRIER", "c_1"), ("KRUISE_CONTAINER_BARRIER", "p_1")] {
            let line = make(json!({"name": "c", "env": [
                {"name": "KRUISE_CONTAINER_LAUNCH_PRIORITY", "value": "1"},
                {"name": name, "valueFrom": {"configMapKeyRef": {"name": "pod-barrier", "key": key}}},
            ]}));
            let line = line.unwrap();
            assert_eq!(value(&line, name), None);
            assert_eq!(value(&line, "KRUISE_CONTAINER_LAUNCH_PRIORITY").as_deref(), Some("1"));
        }
    }

    #[test]
    fn probe_commands_see_literal_variables_only() {
        let container: Container = serde_json::from_value(json!({
            "name": "c",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        }))
        .unwrap();
        let command = ["$(A)".to_owned(), "$(B)".to_owned()];
        assert_eq!(expand_literals(&container, &command), ["1", "$(B)"]);
    }
}
