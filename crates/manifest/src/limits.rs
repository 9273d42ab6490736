//! Limits, so that no manifest can hang Outrigger or exhaust the machine.

/// The limits on a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one source file.
    pub file_bytes_max: usize,
    /// Nesting depth of maps and lists.
    pub depth_max: usize,
    /// Nodes of all documents of one source, aliases expanded.
    pub nodes_max: usize,
    /// Bytes of all scalars of one source, aliases expanded.
    pub scalar_bytes_max: usize,
    /// Documents of one source.
    pub documents_max: usize,
    /// Pods created from one manifest.
    pub pods_max: usize,
    /// Bytes of all pods created from one manifest, as estimated from their text.
    pub pod_bytes_max: usize,
    /// Errors and warnings that are kept; the rest are only counted.
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
