//! The privileges of this process. It is root, or an ordinary user who is root only in a user namespace.

mod ids;
mod subordinate;

pub use ids::IdMap;
pub use subordinate::find as find_program;
pub use subordinate::{NoRanges, Ranges, map_arguments, ranges};

use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::thread::CapabilitySet;

/// Root's state directory.
const STATE_DIR_OF_ROOT: &str = "/var/lib/outrigger";

/// The privileges this process was started with.
#[derive(Debug, Clone)]
pub struct Standing {
    uids: IdMap,
    gids: IdMap,
}

/// The privileges that this process was started with. They are determined once, and do not change when it
/// joins namespaces later.
pub fn standing() -> &'static Standing {
    static STANDING: OnceLock<Standing> = OnceLock::new();
    STANDING.get_or_init(|| Standing {
        uids: IdMap::read("/proc/self/uid_map"),
        gids: IdMap::read("/proc/self/gid_map"),
    })
}

impl Standing {
    /// Whether this process is in a user namespace with fewer privileges than the machine's own.
    pub fn is_rootless(&self) -> bool {
        !self.uids.is_whole()
    }

    /// Whether the namespace has only one user, who owns everything.
    pub fn has_one_id(&self) -> bool {
        self.uids.count() <= 1 || self.gids.count() <= 1
    }

    /// The mapped users.
    pub fn uids(&self) -> &IdMap {
        &self.uids
    }

    /// The mapped groups.
    pub fn gids(&self) -> &IdMap {
        &self.gids
    }

    /// The first id after the user's own, as seen from the machine. It differs between sets of ids.
    pub fn first_extra_id(&self) -> Option<u32> {
        self.uids.outside(1)
    }
}

/// Explains why an id is not in a map of this user namespace, and how to get it.
pub fn why_not_mapped(standing: &Standing, map: &IdMap) -> String {
    match standing.has_one_id() {
        false => {
            let count = map.count();
            format!(
                "without root there are {count} ids, from 0 up; have root add more to /etc/subuid and /etc/subgid"
            )
        }
        true => format!("an OCI runtime gets user 0 and group 0 only; {}", why_one_id()),
    }
}

/// Explains why all containers of a pod must run as one user, and how to change that.
pub fn why_one_id() -> String {
    let missing = match ranges(real_uid()) {
        Err(missing) => missing.to_string(),
        Ok(_) => "the ranges in /etc/subuid and /etc/subgid could not be mapped; `outrigger doctor` says why"
            .to_owned(),
    };
    format!("without root, a pod has one user, because {missing}")
}

/// Whether this is a user namespace with a single user and a single group.
pub fn one_id_only() -> bool {
    standing().is_rootless() && standing().has_one_id()
}

/// The user of this process as seen from outside of its user namespace.
pub fn real_uid() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    standing().uids.outside(own).unwrap_or(own)
}

/// Whether this process has root privileges, possibly only in a user namespace.
pub fn has_powers() -> bool {
    rustix::process::geteuid().is_root()
        && rustix::thread::capabilities(None).is_ok_and(|p| p.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// The default state directory: root's, or the user's own by the XDG rules. `None` for a user without a home
/// directory.
pub fn default_state_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    state_dir_of(real_uid(), variable("XDG_DATA_HOME"), variable("HOME"))
}

fn state_dir_of(uid: u32, data: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    match uid {
        // Root does not use the variables of a user that sudo may have kept.
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
