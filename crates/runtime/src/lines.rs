//! Appends lines to files on a disk that may be full.

use std::io::{self, Write};

/// Appends lines. If the disk is full, the lines that do not fit are lost as a whole. The rest of a line that
/// was written only in part stays in `pending` until the next call.
///
/// # Errors
/// Lines were lost.
pub fn append(file: &mut impl Write, pending: &mut Vec<u8>) -> io::Result<()> {
    let mut written = 0;
    while written < pending.len() {
        let failed = match file.write(&pending[written..]) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(count) => {
                written += count;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        let begun = written > 0 && pending[written - 1] != b'\n';
        let rest = match pending[written..].iter().position(|byte| *byte == b'\n') {
            Some(end) if begun => written + end + 1,
            _ => written,
        };
        pending.truncate(rest);
        pending.drain(..written);
        return Err(failed);
    }
    pending.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that accepts this many bytes and no more.
    struct Disk {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room).min(3);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&bytes[..count]);
            self.room -= count;
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_lost_whole() {
        let all = b"first\nsecond\nthird\n";
        for room in 0..=all.len() {
            let mut disk = Disk { taken: Vec::new(), room };
            let mut pending = all.to_vec();
            assert_eq!(append(&mut disk, &mut pending).is_ok(), room == all.len(), "{room}");
            disk.room = 100;
            pending.extend_from_slice(b"last\n");
            append(&mut disk, &mut pending).unwrap();
            let text = String::from_utf8(disk.taken).unwrap();
            let expected = match room {
                0 => "last\n",
                1..=6 => "first\nlast\n",
                7..=13 => "first\nsecond\nlast\n",
                _ => "first\nsecond\nthird\nlast\n",
            };
            assert_eq!(text, expected, "{room}");
        }
    }
}
