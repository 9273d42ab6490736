//! Makes the kernel forget connections that it tracks. The kernel keeps sending the packets of a connection
//! to the same destination, even if the rules have changed. A UDP client that never pauses would therefore
//! not reach the next pod with the same published port. It would reach whatever now has the address of the
//! last pod.

use std::io;
use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::link::is;
use super::netlink::{ACK, DUMP, Message, Netlink, REQUEST, attributes};

const CONNECTIONS: u16 = 1;
const NEW: u16 = CONNECTIONS << 8;
const GET: u16 = CONNECTIONS << 8 | 1;
const DELETE: u16 = CONNECTIONS << 8 | 2;
/// `struct nfgenmsg` for IPv4.
const HEADER: [u8; 4] = [2, 0, 0, 0];

const AS_SENT: u16 = 1;
const AS_ANSWERED: u16 = 2;
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const DESTINATION_PORT: u16 = 3;
const UDP: u8 = 17;
const SOURCE: u16 = 1;
const DESTINATION: u16 = 2;

/// Forgets the connections whose destination was rewritten to this address.
pub(super) fn forget_redirected_to(address: Ipv4Addr) -> io::Result<()> {
    forget(|connection| redirected_to(connection, address))
}

/// Forgets the datagrams of UDP clients to this port of one of the host's addresses, if they were not
/// redirected. Rules apply only to the first packet of what the kernel takes for a connection.
pub(super) fn forget_udp_sent_to(port: u16, addresses: &[Ipv4Addr]) -> io::Result<()> {
    forget(|connection| sent_to(connection, port, addresses))
}

/// Forgets the connections for which `identify` returns an identification.
fn forget(identify: impl Fn(&[u8]) -> Option<&[u8]>) -> io::Result<()> {
    let mut netlink = Netlink::open(Some(rustix::net::netlink::NETFILTER))?;
    for connection in netlink.ask(Message::new(GET, REQUEST | DUMP, &HEADER), NEW)? {
        let Some(as_sent) = identify(&connection) else { continue };
        let mut delete = Message::new(DELETE, REQUEST | ACK, &HEADER);
        delete.nested(AS_SENT, |m| {
            m.raw(as_sent);
        });
        match netlink.request(delete) {
            // The connection has ended in the meantime.
            Err(e) if is(&e, Errno::NOENT) => {}
            result => result?,
        }
    }
    Ok(())
}

/// The identification of the connection, if the address that answers is not the address that it was sent to.
pub(super) fn redirected_to(connection: &[u8], address: Ipv4Addr) -> Option<&[u8]> {
    let (as_sent, sent_to, answers) = parse(connection)?;
    (answers == address.octets() && sent_to != address.octets()).then_some(as_sent)
}

/// The identification of the connection, if it is UDP to this port of one of these addresses, and that
/// address itself answers.
pub(super) fn sent_to<'a>(connection: &'a [u8], port: u16, addresses: &[Ipv4Addr]) -> Option<&'a [u8]> {
    let (as_sent, sent_to, answers) = parse(connection)?;
    let protocol = find(as_sent, PROTOCOL)?;
    let wanted = find(protocol, PROTOCOL_NUMBER)? == [UDP]
        && find(protocol, DESTINATION_PORT)? == port.to_be_bytes()
        && addresses.iter().any(|address| sent_to == address.octets())
        && sent_to == answers;
    wanted.then_some(as_sent)
}

/// Parses a connection: its identification, the address that it was sent to, and the address that answers.
fn parse(connection: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let connection = connection.get(HEADER.len()..)?;
    let as_sent = find(connection, AS_SENT)?;
    let answers = find(find(find(connection, AS_ANSWERED)?, ADDRESSES)?, SOURCE)?;
    let sent_to = find(find(as_sent, ADDRESSES)?, DESTINATION)?;
    Some((as_sent, sent_to, answers))
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}
