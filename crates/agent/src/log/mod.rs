//! Container logs: files in CRI format, written and rotated by the runtime, and their readers.

mod file;
mod watcher;

pub use file::{LogReader, attempts, lost_text};
pub use watcher::{Changed, Watcher};

pub(crate) use file::{last_bytes, open_all};
