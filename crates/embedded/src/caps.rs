//! The names of capabilities, and the capabilities of a container.

use crate::fault::Fault;
use outrigger_runtime::Identity;

/// The names of capabilities in the order of their numbers.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The default of Docker, containerd and CRI-O.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A set of capabilities, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct CapSet(pub(crate) u64);

impl CapSet {
    const ALL: CapSet = CapSet((1 << NAMES.len()) - 1);

    /// The capability with this name, with or without `CAP_`, in upper or lower case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        NAMES.iter().position(|known| *known == bare).map(|number| CapSet(1 << number))
    }

    /// The name of a capability, without `CAP_`. `None` if its number is not known here.
    pub(crate) fn name(number: u32) -> Option<&'static str> {
        NAMES.get(number as usize).copied()
    }

    /// Whether every capability of `other` is in this set.
    pub(crate) fn has(self, other: CapSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set without the capabilities in `other`.
    pub(crate) fn without(self, other: CapSet) -> CapSet {
        CapSet(self.0 & !other.0)
    }

    /// Every capability number, with whether it is in this set.
    pub(crate) fn numbers(self) -> impl Iterator<Item = (u32, bool)> {
        // This includes numbers that only newer kernels know, so that unknown capabilities are dropped as
        // well.
        (0..64).map(move |number| (number, self.0 >> number & 1 == 1))
    }
}

/// The set for a container. `ALL` is applied before names, and `drop` after `add`, as in containerd.
pub(crate) fn wanted(identity: &Identity) -> Result<CapSet, Fault> {
    if identity.privileged {
        return Ok(CapSet::ALL);
    }
    let is_all = |name: &&String| name.eq_ignore_ascii_case("ALL");
    let mut set = DEFAULT.iter().filter_map(|name| CapSet::named(name)).fold(0, |set, cap| set | cap.0);
    if identity.add_capabilities.iter().any(|name| is_all(&name)) {
        set = CapSet::ALL.0;
    }
    if identity.drop_capabilities.iter().any(|name| is_all(&name)) {
        set = 0;
    }
    let named = |name: &String| {
        CapSet::named(name)
            .ok_or_else(|| Fault::config(format!("unknown capability {name:?} in securityContext")))
    };
    for name in identity.add_capabilities.iter().filter(|name| !is_all(name)) {
        set |= named(name)?.0;
    }
    for name in identity.drop_capabilities.iter().filter(|name| !is_all(name)) {
        set &= !named(name)?.0;
    }
    Ok(CapSet(set))
}

/// The set for a container whose devices are not limited. It lacks the capabilities that create device nodes,
/// because the container could open such nodes.
pub(crate) fn without_devices(identity: &Identity, set: CapSet) -> Result<CapSet, Fault> {
    let bit = |name| CapSet::named(name).unwrap_or(CapSet(0));
    let (mknod, admin) = (bit("MKNOD"), bit("SYS_ADMIN"));
    let asks_for_mknod =
        identity.add_capabilities.iter().any(|name| CapSet::named(name) == Some(mknod)) && set.has(mknod);
    for (asked, name) in [(asks_for_mknod, "MKNOD"), (set.has(admin), "SYS_ADMIN")] {
        if asked {
            let field = if identity.privileged { "hostUsers: true" } else { "privileged: true" };
            return Err(Fault::config(format!(
                "capability {name} is refused: it makes every device of the machine accessible where no cgroup limits \
                 devices, and this machine has none that can be written to; set {field} if the container may use them \
                 all (`outrigger doctor` says what this machine can do)"
            )));
        }
    }
    Ok(set.without(mknod))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_follow_add_and_drop() {
        let of = |add: &[&str], drop: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            wanted(&Identity {
                add_capabilities: list(add),
                drop_capabilities: list(drop),
                ..Identity::default()
            })
        };
        assert_eq!(of(&[], &[]).unwrap().0, 0xa804_25fb);
        assert_eq!(of(&[], &["ALL"]).unwrap().0, 0);
        assert_eq!(of(&["NET_ADMIN"], &["all"]).unwrap().0, 1 << 12);
        assert_eq!(of(&["ALL"], &["CAP_SYS_ADMIN"]).unwrap().0, CapSet::ALL.0 & !(1 << 21));
        assert_eq!(of(&["cap_net_admin"], &[]).unwrap().0, 0xa804_35fb);
        assert!(of(&["NO_SUCH"], &[]).is_err());
    }

    #[test]
    fn without_device_limits_no_nodes_can_be_made() {
        let identity = |add: &[&str]| Identity {
            add_capabilities: add.iter().map(|name| (*name).to_owned()).collect(),
            ..Identity::default()
        };
        let of = |add: &[&str]| {
            let identity = identity(add);
            without_devices(&identity, wanted(&identity).unwrap())
        };
        assert_eq!(of(&[]).unwrap().0, 0xa004_25fb);
        assert_eq!(of(&["NET_ADMIN"]).unwrap().0, 0xa004_35fb);
        for refused in ["MKNOD", "cap_mknod", "SYS_ADMIN", "ALL"] {
            assert!(of(&[refused]).is_err(), "{refused}");
        }
    }
}
