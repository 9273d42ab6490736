//! Reads untrusted tar streams (ustar, GNU and PAX), as image layers use them.
//!
//! This is written by hand because the library reads names and extensions of any length into memory, and
//! every size in a header is untrusted. Here, everything that is kept in memory has a limit ([`Sizes`]).
//! Sparse files are reported with their holes, instead of as megabytes of zeros.

use std::io::{self, Read};

/// The size of tar's blocks.
const BLOCK: usize = 512;
/// The maximum number of parts of a sparse file. A file with more of them is an attack.
const SPARSE_PARTS_MAX: usize = 100_000;

/// Limits on what is kept in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// The length of a path or of a link's target.
    pub(super) name: usize,
    /// The size of the extensions (PAX records) of one entry.
    pub(super) extensions: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        // No file system accepts a longer path, and extended attributes are limited to 64 KiB each.
        Sizes { name: 4095, extensions: 1 << 20 }
    }
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    CharDevice,
    BlockDevice,
    Fifo,
    /// Another type letter.
    Unknown(u8),
}

/// A part of a sparse file that has content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// One entry of an archive, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) path: Vec<u8>,
    /// The target of a link; empty if there is none.
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds since 1970. PAX records may be more precise.
    pub(super) mtime: i64,
    /// The number of bytes in the archive.
    pub(super) stored: u64,
    /// The size of the file, including holes.
    pub(super) size: u64,
    pub(super) device: (u32, u32),
    /// The parts that the stored bytes belong to, for a file with holes.
    pub(super) sparse: Option<Vec<Part>>,
    /// The PAX records as (key, value).
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A source that can skip bytes.
pub(super) trait Skip: Read {
    /// Skips exactly this many bytes.
    fn skip(&mut self, count: u64) -> io::Result<()>
    where
        Self: Sized,
    {
        let skipped = io::copy(&mut self.by_ref().take(count), &mut io::sink())?;
        if skipped < count { Err(cut()) } else { Ok(()) }
    }
}

/// An archive that is read from its beginning to its end.
pub(super) struct Archive<R> {
    source: R,
    sizes: Sizes,
    /// The number of unread bytes of the current entry, including the padding of its last block.
    content: u64,
    padding: u64,
    /// The number of bytes read or skipped so far.
    position: u64,
    ended: bool,
}

impl<R: Skip> Archive<R> {
    pub(super) fn new(source: R, sizes: Sizes) -> Self {
        Archive { source, sizes, content: 0, padding: 0, position: 0, ended: false }
    }

    /// The source, positioned after the archive.
    pub(super) fn into_inner(self) -> R {
        self.source
    }

    /// The position of the current entry's content, if none of it was read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry. Unread content of the previous one is skipped.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let (mut long_path, mut long_link, mut records) = (None, None, None);
        loop {
            self.finish_entry()?;
            let Some(header) = self.header()? else { return Ok(None) };
            match header.flag() {
                b'L' => long_path = Some(self.long_name(&header, "path")?),
                b'K' => long_link = Some(self.long_name(&header, "link target")?),
                b'x' => records = Some(self.extensions(&header)?),
                // These records apply to all following entries. None of them matters here.
                b'g' => {
                    self.extensions(&header)?;
                }
                _ => return self.entry(&header, long_path, long_link, records.unwrap_or_default()).map(Some),
            }
        }
    }

    /// Reads content of the current entry. Returns 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        loop {
            match self.source.read(&mut buffer[..most]) {
                Ok(0) => return Err(cut()),
                Ok(count) => {
                    self.content -= count as u64;
                    self.position += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn finish_entry(&mut self) -> io::Result<()> {
        let left = self.content.saturating_add(self.padding);
        if left > 0 {
            self.source.skip(left)?;
            self.position = self.position.saturating_add(left);
        }
        (self.content, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header; `None` at the end.
    fn header(&mut self) -> io::Result<Option<Header>> {
        if self.ended {
            return Ok(None);
        }
        let Some(block) = self.block()? else {
            self.ended = true;
            return Ok(None);
        };
        if block.iter().all(|byte| *byte == 0) {
            self.ended = true;
            return Ok(None);
        }
        let header = Header(block);
        if !header.is_intact() {
            return Err(invalid("wrong header checksum: not a tar archive, or a damaged one"));
        }
        Ok(Some(header))
    }

    /// A whole block; `None` if the source has ended.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.source.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(cut()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.position += BLOCK as u64;
        Ok(Some(block))
    }

    fn begin_content(&mut self, stored: u64) {
        self.content = stored;
        self.padding = stored.wrapping_neg() % BLOCK as u64;
    }

    /// All content of the current entry, at most `limit` bytes.
    fn content(&mut self, header: &Header, limit: usize, what: &str) -> io::Result<Vec<u8>> {
        let size = header.size()?;
        if size > limit as u64 {
            return Err(invalid(format!(
                "a header's {what} has {size} bytes, more than the {limit} allowed"
            )));
        }
        self.begin_content(size);
        let mut bytes = vec![0; size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += self.read(&mut bytes[filled..])?;
        }
        Ok(bytes)
    }

    fn long_name(&mut self, header: &Header, what: &str) -> io::Result<Vec<u8>> {
        // The limit includes the zero byte at the end.
        let mut name = self.content(header, self.sizes.name + 1, what)?;
        name.truncate(text(&name).len());
        Ok(name)
    }

    fn extensions(&mut self, header: &Header) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let limit = self.sizes.extensions;
        let bytes = self.content(header, limit, "extensions")?;
        records(&bytes).ok_or_else(|| invalid("a header's extensions (PAX records) are malformed"))
    }

    fn entry(
        &mut self,
        header: &Header,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
        records: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> io::Result<Entry> {
        let record = |key: &str| {
            let found = records.iter().rev().find(|(k, _)| k == key.as_bytes());
            found.map(|(_, value)| value.as_slice()).filter(|value| !value.is_empty())
        };
        if records.iter().any(|(key, _)| key.starts_with(b"GNU.sparse.")) {
            return Err(invalid("a sparse file in PAX format is not supported; use tar --format=gnu"));
        }
        let number = |key: &str, or: io::Result<u64>| match record(key) {
            Some(value) => decimal(value).ok_or_else(|| invalid(format!("PAX record {key} is not a number"))),
            None => or,
        };
        let path = record("path").map(<[u8]>::to_vec).or(long_path).unwrap_or_else(|| header.path());
        let link = record("linkpath")
            .map(<[u8]>::to_vec)
            .or(long_link)
            .unwrap_or_else(|| text(&header.0[157..257]).to_vec());
        for (name, what) in [(&path, "path"), (&link, "link target")] {
            if name.len() > self.sizes.name {
                let (length, limit) = (name.len(), self.sizes.name);
                return Err(invalid(format!("a {what} has {length} bytes, more than the {limit} allowed")));
            }
        }
        let kind = kind(header.flag(), &path);
        let has_content = matches!(kind, Kind::File | Kind::Unknown(_));
        let stored = if has_content { number("size", header.size())? } else { 0 };
        let (size, sparse) = match header.flag() {
            b'S' => self.sparse(header, stored)?,
            _ => (stored, None),
        };
        let device = match kind {
            Kind::CharDevice | Kind::BlockDevice => (header.device(329..337)?, header.device(337..345)?),
            _ => (0, 0),
        };
        let entry = Entry {
            kind,
            link,
            mode: (header.number(100..108)? & 0o7777) as u32,
            uid: number("uid", header.number(108..116))?,
            gid: number("gid", header.number(116..124))?,
            mtime: i64::try_from(header.number(136..148)?).unwrap_or(0),
            stored,
            size,
            device,
            sparse,
            path,
            records,
        };
        self.begin_content(stored);
        Ok(entry)
    }

    /// The real size and the parts of a sparse file in the old GNU format.
    fn sparse(&mut self, header: &Header, stored: u64) -> io::Result<(u64, Option<Vec<Part>>)> {
        let size = header.number(483..495)?;
        let mut parts = Vec::new();
        take_parts(&header.0[386..482], &mut parts)?;
        let mut more = header.0[482] != 0;
        while more {
            let block = self.block()?.ok_or_else(cut)?;
            take_parts(&block[..504], &mut parts)?;
            more = block[504] != 0;
        }
        let (mut end, mut sum) = (0_u64, 0_u64);
        for part in &parts {
            let next = part.offset.checked_add(part.length).filter(|next| *next <= size);
            let (Some(next), true) = (next, part.offset >= end) else {
                return Err(invalid("the parts of a sparse file overlap or lie beyond its end"));
            };
            end = next;
            sum += part.length;
        }
        if sum != stored {
            return Err(invalid(format!("a sparse file's parts have {sum} bytes, but {stored} are stored")));
        }
        Ok((size, Some(parts)))
    }
}

fn take_parts(table: &[u8], parts: &mut Vec<Part>) -> io::Result<()> {
    for slot in table.chunks_exact(24) {
        if slot.iter().all(|byte| *byte == 0) || slot[12] == 0 {
            break;
        }
        let (offset, length) = (number(&slot[..12])?, number(&slot[12..])?);
        parts.push(Part { offset, length });
    }
    match parts.len() > SPARSE_PARTS_MAX {
        true => Err(invalid(format!("a sparse file has more than {SPARSE_PARTS_MAX} parts"))),
        false => Ok(()),
    }
}

fn kind(flag: u8, path: &[u8]) -> Kind {
    match flag {
        // The oldest tar programs wrote directories like this.
        b'0' | 0 if path.ends_with(b"/") => Kind::Directory,
        b'0' | 0 | b'7' | b'S' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' => Kind::CharDevice,
        b'4' => Kind::BlockDevice,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        other => Kind::Unknown(other),
    }
}

struct Header([u8; BLOCK]);

impl Header {
    fn flag(&self) -> u8 {
        self.0[156]
    }

    fn is_intact(&self) -> bool {
        let Ok(said) = number(&self.0[148..156]) else { return false };
        let counted = |at: usize| if (148..156).contains(&at) { b' ' } else { self.0[at] };
        let unsigned: u64 = (0..BLOCK).map(|at| u64::from(counted(at))).sum();
        // Some old programs added up signed characters.
        let signed: i64 = (0..BLOCK).map(|at| i64::from(counted(at).cast_signed())).sum();
        said == unsigned || i64::try_from(said) == Ok(signed)
    }

    fn number(&self, at: std::ops::Range<usize>) -> io::Result<u64> {
        number(&self.0[at])
    }

    fn device(&self, at: std::ops::Range<usize>) -> io::Result<u32> {
        u32::try_from(self.number(at)?).map_err(|_| invalid("a device's number is out of range"))
    }

    fn size(&self) -> io::Result<u64> {
        let size = self.number(124..136)?;
        match i64::try_from(size) {
            Ok(_) => Ok(size),
            Err(_) => Err(invalid(format!("an entry of {size} bytes is out of range"))),
        }
    }

    fn path(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        // GNU's own format uses the prefix field for other purposes.
        let prefix = if &self.0[257..263] == b"ustar\0" { text(&self.0[345..500]) } else { b"" };
        match prefix.is_empty() {
            true => name.to_vec(),
            false => [prefix, b"/", name].concat(),
        }
    }
}

/// The content of a field up to its zero byte.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses octal digits, or GNU's binary form.
fn number(field: &[u8]) -> io::Result<u64> {
    let Some((&first, rest)) = field.split_first() else { return Ok(0) };
    if first & 0x80 != 0 {
        if first & 0x40 != 0 {
            return Ok(0); // negative: only times before 1970 are
        }
        let start = u64::from(first & 0x3f);
        return rest
            .iter()
            .try_fold(start, |value, byte| Some(value.checked_mul(256)? | u64::from(*byte)))
            .ok_or_else(|| invalid("a number in a header is out of range"));
    }
    let digits = text(field);
    let digits = digits.trim_ascii();
    digits
        .iter()
        .try_fold(0_u64, |value, digit| match digit {
            b'0'..=b'7' => value.checked_mul(8).map(|value| value | u64::from(digit - b'0')),
            _ => None,
        })
        .ok_or_else(|| invalid("a number in a header is malformed"))
}

fn decimal(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|value| i64::try_from(*value).is_ok())
}

/// Parses repeated `LENGTH KEY=VALUE\n`.
fn records(mut bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    // Some programs add zeros as padding.
    while !bytes.is_empty() && bytes[0] != 0 {
        let blank = bytes.iter().take(21).position(|byte| *byte == b' ')?;
        let length = usize::try_from(decimal(&bytes[..blank])?).ok()?;
        let record = bytes.get(blank + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        found.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[length..];
    }
    Some(found)
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle of an entry")
}

#[cfg(test)]
mod tests;
