//! Inside a container: the steps of its first process, and of every process exec'd into it, before the user's
//! program runs.

pub(crate) mod apparmor;
mod copy;
pub(crate) mod dev;
pub(crate) mod init;
mod mount_points;
pub(crate) mod mounts;
pub(crate) mod one_id;
mod pieces;
pub(crate) mod process;
pub(crate) mod root;
pub(crate) mod rootfs;
pub(crate) mod terminal;
pub(crate) mod user;
mod verify;
