//! Published ports in the kernel: connections to a port of this host are sent on to the pod, and the pod sees who
//! is calling.
//!
//! Each pod has two chains, named after its interface, which rewrite the destination: one for what comes by the
//! interfaces of the host, one for what its own programs send. Everything that they do not take arrives at the
//! port itself, which is open as well (`forward.rs`): connections to 127.0.0.1 (the kernel would have to route
//! loopback addresses to the bridge, and pods could use that to reach the host's loopback), those of the pod to
//! itself, and those by interfaces that came later.
//!
//! The chains live as long as the pod, not as long as the process that made them.

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

/// How the names of the chains begin; the interface of the pod follows.
const INCOMING: &str = "publish-";
const LOCAL: &str = "publish-local-";
const LOOPBACK: Subnet = Subnet::fixed(Ipv4Addr::new(127, 0, 0, 0), 8);

type BoxedRule<'a> = Box<dyn Fn(&mut Message) + 'a>;

fn rules<'a>(boxed: &'a [BoxedRule<'_>]) -> Vec<Rule<'a>> {
    boxed.iter().map(|rule| &**rule as Rule<'_>).collect()
}

/// Sends connections to `ports` on to the pod with this address, instead of what was published for it before.
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
            // Answers of the pod to another pod do not pass the host unless the kernel filters what the bridge
            // carries, and then the other pod would not know them. Nor do they if it calls itself.
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

/// Applies the rules to UDP clients that already sent something to a port.
fn forget_earlier_clients(links: &mut Links, ports: &[Port]) -> io::Result<()> {
    if !ports.iter().any(|port| port.udp) {
        return Ok(());
    }
    let mut every = Vec::new();
    for index in links.with_addresses()? {
        every.extend(links.addresses(index)?.into_iter().map(|(address, _)| address));
    }
    // The kernel does not redirect what is sent to loopback.
    every.retain(|address| !address.is_loopback());
    for port in ports.iter().filter(|port| port.udp) {
        let addresses = port.address.map_or_else(|| every.clone(), |address| vec![address]);
        conntrack::forget_udp_sent_to(port.number, &addresses)?;
    }
    Ok(())
}

/// Ends what [`publish`] began. There may be nothing to end.
pub(super) fn unpublish(pod: Ipv4Addr) -> io::Result<()> {
    Nft::open()?.remove_chains(Family::Ip, &chains(pod))?;
    conntrack::forget_redirected_to(pod)
}

/// Removes the chains of pods whose interface is gone: nobody was left to do it.
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

/// Whether what the bridge carries from pod to pod passes the rules for IPv4.
fn bridge_is_filtered() -> bool {
    std::fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables").is_ok_and(|on| on.trim() == "1")
}

/// A port that the kernel can forward: it is not on loopback, and not on IPv6, which pods do not have.
struct Port {
    /// `None`: every address of this host.
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
                // Also an address of this host. Nobody outside has a reason to send to it.
                to_loopback(m, Is::Not);
            }
        }
        to_port(m, self.udp, self.number);
        redirect_to(m, pod, self.pod_port);
    }
}
