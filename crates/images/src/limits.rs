//! Limits on images, which are untrusted.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_text::quantity::parse_quantity;

use super::archive::Skip;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The number of bytes after which free space is checked again.
const SPACE_STEP: u64 = 16 * MIB;
/// The ratio applies only above this size. Small archives of zeros do no harm.
const RATIO_FROM: u64 = 256 * MIB;

/// The limits for pulling one image. [`FromStr`] parses the format of `--image-limits`:
/// `unpacked=20Gi,files=500000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// The size of all unpacked layers, including holes of sparse files.
    pub unpacked: u64,
    /// The number of files, directories and links.
    pub files: u64,
    /// The number of unpacked bytes per byte of a compressed layer.
    pub ratio: u64,
    /// The nesting depth of directories.
    pub depth: usize,
    /// The bytes that must stay free on the file system. The default is a hundredth of it, at most 1 GiB.
    pub free: Option<u64>,
}

impl Default for ImageLimits {
    fn default() -> Self {
        ImageLimits { unpacked: 64 * GIB, files: 4_000_000, ratio: 200, depth: 256, free: None }
    }
}

/// Why a text of `--image-limits` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A part without an equals sign.
    #[error("{0:?} is not NAME=VALUE, for example unpacked=20Gi")]
    Form(String),
    /// There is no such limit.
    #[error("there is no limit {0:?}; there are unpacked, files, ratio, depth and free")]
    Name(String),
    /// The value of a limit.
    #[error("{0:?} is not a number like 500000, 512Mi or 20Gi")]
    Amount(String),
}

impl FromStr for ImageLimits {
    type Err = LimitsError;

    fn from_str(text: &str) -> Result<Self, LimitsError> {
        let mut limits = ImageLimits::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| LimitsError::Form(part.to_owned()))?;
            let value = amount(value)?;
            match name {
                "unpacked" => limits.unpacked = value,
                "files" => limits.files = value,
                "ratio" => limits.ratio = value.max(1),
                // Deeper paths would be too long.
                "depth" => limits.depth = usize::try_from(value).unwrap_or(usize::MAX).clamp(1, 2047),
                "free" => limits.free = Some(value),
                _ => return Err(LimitsError::Name(name.to_owned())),
            }
        }
        Ok(limits)
    }
}

/// Parses a whole number, written as a Kubernetes quantity.
fn amount(text: &str) -> Result<u64, LimitsError> {
    let amount = parse_quantity(text).ok().map(|amount| amount.value());
    // Quantities are limited to i64::MAX, so the written number was at least that.
    let amount = amount.filter(|amount| *amount < i64::MAX).and_then(|amount| u64::try_from(amount).ok());
    amount.ok_or_else(|| LimitsError::Amount(text.to_owned()))
}

/// A number of bytes in the format of `--image-limits`.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, suffix) in [(GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{suffix}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// The remaining budget of one image. Its layers share it.
#[derive(Debug)]
pub(super) struct Budget {
    limits: ImageLimits,
    bytes: AtomicU64,
    files: AtomicU64,
}

impl Budget {
    pub(super) fn new(limits: ImageLimits) -> Arc<Self> {
        Arc::new(Budget { limits, bytes: AtomicU64::new(0), files: AtomicU64::new(0) })
    }

    pub(super) fn depth(&self) -> usize {
        self.limits.depth
    }

    /// Counts bytes before they are unpacked, and fails if the limit is exceeded.
    pub(super) fn take(&self, bytes: u64) -> io::Result<()> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.limits.unpacked;
        match before.checked_add(bytes).is_some_and(|sum| sum <= limit) {
            true => Ok(()),
            false => {
                // The counter must not overflow, because other layers use it too.
                self.bytes.store(limit, Ordering::Relaxed);
                Err(over(format!("unpacked, the image has more than {}", Bytes(limit)), "unpacked", "200Gi"))
            }
        }
    }

    /// Counts one more entry, and fails if the limit is exceeded.
    pub(super) fn take_file(&self) -> io::Result<()> {
        let limit = self.limits.files;
        match self.files.fetch_add(1, Ordering::Relaxed) < limit {
            true => Ok(()),
            false => Err(over(format!("the image has more than {limit} files"), "files", "20000000")),
        }
    }

    fn check_ratio(&self, compressed: u64, plain: u64) -> io::Result<()> {
        let limit = self.limits.ratio;
        match plain > RATIO_FROM && plain / limit > compressed {
            false => Ok(()),
            true => Err(over(
                format!("a layer unpacks to more than {limit} times its size ({compressed} bytes so far)"),
                "ratio",
                "1000",
            )),
        }
    }

    /// Fails if `more` bytes would fill the file system of `dir`.
    pub(super) fn check_space(&self, dir: &Path, more: u64) -> io::Result<()> {
        let space = rustix::fs::statvfs(dir)?;
        let block = space.f_frsize;
        let keep = self.limits.free.unwrap_or_else(|| (space.f_blocks.saturating_mul(block) / 100).min(GIB));
        let free = space.f_bavail.saturating_mul(block);
        match free >= keep.saturating_add(more) {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "no space left on device: {free} bytes are free, {more} are needed and {keep} must stay free; \
                     free some space or choose another --state-dir"
                ),
            )),
        }
    }
}

fn over(what: String, name: &str, example: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        format!("{what}; if you trust it, raise the limit with --image-limits {name}={example}"),
    )
}

/// A reader that counts its bytes.
pub(super) struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R> Counted<R> {
    pub(super) fn new(inner: R) -> (Self, Rc<Cell<u64>>) {
        let count = Rc::new(Cell::new(0));
        (Counted { inner, count: count.clone() }, count)
    }

    pub(super) fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// A decompressed layer that fails when it exceeds a limit.
pub(super) struct Metered<'a, R> {
    inner: R,
    budget: &'a Budget,
    dir: &'a Path,
    compressed: Rc<Cell<u64>>,
    plain: u64,
    space_checked: u64,
}

impl<'a, R> Metered<'a, R> {
    /// `compressed` counts the bytes before decompression. `dir` is on the file system that the layer is
    /// unpacked to.
    pub(super) fn new(inner: R, budget: &'a Budget, dir: &'a Path, compressed: Rc<Cell<u64>>) -> Self {
        Metered { inner, budget, dir, compressed, plain: 0, space_checked: 0 }
    }
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)? as u64;
        self.plain += read;
        self.budget.take(read)?;
        self.budget.check_ratio(self.compressed.get(), self.plain)?;
        if self.plain - self.space_checked >= SPACE_STEP {
            self.space_checked = self.plain;
            self.budget.check_space(self.dir, 0)?;
        }
        Ok(read as usize)
    }
}

impl<R: Read> Skip for Metered<'_, R> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let limits: ImageLimits = "unpacked=20Gi, files=5k,ratio=0,depth=9999,free=512Mi".parse().unwrap();
        assert_eq!(
            limits,
            ImageLimits { unpacked: 20 * GIB, files: 5000, ratio: 1, depth: 2047, free: Some(512 * MIB) }
        );
        assert_eq!("".parse(), Ok(ImageLimits::default()));
        for (text, says) in [
            ("unpacked", "is not NAME=VALUE"),
            ("size=1", "there is no limit \"size\""),
            ("files=many", "is not a number"),
            ("files=-1", "is not a number"),
            ("unpacked=99999999999Ti", "is not a number"),
        ] {
            let error = text.parse::<ImageLimits>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!(Bytes(20 * GIB).to_string(), "20Gi");
        assert_eq!(Bytes(1025).to_string(), "1025");
    }

    #[test]
    fn layers_share_a_budget_and_the_error_says_how_to_raise_it() {
        let budget = Budget::new("unpacked=100,files=2".parse().unwrap());
        budget.take(60).unwrap();
        budget.take(40).unwrap();
        for more in [1, u64::MAX] {
            let error = budget.take(more).unwrap_err().to_string();
            assert!(error.contains("more than 100") && error.contains("--image-limits unpacked="), "{error}");
        }
        budget.take_file().unwrap();
        budget.take_file().unwrap();
        assert!(budget.take_file().unwrap_err().to_string().contains("--image-limits files="));
    }

    #[test]
    fn the_ratio_counts_for_large_layers_only() {
        let budget = Budget::new("ratio=10".parse().unwrap());
        budget.check_ratio(1, RATIO_FROM).unwrap();
        budget.check_ratio(RATIO_FROM, 9 * RATIO_FROM).unwrap();
        assert!(budget.check_ratio(RATIO_FROM, 12 * RATIO_FROM).is_err());
    }
}
