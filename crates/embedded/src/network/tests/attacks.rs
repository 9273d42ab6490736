//! Tests of attacks by hostile pods with real frames, and of effects that pods must not have on the machine.

use super::super::nft::{Family, Nft};
use super::super::subnet::mac_of;
use super::super::{nat, release_now};
use super::*;

/// Long enough for the kernel to process a frame.
const A_WHILE: Duration = Duration::from_millis(300);
const BROADCAST: [u8; 6] = [0xff; 6];

pub(super) fn v4(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => panic!("{ip} is not an IPv4 address"),
    }
}

/// Sends a raw frame from an interface of a namespace.
pub(super) fn send(netns: &Path, interface: &str, frame: &[u8]) {
    let index =
        Links::open(Some(netns)).and_then(|mut l| l.find(interface)).expect("list").expect("there").index;
    socket_in(Some(netns), || {
        // SAFETY: plain calls. The address is all zero except for the fields that are set, and lives until
        // the call returns.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(socket >= 0, "packet socket");
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = libc::AF_PACKET as u16;
            to.sll_ifindex = index as i32;
            to.sll_halen = 6;
            let sent = libc::sendto(
                socket,
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            );
            libc::close(socket);
            assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
        }
        Ok(())
    })
    .expect("sent");
}

pub(super) fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

pub(super) fn udp(from: Ipv4Addr, to: SocketAddr, text: &str) -> Vec<u8> {
    let length = 28 + text.len() as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0];
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip.extend(from.octets());
    ip.extend(v4(to.ip()).octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend(4000_u16.to_be_bytes());
    ip.extend(to.port().to_be_bytes());
    ip.extend((8 + text.len() as u16).to_be_bytes());
    // Without a checksum.
    ip.extend([0, 0]);
    ip.extend(text.as_bytes());
    ip
}

fn arp_reply(mac: [u8; 6], address: Ipv4Addr, to_mac: [u8; 6], to: Ipv4Addr) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 2][..], &mac, &address.octets(), &to_mac, &to.octets()].concat()
}

/// The frame of a router that advertises a prefix and a default route.
fn router_advertisement(from: [u8; 6]) -> Vec<u8> {
    let source: [u8; 16] = "fe80::bad".parse::<std::net::Ipv6Addr>().expect("address").octets();
    let all: [u8; 16] = "ff02::1".parse::<std::net::Ipv6Addr>().expect("address").octets();
    let prefix: [u8; 16] = "2001:db8:bad::".parse::<std::net::Ipv6Addr>().expect("address").octets();
    let mut icmp = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    icmp.extend([1, 1]);
    icmp.extend(from);
    icmp.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    icmp.extend(prefix);
    let length = icmp.len() as u16;
    let pseudo = [&source[..], &all, &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 58], &icmp].concat();
    let sum = checksum(&pseudo);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[58, 255], &source, &all, &icmp].concat();
    ethernet([0x33, 0x33, 0, 0, 0, 1], from, 0x86dd, &ip)
}

/// The IPv6 configuration that the host has accepted from others.
fn taken() -> String {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let lines = |text: String| -> Vec<String> {
        text.lines().filter(|l| l.contains("20010db80bad")).map(str::to_owned).collect()
    };
    [lines(read("if_inet6")), lines(read("ipv6_route"))].concat().join("\n")
}

#[test]
fn router_advertisements_of_a_pod_do_not_reconfigure_the_host() {
    on_a_host(async |host| {
        // The attack is real, because an ordinary interface accepts it.
        let wild = world(&host);
        until("the host's interface is ready for IPv6", async || {
            std::fs::read_to_string("/proc/thread-self/net/if_inet6").is_ok_and(|t| t.contains("up0"))
        })
        .await;
        until("an ordinary interface takes the advertisement", async || {
            send(&wild, "eth0", &router_advertisement([2, 0, 0, 0, 0, 1]));
            !taken().is_empty()
        })
        .await;
        let mut links = Links::open(None).expect("links");
        let uplink = links.find("up0").expect("list").expect("there").index;
        links.delete(uplink).expect("delete");
        until("its address goes with it", async || taken().is_empty()).await;

        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let mac = mac_of(v4(attachment.ips[0]));
        for filtered in [true, false] {
            if !filtered {
                // Even without the filter, the bridge itself must not accept it.
                Nft::open().and_then(|mut nft| nft.remove_table(Family::Netdev)).expect("no filter");
            }
            for _ in 0..3 {
                send(&pod, "eth0", &router_advertisement(mac));
            }
            tokio::time::sleep(A_WHILE).await;
            assert_eq!(taken(), "", "filtered: {filtered}");
        }
        let setting = |name: &str| {
            std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{BRIDGE}/{name}")).unwrap_or_default()
        };
        assert_eq!((setting("accept_ra").trim(), setting("disable_ipv6").trim()), ("0", "1"));
    });
}

#[test]
fn a_pod_cannot_send_under_another_address() {
    on_a_host(async |host| {
        let (a, first) = host.pod("a", NetworkMode::Private).await;
        let (b, second) = host.pod("b", NetworkMode::Private).await;
        let (a_ip, b_ip) = (v4(first.ips[0]), v4(second.ips[0]));
        let (a_mac, b_mac) = (mac_of(a_ip), mac_of(b_ip));
        let gateway = first.subnet.expect("subnet").gateway();
        let server = UdpSocket::bind((gateway, 0)).await.expect("bind");
        let to = server.local_addr().expect("address");
        let frame = |mac, from, text| ethernet(mac_of(gateway), mac, 0x0800, &udp(from, to, text));
        // Frames with the neighbour's address, its hardware address, both, an unused address, and the host's
        // own address.
        send(&b, "eth0", &frame(b_mac, a_ip, "address"));
        send(&b, "eth0", &frame(a_mac, b_ip, "hardware"));
        send(&b, "eth0", &frame(a_mac, a_ip, "both"));
        send(&b, "eth0", &frame(b_mac, Ipv4Addr::new(198, 51, 100, 7), "nobody"));
        send(&b, "eth0", &frame(b_mac, gateway, "host"));
        send(&b, "eth0", &frame(b_mac, b_ip, "own"));
        let mut buffer = [0; 64];
        let (len, from) = tokio::time::timeout(SOON, server.recv_from(&mut buffer))
            .await
            .expect("in time")
            .expect("datagram");
        assert_eq!((&buffer[..len], from.ip()), (&b"own"[..], second.ips[0]), "only what is true arrives");

        // The neighbour's address with the pod's own hardware address, which would redirect the neighbour's
        // packets to this pod.
        assert!(ask(Some(&a), serve(None, SocketAddr::new(gateway.into(), 0), "host")).await.is_ok());
        let known = || std::fs::read_to_string("/proc/thread-self/net/arp").expect("table");
        let shown = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let entry = |ip: Ipv4Addr| {
            known().lines().find(|l| l.starts_with(&format!("{ip} "))).unwrap_or("").to_owned()
        };
        assert!(entry(a_ip).contains(&shown(a_mac)), "{}", known());
        for to in [mac_of(gateway), BROADCAST] {
            send(&b, "eth0", &ethernet(to, b_mac, 0x0806, &arp_reply(b_mac, a_ip, mac_of(gateway), gateway)));
        }
        tokio::time::sleep(A_WHILE).await;
        assert!(entry(a_ip).contains(&shown(a_mac)), "{}", known());
        // The neighbours can still communicate.
        let at = serve(Some(&a), SocketAddr::new(first.ips[0], 0), "a");
        assert_eq!(ask(Some(&b), at).await.expect("neighbour"), format!("a {b_ip} hello"));
    });
}

#[test]
fn what_listens_on_the_host_s_loopback_is_not_for_pods() {
    on_a_host(async |host| {
        // kube-proxy sets this.
        std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").expect("sysctl");
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let (ip, gateway) = (v4(attachment.ips[0]), attachment.subnet.expect("subnet").gateway());
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
        let to = server.local_addr().expect("address");
        let attack =
            || send(&pod, "eth0", &ethernet(mac_of(gateway), mac_of(ip), 0x0800, &udp(ip, to, "in")));
        let mut buffer = [0; 64];
        let mut arrives = async || tokio::time::timeout(A_WHILE, server.recv_from(&mut buffer)).await.is_ok();
        attack();
        assert!(!arrives().await, "with all rules");
        Nft::open().and_then(|mut nft| nft.remove_table(Family::Netdev)).expect("no filter");
        attack();
        assert!(!arrives().await, "without the filter on the port");
        // The attack is real, because without our rules the kernel lets it through.
        Nft::open().and_then(|mut nft| nft.remove_table(Family::Ip)).expect("no rules");
        attack();
        assert!(arrives().await, "without any rules");
    });
}

pub(super) fn forwarding(interface: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/forwarding");
    std::fs::read_to_string(path).expect("sysctl").trim().to_owned()
}

/// Creates another network of the host with a server in it. Returns the namespace and the server's address.
pub(super) fn lan(host: &Host) -> (PathBuf, SocketAddr) {
    let (netns, here, there) =
        (host.netns("lan"), Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 2));
    let (mut links, mut inside) =
        (Links::open(None).expect("links"), Links::open(Some(&netns)).expect("links"));
    let namespace = File::open(&netns).expect("namespace");
    assert!(links.add_veth("lan0", 0, "eth0", [2, 0, 0, 0, 0, 3], namespace.as_fd()).expect("lan"));
    for (links, name, address) in [(&mut links, "lan0", here), (&mut inside, "eth0", there)] {
        let index = links.find(name).expect("list").expect("interface").index;
        assert!(links.add_address(index, address, 24).expect("address"));
        links.up(index).expect("up");
    }
    let index = inside.find("eth0").expect("list").expect("interface").index;
    inside.add_default_route(index, here).expect("route");
    (netns, SocketAddr::new(there.into(), 80))
}

pub(super) async fn is_reached(from: &Path, to: SocketAddr) -> bool {
    connect_tcp(Some(from), to, A_WHILE).await.is_ok()
}

#[test]
fn nothing_but_pods_is_forwarded_and_nothing_when_the_last_is_gone() {
    for filter in [nat::Filter::Nftables, nat::Filter::Iptables] {
        on_a_host(async move |host| {
            let world = world(&host);
            let (lan, target) = lan(&host);
            serve(Some(&lan), target, "lan");
            let outside = serve(Some(&world), "192.0.2.2:0".parse().expect("address"), "world");
            assert!(!is_reached(&world, target).await, "nobody forwards yet");

            let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
            if filter == nat::Filter::Iptables {
                // This simulates a kernel without nf_tables.
                nat::restore().expect("restore");
                assert!(!is_reached(&pod, outside).await, "nothing is left");
                let mut links = Links::open(None).expect("links");
                nat::let_out_with(filter, &mut links, attachment.subnet.expect("subnet")).expect("iptables");
            }
            assert_eq!(ask(Some(&pod), outside).await.expect("out"), "world 192.0.2.1 hello");
            let inside = serve(Some(&pod), SocketAddr::new(attachment.ips[0], 0), "a");
            for from in [&world, &lan] {
                assert!(!is_reached(from, inside).await, "{filter:?}: {} reaches the pod", from.display());
            }
            assert!(!is_reached(&world, target).await, "{filter:?}: the host routes for strangers");
            assert_eq!(
                (forwarding("all"), forwarding("up0"), forwarding("lan0")),
                ("0".into(), "1".into(), "0".into())
            );

            // A run that is killed leaves its pod. The next run finds and removes everything.
            let (_second, _) = host.pod("b", NetworkMode::Private).await;
            let id = |name: &str| SandboxId(name.to_owned());
            release_now(&[id("a")]).expect("release");
            assert_eq!(forwarding("up0"), "1", "another pod uses it");
            detach(&id("a")).await.expect("detach");
            release_now(&[id("b")]).expect("release");
            assert_eq!((forwarding("all"), forwarding("up0")), ("0".into(), "0".into()), "{filter:?}");
            assert_eq!(Links::open(None).and_then(|mut l| l.find(BRIDGE)).expect("list"), None);
            let left = Nft::open()
                .and_then(|mut nft| Ok([nft.chains(Family::Ip)?, nft.chains(Family::Netdev)?].concat()));
            assert_eq!(left.expect("chains"), Vec::<String>::new());
            let rules = std::process::Command::new("iptables-save").output();
            let rules = rules.expect("install the package iptables").stdout;
            let rules = String::from_utf8_lossy(&rules).into_owned();
            assert!(!rules.contains(BRIDGE), "{rules}");
            // Everything works again.
            let (pod, _) = host.pod("c", NetworkMode::Private).await;
            assert_eq!(ask(Some(&pod), outside).await.expect("out"), "world 192.0.2.1 hello");
        });
    }
}

#[test]
fn what_somebody_else_has_switched_on_stays_on() {
    on_a_host(async |host| {
        let world = world(&host);
        let (lan, target) = lan(&host);
        serve(Some(&lan), target, "lan");
        // First, forwarding is on before the pods, as on a router. We must neither guard it nor switch it
        // off.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("sysctl");
        let (_, _) = host.pod("a", NetworkMode::Private).await;
        assert!(is_reached(&world, target).await, "a router goes on routing");
        release_now(&[SandboxId("a".to_owned())]).expect("release");
        assert_eq!((forwarding("all"), forwarding("up0")), ("1".into(), "1".into()));

        // Then, another engine switches it on while pods run.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("sysctl");
        let (_, _) = host.pod("b", NetworkMode::Private).await;
        assert!(!is_reached(&world, target).await);
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("sysctl");
        let (_, _) = host.pod("c", NetworkMode::Private).await;
        assert!(is_reached(&world, target).await, "the next pod has noticed");
        release_now(&["b", "c"].map(|name| SandboxId(name.to_owned()))).expect("release");
        assert_eq!((forwarding("all"), forwarding("up0")), ("1".into(), "1".into()));
    });
}
