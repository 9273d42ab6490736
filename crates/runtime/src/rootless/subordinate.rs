//! The subordinate ids of a user, which an administrator assigns in /etc/subuid and /etc/subgid.

use std::fs;
use std::path::PathBuf;

/// The kernel's limit of lines in one map, minus the line for the user's own id.
const LINES_MAX: usize = 339;

/// The first id and the number of ids.
type Range = (u32, u32);

/// The ids that can be mapped for a user in addition to its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges {
    /// From /etc/subuid.
    pub uids: Vec<Range>,
    /// From /etc/subgid.
    pub gids: Vec<Range>,
    /// The programs that may write the maps: newuidmap and newgidmap.
    pub programs: (PathBuf, PathBuf),
}

/// Why a user has no ids in addition to its own. The text says how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRanges {
    /// newuidmap or newgidmap is not installed.
    #[error("newuidmap and newgidmap are missing: install the package uidmap (shadow-utils)")]
    NoPrograms,
    /// newuidmap or newgidmap is not installed, and no ids are assigned either.
    #[error(
        "newuidmap and newgidmap are missing: install the package uidmap (shadow-utils), and {add}",
        add = add(user)
    )]
    Nothing {
        /// The user.
        user: String,
    },
    /// The programs are installed, but no ids are assigned.
    #[error("{file} has no ids for user {user}: {add}", add = add(user))]
    NoIds {
        /// /etc/subuid or /etc/subgid.
        file: &'static str,
        /// The user.
        user: String,
    },
}

/// The ranges of a user.
///
/// # Errors
/// The user has none, or the programs that may map them are missing. The text says how to fix it.
pub fn ranges(uid: u32) -> Result<Ranges, NoRanges> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let name = user_name(uid, &read("/etc/passwd"));
    let (uids, gids) = (of_user(&read("/etc/subuid"), uid, &name), of_user(&read("/etc/subgid"), uid, &name));
    let user = name.clone().unwrap_or_else(|| uid.to_string());
    let programs = match (find("newuidmap"), find("newgidmap")) {
        (Some(uids), Some(gids)) => (uids, gids),
        _ if uids.is_empty() || gids.is_empty() => return Err(NoRanges::Nothing { user }),
        _ => return Err(NoRanges::NoPrograms),
    };
    for (file, found) in [("/etc/subuid", &uids), ("/etc/subgid", &gids)] {
        if found.is_empty() {
            return Err(NoRanges::NoIds { file, user });
        }
    }
    Ok(Ranges { uids, gids, programs })
}

fn add(user: &str) -> String {
    format!("have root run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`")
}

/// Finds a program. Also searches directories that may not be in a user's `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"].map(PathBuf::from);
    let places = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).chain(usual);
    places.map(|dir| dir.join(program)).find(|path| path.is_file())
}

fn user_name(uid: u32, passwd: &str) -> Option<String> {
    let known = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    // Users of a directory service are not in the local tables. A wrong value gains nothing, because
    // newuidmap checks the user itself.
    known.or_else(|| std::env::var("USER").ok().filter(|name| !name.is_empty()))
}

fn of_user(table: &str, uid: u32, name: &Option<String>) -> Vec<Range> {
    let uid = uid.to_string();
    let range = |line: &str| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let own = owner == uid || Some(owner) == name.as_deref();
        (own && count > 0 && first.checked_add(count).is_some()).then_some((first, count))
    };
    table.lines().filter_map(range).take(LINES_MAX).collect()
}

/// The arguments of newuidmap: the user's own id as root, then all ids that are assigned to it.
pub fn map_arguments(own: u32, ranges: &[Range]) -> Vec<String> {
    let mut arguments = vec!["0".to_owned(), own.to_string(), "1".to_owned()];
    let mut inside: u32 = 1;
    for (first, count) in ranges {
        let Some(next) = inside.checked_add(*count) else { break };
        arguments.extend([inside, *first, *count].map(|number| number.to_string()));
        inside = next;
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_belong_to_a_name_or_a_number() {
        let table = "root:1:2\nann:100000:65536\n1000:300000:10\nbob:200000:65536\nann:x:y\nann:5:0\nann:4294967295:2\n";
        assert_eq!(of_user(table, 1000, &Some("ann".to_owned())), [(100_000, 65_536), (300_000, 10)]);
        assert_eq!(of_user(table, 1001, &None), []);
        assert_eq!(user_name(7, "a:x:6:6::/:\nb:x:7:7::/:\n").as_deref(), Some("b"));
    }

    #[test]
    fn the_user_is_root_and_the_rest_follows() {
        let arguments = map_arguments(1000, &[(100_000, 65_536), (300_000, 10)]);
        assert_eq!(arguments.join(" "), "0 1000 1 1 100000 65536 65537 300000 10");
    }
}
