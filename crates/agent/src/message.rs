//! Termination messages of containers (R5.50).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::Container;

use crate::log::last_bytes;
use outrigger_text::log_line::parse_line;

const FILE_MAX: u64 = 4096;
const LOG_LINES_MAX: usize = 80;
const LOG_BYTES_MAX: usize = 2048;
/// Maximum number of bytes read from the end of the log.
const LOG_READ_MAX: u64 = 64 << 10;

/// Creates the empty file for the termination message, writable by any user.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// The message of an ended container.
pub(crate) fn read(container: &Container, file: &Path, log: &Path, failed: bool) -> Option<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(file) {
        // A file that cannot be read is treated as empty.
        let _ = file.take(FILE_MAX).read_to_end(&mut bytes);
    }
    let fall_back = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if bytes.is_empty() && fall_back && failed {
        bytes = tail(log).unwrap_or_default();
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log in CRI format, without their timestamps.
fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let bytes = last_bytes(log, LOG_READ_MAX)?;
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    if bytes.len() as u64 == LOG_READ_MAX {
        // The first line is cut off.
        lines.remove(0);
    }
    let mut out = Vec::new();
    let first = lines.len().saturating_sub(LOG_LINES_MAX);
    for line in lines[first..].iter().filter_map(|line| parse_line(line)) {
        out.extend_from_slice(line.text);
        if !line.partial {
            out.push(b'\n');
        }
    }
    let cut = out.len().saturating_sub(LOG_BYTES_MAX);
    out.drain(..cut);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn file_first_then_log_r5_50() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("m/file"), dir.path().join("log"));
        let line = |n: usize| format!("2024-01-01T00:00:00.000000000Z stdout F line {n}\n");
        let container = |policy: &str| -> Container {
            serde_json::from_value(json!({"name": "c", "terminationMessagePolicy": policy})).unwrap()
        };
        let (plain, fallback) = (container("File"), container("FallbackToLogsOnError"));
        make(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(read(&fallback, &file, &log, true), None, "no log yet");
        fs::write(&log, (0..100).map(line).collect::<String>()).unwrap();
        assert_eq!(read(&plain, &file, &log, true), None);
        assert_eq!(read(&fallback, &file, &log, false), None);
        let message = read(&fallback, &file, &log, true).unwrap();
        assert!(message.starts_with("line 20\n") && message.ends_with("line 99\n"), "{message}");
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert_eq!(read(&fallback, &file, &log, true).unwrap().len(), 4096);
        make(&file).unwrap();
        assert_eq!(read(&plain, &file, &log, true), None, "a new instance starts anew");
    }

    #[test]
    fn a_long_log_is_cut_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let line =
            |n: usize| format!("2024-01-01T00:00:00Z stderr P {n:0100}\n2024-01-01T00:00:00Z stderr F .\n");
        fs::write(&log, (0..2000).map(line).collect::<String>()).unwrap();
        let tail = tail(&log).unwrap();
        assert_eq!(tail.len(), LOG_BYTES_MAX);
        assert!(tail.ends_with(b"1999.\n"));
    }
}
