//! Turns the bytes of a manifest file into text.

use crate::diagnostic::Diagnostic;
use crate::span::SourceFile;

impl SourceFile {
    /// A source from the bytes of a file. Fails if they are not UTF-8.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, Box<Diagnostic>> {
        let name = name.into();
        match String::from_utf8(bytes) {
            Ok(text) => Ok(SourceFile::new(name, text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let bytes = error.as_bytes();
                let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
                if let Some((what, hint)) = binary(bytes).filter(|_| !is_utf16) {
                    return Err(Diagnostic::error(None, format!("{name} is not text: {what}"))
                        .hint(hint)
                        .into());
                }
                let line = bytes[..at].iter().filter(|&&b| b == b'\n').count() + 1;
                let start = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
                let column = String::from_utf8_lossy(&bytes[start..at]).chars().count() + 1;
                let message =
                    format!("{name}:{line}:{column}: not UTF-8 text, found the byte 0x{:02x}", bytes[at]);
                let hint =
                    if is_utf16 { "the file is UTF-16: save it as UTF-8" } else { "save the file as UTF-8" };
                Err(Diagnostic::error(None, message).hint(hint).into())
            }
        }
    }
}

/// The kind of a binary file, and what to do about it.
fn binary(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const LOOKED_AT: usize = 8 << 10;
    match bytes {
        [0x1f, 0x8b, ..] => Some(("it is compressed with gzip", "decompress it with `gunzip`")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("it is compressed with zstd", "decompress it with `unzstd`")),
        _ if bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0) => {
            Some(("it holds binary data", "name a manifest, which is YAML or JSON"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_utf8_is_refused_with_its_place() {
        let error = SourceFile::from_bytes("p.yaml", b"a: 1\nb: \xff\n".to_vec()).unwrap_err();
        assert_eq!(error.message, "p.yaml:2:4: not UTF-8 text, found the byte 0xff");
        let error = SourceFile::from_bytes("p.yaml", b"\xff\xfea\0".to_vec()).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("the file is UTF-16: save it as UTF-8"));
        for (bytes, message) in [
            (&b"\x1f\x8b\x08\0"[..], "p.yaml is not text: it is compressed with gzip"),
            (&b"\x7fELF\x02\x01\x01\0\xff"[..], "p.yaml is not text: it holds binary data"),
        ] {
            let error = SourceFile::from_bytes("p.yaml", bytes.to_vec()).unwrap_err();
            assert_eq!(error.message, message);
        }
    }
}
