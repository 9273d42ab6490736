//! The devices that an ordinary container may open, for both cgroup versions.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::bpf;

/// One entry of the allow list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    /// Whether it is a block device. Otherwise it is a character device.
    pub(super) block: bool,
    /// The major number. `None` means any.
    pub(super) major: Option<u32>,
    /// The minor number. `None` means any.
    pub(super) minor: Option<u32>,
    /// Whether the device may be opened for reading and writing. Otherwise only its node may be created.
    pub(super) open: bool,
}

const fn open(major: u32, minor: Option<u32>) -> Rule {
    Rule { block: false, major: Some(major), minor, open: true }
}

/// The default of OCI runtimes: any node may be created, but only harmless ones may be opened.
pub(super) const ALLOWED: [Rule; 11] = [
    Rule { block: false, major: None, minor: None, open: false },
    Rule { block: true, major: None, minor: None, open: false },
    open(1, Some(3)), // null
    open(1, Some(5)), // zero
    open(1, Some(7)), // full
    open(1, Some(8)), // random
    open(1, Some(9)), // urandom
    open(5, Some(0)), // tty
    open(5, Some(1)), // console
    open(5, Some(2)), // ptmx
    open(136, None),  // pts/*
];

/// Attaches the allow list to a cgroup of the unified hierarchy.
pub(crate) fn attach(cgroup: BorrowedFd<'_>) -> io::Result<()> {
    bpf::attach_device_filter(cgroup, &bpf::device_program(&ALLOWED))
}

/// Writes the allow list to the v1 controller.
pub(super) fn apply_v1(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("devices.deny"), "a")?;
    for rule in ALLOWED {
        fs::write(dir.join("devices.allow"), v1_line(&rule))?;
    }
    Ok(())
}

fn v1_line(rule: &Rule) -> String {
    let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
    format!(
        "{} {}:{} {}",
        if rule.block { 'b' } else { 'c' },
        number(rule.major),
        number(rule.minor),
        if rule.open { "rwm" } else { "m" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_lines_are_what_the_controller_reads() {
        let lines: Vec<String> = ALLOWED.iter().map(v1_line).collect();
        assert_eq!(lines[..3], ["c *:* m", "b *:* m", "c 1:3 rwm"]);
        assert_eq!(lines[10], "c 136:* rwm");
    }
}
