//! Restricts a pod to its own address, and protects the host from it.
//!
//! The host uses only IPv4 with pods. Its bridge accepts no router advertisements or redirects, and has no
//! IPv6 at all if Outrigger created it. Each pod's port accepts only IPv4 and ARP packets with the pod's own
//! addresses. Everything else that the pod sends is dropped there, so that it cannot impersonate a neighbour,
//! the host, or a router.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use super::link::Links;
use super::nft::{Family, Hook, Is, Nft, Rule, accept, arp_from, drop_packet, ipv4_from, to_loopback};
use super::subnet::mac_of;
use super::{BRIDGE, address_of, interface_name};

/// Secures the bridge before it is enabled. `is_own` means that we created it. On a bridge that someone else
/// created, IPv6 may be wanted.
///
/// # Errors
/// A setting cannot be changed. Then the bridge must not be used.
pub(super) fn bridge(is_own: bool) -> io::Result<()> {
    for (name, value) in [
        ("accept_redirects", "0"),
        ("send_redirects", "0"),
        ("accept_source_route", "0"),
        ("route_localnet", "0"),
        ("proxy_arp", "0"),
    ] {
        set("ipv4", BRIDGE, name, value)?;
    }
    // Strict reverse path filtering, unless loose is configured: packets must arrive by the interface that
    // their answers would use.
    if get("ipv4", BRIDGE, "rp_filter").as_deref() == Some("0") {
        set("ipv4", BRIDGE, "rp_filter", "1")?;
    }
    for (name, value) in
        [("accept_ra", "0"), ("autoconf", "0"), ("accept_redirects", "0"), ("forwarding", "0")]
    {
        set("ipv6", BRIDGE, name, value)?;
    }
    if is_own {
        set("ipv6", BRIDGE, "disable_ipv6", "1")?;
    }
    Ok(())
}

/// Secures the host's end of a pod's interface before it is enabled.
///
/// # Errors
/// A setting cannot be changed. Then the interface must not be used.
pub(super) fn port(address: Ipv4Addr) -> io::Result<()> {
    set("ipv6", &interface_name(address), "disable_ipv6", "1")
}

/// Filters a pod's port, so that only the pod's own packets pass.
///
/// # Errors
/// The kernel cannot filter what an interface receives.
pub(crate) fn filter_port(address: Ipv4Addr) -> io::Result<()> {
    let (name, mac) = (interface_name(address), mac_of(address));
    let ip: Rule<'_> = &|m| {
        ipv4_from(m, mac, address);
        to_loopback(m, Is::Not);
        accept(m);
    };
    let arp: Rule<'_> = &|m| {
        arp_from(m, mac, address);
        accept(m);
    };
    let rules = vec![ip, arp, &|m| drop_packet(m)];
    Nft::open()?.replace_chains(Family::Netdev, &[(name.clone(), Hook::Ingress(&name), rules)])
}

/// Removes the filter of a pod's port.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn unfilter_port(address: Ipv4Addr) -> io::Result<()> {
    Nft::open()?.remove_chains(Family::Netdev, &[interface_name(address)])
}

/// Removes the filters of ports that no longer exist. Linux 6.16 and later keep the chain of a removed
/// interface. The caller holds the network's lock, so that no new pod gets such an address in the meantime.
///
/// # Errors
/// The kernel refuses to list or to remove something.
pub(super) fn remove_stale(nft: &mut Nft, links: &mut Links) -> io::Result<()> {
    let mut stale = nft.chains(Family::Netdev)?;
    let present = links.list()?;
    stale.retain(|chain| address_of(chain).is_some() && !present.iter().any(|link| link.name == *chain));
    nft.remove_chains(Family::Netdev, &stale)
}

fn path(family: &str, interface: &str, name: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{interface}/{name}")
}

fn get(family: &str, interface: &str, name: &str) -> Option<String> {
    fs::read_to_string(path(family, interface, name)).ok().map(|value| value.trim().to_owned())
}

fn set(family: &str, interface: &str, name: &str, value: &str) -> io::Result<()> {
    match get(family, interface, name) {
        // The kernel has no IPv6.
        None => Ok(()),
        Some(now) if now == value => Ok(()),
        Some(_) => {
            let path = path(family, interface, name);
            fs::write(&path, value)
                .map_err(|e| io::Error::new(e.kind(), format!("cannot set {path} to {value}: {e}")))
        }
    }
}
