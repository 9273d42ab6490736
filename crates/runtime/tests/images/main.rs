//! Images from real registries, layouts and archives. Needs root, and the Debian packages `docker-registry`, `skopeo` and
//! `busybox-static`.

mod faults;
mod local;
mod registry;
mod support;
mod unpack;
