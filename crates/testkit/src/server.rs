//! Servers that busybox does not have. The test program itself runs as the server inside a container.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use serde_json::{Value, json};

/// A service name of the health service: "" and `up` are serving, `down` is not.
pub const UP: &str = "up";
pub const DOWN: &str = "down";

/// Serves if this program was started as a server. Returns whether it was.
pub fn asked_for() -> bool {
    let args: Vec<String> = std::env::args().collect();
    let [_, serve, kind, port] = &args[..] else { return false };
    if serve != "serve" {
        return false;
    }
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port.parse().expect("a port")));
    match kind.as_str() {
        "grpc" => grpc(address),
        _ => echo(address),
    }
    true
}

/// A container that serves `grpc` or `udp` (an echo) at a port. The pod needs [`volume`].
pub fn container(name: &str, kind: &str, port: u16) -> Value {
    json!({
        "name": name, "image": "rootfs:/", "command": ["/server", "serve", kind, port.to_string()],
        "volumeMounts": [{"name": "server", "mountPath": "/server", "readOnly": true}],
    })
}

/// The volume with the program.
pub fn volume() -> Value {
    let this = std::env::current_exe().expect("this program");
    json!({"name": "server", "hostPath": {"path": this, "type": "File"}})
}

fn grpc(address: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (reporter, service) = tonic_health::server::health_reporter();
        reporter.set_service_status(UP, tonic_health::ServingStatus::Serving).await;
        reporter.set_service_status(DOWN, tonic_health::ServingStatus::NotServing).await;
        tonic::transport::Server::builder().add_service(service).serve(address).await.expect("serve");
    });
}

fn echo(address: SocketAddr) {
    let socket = UdpSocket::bind(address).expect("a socket");
    let mut datagram = [0; 1500];
    while let Ok((length, peer)) = socket.recv_from(&mut datagram) {
        let _ = socket.send_to(&datagram[..length], peer);
    }
}
