//! The steps inside a container before the user's program runs, for its first process and for every process
//! that is exec'd into it.

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
