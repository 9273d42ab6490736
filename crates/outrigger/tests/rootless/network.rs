//! Tests the network of pods: with pasta, with slirp4netns, with neither, and the host network.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::run::{Bench, Run, Test};
use crate::world::{ADDRESS, NAMED};
use crate::{pod, scripted, succeeds};

pub(crate) const PASTA: &[(&str, Test)] = &[
    ("pasta_leads_out", leads_out),
    ("pods_of_a_run_reach_each_other", pods_of_a_run_reach_each_other),
    ("published_ports_reach_the_pod", published_ports_reach_the_pod),
    ("ports_of_root_are_refused", ports_of_root_are_refused),
    ("the_machine_s_network_is_there_when_asked_for", the_machine_s_network_is_there_when_asked_for),
    ("sysctls_of_the_pod_s_own_network_are_set", sysctls_of_the_pod_s_own_network_are_set),
];
pub(crate) const SLIRP: &[(&str, Test)] = &[
    ("slirp4netns_leads_out", leads_out),
    ("published_ports_reach_the_pod_through_slirp4netns", published_ports_reach_the_pod),
];
pub(crate) const NEITHER: &[(&str, Test)] = &[
    ("pods_reach_each_other_only_and_it_is_said", pods_reach_each_other_only_and_it_is_said),
    ("the_machine_s_network_is_always_there", the_machine_s_network_is_there_when_asked_for),
];

/// On the host network, /sys is the machine's, with its cgroups mounted there. The container's own cgroups
/// are mounted over them.
pub(crate) const V2: &[(&str, Test)] = &[
    ("the_machine_s_network_is_there_with_cgroups_of_the_second_generation", cgroups_are_the_container_s_own),
    (
        "a_private_network_is_there_with_cgroups_of_the_second_generation",
        cgroups_are_the_container_s_own_in_private,
    ),
];

const PRIVATE: [&str; 2] = ["--network", "private"];

fn leads_out(bench: &Bench, name: &str) {
    // A server on the machine's loopback, which pods must not reach.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let script = format!(
        "echo ask | timeout 10 nc -w 5 {ADDRESS} 7777; nslookup some.name; cat /etc/resolv.conf; \
         for a in 10.0.2.2 10.89.0.1; do nc -w 2 $a {port} -e /bin/true && echo REACHED; done; true"
    );
    let run = succeeds(bench, name, &scripted(bench, &script, json!({}), json!({})), &PRIVATE);
    let named = NAMED.map(|part| part.to_string()).join(".");
    for part in ["hello from the world", &named, "nameserver 10.0.2.3"] {
        assert!(run.output().contains(part), "{part}\n{}", run.account());
    }
    assert!(!run.output().contains("REACHED"), "{}", run.account());
    let ip = run.status()["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    assert!(ip.starts_with("10."), "{ip}\n{}", run.account());
}

const LOOK_AT_CGROUPS: &str = "cat /proc/self/cgroup; grep -c ' /sys/fs/cgroup ' /proc/self/mountinfo; \
    ls /sys/fs/cgroup/cgroup.procs; ls -d /sys/fs/cgroup/outrigger* 2>/dev/null; (echo > /sys/fs/cgroup/x) 2>/dev/null || echo read-only";

fn cgroups_are_the_container_s_own(bench: &Bench, name: &str) {
    see_own_cgroup(bench, name, "host");
}

fn cgroups_are_the_container_s_own_in_private(bench: &Bench, name: &str) {
    see_own_cgroup(bench, name, "private");
}

fn see_own_cgroup(bench: &Bench, name: &str, network: &str) {
    let pod = scripted(bench, LOOK_AT_CGROUPS, json!({}), json!({}));
    let run = succeeds(bench, name, &pod, &["--network", network]);
    let seen = run.output();
    for part in ["0::/\n", "/sys/fs/cgroup/cgroup.procs", "read-only"] {
        assert!(seen.contains(part), "{part:?}\n{}", run.account());
    }
    assert!(!seen.contains("/sys/fs/cgroup/outrigger"), "{}", run.account());
}

fn pods_of_a_run_reach_each_other(bench: &Bench, name: &str) {
    let (a, b) = pair(bench);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [a, b]});
    let run = succeeds(bench, name, &list, &PRIVATE);
    assert!(run.output().contains("from the other pod"), "{}", run.account());
}

/// A pod that stores its address and answers once, and one that queries it.
fn pair(bench: &Bench) -> (serde_json::Value, serde_json::Value) {
    let claim = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "addresses"}}]});
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let serve = "rm -f /v/ip; (while [ ! -e /v/over ]; do echo from the other pod | nc -l -p 9000; done) & \
                 hostname -i > /v/ip.new; mv /v/ip.new /v/ip; while [ ! -e /v/over ]; do sleep 0.1; done; exit 0";
    let ask = "while [ ! -e /v/ip ]; do sleep 0.1; done; i=0; while [ $i -lt 50 ]; do i=$((i+1)); \
               echo ask | timeout 5 nc -w 2 $(cat /v/ip) 9000 > /tmp/got && [ -s /tmp/got ] && break; sleep 0.1; done; \
               cat /tmp/got; touch /v/over";
    let mut server = scripted(bench, serve, mount.clone(), claim.clone());
    let mut client = scripted(bench, ask, mount, claim);
    server["metadata"]["name"] = json!("server");
    client["metadata"]["name"] = json!("client");
    (server, client)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn published_ports_reach_the_pod(bench: &Bench, name: &str) {
    let port = free_port();
    let publish = format!("127.0.0.1:{port}:8000");
    let flags = [&PRIVATE[..], &["--publish", &publish]].concat();
    let script = "while :; do echo from the pod | nc -l -p 8000; done";
    let mut run = Run::start(bench, name, &scripted(bench, script, json!({}), json!({})), &flags);
    let mut heard = String::new();
    run.wait_for("an answer", |_| {
        heard.clear();
        TcpStream::connect(("127.0.0.1", port)).is_ok_and(|mut stream| {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            let _ = stream.write_all(b"\n");
            stream.read_to_string(&mut heard).is_ok() && heard.contains("from the pod")
        })
    });
    run.signal(rustix::process::Signal::TERM);
    run.end();
}

fn ports_of_root_are_refused(bench: &Bench, name: &str) {
    let flags = [&PRIVATE[..], &["--publish", "80:80"]].concat();
    let mut run = Run::start(bench, name, &scripted(bench, "true", json!({}), json!({})), &flags);
    let began = Instant::now();
    let code = run.end();
    assert!(code != 0 && began.elapsed() < Duration::from_secs(60), "{}", run.account());
    for part in ["host port 80 needs more privileges", "publish a port from 1024 up"] {
        assert!(run.said().contains(part), "{part}\n{}", run.account());
    }
    let ports = json!({"ports": [{"containerPort": 80, "hostPort": 81}]});
    let mut run =
        Run::start(bench, &format!("{name}-pod"), &scripted(bench, "true", ports, json!({})), &PRIVATE);
    assert_ne!(run.end(), 0, "{}", run.account());
    for part in
        ["host port 81 needs more privileges", ".json:", "use a hostPort of 1024 or above, or run with sudo"]
    {
        assert!(run.said().contains(part), "{part}\n{}", run.account());
    }
}

fn the_machine_s_network_is_there_when_asked_for(bench: &Bench, name: &str) {
    let script = format!("echo ask | timeout 10 nc -w 5 {ADDRESS} 7777; ip addr show out");
    let run = succeeds(bench, name, &scripted(bench, &script, json!({}), json!({})), &["--network", "host"]);
    for part in ["hello from the world", "198.51.100.1"] {
        assert!(run.output().contains(part), "{part}\n{}", run.account());
    }
}

fn sysctls_of_the_pod_s_own_network_are_set(bench: &Bench, name: &str) {
    let sysctls = json!({"securityContext": {"sysctls": [
        {"name": "net.ipv4.ip_unprivileged_port_start", "value": "81"},
        {"name": "kernel.shm_rmid_forced", "value": "1"},
    ]}});
    let script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    let run = succeeds(bench, name, &scripted(bench, script, json!({}), sysctls), &PRIVATE);
    assert_eq!(run.output(), "main | 81\nmain | 1\n", "{}", run.account());
}

fn pods_reach_each_other_only_and_it_is_said(bench: &Bench, name: &str) {
    let (a, b) = pair(bench);
    let out = pod(
        json!({"containers": [bench.container("main", &format!("echo ask | timeout 2 nc -w 1 {ADDRESS} 7777; true"))]}),
    );
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [a, b, out]});
    let run = succeeds(bench, name, &list, &PRIVATE);
    assert!(run.output().contains("from the other pod"), "{}", run.account());
    assert!(!run.output().contains("hello from the world"), "{}", run.account());
    let note = "pods can reach only each other: neither pasta nor slirp4netns is installed";
    assert_eq!(run.said().matches(note).count(), 1, "{}", run.said());
}
