//! Tests of published ports: who reaches a pod through them, and which address the pod sees.

use super::super::budget::Budget;
use super::super::nft::{Family, Nft};
use super::super::{nat, release_now, unpublish};
use super::*;
use outrigger_runtime::PublishedPort;

const EVERYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The host's address in its [`world`], and the address of the other machine.
const HOST: &str = "192.0.2.1";
const OTHER: &str = "192.0.2.2";

fn at(ip: IpAddr, pod_port: u16, udp: bool) -> PublishedPort {
    PublishedPort { host: SocketAddr::new(ip, 0), pod_port, udp }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// Sets whether connections between pods on the bridge pass the rules for IPv4.
fn filter_the_bridge(on: bool) {
    let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    std::fs::write(path, if on { "1" } else { "0" }).expect("sysctl");
}

/// Answers datagrams with `word`, the client's address, and what was sent.
fn serve_udp(netns: &Path, at: SocketAddr, word: &'static str) -> u16 {
    let server = socket_in(Some(netns), || {
        let socket = std::net::UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })
    .and_then(UdpSocket::from_std)
    .expect("server");
    let port = server.local_addr().expect("address").port();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, peer)) = server.recv_from(&mut buffer).await {
            let text = format!("{word} {} {}", peer.ip(), String::from_utf8_lossy(&buffer[..len]));
            server.send_to(text.as_bytes(), peer).await.expect("answer");
        }
    });
    port
}

async fn ask_udp(netns: Option<&Path>, to: SocketAddr) -> Option<String> {
    let socket = socket_in(netns, || {
        let socket = std::net::UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })
    .and_then(UdpSocket::from_std)
    .expect("client");
    socket.connect(to).await.expect("connect");
    socket.send(b"hello").await.ok()?;
    let mut buffer = [0; 64];
    let len = tokio::time::timeout(Duration::from_secs(2), socket.recv(&mut buffer)).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

fn publish_chains() -> Vec<String> {
    let mut chains = Nft::open().and_then(|mut nft| nft.chains(Family::Ip)).expect("chains");
    chains.retain(|chain| chain.starts_with("publish-"));
    chains
}

#[test]
fn another_machine_is_seen_with_its_own_address() {
    on_a_host(async |host| {
        let world = world(&host);
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "tcp").port();
        let datagrams = serve_udp(&pod, SocketAddr::new(EVERYWHERE, 0), "udp");
        let ports = [at(EVERYWHERE, port, false), at(EVERYWHERE, datagrams, true), at(ip(HOST), port, false)];
        let forwarders = Forwarders::start(attachment.ips[0], None, &ports).await.expect("start");
        let [all, udp, one] = forwarders.addresses() else { panic!("three ports") };
        let gateway = attachment.subnet.expect("subnet").gateway();
        // The source, the destination, and the address that the pod sees.
        for (from, to, seen) in [
            (Some(&*world), HOST, OTHER),
            (None, HOST, HOST),
            // Loopback does not leave the host, so the pod sees the host's own address on the bridge.
            (None, "127.0.0.1", &*gateway.to_string()),
        ] {
            let tcp = ask(from, SocketAddr::new(ip(to), all.port())).await.expect("tcp");
            assert_eq!(tcp, format!("tcp {seen} hello"), "{to}");
            let udp = ask_udp(from, SocketAddr::new(ip(to), udp.port())).await.expect("udp");
            assert_eq!(udp, format!("udp {seen} hello"), "{to}");
        }
        assert_eq!(ask(Some(&world), *one).await.expect("one address"), format!("tcp {OTHER} hello"));
        let elsewhere = SocketAddr::new(LOCALHOST, one.port());
        assert!(ask(None, elsewhere).await.is_err(), "only one address was asked for");
        // Only the published ports are reachable, however they are addressed.
        let direct = SocketAddr::new(attachment.ips[0], port);
        let kept_out = connect_tcp(Some(&world), direct, Duration::from_millis(300)).await;
        assert_eq!(kept_out.expect_err("kept out").kind(), io::ErrorKind::TimedOut);
    });
}

#[test]
fn interfaces_without_a_default_route_and_late_ones_work_too() {
    on_a_host(async |host| {
        let _world = world(&host);
        let (lan, _) = super::attacks::lan(&host);
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "pod").port();
        let published = at(EVERYWHERE, port, false);
        let forwarders = Forwarders::start(attachment.ips[0], None, &[published]).await.expect("start");
        let number = forwarders.addresses()[0].port();
        let here = SocketAddr::new(ip("203.0.113.1"), number);
        assert_eq!(ask(Some(&lan), here).await.expect("lan"), "pod 203.0.113.2 hello");
        // The kernel does not forward from an interface that was added later, but the port itself is open.
        let late = host.netns("late");
        let namespace = File::open(&late).expect("namespace");
        let mut links = Links::open(None).expect("links");
        assert!(links.add_veth("late0", 0, "eth0", [2, 0, 0, 0, 0, 5], namespace.as_fd()).expect("veth"));
        let mut inside = Links::open(Some(&late)).expect("links");
        for (links, name, last) in [(&mut links, "late0", 1), (&mut inside, "eth0", 2)] {
            let index = links.find(name).expect("list").expect("interface").index;
            links.add_address(index, Ipv4Addr::new(198, 51, 100, last), 24).expect("address");
            links.up(index).expect("up");
        }
        let gateway = attachment.subnet.expect("subnet").gateway();
        let here = SocketAddr::new(ip("198.51.100.1"), number);
        assert_eq!(ask(Some(&late), here).await.expect("late"), format!("pod {gateway} hello"));
        drop(forwarders);
        release_now(&[SandboxId("a".to_owned())]).expect("release");
        for interface in ["up0", "lan0"] {
            assert_eq!(super::attacks::forwarding(interface), "0", "{interface} is as before");
        }
    });
}

#[test]
fn a_machine_that_begins_to_forward_is_not_in_the_way_of_others() {
    on_a_host(async |host| {
        let world = world(&host);
        let (lan, target) = super::attacks::lan(&host);
        serve(Some(&world), SocketAddr::new(ip(OTHER), 80), "world");
        let reached = async || super::attacks::is_reached(&lan, SocketAddr::new(ip(OTHER), 80)).await;
        let (_, attachment) = host.pod("a", NetworkMode::Private).await;
        let forwarders =
            Forwarders::start(attachment.ips[0], None, &[at(EVERYWHERE, 80, false)]).await.expect("start");
        assert_eq!(super::attacks::forwarding("lan0"), "1");
        assert!(!reached().await, "{target} is not routed for");
        // Another engine switches forwarding on.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("sysctl");
        let (_, _) = host.pod("b", NetworkMode::Private).await;
        assert!(reached().await, "the next pod has noticed");
        drop(forwarders);
    });
}

#[test]
fn a_program_on_the_pods_loopback_is_reached_by_nobody() {
    on_a_host(async |host| {
        let world = world(&host);
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(LOCALHOST, 0), "secret").port();
        let datagrams = serve_udp(&pod, SocketAddr::new(LOCALHOST, 0), "secret");
        let ports = [at(EVERYWHERE, port, false), at(EVERYWHERE, datagrams, true)];
        let forwarders = Forwarders::start(attachment.ips[0], None, &ports).await.expect("start");
        let [tcp, udp] = forwarders.addresses() else { panic!("two ports") };
        for (from, to) in [(Some(&*world), HOST), (None, HOST), (None, "127.0.0.1"), (Some(&*pod), HOST)] {
            let refused = ask(from, SocketAddr::new(ip(to), tcp.port())).await.expect_err("refused").kind();
            assert!(
                matches!(refused, io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset),
                "{to}: {refused}"
            );
            assert_eq!(ask_udp(from, SocketAddr::new(ip(to), udp.port())).await, None, "{to}");
        }
    });
}

#[test]
fn a_port_of_loopback_is_for_this_host_only() {
    on_a_host(async |host| {
        // kube-proxy sets this.
        std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").expect("sysctl");
        let world = world(&host);
        let (a, attachment) = host.pod("a", NetworkMode::Private).await;
        let (b, _) = host.pod("b", NetworkMode::Private).await;
        let port = serve(Some(&a), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let forwarders =
            Forwarders::start(attachment.ips[0], None, &[at(LOCALHOST, port, false)]).await.expect("start");
        let number = forwarders.addresses()[0].port();
        let gateway = attachment.subnet.expect("subnet").gateway();
        let local = SocketAddr::new(LOCALHOST, number);
        assert_eq!(ask(None, local).await.expect("local"), format!("a {gateway} hello"));
        for (from, to) in [(&world, ip(HOST)), (&a, gateway.into()), (&b, gateway.into()), (&b, ip(HOST))] {
            let reached = connect_tcp(Some(from), SocketAddr::new(to, number), SOON).await;
            assert_eq!(reached.expect_err("refused").kind(), io::ErrorKind::ConnectionRefused, "{to}");
        }
        // Packets to 127.0.0.1 arrive by the wire.
        for from in [&world, &b] {
            let mut links = Links::open(Some(from)).expect("links");
            let eth0 = links.find("eth0").expect("list").expect("there").index;
            super::super::enter::inside(from, || {
                std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1")?;
                let rule = std::process::Command::new("ip")
                    .args(["route", "replace", "table", "local", "127.0.0.1", "dev", "eth0"])
                    .status();
                if !rule.is_ok_and(|status| status.success()) {
                    eprintln!("skipped: no `ip` here, or it refused");
                }
                Ok(())
            })
            .expect("route");
            let reached = connect_tcp(Some(from), local, Duration::from_millis(300)).await;
            assert!(reached.is_err(), "interface {eth0} of {}", from.display());
        }
    });
}

#[test]
fn pods_reach_published_ports_and_cannot_pass_for_others() {
    for filtered in [true, false] {
        on_a_host(async move |host| {
            let _world = world(&host);
            filter_the_bridge(filtered);
            let (a, at_a) = host.pod("a", NetworkMode::Private).await;
            let (b, at_b) = host.pod("b", NetworkMode::Private).await;
            let gateway = at_a.subnet.expect("subnet").gateway();
            let port = serve(Some(&a), SocketAddr::new(EVERYWHERE, 0), "a").port();
            let datagrams = serve_udp(&a, SocketAddr::new(EVERYWHERE, 0), "a");
            let ports = [at(EVERYWHERE, port, false), at(EVERYWHERE, datagrams, true)];
            let forwarders = Forwarders::start(at_a.ips[0], None, &ports).await.expect("start");
            let [tcp, udp] = forwarders.addresses() else { panic!("two ports") };
            // A pod that connects to itself this way is seen as the host. So are other pods if the bridge is
            // not filtered.
            let of_b = if filtered { at_b.ips[0] } else { gateway.into() };
            for to in [ip(HOST), gateway.into()] {
                for (from, seen) in [(&b, of_b), (&a, gateway.into())] {
                    let tcp = ask(Some(from), SocketAddr::new(to, tcp.port())).await.expect("tcp");
                    assert_eq!(tcp, format!("a {seen} hello"), "filtered: {filtered}, {to}");
                    let udp = ask_udp(Some(from), SocketAddr::new(to, udp.port())).await.expect("udp");
                    assert_eq!(udp, format!("a {seen} hello"), "filtered: {filtered}, {to}");
                }
            }
            // Direct connections work as before.
            let direct = SocketAddr::new(at_a.ips[0], port);
            assert_eq!(ask(Some(&b), direct).await.expect("direct"), format!("a {} hello", at_b.ips[0]));
            // The same port of another machine still belongs to that machine.
            let theirs = SocketAddr::new(ip(OTHER), tcp.port());
            serve(Some(&host.dir.path().join("world")), theirs, "world");
            assert_eq!(ask(Some(&b), theirs).await.expect("world"), format!("world {HOST} hello"));
            assert_eq!(ask(None, theirs).await.expect("world"), format!("world {HOST} hello"));
        });
    }
}

#[test]
fn datagrams_are_answered_from_the_address_they_were_sent_to() {
    on_a_host(async |host| {
        let world = world(&host);
        // A second address of the host, which the kernel would not answer from, and IPv6 addresses.
        for (netns, name, last) in [(None, "up0", 1), (Some(&*world), "eth0", 2)] {
            let add = |address: String| {
                let added = std::process::Command::new("ip")
                    .args(["address", "add", &address, "dev", name, "nodad"])
                    .status();
                assert!(added.expect("ip").success(), "{address}");
                Ok(())
            };
            let both = || ["fd00::", "fd00::1"].iter().try_for_each(|net| add(format!("{net}{last}/64")));
            match netns {
                Some(netns) => super::super::enter::inside(netns, both),
                None => both().and_then(|()| add("192.0.2.77/32".to_owned())),
            }
            .expect("addresses");
        }
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let datagrams = serve_udp(&pod, SocketAddr::new(EVERYWHERE, 0), "udp");
        let ports = [at(EVERYWHERE, datagrams, true), at(ip("::"), datagrams, true)];
        // Forwards only in user space, as without root.
        let budget = Budget::new(64);
        let forwarders = Forwarders::open(attachment.ips[0], None, &ports, &budget).await.expect("open");
        let [four, six] = forwarders.addresses() else { panic!("two ports") };
        let gateway = attachment.subnet.expect("subnet").gateway();
        let (world, here) = (Some(&*world), None);
        for (from, to, port) in [
            (world, HOST, four),
            (world, "192.0.2.77", four),
            (here, "127.0.0.9", four),
            (world, "fd00::1", six),
            (world, "fd00::11", six),
            (world, "192.0.2.77", six),
            (here, "::1", six),
            (here, "127.0.0.9", six),
        ] {
            let answer = ask_udp(from, SocketAddr::new(ip(to), port.port())).await;
            assert_eq!(answer, Some(format!("udp {gateway} hello")), "{to} on {port}");
        }
    });
}

#[test]
fn a_pod_cannot_use_another_address_at_a_published_port() {
    on_a_host(async |host| {
        let (a, at_a) = host.pod("a", NetworkMode::Private).await;
        let (b, at_b) = host.pod("b", NetworkMode::Private).await;
        let gateway = at_a.subnet.expect("subnet").gateway();
        let datagrams = serve_udp(&a, SocketAddr::new(EVERYWHERE, 0), "a");
        let forwarders =
            Forwarders::start(at_a.ips[0], None, &[at(EVERYWHERE, datagrams, true)]).await.expect("start");
        let to = SocketAddr::new(gateway.into(), forwarders.addresses()[0].port());
        let heard = UdpSocket::bind((gateway, 4000)).await.expect("bind");
        let b_mac = subnet::mac_of(super::attacks::v4(at_b.ips[0]));
        // Datagrams with the source of the host, of another machine, and of the pod itself. For one of them,
        // an answer would arrive at port 4000 of the gateway.
        for from in [gateway, Ipv4Addr::new(198, 51, 100, 7), super::attacks::v4(at_a.ips[0])] {
            let frame = super::attacks::udp(from, to, "spoofed");
            let frame = super::attacks::ethernet(subnet::mac_of(gateway), b_mac, 0x0800, &frame);
            super::attacks::send(&b, "eth0", &frame);
        }
        let mut buffer = [0; 64];
        let answer = tokio::time::timeout(Duration::from_millis(300), heard.recv(&mut buffer)).await;
        assert!(answer.is_err(), "the pod was asked in the host's name");
        assert!(ask_udp(Some(&b), to).await.is_some(), "and may ask in its own");
    });
}

#[test]
fn rules_follow_the_life_of_the_pod() {
    on_a_host(async |host| {
        let world = world(&host);
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let published = [at(EVERYWHERE, port, false)];
        let forwarders = Forwarders::start(attachment.ips[0], None, &published).await.expect("start");
        let here = SocketAddr::new(ip(HOST), forwarders.addresses()[0].port());
        let chains = publish_chains();
        assert_eq!(chains.len(), 2, "{chains:?}");
        // The process is killed and another one adopts the pod. The rules are the same, and exist once.
        drop(forwarders);
        assert_eq!(ask(Some(&world), here).await.expect("meanwhile"), format!("a {OTHER} hello"));
        let again =
            [PublishedPort { host: SocketAddr::new(EVERYWHERE, here.port()), ..published[0].clone() }];
        let forwarders = Forwarders::start(attachment.ips[0], None, &again).await.expect("start");
        assert_eq!(publish_chains(), chains);
        assert_eq!(ask(Some(&world), here).await.expect("again"), format!("a {OTHER} hello"));
        drop(forwarders);
        unpublish(&attachment.ips).await;
        unpublish(&attachment.ips).await;
        assert_eq!(publish_chains(), Vec::<String>::new());
        assert_eq!(ask(Some(&world), here).await.expect_err("gone").kind(), io::ErrorKind::ConnectionRefused);

        // The run is killed with its pods. The next process removes the rules, also those of a pod without an
        // interface.
        let (other, _) = host.pod("b", NetworkMode::Private).await;
        drop(Forwarders::start(attachment.ips[0], None, &published).await.expect("start"));
        assert_eq!(publish_chains().len(), 2);
        detach(&SandboxId("a".to_owned())).await.expect("detach");
        assert_eq!(publish_chains(), Vec::<String>::new());
        drop(other);
    });
}

#[test]
fn a_client_that_never_pauses_reaches_the_next_pod() {
    on_a_host(async |host| {
        let world = world(&host);
        let client = socket_in(Some(&world), || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let client = client.and_then(UdpSocket::from_std).expect("client");
        let mut number = 0;
        for name in ["first", "second"] {
            let (pod, attachment) = host.pod(name, NetworkMode::Private).await;
            let inside = serve_udp(&pod, SocketAddr::new(EVERYWHERE, 9000), name);
            let port =
                PublishedPort { host: SocketAddr::new(EVERYWHERE, number), ..at(EVERYWHERE, inside, true) };
            let forwarders = Forwarders::start(attachment.ips[0], None, &[port]).await.expect("start");
            number = forwarders.addresses()[0].port();
            client.connect((HOST, number)).await.expect("connect");
            let mut buffer = [0; 64];
            until("the pod that has the port answers", async || {
                // The port was closed for a moment, which the client notices.
                let _ = client.send(b"hello").await;
                let answer = tokio::time::timeout(Duration::from_millis(200), client.recv(&mut buffer)).await;
                answer.is_ok_and(|len| len.is_ok_and(|len| buffer[..len].starts_with(name.as_bytes())))
            })
            .await;
            drop(forwarders);
            unpublish(&attachment.ips).await;
        }
    });
}

#[test]
fn a_client_from_before_the_port_was_published_is_seen_with_its_own_address() {
    on_a_host(async |host| {
        let world = world(&host);
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let inside = serve_udp(&pod, SocketAddr::new(EVERYWHERE, 0), "a");
        let client = socket_in(Some(&world), || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let client = client.and_then(UdpSocket::from_std).expect("client");
        let mut buffer = [0; 64];
        // The kernel tracks a connection to the host itself.
        let before = UdpSocket::bind((HOST, 0)).await.expect("bind");
        let here = before.local_addr().expect("address");
        client.send_to(b"hello", here).await.expect("send");
        tokio::time::timeout(SOON, before.recv(&mut buffer)).await.expect("in time").expect("received");
        drop(before);
        let port =
            PublishedPort { host: SocketAddr::new(EVERYWHERE, here.port()), ..at(EVERYWHERE, inside, true) };
        let _forwarders = Forwarders::start(attachment.ips[0], None, &[port]).await.expect("start");
        client.send_to(b"hello", here).await.expect("send");
        let len =
            tokio::time::timeout(SOON, client.recv(&mut buffer)).await.expect("in time").expect("answer");
        assert_eq!(String::from_utf8_lossy(&buffer[..len]), format!("a {OTHER} hello"));
    });
}

#[test]
fn a_closed_forward_chain_lets_published_ports_pass_and_nothing_stays() {
    on_a_host(async |host| {
        let iptables = |words: &[&str]| std::process::Command::new("iptables").arg("-w").args(words).output();
        iptables(&["-P", "FORWARD", "DROP"]).expect("install the package iptables");
        let world = world(&host);
        // An administrator's rules about the bridge. One of them has its own comment.
        for rule in [
            &["-A", "FORWARD", "-i", BRIDGE, "-d", "198.51.100.0/24", "-j", "DROP"][..],
            &[
                "-A",
                "FORWARD",
                "-o",
                BRIDGE,
                "-m",
                "comment",
                "--comment",
                "outrigger by hand",
                "-j",
                "ACCEPT",
            ],
        ] {
            assert!(iptables(rule).expect("iptables").status.success());
        }
        let saved = || String::from_utf8_lossy(&iptables(&["-S"]).expect("iptables").stdout).into_owned();
        let before = saved();
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let forwarders =
            Forwarders::start(attachment.ips[0], None, &[at(EVERYWHERE, port, false)]).await.expect("start");
        let here = SocketAddr::new(ip(HOST), forwarders.addresses()[0].port());
        assert_eq!(ask(Some(&world), here).await.expect("published"), format!("a {OTHER} hello"));
        let direct = SocketAddr::new(attachment.ips[0], port);
        let kept_out = connect_tcp(Some(&world), direct, Duration::from_millis(300)).await;
        assert_eq!(kept_out.expect_err("kept out").kind(), io::ErrorKind::TimedOut);
        assert_ne!(saved(), before);
        drop(forwarders);
        // The process that cleans up has no environment.
        super::super::release_now(&[SandboxId("a".to_owned())]).expect("release");
        assert_eq!(saved(), before, "ours are gone, all others stay");
        nat::restore().expect("once more");
    });
}

#[test]
fn an_administrators_rules_come_first_in_a_closed_forward_chain_and_stay() {
    on_a_host(async |host| {
        let iptables = |words: &[&str]| std::process::Command::new("iptables").arg("-w").args(words).output();
        iptables(&["-P", "FORWARD", "DROP"]).expect("install the package iptables");
        let world = world(&host);
        let commented = ["-m", "comment", "--comment", "outrigger"];
        for rule in [
            // Rules against one machine, and against what pods send to a port.
            &["-s", OTHER, "-o", BRIDGE, "-j", "DROP"][..],
            &["-i", BRIDGE, "-p", "tcp", "--dport", "81", "-j", "DROP"],
            // This rule has our comment.
            &[&commented[..], &["-i", BRIDGE, "-d", "198.51.100.0/24", "-j", "DROP"]].concat(),
            &[&commented[..], &["-o", BRIDGE, "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"]]
                .concat(),
        ] {
            let added = iptables(&[&["-A", "FORWARD"], rule].concat()).expect("iptables");
            assert!(added.status.success(), "{rule:?}: {added:?}");
        }
        let saved = || String::from_utf8_lossy(&iptables(&["-S"]).expect("iptables").stdout).into_owned();
        let before = saved();
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let forwarders =
            Forwarders::start(attachment.ips[0], None, &[at(EVERYWHERE, port, false)]).await.expect("start");
        let during = saved();
        assert!(during.starts_with(before.trim_end()) && during != before, "ours come last: {during}");
        let here = SocketAddr::new(ip(HOST), forwarders.addresses()[0].port());
        let dropped = connect_tcp(Some(&world), here, Duration::from_millis(300)).await;
        assert_eq!(dropped.expect_err("dropped").kind(), io::ErrorKind::TimedOut);
        drop(forwarders);
        release_now(&[SandboxId("a".to_owned())]).expect("release");
        assert_eq!(saved(), before, "ours are gone, all others stay");
    });
}

#[test]
fn filters_of_pods_that_are_gone_do_not_stay_while_others_live() {
    on_a_host(async |host| {
        let filters = || Nft::open().and_then(|mut nft| nft.chains(Family::Netdev)).expect("chains");
        let (_, first) = host.pod("a", NetworkMode::Private).await;
        let interface = |attachment: &Attachment| attachment.host_interface.clone().expect("interface");
        for name in ["b", "c", "d"] {
            let (_, attachment) = host.pod(name, NetworkMode::Private).await;
            let mut both = [interface(&first), interface(&attachment)];
            both.sort();
            let mut found = filters();
            found.sort();
            assert_eq!(found, both, "a new pod removes what the last one left");
            // The kernel does this when the pod's network namespace is gone.
            let mut links = Links::open(None).expect("links");
            let index = links.find(&interface(&attachment)).expect("list").expect("there").index;
            links.delete(index).expect("delete");
        }
        release_now(&[]).expect("release");
        assert_eq!(filters(), [interface(&first)], "so does the end of a run");
        let (_, last) = host.pod("e", NetworkMode::Private).await;
        detach(&SandboxId("e".to_owned())).await.expect("detach");
        assert_eq!(filters(), [interface(&first)], "{last:?}");
    });
}

#[test]
fn one_source_or_all_of_them_cannot_use_up_the_descriptors() {
    on_a_host(async |host| {
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let (other, _) = host.pod("b", NetworkMode::Private).await;
        let gateway = IpAddr::V4(attachment.subnet.expect("subnet").gateway());
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let datagrams = serve_udp(&pod, SocketAddr::new(EVERYWHERE, 0), "a");
        let budget = Budget::new(40);
        let ports = [at(EVERYWHERE, port, false), at(EVERYWHERE, datagrams, true)];
        let forwarders = Forwarders::open(attachment.ips[0], None, &ports, &budget).await.expect("start");
        let [tcp, udp] = forwarders.addresses() else { panic!("two ports") };
        let open = || std::fs::read_dir("/proc/thread-self/fd").expect("descriptors").count();
        let before = open();
        // A pod opens as many connections as it can, and sends datagrams from many ports.
        let mut held = Vec::new();
        for _ in 0..30 {
            let connected = connect_tcp(Some(&other), SocketAddr::new(gateway, tcp.port()), SOON).await;
            held.extend(connected.ok());
        }
        let clients: Vec<_> = (0..100)
            .map(|_| {
                socket_in(Some(&other), || {
                    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
                    socket.send_to(b"x", SocketAddr::new(gateway, udp.port()))?;
                    Ok(socket)
                })
                .expect("client")
            })
            .collect();
        // The host itself is still served.
        let local = SocketAddr::new(LOCALHOST, tcp.port());
        assert!(ask(None, local).await.expect("tcp").ends_with("hello"));
        assert!(ask_udp(None, SocketAddr::new(LOCALHOST, udp.port())).await.is_some());
        let used = open() - before - held.len() - clients.len();
        // Each connection also has an end in this test's server.
        assert!(used <= 40 + 20, "{used} descriptors");
        drop((held, clients));
    });
}

#[test]
fn a_port_that_is_taken_is_named() {
    on_a_host(async |host| {
        let (_netns, attachment) = host.pod("a", NetworkMode::Private).await;
        let taken = serve(None, SocketAddr::new(LOCALHOST, 0), "other");
        let ports = [at(LOCALHOST, 80, false), PublishedPort { host: taken, pod_port: 80, udp: false }];
        let error = Forwarders::start(attachment.ips[0], None, &ports).await.expect_err("taken");
        let expected = format!("host port {} is already in use: ", taken.port());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert_eq!(ask(None, taken).await.expect("the other"), "other 127.0.0.1 hello");
        // While a port is published, no other program can open it.
        let forwarders =
            Forwarders::start(attachment.ips[0], None, &[at(EVERYWHERE, 80, false)]).await.expect("start");
        let error = std::net::TcpListener::bind(forwarders.addresses()[0]).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    });
}

#[test]
fn a_running_pod_outlives_a_program_that_took_its_port() {
    on_a_host(async |host| {
        let world = world(&host);
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let inside = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let forwarders = Forwarders::start(attachment.ips[0], None, &[at(EVERYWHERE, inside, false)])
            .await
            .expect("start");
        let published = PublishedPort { host: forwarders.addresses()[0], ..at(EVERYWHERE, inside, false) };
        let number = published.host.port();
        // The process that forwards ends, and another program opens the port before its successor does.
        drop(forwarders);
        let mut taken = None;
        until("the port is free", async || {
            taken = std::net::TcpListener::bind(published.host).ok();
            taken.is_some()
        })
        .await;
        let forwarders = Forwarders::resume(attachment.ips[0], None, std::slice::from_ref(&published)).await;
        assert_eq!(forwarders.addresses(), [published.host]);
        let outside = ask(Some(&world), SocketAddr::new(ip(HOST), number)).await.expect("outside");
        assert_eq!(outside, format!("a {OTHER} hello"));
        drop(taken);
        until("the port is opened", async || {
            let local = ask(None, SocketAddr::new(LOCALHOST, number)).await;
            local.is_ok_and(|answer| answer.starts_with("a "))
        })
        .await;
    });
}

#[test]
fn a_port_without_a_listener_behaves_like_one_and_closes() {
    on_a_host(async |host| {
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let port = serve(Some(&pod), SocketAddr::new(EVERYWHERE, 0), "a").port();
        let ports = [at(LOCALHOST, port, false), at(LOCALHOST, 9, false)];
        let forwarders = Forwarders::start(attachment.ips[0], None, &ports).await.expect("start");
        let [open, silent] = *forwarders.addresses() else { panic!("two ports") };
        // The connection is reset. It does not end in order without an answer.
        assert_eq!(ask(None, silent).await.expect_err("reset").kind(), io::ErrorKind::ConnectionReset);
        let mut stream = connect_tcp(None, open, SOON).await.expect("connect");
        stream.read_u8().await.expect("through");
        drop(forwarders);
        let mut rest = Vec::new();
        // The connection is closed, in order or not. It must not hang.
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await.expect("closed");
        until("the port closes", async || ask(None, open).await.is_err()).await;
    });
}

#[test]
fn a_port_that_is_about_to_be_free_is_waited_for() {
    on_a_host(async |host| {
        let (_netns, attachment) = host.pod("a", NetworkMode::Private).await;
        for udp in [false, true] {
            // A copy of the socket, like the one that a forked child process has before it executes its
            // program.
            let (taken, copy): (SocketAddr, Box<dyn Send>) = match udp {
                false => {
                    let socket = std::net::TcpListener::bind((LOCALHOST, 0)).expect("bind");
                    (socket.local_addr().expect("address"), Box::new(socket))
                }
                true => {
                    let socket = std::net::UdpSocket::bind((LOCALHOST, 0)).expect("bind");
                    (socket.local_addr().expect("address"), Box::new(socket))
                }
            };
            let closes = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(30)).await;
                drop(copy);
            });
            let ports = [PublishedPort { host: taken, pod_port: 80, udp }];
            let opened = Forwarders::start(attachment.ips[0], None, &ports).await.expect("opened");
            assert_eq!(opened.addresses(), [taken]);
            closes.await.expect("no panic");
        }
    });
}
