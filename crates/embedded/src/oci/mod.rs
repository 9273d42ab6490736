//! Containers that an installed OCI runtime (runc, crun, runsc and others) creates, instead of Outrigger
//! itself.
//!
//! Everything around the container stays the same: sandbox, images, volumes, shim, protocol, log and exit
//! record. The shim writes a bundle (`bundle`) and calls the runtime's command line (`command`). The
//! runtime's own state about a container is below the container's directory, in a mount namespace of the
//! shim. All of it is gone when the shim and the container have ended.

pub(crate) mod bundle;
mod classes;
pub(crate) mod command;
pub(crate) mod console;
mod trial;

pub use classes::OciRuntimes;
pub(crate) use trial::try_runtime;
