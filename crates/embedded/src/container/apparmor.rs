//! Mandatory access control: applies AppArmor profiles. SELinux labels are not supported.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use crate::fault::Fault;
use outrigger_runtime::{AppArmor, Identity};

/// Profiles that are used as the default if they are loaded, the best one first.
const DEFAULTS: [&str; 3] = ["outrigger-default", "cri-containerd.apparmor.d", "docker-default"];

/// The AppArmor state of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Machine {
    /// Whether AppArmor is active.
    is_active: bool,
    /// The names of the loaded profiles. `None` if the list cannot be read.
    loaded: Option<Vec<String>>,
}

impl Machine {
    fn here() -> Self {
        let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
        if enabled.trim() != "Y" {
            return Machine::default();
        }
        let list = fs::read_to_string("/sys/kernel/security/apparmor/profiles").ok();
        let name = |line: &str| line.rsplit_once(" (").map_or(line, |(name, _)| name).to_owned();
        Machine { is_active: true, loaded: list.map(|list| list.lines().map(name).collect()) }
    }

    fn has(&self, name: &str) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.iter().any(|known| known == name))
    }
}

/// Why a profile cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppArmorError {
    /// AppArmor is not active, so nothing would enforce the profile.
    #[error("AppArmor profile {0:?} cannot be applied: AppArmor is not active on this machine")]
    NotActive(String),
    /// The kernel does not know the profile.
    #[error("AppArmor profile {0:?} is not loaded on this machine; load it with apparmor_parser")]
    NotLoaded(String),
    /// The default profile is requested, and none is loaded.
    #[error(
        "no default AppArmor profile is loaded on this machine; load one with the name {:?}, or use type \
         Localhost or Unconfined",
        DEFAULTS[0]
    )]
    NoDefault,
}

/// Whether AppArmor is active on this machine.
pub fn app_armor_is_active() -> bool {
    Machine::here().is_active
}

/// Why a profile cannot be applied on this machine. `None` if it can.
pub fn app_armor_fault(wanted: &AppArmor) -> Option<AppArmorError> {
    choose(Some(wanted), &Machine::here()).err()
}

/// The profile of a container's processes. A profile that cannot be applied is an error, so that nobody
/// relies on it.
pub(crate) fn profile(identity: &Identity) -> Result<Option<String>, Fault> {
    if identity.selinux.is_some() {
        return Err(Fault::config(
            "seLinuxOptions cannot be applied: the embedded runtime does not label files; use --runtime cri on a machine \
             with SELinux, or remove them",
        ));
    }
    if identity.privileged {
        return Ok(None);
    }
    choose(identity.apparmor.as_ref(), &Machine::here()).map_err(|error| Fault::config(error.to_string()))
}

fn choose(wanted: Option<&AppArmor>, machine: &Machine) -> Result<Option<String>, AppArmorError> {
    let default = || DEFAULTS.iter().find(|name| machine.has(name)).map(|name| (*name).to_owned());
    match wanted {
        Some(AppArmor::Localhost(name)) if !machine.is_active => Err(AppArmorError::NotActive(name.clone())),
        Some(AppArmor::Localhost(name)) if machine.loaded.is_some() && !machine.has(name) => {
            Err(AppArmorError::NotLoaded(name.clone()))
        }
        Some(AppArmor::Localhost(name)) => Ok(Some(name.clone())),
        Some(AppArmor::Unconfined) => Ok(None),
        // If AppArmor is not active, no runtime confines containers with it.
        Some(AppArmor::Default) if machine.is_active => default().map(Some).ok_or(AppArmorError::NoDefault),
        Some(AppArmor::Default) => Ok(None),
        None => Ok(default()),
    }
}

/// Makes the next program that this thread executes run under a profile.
pub(super) fn change_on_exec(name: &str) -> io::Result<()> {
    let open = |path: &str| File::options().write(true).open(path);
    let mut file = match open("/proc/thread-self/attr/apparmor/exec") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open("/proc/thread-self/attr/exec")?,
        opened => opened?,
    };
    // Refuses a file that an image put there.
    if rustix::fs::fstatfs(file.as_fd())?.f_type != rustix::fs::PROC_SUPER_MAGIC {
        return Err(io::Error::other("/proc is not a proc file system"));
    }
    file.write_all(format!("exec {name}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_applied_is_refused() {
        let machine = |is_active, loaded: &[&str]| Machine {
            is_active,
            loaded: Some(loaded.iter().map(|name| (*name).to_owned()).collect()),
        };
        let (off, bare) = (Machine::default(), machine(true, &[]));
        let full = machine(true, &["docker-default", "web"]);
        let web = || AppArmor::Localhost("web".to_owned());
        for (wanted, machine, expected) in [
            (None, &off, Ok(None)),
            (None, &bare, Ok(None)),
            (None, &full, Ok(Some("docker-default"))),
            (Some(AppArmor::Default), &off, Ok(None)),
            (Some(AppArmor::Default), &bare, Err("no default AppArmor profile")),
            (Some(AppArmor::Default), &full, Ok(Some("docker-default"))),
            (Some(AppArmor::Unconfined), &full, Ok(None)),
            (Some(web()), &off, Err("AppArmor is not active")),
            (Some(web()), &bare, Err("not loaded")),
            (Some(web()), &full, Ok(Some("web"))),
            (Some(web()), &Machine { is_active: true, loaded: None }, Ok(Some("web"))),
        ] {
            let got = choose(wanted.as_ref(), machine);
            match (&got, expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name.as_deref(), expected, "{wanted:?} {machine:?}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, expected) => panic!("{wanted:?} {machine:?}: {got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn selinux_labels_are_refused() {
        let identity = Identity { selinux: Some(Default::default()), ..Identity::default() };
        assert!(profile(&identity).unwrap_err().text.contains("seLinuxOptions"));
    }
}
