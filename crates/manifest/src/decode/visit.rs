//! The serde traits of the decoder.

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::{De, DecodeError, Path, PathSegment, Want, mistakes, place_of};
use crate::diagnostic::Diagnostic;
use crate::scalar::{Resolved, resolve};
use crate::tree::{Entry, Node, Value};
use crate::yaml::key_misread;

macro_rules! integers {
    ($($method:ident, $visit:ident, $type:ty, $min:expr, $max:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.place(visitor.$visit(self.int($min, $max) as $type))
        }
    )*};
}

impl<'de, 'c> de::Deserializer<'de> for De<'c> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.want == Want::Quantity {
            return self.place(visitor.visit_string(self.quantity()));
        }
        match &self.node.value {
            Value::Seq(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
            Value::Scalar(scalar) => self.place(match resolve(scalar) {
                Resolved::Null => visitor.visit_unit(),
                Resolved::Bool(value) => visitor.visit_bool(value),
                Resolved::Int(value) => match i64::try_from(value) {
                    Ok(value) => visitor.visit_i64(value),
                    Err(_) => visitor.visit_f64(value as f64),
                },
                Resolved::Float(value) => visitor.visit_f64(value),
                Resolved::NotFinite | Resolved::Str => visitor.visit_str(&scalar.text),
            }),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.place(visitor.visit_bool(self.boolean()))
    }

    integers! {
        deserialize_i8, visit_i8, i8, i8::MIN.into(), i8::MAX.into();
        deserialize_i16, visit_i16, i16, i16::MIN.into(), i16::MAX.into();
        deserialize_i32, visit_i32, i32, i32::MIN.into(), i32::MAX.into();
        deserialize_i64, visit_i64, i64, i64::MIN, i64::MAX;
        deserialize_u8, visit_u8, u8, 0, u8::MAX.into();
        deserialize_u16, visit_u16, u16, 0, u16::MAX.into();
        deserialize_u32, visit_u32, u32, 0, u32::MAX.into();
        deserialize_u64, visit_u64, u64, 0, i64::MAX;
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.place(visitor.visit_f64(self.float()))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.place(visitor.visit_f64(self.float()))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.place(visitor.visit_str(self.string()))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let want = match name {
            "Quantity" => Want::Quantity,
            "Time" | "MicroTime" => Want::Time,
            _ => self.want,
        };
        self.place(visitor.visit_newtype_struct(De { want, ..self }))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let items = match &self.node.value {
            Value::Seq(items) => items.as_slice(),
            _ if self.node.is_null() => &[],
            Value::Map(_) => {
                self.wrong("a list", Some("start each entry with `- `".to_owned()));
                &[]
            }
            Value::Scalar(_) => {
                self.wrong("a list", mistakes::no_list(&self.path.to_field_path(), self.node));
                &[]
            }
        };
        let result = visitor.visit_seq(Items { de: self, items, next: 0 });
        self.place(result)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let entries = self.entries("a map").iter().map(|entry| (&*entry.key, entry)).collect();
        let result = visitor.visit_map(Fields { de: self, name: "", fields: &[], entries, next: 0 });
        self.place(result)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let entries = self.known_fields(name, fields);
        self.check_required(name, fields, &entries);
        let result = visitor.visit_map(Fields { de: self, name, fields, entries, next: 0 });
        self.place(result)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.place(visitor.visit_enum(self.string().into_deserializer()))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }
}

struct Items<'c> {
    de: De<'c>,
    items: &'c [Node],
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some(node) = self.items.get(self.next) else {
            return Ok(None);
        };
        let path = Path { parent: Some(self.de.path), segment: PathSegment::Index(self.next) };
        let at = if node.span.is_empty() { self.de.at } else { node.head() };
        self.next += 1;
        seed.deserialize(De { node, at, path: &path, ..self.de }).map(Some)
    }
}

/// The entries of a struct (`fields` is set) or of a free map (`fields` is empty), with their names.
struct Fields<'c> {
    de: De<'c>,
    name: &'static str,
    fields: &'static [&'static str],
    entries: Vec<(&'c str, &'c Entry)>,
    next: usize,
}

impl<'de> de::MapAccess<'de> for Fields<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some((name, entry)) = self.entries.get(self.next) else {
            return Ok(None);
        };
        if self.fields.is_empty()
            && entry.key_plain
            && let Some(other) = key_misread(&entry.key)
        {
            let message = format!("Kubernetes reads the key `{}` as `{other}`", entry.key);
            let hint = format!("quote it: \"{}\"", entry.key);
            self.de.context.report(Diagnostic::error(entry.key_span, message).hint(hint));
        }
        let key: de::value::StrDeserializer<'_, DecodeError> = (*name).into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let (name, entry) = self.entries[self.next];
        self.next += 1;
        let segment = PathSegment::Field(name, self.fields);
        let path = Path { parent: Some(self.de.path), segment };
        let want = match (self.name, name) {
            ("Secret", "data") | ("ConfigMap", "binaryData") => Want::Base64,
            _ if self.fields.is_empty() => self.de.want,
            _ => Want::Any,
        };
        let de = De { node: &entry.value, at: place_of(entry), path: &path, want, context: self.de.context };
        seed.deserialize(de)
    }
}
