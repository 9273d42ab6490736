//! System calls by name.

/// An architecture a process of this machine can make system calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arch {
    X86_64,
    /// 32-bit programs on x86_64.
    I386,
    Aarch64,
}

impl Arch {
    /// What programs built for this machine use.
    pub(super) const NATIVE: Arch = if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 };

    /// All this machine's kernel may be called by, the native one first.
    pub(super) fn all() -> &'static [Arch] {
        match Self::NATIVE {
            Arch::X86_64 => &[Arch::X86_64, Arch::I386],
            _ => &[Arch::Aarch64],
        }
    }

    /// The kernel's word for it (`AUDIT_ARCH_*`).
    pub(super) fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::I386 => 0x4000_0003,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }
}

/// One line a call: name and numbers for the architectures in their order above, from the kernel's headers, sorted.
const TABLE: &str = include_str!("syscalls.tsv");

/// Numbers of all system calls. Loaded for a compilation and dropped after it: a shim lives long.
pub(super) struct Numbers(Vec<(&'static str, &'static str)>);

impl Numbers {
    pub(super) fn load() -> Self {
        Numbers(TABLE.lines().filter_map(|line| line.split_once('\t')).collect())
    }

    /// Number of a system call; `None` where the architecture has none of this name.
    pub(super) fn number(&self, arch: Arch, name: &str) -> Option<u32> {
        let at = self.0.binary_search_by_key(&name, |(known, _)| known).ok()?;
        self.0[at].1.split('\t').nth(arch as usize)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_libc() {
        let numbers = Numbers::load();
        assert!(numbers.0.is_sorted());
        for (name, number) in [
            ("read", libc::SYS_read),
            ("clone3", libc::SYS_clone3),
            ("umount2", libc::SYS_umount2),
            ("fcntl", libc::SYS_fcntl),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("bpf", libc::SYS_bpf),
        ] {
            assert_eq!(numbers.number(Arch::NATIVE, name).map(i64::from), Some(number), "{name}");
        }
        assert_eq!(numbers.number(Arch::I386, "mount"), Some(21));
        assert_eq!(numbers.number(Arch::Aarch64, "mount"), Some(40));
        assert_eq!(numbers.number(Arch::Aarch64, "open"), None);
        assert_eq!(numbers.number(Arch::NATIVE, "no_such_call"), None);
    }
}
