//! Reads and writes files that must survive the process. Each is replaced atomically. Files are never synced,
//! because they must survive a crash of the process, not of the machine.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum file size. Larger files were not written by this module.
const FILE_MAX: u64 = 64 << 20;

/// Creates a directory that only its owner can access.
///
/// # Errors
/// Returns an error if it cannot be created.
pub fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Treats `NotFound` as success.
///
/// # Errors
/// Returns any other error.
pub fn missing_is_fine(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Sorted names of the entries of a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The content of a file: a JSON object. The version of its format is added when it is written.
pub trait Saved: Serialize + DeserializeOwned {
    /// The version of the format. Increment it when other versions of Outrigger could not read the file
    /// correctly. A new field that has a default does not need a new version.
    const VERSION: u32;
}

/// A file as it is written.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// The field that files of all versions have.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Reads a file; `None` if it does not exist.
///
/// # Errors
/// Returns an error if the file cannot be read or parsed, or has another version.
pub fn read<T: Saved>(path: &Path) -> io::Result<Option<T>> {
    // A pipe would block, and a link or a device does not belong here.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    if metadata.len() > FILE_MAX {
        return Err(io::Error::other(format!("{} is too large", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes)?;
    let wrong = |e: serde_json::Error| io::Error::new(io::ErrorKind::InvalidData, e);
    let Version { version } = serde_json::from_slice(&bytes).map_err(wrong)?;
    if version != T::VERSION {
        let text = format!(
            "{} has format version {version}; this version of outrigger reads version {}",
            path.display(),
            T::VERSION
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(wrong)
}

/// The bytes of a file with this content.
///
/// # Errors
/// Returns an error if the content is not a JSON object.
pub fn to_bytes<T: Saved>(content: &T) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Versioned { version: T::VERSION, content })?)
}

/// Replaces a file.
///
/// # Errors
/// Returns an error if the file cannot be written; the old content is kept.
pub fn replace<T: Saved>(path: &Path, content: &T) -> io::Result<()> {
    replace_bytes(path, &to_bytes(content)?)
}

/// Replaces a file atomically: readers see either the old or the new content.
///
/// # Errors
/// Returns an error if the file cannot be written; the old content is kept.
pub fn replace_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let write = || -> io::Result<()> {
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Counts {
        by_number: std::collections::BTreeMap<usize, u64>,
    }

    impl Saved for Counts {
        const VERSION: u32 = 3;
    }

    #[test]
    fn a_file_of_another_version_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts.json");
        assert_eq!(read::<Counts>(&path).unwrap(), None);
        let counts = Counts { by_number: [(7, u64::MAX)].into() };
        replace(&path, &counts).unwrap();
        assert_eq!(read::<Counts>(&path).unwrap(), Some(counts));
        for (text, why) in [
            (
                r#"{"version":4,"by_number":{}}"#,
                "has format version 4; this version of outrigger reads version 3",
            ),
            (r#"{"by_number":{}}"#, "missing field `version`"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read::<Counts>(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
