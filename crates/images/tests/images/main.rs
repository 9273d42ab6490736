//! Tests of images from real registries, layouts and archives. They need root, and the Debian packages
//! `docker-registry`, `skopeo`, `busybox-static` and `openssl`.

mod attacks;
mod faults;
mod local;
mod registry;
mod support;
mod tls;
mod unpack;
