//! Notifies systemd that the service is ready or stopping.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state to systemd, if this was started as a notifying service.
pub(super) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&socket),
    };
    let send = || -> std::io::Result<()> {
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address?)?;
        Ok(())
    };
    if let Err(e) = send() {
        tracing::warn!("cannot tell systemd {state:?}: {e}");
    }
}
