//! Events on pods, with the same messages as `outrigger operator status`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;

use crate::view::ObservedPod;

/// The number of sent messages that are kept, so that none is sent twice.
const SAID_MAX: usize = 10_000;
/// The longest message an event may have.
const MESSAGE_MAX: usize = 1_000;
/// The number of events that can wait to be written. Further events are dropped.
const WAITING_MAX: usize = 2_000;
/// The number of events that are written at a time. It is small, because the operator's actions are more
/// important than its events.
const WRITERS: usize = 2;

/// The pod an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'p> {
    pub(crate) namespace: &'p str,
    pub(crate) name: &'p str,
    pub(crate) uid: &'p str,
}

pub(crate) struct Events {
    client: Client,
    said: Mutex<HashSet<(String, String)>>,
    places: Arc<Semaphore>,
    writers: Arc<Semaphore>,
}

impl Events {
    pub(crate) fn new(client: Client) -> Self {
        Events {
            client,
            said: Mutex::default(),
            places: Arc::new(Semaphore::new(WAITING_MAX)),
            writers: Arc::new(Semaphore::new(WRITERS)),
        }
    }

    /// Sends an event about a pod, once, without waiting for it to be written.
    pub(crate) fn tell(&self, pod: &ObservedPod, is_warning: bool, reason: &str, message: &str) {
        let pod = Subject { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
        self.tell_of(pod, is_warning, reason, message);
    }

    /// Sends an event about a pod of which only the names are known.
    pub(crate) fn tell_of(&self, pod: Subject<'_>, is_warning: bool, reason: &str, message: &str) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tracing::debug!(pod = pod.name, message, "too many events, one is left out");
            return;
        };
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.len() >= SAID_MAX {
                said.clear();
            }
            if !said.insert((pod.uid.to_owned(), message.to_owned())) {
                return;
            }
        }
        let now = Timestamp::now();
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_owned()),
            name: Some(pod.name.to_owned()),
            uid: Some(pod.uid.to_owned()),
            ..Default::default()
        };
        let base: String = pod.name.chars().take(200).collect();
        // A name must not have a dot or dash before the next dot.
        let base = base.trim_end_matches(['-', '.']);
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{base}.{:x}", now.as_nanosecond())),
                namespace: Some(pod.namespace.to_owned()),
                ..Default::default()
            },
            involved_object: reference,
            reason: Some(reason.to_owned()),
            message: Some(message.chars().take(MESSAGE_MAX).collect()),
            type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
            source: Some(EventSource { component: Some("outrigger".to_owned()), host: None }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Default::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), pod.namespace);
        let key = format!("{}/{}", pod.namespace, pod.name);
        let writers = self.writers.clone();
        tokio::spawn(async move {
            let _place = place;
            let Ok(_turn) = writers.acquire().await else { return };
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::debug!(pod = key, %error, "an event was not written");
            }
        });
    }
}
