//! Running without root: the process makes itself root of a user namespace of its own, once, before it has a second
//! thread, and goes on there as if it were root ([`enter`]).
//!
//! In such a namespace the kernel refuses some of what root may do elsewhere: making device nodes, cgroups that were
//! not handed over, interfaces of the machine's network, users that are not mapped. The places that do these things
//! have another way, or say once what is missing; docs/rootless.md lists all of it.

mod enter;
mod ids;
mod processes;
mod subordinate;

pub use enter::{enter, why_not};
pub use ids::IdMap;
pub(crate) use processes::{MountNamespace, namespaces_to_join};
pub(crate) use subordinate::find as find_program;
pub use subordinate::{Ranges, ranges};

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::thread::CapabilitySet;

use super::sys;

/// Where root keeps state.
const STATE_DIR_OF_ROOT: &str = "/var/lib/outrigger";

/// What this process was started as.
#[derive(Debug, Clone)]
pub struct Standing {
    uids: IdMap,
    gids: IdMap,
}

/// What this process was started as. Found out once: what it joins later changes nothing about it.
pub fn standing() -> &'static Standing {
    static STANDING: OnceLock<Standing> = OnceLock::new();
    STANDING.get_or_init(|| Standing {
        uids: IdMap::of("/proc/self/uid_map"),
        gids: IdMap::of("/proc/self/gid_map"),
    })
}

impl Standing {
    /// Whether this is a user namespace with less power than the machine's.
    pub fn is_rootless(&self) -> bool {
        !self.uids.is_whole()
    }

    /// Whether there is only one user in here, so that everything belongs to it.
    pub fn has_one_id(&self) -> bool {
        self.uids.count() <= 1 || self.gids.count() <= 1
    }

    /// The users there are in here.
    pub fn uids(&self) -> &IdMap {
        &self.uids
    }

    /// The groups there are in here.
    pub fn gids(&self) -> &IdMap {
        &self.gids
    }

    /// The first id behind that of the user itself, as the machine counts: it tells sets of ids apart.
    pub fn first_extra_id(&self) -> Option<u32> {
        self.uids.outside(1)
    }
}

/// Whether this is a user namespace with a single user and a single group.
pub(crate) fn one_id_only() -> bool {
    standing().is_rootless() && standing().has_one_id()
}

/// Whether the network this process is in is its own to change: then it needs no other.
pub(crate) fn owns_network() -> bool {
    std::fs::File::open("/proc/self/ns/net").is_ok_and(|net| sys::owns_namespace(net.as_fd()))
}

/// The user whose process this is, seen from outside the user namespace it may be root of.
pub fn real_uid() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    standing().uids.outside(own).unwrap_or(own)
}

/// Whether this process has the powers of root, be it in a user namespace only.
pub fn has_powers() -> bool {
    rustix::process::geteuid().is_root()
        && rustix::thread::capabilities(None).is_ok_and(|p| p.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Where state is kept unless the user says otherwise: root's place, or the user's own by the XDG rules. `None` for a
/// user without a home.
pub fn default_state_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    state_dir_of(real_uid(), variable("XDG_DATA_HOME"), variable("HOME"))
}

fn state_dir_of(uid: u32, data: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    match uid {
        // Whatever the user's variables say that sudo has kept.
        0 => Some(PathBuf::from(STATE_DIR_OF_ROOT)),
        _ => data.or_else(|| Some(home?.join(".local/share"))).map(|dir| dir.join("outrigger")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_where_xdg_says() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(state_dir_of(0, path("/d"), path("/root")), path("/var/lib/outrigger"));
        assert_eq!(state_dir_of(1000, path("/d"), path("/home/u")), path("/d/outrigger"));
        assert_eq!(state_dir_of(1000, None, path("/home/u")), path("/home/u/.local/share/outrigger"));
        assert_eq!(state_dir_of(1000, None, None), None);
    }
}
