//! The id mapping of a user namespace.

use std::fs;

/// An id mapping in the format of /proc/PID/uid_map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap(Vec<Extent>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdMap {
    /// Reads a map. On a kernel without user namespaces there is none, and all ids are unchanged.
    pub(super) fn read(path: &str) -> Self {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text),
            Err(_) => IdMap(vec![Extent { inside: 0, outside: 0, count: u32::MAX }]),
        }
    }

    fn parse(text: &str) -> Self {
        let extent = |line: &str| {
            let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
            Some(Extent { inside: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? })
        };
        IdMap(text.lines().filter_map(extent).collect())
    }

    /// Whether every id maps to itself.
    pub fn is_whole(&self) -> bool {
        self.0 == [Extent { inside: 0, outside: 0, count: u32::MAX }]
    }

    /// Whether the namespace has this id.
    pub fn contains(&self, id: u32) -> bool {
        self.outside(id).is_some()
    }

    /// The number of mapped ids.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|extent| u64::from(extent.count)).sum()
    }

    /// The id outside of the namespace that corresponds to an id inside.
    pub fn outside(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|extent| {
            let offset = id.checked_sub(extent.inside).filter(|offset| *offset < extent.count)?;
            extent.outside.checked_add(offset)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_as_the_kernel_writes_them() {
        let whole = IdMap::parse("         0          0 4294967295\n");
        assert!(whole.is_whole() && whole.contains(70_000));
        let one = IdMap::parse("         0       1000          1\n");
        assert_eq!(
            (one.is_whole(), one.count(), one.outside(0), one.outside(1)),
            (false, 1, Some(1000), None)
        );
        let ranges = IdMap::parse("0 1000 1\n1 100000 65536\n");
        assert_eq!(ranges.count(), 65_537);
        for (inside, outside) in
            [(0, Some(1000)), (1, Some(100_000)), (65_536, Some(165_535)), (65_537, None)]
        {
            assert_eq!(ranges.outside(inside), outside, "{inside}");
        }
        assert_eq!(IdMap::parse("").count(), 0, "not mapped yet");
    }
}
