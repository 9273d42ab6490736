//! Files that must survive the process. Each is replaced atomically and never synced: they have to survive a
//! crash of the process, not of the machine.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// Reads a JSON file; `None` if it does not exist.
///
/// # Errors
/// Returns an error if the file cannot be read or parsed.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
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
    let parsed = serde_json::from_reader(io::BufReader::new(file));
    parsed.map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Replaces a file with JSON.
///
/// # Errors
/// Returns an error if the file cannot be written; the old content is kept.
pub fn replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    replace_bytes(path, &serde_json::to_vec(content)?)
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
