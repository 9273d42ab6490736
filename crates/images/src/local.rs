//! Images in local files: OCI layouts in a directory or a tar file, and the output of `docker save`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::archive::{Archive, Kind, Sizes, Skip};
use super::digest::Digest;
use super::fault::{FailedTo, Fault};
use super::fields;
use super::limits::{Budget, Counted, Metered};
use super::model::{
    Announced, CONFIG_SIZE_MAX, ConfigFile, Descriptor, Document, MANIFEST_SIZE_MAX, Manifest,
    choose_platform, clear,
};
use super::reference::{Local, Name, Source};
use super::store::Store;
use super::unpack::{decompress, digest_mismatch};

/// The maximum number of members of an archive. Real archives have a few dozen.
const MEMBERS_MAX: usize = 100_000;
/// The maximum size of all member names.
const NAMES_MAX: usize = 16 << 20;

/// An image found in files.
pub(super) struct LocalImage {
    pub(super) config_digest: Digest,
    pub(super) config: ConfigFile,
    /// The layers, the lowest first, one for each diff id of the configuration.
    pub(super) layers: Vec<LocalLayer>,
    files: Arc<Files>,
}

/// The location of a layer.
pub(super) struct LocalLayer {
    path: PathBuf,
    /// The digest of the file itself, if the format has it.
    pub(super) digest: Option<Digest>,
}

impl LocalImage {
    /// Opens a layer for reading.
    pub(super) fn open(&self, layer: &LocalLayer) -> Result<Box<dyn Read + Send>, Fault> {
        self.files.open(&layer.path)?.ok_or_else(|| self.files.lacks(&layer.path))
    }

    /// Identifies the bytes of a layer until their file is written to. `None` if that cannot be determined.
    pub(super) fn stamp(&self, layer: &LocalLayer) -> Option<String> {
        let (meta, part) = match &*self.files {
            Files::Dir(root) => (std::fs::metadata(root.join(&layer.path)).ok()?, String::new()),
            Files::Tar { file, members, .. } => match members.get(&layer.path)? {
                Member::Data { offset, size } => (file.metadata().ok()?, format!("{offset}+{size}")),
                Member::Link(_) => return None,
            },
        };
        // A file without a name is scratch space. Its inode number will be reused by another file.
        (meta.nlink() > 0).then(|| {
            let (changed, nanos) = (meta.ctime(), meta.ctime_nsec());
            format!("{}:{} {} {changed}.{nanos} {part}", meta.dev(), meta.ino(), meta.len())
        })
    }
}

/// Files by relative name, in a directory or a tar file.
enum Files {
    Dir(PathBuf),
    Tar { archive: PathBuf, file: Arc<File>, members: HashMap<PathBuf, Member> },
}

enum Member {
    Data { offset: u64, size: u64 },
    Link(PathBuf),
}

impl Files {
    fn dir(path: &Path) -> Result<Self, Fault> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(Files::Dir(path.to_owned())),
            Ok(_) => Err(Fault::new(format!(
                "{} is not a directory; for a tar file say oci-archive:",
                path.display()
            ))),
            Err(error) => Err(error).failed_to("open", path),
        }
    }

    /// Records the positions of the members. A compressed archive is first unpacked into the scratch space of
    /// `store`, because members are not needed in their stored order.
    fn tar(path: &Path, store: &Store, budget: &Budget) -> Result<Self, Fault> {
        let file = open(path).failed_to("open", path)?;
        if file.metadata().failed_to("open", path)?.is_dir() {
            return Err(Fault::new(format!("{} is a directory; use oci: for an OCI layout", path.display())));
        }
        let file = if is_compressed(&file, path)? { inflate(file, path, store, budget)? } else { file };
        Files::of_tar(path, file)
    }

    fn of_tar(path: &Path, file: File) -> Result<Self, Fault> {
        let members = index(&file).map_err(|error| {
            Fault::io(format_args!("cannot read {} as a tar file", path.display()), &error)
        })?;
        Ok(Files::Tar { archive: path.to_owned(), file: Arc::new(file), members })
    }

    /// Opens a file by name. `None` if there is no such file.
    fn open(&self, name: &Path) -> Result<Option<Box<dyn Read + Send>>, Fault> {
        match self {
            Files::Dir(root) => {
                let path = root.join(name);
                match open(&path) {
                    Ok(file) => Ok(Some(Box::new(file))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error).failed_to("open", &path),
                }
            }
            Files::Tar { archive, file, members } => {
                let mut name = name.to_owned();
                for _ in 0..10 {
                    match members.get(&name) {
                        Some(Member::Data { offset, size }) => {
                            return Ok(Some(Box::new(Part {
                                file: file.clone(),
                                offset: *offset,
                                left: *size,
                            })));
                        }
                        // Old versions of `docker save` write a layer once, and link to it.
                        Some(Member::Link(target)) => name = target.clone(),
                        None => return Ok(None),
                    }
                }
                Err(Fault::new(format!("{} has a loop of links at {}", archive.display(), name.display())))
            }
        }
    }

    fn read(&self, name: &Path, limit: u64) -> Result<Option<Vec<u8>>, Fault> {
        let Some(reader) = self.open(name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        reader.take(limit + 1).read_to_end(&mut bytes).failed_to("read", name)?;
        if bytes.len() as u64 > limit {
            return Err(Fault::new(format!("{} is larger than {limit} bytes", self.name_of(name))));
        }
        Ok(Some(bytes))
    }

    /// Reads and verifies a blob of an OCI layout.
    fn blob(&self, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>, Fault> {
        let path = blob_path(&descriptor.digest);
        let bytes = self.read(&path, limit)?.ok_or_else(|| self.lacks(&path))?;
        let actual = Digest::of_bytes(&bytes);
        if actual != descriptor.digest {
            return Err(digest_mismatch(&self.name_of(&path), &descriptor.digest, &actual));
        }
        descriptor.check_size(&bytes)?;
        Ok(bytes)
    }

    fn name_of(&self, name: &Path) -> String {
        match self {
            Files::Dir(root) => root.join(name).display().to_string(),
            Files::Tar { archive, .. } => format!("{} in {}", name.display(), archive.display()),
        }
    }

    fn lacks(&self, name: &Path) -> Fault {
        match self {
            Files::Dir(root) => Fault::Damaged(format!("{} does not exist", root.join(name).display())),
            Files::Tar { archive, .. } => {
                Fault::Damaged(format!("{} has no file {}", archive.display(), name.display()))
            }
        }
    }
}

fn blob_path(digest: &Digest) -> PathBuf {
    Path::new("blobs/sha256").join(digest.hex())
}

/// A part of a file. It is read by position, so that several layers can be read at the same time.
struct Part {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let max = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let n = self.file.read_at(&mut buf[..max], self.offset)?;
        self.offset += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

fn is_compressed(file: &File, path: &Path) -> Result<bool, Fault> {
    let mut start = [0; 4];
    let n = file.read_at(&mut start, 0).failed_to("read", path)?;
    Ok(n == 4 && (start[..2] == [0x1f, 0x8b] || start == [0x28, 0xb5, 0x2f, 0xfd]))
}

/// Opens a file of any kind, without blocking on a pipe or reading a device forever.
fn open(path: &Path) -> std::io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()? {
        meta if meta.is_file() || meta.is_dir() => Ok(file),
        _ => Err(std::io::Error::other("it is not a regular file")),
    }
}

fn inflate(file: File, path: &Path, store: &Store, budget: &Budget) -> Result<File, Fault> {
    let scratch = store.scratch();
    let options = File::options().read(true).write(true).create_new(true).open(scratch.path());
    let mut plain = options.failed_to("create", scratch.path())?;
    let (counted, count) = Counted::new(file);
    let mut reader = BufReader::new(counted);
    let mut bounded = Metered::new(decompress(&mut reader)?, budget, store.root(), count);
    std::io::copy(&mut bounded, &mut plain).failed_to("decompress", path)?;
    plain.seek(SeekFrom::Start(0)).failed_to("read", scratch.path())?;
    Ok(plain) // The name is removed with `scratch`; the file exists as long as it is open.
}

/// Skips content without reading it.
struct Seeking<'a>(&'a File);

impl Read for Seeking<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl Skip for Seeking<'_> {
    fn skip(&mut self, count: u64) -> std::io::Result<()> {
        let count = i64::try_from(count).map_err(|_| std::io::Error::other("an entry is too large"))?;
        self.0.seek(SeekFrom::Current(count)).map(drop)
    }
}

fn index(file: &File) -> std::io::Result<HashMap<PathBuf, Member>> {
    let (mut members, mut count, mut names) = (HashMap::new(), 0, 0);
    let mut archive = Archive::new(Seeking(file), Sizes::default());
    while let Some(entry) = archive.next()? {
        let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        let name = normal(Path::new(""), &path(&entry.path));
        count += 1;
        names += entry.path.len() + entry.link.len();
        if count > MEMBERS_MAX || names > NAMES_MAX {
            let what = format!("it has more than {MEMBERS_MAX} members or {NAMES_MAX} bytes of names");
            return Err(std::io::Error::other(what));
        }
        match entry.kind {
            Kind::File if entry.sparse.is_none() => {
                members.insert(name, Member::Data { offset: archive.position(), size: entry.stored });
            }
            Kind::Symlink => {
                let target = normal(name.parent().unwrap_or(Path::new("")), &path(&entry.link));
                members.insert(name, Member::Link(target));
            }
            Kind::HardLink => {
                members.insert(name, Member::Link(normal(Path::new(""), &path(&entry.link))));
            }
            _ => {}
        }
    }
    Ok(members)
}

fn normal(base: &Path, path: &Path) -> PathBuf {
    let mut out = if path.has_root() { PathBuf::new() } else { base.to_owned() };
    for component in path.components() {
        match component {
            Component::Normal(part) => out.push(part),
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// Opens `oci:DIR[:TAG]`.
pub(super) fn oci_dir(local: &Local) -> Result<LocalImage, Fault> {
    oci_layout(Files::dir(&local.path)?, local)
}

/// Opens `oci-archive:FILE[:TAG]`.
pub(super) fn oci_archive(local: &Local, store: &Store, budget: &Budget) -> Result<LocalImage, Fault> {
    oci_layout(Files::tar(&local.path, store, budget)?, local)
}

/// Checks that there is an image, without unpacking anything. A compressed archive is not checked.
pub(super) fn find(source: &Source) -> Result<Option<LocalImage>, Fault> {
    let image = match source {
        Source::OciDir(local) => match open(&local.path.join("index.json")) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
            _ => oci_dir(local),
        },
        Source::OciArchive(local) => match plain_tar(&local.path)? {
            Some(files) => oci_layout(files, local),
            None => return Ok(None),
        },
        Source::DockerArchive(local) => match plain_tar(&local.path)? {
            Some(files) => docker_image(files, local),
            None => return Ok(None),
        },
        Source::Rootfs(_) | Source::Registry(_) => return Ok(None),
    };
    image.map(Some)
}

/// The members of an archive. `None` if it is compressed, or if this user cannot read it.
fn plain_tar(path: &Path) -> Result<Option<Files>, Fault> {
    match open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(None),
        Ok(file) if is_compressed(&file, path)? => Ok(None),
        Ok(file) => Files::of_tar(path, file).map(Some),
        Err(error) => Err(error).failed_to("open", path),
    }
}

fn oci_layout(files: Files, local: &Local) -> Result<LocalImage, Fault> {
    let at = local.path.display();
    let index = files
        .read(Path::new("index.json"), MANIFEST_SIZE_MAX)?
        .ok_or_else(|| Fault::new(format!("{at} is not an OCI image layout: it has no index.json")))?;
    let Document::Index(entries) = Document::parse(&index, &[])? else {
        return Err(Fault::new(format!(
            "{at} is not an OCI image layout: its index.json lists no manifests"
        )));
    };
    let mut descriptor = choose_tag(&entries, local)?.clone();
    // An index may refer to another one. Tools write two levels.
    for _ in 0..4 {
        let bytes = files.blob(&descriptor, MANIFEST_SIZE_MAX)?;
        match Document::parse(&bytes, &[Announced::by_index(&descriptor)])? {
            Document::Index(entries) => descriptor = choose_platform(&entries)?.clone(),
            Document::Manifest(Manifest { config, layers }) => {
                let parsed = ConfigFile::parse(&files.blob(&config, CONFIG_SIZE_MAX)?, layers.len())?;
                let layers = layers
                    .into_iter()
                    .map(|layer| LocalLayer { path: blob_path(&layer.digest), digest: Some(layer.digest) })
                    .collect();
                return Ok(LocalImage {
                    config_digest: config.digest,
                    config: parsed,
                    layers,
                    files: Arc::new(files),
                });
            }
        }
    }
    Err(Fault::new(format!("{at} has indexes nested too deeply")))
}

fn choose_tag<'a>(entries: &'a [Descriptor], local: &Local) -> Result<&'a Descriptor, Fault> {
    let at = local.path.display();
    let names = |entry: &'a Descriptor| {
        let annotations = entry.annotations.as_ref();
        ["org.opencontainers.image.ref.name", "io.containerd.image.name"]
            .into_iter()
            .filter_map(move |key| annotations?.get(key).map(String::as_str))
    };
    let all = || {
        let mut all: Vec<&str> = entries.iter().flat_map(names).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    let Some(tag) = &local.tag else {
        return match entries {
            [] => Err(Fault::new(format!("{at} contains no image"))),
            [only] => Ok(only),
            // Several entries without a name are one image for several platforms.
            several if several.iter().all(|entry| names(entry).next().is_none()) => choose_platform(several),
            several => Err(Fault::new(format!(
                "{at} holds {} images, say which with a tag: {}",
                several.len(),
                all()
            ))),
        };
    };
    let found: Vec<&Descriptor> =
        entries.iter().filter(|entry| names(entry).any(|name| same_name(name, tag))).collect();
    match found.as_slice() {
        [] => Err(Fault::new(format!("{at} contains no image with the tag {tag:?}; it has: {}", all()))),
        [only] => Ok(only),
        several => {
            let several: Vec<Descriptor> = several.iter().map(|entry| (*entry).clone()).collect();
            let chosen = choose_platform(&several)?.digest.clone();
            found
                .into_iter()
                .find(|entry| entry.digest == chosen)
                .ok_or_else(|| Fault::new(format!("{at} contains no image with the tag {tag:?}")))
        }
    }
}

/// Whether two names are the same. `busybox`, `busybox:latest` and `docker.io/library/busybox:latest` are.
fn same_name(has: &str, wanted: &str) -> bool {
    has == wanted || matches!((Name::parse(has), Name::parse(wanted)), (Ok(a), Ok(b)) if a == b)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerEntry {
    config: PathBuf,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<PathBuf>>,
}

/// Opens `docker-archive:FILE[:TAG]`.
pub(super) fn docker_archive(local: &Local, store: &Store, budget: &Budget) -> Result<LocalImage, Fault> {
    docker_image(Files::tar(&local.path, store, budget)?, local)
}

fn docker_image(files: Files, local: &Local) -> Result<LocalImage, Fault> {
    let at = local.path.display();
    let manifest = files.read(Path::new("manifest.json"), MANIFEST_SIZE_MAX)?.ok_or_else(|| {
        Fault::new(format!("{at} is not an archive made by docker save: it has no manifest.json"))
    })?;
    let entries: Vec<DockerEntry> = serde_json::from_slice(&manifest)
        .map_err(|error| Fault::Damaged(format!("manifest.json in {at} cannot be read: {error}")))?;
    clear(&manifest, &fields::DOCKER_ARCHIVE, "manifest")?;
    let tags = |entry: &DockerEntry| entry.repo_tags.clone().unwrap_or_default();
    let all = || {
        let all: Vec<String> = entries.iter().flat_map(tags).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    let entry = match &local.tag {
        Some(tag) => {
            entries.iter().find(|entry| tags(entry).iter().any(|has| same_name(has, tag))).ok_or_else(
                || Fault::new(format!("{at} contains no image with the tag {tag:?}; it has: {}", all())),
            )?
        }
        None => match entries.as_slice() {
            [] => return Err(Fault::new(format!("{at} contains no image"))),
            [only] => only,
            several => {
                let count = several.len();
                return Err(Fault::new(format!(
                    "{at} holds {count} images, say which with a tag: {}",
                    all()
                )));
            }
        },
    };
    let member = |path: &Path| normal(Path::new(""), path);
    let config_path = member(&entry.config);
    let bytes = files.read(&config_path, CONFIG_SIZE_MAX)?.ok_or_else(|| files.lacks(&config_path))?;
    let config_digest = Digest::of_bytes(&bytes);
    // The file name is the digest: `HEX.json`, or `blobs/sha256/HEX` in newer versions.
    let stem = config_path.file_stem().map(|stem| stem.as_bytes().to_vec()).unwrap_or_default();
    if let Ok(expected) = Digest::try_from(format!("sha256:{}", String::from_utf8_lossy(&stem)))
        && expected != config_digest
    {
        return Err(digest_mismatch(&files.name_of(&config_path), &expected, &config_digest));
    }
    let paths: Vec<PathBuf> = entry.layers.iter().flatten().map(|path| member(path)).collect();
    let config = ConfigFile::parse(&bytes, paths.len())?;
    let layers = paths.into_iter().map(|path| LocalLayer { path, digest: None }).collect();
    Ok(LocalImage { config_digest, config, layers, files: Arc::new(files) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_archives_are_relative_to_themselves() {
        assert_eq!(normal(Path::new("abc"), Path::new("../def/layer.tar")), Path::new("def/layer.tar"));
        assert_eq!(normal(Path::new(""), Path::new("./x")), Path::new("x"));
        assert_eq!(normal(Path::new("a"), Path::new("/x")), Path::new("x"));
        assert_eq!(normal(Path::new("a"), Path::new("../../../x")), Path::new("x"));
    }

    #[test]
    fn short_and_full_names_are_the_same() {
        assert!(same_name("docker.io/library/busybox:latest", "busybox"));
        assert!(same_name("v1", "v1"));
        assert!(!same_name("busybox:1", "busybox:2"));
    }
}
