//! Tests clients of published ports that try to use up the resources of the run.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::command::{must, pod};
use crate::run::{Bench, Run, Test};
use crate::server;

pub(crate) const ALL: &[(&str, Test)] = &[
    ("clients_of_a_port_do_not_stop_the_run", clients_of_a_port_do_not_stop_the_run),
    ("containers_keep_the_limit_of_open_files", containers_keep_the_limit_of_open_files),
    ("rules_of_a_firewall_are_as_before", rules_of_a_firewall_are_as_before),
    ("a_bridge_that_a_killed_run_left_is_removed", a_bridge_that_a_killed_run_left_is_removed),
];

/// The binary with another limit of open files, set by `ulimit`.
fn limited(bench: &Bench, name: &str, ulimit: &str) -> Bench {
    let dir = bench.work.join(format!("{name}-limited"));
    std::fs::create_dir_all(&dir).expect("a directory");
    let script = dir.join("outrigger");
    let text = format!("#!/bin/sh\nulimit {ulimit} || exit 9\nexec '{}' \"$@\"\n", bench.binary.display());
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    Bench { binary: script, image: bench.image.clone(), work: bench.work.clone() }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Opens connections to, and sends datagrams to, the published ports of one pod from many sources. There are
/// more of them than files that the run may open.
fn clients_of_a_port_do_not_stop_the_run(bench: &Bench, name: &str) {
    // This process has the other ends of the connections.
    let own = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: own.maximum, ..own }).expect("more descriptors");
    let bench = &limited(bench, name, "-n 1024");
    let (tcp, udp) = (free_port(), free_port());
    let container = |script: &str| bench.container("main", script);
    let mut victim = container("exec nc -ll -p 8080 -e sleep 600");
    victim["ports"] = json!([
        {"containerPort": 8080, "hostPort": tcp, "hostIP": "127.0.0.1"},
        {"containerPort": 9000, "hostPort": udp, "hostIP": "127.0.0.1", "protocol": "UDP"}]);
    let mut watched = container("touch /tmp/ok; exec sleep 600");
    watched["livenessProbe"] =
        json!({"exec": {"command": ["test", "-f", "/tmp/ok"]}, "periodSeconds": 1, "failureThreshold": 1});
    let make = |pod: &str, containers: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{name}-{pod}").replace('_', "-")},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": containers, "volumes": [server::volume()]}})
    };
    let items = [
        make("victim", json!([victim, server::container("udp", "udp", 9000)])),
        make("watched", json!([watched])),
        make("third", json!([container("exec sleep 600")])),
    ];
    let [victim, watched, third] =
        &items.clone().map(|pod| pod["metadata"]["name"].as_str().expect("a name").to_owned());
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let mut run = Run::start(bench, name, &list, &["--network", "private"]);
    run.wait_for("running pods", |_| {
        [victim, watched, third]
            .into_iter()
            .all(|name| pod(bench, name).is_some_and(|pod| pod["phase"] == "Running"))
    });

    let mut held = Vec::new();
    for number in 0..1500_u16 {
        let source = Ipv4Addr::new(127, 0, 1, u8::try_from(number % 50).expect("small") + 1);
        held.push(client(source, SocketType::STREAM, tcp));
        let datagrams = client(source, SocketType::DGRAM, udp);
        // The pod may have refused the previous datagram.
        let _ = rustix::net::send(&datagrams, b"x", SendFlags::empty());
        held.push(datagrams);
    }
    let open = || std::fs::read_dir(format!("/proc/{}/fd", run.pid())).expect("descriptors").count();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Wait until the run has opened as many files as it can.
    let (mut most, mut since) = (0, Instant::now());
    while most < 400 || since.elapsed() < Duration::from_secs(2) {
        assert!(Instant::now() < deadline, "the attack has no effect: {} descriptors", open());
        if open() > most {
            (most, since) = (open(), Instant::now());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(most < 1024 - 256, "{most} of 1024 descriptors are in use");

    assert!(must(bench, &["ps"]).contains(watched.as_str()));
    assert_eq!(must(bench, &["exec", third, "--", "echo", "still", "here"]), "still here\n");
    must(bench, &["exec", watched, "--", "rm", "/tmp/ok"]);
    run.wait_for("the liveness probe to end the container", |_| {
        pod(bench, watched).is_some_and(|pod| pod["restarts"].as_u64() > Some(0))
    });
    must(bench, &["stop", third]);
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
    drop(held);
}

/// A socket that is connected, or connecting, from a source address.
fn client(source: Ipv4Addr, kind: SocketType, port: u16) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, kind, flags, None).expect("a socket");
    bind(&socket, &SocketAddr::from((source, 0))).expect("a source");
    let _ = rustix::net::connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    socket
}

fn containers_keep_the_limit_of_open_files(bench: &Bench, name: &str) {
    for (which, ulimit, inside) in [("soft", "-Sn 1000", "1000"), ("both", "-n 2000", "2000")] {
        let name = format!("{name}-{which}");
        let bench = &limited(bench, &name, ulimit);
        let spec = json!({"restartPolicy": "Never", "containers":
            [bench.container("main", "ulimit -Sn; while [ ! -f /tmp/go ]; do sleep 0.1; done")]});
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.replace('_', "-")}, "spec": spec});
        let mut run = Run::start(bench, &name, &manifest, &[]);
        run.wait_for("its limit", |run| run.output().contains(inside));
        let of_run = std::fs::read_to_string(format!("/proc/{}/limits", run.pid())).expect("limits");
        let line = of_run.lines().find(|line| line.starts_with("Max open files")).expect("a line");
        let [.., soft, hard, _] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(soft, hard, "the run itself has all it may have");
        let pod = name.replace('_', "-");
        assert_eq!(must(bench, &["exec", &pod, "--", "sh", "-c", "ulimit -Sn"]).trim(), inside);
        must(bench, &["exec", &pod, "--", "touch", "/tmp/go"]);
        assert_eq!(run.end(), 0, "{}", run.account());
    }
}

/// Runs on a separate host with a closed FORWARD chain and an administrator's rule about the bridge.
fn rules_of_a_firewall_are_as_before(bench: &Bench, name: &str) {
    let mut main = bench.container("main", "true");
    main["ports"] = json!([{"containerPort": 8080, "hostPort": 8080}]);
    let before = "iptables -w -P FORWARD DROP
iptables -w -A FORWARD -i outrigger0 -d 198.51.100.0/24 -j REJECT
iptables -w -S > before";
    let after = "iptables -w -S > after
diff before after";
    run_and_wait_for_the_bridge(bench, name, &main, before, "private", after);
}

/// A run removes the bridge even if its own pods do not use it. Its address shows that it is ours.
fn a_bridge_that_a_killed_run_left_is_removed(bench: &Bench, name: &str) {
    let main = bench.container("main", "true");
    let before = "ip link add outrigger0 address 0a:58:0a:59:00:01 type bridge";
    run_and_wait_for_the_bridge(bench, name, &main, before, "none", "true");
}

/// Runs a pod on a separate host, between two scripts, and waits until the host has no bridge.
fn run_and_wait_for_the_bridge(
    bench: &Bench,
    name: &str,
    main: &serde_json::Value,
    before: &str,
    network: &str,
    after: &str,
) {
    let dir = bench.work.join(name);
    std::fs::create_dir_all(&dir).expect("a directory");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.replace('_', "-")},
        "spec": {"restartPolicy": "Never", "containers": [main]}});
    let manifest = dir.join("manifest.json");
    std::fs::write(&manifest, pod.to_string()).expect("a manifest");
    let script = format!(
        r#"set -e
ip link set lo up
{before}
"$0" run -q --network {network} --state-dir state manifest.json
i=0
while [ -e /proc/sys/net/ipv4/conf/outrigger0 ]; do
    i=$((i + 1)); [ $i -lt 600 ] || {{ echo the bridge stays; exit 1; }}
    sleep 0.1
done
{after}"#
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]).arg(&bench.binary).current_dir(&dir);
    let said = command.env("OUTRIGGER_RUNTIME_DIR", bench.sockets()).output().expect("unshare");
    assert!(said.status.success(), "{said:?}");
}
