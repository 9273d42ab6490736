//! System call filters: the default one, and those given as OCI or Docker profiles.
//!
//! A [`policy::Policy`] is compiled to classic BPF here, without a library: it needs one program for every
//! architecture a process can make calls for, several actions, and no implicit `no_new_privs`.

mod default;
mod export;
mod names;
mod oci;
mod policy;
mod verdict;

pub(crate) use verdict::allows;

use super::caps::CapSet;
use super::fault::Fault;
use outrigger_runtime::{Identity, Seccomp};

/// The filter for a container; `None` is unconfined.
pub(crate) fn filter(identity: &Identity, caps: CapSet) -> Result<Option<Vec<libc::sock_filter>>, Fault> {
    policy(identity, caps)?.map(|policy| policy.compile()).transpose()
}

/// The same filter for an OCI runtime, which compiles it by itself.
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
