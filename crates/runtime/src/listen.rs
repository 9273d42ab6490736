//! The open TCP ports of a network namespace, as the kernel reports them.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::netns::socket_in_async;

/// The tables of the calling thread's network.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// The kernel's state number of a listening socket.
const LISTEN: &str = "0A";

/// An open TCP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// The inode of the socket, which identifies its process.
    pub inode: u64,
}

/// The open TCP ports in the network namespace at `netns`, in no particular order. `None` means the host's
/// own namespace.
///
/// # Errors
/// The namespace cannot be entered, or the tables cannot be read.
pub async fn listening(netns: Option<&Path>) -> io::Result<Vec<Listener>> {
    socket_in_async(netns, listening_here).await
}

/// The open TCP ports in the calling thread's network.
///
/// # Errors
/// The tables cannot be read.
pub fn listening_here() -> io::Result<Vec<Listener>> {
    let mut all = parse(&fs::read_to_string(TABLES[0])?);
    // Not every machine has IPv6.
    all.extend(parse(&fs::read_to_string(TABLES[1]).unwrap_or_default()));
    Ok(all)
}

/// The process that listens on a TCP port of this machine, and its name. `None` if this user may not see it.
pub fn holder(port: u16) -> Option<(u32, String)> {
    let inode = listening_here().ok()?.into_iter().find(|l| l.address.port() == port)?.inode;
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&wanted))).then_some(())?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some((pid, name.trim_end().to_owned()))
    })
}

fn parse(table: &str) -> Vec<Listener> {
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state) = (fields.get(1)?, fields.get(3)?);
        let (ip, port) = local.split_once(':')?;
        let address = SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?);
        (*state == LISTEN).then_some(Listener { address, inode: fields.get(9)?.parse().ok()? })
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// Parses an address in the format of the tables, which contain words in the byte order of the machine.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(word(0)?.into()),
        32 => {
            let bytes: [u8; 16] = [word(0)?, word(8)?, word(16)?, word(24)?].concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_listens_is_found_with_its_address() {
        let sockets = ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"].map(|a| TcpListener::bind(a).unwrap());
        let found = listening_here().unwrap();
        for socket in &sockets {
            let address = socket.local_addr().unwrap();
            assert!(found.iter().any(|l| l.address == address && l.inode > 0), "{address}: {found:?}");
        }
        let client = std::net::TcpStream::connect(sockets[0].local_addr().unwrap()).unwrap();
        let own = client.local_addr().unwrap();
        assert!(!listening_here().unwrap().iter().any(|l| l.address == own), "connections do not listen");
    }

    #[test]
    fn who_listens_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (pid, name) = holder(port).unwrap();
        assert_eq!(pid, std::process::id());
        assert!(!name.is_empty());
        drop(listener);
        assert_eq!(holder(port), None);
    }
}
