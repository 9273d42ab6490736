//! Launch priority, sidecar termination and container restarts in clusters with standard kubelets.
//!
//! [`decide`] contains every decision as a pure function: the state of the API server goes in, patches and
//! steps come out. The ordering rules are in `outrigger-lifecycle`. A pod becomes a plan and its status an
//! observation, and the same rules as in `outrigger run` decide which gates are open.
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
