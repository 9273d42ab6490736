//! Unpacks a layer's tar stream into a directory for overlayfs.
//!
//! Whiteouts get overlayfs' form: `.wh.NAME` becomes a character device 0:0 called NAME, and `.wh..wh..opq`
//! an extended attribute of its directory.
//!
//! Nothing in the archive can reach outside the directory: [`Tree`] resolves every parent inside it, and the
//! last component of a path is never followed. Nothing can use more resources than the [`Budget`] allows.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawMode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fsetxattr, linkat, lsetxattr, makedev, mkdirat, mknodat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::archive::{Archive, Entry, Kind, Sizes, Skip};
use super::digest::{Digest, HashingReader};
use super::fault::Fault;
use super::limits::{Budget, Counted, Metered};
use super::tree::{Tree, is_whiteout_at, make_whiteout, open_readable, path_of, set_opaque};
use outrigger_runtime::rootless;
use outrigger_runtime::tree as foreign;

/// The maximum size of all directory names of a layer, which are kept in memory until its end.
const DIRECTORY_NAMES_MAX: usize = 64 << 20;

/// Unpacks a layer into `dir`, which must be new and empty. Checks the digest of the stream itself (`blob`,
/// if known) and of the tar in it. Returns the highest user or group id of its files. On failure, `dir` is
/// left partly filled.
pub(super) fn unpack_layer(
    stream: impl Read,
    dir: &Path,
    blob: Option<&Digest>,
    diff_id: &Digest,
    budget: &Budget,
) -> Result<u32, Fault> {
    budget.check_space(dir, 0).map_err(|error| Fault::io("cannot unpack the layer", &error))?;
    let (counted, count) = Counted::new(HashingReader::new(stream));
    let mut compressed = BufReader::with_capacity(128 << 10, counted);
    let (unpacked, actual) = {
        let plain = Metered::new(decompress(&mut compressed)?, budget, dir, count);
        let mut archive = Archive::new(HashingReader::new(plain), Sizes::default());
        let unpacked = Unpacker::new(dir, budget)?.unpack(&mut archive);
        if blob.is_none() {
            unpacked.clone()?;
        }
        // The digest is checked even after an error, because a damaged stream explains the error better.
        let actual = archive.into_inner().finish();
        (unpacked, actual.map(|(digest, _)| digest))
    };
    if let Some(expected) = blob {
        let (digest, _) = compressed.into_inner().into_inner().finish().map_err(unreadable)?;
        if digest != *expected {
            return Err(digest_mismatch("layer", expected, &digest));
        }
    }
    let greatest_id = unpacked?;
    let actual = actual.map_err(unreadable)?;
    if actual != *diff_id {
        return Err(digest_mismatch("unpacked layer", diff_id, &actual));
    }
    Ok(greatest_id)
}

/// Reads a layer to its end, and checks the digest of the tar in it. `dir` is on the file system whose free
/// space is checked.
pub(super) fn check_layer(
    stream: impl Read,
    dir: &Path,
    diff_id: &Digest,
    budget: &Budget,
) -> Result<(), Fault> {
    let (counted, count) = Counted::new(stream);
    let mut compressed = BufReader::with_capacity(128 << 10, counted);
    let plain = Metered::new(decompress(&mut compressed)?, budget, dir, count);
    let (actual, _) = HashingReader::new(plain).finish().map_err(unreadable)?;
    match actual == *diff_id {
        true => Ok(()),
        false => Err(digest_mismatch("unpacked layer", diff_id, &actual)),
    }
}

/// The error for content that does not match its digest.
pub(super) fn digest_mismatch(what: &str, expected: &Digest, actual: &Digest) -> Fault {
    Fault::Damaged(format!(
        "digest mismatch: {what} should be {expected} but is {actual}; its content was damaged or replaced"
    ))
}

fn unreadable(error: io::Error) -> Fault {
    Fault::unreadable("the layer cannot be read", &error)
}

/// Decompresses a stream. The compression is detected by the first bytes, because media types are not always
/// correct.
pub(super) fn decompress<'a>(stream: &'a mut (impl io::BufRead + 'a)) -> Result<Box<dyn Read + 'a>, Fault> {
    let start = stream.fill_buf().map_err(unreadable)?;
    if start.starts_with(&[0x1f, 0x8b]) {
        Ok(Box::new(MultiGzDecoder::new(stream)))
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || is_skippable_frame(start) {
        Ok(Box::new(zstd::Decoder::with_buffer(stream).map_err(unreadable)?))
    } else if start.starts_with(b"BZh") || start.starts_with(&[0xfd, b'7', b'z', b'X', b'Z']) {
        Err(Fault::new("the layer is compressed with bzip2 or xz; gzip, zstd and plain tar are supported"))
    } else {
        Ok(Box::new(stream))
    }
}

/// Whether a stream begins with a skippable zstd frame, as those of zstd:chunked and pzstd do.
fn is_skippable_frame(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

impl<R: Read> Skip for HashingReader<R> {}

struct Unpacker<'a> {
    tree: Tree,
    /// The times of directories. They are set at the end, because filling a directory changes its time.
    dir_times: Vec<(PathBuf, Timestamps)>,
    dir_names: usize,
    /// The highest user or group id of the files.
    greatest_id: u32,
    buffer: Vec<u8>,
    privileged: bool,
    budget: &'a Budget,
}

/// The attributes of one path in the archive.
struct Attributes {
    mode: Mode,
    uid: u32,
    gid: u32,
    times: Timestamps,
    xattrs: Vec<(OsString, Vec<u8>)>,
}

impl<'a> Unpacker<'a> {
    fn new(dir: &Path, budget: &'a Budget) -> Result<Self, Fault> {
        Ok(Unpacker {
            tree: Tree::open(dir)?,
            dir_times: Vec::new(),
            dir_names: 0,
            greatest_id: 0,
            buffer: vec![0; 128 << 10],
            privileged: rustix::process::geteuid().is_root() && !rootless::one_id_only(),
            budget,
        })
    }

    fn unpack(mut self, archive: &mut Archive<impl Skip>) -> Result<u32, Fault> {
        while let Some(entry) = archive.next().map_err(unreadable)? {
            self.budget.take_file().map_err(unreadable)?;
            self.entry(archive, &entry).map_err(|problem| {
                let name = String::from_utf8_lossy(&entry.path).into_owned();
                match problem {
                    Problem::Io(error) => Fault::unreadable(format_args!("cannot unpack {name:?}"), &error),
                    Problem::Refused(why) => {
                        Fault::new(format!("the layer's entry {name:?} is refused: {why}"))
                    }
                }
            })?;
        }
        for (path, times) in self.dir_times.iter().rev() {
            // If a later entry replaced the directory, there is nothing to set.
            if let Ok(fd) = self.tree.open_existing_dir(path) {
                let _ = rustix::fs::futimens(&fd, times);
            }
        }
        Ok(self.greatest_id)
    }

    fn entry(&mut self, archive: &mut Archive<impl Skip>, entry: &Entry) -> Result<(), Problem> {
        let path = clean(&entry.path)?;
        let (depth, most) = (path.components().count(), self.budget.depth());
        if depth > most {
            return Err(Problem::Refused(format!(
                "it is {depth} directories deep, more than the {most} allowed; if you trust the image, raise the \
                 limit with --image-limits depth={depth}"
            )));
        }
        let attributes = attributes(entry)?;
        self.greatest_id = self.greatest_id.max(attributes.uid).max(attributes.gid);
        let Some(last) = path.file_name().map(OsStr::to_owned) else {
            return self.root(entry.kind, &attributes);
        };
        let parent_path = path.parent().unwrap_or(Path::new(""));
        if path.components().any(|c| c.as_os_str().as_bytes().starts_with(b".wh..wh.")) {
            if last == ".wh..wh..opq" {
                let parent = self.tree.dir(parent_path)?;
                set_opaque(&parent)?;
            }
            return Ok(()); // all other names are for AUFS itself
        }
        let parent = self.tree.dir(parent_path)?;
        if let Some(hidden) = last.as_bytes().strip_prefix(b".wh.") {
            return self.whiteout(&parent, OsStr::from_bytes(hidden));
        }
        match entry.kind {
            Kind::Directory => {
                self.directory(&parent, &last, &attributes)?;
                return self.remember_times(path, attributes.times);
            }
            Kind::File => {
                self.clear(&parent, &last)?;
                return self.file(archive, entry, &parent, &last, &attributes);
            }
            Kind::HardLink => return self.hard_link(&clean(target(entry)?)?, &path, &parent, &last),
            Kind::Symlink => {
                let target = OsStr::from_bytes(target(entry)?);
                self.clear(&parent, &last)?;
                symlinkat(target, &parent, &last)?;
            }
            Kind::CharDevice | Kind::BlockDevice | Kind::Fifo => {
                self.clear(&parent, &last)?;
                if !self.device(entry, &parent, &last)? {
                    return Ok(());
                }
            }
            Kind::Unknown(flag) => {
                return Err(Problem::Refused(format!("its type {:?} is unknown", char::from(flag))));
            }
        }
        self.apply_at(&parent, &last, entry.kind == Kind::Symlink, &attributes)
    }

    fn remember_times(&mut self, path: PathBuf, times: Timestamps) -> Result<(), Problem> {
        self.dir_names += path.as_os_str().len();
        if self.dir_names > DIRECTORY_NAMES_MAX {
            return Err(Problem::Refused(format!(
                "the names of the layer's directories have more than {DIRECTORY_NAMES_MAX} bytes"
            )));
        }
        self.dir_times.push((path, times));
        Ok(())
    }

    /// Applies the entry `./`, which is the root itself.
    fn root(&mut self, kind: Kind, attributes: &Attributes) -> Result<(), Problem> {
        if kind != Kind::Directory {
            return Err(Problem::Refused("only a directory can be the root".into()));
        }
        let root = self.tree.dir(Path::new(""))?;
        self.apply_fd(&open_readable(&root)?, attributes)?;
        self.remember_times(PathBuf::new(), attributes.times.clone())
    }

    /// Hides NAME in lower layers. An entry of that name in this layer stays visible, before and after the
    /// whiteout.
    fn whiteout(&mut self, parent: &OwnedFd, name: &OsStr) -> Result<(), Problem> {
        if name.is_empty() || name == "." || name == ".." {
            return Err(Problem::Refused("its whiteout does not name a file".into()));
        }
        match self.tree.kind_of(parent, name)? {
            None => Ok(make_whiteout(parent, name)?),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                set_opaque(&openat(
                    parent,
                    name,
                    OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::empty(),
                )?)?;
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    fn directory(&mut self, parent: &OwnedFd, name: &OsStr, attributes: &Attributes) -> Result<(), Problem> {
        let existing = self.tree.kind_of(parent, name)?;
        let is_dir = |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let opaque = existing.as_ref().is_some_and(|stat| is_whiteout_at(parent, name, stat));
        if !existing.as_ref().is_some_and(is_dir) {
            self.clear(parent, name)?;
            mkdirat(parent, name, Mode::RWXU)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(parent, name, flags, Mode::empty())?;
        if opaque {
            set_opaque(&dir)?;
        }
        self.apply_fd(&dir, attributes)
    }

    fn file(
        &mut self,
        archive: &mut Archive<impl Skip>,
        entry: &Entry,
        parent: &OwnedFd,
        name: &OsStr,
        attributes: &Attributes,
    ) -> Result<(), Problem> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        match &entry.sparse {
            None => loop {
                match archive.read(&mut self.buffer)? {
                    0 => break,
                    count => file.write_all(&self.buffer[..count])?,
                }
            },
            Some(parts) => {
                // Stored bytes are counted when they are read. Holes are counted here.
                self.budget.take(entry.size - entry.stored)?;
                file.set_len(entry.size)?;
                for part in parts {
                    let end = part.offset + part.length;
                    let mut at = part.offset;
                    while at < end {
                        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.buffer.len());
                        let count = archive.read(&mut self.buffer[..most])?;
                        file.write_all_at(&self.buffer[..count], at)?;
                        at += count as u64;
                    }
                }
            }
        }
        self.apply_fd(&file, attributes)?;
        rustix::fs::futimens(&file, &attributes.times)?;
        Ok(())
    }

    fn hard_link(
        &mut self,
        target: &Path,
        path: &Path,
        parent: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), Problem> {
        if target == path {
            return Ok(()); // otherwise the file would be removed before it is linked to itself
        }
        let missing =
            || Problem::Refused(format!("it links to {target:?}, which this layer does not contain"));
        let target_name = target.file_name().ok_or_else(missing)?;
        let target_parent =
            self.tree.open_existing_dir(target.parent().unwrap_or(Path::new(""))).map_err(|_| missing())?;
        match self.tree.kind_of(&target_parent, target_name)? {
            None => return Err(missing()),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(Problem::Refused(format!("it links to the directory {target:?}")));
            }
            Some(_) => {}
        }
        self.clear(parent, name)?;
        // AT_SYMLINK_FOLLOW is not set: a hard link to a symbolic link is another name of that link.
        Ok(linkat(&target_parent, target_name, parent, name, AtFlags::empty())?)
    }

    /// Creates a device. Returns false if that is not possible without privileges; containers have their own
    /// /dev anyway.
    fn device(&mut self, entry: &Entry, parent: &OwnedFd, name: &OsStr) -> Result<bool, Problem> {
        let (major, minor) = entry.device;
        let (file_type, device) = match entry.kind {
            Kind::Fifo => (FileType::Fifo, 0),
            Kind::CharDevice => (FileType::CharacterDevice, makedev(major, minor)),
            Kind::BlockDevice => (FileType::BlockDevice, makedev(major, minor)),
            _ => return Ok(false),
        };
        match mknodat(parent, name, file_type, Mode::RUSR | Mode::WUSR, device) {
            Ok(()) => Ok(true),
            Err(Errno::PERM | Errno::ACCESS) => {
                tracing::debug!(name = %name.display(), "device node left out: no permission to make it");
                Ok(false)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes an existing entry, because the later entry of a name wins.
    fn clear(&mut self, parent: &OwnedFd, name: &OsStr) -> Result<(), Problem> {
        match self.tree.kind_of(parent, name)? {
            None => Ok(()),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                self.tree.forget();
                Ok(foreign::remove_at(parent.as_fd(), name)?)
            }
            Some(_) => {
                self.tree.forget();
                Ok(unlinkat(parent, name, AtFlags::empty())?)
            }
        }
    }

    /// Sets the attributes of a file. The owner is set first, because changing it clears set-user-id bits and
    /// capabilities.
    fn apply_fd(&self, fd: impl AsFd, attributes: &Attributes) -> Result<(), Problem> {
        let owner = (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
        self.tolerate(rustix::fs::fchown(&fd, owner.0, owner.1), attributes)?;
        rustix::fs::fchmod(&fd, attributes.mode)?;
        for (key, value) in &attributes.xattrs {
            self.tolerate_xattr(key, fsetxattr(&fd, key, value, XattrFlags::empty()))?;
        }
        Ok(())
    }

    fn apply_at(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        link: bool,
        attributes: &Attributes,
    ) -> Result<(), Problem> {
        let owner = (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
        self.tolerate(chownat(parent, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW), attributes)?;
        if !link {
            chmodat(parent, name, attributes.mode, AtFlags::empty())?;
        }
        for (key, value) in &attributes.xattrs {
            let path = path_of(parent).join(name);
            self.tolerate_xattr(key, lsetxattr(path, key, value, XattrFlags::empty()))?;
        }
        Ok(utimensat(parent, name, &attributes.times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Ignores a failure to set owners without privileges: then everything belongs to the only available
    /// user.
    fn tolerate(&self, result: rustix::io::Result<()>, attributes: &Attributes) -> Result<(), Problem> {
        match result {
            Err(Errno::PERM | Errno::INVAL) if !self.privileged => {
                static ONCE: std::sync::Once = std::sync::Once::new();
                ONCE.call_once(|| {
                    tracing::warn!(
                        "all files of images belong to the user of the container, whatever the images say: without root, \
                         others take ranges in /etc/subuid and /etc/subgid; `outrigger doctor` says how to get them"
                    );
                });
                Ok(())
            }
            Err(Errno::INVAL) if rootless::standing().is_rootless() => {
                let (uid, gid, count) = (attributes.uid, attributes.gid, rootless::standing().uids().count());
                Err(Problem::Refused(format!(
                    "it belongs to user {uid} and group {gid}, and without root there are only {count} ids; have root \
                     add more to /etc/subuid and /etc/subgid"
                )))
            }
            other => Ok(other?),
        }
    }

    /// Ignores extended attributes that the file system or the kernel does not support, as other runtimes do.
    fn tolerate_xattr(&self, key: &OsStr, result: rustix::io::Result<()>) -> Result<(), Problem> {
        match result {
            Err(errno @ (Errno::PERM | Errno::NOTSUP | Errno::INVAL)) => {
                tracing::debug!(key = %key.display(), %errno, "extended attribute left out");
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

/// Why an entry could not be unpacked.
pub(super) enum Problem {
    /// A system error.
    Io(io::Error),
    /// The archive requests something that is forbidden.
    Refused(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Problem::Io(error)
    }
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Self {
        Problem::Io(errno.into())
    }
}

/// A path of the archive, as a relative path without `.` and `..`.
fn clean(name: &[u8]) -> Result<PathBuf, Problem> {
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::ParentDir => {
                return Err(Problem::Refused("its path leads out of the layer through '..'".into()));
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(path)
}

fn target(entry: &Entry) -> Result<&[u8], Problem> {
    match entry.link.is_empty() {
        true => Err(Problem::Refused("it has no link target".into())),
        false => Ok(&entry.link),
    }
}

fn attributes(entry: &Entry) -> Result<Attributes, Problem> {
    let id = |id: u64| {
        // For the kernel, the highest number means "leave unchanged".
        u32::try_from(id)
            .ok()
            .filter(|id| *id != u32::MAX)
            .ok_or_else(|| Problem::Refused(format!("its owner {id} is out of range")))
    };
    let (uid, gid) = (id(entry.uid)?, id(entry.gid)?);
    let mode = Mode::from_raw_mode(entry.mode as RawMode);
    let mut mtime = Timespec { tv_sec: entry.mtime, tv_nsec: 0 };
    let mut xattrs = Vec::new();
    for (key, value) in &entry.records {
        if key == b"mtime" {
            mtime = std::str::from_utf8(value).ok().and_then(parse_time).unwrap_or(mtime);
        } else if let Some(name) = key.strip_prefix(b"SCHILY.xattr.")
            && may_be_set(name)
        {
            xattrs.push((OsString::from_vec(name.to_vec()), value.clone()));
        }
    }
    Ok(Attributes {
        mode,
        uid,
        gid,
        times: Timestamps { last_access: mtime, last_modification: mtime },
        xattrs,
    })
}

/// Whether an image may set this extended attribute. It may set capabilities of its programs, and attributes
/// that users may set themselves. With overlayfs' own attributes, a layer could change the layers below it.
/// Labels and signatures of security modules (SELinux, IMA, Smack) belong to the host.
fn may_be_set(name: &[u8]) -> bool {
    name == b"security.capability" || name.starts_with(b"user.") && !name.starts_with(b"user.overlay.")
}

/// Parses `seconds[.fraction]`, which is negative before 1970.
fn parse_time(text: &str) -> Option<Timespec> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: i64 = digits.parse().ok()?;
    // The fraction of a negative time counts backwards, but tv_nsec never does.
    Some(match whole.starts_with('-') && nanos > 0 {
        true => Timespec { tv_sec: seconds - 1, tv_nsec: 1_000_000_000 - nanos },
        false => Timespec { tv_sec: seconds, tv_nsec: nanos },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tar::EntryType;

    use super::super::limits::ImageLimits;
    use super::*;

    #[test]
    fn times_of_pax_records() {
        let time = |text| parse_time(text).map(|t| (t.tv_sec, t.tv_nsec));
        assert_eq!(time("12"), Some((12, 0)));
        assert_eq!(time("12.5"), Some((12, 500_000_000)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("1.0000000019"), Some((1, 1)));
        assert_eq!(time("x"), None);
    }

    #[test]
    fn paths_stay_inside() {
        let cleaned = |name: &str| clean(name.as_bytes()).ok();
        assert_eq!(cleaned("./a//b/."), Some("a/b".into()));
        assert_eq!(cleaned("/etc/passwd"), Some("etc/passwd".into()));
        assert_eq!(cleaned("./"), Some("".into()));
        assert_eq!(cleaned("../x"), None);
        assert_eq!(cleaned("a/../../x"), None);
        assert_eq!(cleaned("a/.."), None);
    }

    /// One entry of a layer that tries to write outside its directory.
    #[derive(Debug, Clone)]
    struct Hostile {
        kind: EntryType,
        name: String,
        link: String,
    }

    fn hostile() -> impl Strategy<Value = Hostile> {
        let part = prop_oneof![
            6 => "[abc]",
            1 => Just("..".to_owned()),
            1 => "\\.wh\\.[abc]",
            1 => Just(".wh..wh..opq".to_owned())
        ];
        let name = prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"));
        let link = prop_oneof![
            "[abc](/[abc]){0,2}",
            "/[abc](/[abc]){0,2}",
            "(\\.\\./){1,4}(canary(/secret)?|[abc])?",
            Just("OUTSIDE".to_owned()),
            Just("OUTSIDE/secret".to_owned()),
        ];
        let kind = prop::sample::select(vec![
            EntryType::Regular,
            EntryType::Directory,
            EntryType::Symlink,
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Fifo,
        ]);
        (kind, name, link).prop_map(|(kind, name, link)| Hostile { kind, name, link })
    }

    proptest! {
        /// Nothing outside the layer is created, changed or linked to, wherever its links point.
        #[test]
        fn nothing_outside_is_touched(entries in prop::collection::vec(hostile(), 1..12)) {
            use std::os::unix::fs::MetadataExt;
            let outer = tempfile::tempdir().unwrap();
            let (root, canary) = (outer.path().join("root"), outer.path().join("canary"));
            std::fs::create_dir(&root).unwrap();
            std::fs::create_dir(&canary).unwrap();
            std::fs::write(canary.join("secret"), "untouched").unwrap();
            let look = || {
                let meta = std::fs::metadata(canary.join("secret")).unwrap();
                let dir = std::fs::metadata(&canary).unwrap();
                let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
                let text = std::fs::read_to_string(canary.join("secret")).unwrap();
                (text, meta.mode(), meta.mtime_nsec(), meta.nlink(), dir.mode(), dir.mtime_nsec(), names(&canary), names(outer.path()))
            };
            let before = look();
            // Each entry is in its own archive, so that a refused entry does not prevent the others.
            for entry in &entries {
                let mut header = tar::Header::new_gnu();
                let link = entry.link.replace("OUTSIDE", canary.to_str().unwrap());
                header.as_old_mut().name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
                header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
                header.set_entry_type(entry.kind);
                let data: &[u8] = if entry.kind == EntryType::Regular { b"evil" } else { b"" };
                header.set_size(data.len() as u64);
                header.set_mode(0o666);
                header.set_uid(1);
                header.set_gid(1);
                header.set_mtime(1);
                header.set_cksum();
                let mut builder = tar::Builder::new(Vec::new());
                builder.append(&header, data).unwrap();
                let tar = builder.into_inner().unwrap();
                let budget = Budget::new(ImageLimits::default());
                let _ = unpack_layer(&tar[..], &root, None, &Digest::of_bytes(&tar), &budget);
            }
            prop_assert_eq!(look(), before);
        }
    }
}
