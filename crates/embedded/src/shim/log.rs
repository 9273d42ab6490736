//! The container's log, in the CRI format: `TIME stdout|stderr F|P LINE`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::watchers::Watchers;
use crate::fault::{Context, Fault};
use crate::sys;
use outrigger_runtime::{LogLimits, lines};

/// The maximum length of a line. A longer line is written in parts. All parts but the last are marked `P`.
const LINE_MAX: usize = 16 * 1024;

/// Copies one of the container's output streams to the log.
pub(super) struct LogStream {
    fd: OwnedFd,
    name: &'static str,
    line: Vec<u8>,
    open: bool,
    pub(super) watchers: Watchers,
}

impl LogStream {
    pub(super) fn new(fd: OwnedFd, name: &'static str) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(LogStream { fd, name, line: Vec::new(), open: true, watchers: Watchers::default() })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Moves one chunk to the log. Returns whether there may be more.
    pub(super) fn pump(&mut self, log: &mut Log) -> bool {
        let mut chunk = [0; LINE_MAX];
        match rustix::io::read(&self.fd, &mut chunk) {
            Ok(0) => self.open = false,
            Ok(count) => {
                self.watchers.write(&chunk[..count]);
                self.take(&chunk[..count], log);
            }
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            // A terminal returns an error when its last user is gone.
            Err(_) => self.open = false,
        }
        self.open
    }

    fn take(&mut self, mut bytes: &[u8], log: &mut Log) {
        let now = sys::now_ns();
        while !bytes.is_empty() {
            let room = LINE_MAX - self.line.len();
            let piece = &bytes[..bytes.len().min(room)];
            match piece.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    log.line(now, self.name, true, &[&self.line, &piece[..end]]);
                    self.line.clear();
                    bytes = &bytes[end + 1..];
                }
                None if piece.len() == room => {
                    log.line(now, self.name, false, &[&self.line, piece]);
                    self.line.clear();
                    bytes = &bytes[room..];
                }
                None => {
                    self.line.extend_from_slice(piece);
                    bytes = &[];
                }
            }
        }
        log.flush();
    }

    /// Reads what is available without waiting for more, and ends the current line.
    pub(super) fn finish(&mut self, log: &mut Log) {
        // The number of reads is limited. A process that escaped the container and keeps writing must not
        // delay the exit.
        for _ in 0..256 {
            if !self.pump(log) {
                break;
            }
        }
        if !self.line.is_empty() {
            log.line(sys::now_ns(), self.name, true, &[&self.line]);
            self.line = Vec::new();
        }
        log.flush();
    }
}

/// The log: the current file, and older files that became too large.
pub(super) struct Log {
    path: PathBuf,
    file: File,
    /// The number of bytes in the file.
    size: u64,
    limits: LogLimits,
    /// The number that the file gets when the next one is started.
    number: u64,
    pending: Vec<u8>,
    /// Whether lines are being lost.
    losing: bool,
    /// Whether the file ends in the middle of a line whose rest is pending.
    begun: bool,
    /// The error, until it is reported.
    pub(super) trouble: Option<String>,
}

impl Log {
    pub(super) fn open(path: &Path, limits: LogLimits) -> Result<Self, Fault> {
        let what = || format!("cannot open log {}", path.display());
        let file = open(path).creating(what)?;
        let size = file.metadata().creating(what)?.len();
        let path = path.to_owned();
        Ok(Log {
            path,
            file,
            size,
            limits,
            number: 1,
            pending: Vec::new(),
            losing: false,
            begun: false,
            trouble: None,
        })
    }

    fn line(&mut self, now_ns: u64, stream: &str, full: bool, parts: &[&[u8]]) {
        let _ = write!(self.pending, "{} {stream} {} ", Timestamp(now_ns), if full { 'F' } else { 'P' });
        for part in parts {
            self.pending.extend_from_slice(part);
        }
        self.pending.push(b'\n');
        if self.pending.len() > LINE_MAX {
            self.flush();
        }
    }

    /// Writes the pending lines. If the log cannot be written because the disk is full, the container must
    /// not stop. Its output is lost in the meantime, in whole lines.
    fn flush(&mut self) {
        let length = self.pending.len() as u64;
        let is_full = self.size > 0 && self.size + length > self.limits.max_bytes;
        // The end of a line belongs in the same file as its beginning.
        if is_full
            && !self.begun
            && let Err(error) = self.rotate()
        {
            self.pending.clear();
            self.lose(&error);
            return;
        }
        match lines::append(&mut self.file, &mut self.pending) {
            Ok(()) => {
                self.losing = false;
                self.begun = false;
                self.size += length;
            }
            Err(error) => {
                self.begun = !self.pending.is_empty();
                self.size = self.file.metadata().map_or(self.size, |metadata| metadata.len());
                self.lose(&error);
            }
        }
        self.pending.shrink_to(LINE_MAX);
    }

    fn lose(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.losing, true) {
            self.trouble = Some(sys::errno_text(error));
        }
    }

    /// Renames the file to its number, and starts a new one. Deletes the oldest file if there are too many.
    /// Readers rely on this order.
    fn rotate(&mut self) -> io::Result<()> {
        let full = numbered(&self.path, self.number);
        fs::rename(&self.path, &full)?;
        match open(&self.path) {
            Ok(file) => self.file = file,
            Err(error) => {
                fs::rename(&full, &self.path)?;
                return Err(error);
            }
        }
        self.number += 1;
        self.size = 0;
        let kept = u64::from(self.limits.max_files.max(2)) - 1;
        match self.number.checked_sub(kept + 1) {
            Some(oldest) if oldest > 0 => match fs::remove_file(numbered(&self.path, oldest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o640).open(path)
}

/// The path `PATH.NUMBER`.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// A time in RFC 3339 format with nanoseconds, in UTC.
struct Timestamp(u64);

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, nanos) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Converts days since 1970 to a date, with eras of 400 years that begin in March.
        let shifted = days + 719_468;
        let era_day = shifted % 146_097;
        let era_year = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
        let year_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
        let month_index = (5 * year_day + 2) / 153;
        let day = year_day - (153 * month_index + 2) / 5 + 1;
        let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
        let year = era_year + shifted / 146_097 * 400 + u64::from(month <= 2);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_split_lost_or_doubled_by_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path, LogLimits { max_bytes: 1000, max_files: 4 }).unwrap();
        for line in 0..200 {
            log.line(0, "stdout", true, &[format!("line {line}").as_bytes()]);
            log.flush();
        }
        let mut names: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let number = |name: &str| name.rsplit('.').next().unwrap().parse().unwrap_or(u64::MAX);
        names.sort_by_key(|name| number(name));
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(names[3], "0.log");
        let mut kept = Vec::new();
        for name in &names {
            let text = fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(text.len() <= 1000 && text.ends_with('\n'), "{name}");
            kept.extend(text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()));
        }
        let first = kept[0];
        assert!(first > 0 && kept == (first..200).collect::<Vec<_>>(), "{kept:?}");
    }

    #[test]
    fn a_log_that_cannot_be_moved_costs_lines_not_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path, LogLimits { max_bytes: 100, max_files: 2 }).unwrap();
        log.line(0, "stdout", true, &[b"first"]);
        log.flush();
        fs::remove_file(&path).unwrap();
        for _ in 0..10_000 {
            log.line(0, "stdout", true, &[&[b'x'; 200]]);
            log.flush();
        }
        assert!(log.trouble.is_some());
        assert!(log.pending.is_empty() && log.file.metadata().unwrap().len() < 100);
    }

    #[test]
    fn timestamps_are_civil() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_827_696, "2000-02-29T12:34:56.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000007Z"),
        ] {
            assert_eq!(Timestamp(seconds * 1_000_000_000 + 7).to_string(), text);
        }
    }
}
