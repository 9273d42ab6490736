//! Images. The runtime pulls and stores them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OnceCell;

use super::Inner;
use super::client::Fault;
use super::wire::{self, AuthConfig, ImageSpec, ImageStatusRequest, PullImageRequest};
use outrigger_runtime::credentials::{self, Credential};
use outrigger_runtime::reference::Name;
use outrigger_runtime::{Image, ImageError, PullCause, PullPolicy, PullRequest};

/// The maximum time of a pull. Runtimes give up by themselves when no more data arrives.
const PULL_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// Prefixes of references that only the embedded runtime supports.
const LOCAL: [&str; 4] = ["rootfs:", "oci:", "oci-archive:", "docker-archive:"];

/// Pulls in progress. Identical calls share one pull. Credentials are part of the key, because the result may
/// depend on them.
#[derive(Default)]
pub(super) struct Pulls(Mutex<HashMap<Key, Weak<Pull>>>);
type Key = (String, &'static str, Vec<String>);
type Pull = OnceCell<Result<Image, ImageError>>;

/// Why a pull failed, if known, and the message.
type Failed = (Option<PullCause>, String);

impl Pulls {
    fn join(&self, request: &PullRequest) -> Arc<Pull> {
        let policy = match request.policy {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        };
        let key = (request.reference.clone(), policy, request.auth.clone());
        let mut pulls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.retain(|_, pull| pull.strong_count() > 0);
        let running = pulls.get(&key).and_then(Weak::upgrade).filter(|pull| !pull.initialized());
        running.unwrap_or_else(|| {
            let pull = Arc::new(Pull::new());
            pulls.insert(key, Arc::downgrade(&pull));
            pull
        })
    }
}

impl Inner {
    /// Makes sure that an image is present.
    pub(super) async fn pull_image(&self, request: PullRequest) -> Result<Image, ImageError> {
        let pull = self.pulls.join(&request);
        pull.get_or_init(|| self.obtain(request)).await.clone()
    }

    async fn obtain(&self, request: PullRequest) -> Result<Image, ImageError> {
        let PullRequest { reference, policy, auth } = request;
        let invalid = |detail: String| ImageError::invalid_name(&reference, detail);
        let failed = |(cause, detail)| ImageError { reference: reference.clone(), cause, detail };
        if LOCAL.iter().any(|prefix| reference.starts_with(prefix)) {
            let detail =
                "a CRI runtime takes images from registries only; run this pod with --runtime embedded";
            return Err(invalid(detail.to_owned()));
        }
        let name = Name::parse(&reference).map_err(|error| invalid(error.to_string()))?;
        let look =
            || async { self.image(&reference).await.map_err(|fault| failed((None, fault.to_string()))) };
        if policy != PullPolicy::Always
            && let Some(image) = look().await?
        {
            return Ok(image);
        }
        if policy == PullPolicy::Never {
            return Err(ImageError::never_pull(reference));
        }
        self.fetch(&reference, &name, &auth).await.map_err(failed)?;
        let image = look().await?.map(|image| Image { was_present: false, ..image });
        image.ok_or_else(|| failed((None, "the runtime pulled it, but does not have it".to_owned())))
    }

    /// Pulls with each matching credential, the best first, or anonymously if there is none.
    async fn fetch(&self, reference: &str, name: &Name, secrets: &[String]) -> Result<(), Failed> {
        let found =
            credentials::find(secrets, &credentials::default_files(), &name.registry, &name.repository).await;
        let mut ways: Vec<Option<AuthConfig>> =
            found.credentials.iter().map(|credential| Some(auth(credential))).collect();
        if ways.is_empty() {
            ways.push(None);
        }
        let mut last = (None, "no credential was tried".to_owned());
        for auth in ways {
            let request = PullImageRequest { image: Some(spec(reference)), auth };
            match self.client.call_until_answered(request, PULL_MAX).await {
                Ok(_) => return Ok(()),
                Err(fault) => last = explain(&fault, &found.places()),
            }
        }
        Err(last)
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>, Fault> {
        let request = ImageStatusRequest { image: Some(spec(reference)), verbose: true };
        match self.client.ask(request).await {
            Ok(answer) => Ok(answer.image.map(|image| known(reference, &image, answer.info.values()))),
            Err(Fault::NotFound(_)) => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

fn spec(reference: &str) -> ImageSpec {
    ImageSpec { image: reference.to_owned(), user_specified_image: String::new() }
}

fn auth(credential: &Credential) -> AuthConfig {
    let mut auth = AuthConfig::default();
    match credential.clone() {
        Credential::Basic { username, password } => (auth.username, auth.password) = (username, password),
        Credential::IdentityToken(token) => auth.identity_token = token,
        Credential::Token(token) => auth.registry_token = token,
    }
    auth
}

/// Determines the cause of a failed pull. Runtimes pass on the errors of registries and of the kernel as
/// text. Only some use the status code for "not found".
fn explain(fault: &Fault, places: &str) -> Failed {
    let text = fault.to_string();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["no space left on device"]) {
        let detail = format!("{text}; free some space where the container runtime keeps its images");
        return (Some(PullCause::NoSpace), detail);
    }
    if says(&["401", "403", "nauthorized", "orbidden", "authorization failed", "denied"]) {
        let detail = format!("{text}; credentials were looked for in {places}");
        return (Some(PullCause::Unauthorized), detail);
    }
    if matches!(fault, Fault::NotFound(_)) || says(&["not found", "manifest unknown"]) {
        return (Some(PullCause::NotFound), text);
    }
    if says(&["connection refused", "no such host", "i/o timeout", "no route to host", "dial tcp"]) {
        return (Some(PullCause::Unreachable), text);
    }
    (None, text)
}

/// The properties of an image. The verbose part of the answer is optional and has the image's own
/// configuration.
fn known<'a>(reference: &str, image: &wire::Image, info: impl Iterator<Item = &'a String>) -> Image {
    let info: Vec<Value> = info.filter_map(|text| serde_json::from_str(text).ok()).collect();
    let config = info.iter().find_map(|info| info.pointer("/imageSpec/config")).unwrap_or(&Value::Null);
    let texts = |key: &str| -> Vec<String> {
        let list = config[key].as_array().into_iter().flatten();
        list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let text = |key: &str| config[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let user = match (&image.uid, image.username.as_str()) {
        (Some(uid), _) => Some(uid.value.to_string()),
        (None, "") => None,
        (None, name) => Some(name.to_owned()),
    };
    Image {
        reference: reference.to_owned(),
        id: image.id.clone(),
        layers: Vec::new(),
        entrypoint: texts("Entrypoint"),
        cmd: texts("Cmd"),
        env: texts("Env"),
        working_dir: text("WorkingDir"),
        user: text("User").or(user),
        stop_signal: text("StopSignal"),
        was_present: true,
    }
}
