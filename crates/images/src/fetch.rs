//! Fetches images: downloads or reads missing layers, verifies them, unpacks them and stores them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::StatusCode;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::auth;
use super::digest::Digest;
use super::fault::{FailedTo, Fault};
use super::limits::{Budget, ImageLimits};
use super::local::{self, LocalImage};
use super::model::{
    Announced, CONFIG_SIZE_MAX, ConfigFile, Descriptor, Document, MANIFEST_SIZE_MAX, Manifest,
    choose_platform,
};
use super::progress::Progress;
use super::reference::{Name, Source};
use super::registries::{Endpoint, Registries};
use super::registry::{Clients, DownloadSpeed, Registry, Retries, broken};
use super::store::{Scratch, Store};
use super::tree::is_opaque;
use super::unpack::{check_layer, digest_mismatch, unpack_layer};
use outrigger_runtime::{Image, PullPolicy};

/// The number of concurrent downloads. More are no faster on most connections, and some registries slow such
/// clients down.
const DOWNLOADS_MAX: usize = 4;
/// The number of bytes after which free space is checked again.
const SPACE_STEP: u64 = 16 << 20;

/// Fetches images into a store.
pub(super) struct Fetcher {
    store: Arc<Store>,
    clients: Clients,
    downloads: Semaphore,
    unpacks: Semaphore,
    limits: ImageLimits,
}

/// The source of a layer's bytes.
#[derive(Clone)]
enum Origin {
    Remote { registry: Arc<Registry>, layer: Descriptor, progress: Arc<Progress> },
    Local { image: Arc<LocalImage>, layer: usize },
}

/// An image without the requested name.
struct Fetched {
    config: ConfigFile,
    id: Digest,
    was_present: bool,
}

impl Fetcher {
    pub(super) fn new(store: Store, limits: ImageLimits) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        Fetcher {
            store: Arc::new(store),
            clients: Clients::default(),
            downloads: Semaphore::new(DOWNLOADS_MAX),
            unpacks: Semaphore::new(cores),
            limits,
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Makes an image available. `None` if it is not present and the policy forbids pulling it.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        reference: &str,
        source: &Source,
        policy: PullPolicy,
        secrets: &[String],
        progress: &Arc<Progress>,
    ) -> Result<Option<Image>, Fault> {
        let fetched = match source {
            Source::Rootfs(path) => return rootfs(reference, path).map(Some),
            Source::Registry(name) => {
                let present = match policy {
                    PullPolicy::Always => None,
                    PullPolicy::IfNotPresent | PullPolicy::Never => self.present(name)?,
                };
                match present {
                    Some(present) => present,
                    None if policy == PullPolicy::Never => return Ok(None),
                    None => self.pull(name, secrets, progress).await?,
                }
            }
            local => self.read(local.clone()).await?,
        };
        let layers = self.lower_dirs(&fetched.config)?;
        Ok(Some(fetched.config.image(reference, &fetched.id, layers, fetched.was_present)))
    }

    /// The layer directories for overlayfs, the lowest first.
    fn lower_dirs(&self, config: &ConfigFile) -> Result<Vec<PathBuf>, Fault> {
        let mut dirs: Vec<PathBuf> = Vec::new();
        for diff_id in config.diff_ids() {
            let dir = self
                .store
                .layer(diff_id)?
                .ok_or_else(|| Fault::new(format!("layer {diff_id} has disappeared")))?;
            if is_opaque(&dir) {
                dirs.clear(); // hides all layers below
            }
            // Overlayfs accepts each directory only once. The upper occurrence has the same
            // content, so the lower one can be dropped.
            dirs.retain(|other| *other != dir);
            dirs.push(dir);
        }
        if dirs.is_empty() {
            dirs.push(self.store.empty_layer());
        }
        Ok(dirs)
    }

    /// The image that was pulled under this name before, if it is still complete.
    fn present(&self, name: &Name) -> Result<Option<Fetched>, Fault> {
        let Some(digest) = self.store.lookup(name)? else {
            return Ok(None);
        };
        let Some(bytes) = self.store.read_blob(&digest)? else {
            return Ok(None);
        };
        let Ok(Document::Manifest(manifest)) = Document::parse(&bytes, &[]) else {
            return Ok(None);
        };
        let Some(bytes) = self.store.read_blob(&manifest.config.digest)? else {
            return Ok(None);
        };
        manifest.config.check_size(&bytes)?;
        let config = ConfigFile::parse(&bytes, manifest.layers.len())?;
        for diff_id in config.diff_ids() {
            if self.store.layer(diff_id)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Fetched { config, id: manifest.config.digest, was_present: true }))
    }

    /// Reads an image from files.
    async fn read(self: &Arc<Self>, source: Source) -> Result<Fetched, Fault> {
        let store = self.store.clone();
        let budget = Budget::new(self.limits);
        let reading = budget.clone();
        let image = blocking(move || match &source {
            Source::OciDir(local) => local::oci_dir(local),
            Source::OciArchive(local) => local::oci_archive(local, &store, &reading),
            Source::DockerArchive(local) => local::docker_archive(local, &store, &reading),
            Source::Rootfs(_) | Source::Registry(_) => Err(Fault::new("not an image in a file")),
        })
        .await?;
        let image = Arc::new(image);
        let origins = image.config.diff_ids().iter().cloned().enumerate();
        let origins = origins
            .map(|(layer, diff_id)| (diff_id, Origin::Local { image: image.clone(), layer }))
            .collect();
        let was_present = self.layers(origins, &budget).await?;
        Ok(Fetched { config: image.config.clone(), id: image.config_digest.clone(), was_present })
    }

    /// Pulls an image from its registry.
    async fn pull(
        self: &Arc<Self>,
        name: &Name,
        secrets: &[String],
        progress: &Arc<Progress>,
    ) -> Result<Fetched, Fault> {
        let (registry, digest, bytes, manifest) = self.resolve(name, secrets).await?;
        let registry = Arc::new(registry);
        let mut was_present = true;
        let config_bytes = match self.store.read_blob(&manifest.config.digest)? {
            Some(bytes) => bytes,
            None => {
                was_present = false;
                let bytes = registry.blob(&manifest.config.digest, CONFIG_SIZE_MAX).await?;
                self.store.write_blob(&manifest.config.digest, &bytes)?;
                bytes
            }
        };
        manifest.config.check_size(&config_bytes)?;
        let config = ConfigFile::parse(&config_bytes, manifest.layers.len())?;
        let mut origins = Vec::new();
        let mut total = 0;
        for (diff_id, layer) in config.diff_ids().iter().zip(manifest.layers) {
            if self.store.layer(diff_id)?.is_none() && !origins.iter().any(|(other, _)| other == diff_id) {
                total = layer.size.saturating_add(total);
                let origin = Origin::Remote { registry: registry.clone(), layer, progress: progress.clone() };
                origins.push((diff_id.clone(), origin));
            }
        }
        let budget = Budget::new(self.limits);
        // This is checked before the download. Both the compressed and the unpacked layers must fit, so the
        // compressed size is a lower limit.
        budget
            .check_space(self.store.root(), total)
            .map_err(|error| Fault::io("cannot store the image", &error))?;
        progress.start(total);
        was_present &= self.layers(origins, &budget).await?;
        self.store.write_blob(&digest, &bytes)?;
        self.store.set_manifest(name, &digest)?;
        Ok(Fetched { config, id: manifest.config.digest, was_present })
    }

    /// Finds a server that has the image and accepts our credentials. Returns the manifest for this machine.
    async fn resolve(
        &self,
        name: &Name,
        secrets: &[String],
    ) -> Result<(Registry, Digest, Vec<u8>, Manifest), Fault> {
        let mut first: Option<Fault> = None;
        let mut gone: Option<String> = None;
        for endpoint in Registries::load().endpoints(name)? {
            // The same server gives the same answer over another protocol.
            if gone.as_ref() == Some(&endpoint.host) {
                continue;
            }
            match self.resolve_at(&endpoint, name, secrets).await {
                Ok(resolved) => return Ok(resolved),
                Err(fault) => {
                    if !matches!(fault, Fault::Unreachable(_)) {
                        gone = Some(endpoint.host.clone());
                    }
                    tracing::debug!(host = endpoint.host, %fault, "no image there");
                    // The first error is reported, but an error from a server is more useful than no answer.
                    let is_better = match &first {
                        None => true,
                        Some(Fault::Unreachable(_)) => !matches!(fault, Fault::Unreachable(_)),
                        Some(_) => false,
                    };
                    if is_better {
                        first = Some(fault);
                    }
                }
            }
        }
        Err(first.unwrap_or_else(|| Fault::new("no server is configured for this registry")))
    }

    async fn resolve_at(
        &self,
        endpoint: &Endpoint,
        name: &Name,
        secrets: &[String],
    ) -> Result<(Registry, Digest, Vec<u8>, Manifest), Fault> {
        let found = auth::find(secrets, &auth::default_files(), &endpoint.host, &endpoint.repository).await;
        let tried = found.credentials.len();
        // Anonymous access is tried last. A public image needs no credentials, and outdated ones must not
        // prevent the pull.
        let ways = found.credentials.iter().cloned().map(Some).chain([None]);
        let mut refusal = None;
        for credential in ways {
            let registry = Registry::new(&self.clients, endpoint.clone(), credential)?;
            match manifest_for_here(&registry, &name.tag_or_digest()).await {
                Ok((digest, bytes, manifest)) => return Ok((registry, digest, bytes, manifest)),
                Err(Fault::Unauthorized(text)) => refusal = refusal.or(Some(text)),
                Err(fault) => return Err(fault),
            }
        }
        let tried = match tried {
            0 => "no credentials found".to_owned(),
            1 => "the one credential found was refused".to_owned(),
            n => format!("all {n} credentials found were refused"),
        };
        Err(Fault::Unauthorized(format!(
            "{} ({tried}, or the image does not exist); looked at: {}",
            refusal.unwrap_or_default(),
            found.places()
        )))
    }

    /// Makes layers available, several at once. Returns whether all of them were present before.
    async fn layers(
        self: &Arc<Self>,
        origins: Vec<(Digest, Origin)>,
        budget: &Arc<Budget>,
    ) -> Result<bool, Fault> {
        let mut tasks = JoinSet::new();
        let mut started: Vec<Digest> = Vec::new();
        for (diff_id, origin) in origins {
            if !started.contains(&diff_id) {
                started.push(diff_id.clone());
                tasks.spawn(self.clone().layer(diff_id, origin, budget.clone()));
            }
        }
        let mut were_present = true;
        // The first failure drops the set, which cancels the other tasks.
        while let Some(result) = tasks.join_next().await {
            were_present &=
                result.map_err(|error| Fault::new(format!("a layer's task failed: {error}")))??;
        }
        Ok(were_present)
    }

    /// Makes one layer available. Returns whether it was present before.
    async fn layer(
        self: Arc<Self>,
        diff_id: Digest,
        origin: Origin,
        budget: Arc<Budget>,
    ) -> Result<bool, Fault> {
        if self.store.layer(&diff_id)?.is_some() {
            self.prove(&diff_id, origin, &budget).await?;
            return Ok(true);
        }
        let lock = self.store.lock_layer(&diff_id).await?;
        if self.store.layer(&diff_id)?.is_some() {
            // Another process, or another image with the same layer, was faster.
            drop(lock);
            if let Origin::Remote { layer, progress, .. } = &origin {
                progress.add(layer.size);
            }
            self.prove(&diff_id, origin, &budget).await?;
            return Ok(false);
        }
        let blob = match &origin {
            Origin::Remote { registry, layer, progress } => {
                let _permit = self.downloads.acquire().await;
                let scratch = self.store.scratch();
                Some((download(registry, layer, &scratch, progress, &budget).await?, scratch))
            }
            Origin::Local { .. } => None,
        };
        let _permit = self.unpacks.acquire().await;
        let cancel = CancelOnDrop::default();
        let cancelled = cancel.0.clone();
        let store = self.store.clone();
        blocking(move || {
            let _lock = lock; // held until the work is done, even if the caller has gone away
            let mut digest = None;
            let stream: Box<dyn Read> = match (&blob, &origin) {
                (Some((file, _)), _) => Box::new(file),
                (None, Origin::Local { image, layer }) => {
                    let layer = &image.layers[*layer];
                    digest = layer.digest.as_ref();
                    image.open(layer)?
                }
                (None, Origin::Remote { .. }) => return Err(Fault::new("the layer was not downloaded")),
            };
            let scratch = store.scratch();
            let dir = scratch.path().join("d");
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o755).create(&dir).failed_to("create", &dir)?;
            let greatest_id =
                unpack_layer(Cancellable { stream, cancelled }, &dir, digest, &diff_id, &budget)?;
            store.keep_layer(&diff_id, scratch, greatest_id)?;
            if let Origin::Local { image, layer } = &origin {
                store.note_proof(&diff_id, image.stamp(&image.layers[*layer]).as_deref());
            }
            Ok(())
        })
        .await?;
        Ok(false)
    }

    /// Checks that a file really contains the layer that it names, even if that layer is already stored.
    /// Anyone may know a digest, so a digest alone must not give access to the files of another image.
    async fn prove(&self, diff_id: &Digest, origin: Origin, budget: &Arc<Budget>) -> Result<(), Fault> {
        let Origin::Local { image, layer } = origin else { return Ok(()) };
        let stamp = image.stamp(&image.layers[layer]);
        if self.store.has_proof(diff_id, stamp.as_deref()) {
            return Ok(());
        }
        let _permit = self.unpacks.acquire().await;
        let cancel = CancelOnDrop::default();
        let (cancelled, store) = (cancel.0.clone(), self.store.clone());
        let (diff_id, budget) = (diff_id.clone(), budget.clone());
        blocking(move || {
            let stream = image.open(&image.layers[layer])?;
            check_layer(Cancellable { stream, cancelled }, store.root(), &diff_id, &budget)?;
            store.note_proof(&diff_id, stamp.as_deref());
            Ok(())
        })
        .await
    }
}

/// Uses a directory of this machine as an image.
fn rootfs(reference: &str, path: &std::path::Path) -> Result<Image, Fault> {
    let dir = match std::fs::canonicalize(path) {
        Ok(dir) if dir.is_dir() => dir,
        Ok(_) => return Err(Fault::new(format!("{} is not a directory", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Fault::new(format!("directory {} does not exist on this machine", path.display())));
        }
        Err(error) => return Err(error).failed_to("open", path),
    };
    Ok(Image {
        reference: reference.to_owned(),
        id: reference.to_owned(),
        layers: vec![dir],
        entrypoint: Vec::new(),
        cmd: Vec::new(),
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        working_dir: None,
        user: None,
        stop_signal: None,
        was_present: true,
    })
}

/// The manifest of a name for this machine. Indexes are followed.
async fn manifest_for_here(registry: &Registry, name: &str) -> Result<(Digest, Vec<u8>, Manifest), Fault> {
    let mut served = registry.manifest(name, MANIFEST_SIZE_MAX).await?;
    let mut named_by: Option<Descriptor> = None;
    for _ in 0..4 {
        let mut announced = vec![Announced::by_registry(&served.content_type)];
        announced.extend(named_by.as_ref().map(Announced::by_index));
        match Document::parse(&served.bytes, &announced)? {
            Document::Manifest(manifest) => return Ok((served.digest, served.bytes, manifest)),
            Document::Index(entries) => {
                let entry = choose_platform(&entries)?.clone();
                served = registry.manifest(&entry.digest.to_string(), MANIFEST_SIZE_MAX).await?;
                entry.check_size(&served.bytes)?;
                named_by = Some(entry);
            }
        }
    }
    Err(Fault::new("the image's indexes are nested too deeply"))
}

/// A partly downloaded layer.
struct Partial<'a> {
    file: File,
    path: &'a std::path::Path,
    hasher: Sha256,
    written: u64,
    size: u64,
    progress: &'a Progress,
    budget: &'a Budget,
    space_checked: u64,
}

impl Partial<'_> {
    fn restart(&mut self) -> io::Result<()> {
        self.progress.take_back(self.written);
        (self.written, self.space_checked) = (0, 0);
        self.hasher = Sha256::new();
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0)).map(drop)
    }

    /// Writes a chunk. This goes to the page cache, and is as fast as passing the bytes to another thread.
    fn push(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        self.written += chunk.len() as u64;
        if self.written > self.size {
            return Err(Fault::new(format!(
                "the layer is larger than the {} bytes its manifest says",
                self.size
            )));
        }
        if self.written - self.space_checked >= SPACE_STEP {
            self.space_checked = self.written;
            let dir = self.path.parent().unwrap_or(self.path);
            self.budget.check_space(dir, 0).map_err(|error| Fault::io("cannot store the layer", &error))?;
        }
        self.hasher.update(chunk);
        self.file.write_all(chunk).failed_to("write", self.path)?;
        self.progress.add(chunk.len() as u64);
        Ok(())
    }
}

/// Downloads a layer into a file and verifies it. Continues after a broken connection.
async fn download(
    registry: &Registry,
    layer: &Descriptor,
    scratch: &Scratch,
    progress: &Progress,
    budget: &Budget,
) -> Result<File, Fault> {
    let path = scratch.path();
    let file =
        File::options().read(true).write(true).create_new(true).open(path).failed_to("create", path)?;
    let mut partial = Partial {
        file,
        path,
        hasher: Sha256::new(),
        written: 0,
        size: layer.size,
        progress,
        budget,
        space_checked: 0,
    };
    let mut patience = Retries::new();
    while let Err(fault) = download_rest(registry, &layer.digest, &mut partial).await {
        patience.after(fault).await?;
    }
    let actual = Digest::finish(partial.hasher);
    if actual != layer.digest {
        return Err(digest_mismatch("layer", &layer.digest, &actual));
    }
    partial.file.seek(SeekFrom::Start(0)).failed_to("read", path)?;
    Ok(partial.file)
}

async fn download_rest(registry: &Registry, digest: &Digest, partial: &mut Partial<'_>) -> Result<(), Fault> {
    let mut response = registry.blob_from(digest, partial.written).await?;
    if partial.written > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
        partial.restart().failed_to("write", partial.path)?;
    }
    // A server that sends a byte now and then would never time out and never finish.
    let mut pace = DownloadSpeed::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
        partial.push(&chunk)?;
        pace.received(chunk.len())?;
    }
    if partial.written < partial.size {
        let (got, size) = (partial.written, partial.size);
        return Err(Fault::Transient(format!("the layer ended after {got} of {size} bytes")));
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Fault::new(format!("a task failed: {error}"))),
    }
}

/// Tells a thread that its work is no longer needed, when it is dropped.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Cancellable<R> {
    stream: R,
    cancelled: Arc<AtomicBool>,
}

impl<R: Read> Read for Cancellable<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        self.stream.read(buf)
    }
}
