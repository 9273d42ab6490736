//! Tests with real networks, as root, in separate namespaces. Every test runs on a thread that represents a
//! whole host, with its own network and mounts. No packet leaves it.

mod attacks;
mod publish;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::link::Links;
use super::*;
use outrigger_runtime::Resources;

const SOON: Duration = Duration::from_secs(5);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Runs a test on a separate host.
fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce(Host) -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        separate(UnshareFlags::NEWNET | UnshareFlags::NEWNS);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .expect("private mounts");
        // A new namespace starts with the settings of the machine, where forwarding may be on.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("forwarding of the host");
        Links::open(None).and_then(|mut l| l.loopback_up()).expect("loopback of the host");
        // The runtime has only this thread, so everything that it starts is inside the namespaces created
        // above.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let host = Host { dir: tempfile::tempdir().expect("directory") };
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), test(host)).await })
            .expect("in time");
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn separate(flags: UnshareFlags) {
    // SAFETY: neither flag changes the file descriptor table, which is the only thing that other code of this
    // process relies on.
    unsafe { unshare_unsafe(flags) }.expect("namespaces of the test's own (these tests need root)");
}

struct Host {
    dir: tempfile::TempDir,
}

impl Drop for Host {
    /// Unmounts everything. Otherwise the directory could not be removed.
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            // Some tests have already unmounted theirs.
            let _ = unmount(entry.path(), UnmountFlags::DETACH);
        }
    }
}

impl Host {
    /// Creates a network namespace and returns its path.
    fn netns(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        File::create(&path).expect("mount point");
        let at = path.clone();
        std::thread::spawn(move || {
            separate(UnshareFlags::NEWNET);
            mount_bind("/proc/thread-self/ns/net", &at).expect("bind mount of the namespace");
        })
        .join()
        .expect("namespace");
        path
    }

    async fn pod(&self, name: &str, network: NetworkMode) -> (PathBuf, Attachment) {
        let netns = self.netns(name);
        let attachment = attach(&netns, &spec(name, network)).await.expect("attach");
        (netns, attachment)
    }
}

fn spec(name: &str, network: NetworkMode) -> SandboxSpec {
    SandboxSpec {
        id: SandboxId(name.to_owned()),
        pod_name: name.to_owned(),
        pod_namespace: "default".to_owned(),
        pod_uid: name.to_owned(),
        pod_dir: PathBuf::new(),
        hostname: name.to_owned(),
        network,
        ports: Vec::new(),
        host_pid: false,
        host_ipc: false,
        share_pid: false,
        user_namespace: Default::default(),
        host_paths: Vec::new(),
        images: Vec::new(),
        privileged: false,
        runtime_class: None,
        sysctls: BTreeMap::new(),
        resources: Resources::default(),
        stop: Default::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// Listens in a namespace, and answers every client with `word`, the client's address, and what the client
/// sent.
fn serve(netns: Option<&Path>, at: SocketAddr, word: &'static str) -> SocketAddr {
    let listener = socket_in(netns, || {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })
    .expect("listen");
    let listener = TcpListener::from_std(listener).expect("listener");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(format!("{word} {} ", peer.ip()).as_bytes()).await?;
                let (mut reading, mut writing) = stream.split();
                tokio::io::copy(&mut reading, &mut writing).await
            });
        }
    });
    address
}

async fn talk(mut stream: TcpStream) -> io::Result<String> {
    stream.write_all(b"hello").await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn ask(netns: Option<&Path>, address: SocketAddr) -> io::Result<String> {
    talk(connect_tcp(netns, address, SOON).await?).await
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !done().await {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn pods_and_host_reach_each_other() {
    on_a_host(async |host| {
        let (a, at_a) = host.pod("a", NetworkMode::Private).await;
        let (b, at_b) = host.pod("b", NetworkMode::Private).await;
        assert_eq!((&at_a.warnings, &at_b.warnings), (&vec![], &vec![]));
        let (ip_a, ip_b) = (at_a.ips[0], at_b.ips[0]);
        assert_ne!(ip_a, ip_b);
        let subnet = at_a.subnet.expect("subnet");
        assert_eq!(subnet.to_string(), "10.89.0.0/16");

        let in_a = serve(Some(&a), SocketAddr::new(ip_a, 0), "a");
        let began = Instant::now();
        let gateway = subnet.gateway();
        assert_eq!(ask(None, in_a).await.expect("host to pod"), format!("a {gateway} hello"));
        assert_eq!(ask(Some(&b), in_a).await.expect("pod to pod"), format!("a {ip_b} hello"));
        assert_eq!(ask(Some(&a), in_a).await.expect("pod to itself"), format!("a {ip_a} hello"));
        let at_host = serve(None, SocketAddr::new(gateway.into(), 0), "host");
        assert_eq!(ask(Some(&a), at_host).await.expect("pod to host"), format!("host {ip_a} hello"));
        // A packet lost while the interfaces come up would be retransmitted after a second.
        assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
    });
}

#[test]
fn attaching_again_replaces_what_was_there() {
    on_a_host(async |host| {
        let (netns, first) = host.pod("a", NetworkMode::Private).await;
        let second = attach(&netns, &spec("a", NetworkMode::Private)).await.expect("attach");
        assert_eq!(second, first);
        assert_eq!(attached().await.expect("list"), [SandboxId("a".to_owned())]);
        let text = serde_json::to_string(&second).expect("json");
        assert_eq!(serde_json::from_str::<Attachment>(&text).expect("back"), second);
    });
}

#[test]
fn loopback_inside_is_not_the_hosts() {
    on_a_host(async |host| {
        for mode in [NetworkMode::Private, NetworkMode::None] {
            let (netns, attachment) = host.pod(&format!("{mode:?}"), mode).await;
            assert_eq!(attachment.ips.is_empty(), mode == NetworkMode::None);
            let inside = serve(Some(&netns), SocketAddr::new(LOCALHOST, 0), "pod");
            assert_eq!(ask(Some(&netns), inside).await.expect("inside"), "pod 127.0.0.1 hello");
            let refused = ask(None, inside).await.expect_err("nobody listens at the host");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            serve(None, inside, "host");
            assert_eq!(ask(None, inside).await.expect("host"), "host 127.0.0.1 hello");
            assert_eq!(ask(Some(&netns), inside).await.expect("inside"), "pod 127.0.0.1 hello");
        }
    });
}

#[test]
fn without_a_network_there_is_loopback_only() {
    on_a_host(async |host| {
        let (netns, attachment) = host.pod("a", NetworkMode::None).await;
        assert_eq!(attachment.warnings, Vec::<String>::new());
        let names: Vec<_> = Links::open(Some(&netns))
            .and_then(|mut l| l.list())
            .expect("list")
            .into_iter()
            .map(|l| l.name)
            .collect();
        assert_eq!(names[0], "lo");
        assert!(!names.contains(&"eth0".to_owned()), "{names:?}");
        assert_eq!(attached().await.expect("list"), []);
        let v6 = SocketAddr::new("::1".parse().expect("address"), 0);
        let v6 = serve(Some(&netns), v6, "pod");
        assert_eq!(ask(Some(&netns), v6).await.expect("::1"), "pod ::1 hello");
    });
}

#[test]
fn the_hosts_network_is_left_alone() {
    on_a_host(async |_host| {
        let nowhere = Path::new("/nonexistent/netns");
        let attachment = attach(nowhere, &spec("a", NetworkMode::Host)).await.expect("attach");
        assert_eq!(attachment.host_interface, None);
        assert_eq!(Links::open(None).and_then(|mut l| l.find(BRIDGE)).expect("list"), None);
        let error = attach(nowhere, &spec("a", NetworkMode::Private)).await.expect_err("no namespace");
        assert!(error.to_string().contains("/nonexistent/netns"), "{error}");
    });
}

#[test]
fn a_missing_privilege_costs_the_address_not_the_pod() {
    on_a_host(async |host| {
        let netns = host.netns("a");
        let mut sets = rustix::thread::capabilities(None).expect("capabilities");
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).expect("fewer capabilities");
        let attachment = attach(&netns, &spec("a", NetworkMode::Private)).await.expect("attach");
        assert_eq!(attachment.ips, Vec::<IpAddr>::new());
        let warnings = attachment.warnings.join("\n");
        assert!(warnings.contains("cannot create the bridge outrigger0"), "{warnings}");
    });
}

#[test]
fn detaching_removes_the_interface_and_frees_the_address() {
    on_a_host(async |host| {
        let (_, first) = host.pod("a", NetworkMode::Private).await;
        let (b, _) = host.pod("b", NetworkMode::Private).await;
        let (a, b_id) = (SandboxId("a".to_owned()), SandboxId("b".to_owned()));
        let mut links = Links::open(None).expect("links");
        let interface = first.host_interface.as_deref().expect("interface");
        assert!(links.find(interface).expect("list").is_some());
        detach(&a).await.expect("detach");
        assert_eq!(links.find(interface).expect("list"), None);
        assert_eq!(attached().await.expect("list"), [b_id]);
        detach(&a).await.expect("once more");
        // The same id starts at the same address, so it finds the freed one.
        let again = attach(&host.netns("again"), &spec("a", NetworkMode::Private)).await.expect("attach");
        assert_eq!(again.ips, first.ips);
        let inside = serve(Some(&b), SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), "b");
        assert_eq!(
            ask(Some(&b), SocketAddr::new(LOCALHOST, inside.port())).await.expect("b"),
            "b 127.0.0.1 hello"
        );
    });
}

#[test]
fn concurrent_pods_get_different_addresses() {
    on_a_host(async |host| {
        // All pods have the same id, so that all want the same address. Ids are only unique within a state
        // directory.
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..12 {
            let netns = host.netns(&format!("n{n}"));
            tasks.spawn(async move { attach(&netns, &spec("same", NetworkMode::Private)).await });
        }
        let attached = tasks.join_all().await;
        let ips: HashSet<_> = attached.into_iter().map(|a| a.expect("attach").ips[0]).collect();
        assert_eq!(ips.len(), 12);
    });
}

#[test]
fn what_a_crash_leaves_is_reclaimed() {
    on_a_host(async |host| {
        let (vanished, first) = host.pod("vanished", NetworkMode::Private).await;
        let (_kept, _) = host.pod("kept", NetworkMode::Private).await;
        // It was not detached, but nothing uses its namespace any more, so the kernel removes the interface.
        unmount(&vanished, UnmountFlags::DETACH).expect("unmount");
        let kept = SandboxId("kept".to_owned());
        until("the interface goes with its namespace", async || {
            attached().await.expect("list") == std::slice::from_ref(&kept)
        })
        .await;
        let again =
            attach(&host.netns("again"), &spec("vanished", NetworkMode::Private)).await.expect("attach");
        assert_eq!(again.ips, first.ips);
        // The namespace of a dead run still exists. It is found by its id, and removed.
        detach(&kept).await.expect("detach");
        assert_eq!(attached().await.expect("list"), [SandboxId("vanished".to_owned())]);
    });
}

#[test]
fn a_bridge_goes_even_if_its_creator_was_killed_at_once_and_others_stay() {
    on_a_host(async |_| {
        let mut links = Links::open(None).expect("links");
        let gateway = Ipv4Addr::new(10, 89, 0, 1);
        for (mac, is_left) in [(subnet::mac_of(gateway), false), ([2, 0, 0, 0, 0, 1], true)] {
            assert!(links.add_bridge(BRIDGE, mac).expect("bridge"));
            release_now(&[]).expect("release");
            let found = links.find(BRIDGE).expect("list");
            assert_eq!(found.is_some(), is_left, "{mac:?}");
        }
    });
}

/// A host with a route to a namespace that represents the outside world.
fn world(host: &Host) -> PathBuf {
    let (netns, here, there) =
        (host.netns("world"), Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let (mut links, mut outside) =
        (Links::open(None).expect("links"), Links::open(Some(&netns)).expect("links"));
    outside.loopback_up().expect("loopback");
    let namespace = File::open(&netns).expect("namespace");
    assert!(links.add_veth("up0", 0, "eth0", [2, 0, 0, 0, 0, 1], namespace.as_fd()).expect("uplink"));
    for (links, name, address, other) in
        [(&mut links, "up0", here, there), (&mut outside, "eth0", there, here)]
    {
        let index = links.find(name).expect("list").expect("interface").index;
        assert!(links.add_address(index, address, 24).expect("address"));
        links.up(index).expect("up");
        links.add_default_route(index, other).expect("route");
    }
    netns
}

#[test]
fn pods_reach_the_world_under_the_hosts_address_and_not_the_other_way() {
    on_a_host(async |host| {
        let world = world(&host);
        let (a, attachment) = host.pod("a", NetworkMode::Private).await;
        let (b, _) = host.pod("b", NetworkMode::Private).await;
        assert_eq!(attachment.warnings, Vec::<String>::new());
        let outside = serve(Some(&world), "192.0.2.2:0".parse().expect("address"), "world");
        for pod in [&a, &b] {
            assert_eq!(ask(Some(pod), outside).await.expect("out"), "world 192.0.2.1 hello");
        }
        let inside = serve(Some(&a), SocketAddr::new(attachment.ips[0], 0), "a");
        assert!(ask(None, inside).await.is_ok());
        let from_outside = connect_tcp(Some(&world), inside, Duration::from_millis(300)).await;
        assert_eq!(from_outside.expect_err("kept out").kind(), io::ErrorKind::TimedOut);
        let host_pod = attach(&a, &spec("h", NetworkMode::Host)).await.expect("attach");
        assert_eq!(host_pod.ips, [IpAddr::from([192, 0, 2, 1])]);
    });
}

#[test]
fn a_firewall_that_drops_what_is_forwarded_is_passed() {
    on_a_host(async |host| {
        let world = world(&host);
        let closed = std::process::Command::new("iptables").args(["-w", "-P", "FORWARD", "DROP"]).status();
        assert!(closed.expect("install the package iptables").success());
        let (pod, attachment) = host.pod("a", NetworkMode::Private).await;
        let outside = serve(Some(&world), "192.0.2.2:0".parse().expect("address"), "world");
        assert_eq!(ask(Some(&pod), outside).await.expect("out"), "world 192.0.2.1 hello");
        let inside = serve(Some(&pod), SocketAddr::new(attachment.ips[0], 0), "a");
        let from_outside = connect_tcp(Some(&world), inside, Duration::from_millis(300)).await;
        assert_eq!(from_outside.expect_err("kept out").kind(), io::ErrorKind::TimedOut);
    });
}

#[test]
fn networks_in_use_are_avoided() {
    on_a_host(async |host| {
        let netns = world(&host);
        let mut links = Links::open(None).expect("links");
        let uplink = links.find("up0").expect("list").expect("interface").index;
        links.add_address(uplink, Ipv4Addr::new(10, 89, 7, 1), 24).expect("address");
        let (_, attachment) = host.pod("a", NetworkMode::Private).await;
        assert_eq!(attachment.subnet.expect("subnet").to_string(), "10.199.0.0/16");
        drop(netns);
    });
}

#[test]
fn sockets_inside_come_fast() {
    on_a_host(async |host| {
        let (netns, _) = host.pod("a", NetworkMode::None).await;
        let inside = serve(Some(&netns), SocketAddr::new(LOCALHOST, 0), "pod");
        let mut times = Vec::new();
        for _ in 0..50 {
            let began = Instant::now();
            connect_tcp(Some(&netns), inside, SOON).await.expect("connect");
            times.push(began.elapsed());
        }
        times.sort();
        // Tens of microseconds on an idle machine. The limit is higher for a busy one.
        assert!(times[25] < Duration::from_millis(5), "median {:?}", times[25]);
        println!("connect_tcp: median {:?}, slowest {:?}", times[25], times[49]);
    });
}

#[test]
fn a_silent_address_times_out() {
    on_a_host(async |host| {
        let (netns, attachment) = host.pod("a", NetworkMode::Private).await;
        let nobody = attachment.subnet.expect("subnet").pod_addresses("nobody").next().expect("address");
        let error = connect_tcp(Some(&netns), SocketAddr::new(nobody.into(), 80), Duration::from_millis(50))
            .await
            .expect_err("silence");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("took longer than 50ms"), "{error}");
    });
}
