//! The log of one container instance, which may consist of several files: the current file `N.log` and
//! rotated files `N.log.1`, `N.log.2` and so on. Of the rotated files, the highest number is the newest. When
//! a file is full, the runtime renames it, creates a new one, and then deletes the oldest if there are too
//! many.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_text::log_line::parse_line;

/// Maximum number of bytes of a file searched for its last lines.
const TAIL_MAX: u64 = 16 << 20;

/// Number of bytes read from one log before others are read.
const CHUNK: usize = 64 << 10;

/// Longer lines are emitted in pieces.
const LINE_MAX: usize = 64 << 10;

/// Maximum number of attempts to open a log that is rotated meanwhile.
const TRIES: usize = 100;

/// Reads a log across rotated files, without losing or repeating a line.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    /// The file being read, and the newer ones.
    files: VecDeque<Arc<File>>,
    /// The number of the last file, or the number it gets when it is rotated.
    number: u64,
    tail: Tail,
    /// Number of files deleted before they were read.
    lost: u64,
}

impl LogReader {
    /// Opens a log at its oldest kept line.
    ///
    /// # Errors
    /// Returns an error if it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (files, number) = open_from(path, 0)?;
        Ok(LogReader { path: path.to_owned(), files: files.into(), number, tail: Tail::default(), lost: 0 })
    }

    /// A log whose directory entries are already deleted.
    pub fn sealed(path: &Path, files: &[Arc<File>]) -> Self {
        let files = files.iter().cloned().collect();
        LogReader { path: path.to_owned(), files, number: u64::MAX, tail: Tail::default(), lost: 0 }
    }

    /// Skips all but the last `lines` lines.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read.
    pub fn skip_to_last(&mut self, lines: usize) -> io::Result<()> {
        let mut wanted = lines;
        for index in (0..self.files.len()).rev() {
            let (offset, found) = last_lines(&self.files[index], wanted)?;
            if found >= wanted || index == 0 {
                self.files.drain(..index);
                self.tail = Tail::from(offset);
                return Ok(());
            }
            wanted -= found;
        }
        Ok(())
    }

    /// Reads the next complete lines; `None` if there are none yet. `sealed` contains the log's files if
    /// their directory entries are deleted.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read.
    pub fn read(&mut self, sealed: Option<&[Arc<File>]>) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(file) = self.files.front().cloned() else { return Ok(None) };
            // This is checked before reading: nothing is appended to a file that has a successor.
            let is_last = self.files.len() == 1;
            let newer = match is_last {
                true => self.newer(&file, sealed)?,
                false => Vec::new(),
            };
            if self.tail.read_from(&file)? > 0 {
                self.files.extend(newer);
                return Ok(Some(self.tail.lines()));
            }
            self.files.extend(newer);
            if self.files.len() == 1 {
                return Ok(None);
            }
            self.files.pop_front();
            self.tail.restart();
        }
    }

    /// The number of files deleted before they could be read, since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// The files created after the last one.
    fn newer(&mut self, last: &File, sealed: Option<&[Arc<File>]>) -> io::Result<Vec<Arc<File>>> {
        let own = identity(&last.metadata()?);
        match std::fs::metadata(&self.path) {
            Ok(current) if identity(&current) == own => Ok(Vec::new()),
            Ok(_) => {
                let (files, number) = match open_from(&self.path, self.number + 1) {
                    Ok(found) => found,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                    Err(error) => return Err(error),
                };
                self.lost += (number - self.number).saturating_sub(files.len() as u64);
                self.number = number;
                Ok(files)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let files = sealed.unwrap_or_default();
                let is_own = |file: &&Arc<File>| file.metadata().is_ok_and(|m| identity(&m) == own);
                let after = files.iter().position(|file| is_own(&file)).map_or(files.len(), |at| at + 1);
                Ok(files[after..].to_vec())
            }
            Err(error) => Err(error),
        }
    }
}

/// The instances that have a log, oldest first.
pub fn attempts(dir: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.strip_suffix(".log")?.parse().ok();
    let mut found: Vec<u32> = entries.filter_map(|entry| number(entry.file_name())).collect();
    found.sort_unstable();
    found
}

/// Opens all files of a log.
pub(crate) fn open_all(path: &Path) -> io::Result<Vec<Arc<File>>> {
    open_from(path, 0).map(|(files, _)| files)
}

/// The last bytes of a log, at most `most`.
pub(crate) fn last_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for file in open_all(path)?.iter().rev() {
        let length = file.metadata()?.len();
        let wanted = length.min(most - bytes.len() as u64);
        let mut part = vec![0; usize::try_from(wanted).unwrap_or(0)];
        file.read_exact_at(&mut part, length - wanted)?;
        part.append(&mut bytes);
        bytes = part;
        if bytes.len() as u64 >= most {
            break;
        }
    }
    Ok(bytes)
}

/// Opens the files of a log from number `first` on, oldest first. Also returns the number that the last file
/// has or will get.
fn open_from(path: &Path, first: u64) -> io::Result<(Vec<Arc<File>>, u64)> {
    for _ in 0..TRIES {
        let numbers = numbers(path);
        let newest = numbers.last().copied().unwrap_or(0);
        let mut files = Vec::new();
        for number in numbers.into_iter().filter(|number| *number >= first) {
            match File::open(numbered(path, number)) {
                Ok(file) => files.push(Arc::new(file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let current = File::open(path);
        // The log was rotated meanwhile: the open files may not be the expected ones.
        if self::numbers(path).last().copied().unwrap_or(0) != newest {
            continue;
        }
        files.push(Arc::new(current?));
        return Ok((files, newest + 1));
    }
    Err(io::Error::other("the log gets new files faster than they can be opened"))
}

/// Numbers of the rotated files of a log, ascending.
fn numbers(path: &Path) -> Vec<u64> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| {
        entry.file_name().to_str()?.strip_prefix(name)?.strip_prefix('.')?.parse().ok()
    };
    let mut numbers: Vec<u64> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The message that output was deleted before it could be shown.
pub fn lost_text(container: &str, files: u64) -> String {
    format!(
        "{files} log file(s) of {container:?} were deleted before they could be shown: it writes faster than its output \
         is read; see --log-max-size and --log-max-files"
    )
}

/// The offset of the last lines of a file, and their number.
fn last_lines(file: &File, lines: usize) -> io::Result<(u64, usize)> {
    let length = file.metadata()?.len();
    let mut window = 64 << 10;
    loop {
        let begin = length.saturating_sub(window);
        let mut bytes = vec![0; usize::try_from(length - begin).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, begin)?;
        let mut starts = Vec::new();
        let mut at = begin;
        let mut goes_on = begin > 0;
        for entry in bytes.split_inclusive(|b| *b == b'\n') {
            if !goes_on {
                starts.push(at);
            }
            // If the first entry was cut off, it is unknown whether its line continues.
            let is_cut = at == begin && begin > 0;
            goes_on = is_cut || parse_line(entry).is_some_and(|line| line.partial);
            at += entry.len() as u64;
        }
        if starts.len() >= lines || begin == 0 || window >= TAIL_MAX {
            let first = starts.len().saturating_sub(lines);
            return Ok((starts.get(first).copied().unwrap_or(length), starts.len().min(lines)));
        }
        window *= 4;
    }
}

/// The read position in a file.
#[derive(Debug, Default)]
struct Tail {
    offset: u64,
    /// The start of an incomplete line.
    rest: Vec<u8>,
}

impl Tail {
    /// A position that starts at `offset`.
    fn from(offset: u64) -> Self {
        Tail { offset, rest: Vec::new() }
    }

    /// Moves to the start of another file; an incomplete line is kept.
    fn restart(&mut self) {
        self.offset = 0;
    }

    /// Reads more and returns the number of bytes read.
    fn read_from(&mut self, mut file: &File) -> io::Result<usize> {
        file.seek(SeekFrom::Start(self.offset))?;
        let before = self.rest.len();
        let read = file.take(CHUNK as u64).read_to_end(&mut self.rest)?;
        debug_assert_eq!(self.rest.len(), before + read);
        self.offset += read as u64;
        Ok(read)
    }

    /// Returns complete lines and keeps an incomplete one.
    fn lines(&mut self) -> Vec<u8> {
        match self.rest.iter().rposition(|b| *b == b'\n') {
            Some(end) => {
                let rest = self.rest.split_off(end + 1);
                std::mem::replace(&mut self.rest, rest)
            }
            None if self.rest.len() > LINE_MAX => std::mem::take(&mut self.rest),
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn log(lines: &[&str]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for (i, line) in lines.iter().enumerate() {
            writeln!(file, "2024-01-01T00:00:{i:02}.000000000Z stdout {line}").unwrap();
        }
        file
    }

    fn from(file: &File, offset: u64) -> String {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len() - offset).unwrap()];
        file.read_exact_at(&mut bytes, offset).unwrap();
        let lines = bytes.split_inclusive(|b| *b == b'\n').filter_map(parse_line);
        lines.map(|l| String::from_utf8_lossy(l.text).into_owned()).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn the_last_lines_are_whole_ones() {
        let file = log(&["F a", "P b1", "P b2", "F b3", "F c"]);
        for (lines, expected) in
            [(0, ""), (1, "c"), (2, "b1,b2,b3,c"), (3, "a,b1,b2,b3,c"), (9, "a,b1,b2,b3,c")]
        {
            assert_eq!(from(&file, last_lines(&file, lines).unwrap().0), expected, "{lines}");
        }
        let long = format!("F {}", "x".repeat(15_000));
        let many: Vec<&str> = std::iter::repeat_n(long.as_str(), 40).chain(["F end"]).collect();
        let file = log(&many);
        assert_eq!(from(&file, last_lines(&file, 30).unwrap().0).matches(',').count(), 29);
        let part = format!("P {}", "x".repeat(15_000));
        let one: Vec<&str> = std::iter::repeat_n(part.as_str(), 20).chain(["F end", "F last"]).collect();
        assert_eq!(last_lines(&log(&one), 2).unwrap().0, 0, "the first line is long");
        assert_eq!(last_lines(&log(&[]), 3).unwrap().0, 0);
    }

    /// Writes a log like the runtime does.
    struct Writer {
        path: PathBuf,
        file: File,
        number: u64,
        kept: u64,
        written: u64,
    }

    impl Writer {
        fn new(dir: &Path, kept: u64) -> Self {
            let path = dir.join("0.log");
            Writer { file: File::create(&path).unwrap(), path, number: 1, kept, written: 0 }
        }

        fn write(&mut self, lines: u64) {
            for _ in 0..lines {
                writeln!(self.file, "2024-01-01T00:00:00Z stdout F {}", self.written).unwrap();
                self.written += 1;
            }
        }

        fn rotate(&mut self) {
            std::fs::rename(&self.path, numbered(&self.path, self.number)).unwrap();
            self.file = File::create(&self.path).unwrap();
            self.number += 1;
            if self.number > self.kept + 1 {
                let _ = std::fs::remove_file(numbered(&self.path, self.number - self.kept - 1));
            }
        }
    }

    fn all(reader: &mut LogReader) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some(lines) = reader.read(None).unwrap() {
            let numbers = lines.split_inclusive(|b| *b == b'\n').filter_map(parse_line);
            seen.extend(numbers.map(|l| std::str::from_utf8(l.text).unwrap().parse::<u64>().unwrap()));
        }
        seen
    }

    #[test]
    fn a_reader_follows_from_file_to_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), 100);
        writer.write(3);
        writer.rotate();
        writer.write(2);
        let mut reader = LogReader::open(&writer.path).unwrap();
        assert_eq!(all(&mut reader), [0, 1, 2, 3, 4]);
        writer.write(1);
        writer.rotate();
        writer.rotate();
        writer.write(2);
        assert_eq!(all(&mut reader), [5, 6, 7]);
        assert_eq!((all(&mut reader), reader.take_lost()), (vec![], 0));
        for (wanted, expected) in [(0, vec![]), (1, vec![7]), (3, vec![5, 6, 7]), (4, vec![4, 5, 6, 7])] {
            let mut reader = LogReader::open(&writer.path).unwrap();
            reader.skip_to_last(wanted).unwrap();
            assert_eq!(all(&mut reader), expected, "{wanted}");
        }
        let bytes = last_bytes(&writer.path, 70).unwrap();
        assert!(bytes.len() == 70 && bytes.ends_with(b"F 7\n"), "{bytes:?}");
        let mut sealed = LogReader::sealed(Path::new("/no/such.log"), &open_all(&writer.path).unwrap());
        assert_eq!(all(&mut sealed), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_reader_goes_on_when_the_names_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), 100);
        writer.write(2);
        let mut reader = LogReader::open(&writer.path).unwrap();
        writer.rotate();
        writer.write(2);
        let files = open_all(&writer.path).unwrap();
        drop(dir);
        let mut seen = Vec::new();
        while let Some(lines) = reader.read(Some(&files)).unwrap() {
            seen.extend(lines);
        }
        assert_eq!(String::from_utf8(seen).unwrap().lines().count(), 4);
    }

    #[test]
    fn a_slow_reader_is_told_what_it_lost() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), 2);
        writer.write(1);
        let mut reader = LogReader::open(&writer.path).unwrap();
        for _ in 0..6 {
            writer.rotate();
            writer.write(1);
        }
        // The file that was open, then the files that were kept: two rotated ones and the current one.
        assert_eq!((all(&mut reader), reader.take_lost(), reader.take_lost()), (vec![0, 4, 5, 6], 3, 0));
    }

    /// A writer that never pauses, with a concurrent reader.
    #[test]
    fn no_line_is_lost_or_doubled_in_a_race() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), u64::MAX - 2);
        let mut reader = LogReader::open(&writer.path).unwrap();
        let writing = std::thread::spawn(move || {
            for round in 0..300 {
                writer.write(round % 17);
                writer.rotate();
                std::thread::yield_now();
            }
            writer.write(1);
            writer.written
        });
        let mut seen = Vec::new();
        let last = loop {
            let is_over = writing.is_finished();
            seen.extend(all(&mut reader));
            if is_over {
                break writing.join().unwrap();
            }
        };
        assert_eq!(reader.take_lost(), 0);
        assert!(seen == (0..last).collect::<Vec<_>>(), "{} of {last}", seen.len());
    }
}
