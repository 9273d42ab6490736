//! SHA-256 digests (`sha256:…`), and a reader that computes one while it reads.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Why a text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// It has another algorithm, or none.
    #[error("digest {0:?} is not of the form sha256:<64 hexadecimal digits>")]
    Form(String),
    /// The part after the algorithm is not valid.
    #[error("digest {0:?} does not have 64 lower-case hexadecimal digits")]
    Digits(String),
}

/// A SHA-256 digest, the only algorithm registries use for images.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of some bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    /// The digest of everything that was written to `hasher`.
    pub fn finish(hasher: Sha256) -> Self {
        Digest(hex(&hasher.finalize()))
    }

    /// The 64 hexadecimal digits.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        let Some(hex) = text.strip_prefix("sha256:") else {
            return Err(DigestError::Form(text));
        };
        // Lower case only: the digest becomes a file name and must have one spelling.
        if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Digest(hex.to_owned()))
        } else {
            Err(DigestError::Digits(text))
        }
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes the digest of everything that is read through it.
pub struct HashingReader<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> HashingReader<R> {
    /// Wraps `inner`.
    pub fn new(inner: R) -> Self {
        HashingReader { inner, hasher: Sha256::new() }
    }

    /// Reads the rest of the input, because the digest covers everything. Returns the digest and the inner
    /// reader.
    pub fn finish(mut self) -> io::Result<(Digest, R)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest::finish(self.hasher), self.inner))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hasher.update(&buf[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_one_spelling() {
        let good = Digest::of_bytes(b"abc").to_string();
        assert_eq!(good, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::try_from(good.clone()).unwrap().to_string(), good);
        for bad in ["", "sha256:", "sha512:00", &good.to_uppercase(), &good[..70], "sha256:../../etc/passwd"]
        {
            assert!(Digest::try_from(bad.to_owned()).is_err(), "{bad:?} passed");
        }
    }
}
