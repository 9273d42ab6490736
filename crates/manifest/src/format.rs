//! A manifest in the format that a user asks for.

use serde_json::json;

use crate::diagnostic::Diagnostics;
use crate::json::looks_like_json;
use crate::read::{ReadOptions, parse};
use crate::span::SourceFile;
use crate::{emit, tree::Document};

/// A format of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// YAML, one document for each object.
    Yaml,
    /// JSON. As kubectl does, several objects are written as one `List`.
    Json,
}

impl Format {
    /// The format of a manifest.
    pub fn of(text: &str) -> Self {
        if looks_like_json(text) { Format::Json } else { Format::Yaml }
    }
}

/// A manifest in a format. A text that is in this format already stays as it is, with its comments.
///
/// # Errors
/// The text cannot be read.
pub fn in_format(text: &str, format: Format, options: &ReadOptions) -> Result<String, Diagnostics> {
    if Format::of(text) == format {
        return Ok(text.to_owned());
    }
    let documents = parse(0, &SourceFile::new("manifest", text), options)?;
    let objects = documents.iter().map(|Document { root, .. }| root).filter(|root| !root.is_null());
    let mut objects: Vec<serde_json::Value> = objects.map(|root| root.to_json()).collect();
    let text = match format {
        Format::Yaml => objects
            .iter()
            .map(|object| emit::block(object).join("\n") + "\n")
            .collect::<Vec<_>>()
            .join("---\n"),
        Format::Json if objects.len() == 1 => format!("{:#}\n", objects.remove(0)),
        Format::Json => format!("{:#}\n", json!({"apiVersion": "v1", "kind": "List", "items": objects})),
    };
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_stay_the_same_in_every_format() {
        let options = ReadOptions::default();
        let one = "# kept\nkind: Pod\nmetadata:\n  name: a\n  labels: {on: \"yes\"}\nspec:\n  command:\n  - |\n    a\n    b\n";
        assert_eq!(in_format(one, Format::Yaml, &options).expect("YAML"), one);
        let json = in_format(one, Format::Json, &options).expect("JSON");
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["spec"]["command"][0], "a\nb\n");
        assert_eq!(in_format(&json, Format::Json, &options).expect("JSON"), json);
        let yaml = in_format(&json, Format::Yaml, &options).expect("YAML");
        assert!(yaml.starts_with("kind: Pod\nmetadata:\n  name: a\n"), "{yaml}");
        assert_eq!(in_format(&yaml, Format::Json, &options).expect("JSON"), json);
        let two = format!("{one}---\n# nothing\n---\nkind: Service\n");
        let list = in_format(&two, Format::Json, &options).expect("JSON");
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!("List"), Some(2)));
        let documents =
            in_format("{\"kind\": \"A\"} {\"kind\": \"B\"}", Format::Yaml, &options).expect("YAML");
        assert_eq!(documents, "kind: A\n---\nkind: B\n");
    }
}
