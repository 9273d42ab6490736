//! Parses the output of the probe, without the parts that differ in every run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The fields of /proc/self/status that a runtime determines.
const STATUS: [&str; 21] = [
    "Umask:",
    "Uid:",
    "Gid:",
    "Groups:",
    "SigBlk:",
    "SigIgn:",
    "SigCgt:",
    "SigPnd:",
    "ShdPnd:",
    "CapInh:",
    "CapPrm:",
    "CapEff:",
    "CapBnd:",
    "CapAmb:",
    "NoNewPrivs:",
    "Seccomp:",
    "Seccomp_filters:",
    "Speculation_Store_Bypass:",
    "CoreDumping:",
    "Cpus_allowed_list:",
    "Mems_allowed_list:",
];

/// The facts of a log. `hidden` are paths that differ between runs.
pub(crate) fn facts(log: &str, hidden: &[(&Path, &str)]) -> BTreeSet<String> {
    log.lines().filter_map(|line| fact(line.trim_end(), hidden)).collect()
}

fn fact(line: &str, hidden: &[(&Path, &str)]) -> Option<String> {
    let (section, rest) = line.split_once(' ').unwrap_or((line, ""));
    let text = match section {
        "mount" => mount(rest)?,
        "status" => STATUS
            .iter()
            .any(|field| rest.starts_with(field))
            .then(|| line.split_whitespace().collect::<Vec<_>>().join(" "))?,
        "ns" => namespace(rest),
        // The kernel creates these when a terminal is opened, which privileged pods do here. A pod that runs
        // later therefore sees more of them.
        "dev" if rest.starts_with("/dev/vcs") => return None,
        _ => line.to_owned(),
    };
    Some(hidden.iter().fold(text, |text, (path, word)| text.replace(&*path.to_string_lossy(), word)))
}

/// Parses `mount POINT ROOT TYPE FLAGS PROPAGATION OPTIONS`, without numbers and layers.
fn mount(line: &str) -> Option<String> {
    let (mount, source) = line.split_once(" - ")?;
    let mount: Vec<&str> = mount.split(' ').collect();
    let source: Vec<&str> = source.split(' ').collect();
    let propagation: Vec<&str> = mount[6..].iter().map(|tag| tag.split(':').next().unwrap_or("")).collect();
    let propagation = if propagation.is_empty() { "private".to_owned() } else { propagation.join("+") };
    let changes = [
        "lowerdir",
        "lowerdir+",
        "upperdir",
        "workdir",
        "volatile",
        "index",
        "xino",
        "metacopy",
        "redirect_dir",
        "uuid",
    ];
    let options: Vec<&str> = source
        .last()?
        .split(',')
        .filter(|option| !changes.contains(&option.split('=').next().unwrap_or("")))
        .collect();
    Some(format!(
        "mount {} root={} type={} {} {propagation} {}",
        mount[4],
        mount[3],
        source[0],
        mount[5],
        options.join(",")
    ))
}

fn namespace(line: &str) -> String {
    let (name, link) = line.split_once(' ').unwrap_or((line, ""));
    let host = fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
    format!("ns {name} {}", if host == Path::new(link) { "host's" } else { "another" })
}
