//! Reads filters from files: the `linux.seccomp` object of the OCI runtime specification, or a Docker
//! profile. A Docker profile adds `archMap`, and rules that depend on capabilities, architecture and kernel.

use std::path::Path;

use serde::Deserialize;

use super::names::Arch;
use super::policy::{Action, Compare, Condition, Policy, Rule};
use crate::caps::CapSet;
use crate::fault::{Context, Fault};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    default_errno_ret: Option<u16>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    arch_map: Vec<ArchEntry>,
    #[serde(default)]
    syscalls: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchEntry {
    architecture: String,
    #[serde(default)]
    sub_architectures: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    names: Vec<String>,
    action: String,
    errno_ret: Option<u16>,
    #[serde(default)]
    args: Option<Vec<Arg>>,
    #[serde(default)]
    includes: Option<Scope>,
    #[serde(default)]
    excludes: Option<Scope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arg {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Scope {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
    min_kernel: Option<String>,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("action {0:?} is not supported")]
    Action(String),
    #[error("a system call has no argument {0}")]
    Argument(u8),
    #[error("comparison {0:?} is not supported")]
    Comparison(String),
}

/// Reads a profile for a container with these capabilities.
pub(super) fn read(path: &Path, caps: CapSet) -> Result<Policy, Fault> {
    let text = std::fs::read_to_string(path)
        .configuring(|| format!("cannot read seccomp profile {}", path.display()))?;
    parse(&text, caps, kernel())
        .map_err(|error| Fault::config(format!("seccomp profile {}: {error}", path.display())))
}

fn parse(text: &str, caps: CapSet, kernel: (u32, u32)) -> Result<Policy, ProfileError> {
    let profile: Profile = serde_json::from_str(text)?;
    let mut rules = Vec::new();
    for entry in &profile.syscalls {
        let included = entry.includes.as_ref().is_none_or(|scope| scope.holds(caps, kernel, true));
        let excluded = entry.excludes.as_ref().is_some_and(|scope| scope.holds(caps, kernel, false));
        if !included || excluded {
            continue;
        }
        let action = action(&entry.action, entry.errno_ret)?;
        let conditions: Vec<Condition> =
            entry.args.iter().flatten().map(condition).collect::<Result<_, ProfileError>>()?;
        // Several tests of one argument cannot hold together, so each becomes a separate rule.
        let repeats = (0..6).any(|index| conditions.iter().filter(|test| test.argument == index).count() > 1);
        for name in entry.names.iter().chain(&entry.name) {
            let mut add =
                |conditions: Vec<Condition>| rules.push(Rule { name: name.clone(), conditions, action });
            if repeats {
                conditions.iter().for_each(|condition| add(vec![*condition]));
            } else {
                add(conditions.clone());
            }
        }
    }
    let wanted = |arch: &Arch| *arch == Arch::NATIVE || profile.mentions(arch_name(*arch));
    Ok(Policy {
        default: action(&profile.default_action, profile.default_errno_ret)?,
        rules,
        arches: Arch::all().iter().copied().filter(wanted).collect(),
    })
}

impl Profile {
    fn mentions(&self, arch: &str) -> bool {
        let mapped = self.arch_map.iter().filter(|entry| entry.architecture == arch_name(Arch::NATIVE));
        self.architectures.iter().any(|name| name == arch)
            || mapped.flat_map(|entry| entry.sub_architectures.iter().flatten()).any(|name| name == arch)
    }
}

impl Scope {
    /// Whether the scope applies to the container: all parts of an `includes` must match, or any part of an
    /// `excludes`.
    fn holds(&self, caps: CapSet, kernel: (u32, u32), all: bool) -> bool {
        let has = |name: &String| CapSet::named(name).is_some_and(|cap| caps.has(cap));
        let native = if Arch::NATIVE == Arch::Aarch64 { "arm64" } else { "amd64" };
        let mut parts = Vec::new();
        if !self.caps.is_empty() {
            parts.push(if all { self.caps.iter().all(has) } else { self.caps.iter().any(has) });
        }
        if !self.arches.is_empty() {
            parts.push(self.arches.iter().any(|name| name == native));
        }
        if let Some(minimum) = &self.min_kernel {
            parts.push(version(minimum) <= kernel);
        }
        if all { parts.iter().all(|part| *part) } else { parts.iter().any(|part| *part) }
    }
}

pub(super) fn arch_name(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "SCMP_ARCH_X86_64",
        Arch::I386 => "SCMP_ARCH_X86",
        Arch::Aarch64 => "SCMP_ARCH_AARCH64",
        Arch::Arm => "SCMP_ARCH_ARM",
    }
}

fn action(name: &str, errno: Option<u16>) -> Result<Action, ProfileError> {
    let errno = errno.unwrap_or(libc::EPERM as u16);
    Ok(match name {
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_ERRNO" => Action::Errno(errno),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Action::KillProcess,
        "SCMP_ACT_TRAP" => Action::Trap,
        "SCMP_ACT_TRACE" => Action::Trace(errno),
        "SCMP_ACT_LOG" => Action::Log,
        _ => return Err(ProfileError::Action(name.to_owned())),
    })
}

fn condition(arg: &Arg) -> Result<Condition, ProfileError> {
    if arg.index > 5 {
        return Err(ProfileError::Argument(arg.index));
    }
    let (compare, value) = match arg.op.as_str() {
        "SCMP_CMP_NE" => (Compare::NotEqual, arg.value),
        "SCMP_CMP_LT" => (Compare::Less, arg.value),
        "SCMP_CMP_LE" => (Compare::LessOrEqual, arg.value),
        "SCMP_CMP_EQ" => (Compare::Equal, arg.value),
        "SCMP_CMP_GE" => (Compare::GreaterOrEqual, arg.value),
        "SCMP_CMP_GT" => (Compare::Greater, arg.value),
        "SCMP_CMP_MASKED_EQ" => (Compare::Masked(arg.value), arg.value_two),
        op => return Err(ProfileError::Comparison(op.to_owned())),
    };
    Ok(Condition { argument: arg.index, compare, value })
}

/// Version of the running kernel.
pub(super) fn kernel() -> (u32, u32) {
    version(&rustix::system::uname().release().to_string_lossy())
}

/// The first two numbers of a version.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_profiles_depend_on_capabilities_and_kernel() {
        let profile = r#"{
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
            "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]},
                        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}],
            "syscalls": [
                {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"},
                {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
                {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"]},
                 "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
                {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
                {"names": ["socket"], "action": "SCMP_ACT_ALLOW",
                 "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]}
            ]}"#;
        let names = |caps, kernel| -> Vec<String> {
            parse(profile, caps, kernel).unwrap().rules.into_iter().map(|rule| rule.name).collect()
        };
        let admin = CapSet::named("SYS_ADMIN").unwrap();
        assert_eq!(names(CapSet(0), (6, 1)), ["read", "write", "clone", "ptrace", "socket", "socket"]);
        assert_eq!(names(admin, (4, 7)), ["read", "write", "mount", "socket", "socket"]);
        let policy = parse(profile, CapSet(0), (6, 1)).unwrap();
        assert_eq!(policy.default, Action::Errno(38));
        assert_eq!(policy.arches, Arch::all());
        assert!(policy.compile().is_ok());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for (profile, complaint) in [
            (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
            (r#"{}"#, "defaultAction"),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
                    "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_ABOUT"}]}]}"#,
                "SCMP_CMP_ABOUT",
            ),
        ] {
            let error = parse(profile, CapSet(0), (6, 1)).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
