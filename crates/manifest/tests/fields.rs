//! `docs/reference/fields.md` lists exactly the fields that exist.

use std::cell::RefCell;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use serde::de::{self, Deserialize, Deserializer, Visitor};

const PAGE: &str = include_str!("../../../docs/reference/fields.md");

/// Records the name and the fields of the requested struct.
struct Fields<'a>(&'a RefCell<Option<(&'static str, &'static [&'static str])>>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0.borrow_mut() = Some((name, fields));
        Err(de::Error::custom("only the fields are wanted"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<T: for<'de> Deserialize<'de>>() -> (&'static str, Vec<&'static str>) {
    let kept = RefCell::new(None);
    let refused = T::deserialize(Fields(&kept)).is_err();
    assert!(refused);
    let (name, fields) = kept.into_inner().expect("a struct");
    (name, fields.to_vec())
}

/// The tables of the page: fields and their support, by type.
fn documented() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut tables: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut of = String::new();
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            of = heading.to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            let (field, rest) = row.split_once("` | ").expect("a row");
            let outcome = rest.split(" |").next().expect("an outcome").to_owned();
            let before = tables.entry(of.clone()).or_default().insert(field.to_owned(), outcome);
            assert_eq!(before, None, "{of}.{field} is there twice");
        }
    }
    tables
}

#[test]
fn the_page_lists_every_field() {
    let tables = documented();
    for (name, mut fields) in [
        fields::<v1::PodSpec>(),
        fields::<v1::PodSecurityContext>(),
        fields::<v1::SecurityContext>(),
        fields::<v1::Container>(),
        fields::<v1::Capabilities>(),
        fields::<v1::ResourceRequirements>(),
        fields::<v1::Probe>(),
        fields::<v1::Lifecycle>(),
        fields::<v1::LifecycleHandler>(),
        fields::<v1::EnvVarSource>(),
        fields::<v1::EnvFromSource>(),
        fields::<v1::ContainerPort>(),
        fields::<v1::VolumeMount>(),
        fields::<v1::Volume>(),
        fields::<v1::VolumeProjection>(),
    ] {
        let table = tables.get(name).unwrap_or_else(|| panic!("there is no table of {name}"));
        if name == "Lifecycle" {
            // This field is from the sidecar proposal.
            fields.push("type");
        }
        fields.sort_unstable();
        let listed: Vec<&str> = table.keys().map(String::as_str).collect();
        assert_eq!(listed, fields, "{name}");
        for (field, outcome) in table {
            assert!(
                ["applied", "refused", "no effect"].contains(&outcome.as_str()),
                "{name}.{field}: {outcome}"
            );
        }
    }
    let (_, mut own) = fields::<v1::EphemeralContainer>();
    own.retain(|field| *field != "targetContainerName");
    assert_eq!(own, fields::<v1::Container>().1, "an ephemeral container has the fields of a container");
}
