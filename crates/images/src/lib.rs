//! Images: pulls them from registries or reads them from files, verifies them, and unpacks them into layers
//! for overlayfs.
//!
//! [`ImageStore`] is the interface for runtimes. Several processes may use one store at the same time.
//! [`download()`] reads a small file with the same HTTP client.

mod archive;
mod download;
mod fault;
mod fetch;
mod fields;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod local;
mod model;
mod progress;
mod registries;
mod registry;
mod store;
mod tree;
mod unpack;

pub use self::download::{DownloadError, download};
pub use self::limits::{ImageLimits, LimitsError};
pub use self::tree::{is_opaque, is_whiteout};
pub use outrigger_runtime::reference::{invalid_reference, is_on_disk, missing_on_disk, unreadable_on_disk};

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::fetch::Fetcher;
use self::progress::Progress;
use self::store::Store;
use outrigger_runtime::credentials as auth;
use outrigger_runtime::reference::{self, Name, Source, digest};
use outrigger_runtime::rootless::{self, Standing};
use outrigger_runtime::{Image, ImageError, ProgressSink, PullPolicy, PullRequest, RuntimeError};

/// Why what is at the path of a local image is not one; `None` if it is, or if that cannot be known in advance.
pub fn not_an_image(reference: &str) -> Option<ImageError> {
    let fault = find(reference)?.err()?;
    Some(ImageError { reference: reference.to_owned(), cause: fault.cause(false), detail: fault.to_string() })
}

/// The `USER` of a local image, which is empty if it has none; `None` if that cannot be known in advance.
pub fn user_on_disk(reference: &str) -> Option<String> {
    Some(find(reference)?.ok()??.config.user().to_owned())
}

/// The image at the path of a reference; `None` if the reference names no path, or nothing is there.
fn find(reference: &str) -> Option<Result<Option<local::LocalImage>, fault::Fault>> {
    if !is_on_disk(reference) || missing_on_disk(reference).is_some() {
        return None;
    }
    Some(local::find(&Source::parse(reference).ok()?))
}

/// The images of this machine, in a directory shared by any number of processes.
pub struct ImageStore {
    fetcher: Arc<Fetcher>,
    flights: Mutex<HashMap<FlightKey, Weak<Flight>>>,
}

/// Calls with the same key share their work. Credentials are part of the key, because the result may depend
/// on them.
type FlightKey = (String, PolicyKey, Vec<String>);
type PolicyKey = &'static str;

/// Work that one or more callers wait for. It is cancelled when the last caller goes away.
struct Flight {
    progress: Arc<Progress>,
    outcome: watch::Receiver<Option<Result<Image, ImageError>>>,
    task: AbortHandle,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ImageStore {
    /// Opens the store below `state_dir`, and creates it if it is missing. Removes leftovers of processes
    /// that died during a pull.
    pub fn open(state_dir: &Path) -> Result<Self, RuntimeError> {
        Self::open_with(state_dir, ImageLimits::default())
    }

    /// The same as [`ImageStore::open`], with other limits on images.
    pub fn open_with(state_dir: &Path, limits: ImageLimits) -> Result<Self, RuntimeError> {
        let root = state_dir.join(directory(rootless::standing()));
        let store = Store::open(root)
            .map_err(|fault| RuntimeError::Other(format!("cannot open the image store: {fault}")))?;
        Ok(ImageStore { fetcher: Arc::new(Fetcher::new(store, limits)), flights: Mutex::default() })
    }

    /// Makes sure that an image is present and unpacked, and returns its properties. Concurrent calls for one
    /// reference share one pull. Dropping a call stops the pull unless other calls wait for it. `progress` is
    /// called only for pulls from a registry.
    pub async fn ensure(&self, request: PullRequest, progress: ProgressSink) -> Result<Image, ImageError> {
        let reference = request.reference.clone();
        let source = Source::parse(&reference)
            .map_err(|error| ImageError::invalid_name(&reference, error.to_string()))?;
        let flight = self.join(request, source, progress);
        let mut outcome = flight.outcome.clone();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        }
        .unwrap_or_else(|| {
            Err(ImageError { reference, cause: None, detail: "the pull ended unexpectedly".to_owned() })
        })
    }

    /// The highest user or group id of an image's files, if it is known.
    pub fn greatest_id(&self, image: &Image) -> Option<u32> {
        image.layers.iter().filter_map(|layer| self.fetcher.store().greatest_id(layer)).max()
    }

    /// The work for a request. It may already be in progress; otherwise it is started.
    fn join(&self, request: PullRequest, source: Source, sink: ProgressSink) -> Arc<Flight> {
        let policy = match request.policy {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        };
        let key = (request.reference.clone(), policy, request.auth.clone());
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&key).and_then(Weak::upgrade)
            && flight.outcome.borrow().is_none()
        {
            flight.progress.listen(sink);
            return flight;
        }
        let progress = Arc::new(Progress::new(request.reference.clone()));
        progress.listen(sink);
        let (send, outcome) = watch::channel(None);
        let (fetcher, reports) = (self.fetcher.clone(), progress.clone());
        let task = tokio::spawn(async move {
            let PullRequest { reference, policy, auth } = request;
            let result = match fetcher.fetch(&reference, &source, policy, &auth, &reports).await {
                Ok(Some(image)) => Ok(image),
                Ok(None) => Err(ImageError::never_pull(reference)),
                Err(fault) => {
                    let is_remote = matches!(source, Source::Registry(_));
                    Err(ImageError { reference, cause: fault.cause(is_remote), detail: fault.to_string() })
                }
            };
            send.send_replace(Some(result));
        });
        let flight = Arc::new(Flight { progress, outcome, task: task.abort_handle() });
        flights.retain(|_, flight| flight.strong_count() > 0);
        flights.insert(key, Arc::downgrade(&flight));
        flight
    }
}

/// The store's directory. Files of layers belong to the ids that were available when they were unpacked, so
/// without root each set of ids has its own store.
fn directory(standing: &Standing) -> String {
    match (standing.is_rootless(), standing.first_extra_id()) {
        (false, _) => "images".to_owned(),
        (true, Some(first)) if !standing.has_one_id() => format!("images-{first}"),
        (true, _) => "images-one-id".to_owned(),
    }
}

/// Unpacks any bytes as a layer.
pub(crate) fn fuzz_layer(bytes: &[u8], dir: &Path) {
    let limits = ImageLimits { unpacked: 8 << 20, files: 300, ..ImageLimits::default() };
    let budget = limits::Budget::new(limits);
    // The result does not matter, because the digest is always wrong.
    let _ = unpack::unpack_layer(bytes, dir, None, &digest::Digest::of_bytes(b""), &budget);
}

/// Reads any bytes as the documents of an image.
pub(crate) fn fuzz_documents(bytes: &[u8]) {
    if let Ok(document) = model::Document::parse(bytes, &[]) {
        match document {
            model::Document::Index(entries) => drop(model::choose_platform(&entries)),
            model::Document::Manifest(manifest) => {
                drop(model::ConfigFile::parse(bytes, manifest.layers.len()));
            }
        }
    }
    for layers in 0..4 {
        if let Ok(config) = model::ConfigFile::parse(bytes, layers) {
            let image = config.image("fuzz", &digest::Digest::of_bytes(bytes), Vec::new(), false);
            assert_eq!(config.diff_ids().len(), layers, "{image:?}");
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Source::parse(text);
        let _ = text.parse::<ImageLimits>();
        if let Ok(name) = Name::parse(text) {
            let again = Name::parse(&name.to_string());
            assert!(again.is_ok_and(|again| again == name), "{name} does not read back");
        }
    }
}
