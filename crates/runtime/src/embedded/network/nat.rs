//! The way out: pods reach the world under the host's address.
//!
//! Two things are needed, and both are done for the bridge only: forwarding between the bridge and the interfaces that
//! lead outwards, and a rule that rewrites the source of what leaves. The rule goes to nf_tables by netlink into a table
//! of Outrigger's own; on kernels without nf_tables, the `iptables` command is tried.

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;

use super::link::{Links, is};
use super::netlink::{ACK, APPEND, CREATE, EXCL, Message, Netlink, REQUEST};
use super::{BRIDGE, Subnet};

const TABLE: &str = "outrigger";
const GUARD_CHAIN: &str = "forward";

const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = NFTABLES << 8;
const NEWCHAIN: u16 = NFTABLES << 8 | 3;
const GETCHAIN: u16 = NFTABLES << 8 | 4;
const NEWRULE: u16 = NFTABLES << 8 | 6;

const INET: u8 = 2;
const HOOK_FORWARD: u32 = 2;
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_FILTER: u32 = 0;
const PRIORITY_SOURCE_NAT: u32 = 100;
/// The register all comparisons here go through; 0 is the verdict.
const REGISTER: u32 = 1;
const VERDICT: u32 = 0;
/// Length of an interface name in the kernel.
const NAME_BYTES: usize = 16;

/// Lets the pods of `subnet` out. Says what is missing where that is not possible.
pub(super) fn let_out(links: &mut Links, subnet: Subnet) -> Result<(), String> {
    allow_forwarding(links).map_err(|e| format!("forwarding cannot be switched on ({e})"))?;
    match masquerade(subnet) {
        Ok(false) => {}
        Ok(true) => {
            if let Err(e) = guard() {
                tracing::debug!(error = %e, "cannot keep other networks from reaching pods directly");
            }
            if let Err(e) = pass_a_closed_forward_chain() {
                tracing::debug!(error = %e, "cannot see whether a firewall drops what pods send");
            }
        }
        Err(nftables) => iptables_masquerade(subnet).map_err(|iptables| {
            format!("addresses cannot be rewritten (nf_tables: {nftables}; iptables: {iptables})")
        })?,
    }
    Ok(())
}

/// Switched on for the bridge and for the interfaces with a default route, not for the machine as a whole: whatever else
/// the machine is connected to does not become reachable through it.
fn allow_forwarding(links: &mut Links) -> io::Result<()> {
    let mut names = vec![BRIDGE.to_owned()];
    let outward: BTreeSet<u32> =
        links.routes()?.into_iter().filter(|r| r.to.prefix() == 0).filter_map(|r| r.interface).collect();
    for index in outward {
        names.extend(links.by_index(index)?.map(|link| link.name));
    }
    for name in names {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
        if std::fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1") {
            continue;
        }
        std::fs::write(&path, "1").map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?;
    }
    Ok(())
}

/// Everything from `subnet` that does not stay on the bridge gets the address of the interface it leaves by. `false` when
/// that was so already.
fn masquerade(subnet: Subnet) -> io::Result<bool> {
    // The chain is made together with its rule or not at all, and its name says which subnet the rule is for: where
    // there is a chain of that name, nothing is left to do.
    let chain = format!("masquerade-{}-{}", subnet.base(), subnet.prefix());
    add_chain(&chain, "nat", HOOK_POSTROUTING, PRIORITY_SOURCE_NAT, |m| {
        source_in(m, subnet);
        interface(m, Direction::Out, Is::Not);
        expression(m, "masq", |_| {});
    })
}

/// Nobody beyond the bridge opens connections to a pod except through its published ports, although the machine
/// forwards now.
fn guard() -> io::Result<bool> {
    add_chain(GUARD_CHAIN, "filter", HOOK_FORWARD, PRIORITY_FILTER, |m| {
        interface(m, Direction::Out, Is::Equal);
        interface(m, Direction::In, Is::Not);
        not_part_of_a_connection(m);
        drop_packet(m);
    })
}

/// Adds a chain with one rule to Outrigger's table, in one transaction; `false` when it is there.
fn add_chain(
    chain: &str,
    kind: &str,
    hook: u32,
    priority: u32,
    rule: impl FnOnce(&mut Message),
) -> io::Result<bool> {
    const TABLE_NAME: u16 = 1;
    const CHAIN_TABLE: u16 = 1;
    const CHAIN_NAME: u16 = 3;
    const CHAIN_HOOK: u16 = 4;
    const CHAIN_KIND: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_PRIORITY: u16 = 2;
    const RULE_TABLE: u16 = 1;
    const RULE_CHAIN: u16 = 2;
    const RULE_EXPRESSIONS: u16 = 4;

    let mut netlink = Netlink::open(Some(rustix::net::netlink::NETFILTER))?;
    let mut look = Message::new(GETCHAIN, REQUEST | ACK, &header(INET, 0));
    look.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, chain);
    match netlink.request(look) {
        Ok(()) => return Ok(false),
        Err(e) if is(&e, Errno::NOENT) => {}
        Err(e) => return Err(e),
    }

    let mut new_table = Message::new(NEWTABLE, REQUEST | ACK | CREATE, &header(INET, 0));
    new_table.text(TABLE_NAME, TABLE);
    let mut new_chain = Message::new(NEWCHAIN, REQUEST | ACK | CREATE | EXCL, &header(INET, 0));
    new_chain.text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, chain).text(CHAIN_KIND, kind).nested(
        CHAIN_HOOK,
        |m| {
            m.be32(HOOK_NUMBER, hook).be32(HOOK_PRIORITY, priority);
        },
    );
    let mut new_rule = Message::new(NEWRULE, REQUEST | ACK | CREATE | APPEND, &header(INET, 0));
    new_rule.text(RULE_TABLE, TABLE).text(RULE_CHAIN, chain).nested(RULE_EXPRESSIONS, rule);
    let batch = vec![
        Message::new(BATCH_BEGIN, REQUEST, &header(0, NFTABLES)),
        new_table,
        new_chain,
        new_rule,
        Message::new(BATCH_END, REQUEST, &header(0, NFTABLES)),
    ];
    match netlink.batch(batch) {
        // Another run was faster.
        Err(e) if is(&e, Errno::EXIST) => Ok(false),
        result => result.map(|()| true),
    }
}

/// `struct nfgenmsg`.
fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

enum Direction {
    In,
    Out,
}

enum Is {
    Equal,
    Not,
}

fn source_in(m: &mut Message, subnet: Subnet) {
    const DESTINATION_REGISTER: u16 = 1;
    const BASE: u16 = 2;
    const OFFSET: u16 = 3;
    const LENGTH: u16 = 4;
    const NETWORK_HEADER: u32 = 1;
    const SOURCE_ADDRESS: u32 = 12;
    expression(m, "payload", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER)
            .be32(BASE, NETWORK_HEADER)
            .be32(OFFSET, SOURCE_ADDRESS)
            .be32(LENGTH, 4);
    });
    and(m, &subnet.mask().octets());
    compare(m, Is::Equal, &subnet.base().octets());
}

fn interface(m: &mut Message, direction: Direction, is: Is) {
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
    name[..BRIDGE.len()].copy_from_slice(BRIDGE.as_bytes());
    compare(m, is, &name);
}

fn not_part_of_a_connection(m: &mut Message) {
    const DESTINATION_REGISTER: u16 = 1;
    const KEY: u16 = 2;
    const STATE: u32 = 0;
    const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
    expression(m, "ct", |m| {
        m.be32(DESTINATION_REGISTER, REGISTER).be32(KEY, STATE);
    });
    and(m, &ESTABLISHED_OR_RELATED.to_ne_bytes());
    compare(m, Is::Equal, &[0; 4]);
}

fn drop_packet(m: &mut Message) {
    const DESTINATION_REGISTER: u16 = 1;
    const DATA: u16 = 2;
    const DATA_VERDICT: u16 = 2;
    const VERDICT_CODE: u16 = 1;
    const DROP: u32 = 0;
    expression(m, "immediate", |m| {
        m.be32(DESTINATION_REGISTER, VERDICT).nested(DATA, |m| {
            m.nested(DATA_VERDICT, |m| {
                m.be32(VERDICT_CODE, DROP);
            });
        });
    });
}

/// Register &= mask.
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

/// Ends the rule unless the register holds (or does not hold) `wanted`.
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

fn iptables_masquerade(subnet: Subnet) -> io::Result<()> {
    let subnet = subnet.to_string();
    iptables_insert(&["-t", "nat"], "POSTROUTING", &["-s", &subnet, "!", "-o", BRIDGE, "-j", "MASQUERADE"])
}

/// Other container engines make the machine drop whatever is forwarded for anybody but themselves, and no table of our
/// own can overrule that. They do it with iptables, so the command is there.
fn pass_a_closed_forward_chain() -> io::Result<()> {
    let rules = iptables(&["-S", "FORWARD"])?;
    if !String::from_utf8_lossy(&rules.stdout).contains("-P FORWARD DROP") {
        return Ok(());
    }
    iptables_insert(&[], "FORWARD", &["-i", BRIDGE, "-j", "ACCEPT"])?;
    let answers = ["-o", BRIDGE, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"];
    iptables_insert(&[], "FORWARD", &answers)
}

/// Puts a rule first in its chain unless the chain has it.
fn iptables_insert(table: &[&str], chain: &str, rule: &[&str]) -> io::Result<()> {
    let run = |action| iptables(&[table, &[action, chain], rule].concat());
    if run("-C")?.status.success() {
        return Ok(());
    }
    let output = run("-I")?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn iptables(arguments: &[&str]) -> io::Result<Output> {
    // Waits for others that are changing the rules.
    Command::new("iptables").arg("-w").args(arguments).stdin(Stdio::null()).output()
}
