//! Checks identity, capabilities, filter and descriptors of a process before it becomes the program.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::super::process::Profile;
use super::super::user::User;
use super::{Difference, names};
use crate::fault::Fault;
use crate::sys::{self, errno_text};
use crate::{rootless, seccomp};

/// Descriptors are checked below this number. The kernel assigns the lowest free number, so a higher one
/// would need as many open descriptors in the shim.
const DESCRIPTORS: usize = 1024;

/// The state of a process before the filter is loaded, because the filter may block reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    /// The real, effective and saved user.
    uids: [u32; 3],
    gids: [u32; 3],
    /// The groups, sorted.
    groups: Vec<u32>,
    umask: u32,
    dumpable: bool,
    /// The working directory as the kernel returns it. `None` if it was removed.
    cwd: Option<Vec<u8>>,
    bounding: u64,
    ambient: u64,
    /// The capabilities that can still be given.
    held: u64,
    /// Open descriptors, sorted.
    open: Vec<i32>,
    /// The standard streams that are directories.
    directories: Vec<i32>,
    /// Whether the exec closes the descriptor for reports.
    report_closes: bool,
}

/// The state of a process after the filter is loaded. `None` if the filter does not allow reading it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Confinement {
    effective: Option<u64>,
    permitted: Option<u64>,
    inheritable: Option<u64>,
    no_new_privileges: Option<bool>,
    seccomp: Option<i32>,
    dumpable: Option<bool>,
}

/// The intended state.
struct Meant<'a> {
    user: &'a User,
    caps: u64,
    no_new_privileges: bool,
    filter: bool,
    report: i32,
    /// Whether the groups could be set.
    groups: bool,
}

/// Facts from before the filter, for [`check_confinement`].
pub(in super::super) struct Before {
    held: u64,
}

/// Checks the process after it has become the user and before it is confined.
pub(in super::super) fn check_identity(
    profile: &Profile,
    user: &User,
    report: BorrowedFd<'_>,
) -> Result<Before, Fault> {
    let meant = meant(profile, user, report.as_raw_fd());
    let found = read_identity(report.as_raw_fd()).map_err(unreadable)?;
    compare_identity(&meant, &found).map_err(|difference| Fault::start(difference.to_string()))?;
    Ok(Before { held: found.held })
}

/// Checks the process after it was confined.
pub(in super::super) fn check_confinement(
    profile: &Profile,
    user: &User,
    before: &Before,
) -> Result<(), Fault> {
    let meant = meant(profile, user, -1);
    let found = read_confinement(profile.filter.as_deref()).map_err(unreadable)?;
    compare_confinement(&meant, before.held, &found)
        .map_err(|difference| Fault::start(difference.to_string()))
}

/// Checks that the user namespace of the process has one user and one group with these ids, and that groups
/// cannot be dropped in it. `read` reads files of the process in /proc.
pub(in super::super) fn check_one_id(
    ids: (u32, u32),
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<(), Fault> {
    for (name, expected) in [
        ("uid_map", format!("{} 0 1", ids.0)),
        ("gid_map", format!("{} 0 1", ids.1)),
        ("setgroups", "deny".to_owned()),
    ] {
        let found = read(name).map_err(unreadable)?;
        let found = found.split_whitespace().collect::<Vec<_>>().join(" ");
        if found != expected {
            let text = format!("{name} of its user namespace is {found:?} instead of {expected:?}");
            return Err(Fault::start(Difference::Setup(text).to_string()));
        }
    }
    Ok(())
}

fn meant<'a>(profile: &Profile, user: &'a User, report: i32) -> Meant<'a> {
    Meant {
        user,
        caps: profile.caps.0,
        no_new_privileges: profile.no_new_privileges,
        filter: profile.filter.is_some(),
        report,
        groups: !rootless::one_id_only(),
    }
}

fn unreadable(error: io::Error) -> Fault {
    let text = format!("the process cannot be checked: {}", errno_text(&error));
    Fault::start(Difference::Setup(text).to_string())
}

fn compare_identity(meant: &Meant<'_>, found: &Identity) -> Result<(), Difference> {
    let User { uid, gid, .. } = *meant.user;
    if found.uids != [uid; 3] {
        return Err(format!("its user ids are {:?} instead of {uid}", found.uids).into());
    }
    if found.gids != [gid; 3] {
        return Err(format!("its group ids are {:?} instead of {gid}", found.gids).into());
    }
    let mut groups = meant.user.groups.clone();
    groups.sort_unstable();
    if meant.groups && found.groups != groups {
        return Err(format!("its supplementary groups are {:?} instead of {groups:?}", found.groups).into());
    }
    let more = found.bounding & !meant.caps;
    if more != 0 {
        return Err(format!("it could gain capabilities that it must not have: {}", names(more)).into());
    }
    let less = meant.caps & found.held & !found.bounding;
    if less != 0 {
        return Err(format!("capabilities are missing from its bounding set: {}", names(less)).into());
    }
    if found.ambient != 0 {
        return Err(format!("it has ambient capabilities: {}", names(found.ambient)).into());
    }
    if found.umask != 0o022 {
        return Err(format!("its umask is {:03o} instead of 022", found.umask).into());
    }
    if found.dumpable {
        return Err("other processes could look into it".to_owned().into());
    }
    // Anyone who can write to the volume that contains the directory can move or remove it.
    match &found.cwd {
        None => return Err(Difference::Changed("its working directory is gone".to_owned())),
        Some(cwd) if !cwd.starts_with(b"/") => {
            return Err(Difference::Changed("its working directory is outside its root".to_owned()));
        }
        Some(_) => {}
    }
    compare_descriptors(meant, found)
}

fn compare_descriptors(meant: &Meant<'_>, found: &Identity) -> Result<(), Difference> {
    let wanted = [0, 1, 2];
    if let Some(missing) = wanted.iter().find(|fd| !found.open.contains(fd)) {
        return Err(format!("descriptor {missing} is closed").into());
    }
    if let Some(left) = found.open.iter().find(|fd| !wanted.contains(fd) && **fd != meant.report) {
        return Err(format!("descriptor {left} is left open").into());
    }
    if let Some(fd) = found.directories.first() {
        return Err(format!("descriptor {fd} is a directory").into());
    }
    if !found.report_closes {
        return Err(format!("descriptor {} stays open in the program", meant.report).into());
    }
    Ok(())
}

fn compare_confinement(meant: &Meant<'_>, held: u64, found: &Confinement) -> Result<(), Difference> {
    let caps = meant.caps & held;
    for (kind, set, wanted) in [
        ("effective", found.effective, caps),
        ("permitted", found.permitted, caps),
        ("inheritable", found.inheritable, 0),
    ] {
        if let Some(set) = set.filter(|set| *set != wanted) {
            return Err(
                format!("its {kind} capabilities are {} instead of {}", names(set), names(wanted)).into()
            );
        }
    }
    if found.no_new_privileges.is_some_and(|set| meant.no_new_privileges && !set) {
        return Err("no_new_privs is not set".to_owned().into());
    }
    if let Some(mode) = found.seccomp
        && meant.filter
        && mode != libc::SECCOMP_MODE_FILTER as i32
    {
        return Err("its system calls are not filtered".to_owned().into());
    }
    if found.dumpable == Some(true) {
        return Err("other processes could look into it".to_owned().into());
    }
    Ok(())
}

fn read_identity(report: i32) -> io::Result<Identity> {
    let (uids, gids) = sys::ids()?;
    let mut groups: Vec<u32> =
        rustix::process::getgroups()?.into_iter().map(rustix::process::Gid::as_raw).collect();
    groups.sort_unstable();
    let meant = rustix::fs::Mode::from_raw_mode(0o022);
    let (bounding, ambient) = sys::capability_limits()?;
    let open = sys::open_descriptors(DESCRIPTORS)?;
    let cwd = match rustix::process::getcwd(Vec::new()) {
        Ok(cwd) => Some(cwd.into_bytes()),
        Err(rustix::io::Errno::NOENT) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Identity {
        uids,
        gids,
        groups,
        // The umask can only be read by setting it.
        umask: rustix::process::umask(meant).as_raw_mode(),
        dumpable: sys::prctl_get(libc::PR_GET_DUMPABLE)? != 0,
        cwd,
        bounding,
        ambient,
        held: rustix::thread::capabilities(None)?.permitted.bits(),
        directories: open.iter().copied().filter(|fd| *fd < 3 && sys::is_directory(*fd)).collect(),
        report_closes: sys::closes_on_exec(report)?,
        open,
    })
}

fn read_confinement(filter: Option<&[libc::sock_filter]>) -> io::Result<Confinement> {
    let may = |number: i64, first: i32| {
        filter.is_none_or(|filter| seccomp::allows(filter, number, &[first as u64]))
    };
    let get = |option: i32| match may(libc::SYS_prctl, option) {
        true => sys::prctl_get(option).map(Some),
        false => Ok(None),
    };
    let mut found = Confinement {
        no_new_privileges: get(libc::PR_GET_NO_NEW_PRIVS)?.map(|set| set != 0),
        seccomp: get(libc::PR_GET_SECCOMP)?,
        dumpable: get(libc::PR_GET_DUMPABLE)?.map(|set| set != 0),
        ..Confinement::default()
    };
    if may(libc::SYS_capget, 0) {
        let sets = rustix::thread::capabilities(None)?;
        found.effective = Some(sets.effective.bits());
        found.permitted = Some(sets.permitted.bits());
        found.inheritable = Some(sets.inheritable.bits());
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
