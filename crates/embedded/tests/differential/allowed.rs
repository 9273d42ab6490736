//! The allowed differences, with their reasons. The same table is in `docs/internals/security.md`.

/// An allowed difference.
pub(crate) struct Allowed {
    pub(crate) what: &'static str,
    /// The runtimes on which it occurs.
    pub(crate) on: &'static [&'static str],
    /// Whether a fact is part of it.
    pub(crate) matches: fn(&str) -> bool,
}

const BOTH: &[&str] = &["runc", "crun"];
const RUNC: &[&str] = &["runc"];
const CRUN: &[&str] = &["crun"];

pub(crate) const ALLOWED: [Allowed; 12] = [
    // If the shim is killed, the kernel kills the container. The processes of OCI runtimes are not tied to
    // it.
    Allowed {
        what: "the signal at the shim's death",
        on: BOTH,
        matches: |fact| fact.starts_with("prctl pdeathsig="),
    },
    // libseccomp 2.5, which compiles the filter for both, does not know calls after 456. Allowed ones are
    // refused there, with different errors.
    Allowed { what: "system calls that libseccomp does not know", on: BOTH, matches: is_new_call },
    // libseccomp copies the rules for `socket` to `socketcall` without their conditions, so it is refused there.
    Allowed {
        what: "socketcall of 32-bit programs",
        on: BOTH,
        matches: |fact| fact.starts_with("call32 102 "),
    },
    // runc checks whether the kernel has /proc/kcore before it creates the link. The link leads to a masked
    // file.
    Allowed { what: "the link /dev/core", on: RUNC, matches: |fact| fact.starts_with("dev /dev/core ") },
    // runc gives the pipes of standard output and error to the user, not to the group.
    Allowed {
        what: "the group of pipes",
        on: RUNC,
        matches: |fact| fact.starts_with("fd 1 pipe") || fact.starts_with("fd 2 pipe"),
    },
    // The mount is read-only in both. runc also makes the file system itself read-only, which all containers
    // of a pod share, including privileged ones. The kernel then reports another error first.
    Allowed {
        what: "sysfs itself read-only",
        on: RUNC,
        matches: |fact| {
            fact.starts_with("mount /sys root=/ type=sysfs ro,") || fact.starts_with("access /sys")
        },
    },
    // Both have an empty read-only tmpfs. Ours has a size of zero, and theirs is read-only twice.
    Allowed {
        what: "options of the empty file system over a masked directory",
        on: RUNC,
        matches: |fact| {
            let masked = [
                "/proc/acpi",
                "/proc/asound",
                "/proc/scsi",
                "/sys/firmware",
                "/sys/devices/virtual/powercap",
            ];
            masked.iter().any(|path| fact.starts_with(&format!("mount {path} root=/ type=tmpfs ro,")))
        },
    },
    // runc 1.1 lets every container that can create the node open /dev/net/tun. Ours cannot.
    Allowed {
        what: "the device tun",
        on: RUNC,
        matches: |fact| fact.starts_with("mknod ") && fact.contains("/probe-tun ok"),
    },
    // Both mount a null device over masked files. Ours is the container's own; crun's is the host's,
    // read-only.
    Allowed {
        what: "the null device over masked files",
        on: CRUN,
        matches: |fact| fact.starts_with("mount /proc/") && fact.contains(" root=/null "),
    },
    // crun drops these flags from the parts of /proc that it makes read-only. There are no programs or
    // devices in it.
    Allowed {
        what: "nosuid, nodev and noexec on read-only parts of /proc",
        on: CRUN,
        matches: |fact| {
            ["bus", "fs", "irq", "sys"]
                .iter()
                .any(|part| fact.starts_with(&format!("mount /proc/{part} root=/{part} type=proc ro,")))
        },
    },
    // crun drops nosuid and noexec from the terminal at /dev/console.
    Allowed {
        what: "flags of /dev/console",
        on: CRUN,
        matches: |fact| fact.starts_with("mount /dev/console "),
    },
    // crun gives the null device of standard input to the user.
    Allowed {
        what: "the owner of /dev/null",
        on: CRUN,
        matches: |fact| fact.starts_with("dev /dev/null ") || fact.starts_with("fd 0 /dev/null "),
    },
];

fn is_new_call(fact: &str) -> bool {
    let mut words = fact.split(' ');
    let is_call = matches!(words.next(), Some("call" | "call32"));
    is_call && words.next().and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number > 456)
}
