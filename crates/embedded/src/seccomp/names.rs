//! System calls: their names, numbers, and default access.

/// An architecture for which a process of this machine can make system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arch {
    X86_64,
    /// 32-bit programs on x86_64.
    I386,
    Aarch64,
    /// 32-bit programs on aarch64.
    Arm,
}

impl Arch {
    /// The architecture of programs built for this machine.
    pub(super) const NATIVE: Arch = if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 };

    /// All architectures of this machine's kernel, the native one first.
    pub(super) fn all() -> &'static [Arch] {
        Self::NATIVE.with_subarches()
    }

    /// This architecture, and those whose programs its kernels can also run.
    pub(super) fn with_subarches(self) -> &'static [Arch] {
        match self {
            Arch::X86_64 => &[Arch::X86_64, Arch::I386],
            Arch::I386 => &[Arch::I386],
            Arch::Aarch64 => &[Arch::Aarch64, Arch::Arm],
            Arch::Arm => &[Arch::Arm],
        }
    }

    /// The kernel's constant for it (`AUDIT_ARCH_*`).
    pub(super) fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::I386 => 0x4000_0003,
            Arch::Aarch64 => 0xc000_00b7,
            Arch::Arm => 0x4000_0028,
        }
    }
}

/// One line per call, sorted by name: the name, its number on each architecture in the order above (`-` if it
/// has none), and its access in the default filter (see [`Access`]).
const TABLE: &str = include_str!("syscalls.tsv");

/// The first number of the private calls of 32-bit ARM, far above all others.
pub(super) const ARM_PRIVATE: u32 = 0xf_0000;

/// What the default filter does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// `allow`: always permitted.
    Allow,
    /// `never`: never permitted.
    Never,
    /// `rule`: depends on the arguments, see `default.rs`.
    Rule,
    /// A comma-separated list: permitted for a container with any of these capabilities. `kernel4.8` instead
    /// of a capability means kernels since 4.8.
    Any(&'static str),
}

/// The numbers of all system calls. They are loaded for a compilation and dropped after it, because a shim
/// runs for a long time.
pub(super) struct Numbers(Vec<(&'static str, &'static str)>);

impl Numbers {
    pub(super) fn load() -> Self {
        Numbers(TABLE.lines().filter_map(|line| line.split_once('\t')).collect())
    }

    /// The number of a system call. `None` if the architecture has no call of this name.
    pub(super) fn number(&self, arch: Arch, name: &str) -> Option<u32> {
        let at = self.0.binary_search_by_key(&name, |(known, _)| known).ok()?;
        self.0[at].1.split('\t').nth(arch as usize)?.parse().ok()
    }

    /// All calls with their default access.
    pub(super) fn access(&self) -> impl Iterator<Item = (&'static str, Access)> {
        self.0.iter().map(|(name, columns)| {
            let access = match columns.rsplit('\t').next().unwrap_or_default() {
                "allow" => Access::Allow,
                "never" | "" => Access::Never,
                "rule" => Access::Rule,
                any => Access::Any(any),
            };
            (*name, access)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::default;
    use super::*;
    use crate::caps::CapSet;

    const ARCHES: [Arch; 4] = [Arch::X86_64, Arch::I386, Arch::Aarch64, Arch::Arm];

    #[test]
    fn the_table_agrees_with_libc() {
        let numbers = Numbers::load();
        assert!(numbers.0.is_sorted());
        for (name, number) in [
            ("read", libc::SYS_read),
            ("clone", libc::SYS_clone),
            ("clone3", libc::SYS_clone3),
            ("umount2", libc::SYS_umount2),
            ("fcntl", libc::SYS_fcntl),
            ("mount_setattr", libc::SYS_mount_setattr),
            ("bpf", libc::SYS_bpf),
            ("socket", libc::SYS_socket),
            ("ptrace", libc::SYS_ptrace),
            ("keyctl", libc::SYS_keyctl),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("userfaultfd", libc::SYS_userfaultfd),
            ("setns", libc::SYS_setns),
            ("unshare", libc::SYS_unshare),
            ("execve", libc::SYS_execve),
            ("newfstatat", libc::SYS_newfstatat),
        ] {
            assert_eq!(numbers.number(Arch::NATIVE, name).map(i64::from), Some(number), "{name}");
        }
        assert_eq!(numbers.number(Arch::NATIVE, "no_such_call"), None);
    }

    /// Checks numbers that never change, also for the architectures that this test does not run on.
    #[test]
    fn numbers_of_all_architectures_are_the_kernels() {
        let numbers = Numbers::load();
        for (name, expected) in [
            ("read", [Some(0), Some(3), Some(63), Some(3)]),
            ("open", [Some(2), Some(5), None, Some(5)]),
            ("openat", [Some(257), Some(295), Some(56), Some(322)]),
            ("mount", [Some(165), Some(21), Some(40), Some(21)]),
            ("umount2", [Some(166), Some(52), Some(39), Some(52)]),
            ("setns", [Some(308), Some(346), Some(268), Some(375)]),
            ("unshare", [Some(272), Some(310), Some(97), Some(337)]),
            ("clone", [Some(56), Some(120), Some(220), Some(120)]),
            ("clone3", [Some(435); 4]),
            ("socket", [Some(41), Some(359), Some(198), Some(281)]),
            ("socketcall", [None, Some(102), None, None]),
            ("ptrace", [Some(101), Some(26), Some(117), Some(26)]),
            ("keyctl", [Some(250), Some(288), Some(219), Some(311)]),
            ("bpf", [Some(321), Some(357), Some(280), Some(386)]),
            ("futex_time64", [None, Some(422), None, Some(422)]),
            ("sync_file_range", [Some(277), Some(314), Some(84), None]),
            ("arm_sync_file_range", [None, None, None, Some(341)]),
            ("set_tls", [None, None, None, Some(ARM_PRIVATE + 5)]),
            ("removexattrat", [Some(466); 4]),
        ] {
            assert_eq!(ARCHES.map(|arch| numbers.number(arch, name)), expected, "{name}");
        }
    }

    #[test]
    fn every_line_is_whole_and_no_number_is_used_twice() {
        for line in TABLE.lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            assert_eq!(columns.len(), 2 + ARCHES.len(), "{line}");
            for number in &columns[1..=ARCHES.len()] {
                assert!(*number == "-" || number.parse::<u32>().is_ok(), "{line}");
            }
        }
        let numbers = Numbers::load();
        for arch in ARCHES {
            let mut all: Vec<(u32, &str)> =
                numbers.0.iter().filter_map(|(name, _)| Some((numbers.number(arch, name)?, *name))).collect();
            all.sort_unstable();
            let twice: Vec<_> = all.windows(2).filter(|pair| pair[0].0 == pair[1].0).collect();
            assert!(twice.is_empty(), "{arch:?}: {twice:?}");
        }
    }

    #[test]
    fn what_opens_a_call_is_a_capability_or_a_rule() {
        for (name, access) in Numbers::load().access() {
            match access {
                Access::Any(list) => {
                    for word in list.split(',') {
                        assert!(word == "kernel4.8" || CapSet::named(word).is_some(), "{name}: {word}");
                    }
                }
                Access::Rule => assert!(default::ARGUMENT_RULES.contains(&name), "{name}"),
                Access::Allow | Access::Never => {}
            }
        }
    }
}
