//! The default filter: a list of allowed calls, with the same exceptions for capabilities as Docker and
//! containerd. The list is the last column of `syscalls.tsv`. This module has the rules that depend on
//! arguments.
//!
//! Other calls fail with EPERM. Calls that are newer than the list fail with ENOSYS, so that a libc that
//! tries them falls back to older ones.

use super::names::{Access, Arch, Numbers};
use super::policy::{Action, Compare, Condition, Policy, Rule};
use crate::caps::CapSet;

/// Calls that depend on their arguments (`rule` in the table).
#[cfg(test)]
pub(super) const ARGUMENT_RULES: [&str; 6] =
    ["clone", "clone3", "personality", "socket", "socketcall", "socketpair"];

/// Flags of clone(2) that create namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
/// The harmless execution domains: Linux, 32-bit, without randomisation, and the query.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// The family of the kernel's cryptography. It has a large attack surface, and programs do not need it.
const AF_ALG: u64 = 38;
/// The family of sockets to the hypervisor.
const AF_VSOCK: u64 = 40;
/// The number of `socketcall(SYS_SOCKET, ...)`.
const SYS_SOCKET: u64 = 1;
/// The number of `socketcall(SYS_SOCKETPAIR, ...)`.
const SYS_SOCKETPAIR: u64 = 8;

const DENIED: Action = Action::Errno(libc::EPERM as u16);

/// The filter for a container with these capabilities on this kernel.
pub(super) fn policy(caps: CapSet, kernel: (u32, u32)) -> Policy {
    for_arches(caps, kernel, Arch::all())
}

fn for_arches(caps: CapSet, kernel: (u32, u32), arches: &[Arch]) -> Policy {
    let opens = |word: &str| match word {
        "kernel4.8" => kernel >= (4, 8),
        name => CapSet::named(name).is_some_and(|cap| caps.has(cap)),
    };
    let mut rules = Vec::new();
    for (name, access) in Numbers::load().access() {
        let action = match access {
            Access::Allow => Action::Allow,
            Access::Any(words) if words.split(',').any(opens) => Action::Allow,
            // This is the default action. It is listed anyway, so that the call counts as known and does not
            // fail as missing.
            Access::Any(_) => DENIED,
            Access::Never | Access::Rule => continue,
        };
        rules.push(Rule { name: name.to_owned(), conditions: Vec::new(), action });
    }
    add_argument_rules(&mut rules, opens("SYS_ADMIN"));
    Policy { default: DENIED, rules, arches: arches.to_vec() }
}

/// Adds the rules that depend on arguments. If the kernel uses only the lower half of an argument, so do the
/// rules, because a high bit must not hide a value.
fn add_argument_rules(rules: &mut Vec<Rule>, may_make_namespaces: bool) {
    let mut add = |name: &str, condition: Option<Condition>, action| {
        rules.push(Rule { name: name.to_owned(), conditions: condition.into_iter().collect(), action });
    };
    let low_half = |value| Some(Condition { argument: 0, compare: Compare::Masked(0xffff_ffff), value });

    if may_make_namespaces {
        add("clone", None, Action::Allow);
        add("clone3", None, Action::Allow);
    } else {
        let plain = Condition { argument: 0, compare: Compare::Masked(NAMESPACE_FLAGS), value: 0 };
        add("clone", Some(plain), Action::Allow);
        add("clone", None, DENIED);
        // Its flags are in memory, where a filter cannot see them. With ENOSYS, libc falls back to clone.
        add("clone3", None, Action::Errno(libc::ENOSYS as u16));
    }
    for value in PERSONALITIES {
        add("personality", low_half(value), Action::Allow);
    }
    add("personality", None, DENIED);
    // The kernel itself refuses a pair of these families, but only after it has loaded the family's module.
    for call in ["socket", "socketpair"] {
        for family in [AF_ALG, AF_VSOCK] {
            add(call, low_half(family), DENIED);
        }
        add(call, None, Action::Allow);
    }
    // 32-bit x86 has two ways to create a socket. The arguments of this one are in memory, so it is blocked.
    // Operations on existing sockets stay allowed.
    for operation in [SYS_SOCKET, SYS_SOCKETPAIR] {
        add("socketcall", low_half(operation), DENIED);
    }
    add("socketcall", None, Action::Allow);
}

#[cfg(test)]
mod tests {
    use super::super::policy::tests::run;
    use super::*;

    const NONE: CapSet = CapSet(0);
    const KERNEL: (u32, u32) = (6, 1);

    fn caps(names: &[&str]) -> CapSet {
        CapSet(names.iter().map(|name| CapSet::named(name).unwrap().0).fold(0, |all, one| all | one))
    }

    /// The action of the filter for a call by its name.
    fn verdict(caps: CapSet, kernel: (u32, u32), arch: Arch, name: &str, argument: u64) -> u32 {
        let native = if matches!(arch, Arch::Aarch64 | Arch::Arm) { Arch::Aarch64 } else { Arch::X86_64 };
        let program = for_arches(caps, kernel, native.with_subarches()).compile().unwrap();
        let number = Numbers::load().number(arch, name).unwrap_or_else(|| panic!("{arch:?} {name}"));
        run(&program, arch.audit(), number, [argument, 0, 0, 0, 0, 0])
    }

    const ALLOWED: u32 = 0x7fff_0000;
    const EPERM: u32 = 0x0005_0001;
    const ENOSYS: u32 = 0x0005_0026;

    #[test]
    fn every_call_of_every_architecture_does_what_the_table_says() {
        let numbers = Numbers::load();
        for native in [Arch::X86_64, Arch::Aarch64] {
            let program = for_arches(NONE, KERNEL, native.with_subarches()).compile().unwrap();
            assert!(program.len() < 1200, "{} instructions", program.len());
            for arch in native.with_subarches() {
                for (name, access) in numbers.access() {
                    let Some(number) = numbers.number(*arch, name) else { continue };
                    let expected = match access {
                        Access::Allow => ALLOWED,
                        Access::Any(words) if words.contains("kernel") => ALLOWED,
                        Access::Any(_) => EPERM,
                        Access::Never if number > 467 => ENOSYS,
                        Access::Never => EPERM,
                        Access::Rule => continue,
                    };
                    let got = run(&program, arch.audit(), number, [0; 6]);
                    assert_eq!(got, expected, "{arch:?} {name}");
                }
                for number in [468, 500, 1000, 0xe_ffff, 0xf_0000, 0x3fff_ffff, 0x4000_0000, 0xffff_ffff] {
                    assert_eq!(run(&program, arch.audit(), number, [0; 6]), ENOSYS, "{arch:?} {number}");
                }
            }
            for stranger in [0, 0x8000_003e, 0xc000_0016] {
                assert_eq!(run(&program, stranger, 0, [0; 6]), ENOSYS);
            }
        }
    }

    #[test]
    fn a_decision_takes_few_instructions() {
        let program = for_arches(NONE, KERNEL, Arch::X86_64.with_subarches()).compile().unwrap();
        for (arch, last) in [(Arch::X86_64, 600), (Arch::I386, 600)] {
            for number in 0..last {
                let steps = super::super::policy::tests::steps(&program, arch.audit(), number);
                assert!(steps < 40, "{arch:?} {number}: {steps} instructions");
            }
        }
    }

    #[test]
    fn capabilities_open_what_they_are_for() {
        let admin = caps(&["SYS_ADMIN"]);
        for (given, kernel, name, expected) in [
            (NONE, KERNEL, "mount", EPERM),
            (admin, KERNEL, "mount", ALLOWED),
            (admin, KERNEL, "clone3", ALLOWED),
            (NONE, KERNEL, "clone3", ENOSYS),
            (admin, KERNEL, "keyctl", EPERM),
            (admin, KERNEL, "pivot_root", EPERM),
            (NONE, KERNEL, "bpf", EPERM),
            (caps(&["BPF"]), KERNEL, "bpf", ALLOWED),
            (caps(&["NET_ADMIN"]), KERNEL, "bpf", EPERM),
            (caps(&["SYS_TIME"]), KERNEL, "clock_settime", ALLOWED),
            (caps(&["SYS_NICE"]), KERNEL, "mbind", ALLOWED),
            (NONE, KERNEL, "ptrace", ALLOWED),
            (NONE, (4, 7), "ptrace", EPERM),
            (caps(&["SYS_PTRACE"]), (4, 7), "ptrace", ALLOWED),
            (NONE, KERNEL, "pidfd_getfd", EPERM),
            (caps(&["SYS_PTRACE"]), KERNEL, "pidfd_getfd", ALLOWED),
        ] {
            for arch in [Arch::X86_64, Arch::I386, Arch::Aarch64, Arch::Arm] {
                assert_eq!(verdict(given, kernel, arch, name, 0), expected, "{arch:?} {name}");
            }
        }
    }

    #[test]
    fn arguments_are_seen_as_the_kernel_sees_them() {
        let high = 0x1_0000_0000_u64;
        for (name, argument, expected) in [
            ("socket", 2, ALLOWED),
            ("socket", AF_VSOCK, EPERM),
            ("socket", high | AF_VSOCK, EPERM),
            ("socket", !0xffff_ffff | AF_VSOCK, EPERM),
            ("socket", AF_ALG, EPERM),
            ("socket", high | AF_ALG, EPERM),
            ("socket", 39, ALLOWED),
            ("socketpair", 1, ALLOWED),
            ("socketpair", AF_VSOCK, EPERM),
            ("socketpair", high | AF_ALG, EPERM),
            ("personality", 0xffff_ffff, ALLOWED),
            ("personality", u64::MAX, ALLOWED),
            ("personality", 0x0040_0000, EPERM),
            ("personality", high | 0x0040_0000, EPERM),
            ("clone", 0x11, ALLOWED),
            ("clone", 0x1000_0011, EPERM),
            ("clone", high | 0x1000_0011, EPERM),
            ("clone", 0x003d_0f00, ALLOWED),
        ] {
            for arch in [Arch::X86_64, Arch::Aarch64] {
                assert_eq!(verdict(NONE, KERNEL, arch, name, argument), expected, "{name} {argument:#x}");
            }
        }
        assert_eq!(verdict(NONE, KERNEL, Arch::I386, "socketcall", SYS_SOCKET), EPERM);
        assert_eq!(verdict(NONE, KERNEL, Arch::I386, "socketcall", SYS_SOCKETPAIR), EPERM);
        assert_eq!(verdict(NONE, KERNEL, Arch::I386, "socketcall", 3), ALLOWED);
        assert_eq!(verdict(NONE, KERNEL, Arch::I386, "socket", AF_VSOCK), EPERM);
        assert_eq!(verdict(NONE, KERNEL, Arch::Arm, "socket", AF_ALG), EPERM);
    }
}
