//! Texts that every part of the program reads or writes in the same way.

pub mod log_line;
