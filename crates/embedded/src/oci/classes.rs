//! Selects the runtime of each pod: `--oci-runtime`, or its runtime class, which is defined in a small file.
//!
//! ```toml
//! [classes.gvisor]
//! path = "/usr/local/bin/runsc"
//! args = ["--platform=systrap"]
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::oci_runtime::OciRuntime;
use outrigger_runtime::RuntimeError;

/// The maximum size of the configuration file.
const FILE_MAX: u64 = 1 << 20;

/// The OCI runtimes that a run may use.
#[derive(Debug, Clone, Default)]
pub struct OciRuntimes {
    /// The runtime of pods without a class. `None` means the embedded runtime.
    pub default: Option<OciRuntime>,
    /// The settings of the classes by name.
    classes: BTreeMap<String, Class>,
    /// The runtimes that were found, by class.
    found: BTreeMap<String, OciRuntime>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    classes: BTreeMap<String, Class>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    /// The path or the name of the runtime's program.
    path: String,
    /// Options that come before the runtime's command.
    #[serde(default)]
    args: Vec<String>,
}

impl OciRuntimes {
    /// One runtime for all pods, and no classes.
    pub fn all_by(runtime: OciRuntime) -> Self {
        OciRuntimes { default: Some(runtime), ..Self::default() }
    }

    /// Reads the file with the runtime of each class. If the file is missing, there are no classes, unless it
    /// `must_exist`.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn read(path: &Path, must_exist: bool) -> Result<Self, RuntimeError> {
        let wrong = |detail: String| RuntimeError::Config(format!("{}: {detail}", path.display()));
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => {
                return Ok(Self::default());
            }
            Err(error) => return Err(wrong(crate::sys::errno_text(&error))),
        };
        let file: File =
            toml::from_str(&text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        for (name, class) in &file.classes {
            if name.is_empty() || class.path.is_empty() {
                return Err(wrong(format!("class {name:?} needs a name and a path")));
            }
        }
        Ok(OciRuntimes { classes: file.classes, ..OciRuntimes::default() })
    }

    /// Names of the classes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// The runtime of a pod: the one of its class, or the default.
    ///
    /// # Errors
    /// There is no such class, or its runtime is not installed.
    pub fn of_class(&self, class: Option<&str>) -> Result<Option<OciRuntime>, RuntimeError> {
        let Some(name) = class.filter(|name| !name.is_empty()) else { return Ok(self.default.clone()) };
        if let Some(found) = self.found.get(name) {
            return Ok(Some(found.clone()));
        }
        let Some(class) = self.classes.get(name) else {
            return Err(RuntimeError::Config(self.unknown(name)));
        };
        let found = OciRuntime::find(&class.path, &class.args)
            .map_err(|error| RuntimeError::Config(format!("runtime class {name:?}: {error}")))?;
        Ok(Some(found))
    }

    /// Finds the runtime of a class in advance.
    ///
    /// # Errors
    /// There is no such class, or its runtime is not installed.
    pub fn find_class(&mut self, name: &str) -> Result<(), RuntimeError> {
        if let Some(runtime) = self.of_class(Some(name))? {
            self.found.insert(name.to_owned(), runtime);
        }
        Ok(())
    }

    /// Whether there is a class with this name.
    pub fn has_class(&self, name: &str) -> bool {
        self.classes.contains_key(name)
    }

    /// The message for an unknown class.
    pub fn unknown(&self, name: &str) -> String {
        let known: Vec<&str> = self.names().collect();
        match known.is_empty() {
            true => format!("runtime class {name:?} is not configured; no runtime class is"),
            false => format!("runtime class {name:?} is not configured; configured: {}", known.join(", ")),
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    // The programs in it are run as this user, so nobody else may be able to write it.
    let mut text = String::new();
    outrigger_runtime::trusted::open_file(path)?.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<OciRuntimes, RuntimeError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runtimes.toml");
        std::fs::write(&path, text).unwrap();
        OciRuntimes::read(&path, true)
    }

    #[test]
    fn classes_are_read_and_looked_up() {
        let found = of(
            "[classes.gvisor]\npath = \"/no/such/runsc\"\nargs = [\"--debug\"]\n[classes.b]\npath = \"x\"\n",
        )
        .unwrap();
        assert_eq!(found.names().collect::<Vec<_>>(), ["b", "gvisor"]);
        assert!(found.of_class(None).unwrap().is_none() && found.of_class(Some("")).unwrap().is_none());
        let unknown = found.of_class(Some("kata")).unwrap_err().to_string();
        assert_eq!(unknown, "runtime class \"kata\" is not configured; configured: b, gvisor");
        let missing = found.of_class(Some("gvisor")).unwrap_err().to_string();
        assert!(missing.contains("class \"gvisor\": OCI runtime /no/such/runsc"), "{missing}");
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, complaint) in [
            ("[classes.a]\npath = 3\n", "line 2"),
            ("[classes.a]\nargs = []\n", "path"),
            ("[classes.a]\npath = \"x\"\nflags = []\n", "flags"),
            ("[classs.a]\npath = \"x\"\n", "classs"),
            ("[classes.a]\npath = \"\"\n", "needs a name and a path"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
        assert!(OciRuntimes::read(Path::new("/no/such/file"), true).is_err());
        assert!(
            OciRuntimes::read(Path::new("/no/such/file"), false)
                .is_ok_and(|none| none.names().next().is_none())
        );
    }
}
