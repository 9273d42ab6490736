//! Launch priority, sidecar termination and container restarts in clusters whose kubelets are not ours.
//!
//! [`decide`] holds every decision as a pure function: what the API server shows goes in, patches and steps come out.
//! Order comes from `outrigger-lifecycle`: a pod as written becomes its plan, a pod's status an observation, and the
//! same rules as everywhere else say which gates are open.
#![forbid(unsafe_code)]

pub mod api;
pub mod cluster;
pub mod decide;
pub mod install;
pub mod key;
pub mod names;
pub mod view;
