//! The runtime inside the binary: images, root file systems, namespaces, cgroups, shims.

pub mod images;
pub mod network;
