//! Entry points for fuzzing. Each takes arbitrary untrusted bytes. They are not part of the API.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unpacks a layer, and checks that nothing outside its directory was changed.
pub fn layer(bytes: &[u8]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let base = base.join(format!("outrigger-fuzz-{}-{number}", std::process::id()));
    let (root, canary) = (base.join("layer"), base.join("canary"));
    for dir in [&base, &root, &canary] {
        fs::create_dir(dir).expect("scratch space");
    }
    fs::write(canary.join("secret"), "untouched").expect("scratch space");
    let look = || {
        let names = |dir: &PathBuf| -> Vec<_> {
            let mut names: Vec<_> =
                fs::read_dir(dir).expect("list").flatten().map(|e| e.file_name()).collect();
            names.sort();
            names
        };
        let meta = fs::metadata(canary.join("secret")).expect("the canary is there");
        let links = std::os::unix::fs::MetadataExt::nlink(&meta);
        let text = fs::read(canary.join("secret")).expect("the canary is there");
        (names(&base), names(&canary), links, text, meta.permissions())
    };
    let before = look();
    crate::fuzz_layer(bytes, &root);
    assert_eq!(look(), before, "something beside the layer was touched");
    outrigger_runtime::tree::remove(&base).expect("whatever was made can be removed");
    assert!(!OsStr::new(&base).is_empty() && !base.exists());
}

/// Parses image indexes, manifests, configurations and names.
pub fn documents(bytes: &[u8]) {
    crate::fuzz_documents(bytes);
}
