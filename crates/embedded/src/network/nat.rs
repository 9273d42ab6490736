//! Outgoing connections: pods reach the outside with the host's address, and nothing else becomes reachable
//! through it.
//!
//! The kernel forwards what an interface receives if `forwarding` is on for that interface. It must be on for
//! the bridge and for the interfaces with a default route. If it was off for one of the latter, it is
//! switched off again when no pod is left. Until then, a rule drops everything that such an interface would
//! forward, except the pods' own traffic. That rule is also the only record of the change. It is created
//! before the change and removed after the change is undone, so that the state is clear even after a run was
//! killed.
//!
//! The rules are created with nf_tables over netlink, in Outrigger's own tables. On kernels without
//! nf_tables, the `iptables` command is used. If the rules cannot be created, nothing is forwarded.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::{Command, Output, Stdio};

use super::link::Links;
use super::nft::{
    Direction, Family, Hook, Is, Nft, destination_as_sent, drop_packet, interface, masquerade,
    not_part_of_a_connection, source_in, to_loopback,
};
use super::{BRIDGE, Subnet};
use crate::rootless::find_program;

/// The chains of the table for IPv4.
const GUARD_CHAIN: &str = "forward";
const LOCAL_CHAIN: &str = "local";
/// A chain that marks that there are also rules in iptables.
const IPTABLES_CHAIN: &str = "iptables";
const UPLINK_PREFIX: &str = "uplink-";
const LOOPBACK: &str = "lo";
const IPTABLES: &str = "iptables";
/// The exit code of iptables if the kernel does not have a table.
const NO_SUCH_TABLE: i32 = 3;
/// The maximum number of interfaces from which the kernel forwards connections to published ports.
/// Connections by other interfaces are forwarded in user space.
const INTERFACES_MAX: usize = 32;
/// The comment of our iptables rules. Other rules are never removed.
const COMMENT: &str = "outrigger";
/// The comment of rules that record a change of `forwarding`.
const UPLINK_COMMENT: &str = "outrigger-uplink";

/// How the rules are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    Nftables,
    Iptables,
}

/// Why pods cannot reach anything outside this host. Neither way of forwarding works.
#[derive(Debug, thiserror::Error)]
#[error("nf_tables: {nftables}; iptables: {iptables}")]
pub(super) struct NoWayOut {
    nftables: io::Error,
    iptables: io::Error,
}

/// Allows outgoing connections from the pods of `subnet`. The error says what is missing.
pub(super) fn let_out(links: &mut Links, subnet: Subnet) -> Result<(), NoWayOut> {
    let Err(nftables) = let_out_with(Filter::Nftables, links, subnet) else { return Ok(()) };
    let_out_with(Filter::Iptables, links, subnet).map_err(|iptables| NoWayOut { nftables, iptables })
}

pub(super) fn let_out_with(filter: Filter, links: &mut Links, subnet: Subnet) -> io::Result<()> {
    // Nothing is forwarded before the rules that guard it exist.
    match filter {
        Filter::Nftables => guard_nftables(&mut Nft::open()?, subnet)?,
        Filter::Iptables => guard_iptables(subnet)?,
    }
    if filter == Filter::Nftables && is_on("all")? {
        remove_uplink_guards(&mut Nft::open()?)?;
    }
    for uplink in uplinks(links)? {
        forward_from(filter, &uplink)?;
    }
    if !is_on(BRIDGE)? {
        set_forwarding(BRIDGE, "1")?;
    }
    Ok(())
}

/// Lets the kernel forward what an interface receives. If it did not forward before, it forwards only to
/// pods.
fn forward_from(filter: Filter, uplink: &str) -> io::Result<()> {
    if is_on(uplink)? {
        return Ok(());
    }
    guard_uplink(filter, uplink)?;
    set_forwarding(uplink, "1")
}

/// Removes the guards, because someone has enabled forwarding for the whole machine and the rules would block
/// it.
fn remove_uplink_guards(nft: &mut Nft) -> io::Result<()> {
    let mut chains = nft.chains(Family::Ip)?;
    chains.retain(|chain| chain.starts_with(UPLINK_PREFIX));
    nft.remove_chains(Family::Ip, &chains)
}

/// Prepares this host to forward connections to published ports, and returns the interfaces that it forwards
/// from.
///
/// # Errors
/// The host does not forward to pods with nf_tables rules, or something cannot be changed.
pub(super) fn let_in(nft: &mut Nft, links: &mut Links) -> io::Result<Vec<String>> {
    if !nft.has_chain(Family::Ip, GUARD_CHAIN)? || !is_on(BRIDGE)? {
        return Err(io::Error::other("this host does not forward to pods with nf_tables"));
    }
    // Another program may have closed the chain since the first pod started.
    pass_a_closed_forward_chain(nft)?;
    let mut names = Vec::new();
    for index in links.with_addresses()? {
        names.extend(links.by_index(index)?.map(|link| link.name));
    }
    names.retain(|name| name != BRIDGE && name != LOOPBACK);
    names.truncate(INTERFACES_MAX);
    for name in &names {
        forward_from(Filter::Nftables, name)?;
    }
    Ok(names)
}

/// Undoes [`let_out`]. There may be nothing to undo.
pub(super) fn restore() -> io::Result<()> {
    let mut uplinks = Vec::new();
    let mut nft = Nft::open();
    let mut marked = None;
    if let Ok(nft) = &mut nft
        && let Ok(chains) = nft.chains(Family::Ip)
    {
        marked = Some(chains.iter().any(|chain| chain == IPTABLES_CHAIN));
        uplinks.extend(chains.iter().filter_map(|chain| Some(chain.strip_prefix(UPLINK_PREFIX)?.to_owned())));
    }
    let rules = match marked {
        Some(true) => own_iptables_rules(),
        Some(false) => Ok(Vec::new()),
        // Without nf_tables there is no record. Without the command, nobody can have added rules.
        None if find_program(IPTABLES).is_none() => Ok(Vec::new()),
        None => own_iptables_rules(),
    };
    uplinks.extend(rules.iter().flatten().filter_map(Rule::uplink));
    for uplink in uplinks {
        // If the whole machine forwards, someone else has enabled it. An interface that no longer exists
        // needs no change.
        if !is_on("all")? {
            match set_forwarding(&uplink, "0") {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    let removed = rules.and_then(|rules| rules.iter().try_for_each(Rule::remove));
    if let Ok(nft) = &mut nft {
        match &removed {
            Ok(()) => nft.remove_table(Family::Ip)?,
            // The record stays, so that the next process tries again.
            Err(_) => {
                let mut chains = nft.chains(Family::Ip)?;
                chains.retain(|chain| chain != IPTABLES_CHAIN);
                nft.remove_chains(Family::Ip, &chains)?;
            }
        }
        // Kernels that cannot filter an interface have no such table.
        let _ = nft.remove_table(Family::Netdev);
    }
    removed.map_err(|e| {
        io::Error::new(e.kind(), format!("iptables rules with the comment `{COMMENT}` are left behind: {e}"))
    })
}

/// The interfaces with a default route.
fn uplinks(links: &mut Links) -> io::Result<Vec<String>> {
    let outward: BTreeSet<u32> =
        links.routes()?.into_iter().filter(|r| r.to.prefix() == 0).filter_map(|r| r.interface).collect();
    let mut names = Vec::new();
    for index in outward {
        names.extend(links.by_index(index)?.map(|link| link.name));
    }
    names.retain(|name| name != BRIDGE);
    Ok(names)
}

fn forwarding_path(interface: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/forwarding")
}

fn is_on(interface: &str) -> io::Result<bool> {
    match fs::read_to_string(forwarding_path(interface)) {
        Ok(value) => Ok(value.trim() == "1"),
        Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", forwarding_path(interface)))),
    }
}

fn set_forwarding(interface: &str, value: &str) -> io::Result<()> {
    let path = forwarding_path(interface);
    fs::write(&path, value)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot set {path} to {value}: {e}")))
}

fn guard_nftables(nft: &mut Nft, subnet: Subnet) -> io::Result<()> {
    // Nothing outside the bridge can open connections to a pod, except through its published ports.
    nft.add_chain(
        Family::Ip,
        GUARD_CHAIN,
        Hook::Forward,
        &[&|m| {
            interface(m, Direction::Out, Is::Equal, BRIDGE);
            interface(m, Direction::In, Is::Not, BRIDGE);
            not_part_of_a_connection(m);
            destination_as_sent(m);
            drop_packet(m);
        }],
    )?;
    // Pods must not reach services on the host's loopback, even if the machine has `route_localnet` on.
    nft.add_chain(
        Family::Ip,
        LOCAL_CHAIN,
        Hook::Prerouting,
        &[&|m| {
            interface(m, Direction::In, Is::Equal, BRIDGE);
            to_loopback(m, Is::Equal);
            drop_packet(m);
        }],
    )?;
    // Packets from the pods that leave the bridge get the address of their outgoing interface. The name
    // contains the subnet of the rule.
    let chain = format!("masquerade-{}-{}", subnet.base(), subnet.prefix());
    let is_new = nft.add_chain(
        Family::Ip,
        &chain,
        Hook::SourceNat,
        &[&|m| {
            source_in(m, Is::Equal, subnet);
            interface(m, Direction::Out, Is::Not, BRIDGE);
            masquerade(m);
        }],
    )?;
    if is_new {
        match pass_a_closed_forward_chain(nft) {
            Ok(()) => {}
            Err(e) => tracing::warn!("a firewall may drop what pods send and what is sent to them: {e}"),
        }
    }
    Ok(())
}

/// Forwards what an interface receives only to pods. All other traffic is treated as before its forwarding
/// was switched on.
fn guard_uplink(filter: Filter, uplink: &str) -> io::Result<()> {
    if filter == Filter::Iptables {
        return uplink_rule(uplink).put(Place::First);
    }
    let chain = format!("{UPLINK_PREFIX}{uplink}");
    Nft::open()?
        .add_chain(
            Family::Ip,
            &chain,
            Hook::Forward,
            &[&|m| {
                interface(m, Direction::In, Is::Equal, uplink);
                interface(m, Direction::Out, Is::Not, BRIDGE);
                drop_packet(m);
            }],
        )
        .map(drop)
}

fn uplink_rule(uplink: &str) -> Rule {
    Rule::marked("filter", "FORWARD", UPLINK_COMMENT, &["-i", uplink, "!", "-o", BRIDGE, "-j", "DROP"])
}

fn guard_iptables(subnet: Subnet) -> io::Result<()> {
    // If nf_tables exists after all, this records that iptables must be searched too.
    let _ = Nft::open().and_then(|mut nft| nft.add_chain(Family::Ip, IPTABLES_CHAIN, Hook::None, &[]));
    opening_rule().put(Place::First)?;
    loopback_rule().put(Place::First)?;
    masquerade_rule(&subnet.to_string()).put(Place::First)
}

/// Prevents connections to a pod that are opened from outside the bridge.
fn opening_rule() -> Rule {
    let opening =
        ["!", "-i", BRIDGE, "-o", BRIDGE, "-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED"];
    Rule::new("filter", "FORWARD", &[&opening[..], &["-j", "DROP"]].concat())
}

fn loopback_rule() -> Rule {
    Rule::new("raw", "PREROUTING", &["-d", "127.0.0.0/8", "-i", BRIDGE, "-j", "DROP"])
}

fn masquerade_rule(subnet: &str) -> Rule {
    Rule::new("nat", "POSTROUTING", &["-s", subnet, "!", "-o", BRIDGE, "-j", "MASQUERADE"])
}

/// Allows what pods send.
fn outward_rule() -> Rule {
    Rule::new("filter", "FORWARD", &["-i", BRIDGE, "-j", "ACCEPT"])
}

/// Allows answers, and connections to published ports. Our own table drops all others.
fn inward_rule() -> Rule {
    let inward = ["-o", BRIDGE, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "ACCEPT"];
    Rule::new("filter", "FORWARD", &inward)
}

/// Lets the pods' traffic pass a closed forward chain. Other container engines make the machine drop all
/// forwarded packets except their own, and our own table cannot override that. They do it with iptables, so
/// the command exists.
fn pass_a_closed_forward_chain(nft: &mut Nft) -> io::Result<()> {
    if !has_iptables_filter(nft)? {
        return Ok(());
    }
    let rules = match iptables(&["-S", "FORWARD"]) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        rules => rules?,
    };
    if !String::from_utf8_lossy(&rules.stdout).contains("-P FORWARD DROP") {
        return Ok(());
    }
    nft.add_chain(Family::Ip, IPTABLES_CHAIN, Hook::None, &[])?;
    // The policy applies after the last rule, so these rules only need to come before it. What the
    // administrator's own rules drop stays dropped.
    outward_rule().put(Place::Last)?;
    inward_rule().put(Place::Last)
}

/// Whether iptables may have rules for forwarded packets. Running the command to find out would take 7 ms.
fn has_iptables_filter(nft: &mut Nft) -> io::Result<bool> {
    // The older iptables, which does not use nf_tables, has a list of its tables. Without this file, the
    // kernel does not have it.
    let older = match fs::read_to_string("/proc/thread-self/net/ip_tables_names") {
        Ok(tables) => tables.lines().any(|table| table == "filter"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    Ok(older || nft.has_table(Family::Ip, "filter")?)
}

/// The position in its chain where a rule is added.
#[derive(Debug, Clone, Copy)]
enum Place {
    First,
    Last,
}

/// A rule of iptables. Its words are in the order in which iptables lists them, except for the comment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    table: &'static str,
    chain: String,
    words: Vec<String>,
}

impl Rule {
    fn new(table: &'static str, chain: &str, words: &[&str]) -> Rule {
        Rule::marked(table, chain, COMMENT, words)
    }

    fn marked(table: &'static str, chain: &str, comment: &str, words: &[&str]) -> Rule {
        let words = [&["-m", "comment", "--comment", comment], words].concat();
        Rule { table, chain: chain.to_owned(), words: words.into_iter().map(str::to_owned).collect() }
    }

    /// Parses a line of `iptables -S`, if it is one of our rules. Administrators may have other rules about
    /// the bridge, even with the same comment.
    fn parse(table: &'static str, line: &str) -> Option<Rule> {
        // None of our words contains a space, so quotes always enclose a whole word.
        let word = |word: &str| {
            (word.starts_with('"') == word.ends_with('"')).then(|| word.trim_matches('"').to_owned())
        };
        let mut words = line.split_whitespace().map(word).collect::<Option<Vec<String>>>()?.into_iter();
        (words.next()? == "-A").then_some(())?;
        let chain = words.next()?;
        let rule = Rule { table, chain, words: words.collect() };
        rule.is_own().then_some(rule)
    }

    /// Whether this is one of our rules, for any uplink and any network of pods.
    fn is_own(&self) -> bool {
        let mut own = vec![opening_rule(), loopback_rule(), outward_rule(), inward_rule()];
        own.extend(self.value_of("-i").map(uplink_rule));
        own.extend(self.value_of("-s").map(masquerade_rule));
        own.iter().any(|own| {
            (own.table, &own.chain, own.comment_and_rest())
                == (self.table, &self.chain, self.comment_and_rest())
        })
    }

    /// Separates the comment from the other words, because iptables lists it in another position than we
    /// write it.
    fn comment_and_rest(&self) -> (Option<&str>, Vec<&str>) {
        let mut words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let at = words.windows(4).position(|words| words[..3] == ["-m", "comment", "--comment"]);
        let comment = at.and_then(|at| words.drain(at..at + 4).next_back());
        (comment, words)
    }

    fn value_of(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == option)?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// The interface whose change of `forwarding` the rule records.
    fn uplink(&self) -> Option<String> {
        self.words.iter().any(|word| word == UPLINK_COMMENT).then_some(())?;
        self.value_of("-i").map(str::to_owned)
    }

    /// Adds the rule to its chain, unless the chain has it.
    fn put(&self, place: Place) -> io::Result<()> {
        if self.run("-C")?.status.success() {
            return Ok(());
        }
        check(&self.run(match place {
            Place::First => "-I",
            Place::Last => "-A",
        })?)
    }

    fn run(&self, action: &str) -> io::Result<Output> {
        let words = self.words.iter().map(String::as_str);
        iptables(&["-t", self.table, action, &self.chain].into_iter().chain(words).collect::<Vec<_>>())
    }

    fn remove(&self) -> io::Result<()> {
        check(&self.run("-D")?)
    }
}

/// Our rules in iptables.
///
/// # Errors
/// The command cannot be run.
fn own_iptables_rules() -> io::Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for (table, chain) in [("filter", "FORWARD"), ("raw", "PREROUTING"), ("nat", "POSTROUTING")] {
        let listed = iptables(&["-t", table, "-S", chain])?;
        if listed.status.code() == Some(NO_SUCH_TABLE) {
            continue;
        }
        check(&listed)?;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        rules.extend(text.lines().filter_map(|line| Rule::parse(table, line)));
    }
    Ok(rules)
}

fn check(output: &Output) -> io::Result<()> {
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn iptables(arguments: &[&str]) -> io::Result<Output> {
    // This also works if `PATH` is empty, as in the process that cleans up.
    let program = find_program(IPTABLES)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the command `iptables` is not installed"))?;
    // This waits for others that are changing the rules.
    Command::new(program).arg("-w").args(arguments).stdin(Stdio::null()).output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_iptables_lists_them() {
        let line = r#"-A FORWARD -i eth0 ! -o outrigger0 -m comment --comment "outrigger-uplink" -j DROP"#;
        let rule = Rule::parse("filter", line).unwrap();
        assert_eq!(rule.uplink().as_deref(), Some("eth0"));
        let own = Rule::parse("filter", "-A FORWARD -i outrigger0 -m comment --comment outrigger -j ACCEPT");
        assert_eq!(own.unwrap().uplink(), None);
        for (table, own) in [
            (
                "filter",
                "-A FORWARD ! -i outrigger0 -o outrigger0 -m comment --comment outrigger -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP",
            ),
            (
                "filter",
                "-A FORWARD -o outrigger0 -m comment --comment outrigger -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT",
            ),
            ("raw", "-A PREROUTING -d 127.0.0.0/8 -i outrigger0 -m comment --comment outrigger -j DROP"),
            (
                "nat",
                "-A POSTROUTING -s 10.89.0.0/16 ! -o outrigger0 -m comment --comment outrigger -j MASQUERADE",
            ),
        ] {
            assert!(Rule::parse(table, own).is_some(), "{own}");
        }
        for of_others in [
            "-P FORWARD DROP",
            "-A FORWARD -i docker0 -j ACCEPT",
            "-A FORWARD -i outrigger0 -j ACCEPT",
            "-A FORWARD -i outrigger0 -m comment --comment \"outrigger may go out\" -j ACCEPT",
            "-A FORWARD -i outrigger0 -m comment --comment",
            "-A FORWARD -i outrigger0 -m comment --comment outrigger -j DROP",
            "-A FORWARD -i outrigger0 -p tcp -m comment --comment outrigger -j ACCEPT",
            "-A FORWARD -i eth0 -o outrigger0 -m comment --comment outrigger-uplink -j DROP",
            "-A FORWARD -o outrigger0 -m comment --comment outrigger -m conntrack --ctstate NEW -j ACCEPT",
            "-A INPUT -i outrigger0 -m comment --comment outrigger -j ACCEPT",
        ] {
            assert_eq!(Rule::parse("filter", of_others), None, "{of_others}");
        }
    }
}
