//! Logs of containers: files in CRI format that the runtime writes and rotates, and everything that reads them.

mod file;
mod follower;
mod watcher;

pub use file::{LogReader, attempts, lost_text};
pub use watcher::Watcher;

pub(crate) use file::{last_bytes, open_all};
pub(crate) use follower::LogFollower;
