//! Published ports in the kernel: connections to a port of this host are redirected to the pod, and the pod
//! sees the client's address.
//!
//! Each pod has two chains, named after its interface, which rewrite the destination. One is for packets that
//! arrive by the interfaces of the host, and the other for packets of the host's own programs. Everything
//! else arrives at the port itself, which is open as well (`forward.rs`):
//!
//! * connections to 127.0.0.1: the kernel would have to route loopback addresses to the bridge, and pods
//!   could use that to reach the host's loopback;
//! * connections of the pod to itself;
//! * connections by interfaces that were added later.
//!
//! The chains exist as long as the pod. They outlive the process that created them.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::conntrack;
use super::link::Links;
use super::netlink::Message;
use super::nft::{
    Direction, Family, Hook, Is, Nft, Rule, destination, interface, redirect_to, source_in, to_loopback,
    to_port, to_this_host,
};
use super::{BRIDGE, Subnet, address_of, interface_name, nat};
use outrigger_runtime::PublishedPort;

/// Prefixes of the names of the chains. The interface of the pod follows.
const INCOMING: &str = "publish-";
const LOCAL: &str = "publish-local-";
const LOOPBACK: Subnet = Subnet::fixed(Ipv4Addr::new(127, 0, 0, 0), 8);

type BoxedRule<'a> = Box<dyn Fn(&mut Message) + 'a>;

fn rules<'a>(boxed: &'a [BoxedRule<'_>]) -> Vec<Rule<'a>> {
    boxed.iter().map(|rule| &**rule as Rule<'_>).collect()
}

/// Redirects connections to `ports` to the pod with this address. This replaces the ports that were published
/// for it before.
///
/// # Errors
/// The kernel cannot do it. Then nothing is rewritten.
pub(super) fn publish_ports(pod: Ipv4Addr, ports: &[PublishedPort]) -> io::Result<()> {
    let ports: Vec<Port> = ports.iter().filter_map(Port::of_kernel).collect();
    let mut nft = Nft::open()?;
    let mut links = Links::open(None)?;
    remove_stale(&mut nft, &mut links)?;
    if ports.is_empty() {
        return unpublish(pod);
    }
    let from = nat::let_in(&mut nft, &mut links)?;
    let incoming: Vec<BoxedRule<'_>> = ports
        .iter()
        .flat_map(|port| {
            let by_interface = from.iter().map(move |name| -> BoxedRule<'_> {
                Box::new(move |m| {
                    interface(m, Direction::In, Is::Equal, name);
                    port.redirect(m, pod);
                })
            });
            // Redirects connections from other pods if the kernel filters the bridge's traffic. Only then do
            // the pod's answers pass the host, and otherwise the other pod would not recognise them. Answers
            // of a pod to itself never pass the host.
            let by_bridge = bridge_is_filtered().then(|| -> BoxedRule<'_> {
                Box::new(move |m| {
                    interface(m, Direction::In, Is::Equal, BRIDGE);
                    source_in(m, Is::Not, Subnet::new(pod, 32));
                    port.redirect(m, pod);
                })
            });
            by_interface.chain(by_bridge)
        })
        .collect();
    let local: Vec<BoxedRule<'_>> = ports
        .iter()
        .map(|port| -> BoxedRule<'_> {
            Box::new(move |m| {
                source_in(m, Is::Not, LOOPBACK);
                port.redirect(m, pod);
            })
        })
        .collect();
    let [incoming_chain, local_chain] = chains(pod);
    nft.replace_chains(
        Family::Ip,
        &[
            (incoming_chain, Hook::DestinationNat, rules(&incoming)),
            (local_chain, Hook::LocalDestinationNat, rules(&local)),
        ],
    )?;
    if let Err(error) = forget_earlier_clients(&mut links, &ports) {
        tracing::debug!(%error, "UDP clients from before the port was published are forwarded in user space");
    }
    Ok(())
}

/// Applies the rules also to UDP clients that have already sent something to a port.
fn forget_earlier_clients(links: &mut Links, ports: &[Port]) -> io::Result<()> {
    if !ports.iter().any(|port| port.udp) {
        return Ok(());
    }
    let mut every = Vec::new();
    for index in links.with_addresses()? {
        every.extend(links.addresses(index)?.into_iter().map(|(address, _)| address));
    }
    // The kernel does not redirect packets to loopback.
    every.retain(|address| !address.is_loopback());
    for port in ports.iter().filter(|port| port.udp) {
        let addresses = port.address.map_or_else(|| every.clone(), |address| vec![address]);
        conntrack::forget_udp_sent_to(port.number, &addresses)?;
    }
    Ok(())
}

/// Undoes [`publish_ports`]. There may be nothing to undo.
pub(super) fn unpublish(pod: Ipv4Addr) -> io::Result<()> {
    Nft::open()?.remove_chains(Family::Ip, &chains(pod))?;
    conntrack::forget_redirected_to(pod)
}

/// Removes the chains of pods whose interface no longer exists, if no process was left to do it.
pub(super) fn remove_stale(nft: &mut Nft, links: &mut Links) -> io::Result<()> {
    let mut stale = Vec::new();
    for chain in nft.chains(Family::Ip)? {
        let interface = chain.strip_prefix(LOCAL).or_else(|| chain.strip_prefix(INCOMING));
        if let Some(interface) = interface
            && links.find(interface)?.is_none()
        {
            stale.push(chain);
        }
    }
    nft.remove_chains(Family::Ip, &stale)?;
    for pod in stale.iter().filter_map(|chain| address_of(chain.strip_prefix(LOCAL)?)) {
        conntrack::forget_redirected_to(pod)?;
    }
    Ok(())
}

fn chains(pod: Ipv4Addr) -> [String; 2] {
    [INCOMING, LOCAL].map(|prefix| format!("{prefix}{}", interface_name(pod)))
}

/// Whether traffic from pod to pod on the bridge passes the rules for IPv4.
fn bridge_is_filtered() -> bool {
    std::fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables").is_ok_and(|on| on.trim() == "1")
}

/// A port that the kernel can forward. It is not on loopback, and not on IPv6, which pods do not have.
struct Port {
    /// The address of this host. `None` means every address.
    address: Option<Ipv4Addr>,
    number: u16,
    pod_port: u16,
    udp: bool,
}

impl Port {
    fn of_kernel(port: &PublishedPort) -> Option<Port> {
        let address = match port.host.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => return None,
            IpAddr::V4(ip) if ip.is_unspecified() => None,
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => return None,
        };
        Some(Port { address, number: port.host.port(), pod_port: port.pod_port, udp: port.udp })
    }

    fn redirect(&self, m: &mut Message, pod: Ipv4Addr) {
        match self.address {
            Some(address) => destination(m, address),
            None => {
                to_this_host(m);
                // Loopback addresses also count as addresses of this host. Nobody outside has a reason to
                // send to them.
                to_loopback(m, Is::Not);
            }
        }
        to_port(m, self.udp, self.number);
        redirect_to(m, pod, self.pod_port);
    }
}
