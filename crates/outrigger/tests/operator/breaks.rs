//! Tests failures: certificates, connections and conflicting writes.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::Stage;
use crate::cluster::{Cluster, eventually};
use crate::scenes::{container, create, map_of, pod, report, wait_for_keys};

fn ordered(cluster: &Cluster, name: &str, containers: &[&str]) -> String {
    let containers: Vec<_> = containers.iter().map(|name| container(name, &[])).collect();
    let annotations = json!({"apps.kruise.io/container-launch-priority": "Ordered"});
    create(cluster, &pod(name, annotations, json!(containers)));
    map_of(cluster, name)
}

const SECRET: [&str; 4] = ["secret", "outrigger-webhook", "-n", "outrigger-system"];

fn secret(cluster: &Cluster, field: &str) -> String {
    let secret = cluster.get(&SECRET).expect("the Secret");
    let text = secret["data"][field].as_str().expect("a field");
    String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text")
}

fn set_secret(cluster: &Cluster, field: &str, value: &str) {
    let patch = json!({"data": {field: STANDARD.encode(value)}}).to_string();
    let args = [&["patch"][..], &SECRET, &["--type=merge", "-p", &patch]].concat();
    assert!(cluster.kubectl(&args).status.success());
}

/// A certificate that expires soon or is damaged is replaced, and pods are admitted all the time.
pub(crate) fn certificates_are_renewed(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let mut admitted = 0;
    let mut admit = || {
        // This fails if the API server does not trust the answer at any moment of the change.
        admitted += 1;
        ordered(cluster, &format!("renewal-{admitted}"), &["a", "b"]);
    };
    admit();
    let soon = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_hours(24);
    for (field, value) in [("not-after", soon.to_string()), ("tls.crt", "-----BEGIN nonsense".to_owned())] {
        let before = (secret(cluster, "tls.key"), secret(cluster, "ca.crt"));
        set_secret(cluster, field, &value);
        eventually(&format!("a new certificate after {field} was changed"), || {
            admit();
            (secret(cluster, "tls.key") != before.0).then_some(())
        });
        admit();
        let authorities = secret(cluster, "ca.crt");
        eventually("admission and conversion trust the new one", || {
            let hooks = cluster.get(&["mutatingwebhookconfiguration", "outrigger-operator"])?;
            let crd = cluster.get(&["crd", "containerrecreaterequests.apps.kruise.io"])?;
            let mut bundles: Vec<_> =
                hooks["webhooks"].as_array()?.iter().map(|h| &h["clientConfig"]).collect();
            bundles.push(&crd["spec"]["conversion"]["webhook"]["clientConfig"]);
            let trusted = |config: &&serde_json::Value| config["caBundle"] == STANDARD.encode(&authorities);
            (bundles.len() == 6 && bundles.iter().all(trusted)).then_some(())
        });
        if field == "not-after" {
            let previous =
                before.1.split_inclusive("-----END CERTIFICATE-----\n").next().expect("a certificate");
            assert!(authorities.contains(previous), "the one before is trusted too, until the next change");
        }
    }
    admit();
}

/// A connection to the API server that can be broken.
struct Proxy {
    port: u16,
    is_cut: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy {
            port: listener.local_addr().expect("an address").port(),
            is_cut: Arc::default(),
            streams: Arc::default(),
        };
        let (is_cut, streams) = (proxy.is_cut.clone(), proxy.streams.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a handle");
                streams.lock().expect("no panic").extend([copy(&client), copy(&server)]);
                for (from, to) in [(copy(&client), copy(&server)), (server, client)] {
                    std::thread::spawn(move || {
                        let (mut from, mut to) = (from, to);
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        proxy
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

/// Broken watches miss events. These changes are found when the watches resume.
pub(crate) fn watches_break_and_resume(stage: &mut Stage) {
    let proxy = Proxy::start(stage.cluster.port());
    stage.operator = None;
    stage.start_operator_at(proxy.port, &[]);
    let cluster = &stage.cluster;
    let map = ordered(cluster, "cut-off", &["a", "b", "c"]);
    wait_for_keys(cluster, &map, &["p_0"]);
    for round in 0..3 {
        proxy.cut();
        // In the meantime, a level becomes ready, a barrier is lost, and a pod replaces another one of the
        // same name.
        match round {
            0 => report(cluster, "cut-off", "Pending", &[("a", "ready"), ("b", "waiting"), ("c", "waiting")]),
            1 => drop(cluster.kubectl(&["delete", "configmap", &map])),
            _ => drop(cluster.kubectl(&["delete", "pod", "cut-off", "--grace-period=0", "--force"])),
        }
        proxy.mend();
        match round {
            2 => {
                let second = ordered(cluster, "cut-off", &["a", "b"]);
                wait_for_keys(cluster, &second, &["p_0"]);
            }
            _ => wait_for_keys(cluster, &map, &["p_0", "p_-1"]),
        }
    }
    stage.operator = None;
    stage.start_operator();
}

/// Other clients write the same objects all the time. Nothing may be lost, and conflicts must end.
pub(crate) fn conflicts_are_resolved(stage: &mut Stage) {
    let cluster = &stage.cluster;
    let map = ordered(cluster, "contested", &["a", "b", "c"]);
    wait_for_keys(cluster, &map, &["p_0"]);
    let begun = Instant::now();
    for n in 0..5 {
        // Another client empties the barrier, removes our label and writes to the pod.
        let empty = json!({"data": null, "metadata": {"labels": null}}).to_string();
        cluster.kubectl(&["patch", "configmap", &map, "--type=merge", "-p", &empty]);
        cluster.kubectl(&["annotate", "pod", "contested", "--overwrite", &format!("round=\"{n}\"")]);
        let state = if n < 2 { "waiting" } else { "ready" };
        report(cluster, "contested", "Pending", &[("a", "ready"), ("b", state), ("c", "waiting")]);
    }
    wait_for_keys(cluster, &map, &["p_0", "p_-1", "p_-2"]);
    println!("a contested barrier was complete after {:.1} s", begun.elapsed().as_secs_f64());
    // An immutable barrier delays only this pod, which is reported. Recreating the barrier by hand helps.
    let stuck = ordered(cluster, "frozen", &["a", "b"]);
    wait_for_keys(cluster, &stuck, &["p_0"]);
    cluster.kubectl(&[
        "patch",
        "configmap",
        &stuck,
        "--type=merge",
        "-p",
        &json!({"immutable": true}).to_string(),
    ]);
    report(cluster, "frozen", "Pending", &[("a", "ready"), ("b", "waiting")]);
    let other = ordered(cluster, "beside-frozen", &["a", "b"]);
    wait_for_keys(cluster, &other, &["p_0"]);
    cluster.kubectl(&["delete", "configmap", &stuck]);
    wait_for_keys(cluster, &stuck, &["p_0", "p_-1"]);
}
