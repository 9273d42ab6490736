//! Images with users or groups that a pod's user namespace does not have.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::{IDS, Refusal};
use crate::Image;
use crate::embedded::images::ImageStore;

/// Images by reference, with the highest id of each, as far as this process has seen them.
#[derive(Debug, Default)]
pub(crate) struct LargeImages(Mutex<BTreeMap<String, u32>>);

impl LargeImages {
    /// Why a pod with these images cannot have a user namespace, as far as known: an image that is not pulled
    /// yet is not considered.
    pub(crate) async fn refusal(&self, store: &ImageStore, references: &[String]) -> Option<Refusal> {
        for reference in references.iter().filter(|reference| !reference.starts_with("rootfs:")) {
            let known = self.known().get(reference).copied();
            let found = match known {
                Some(id) => Some(id),
                None => store.look_up(reference).await.and_then(|image| self.greatest_id(store, &image)),
            };
            if let Some(id) = found {
                return Some(refusal(reference, id));
            }
        }
        None
    }

    /// Why an image cannot be used in a user namespace.
    pub(crate) fn refusal_of(&self, store: &ImageStore, image: &Image) -> Option<Refusal> {
        self.greatest_id(store, image).map(|id| refusal(&image.reference, id))
    }

    /// The highest id of an image, if it is too high.
    fn greatest_id(&self, store: &ImageStore, image: &Image) -> Option<u32> {
        let id = Some(store.greatest_id(image)).filter(|id| *id >= IDS)?;
        self.known().insert(image.reference.clone(), id);
        Some(id)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u32>> {
        // A panic cannot leave the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal(reference: &str, id: u32) -> Refusal {
    Refusal {
        who: format!("pods of image {reference}"),
        why: format!(
            "the image uses user or group {id}, and the user namespace of a pod has the ids below {IDS}"
        ),
    }
}
