//! nf_tables over netlink: tables, chains, and the few expressions that our rules need.

use std::io;

use rustix::io::Errno;

use super::link::{Mac, is};
use super::netlink::{ACK, APPEND, CREATE, DUMP, EXCL, Message, Netlink, REQUEST, attributes, read_text};
use super::{Ipv4Addr, Subnet};

/// The name of the table of all rules. There is one in each family.
const TABLE: &str = "outrigger";

const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = NFTABLES << 8;
const GETTABLE: u16 = NFTABLES << 8 | 1;
const DELTABLE: u16 = NFTABLES << 8 | 2;
const NEWCHAIN: u16 = NFTABLES << 8 | 3;
const GETCHAIN: u16 = NFTABLES << 8 | 4;
const DELCHAIN: u16 = NFTABLES << 8 | 5;
const NEWRULE: u16 = NFTABLES << 8 | 6;

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;

/// The register for all comparisons here. Register 0 is the verdict.
const REGISTER: u32 = 1;
const VERDICT: u32 = 0;
/// Length of an interface name in the kernel.
const NAME_BYTES: usize = 16;

/// The family of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// IPv4 packets.
    Ip,
    /// Frames that an interface receives.
    Netdev,
}

impl Family {
    fn number(self) -> u8 {
        match self {
            Family::Ip => 2,
            Family::Netdev => 5,
        }
    }
}

/// When a chain is called.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hook<'a> {
    /// Incoming packets, before anything else.
    Prerouting,
    /// Incoming packets. Destinations may be rewritten.
    DestinationNat,
    /// Packets of this host itself. Destinations may be rewritten.
    LocalDestinationNat,
    /// Packets to be forwarded.
    Forward,
    /// Outgoing packets. Source addresses may be rewritten.
    SourceNat,
    /// Frames that this interface receives.
    Ingress(&'a str),
    /// Never. The chain is only a marker.
    None,
}

/// A rule under construction.
pub(super) type Rule<'a> = &'a dyn Fn(&mut Message);

/// A connection to nf_tables of the caller's network namespace.
pub(super) struct Nft(Netlink);

impl Nft {
    pub(super) fn open() -> io::Result<Nft> {
        Netlink::open(Some(rustix::net::netlink::NETFILTER)).map(Nft)
    }

    /// Whether Outrigger's table has this chain.
    pub(super) fn has_chain(&mut self, family: Family, chain: &str) -> io::Result<bool> {
        let mut look = Message::new(GETCHAIN, REQUEST | ACK, &header(family.number(), 0));
        look.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, chain);
        found(self.0.request(look))
    }

    /// Whether a table with this name exists. It may be anyone's.
    pub(super) fn has_table(&mut self, family: Family, table: &str) -> io::Result<bool> {
        let mut look = Message::new(GETTABLE, REQUEST | ACK, &header(family.number(), 0));
        look.text(TABLE_NAME, table);
        found(self.0.request(look))
    }

    /// The chains of Outrigger's table.
    pub(super) fn chains(&mut self, family: Family) -> io::Result<Vec<String>> {
        let all =
            self.0.ask(Message::new(GETCHAIN, REQUEST | DUMP, &header(family.number(), 0)), NEWCHAIN)?;
        Ok(all.iter().filter_map(|bytes| parse_chain(bytes)).collect())
    }

    /// Adds a chain with its rules to Outrigger's table, in one transaction. `false` if the chain exists.
    pub(super) fn add_chain(
        &mut self,
        family: Family,
        chain: &str,
        hook: Hook<'_>,
        rules: &[Rule<'_>],
    ) -> io::Result<bool> {
        if self.has_chain(family, chain)? {
            return Ok(false);
        }
        match self.0.batch(batch(new_chain(family, chain, hook, rules))) {
            // Another run has already created it.
            Err(e) if is(&e, Errno::EXIST) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Adds chains in one transaction. They replace chains with the same names.
    pub(super) fn replace_chains(
        &mut self,
        family: Family,
        chains: &[(String, Hook<'_>, Vec<Rule<'_>>)],
    ) -> io::Result<()> {
        let mut messages = Vec::new();
        for (name, hook, rules) in chains {
            if self.has_chain(family, name)? {
                messages.push(delete_chain(family, name));
            }
            messages.extend(new_chain(family, name, *hook, rules));
        }
        self.0.batch(batch(messages))
    }

    /// Removes the chains that exist.
    pub(super) fn remove_chains(&mut self, family: Family, chains: &[String]) -> io::Result<()> {
        let mut messages = Vec::new();
        for chain in chains {
            // This is checked first because a failed transaction takes about 20 ms: the kernel waits for an
            // RCU grace period before it rolls back.
            if self.has_chain(family, chain)? {
                messages.push(delete_chain(family, chain));
            }
        }
        match messages.is_empty() {
            true => Ok(()),
            false => gone(self.0.batch(batch(messages))),
        }
    }

    /// Removes Outrigger's table with everything in it, if it exists.
    pub(super) fn remove_table(&mut self, family: Family) -> io::Result<()> {
        let mut message = Message::new(DELTABLE, REQUEST | ACK, &header(family.number(), 0));
        message.text(TABLE_NAME, TABLE);
        gone(self.0.batch(batch(vec![message])))
    }
}

fn found(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if is(&e, Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if is(&e, Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// Wraps messages into one transaction.
fn batch(messages: Vec<Message>) -> Vec<Message> {
    let mark = |kind| Message::new(kind, REQUEST, &header(0, NFTABLES));
    let mut all = vec![mark(BATCH_BEGIN)];
    all.extend(messages);
    all.push(mark(BATCH_END));
    all
}

fn delete_chain(family: Family, chain: &str) -> Message {
    let mut message = Message::new(DELCHAIN, REQUEST | ACK, &header(family.number(), 0));
    message.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, chain);
    message
}

fn new_chain(family: Family, chain: &str, hook: Hook<'_>, rules: &[Rule<'_>]) -> Vec<Message> {
    const CHAIN_HOOK: u16 = 4;
    const CHAIN_KIND: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_PRIORITY: u16 = 2;
    const HOOK_DEVICE: u16 = 3;
    const RULE_TABLE: u16 = 1;
    const RULE_CHAIN: u16 = 2;
    const RULE_EXPRESSIONS: u16 = 4;
    let header = header(family.number(), 0);
    let mut table = Message::new(NEWTABLE, REQUEST | ACK | CREATE, &header);
    table.text(TABLE_NAME, TABLE);
    let mut new = Message::new(NEWCHAIN, REQUEST | ACK | CREATE | EXCL, &header);
    new.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, chain);
    // The number of the hook, the priority, the kind of chain, and the interface.
    let place = match hook {
        Hook::Prerouting => Some((0, -300, "filter", None)),
        Hook::DestinationNat => Some((0, -100, "nat", None)),
        Hook::LocalDestinationNat => Some((3, -100, "nat", None)),
        Hook::Forward => Some((2, 0, "filter", None)),
        Hook::SourceNat => Some((4, 100, "nat", None)),
        Hook::Ingress(device) => Some((0, 0, "filter", Some(device))),
        Hook::None => None,
    };
    if let Some((number, priority, kind, device)) = place {
        new.text(CHAIN_KIND, kind).nested(CHAIN_HOOK, |m| {
            m.be32(HOOK_NUMBER, number).be32(HOOK_PRIORITY, i32::cast_unsigned(priority));
            if let Some(device) = device {
                m.text(HOOK_DEVICE, device);
            }
        });
    }
    let mut messages = vec![table, new];
    for rule in rules {
        let mut message = Message::new(NEWRULE, REQUEST | ACK | CREATE | APPEND, &header);
        message.text(RULE_TABLE, TABLE).text(RULE_CHAIN, chain).nested(RULE_EXPRESSIONS, |m| rule(m));
        messages.push(message);
    }
    messages
}

/// The name of a chain, if it is in Outrigger's table.
pub(super) fn parse_chain(bytes: &[u8]) -> Option<String> {
    let (mut table, mut name) = (String::new(), None);
    // The attributes follow `struct nfgenmsg`.
    for (kind, value) in attributes(bytes.get(4..)?) {
        match kind {
            CHAIN_TABLE => table = read_text(value),
            CHAIN_NAME => name = Some(read_text(value)),
            _ => {}
        }
    }
    name.filter(|_| table == TABLE)
}

/// `struct nfgenmsg`.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// An interface of a packet: where it comes in, or where it goes out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    In,
    Out,
}

/// How to compare.
#[derive(Debug, Clone, Copy)]
pub(super) enum Is {
    Equal,
    Not,
}

/// A header of the packet, to which an offset is relative.
#[derive(Debug, Clone, Copy)]
enum Base {
    Ethernet,
    Network,
    Transport,
}

/// Continues only if the packet has the bytes `wanted` at an offset.
fn packet_has(m: &mut Message, base: Base, offset: u32, wanted: &[u8]) {
    load(m, base, offset, wanted.len() as u32);
    compare(m, Is::Equal, wanted);
}

fn load(m: &mut Message, base: Base, offset: u32, length: u32) {
    const DESTINATION_REGISTER: u16 = 1;
    const BASE: u16 = 2;
    const OFFSET: u16 = 3;
    const LENGTH: u16 = 4;
    let base = match base {
        Base::Ethernet => 0,
        Base::Network => 1,
        Base::Transport => 2,
    };
    expression(m, "payload", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(BASE, base).be32(OFFSET, offset).be32(LENGTH, length);
    });
}

const IPV4_SOURCE: u32 = 12;
const IPV4_DESTINATION: u32 = 16;

/// Continues only for packets from an IPv4 network, or only for those from elsewhere.
pub(super) fn source_in(m: &mut Message, is: Is, subnet: Subnet) {
    load(m, Base::Network, IPV4_SOURCE, 4);
    and(m, &subnet.mask().octets());
    compare(m, is, &subnet.base().octets());
}

/// Continues only for packets to this address.
pub(super) fn destination(m: &mut Message, address: Ipv4Addr) {
    packet_has(m, Base::Network, IPV4_DESTINATION, &address.octets());
}

/// Continues only for packets to an address of this host.
pub(super) fn to_this_host(m: &mut Message) {
    const DESTINATION_REGISTER: u16 = 1;
    const RESULT: u16 = 2;
    const FLAGS: u16 = 3;
    const ADDRESS_TYPE: u32 = 3;
    const OF_DESTINATION: u32 = 1 << 1;
    const LOCAL: u32 = 2;
    expression(m, "fib", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(RESULT, ADDRESS_TYPE).be32(FLAGS, OF_DESTINATION);
    });
    compare(m, Is::Equal, &LOCAL.to_ne_bytes());
}

/// Continues only for TCP or UDP packets to this port.
pub(super) fn to_port(m: &mut Message, udp: bool, port: u16) {
    const DESTINATION_REGISTER: u16 = 1;
    const KEY: u16 = 2;
    const TRANSPORT_PROTOCOL: u32 = 16;
    const DESTINATION_PORT: u32 = 2;
    expression(m, "meta", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(KEY, TRANSPORT_PROTOCOL);
    });
    compare(m, Is::Equal, &[if udp { 17 } else { 6 }]);
    packet_has(m, Base::Transport, DESTINATION_PORT, &port.to_be_bytes());
}

/// Continues only for packets to 127.0.0.0/8, or only for packets to other addresses.
pub(super) fn to_loopback(m: &mut Message, is: Is) {
    load(m, Base::Network, IPV4_DESTINATION, 4);
    and(m, &[255, 0, 0, 0]);
    compare(m, is, &[127, 0, 0, 0]);
}

/// Continues only for frames with this source hardware address and this protocol.
fn frame(m: &mut Message, mac: Mac, protocol: u16) {
    const DESTINATION_REGISTER: u16 = 1;
    const KEY: u16 = 2;
    const PROTOCOL: u32 = 1;
    const SOURCE: u32 = 6;
    packet_has(m, Base::Ethernet, SOURCE, &mac);
    expression(m, "meta", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(KEY, PROTOCOL);
    });
    compare(m, Is::Equal, &protocol.to_be_bytes());
}

/// Continues only for IPv4 packets with this source address.
pub(super) fn ipv4_from(m: &mut Message, mac: Mac, address: Ipv4Addr) {
    const IPV4: u16 = 0x0800;
    frame(m, mac, IPV4);
    packet_has(m, Base::Network, IPV4_SOURCE, &address.octets());
}

/// Continues only for ARP packets that announce this address with its own hardware address.
pub(super) fn arp_from(m: &mut Message, mac: Mac, address: Ipv4Addr) {
    const ARP: u16 = 0x0806;
    const SENDER: u32 = 8;
    frame(m, mac, ARP);
    // The fields for Ethernet and IPv4, and the lengths of their addresses.
    packet_has(m, Base::Network, 0, &[0, 1, 8, 0, 6, 4]);
    packet_has(m, Base::Network, SENDER, &mac);
    packet_has(m, Base::Network, SENDER + 6, &address.octets());
}

/// Continues only for packets that use an interface, or only for those that do not.
pub(super) fn interface(m: &mut Message, direction: Direction, is: Is, wanted: &str) {
    const DESTINATION_REGISTER: u16 = 1;
    const KEY: u16 = 2;
    let key = match direction {
        Direction::In => 6,
        Direction::Out => 7,
    };
    expression(m, "meta", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(KEY, key);
    });
    let mut name = [0; NAME_BYTES];
    let length = wanted.len().min(NAME_BYTES - 1);
    name[..length].copy_from_slice(&wanted.as_bytes()[..length]);
    compare(m, is, &name);
}

/// Continues only for packets that begin a connection.
pub(super) fn not_part_of_a_connection(m: &mut Message) {
    const STATE: u32 = 0;
    const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
    connection_lacks(m, STATE, ESTABLISHED_OR_RELATED);
}

/// Continues only for packets whose destination was not rewritten.
pub(super) fn destination_as_sent(m: &mut Message) {
    const STATUS: u32 = 2;
    const DESTINATION_REWRITTEN: u32 = 1 << 5;
    connection_lacks(m, STATUS, DESTINATION_REWRITTEN);
}

/// Continues only if the connection has none of the `bits`.
fn connection_lacks(m: &mut Message, what: u32, bits: u32) {
    const DESTINATION_REGISTER: u16 = 1;
    const KEY: u16 = 2;
    expression(m, "ct", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(KEY, what);
    });
    and(m, &bits.to_ne_bytes());
    compare(m, Is::Equal, &[0; 4]);
}

/// Rewrites the destination.
pub(super) fn redirect_to(m: &mut Message, address: Ipv4Addr, port: u16) {
    const KIND: u16 = 1;
    const FAMILY: u16 = 2;
    const ADDRESS_REGISTER: u16 = 3;
    const PORT_REGISTER: u16 = 5;
    const DESTINATION: u32 = 1;
    const SECOND_REGISTER: u32 = 2;
    immediate(m, REGISTER, |m| value(m, &address.octets()));
    immediate(m, SECOND_REGISTER, |m| value(m, &port.to_be_bytes()));
    expression(m, "nat", |m| {
        m.be32(KIND, DESTINATION).be32(FAMILY, Family::Ip.number().into());
        m.be32(ADDRESS_REGISTER, REGISTER).be32(PORT_REGISTER, SECOND_REGISTER);
    });
}

/// Rewrites the source to the address of the outgoing interface.
pub(super) fn masquerade(m: &mut Message) {
    expression(m, "masq", |_| {});
}

pub(super) fn drop_packet(m: &mut Message) {
    verdict(m, 0);
}

pub(super) fn accept(m: &mut Message) {
    verdict(m, 1);
}

fn verdict(m: &mut Message, code: u32) {
    const DATA_VERDICT: u16 = 2;
    const VERDICT_CODE: u16 = 1;
    immediate(m, VERDICT, |m| {
        m.nested(DATA_VERDICT, |m| {
            m.be32(VERDICT_CODE, code);
        });
    });
}

/// Sets a register to data.
fn immediate(m: &mut Message, register: u32, data: impl FnOnce(&mut Message)) {
    const DESTINATION_REGISTER: u16 = 1;
    const DATA: u16 = 2;
    expression(m, "immediate", |m| {
        m.be32(DESTINATION_REGISTER, register).nested(DATA, data);
    });
}

/// Applies a mask to the register.
fn and(m: &mut Message, mask: &[u8; 4]) {
    const SOURCE_REGISTER: u16 = 1;
    const DESTINATION_REGISTER: u16 = 2;
    const LENGTH: u16 = 3;
    const MASK: u16 = 4;
    const XOR: u16 = 5;
    expression(m, "bitwise", |m| {
        m.be32(SOURCE_REGISTER, REGISTER).be32(DESTINATION_REGISTER, REGISTER).be32(LENGTH, 4);
        m.nested(MASK, |m| value(m, mask)).nested(XOR, |m| value(m, &[0; 4]));
    });
}

/// Ends the rule unless the register is (or is not) `wanted`.
fn compare(m: &mut Message, is: Is, wanted: &[u8]) {
    const SOURCE_REGISTER: u16 = 1;
    const OPERATION: u16 = 2;
    const DATA: u16 = 3;
    let operation = match is {
        Is::Equal => 0,
        Is::Not => 1,
    };
    expression(m, "cmp", |m| {
        m.be32(SOURCE_REGISTER, REGISTER).be32(OPERATION, operation).nested(DATA, |m| value(m, wanted));
    });
}

fn value(m: &mut Message, bytes: &[u8]) {
    const DATA_VALUE: u16 = 1;
    m.bytes(DATA_VALUE, bytes);
}

fn expression(m: &mut Message, name: &str, data: impl FnOnce(&mut Message)) {
    const LIST_ELEMENT: u16 = 1;
    const EXPRESSION_NAME: u16 = 1;
    const EXPRESSION_DATA: u16 = 2;
    m.nested(LIST_ELEMENT, |m| {
        m.text(EXPRESSION_NAME, name).nested(EXPRESSION_DATA, data);
    });
}
