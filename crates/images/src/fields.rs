//! Refuses JSON field names that programs read differently. Go's decoder ignores the case of names and uses
//! the last of several, so `digest` and `Digest` in one object could mean two images under one digest.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::fault::said;

/// The fields of an object, or of each object in a list. Values without known fields are not checked: maps
/// with the user's own keys, such as annotations and labels, may use any names.
pub(super) struct Object(&'static [(&'static str, Option<&'static Object>)]);

/// A manifest or an index.
pub(super) static DOCUMENT: Object = Object(&[
    ("schemaVersion", None),
    ("mediaType", None),
    ("artifactType", None),
    ("config", Some(&DESCRIPTOR)),
    ("layers", Some(&DESCRIPTOR)),
    ("manifests", Some(&DESCRIPTOR)),
    ("fsLayers", None),
    ("subject", Some(&DESCRIPTOR)),
    ("annotations", None),
]);

static DESCRIPTOR: Object = Object(&[
    ("mediaType", None),
    ("digest", None),
    ("size", None),
    ("urls", None),
    ("annotations", None),
    ("data", None),
    ("platform", Some(&PLATFORM)),
    ("artifactType", None),
]);

static PLATFORM: Object = Object(&[
    ("architecture", None),
    ("os", None),
    ("os.version", None),
    ("os.features", None),
    ("variant", None),
    ("features", None),
]);

/// An image configuration.
pub(super) static CONFIGURATION: Object = Object(&[
    ("architecture", None),
    ("os", None),
    ("os.version", None),
    ("os.features", None),
    ("variant", None),
    ("created", None),
    ("author", None),
    ("config", Some(&CONTAINER)),
    ("rootfs", Some(&ROOTFS)),
    ("history", None),
]);

static CONTAINER: Object = Object(&[
    ("User", None),
    ("ExposedPorts", None),
    ("Env", None),
    ("Entrypoint", None),
    ("Cmd", None),
    ("Volumes", None),
    ("WorkingDir", None),
    ("Labels", None),
    ("StopSignal", None),
    ("StopTimeout", None),
    ("ArgsEscaped", None),
    ("Healthcheck", None),
    ("OnBuild", None),
    ("Shell", None),
]);

static ROOTFS: Object = Object(&[("type", None), ("diff_ids", None)]);

/// The `manifest.json` in an archive by `docker save`.
pub(super) static DOCKER_ARCHIVE: Object = Object(&[
    ("Config", None),
    ("RepoTags", None),
    ("Layers", None),
    ("Parent", None),
    ("LayerSources", None),
]);

/// Why a document is refused.
pub(super) enum RefusedDocument {
    /// It is not JSON.
    Unreadable(serde_json::Error),
    /// Programs disagree about a field. The text says which.
    Ambiguous(String),
}

/// Checks that every known field occurs only once, and only in its correct spelling.
pub(super) fn check(bytes: &[u8], object: &'static Object) -> Result<(), RefusedDocument> {
    let found = Cell::new(None);
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let walked = Walk { object, found: &found }.deserialize(&mut json).and_then(|()| json.end());
    match (found.take(), walked) {
        (Some(why), _) => Err(RefusedDocument::Ambiguous(why)),
        (None, walked) => walked.map_err(RefusedDocument::Unreadable),
    }
}

/// Visits a value and the known objects in it. `serde_json` limits the depth of nested lists.
#[derive(Clone, Copy)]
struct Walk<'a> {
    object: &'static Object,
    found: &'a Cell<Option<String>>,
}

impl Walk<'_> {
    fn ambiguous<E: Error>(self, why: String) -> E {
        let error = E::custom(&why);
        self.found.set(Some(why));
        error
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object or a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = vec![false; self.object.0.len()];
        while let Some(name) = map.next_key::<String>()? {
            let Some(at) = self.object.0.iter().position(|(field, _)| folds_to(&name, field)) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let (field, inner) = self.object.0[at];
            if name != field {
                let name = said(&name);
                return Err(
                    self.ambiguous(format!("it has a field {name}, which some programs read as {field}"))
                );
            }
            if std::mem::replace(&mut seen[at], true) {
                return Err(self.ambiguous(format!("it has the field {field} twice")));
            }
            match inner {
                Some(object) => map.next_value_seed(Walk { object, ..self })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Whether Go's decoder takes a name for this field. It uses Unicode's simple case folding, which maps two
/// characters outside ASCII to ASCII letters: the long s and the Kelvin sign.
fn folds_to(name: &str, field: &str) -> bool {
    let folded = name.chars().map(|c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    });
    folded.eq(field.chars().map(|c| c.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold_as_in_go() {
        for name in ["layers", "Layers", "LAYER\u{17f}", "layer\u{17f}"] {
            assert!(folds_to(name, "layers"), "{name}");
        }
        assert!(folds_to("\u{212a}ind", "kind"));
        for name in ["layer", "layerss", "l\u{e4}yers", "layer\u{df}"] {
            assert!(!folds_to(name, "layers"), "{name}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = format!(r#"{{"layers":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(check(deep.as_bytes(), &DOCUMENT), Err(RefusedDocument::Unreadable(_))));
        let free = format!(r#"{{"annotations":{}1{}}}"#, r#"{"a":"#.repeat(100), "}".repeat(100));
        assert!(check(free.as_bytes(), &DOCUMENT).is_ok());
    }
}
