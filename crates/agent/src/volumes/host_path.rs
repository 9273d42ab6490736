//! `hostPath` volumes and their type checks.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

pub use crate::volume_error::HostPathFault;
use crate::volume_error::{VolumeError, out_of_reach};

/// Checks that the path matches `kind`, creating it if the kind allows that.
pub(super) fn check(path: &Path, kind: &str) -> Result<(), VolumeError> {
    let at = || path.to_owned();
    if !path.is_absolute() {
        return Err(VolumeError::HostPathRelative(at()));
    }
    if path.components().any(|c| matches!(c, std::path::Component::ParentDir)) {
        return Err(VolumeError::HostPathParent(at()));
    }
    match kind {
        // An untyped path is not checked. If it is missing, it becomes a directory, as in other container
        // runtimes.
        "" if fs::symlink_metadata(path).is_ok() => return Ok(()),
        "" | "DirectoryOrCreate" if fs::metadata(path).is_err() => {
            return fs::create_dir_all(path)
                .map_err(|source| VolumeError::HostPathCreate { path: at(), source });
        }
        "FileOrCreate" if fs::metadata(path).is_err() => {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o644);
            let opened = options.open(path).map(drop);
            return opened.map_err(|source| VolumeError::HostPathCreate { path: at(), source });
        }
        "" | "Directory" | "DirectoryOrCreate" | "File" | "FileOrCreate" | "Socket" | "CharDevice"
        | "BlockDevice" => {}
        other => return Err(VolumeError::HostPathKind(other.to_owned())),
    }
    if let Some(source) = fs::metadata(path).err().filter(|e| e.kind() != ErrorKind::NotFound) {
        return Err(VolumeError::HostPathCheck { path: at(), source });
    }
    match fault(path, kind) {
        None => Ok(()),
        Some(fault) => Err(VolumeError::HostPathType { path: at(), fault }),
    }
}

/// Compares a host path with its type without changing anything. A path that would be created is not reported
/// as missing.
pub fn fault(path: &Path, kind: &str) -> Option<HostPathFault> {
    let found = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let is_made = matches!(kind, "" | "DirectoryOrCreate" | "FileOrCreate");
            return (!is_made).then_some(HostPathFault::Missing);
        }
        Err(e) => return out_of_reach(&e),
    };
    let (fits, wanted) = match kind {
        "Directory" | "DirectoryOrCreate" => (found.is_dir(), "a directory"),
        "File" | "FileOrCreate" => (found.is_file(), "a file"),
        "Socket" => (found.is_socket(), "a socket"),
        "CharDevice" => (found.is_char_device(), "a character device"),
        "BlockDevice" => (found.is_block_device(), "a block device"),
        _ => return None,
    };
    (!fits).then_some(HostPathFault::Other(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_created() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "x").unwrap();
        fs::create_dir(at("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let table = [
            ("file", "File", true),
            ("dir", "File", false),
            ("dir", "Directory", true),
            ("none", "Directory", false),
            ("none", "File", false),
            ("made/deep", "DirectoryOrCreate", true),
            ("file", "DirectoryOrCreate", false),
            ("new", "FileOrCreate", true),
            ("no-such-dir/new", "FileOrCreate", false),
            ("socket", "Socket", true),
            ("file", "Socket", false),
            ("file", "CharDevice", false),
            ("plain", "", true),
            ("file", "", true),
            ("file", "Odd", false),
        ];
        for (name, kind, ok) in table {
            assert_eq!(check(&at(name), kind).is_ok(), ok, "{name} {kind:?}");
        }
        assert!(at("made/deep").is_dir() && at("new").is_file() && at("plain").is_dir());
        assert!(check(Path::new("/dev/null"), "CharDevice").is_ok());
        assert!(check(Path::new("relative"), "").is_err());
        assert!(check(Path::new("/tmp/../etc"), "").is_err());
    }
}
