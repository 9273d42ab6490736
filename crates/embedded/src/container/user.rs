//! Determines the user of a container from the manifest's numbers, the image's USER, and the image's own
//! /etc/passwd and /etc/group.

use std::collections::HashSet;

use super::root::Root;
use crate::fault::Fault;
use crate::rootless;
use crate::userns::IDS;
use outrigger_runtime::{ContainerSpec, Identity, UserFault};

/// The largest id of a user or group, as in Kubernetes and runc.
const ID_MAX: u32 = i32::MAX as u32;

/// The maximum number of groups of a user. It is below the kernel's limit, and the groups fit into one
/// message to the shim.
const GROUPS_MAX: usize = 10_000;

/// The user that a container's processes become.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The supplementary groups, including the primary group.
    pub(crate) groups: Vec<u32>,
    /// Home directory, for `$HOME`.
    pub(crate) home: String,
}

/// Determines the user, and refuses root if the manifest forbids it, with the kubelet's messages.
pub(crate) fn resolve(spec: &ContainerSpec, root: &Root, pod: &str) -> Result<User, Fault> {
    let identity = &spec.identity;
    let image_user = spec.image.user.as_deref().unwrap_or("");
    let (user, group) = image_user.split_once(':').unwrap_or((image_user, ""));
    if identity.run_as_non_root {
        refuse_root(identity, user, pod, &spec.name)?;
    }
    let passwd = root.read_to_string("etc/passwd").unwrap_or_default();
    let groups = root.read_to_string("etc/group").unwrap_or_default();
    select(identity, user, group, &Tables { passwd: &passwd, groups: &groups })
}

/// Removes groups that are not available without root and without subordinate ids. Returns a warning if there
/// are any.
pub(super) fn limit_groups(user: &mut User) -> Option<String> {
    if !rootless::one_id_only() {
        return None;
    }
    let before = user.groups.len();
    user.groups.retain(|group| *group == user.gid);
    (user.groups.len() < before).then(|| {
        "supplementary groups are left out: without root they take ranges in /etc/subuid and /etc/subgid; \
         `outrigger doctor` says how to get them"
            .to_owned()
    })
}

/// Refuses users and groups that do not exist in the current user namespace.
pub(crate) fn check_mapped(user: &User) -> Result<(), Fault> {
    let standing = rootless::standing();
    let supplementary = user.groups.iter().filter(|_| !standing.has_one_id()).map(|gid| ("group", *gid));
    let mut ids = vec![("user", user.uid), ("group", user.gid)];
    ids.extend(supplementary);
    for (kind, id) in ids {
        let map = if kind == "user" { standing.uids() } else { standing.gids() };
        if !map.contains(id) {
            let why = rootless::why_not_mapped(standing, map);
            return Err(Fault::user(UserFault::NoSuchId, format!("{kind} {id} does not exist here: {why}")));
        }
    }
    Ok(())
}

/// Refuses users and groups that a pod's user namespace does not have. The container does not run with the
/// host's users instead, because then an image would decide that.
pub(super) fn check_in_namespace(user: &User, spec: &ContainerSpec) -> Result<(), Fault> {
    let groups = [user.gid].into_iter().chain(user.groups.iter().copied()).map(|gid| ("group", gid));
    let ids = [("user", user.uid)].into_iter().chain(groups);
    let Some((kind, id)) = ids.into_iter().find(|(_, id)| *id >= IDS) else { return Ok(()) };
    let identity = &spec.identity;
    let of_pod = match kind {
        "user" => identity.run_as_user == Some(id.into()),
        _ => identity.run_as_group == Some(id.into()) || identity.supplemental_groups.contains(&id),
    };
    let (whose, field) = match kind {
        _ if of_pod => ("the pod".to_owned(), ""),
        "user" => (format!("image {}", spec.image.reference), "set runAsUser to a lower id, "),
        _ => (format!("image {}", spec.image.reference), "set runAsUser and runAsGroup to lower ids, "),
    };
    Err(Fault::user(
        UserFault::NoSuchId,
        format!(
            "{whose} runs as {kind} {id}, and the pod's user namespace has the ids below {IDS}; {field}set hostUsers: true, \
         or use --userns host to run it with the users of this machine"
        ),
    ))
}

fn refuse_root(identity: &Identity, image_user: &str, pod: &str, container: &str) -> Result<(), Fault> {
    let whom = format!("(pod: \"{pod}\", container: {container})");
    match identity.run_as_user {
        Some(0) => Err(Fault::user(
            UserFault::RootForbidden,
            format!("container's runAsUser breaks non-root policy {whom}"),
        )),
        Some(_) => Ok(()),
        None => match image_user.parse::<u32>() {
            Ok(0) => Err(Fault::user(
                UserFault::RootForbidden,
                format!("container has runAsNonRoot and image will run as root {whom}"),
            )),
            Ok(_) => Ok(()),
            Err(_) if image_user.is_empty() => Err(Fault::user(
                UserFault::RootForbidden,
                format!("container has runAsNonRoot and image will run as root {whom}"),
            )),
            Err(_) => Err(Fault::user(
                UserFault::RootForbidden,
                format!(
                    "container has runAsNonRoot and image has non-numeric user ({image_user}), cannot verify user is non-root {whom}"
                ),
            )),
        },
    }
}

struct Tables<'a> {
    passwd: &'a str,
    groups: &'a str,
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl Tables<'_> {
    fn users(&self) -> impl Iterator<Item = PasswdEntry<'_>> {
        self.passwd.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            Some(PasswdEntry {
                name: fields.first()?,
                uid: fields.get(2)?.parse().ok()?,
                gid: fields.get(3)?.parse().ok()?,
                home: fields.get(5).copied().unwrap_or("/"),
            })
        })
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next()? == name { fields.nth(1)?.parse().ok() } else { None }
        })
    }

    /// The groups that have the user as a member.
    fn groups_of<'a>(&'a self, user: &'a str) -> impl Iterator<Item = u32> + 'a {
        self.groups.lines().filter_map(move |line| {
            let fields: Vec<&str> = line.split(':').collect();
            let member = fields.get(3)?.split(',').any(|member| member.trim() == user);
            if member { fields.get(2)?.parse().ok() } else { None }
        })
    }
}

fn select(identity: &Identity, user: &str, group: &str, tables: &Tables<'_>) -> Result<User, Fault> {
    let wanted: Result<u32, &str> = match identity.run_as_user {
        Some(uid) => Ok(id(uid, "runAsUser")?),
        None if user.is_empty() => Ok(0),
        None => number("user", user)?.ok_or(user),
    };
    let entry = tables.users().find(|entry| match wanted {
        Ok(uid) => entry.uid == uid,
        Err(name) => entry.name == name,
    });
    let uid = match (wanted, &entry) {
        (Ok(uid), _) => uid,
        (Err(_), Some(entry)) => entry.uid,
        (Err(name), None) => {
            return Err(Fault::user(
                UserFault::NoSuchName,
                format!("unable to find user {name}: no matching entries in passwd file"),
            ));
        }
    };
    let gid = match identity.run_as_group {
        Some(gid) => id(gid, "runAsGroup")?,
        // The image's group only applies to the image's user.
        None if identity.run_as_user.is_some() || group.is_empty() => {
            entry.as_ref().map_or(0, |entry| entry.gid)
        }
        None => match number("group", group)? {
            Some(gid) => gid,
            None => tables.group(group).ok_or_else(|| {
                Fault::user(
                    UserFault::NoSuchName,
                    format!("unable to find group {group}: no matching entries in group file"),
                )
            })?,
        },
    };
    let mut groups = vec![gid];
    let mut known = HashSet::from([gid]);
    let member = entry.as_ref().filter(|_| !identity.strict_groups);
    let memberships = member.into_iter().flat_map(|entry| tables.groups_of(entry.name));
    for extra in identity.supplemental_groups.iter().copied().chain(memberships) {
        if known.insert(extra) {
            groups.push(extra);
        }
        if groups.len() > GROUPS_MAX {
            return Err(Fault::config(format!(
                "user {uid} is a member of more than {GROUPS_MAX} groups: shorten /etc/group of the image, or set \
                 supplementalGroupsPolicy: Strict"
            )));
        }
    }
    // No larger number is a valid user. To the kernel, the largest number means "leave unchanged".
    if let Some(id) = [uid].iter().chain(&groups).find(|id| **id > ID_MAX) {
        let kind = if *id == uid { "user" } else { "group" };
        return Err(Fault::config(format!(
            "{kind} {id} is not between 0 and {ID_MAX}: correct USER of the image, its /etc/passwd or /etc/group, or set \
             securityContext.runAsUser and runAsGroup"
        )));
    }
    let home = entry.map_or("/", |entry| entry.home);
    Ok(User { uid, gid, groups, home: if home.is_empty() { "/" } else { home }.to_owned() })
}

/// Parses a number of an image, or returns `None` for a name. A text of digits is never a name, however long
/// it is, because the tables of the image could map it to any user.
fn number(kind: &str, text: &str) -> Result<Option<u32>, Fault> {
    match text.parse() {
        Ok(id) => Ok(Some(id)),
        Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => Err(Fault::config(format!(
            "{kind} {text} is not between 0 and {ID_MAX}: correct USER of the image"
        ))),
        Err(_) => Ok(None),
    }
}

fn id(value: i64, field: &str) -> Result<u32, Fault> {
    u32::try_from(value)
        .ok()
        .filter(|id| *id <= ID_MAX)
        .ok_or_else(|| Fault::config(format!("{field} {value} is not between 0 and {ID_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: Tables<'_> = Tables {
        passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/srv:/bin/false\nbroken\n",
        groups: "root:x:0:\nweb:x:34:\nlog:x:70:web,root\n",
    };

    fn user(uid: u32, gid: u32, groups: &[u32], home: &str) -> User {
        User { uid, gid, groups: groups.to_vec(), home: home.to_owned() }
    }

    #[test]
    fn users_come_from_the_manifest_then_the_image() {
        let numbers =
            |user, group| Identity { run_as_user: user, run_as_group: group, ..Identity::default() };
        let cases = [
            (numbers(None, None), "", "", user(0, 0, &[0, 70], "/root")),
            (numbers(None, None), "web", "", user(33, 34, &[34, 70], "/srv")),
            (numbers(None, None), "web", "log", user(33, 70, &[70], "/srv")),
            (numbers(None, None), "33", "0", user(33, 0, &[0, 70], "/srv")),
            (numbers(None, None), "1000", "", user(1000, 0, &[0], "/")),
            (numbers(Some(1000), None), "web", "log", user(1000, 0, &[0], "/")),
            (numbers(Some(33), Some(5)), "", "", user(33, 5, &[5, 70], "/srv")),
        ];
        for (identity, name, group, expected) in cases {
            assert_eq!(select(&identity, name, group, &TABLES).unwrap(), expected, "{name}:{group}");
        }
    }

    #[test]
    fn strict_groups_are_the_manifests_alone() {
        let identity = |strict_groups| Identity {
            run_as_user: Some(33),
            supplemental_groups: vec![5],
            strict_groups,
            ..Identity::default()
        };
        let groups = |strict| select(&identity(strict), "", "", &TABLES).unwrap().groups;
        assert_eq!((groups(false), groups(true)), (vec![34, 5, 70], vec![34, 5]));
    }

    #[test]
    fn unknown_names_and_impossible_numbers_are_errors() {
        assert!(
            select(&Identity::default(), "nobody", "", &TABLES).unwrap_err().text.contains("user nobody")
        );
        assert!(
            select(&Identity::default(), "web", "none", &TABLES).unwrap_err().text.contains("group none")
        );
        let image = Tables {
            passwd: "big:x:4294967295:0::/:\n4294967296:x:0:0::/:\n",
            groups: "big:x:2147483648:root\n99999999999999999999999:x:0:\n",
        };
        for (user, group, refused) in [
            ("4294967295", "", "user 4294967295 is not between 0 and 2147483647"),
            ("2147483648", "", "user 2147483648"),
            ("big", "", "user 4294967295"),
            ("0", "4294967295", "group 4294967295"),
            ("0", "big", "group 2147483648"),
            ("4294967296", "", "user 4294967296 is not between"),
            ("0", "99999999999999999999999", "group 99999999999999999999999 is not between"),
        ] {
            let fault = select(&Identity::default(), user, group, &image).unwrap_err();
            assert!(fault.text.contains(refused) && !fault.text.contains("without root"), "{}", fault.text);
        }
        let negative = Identity { run_as_user: Some(-1), ..Identity::default() };
        assert!(select(&negative, "", "", &TABLES).unwrap_err().text.contains("runAsUser -1"));
    }

    /// CVE-2026-47262: a table in the image used up all memory. Here it could use up all the time.
    #[test]
    fn a_table_without_end_is_refused_quickly() {
        let groups =
            |count: usize| (0..count).map(|id| format!("g:x:{}:web\n", id + 100)).collect::<String>();
        let select = |groups: &str, strict_groups| {
            let tables = Tables { passwd: TABLES.passwd, groups };
            select(&Identity { strict_groups, ..Identity::default() }, "web", "", &tables)
        };
        let (fits, too_many) = (groups(GROUPS_MAX - 1), groups(300_000));
        assert_eq!(select(&fits, false).unwrap().groups.len(), GROUPS_MAX);
        assert!(select(&too_many, false).unwrap_err().text.contains("more than 10000 groups"));
        assert_eq!(select(&too_many, true).unwrap().groups, [34]);
        let same: String = (0..300_000).map(|_| "g:x:100:web\n").collect();
        assert_eq!(select(&same, false).unwrap().groups, [34, 100]);
    }

    #[test]
    fn run_as_non_root_refuses_what_may_be_root() {
        let identity = |user| Identity { run_as_user: user, run_as_non_root: true, ..Identity::default() };
        for (run_as, image, refused) in [
            (None, "", Some("image will run as root")),
            (None, "0", Some("image will run as root")),
            (None, "web", Some("non-numeric user (web)")),
            (None, "33", None),
            (Some(0), "33", Some("runAsUser breaks non-root policy")),
            (Some(7), "", None),
        ] {
            let result = refuse_root(&identity(run_as), image, "default/p", "c");
            match refused {
                Some(text) => assert!(result.unwrap_err().text.contains(text), "{run_as:?} {image}"),
                None => assert!(result.is_ok(), "{run_as:?} {image}"),
            }
        }
    }
}
