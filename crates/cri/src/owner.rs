//! The label that names the owner of a sandbox, a process or a node. It is used to find the sandboxes of
//! crashed processes and those of a node.

use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;

use outrigger_runtime::Owner;

/// The label of this owner's sandboxes.
pub(super) fn label(owner: &Owner) -> String {
    match owner {
        Owner::Process => process().to_owned(),
        Owner::Node(node) => format!("node.{}", node.id()),
    }
}

/// The label of this process: `<pid namespace>.<pid>.<start time>`.
fn process() -> &'static str {
    static LABEL: LazyLock<String> = LazyLock::new(|| {
        let pid = std::process::id();
        format!("{}.{pid}.{}", pid_namespace().unwrap_or(0), start_time(pid).unwrap_or(0))
    });
    &LABEL
}

/// Whether a label belongs to a process that has certainly ended. A process in another pid namespace cannot
/// be checked from here, and a node is not a process.
pub(super) fn is_dead(label: &str) -> bool {
    let mut parts = label.split('.').map(|part| part.parse::<u64>().ok());
    let (Some(Some(namespace)), Some(Some(pid)), Some(Some(start))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Ok(pid) = u32::try_from(pid) else { return false };
    pid_namespace() == Some(namespace) && start_time(pid) != Some(start)
}

fn pid_namespace() -> Option<u64> {
    Some(std::fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// The start time of a process, in clock ticks since the boot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain anything.
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_can_be_seen_to_be_gone_is_dead() {
        assert!(!is_dead(process()), "this process lives");
        let namespace = pid_namespace().unwrap();
        let own = std::process::id();
        let table = [
            (format!("{namespace}.{own}.1"), true),
            (format!("{namespace}.4194304000.1"), true),
            (format!("{}.{own}.1", namespace + 1), false),
            ("node.0123456789abcdef0123456789abcdef".to_owned(), false),
            ("nonsense".to_owned(), false),
            (String::new(), false),
        ];
        for (label, dead) in table {
            assert_eq!(is_dead(&label), dead, "{label}");
        }
    }
}
