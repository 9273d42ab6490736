//! Hints on host ports that cannot be opened.

use outrigger_lifecycle::FieldPath;

use super::{Hint, PortHolder, Subject};

/// Another process listens on the port.
pub(super) fn in_use(pod: Subject<'_>, number: u16) -> Hint {
    let stop = match (pod.port_holder)(number) {
        // This process listens for one of its pods, perhaps of another run. A pod that is being replaced
        // still has the port, so the next attempt may succeed.
        Some(PortHolder::ThisProcess) => {
            let hint = "another pod has the port; this one starts when that pod is gone";
            let path = written(pod, number);
            return path.map_or_else(|| Hint::nowhere(hint), |path| Hint::at(path, hint));
        }
        Some(PortHolder::Other { pid, name }) => format!("{name} (process {pid}) listens there: stop it"),
        None => "stop the program that listens there".to_owned(),
    };
    another(pod, number, &stop)
}

/// The port cannot be opened, and no known process listens on it.
pub(super) fn refused(pod: Subject<'_>, number: u16) -> Hint {
    another(pod, number, "stop the program that listens there")
}

/// The address does not belong to this machine.
pub(super) fn not_of_this_machine(pod: Subject<'_>, number: u16) -> Hint {
    match entry(pod, number) {
        Some(path) => Hint::at(
            path.field("hostIP"),
            "write an address of this machine (`ip address` lists them), or leave hostIP out to use all of them",
        ),
        None => Hint::nowhere("give --publish an address of this machine (`ip address` lists them)"),
    }
}

/// The port needs more privileges. The message already says how to get them.
pub(super) fn denied(pod: Subject<'_>, number: u16) -> Hint {
    match written(pod, number) {
        Some(path) => Hint::at(path, "use a hostPort of 1024 or above, or run with sudo"),
        None => Hint::nowhere("give --publish a port of 1024 or above, or run with sudo"),
    }
}

fn another(pod: Subject<'_>, number: u16, stop: &str) -> Hint {
    match written(pod, number) {
        Some(path) => Hint::at(path, format!("{stop}, or write another hostPort")),
        None => Hint::nowhere(format!("{stop}, or give --publish another port of this machine")),
    }
}

/// The place where a `hostPort` is written.
fn written(pod: Subject<'_>, number: u16) -> Option<FieldPath> {
    Some(entry(pod, number)?.field("hostPort"))
}

/// The entry of `ports` with a `hostPort`.
fn entry(pod: Subject<'_>, number: u16) -> Option<FieldPath> {
    pod.containers.iter().zip(&pod.plan.containers).find_map(|(container, plan)| {
        let ports = container.ports.iter().flatten();
        let i = ports.map(|p| p.host_port).position(|p| p == Some(number.into()))?;
        Some(plan.place.path().field("ports").index(i))
    })
}
