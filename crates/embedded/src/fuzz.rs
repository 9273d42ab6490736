//! Entry points for fuzzing. Each takes arbitrary untrusted bytes. They are not part of the API.

/// Parses the messages between an agent and a shim.
pub fn shim(bytes: &[u8]) {
    crate::protocol::fuzz(bytes);
}

/// Parses the kernel's messages about interfaces, addresses, routes and packet filters.
pub fn netlink(bytes: &[u8]) {
    crate::network::fuzz(bytes);
}
