//! Tests networks, ports, and the files that belong to them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::run::{Bench, Run, Test};
use crate::{check, pod, server, with};

pub(crate) const ALL: &[(&str, Test)] = &[
    ("published_ports_reach_the_pod", published_ports_reach_the_pod),
    ("ports_that_cannot_be_published_are_refused", ports_that_cannot_be_published_are_refused),
    ("host_ports_reach_the_pod", host_ports_reach_the_pod),
    (
        "a_port_that_is_taken_is_said_before_anything_starts",
        a_port_that_is_taken_is_said_before_anything_starts,
    ),
    ("a_pod_may_have_loopback_only", a_pod_may_have_loopback_only),
    ("a_pod_may_use_the_network_of_the_host", a_pod_may_use_the_network_of_the_host),
    ("names_and_kernel_settings_are_the_pod_s_own", names_and_kernel_settings_are_the_pod_s_own),
    ("pods_reach_each_other", pods_reach_each_other),
];

/// An unused port of the host.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// This machine's external address, or loopback if it has none.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    // The address is reserved for documentation. Nothing is sent.
    match socket.connect(("192.0.2.1", 9)).and_then(|()| socket.local_addr()) {
        Ok(address) => address.ip(),
        Err(_) => Ipv4Addr::LOCALHOST.into(),
    }
}

/// The answer of a one-line server.
fn ask(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn ask_until(run: &mut Run, address: SocketAddr, wanted: &str) {
    run.wait_for(&format!("{address} to say {wanted:?}"), |_| {
        ask(address).is_some_and(|answer| answer.contains(wanted))
    });
}

fn web(bench: &Bench, name: &str, at: &str) -> Value {
    let script =
        format!("mkdir /tmp/w; echo I am {name} >/tmp/w/index.html; exec httpd -f -p {at} -h /tmp/w");
    bench.container(name, &script)
}

fn end(mut run: Run) {
    run.signal(Signal::TERM);
    assert_eq!(run.end(), 143, "{}", run.account());
}

fn published_ports_reach_the_pod(bench: &Bench, name: &str) {
    let (all, local, narrow, udp) = (free_port(), free_port(), free_port(), free_port());
    let ports = [
        format!("0.0.0.0:{all}:8080"),
        format!("{local}:8080"),
        format!("0.0.0.0:{narrow}:8081"),
        format!("{udp}:9000/udp"),
    ];
    // One server listens on all addresses of the pod, and one only on its loopback.
    let spec = json!({"containers":
        [web(bench, "wide", "8080"), web(bench, "narrow", "127.0.0.1:8081"), server::container("udp", "udp", 9000)],
        "volumes": [server::volume()]});
    let mut flags = vec!["--network", "private"];
    ports.iter().for_each(|port| flags.extend(["--publish", port.as_str()]));
    let mut run = Run::start(bench, name, &pod("web", spec), &flags);
    ask_until(&mut run, (Ipv4Addr::LOCALHOST, all).into(), "I am wide");
    ask_until(&mut run, (own_address(), all).into(), "I am wide");
    ask_until(&mut run, (Ipv4Addr::LOCALHOST, local).into(), "I am wide");
    if !own_address().is_loopback() {
        assert_eq!(ask((own_address(), local).into()), None, "without an address it is for this machine");
        assert_eq!(ask((own_address(), narrow).into()), None, "the pod's loopback is its own");
    }
    assert_eq!(ask((Ipv4Addr::LOCALHOST, narrow).into()), None, "the pod's loopback is its own");
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
    run.wait_for("an echo", |_| {
        let mut answer = [0; 16];
        let sent = socket.send_to(b"hello", (Ipv4Addr::LOCALHOST, udp));
        sent.is_ok() && socket.recv(&mut answer).is_ok_and(|n| &answer[..n] == b"hello")
    });
    end(run);
    assert!(TcpListener::bind((Ipv4Addr::UNSPECIFIED, all)).is_ok(), "the port is free again");
}

fn ports_that_cannot_be_published_are_refused(bench: &Bench, name: &str) {
    let port = free_port();
    let flag = format!("{port}:8080");
    let host_port =
        with(web(bench, "main", "8080"), json!({"ports": [{"containerPort": 8080, "hostPort": port}]}));
    let no_address =
        "port 8080 cannot be published: the pod has no address, only loopback; use --network private";
    let on_host = format!("port 8080 cannot be published as {port}: the pod uses the host's network");
    for (which, main, flags, said) in [
        ("flag", web(bench, "main", "8080"), vec!["--network", "none", "--publish", &flag], no_address),
        ("field", host_port, vec!["--network", "none"], no_address),
        ("host", web(bench, "main", "8080"), vec!["--network", "host", "--publish", &flag], &*on_host),
    ] {
        let pod = pod("web", json!({"containers": [main]}));
        let mut run = Run::start(bench, &format!("{name}-{which}"), &pod, &flags);
        assert_eq!(run.end(), 2, "{}", run.account());
        assert!(run.said().contains(said), "{}", run.account());
        assert_eq!(run.event(json!({"event": "starting"})), None, "{}", run.account());
    }
}

fn host_ports_reach_the_pod(bench: &Bench, name: &str) {
    let (all, local) = (free_port(), free_port());
    let main = with(
        web(bench, "main", "8080"),
        json!({"ports": [{"containerPort": 8080, "hostPort": all},
            {"containerPort": 8080, "hostPort": local, "hostIP": "127.0.0.1", "protocol": "TCP"}]}),
    );
    let pod = pod("web", json!({"containers": [main]}));
    let mut run = Run::start(bench, name, &pod, &["--network", "private"]);
    ask_until(&mut run, (own_address(), all).into(), "I am main");
    ask_until(&mut run, (Ipv4Addr::LOCALHOST, local).into(), "I am main");
    end(run);
}

fn a_port_that_is_taken_is_said_before_anything_starts(bench: &Bench, name: &str) {
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let by_field =
        with(web(bench, "main", "8080"), json!({"ports": [{"containerPort": 8080, "hostPort": port}]}));
    let flag = format!("{port}:8080");
    let table = [
        ("flag", web(bench, "main", "8080"), vec!["--network", "private", "--publish", flag.as_str()]),
        ("field", by_field, vec!["--network", "private"]),
    ];
    for (which, main, flags) in table {
        let began = Instant::now();
        let mut run =
            Run::start(bench, &format!("{name}-{which}"), &pod("web", json!({"containers": [main]})), &flags);
        assert_eq!(run.end(), 2, "{}", run.account());
        assert!(began.elapsed() < Duration::from_secs(30));
        let said = run.said();
        assert!(said.contains(&format!("host port {port} is already in use")), "{said}");
        assert_eq!(run.event(json!({"event": "starting"})), None, "{}", run.account());
    }
}

fn a_pod_may_have_loopback_only(bench: &Bench, name: &str) {
    let script = r#"is interfaces "$(echo $(ls /sys/class/net))" lo
is routes "$(ip route)" ""
ping -c 1 -W 2 127.0.0.1 >/dev/null || exit 1
is ip "$IP" """#;
    let env = json!({"env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]});
    check(bench, name, &["--network", "none"], env, json!({}), script);
}

fn a_pod_may_use_the_network_of_the_host(bench: &Bench, name: &str) {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let namespace = std::fs::read_link("/proc/self/ns/net").expect("a link");
    let script = format!(
        "is namespace $(readlink /proc/self/ns/net) '{}'\nis name $(hostname) '{host}'\nis variable \"$HOSTNAME\" '{host}'\n\
         grep -q 'ten.*ten.example' /etc/hosts",
        namespace.display()
    );
    let aliases = json!({"hostAliases": [{"ip": "10.9.8.7", "hostnames": ["ten", "ten.example"]}]});
    let by_field = with(aliases.clone(), json!({"hostNetwork": true}));
    check(bench, &format!("{name}-flag"), &["--network", "host"], json!({}), aliases, &script);
    check(bench, &format!("{name}-field"), &["--network", "private"], json!({}), by_field, &script);
    // A server on the host's loopback can be probed there.
    let port = free_port();
    let main = with(
        web(bench, "main", &format!("127.0.0.1:{port}")),
        json!({"readinessProbe": {"httpGet": {"port": port}, "periodSeconds": 1}}),
    );
    let pod = pod("web", json!({"hostNetwork": true, "containers": [main]}));
    let mut run = Run::start(bench, &format!("{name}-probe"), &pod, &["--network", "private"]);
    run.wait_for("main to be ready", |run| run.event(json!({"event": "ready"})).is_some());
    ask_until(&mut run, (Ipv4Addr::LOCALHOST, port).into(), "I am main");
    end(run);
}

fn names_and_kernel_settings_are_the_pod_s_own(bench: &Bench, name: &str) {
    let spec = json!({
        "hostname": "db-0", "subdomain": "db",
        "hostAliases": [{"ip": "10.9.8.7", "hostnames": ["ten", "ten.example"]}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["shop.example", "example"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]},
        "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "79"},
            {"name": "kernel.msgmax", "value": "65000"}]},
    });
    let script = r#"is hostname "$(hostname)" db-0
is resolver "$(cat /etc/resolv.conf)" "nameserver 192.0.2.53
search shop.example example
options ndots:2 edns0"
is alias "$(awk '/^10.9.8.7/ {print $2, $3}' /etc/hosts)" "ten ten.example"
is own "$(awk -v ip=$IP '$1 == ip {print $2, $3}' /etc/hosts)" "db-0.db.default.svc.cluster.local db-0"
is port "$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)" 79
is queue "$(cat /proc/sys/kernel/msgmax)" 65000"#;
    let env = json!({"env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]});
    check(bench, name, &["--network", "private"], env, spec, script);
    let before = std::fs::read_to_string("/proc/sys/kernel/msgmax").expect("a setting");
    assert_ne!(before.trim(), "65000", "the machine's own stays");
}

fn pods_reach_each_other(bench: &Bench, name: &str) {
    let mut run = Run::start(
        bench,
        &format!("{name}-server"),
        &pod("server", json!({"containers": [web(bench, "main", "8080")]})),
        &["--network", "private"],
    );
    run.wait_for("an address", |run| run.status()["status"]["podIP"].is_string());
    let ip = run.status()["status"]["podIP"].as_str().expect("an address").to_owned();
    ask_until(&mut run, SocketAddr::new(ip.parse().expect("an address"), 8080), "I am main");
    let script = format!("is answer \"$(wget -q -O - http://{ip}:8080/)\" 'I am main'");
    check(bench, &format!("{name}-client"), &["--network", "private"], json!({}), json!({}), &script);
    end(run);
}
