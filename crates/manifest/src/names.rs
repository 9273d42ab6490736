//! Generates names and uids from hashes instead of random numbers. The same manifest always gives the same
//! pods, and a process that resumes a run of a node generates the same names again.

use sha2::{Digest, Sha256};

/// The alphabet of Kubernetes' generated names. It has no vowels, to avoid words, and no characters that look
/// alike.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The longest generated name: it must fit into a DNS label.
const NAME_BYTES_MAX: usize = 63;

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // The length distinguishes ("a", "bc") from ("ab", "c").
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// A suffix of `len` characters for a generated name.
pub(crate) fn suffix(len: usize, parts: &[&str]) -> String {
    let digest = digest(parts);
    digest.iter().take(len).map(|&byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect()
}

/// A uid in the form of a UUID.
pub(crate) fn uid(namespace: &str, kind: &str, name: &str) -> String {
    let mut b = digest(&["uid", namespace, kind, name]);
    b[6] = b[6] & 0x0f | 0x80;
    b[8] = b[8] & 0x3f | 0x80;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{}-{}-{}-{}-{}", hex(&b[0..4]), hex(&b[4..6]), hex(&b[6..8]), hex(&b[8..10]), hex(&b[10..16]))
}

/// Joins `base` and `suffix`. The base is shortened if the name would be too long.
pub(crate) fn join(base: &str, suffix: &str) -> String {
    let mut keep = base.len().min(NAME_BYTES_MAX.saturating_sub(suffix.len()));
    while !base.is_char_boundary(keep) {
        keep -= 1;
    }
    format!("{}{suffix}", &base[..keep])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_and_fit() {
        assert_eq!(suffix(5, &["a", "0"]), suffix(5, &["a", "0"]));
        assert_ne!(suffix(5, &["a", "0"]), suffix(5, &["a", "1"]));
        assert_eq!(join(&"x".repeat(80), "-abcde").len(), 63);
        let uid = uid("default", "Pod", "p");
        assert_eq!(uid.len(), 36);
        assert_eq!(uid.as_bytes()[14], b'8');
    }
}
