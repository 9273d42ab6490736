//! Manages the interfaces, addresses and routes of a network namespace.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::io::Errno;

use super::enter::socket_in;
use super::netlink::{ACK, CREATE, DUMP, EXCL, Message, Netlink, REQUEST, attributes, read_text, read_u32};
use super::subnet::Subnet;

const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const NEWADDR: u16 = 20;
const GETADDR: u16 = 22;
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const OPERATIONAL: u8 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const SKIP_STATISTICS: u32 = 8;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

const IFF_UP: u32 = 1;
const INET: u8 = 2;
/// The lengths of the fixed headers.
const LINK_BYTES: usize = 16;
const ADDR_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;

/// A hardware address.
pub(super) type Mac = [u8; 6];

/// An interface as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// A free text. Outrigger stores the sandbox id here.
    pub(super) alias: String,
    pub(super) mac: Mac,
    /// Whether it is enabled and can carry packets, as far as the kernel has noticed.
    pub(super) operational: bool,
}

/// A route of any table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: Subnet,
    pub(super) interface: Option<u32>,
}

/// Manages the links, addresses and routes of one network namespace.
pub(super) struct Links(Netlink);

impl Links {
    /// Opens the namespace at `netns`, or the caller's own.
    pub(super) fn open(netns: Option<&Path>) -> io::Result<Links> {
        socket_in(netns, || Netlink::open(None)).map(Links)
    }

    pub(super) fn list(&mut self) -> io::Result<Vec<Link>> {
        let mut message = Message::new(GETLINK, REQUEST | DUMP, &link_header(0, 0));
        message.u32(IFLA_EXT_MASK, SKIP_STATISTICS);
        let found = self.0.ask(message, NEWLINK)?;
        Ok(found.iter().filter_map(|bytes| parse_link(bytes)).collect())
    }

    pub(super) fn find(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut message = Message::new(GETLINK, REQUEST | ACK, &link_header(0, 0));
        message.text(IFLA_IFNAME, name);
        self.one(message)
    }

    pub(super) fn by_index(&mut self, index: u32) -> io::Result<Option<Link>> {
        self.one(Message::new(GETLINK, REQUEST | ACK, &link_header(index, 0)))
    }

    fn one(&mut self, message: Message) -> io::Result<Option<Link>> {
        match self.0.ask(message, NEWLINK) {
            Ok(found) => Ok(found.first().and_then(|bytes| parse_link(bytes))),
            Err(e) if is(&e, Errno::NODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Enables an interface, if it is not already.
    pub(super) fn up(&mut self, index: u32) -> io::Result<()> {
        self.0.request(Message::new(SETLINK, REQUEST | ACK, &link_header(index, IFF_UP)))
    }

    /// Enables loopback, which is the first interface of every namespace.
    pub(super) fn loopback_up(&mut self) -> io::Result<()> {
        self.up(1)
    }

    /// Sets the alias of an interface and enables it.
    pub(super) fn up_with_alias(&mut self, name: &str, alias: &str) -> io::Result<()> {
        let mut message = Message::new(SETLINK, REQUEST | ACK, &link_header(0, IFF_UP));
        message.text(IFLA_IFNAME, name).bytes(IFLA_IFALIAS, alias.as_bytes());
        self.0.request(message)
    }

    /// Creates a disabled bridge. `false` if an interface with that name exists.
    pub(super) fn add_bridge(&mut self, name: &str, mac: Mac) -> io::Result<bool> {
        let mut message = Message::new(NEWLINK, REQUEST | ACK | CREATE | EXCL, &link_header(0, 0));
        // A bridge without its own address uses the lowest address of its ports. Every pod that comes or goes
        // could then change the address in the other pods' neighbour tables.
        message.text(IFLA_IFNAME, name).bytes(IFLA_ADDRESS, &mac).nested(IFLA_LINKINFO, |m| {
            m.text(IFLA_INFO_KIND, "bridge");
        });
        unless_exists(self.0.request(message))
    }

    /// Creates a disabled pair of interfaces: `name` here as a port of `bridge`, and `peer_name` in the
    /// namespace `peer_ns`. `false` if a name is in use.
    pub(super) fn add_veth(
        &mut self,
        name: &str,
        bridge: u32,
        peer_name: &str,
        peer_mac: Mac,
        peer_ns: BorrowedFd<'_>,
    ) -> io::Result<bool> {
        let mut message = Message::new(NEWLINK, REQUEST | ACK | CREATE | EXCL, &link_header(0, 0));
        message.text(IFLA_IFNAME, name).u32(IFLA_MASTER, bridge).nested(IFLA_LINKINFO, |m| {
            m.text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |m| {
                m.nested(VETH_INFO_PEER, |m| {
                    m.raw(&link_header(0, 0))
                        .text(IFLA_IFNAME, peer_name)
                        .bytes(IFLA_ADDRESS, &peer_mac)
                        .u32(IFLA_NET_NS_FD, peer_ns.as_raw_fd().cast_unsigned());
                });
            });
        });
        unless_exists(self.0.request(message))
    }

    /// Removes an interface, and the other end of a pair. A missing interface is not an error.
    pub(super) fn delete(&mut self, index: u32) -> io::Result<()> {
        match self.0.request(Message::new(DELLINK, REQUEST | ACK, &link_header(index, 0))) {
            Err(e) if is(&e, Errno::NODEV) => Ok(()),
            result => result,
        }
    }

    /// Adds an address to an interface. `false` if the interface already has it.
    pub(super) fn add_address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<bool> {
        let mut fixed = [INET, prefix, 0, 0, 0, 0, 0, 0];
        fixed[4..].copy_from_slice(&index.to_ne_bytes());
        let mut message = Message::new(NEWADDR, REQUEST | ACK | CREATE | EXCL, &fixed);
        message.bytes(IFA_LOCAL, &address.octets()).bytes(IFA_ADDRESS, &address.octets());
        unless_exists(self.0.request(message))
    }

    /// The IPv4 addresses of an interface, each with its subnet.
    pub(super) fn addresses(&mut self, index: u32) -> io::Result<Vec<(Ipv4Addr, Subnet)>> {
        let message = Message::new(GETADDR, REQUEST | DUMP, &[INET, 0, 0, 0, 0, 0, 0, 0]);
        let found = self.0.ask(message, NEWADDR)?;
        Ok(found.iter().filter(|b| read_u32(b, 4) == Some(index)).filter_map(|b| parse_address(b)).collect())
    }

    /// The interfaces with an IPv4 address.
    pub(super) fn with_addresses(&mut self) -> io::Result<BTreeSet<u32>> {
        let message = Message::new(GETADDR, REQUEST | DUMP, &[INET, 0, 0, 0, 0, 0, 0, 0]);
        Ok(self.0.ask(message, NEWADDR)?.iter().filter_map(|bytes| read_u32(bytes, 4)).collect())
    }

    /// Adds a default route to `gateway`.
    pub(super) fn add_default_route(&mut self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        const MAIN: u8 = 254;
        const BOOT: u8 = 3;
        const UNICAST: u8 = 1;
        let fixed = [INET, 0, 0, 0, MAIN, BOOT, 0, UNICAST, 0, 0, 0, 0];
        let mut message = Message::new(NEWROUTE, REQUEST | ACK | CREATE | EXCL, &fixed);
        message.bytes(RTA_GATEWAY, &gateway.octets()).u32(RTA_OIF, index);
        unless_exists(self.0.request(message)).map(drop)
    }

    /// All IPv4 routes, including local ones.
    pub(super) fn routes(&mut self) -> io::Result<Vec<Route>> {
        let message = Message::new(GETROUTE, REQUEST | DUMP, &[INET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let found = self.0.ask(message, NEWROUTE)?;
        Ok(found.iter().filter_map(|bytes| parse_route(bytes)).collect())
    }
}

/// Whether an error is the given kernel error.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn unless_exists(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if is(&e, Errno::EXIST) => Ok(false),
        Err(e) => Err(e),
    }
}

/// `struct ifinfomsg`. The `flags` are set, all others stay unchanged.
fn link_header(index: u32, flags: u32) -> [u8; LINK_BYTES] {
    let mut header = [0; LINK_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Parses any bytes as a link, an address and a route.
pub(super) fn fuzz(bytes: &[u8]) {
    drop((parse_link(bytes), parse_address(bytes)));
    if let Some(route) = parse_route(bytes) {
        drop(route.to.to_string());
    }
}

fn parse_link(bytes: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: read_u32(bytes, 4)?,
        name: String::new(),
        alias: String::new(),
        mac: Mac::default(),
        operational: false,
    };
    for (kind, value) in attributes(bytes.get(LINK_BYTES..)?) {
        match kind {
            IFLA_IFNAME => link.name = read_text(value),
            IFLA_OPERSTATE => link.operational = value.first() == Some(&OPERATIONAL),
            IFLA_IFALIAS => link.alias = read_text(value),
            IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            _ => {}
        }
    }
    Some(link)
}

fn parse_address(bytes: &[u8]) -> Option<(Ipv4Addr, Subnet)> {
    let prefix = *bytes.get(1)?;
    attributes(bytes.get(ADDR_BYTES..)?)
        .find(|(kind, _)| *kind == IFA_LOCAL)
        .and_then(|(_, value)| parse_ip(value))
        .map(|ip| (ip, Subnet::new(ip, prefix)))
}

fn parse_route(bytes: &[u8]) -> Option<Route> {
    let prefix = *bytes.get(1)?;
    let mut route = Route { to: Subnet::new(Ipv4Addr::UNSPECIFIED, prefix), interface: None };
    for (kind, value) in attributes(bytes.get(ROUTE_BYTES..)?) {
        match kind {
            RTA_DST => route.to = Subnet::new(parse_ip(value)?, prefix),
            RTA_OIF => route.interface = read_u32(value, 0),
            _ => {}
        }
    }
    Some(route)
}

fn parse_ip(bytes: &[u8]) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))
}
