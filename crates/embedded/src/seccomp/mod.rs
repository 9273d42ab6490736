//! System call filters: the default filter, and filters given as OCI or Docker profiles.
//!
//! A [`policy::Policy`] is compiled to classic BPF here, without a library. It needs one program for every
//! architecture that a process can make calls for, several actions, and no implicit `no_new_privs`.

mod default;
mod export;
mod names;
mod oci;
mod policy;
mod verdict;

pub(crate) use verdict::allows;

use std::sync::OnceLock;

use super::caps::{self, CapSet};
use super::fault::Fault;
use outrigger_runtime::{Identity, Seccomp};

/// The default filter, for the capabilities of a container without special settings.
static PREPARED: OnceLock<(CapSet, Vec<libc::sock_filter>)> = OnceLock::new();

/// Compiles the filter that most containers have. Processes that are forked from this one do not have to
/// compile it again.
pub(crate) fn prepare() {
    let identity = Identity::default();
    // If this fails, the first container reports the error.
    if let Ok(caps) = caps::wanted(&identity)
        && let Ok(Some(filter)) = compile(&identity, caps)
    {
        let _ = PREPARED.set((caps, filter));
    }
}

/// The filter for a container. `None` means unconfined.
pub(crate) fn filter(identity: &Identity, caps: CapSet) -> Result<Option<Vec<libc::sock_filter>>, Fault> {
    let is_default = !identity.privileged && identity.seccomp == Seccomp::Default;
    match PREPARED.get() {
        Some((prepared, filter)) if is_default && *prepared == caps => Ok(Some(filter.clone())),
        _ => compile(identity, caps),
    }
}

fn compile(identity: &Identity, caps: CapSet) -> Result<Option<Vec<libc::sock_filter>>, Fault> {
    policy(identity, caps)?.map(|policy| policy.compile()).transpose()
}

/// The same filter for an OCI runtime, which compiles it itself.
pub(crate) fn oci_form(identity: &Identity, caps: CapSet) -> Result<Option<serde_json::Value>, Fault> {
    Ok(policy(identity, caps)?.map(|policy| export::oci_form(&policy)))
}

fn policy(identity: &Identity, caps: CapSet) -> Result<Option<policy::Policy>, Fault> {
    if identity.privileged {
        return Ok(None);
    }
    Ok(Some(match &identity.seccomp {
        Seccomp::Unconfined => return Ok(None),
        Seccomp::Default => default::policy(caps, oci::kernel()),
        Seccomp::Localhost(path) => oci::read(path, caps)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prepared_filter_is_the_one_that_would_be_compiled() {
        prepare();
        let usual = Identity::default();
        let tracing = Identity { add_capabilities: vec!["SYS_PTRACE".into()], ..Identity::default() };
        let unconfined = Identity { seccomp: Seccomp::Unconfined, ..Identity::default() };
        let privileged = Identity { privileged: true, ..Identity::default() };
        for identity in [usual, tracing, unconfined, privileged] {
            let caps = caps::wanted(&identity).unwrap();
            let code = |filter: Option<Vec<libc::sock_filter>>| {
                filter.map(|filter| filter.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect::<Vec<_>>())
            };
            let (given, compiled) = (filter(&identity, caps).unwrap(), compile(&identity, caps).unwrap());
            assert_eq!(code(given), code(compiled), "{identity:?}");
        }
    }
}
