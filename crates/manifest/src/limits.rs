//! Limits on manifests, so that no manifest can hang Outrigger or use up the machine's memory.

/// The limits on a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The size of one source file in bytes.
    pub file_bytes_max: usize,
    /// The nesting depth of maps and lists.
    pub depth_max: usize,
    /// The number of nodes in all documents of one source, with aliases expanded.
    pub nodes_max: usize,
    /// The number of bytes in all scalars of one source, with aliases expanded.
    pub scalar_bytes_max: usize,
    /// The number of documents in one source.
    pub documents_max: usize,
    /// The number of pods created from one manifest.
    pub pods_max: usize,
    /// The number of bytes in all pods created from one manifest, estimated from their text.
    pub pod_bytes_max: usize,
    /// The number of errors and warnings that are kept. All further ones are only counted.
    pub diagnostics_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            file_bytes_max: 8 << 20,
            depth_max: 128,
            nodes_max: 200_000,
            scalar_bytes_max: 32 << 20,
            documents_max: 1_000,
            pods_max: 256,
            pod_bytes_max: 64 << 20,
            diagnostics_max: 100,
        }
    }
}
