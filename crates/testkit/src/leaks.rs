//! Finds what pods left on a machine: processes, mounts, cgroups, network interfaces, ranges of ids, files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The directory of the allocated id ranges.
const IDS: &str = "/run/outrigger/ids";

/// Descriptions of everything that is left of the pods of a state directory. `sandboxes` has the ids of all
/// sandboxes that it ever had.
pub fn left(state: &Path, sandboxes: &[String]) -> Vec<String> {
    let mut left: Vec<String> =
        names(&state.join("pods")).into_iter().map(|pod| format!("files of {pod}")).collect();
    left.extend(mounts(state));
    left.extend(processes(state, sandboxes));
    left.extend(cgroups(sandboxes));
    left.extend(interfaces(sandboxes));
    left.extend(ranges_of_ids(state));
    left
}

/// Names of the entries of a directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn mounts(state: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let state = format!("{}/", state.display());
    table.lines().filter(|line| line.contains(&state)).map(|line| format!("mount {line}")).collect()
}

/// Processes that have a file of the pods open, see one of their mounts, or are a shim of one of their
/// containers. This includes processes that hold a namespace of a pod.
fn processes(state: &Path, sandboxes: &[String]) -> Vec<String> {
    let pods = format!("{}/", state.join("pods").display());
    let prefixes: Vec<String> = sandboxes.iter().map(|id| format!("{}-", container_prefix(id))).collect();
    let mut seen = BTreeSet::new();
    let mut left = Vec::new();
    for pid in names(Path::new("/proc")).into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
        let dir = Path::new("/proc").join(&pid);
        let line = command_line(&dir);
        let is_shim = line.contains(" shim ") && prefixes.iter().any(|prefix| line.contains(prefix.as_str()));
        let files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let holds = files
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|to| to.to_string_lossy().starts_with(&pods));
        // Each mount namespace is checked once.
        let is_new = fs::read_link(dir.join("ns/mnt")).is_ok_and(|namespace| seen.insert(namespace));
        let sees =
            is_new && fs::read_to_string(dir.join("mountinfo")).is_ok_and(|table| table.contains(&pods));
        if is_shim || holds || sees {
            left.push(format!("process {pid}: {line}"));
        }
    }
    left
}

/// The prefix of the ids of a sandbox's containers.
pub fn container_prefix(sandbox: &str) -> String {
    sandbox.splitn(3, '-').take(2).collect::<Vec<_>>().join("-")
}

pub fn command_line(process: &Path) -> String {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn cgroups(sandboxes: &[String]) -> Vec<String> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = names(root).into_iter().chain([String::new()]);
    let there = hierarchies.flat_map(|hierarchy| {
        let pods = names(&root.join(&hierarchy).join("outrigger"));
        pods.into_iter().map(move |pod| (hierarchy.clone(), pod))
    });
    there
        .filter(|(_, pod)| sandboxes.contains(pod))
        .map(|(hierarchy, pod)| format!("cgroup {hierarchy}/{pod}"))
        .collect()
}

/// Interfaces at the host's end of a pod's network. Each uses an address.
fn interfaces(sandboxes: &[String]) -> Vec<String> {
    let net = Path::new("/sys/class/net");
    let alias = |name: &String| fs::read_to_string(net.join(name).join("ifalias")).unwrap_or_default();
    let is_ours = |name: &String| sandboxes.iter().any(|id| alias(name).trim().ends_with(id.as_str()));
    names(net).into_iter().filter(is_ours).map(|name| format!("interface {name}")).collect()
}

fn ranges_of_ids(state: &Path) -> Vec<String> {
    let state = state.display().to_string();
    let owner = |range: &String| fs::read_to_string(Path::new(IDS).join(range)).unwrap_or_default();
    let ours = names(Path::new(IDS)).into_iter().filter(|range| owner(range).starts_with(&state));
    ours.map(|range| format!("ids {range}")).collect()
}
