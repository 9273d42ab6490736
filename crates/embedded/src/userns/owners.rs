//! Warns about images with files of users or groups that a pod's user namespace does not have.
//!
//! An image never decides whether its pod has a user namespace. Otherwise one file with a high id would be
//! enough to run as the host's root. In the user namespace, the kernel shows such files as belonging to
//! nobody.

use super::{IDS, NOBODY};
use crate::warning;
use outrigger_images::ImageStore;
use outrigger_runtime::Image;

/// Warns once that files of an image will not have their own owners in a pod with a user namespace.
pub(crate) fn warn_of_owners(store: &ImageStore, image: &Image) {
    if let Some(text) = store.greatest_id(image).and_then(|id| warning(&image.reference, id)) {
        warning::once(text);
    }
}

fn warning(reference: &str, greatest: u32) -> Option<String> {
    (greatest >= IDS).then(|| {
        format!(
            "image {reference} has files of user or group {greatest}, and the user namespace of a pod has the ids below \
             {IDS}: files of higher ids belong to nobody ({NOBODY}) in its containers, and cannot be changed there; \
             hostUsers: true or --userns host shows their owners"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_outside_of_the_namespace_are_worth_a_line() {
        assert_eq!(warning("i:1", IDS - 1), None);
        let text = warning("i:1", IDS).unwrap();
        assert!(text.contains("image i:1 has files of user or group 65536"), "{text}");
    }
}
