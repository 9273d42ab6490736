//! Files that outlive the process: each is replaced whole, and never synced. It is the process that dies, not the disk.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// No file is larger: what is, was not written here.
const FILE_MAX: u64 = 64 << 20;

/// Makes a directory that only its owner can enter.
///
/// # Errors
/// It cannot be made.
pub fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Nothing to remove is nothing to worry about.
///
/// # Errors
/// Any other error.
pub fn missing_is_fine(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Names of the entries of a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Reads a file of JSON; `None` if there is none.
///
/// # Errors
/// It cannot be read, or is not what it should be.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if file.metadata()?.len() > FILE_MAX {
        return Err(io::Error::other(format!("{} is too large", path.display())));
    }
    let parsed = serde_json::from_reader(io::BufReader::new(file));
    parsed.map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Replaces a file by JSON.
///
/// # Errors
/// It cannot be written; the old content is there.
pub fn replace(path: &Path, content: &impl Serialize) -> io::Result<()> {
    replace_bytes(path, &serde_json::to_vec(content)?)
}

/// Replaces a file so that every reader finds the old or the new content, never half of it.
///
/// # Errors
/// It cannot be written; the old content is there.
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
