//! ConfigMaps and Secrets a pod refers to and the manifest does not have.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Container;
use outrigger_lifecycle::FieldPath;

use super::Lesson;
use crate::pod::PodContext;

/// What is referred to.
#[derive(Debug, Clone, Copy)]
enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::ConfigMap => "ConfigMap",
            Kind::Secret => "Secret",
        }
    }

    /// The keys of an object; `None` if it is not in the manifest.
    fn keys(self, pod: &PodContext, name: &str) -> Option<BTreeSet<String>> {
        let id = (pod.namespace().to_owned(), name.to_owned());
        match self {
            Kind::ConfigMap => {
                let map = pod.companions.config_maps.get(&id)?;
                let texts = map.data.iter().flatten().map(|(key, _)| key);
                Some(texts.chain(map.binary_data.iter().flatten().map(|(key, _)| key)).cloned().collect())
            }
            Kind::Secret => {
                let secret = pod.companions.secrets.get(&id)?;
                Some(secret.data.iter().flatten().map(|(key, _)| key.clone()).collect())
            }
        }
    }

    /// What is wrong with a reference, if anything is; `at` is the place of the reference.
    fn lesson(
        self,
        pod: &PodContext,
        name: &str,
        key: Option<&str>,
        optional: Option<bool>,
        at: FieldPath,
    ) -> Option<Lesson> {
        if optional == Some(true) {
            return None;
        }
        let kind = self.name();
        let Some(keys) = self.keys(pod, name) else {
            return Some(Lesson::at(
                at.field("name"),
                format!(
                    "add {kind} {name:?} to the manifest, give its file as well (outrigger run FILE FILE), or write `optional: true`"
                ),
            ));
        };
        let key = key.filter(|key| !keys.contains(*key))?;
        let have = match keys.is_empty() {
            true => "no keys".to_owned(),
            false => keys.iter().map(|k| format!("{k:?}")).collect::<Vec<_>>().join(", "),
        };
        Some(Lesson::at(
            at.field("key"),
            format!(
                "{kind} {name:?} has {have}; write one of its keys, add {key:?} to it, or write `optional: true`"
            ),
        ))
    }
}

/// The first variable of a container that refers to something that is not there.
pub(super) fn environment(pod: &PodContext, container: &Container, path: &FieldPath) -> Option<Lesson> {
    for (i, from) in container.env_from.iter().flatten().enumerate() {
        let at = || path.clone().field("envFrom").index(i);
        let map = from
            .config_map_ref
            .as_ref()
            .and_then(|r| Kind::ConfigMap.lesson(pod, &r.name, None, r.optional, at().field("configMapRef")));
        let secret = || {
            let r = from.secret_ref.as_ref()?;
            Kind::Secret.lesson(pod, &r.name, None, r.optional, at().field("secretRef"))
        };
        if let Some(lesson) = map.or_else(secret) {
            return Some(lesson);
        }
    }
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let Some(from) = &variable.value_from else { continue };
        let at = || path.clone().field("env").index(i).field("valueFrom");
        let map = from.config_map_key_ref.as_ref().and_then(|r| {
            Kind::ConfigMap.lesson(pod, &r.name, Some(&r.key), r.optional, at().field("configMapKeyRef"))
        });
        let secret = || {
            let r = from.secret_key_ref.as_ref()?;
            Kind::Secret.lesson(pod, &r.name, Some(&r.key), r.optional, at().field("secretKeyRef"))
        };
        if let Some(lesson) = map.or_else(secret) {
            return Some(lesson);
        }
    }
    None
}

/// The first volume of a pod that refers to something that is not there.
pub(super) fn volumes(pod: &PodContext) -> Option<Lesson> {
    let volumes = pod.pod.spec.as_ref()?.volumes.iter().flatten();
    volumes.enumerate().find_map(|(i, volume)| {
        let at = || FieldPath::spec("volumes").index(i);
        let map = volume.config_map.as_ref().and_then(|source| {
            Kind::ConfigMap.lesson(pod, &source.name, None, source.optional, at().field("configMap"))
        });
        map.or_else(|| {
            let source = volume.secret.as_ref()?;
            let lesson = Kind::Secret.lesson(
                pod,
                source.secret_name.as_deref()?,
                None,
                source.optional,
                at().field("secret"),
            )?;
            // Here alone the field is called otherwise.
            Some(Lesson { path: Some(at().field("secret").field("secretName")), ..lesson })
        })
    })
}
