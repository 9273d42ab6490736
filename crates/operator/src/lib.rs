//! Launch priority, sidecar termination and container restarts in clusters with standard kubelets.
//!
//! [`decide`] contains every decision as a pure function: the state of the API server goes in, patches and
//! steps come out. The order comes from `outrigger-lifecycle`: a pod becomes a plan, its status an
//! observation, and the same rules as everywhere else decide which gates are open.
#![forbid(unsafe_code)]

pub mod api;
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "clippy.toml keeps time, files and chance out of `decide`; the shell is where they come from"
)]
pub mod cluster;
pub mod decide;
pub mod install;
pub mod key;
pub mod names;
pub mod view;
