//! Groups with only one user. Many distributions create a group for every user, and make files writable for
//! it.

use std::fs::File;
use std::io::Read as _;

/// The maximum size of a table. In a larger one, no group counts as private.
const TABLE_MAX: u64 = 16 << 20;

/// Whether a group has only trusted users, by the machine's own tables. A group that is not in them is not
/// private.
pub(super) fn is_private(gid: u32, is_trusted: impl Fn(u32) -> bool) -> bool {
    match (read("/etc/passwd"), read("/etc/group")) {
        (Some(users), Some(groups)) => is_private_by(&users, &groups, gid, is_trusted),
        _ => false,
    }
}

fn read(path: &str) -> Option<String> {
    let mut text = String::new();
    let size = File::open(path).ok()?.take(TABLE_MAX).read_to_string(&mut text).ok()? as u64;
    (size < TABLE_MAX).then_some(text)
}

fn is_private_by(users: &str, groups: &str, gid: u32, is_trusted: impl Fn(u32) -> bool) -> bool {
    let rows = |table: &'_ str| -> Vec<Vec<String>> {
        table.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    };
    let number = |row: &Vec<String>, at: usize| row.get(at).and_then(|text| text.parse::<u32>().ok());
    let users = rows(users);
    let is_trusted_row = |row: &&Vec<String>| number(row, 2).is_some_and(&is_trusted);
    let is_trusted_name = |name: &str| {
        let mut found = users.iter().filter(|row| row[0] == name).peekable();
        found.peek().is_some() && found.all(|row| is_trusted_row(&row))
    };
    let rows_of_group: Vec<Vec<String>> =
        rows(groups).into_iter().filter(|row| number(row, 2) == Some(gid)).collect();
    let members = rows_of_group.iter().filter_map(|row| row.get(3)).flat_map(|names| names.split(','));
    // Without a row, the group is defined elsewhere, for example by a directory server, or not at all.
    !rows_of_group.is_empty()
        && members.map(str::trim).filter(|name| !name.is_empty()).all(is_trusted_name)
        && users.iter().filter(|row| number(row, 3) == Some(gid)).all(|row| is_trusted_row(&row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_if_all_its_members_are_trusted() {
        let users =
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:\nbob:x:1001:1001::/:\neve:x:1002:100::/:\n";
        let groups = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nteam:x:50:ann,eve\nmine:x:51:ann,root\n\
                      users:x:100:\ngone:x:52:nobody-knows\n";
        let is_trusted = |uid| uid == 0 || uid == 1000;
        for (gid, expected) in [
            (0, true),
            (1000, true),
            (1001, false),
            (50, false),
            (51, true),
            (100, false),
            (52, false),
            (9, false),
        ] {
            assert_eq!(is_private_by(users, groups, gid, is_trusted), expected, "{gid}");
        }
    }
}
