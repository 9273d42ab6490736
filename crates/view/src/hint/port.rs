//! Hints on ports of this machine that cannot be opened.

use std::fs;
use std::path::Path;

use outrigger_lifecycle::FieldPath;
use outrigger_runtime::embedded::network::listening_here;

use super::{Hint, Subject};

/// Another process listens on the port.
pub(super) fn in_use(pod: Subject<'_>, number: u16) -> Hint {
    let stop = match holder(number) {
        // This process listens for one of its pods, of whatever run. A pod that is being replaced still has the port; the next
        // attempt may succeed.
        Some((pid, _)) if pid == std::process::id() => {
            let hint = "another pod has the port; this one starts when that pod is gone";
            let path = written(pod, number);
            return path.map_or_else(|| Hint::nowhere(hint), |path| Hint::at(path, hint));
        }
        Some((pid, name)) => format!("{name} (process {pid}) listens there: stop it"),
        None => "stop what listens there".to_owned(),
    };
    another(pod, number, &stop)
}

/// The port cannot be opened, and no known process listens on it.
pub(super) fn refused(pod: Subject<'_>, number: u16) -> Hint {
    another(pod, number, "stop what listens there")
}

/// The port needs more privileges. The message says how to get them.
pub(super) fn denied(pod: Subject<'_>, number: u16) -> Hint {
    match written(pod, number) {
        Some(path) => Hint::at(path, "write a hostPort from 1024 up, or run it with sudo"),
        None => Hint::nowhere("give --publish a port from 1024 up, or run it with sudo"),
    }
}

fn another(pod: Subject<'_>, number: u16, stop: &str) -> Hint {
    match written(pod, number) {
        Some(path) => Hint::at(path, format!("{stop}, or write another hostPort")),
        None => Hint::nowhere(format!("{stop}, or give --publish another port of this machine")),
    }
}

/// Where a `hostPort` is written.
fn written(pod: Subject<'_>, number: u16) -> Option<FieldPath> {
    pod.containers.iter().zip(&pod.plan.containers).find_map(|(container, plan)| {
        let ports = container.ports.iter().flatten();
        let i = ports.map(|p| p.host_port).position(|p| p == Some(number.into()))?;
        Some(plan.place.path().field("ports").index(i).field("hostPort"))
    })
}

/// The process that listens on a TCP port of this machine, and its name, if this user may see it.
fn holder(port: u16) -> Option<(u32, String)> {
    let inode = listening_here().ok()?.into_iter().find(|l| l.address.port() == port)?.inode;
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&wanted))).then_some(())?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some((pid, name.trim_end().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (pid, name) = holder(port).unwrap();
        assert_eq!(pid, std::process::id());
        assert!(!name.is_empty());
        drop(listener);
        assert_eq!(holder(port), None);
    }
}
