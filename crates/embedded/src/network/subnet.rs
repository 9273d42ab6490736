//! The addresses of pods, and the choice of the bridge's network.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::link::Mac;

/// The first bytes of the hardware addresses of our interfaces.
const OUR_MACS: [u8; 2] = [0x0a, 0x58];

/// The possible networks of the bridge, the best first. They are spread over the private ranges, because a
/// network that is routed to a machine often occupies one range completely.
const CANDIDATES: [(Ipv4Addr, u8); 7] = [
    (Ipv4Addr::new(10, 89, 0, 0), 16),
    (Ipv4Addr::new(10, 199, 0, 0), 16),
    (Ipv4Addr::new(172, 29, 0, 0), 16),
    (Ipv4Addr::new(172, 22, 0, 0), 16),
    (Ipv4Addr::new(192, 168, 213, 0), 24),
    (Ipv4Addr::new(192, 168, 119, 0), 24),
    // Reserved for benchmarking network equipment (RFC 2544), and not used in practice.
    (Ipv4Addr::new(198, 18, 0, 0), 16),
];

/// An IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    base: Ipv4Addr,
    prefix: u8,
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl Subnet {
    /// A network whose first address is `base`.
    pub(super) const fn fixed(base: Ipv4Addr, prefix: u8) -> Subnet {
        Subnet { base, prefix }
    }

    /// The network with `prefix` leading bits that contains `address`.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Subnet {
        let prefix = prefix.min(32);
        Subnet { base: address & mask(prefix), prefix }
    }

    /// The first address of the network.
    pub fn base(self) -> Ipv4Addr {
        self.base
    }

    /// The number of fixed leading bits.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The network mask.
    pub fn mask(self) -> Ipv4Addr {
        mask(self.prefix)
    }

    /// Whether the network contains the address.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address & mask(self.prefix) == self.base
    }

    fn overlaps(self, other: Subnet) -> bool {
        self.contains(other.base) || other.contains(self.base)
    }

    /// The bridge's own address, which is the first one.
    pub(super) fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base.to_bits() | 1)
    }

    /// Every possible pod address, each once. The start depends on `id`, so that the same pod tends to get
    /// the same address, and an address that was just released is not reused next.
    pub(super) fn pod_addresses(self, id: &str) -> impl Iterator<Item = Ipv4Addr> {
        let gateway = self.gateway();
        // The first and the last address are left out. They are the network and the broadcast address.
        let count = (u64::from(!self.mask().to_bits()) + 1).saturating_sub(2);
        let start = fnv(id.as_bytes()).checked_rem(count).unwrap_or(0);
        (0..count)
            .map(move |step| {
                let host = u32::try_from((start + step) % count).expect("smaller than a subnet") + 1;
                Ipv4Addr::from_bits(self.base.to_bits() | host)
            })
            .filter(move |address| *address != gateway)
    }
}

/// The first candidate that does not overlap with the given routes. Default routes are ignored.
pub(super) fn choose(routes: impl Iterator<Item = Subnet> + Clone) -> Option<Subnet> {
    CANDIDATES
        .iter()
        .map(|(base, prefix)| Subnet::new(*base, *prefix))
        .find(|candidate| !routes.clone().any(|route| route.prefix > 0 && route.overlaps(*candidate)))
}

/// A hardware address derived from the IPv4 address, so that neighbour tables stay valid when an address
/// moves to another pod.
pub(crate) fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    [OUR_MACS[0], OUR_MACS[1], a, b, c, d]
}

/// Whether a hardware address comes from [`mac_of`].
pub(super) fn is_ours(mac: Mac) -> bool {
    mac.starts_with(&OUR_MACS)
}

fn mask(prefix: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0))
}

/// The FNV-1a hash. Unlike the standard library's hasher, it is the same on every machine and in every
/// version.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn subnet(text: &str) -> Subnet {
        let (base, prefix) = text.split_once('/').expect("a/b");
        Subnet::new(base.parse().expect("address"), prefix.parse().expect("prefix"))
    }

    #[test]
    fn candidates_that_collide_with_routes_are_passed_over() {
        let table: [(&[&str], Option<&str>); 6] = [
            (&["0.0.0.0/0", "192.0.2.0/24"], Some("10.89.0.0/16")),
            (&["10.89.3.7/32"], Some("10.199.0.0/16")),
            (&["10.0.0.0/8"], Some("172.29.0.0/16")),
            (&["10.0.0.0/8", "172.16.0.0/12"], Some("192.168.213.0/24")),
            (&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"], Some("198.18.0.0/16")),
            (&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "128.0.0.0/1"], None),
        ];
        for (routes, expected) in table {
            let chosen = choose(routes.iter().map(|r| subnet(r)));
            assert_eq!(chosen.map(|s| s.to_string()).as_deref(), expected, "{routes:?}");
        }
    }

    #[test]
    fn pod_addresses_are_all_usable_ones_once() {
        let net = subnet("192.168.213.0/24");
        for id in ["", "a", "pod-1", "pod-2"] {
            let all: Vec<_> = net.pod_addresses(id).collect();
            assert_eq!(all.len(), 253);
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), 253);
            assert!(all.iter().all(|a| net.contains(*a) && *a != net.gateway()));
            assert!(all.iter().all(|a| ![0, 255].contains(&a.octets()[3])));
        }
        let first = |id| net.pod_addresses(id).next();
        assert_eq!(first("pod-1"), first("pod-1"));
        assert_ne!(first("pod-1"), first("pod-2"));
        assert_eq!(subnet("10.0.0.1/32").pod_addresses("x").count(), 0);
        assert_eq!(subnet("10.0.0.0/31").pod_addresses("x").count(), 0);
    }
}
