//! The default filter: everything is allowed but what is for the machine's administrator, what takes a container out of
//! its namespaces, and what has been a way into the kernel. The list is the difference between all calls and those that
//! Docker and containerd allow, with the same exceptions for capabilities; calls newer than this list are the kernel's
//! own to guard.

use super::names::Arch;
use super::policy::{Action, Compare, Condition, Policy, Rule};
use crate::embedded::container::caps::CapSet;

/// Denied, unless the container has one of these capabilities. No capability: always.
const DENIED: [(&[&str], &[&str]); 16] = [
    (
        &[],
        &[
            "_sysctl",
            "add_key",
            "create_module",
            "get_kernel_syms",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "kexec_file_load",
            "keyctl",
            "nfsservctl",
            "query_module",
            "request_key",
            "swapoff",
            "swapon",
            "sysfs",
            "uselib",
            "userfaultfd",
            "ustat",
            "vm86",
            "vm86old",
        ],
    ),
    (
        &["SYS_ADMIN"],
        &[
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "open_tree_attr",
            "pivot_root",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "umount",
            "umount2",
            "unshare",
        ],
    ),
    (&["SYS_ADMIN", "BPF"], &["bpf"]),
    (&["SYS_ADMIN", "PERFMON"], &["perf_event_open"]),
    (&["SYS_ADMIN", "SYSLOG"], &["syslog"]),
    (&["SYS_BOOT"], &["kexec_load", "reboot"]),
    (&["SYS_CHROOT"], &["chroot"]),
    (&["SYS_MODULE"], &["delete_module", "finit_module", "init_module"]),
    (&["SYS_NICE"], &["get_mempolicy", "mbind", "move_pages", "set_mempolicy", "set_mempolicy_home_node"]),
    (&["SYS_PACCT"], &["acct"]),
    (&["SYS_PTRACE"], &["kcmp", "pidfd_getfd", "process_madvise"]),
    (&["SYS_RAWIO"], &["ioperm", "iopl"]),
    (&["SYS_TIME"], &["clock_settime", "clock_settime64", "settimeofday", "stime"]),
    (&["SYS_TTY_CONFIG"], &["vhangup"]),
    (&["DAC_READ_SEARCH"], &["open_by_handle_at"]),
    (&["SYS_ADMIN", "SYS_TIME"], &["clock_adjtime", "clock_adjtime64"]),
];

/// Flags of clone(2) that make namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
/// Execution domains that change nothing of consequence: Linux, 32-bit, without randomisation, and asking.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Sockets to the hypervisor.
const AF_VSOCK: u64 = 40;

/// The filter for a container with these capabilities.
pub(super) fn policy(caps: CapSet) -> Policy {
    let has = |name: &str| CapSet::named(name).is_some_and(|cap| caps.has(cap));
    let denied = Action::Errno(libc::EPERM as u16);
    let mut rules = Vec::new();
    let mut add = |name: &str, conditions: Vec<Condition>, action| {
        rules.push(Rule { name: name.to_owned(), conditions, action });
    };
    for (capabilities, names) in DENIED {
        if !capabilities.iter().any(|name| has(name)) {
            names.iter().for_each(|name| add(name, Vec::new(), denied));
        }
    }
    if !has("SYS_ADMIN") {
        let plain = Condition { argument: 0, compare: Compare::Masked(NAMESPACE_FLAGS), value: 0 };
        add("clone", vec![plain], Action::Allow);
        add("clone", Vec::new(), denied);
        // Its flags are out of a filter's sight; told that it does not exist, libc falls back to clone.
        add("clone3", Vec::new(), Action::Errno(libc::ENOSYS as u16));
    }
    for value in PERSONALITIES {
        add("personality", vec![Condition { argument: 0, compare: Compare::Equal, value }], Action::Allow);
    }
    add("personality", Vec::new(), denied);
    add("socket", vec![Condition { argument: 0, compare: Compare::Equal, value: AF_VSOCK }], denied);
    Policy { default: Action::Allow, rules, arches: Arch::all().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::super::names::Numbers;
    use super::*;

    #[test]
    fn every_name_is_a_system_call_somewhere() {
        let numbers = Numbers::load();
        for name in DENIED.iter().flat_map(|(_, names)| *names) {
            let known = [Arch::X86_64, Arch::I386, Arch::Aarch64]
                .iter()
                .any(|arch| numbers.number(*arch, name).is_some());
            assert!(known, "{name}");
        }
        for name in DENIED.iter().flat_map(|(capabilities, _)| *capabilities) {
            assert!(CapSet::named(name).is_some(), "{name}");
        }
    }

    #[test]
    fn capabilities_open_what_they_are_for() {
        let speaks_of = |caps, call: &str| policy(caps).rules.iter().any(|rule| rule.name == call);
        let admin = CapSet::named("SYS_ADMIN").unwrap();
        assert!(speaks_of(CapSet(0), "mount") && !speaks_of(admin, "mount"));
        assert!(speaks_of(CapSet(0), "bpf") && !speaks_of(CapSet::named("BPF").unwrap(), "bpf"));
        assert!(speaks_of(admin, "keyctl"));
        assert!(policy(CapSet(0)).compile().is_ok());
    }
}
