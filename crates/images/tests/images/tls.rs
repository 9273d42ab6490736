//! Encrypted and unencrypted registries, on this machine and elsewhere.

use std::fs;
use std::net::{IpAddr, UdpSocket};

use outrigger_images::ImageStore;
use serde_json::json;

use crate::registry::{child, said};
use crate::support::*;

/// An address of this machine that is not loopback. No data is sent to find it.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[tokio::test]
async fn certificates_count_except_where_they_are_waived() {
    let Some(ip) = outer_address() else {
        eprintln!("skipped: this machine has no address but loopback");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("v1", json!({}), &[Layer::new().file("f", "x").gzip()]);
    let encrypted = Registry::start_with_tls(&dir.path().join("encrypted"), ip).await;
    let plain = Registry::start_open(&dir.path().join("plain")).await;
    encrypted.push(&layout, "v1", "app:v1");
    plain.push(&layout, "v1", "app:v1");

    // On this machine http is tried first, and https if the server speaks that.
    for registry in [&encrypted, &plain] {
        let store = tempfile::tempdir().unwrap();
        let store = ImageStore::open(store.path()).unwrap();
        ensure(&store, registry.reference("app:v1")).await.unwrap();
    }

    let home = dir.path().join("home");
    let trusted = home.join(format!(".config/containers/certs.d/{ip}:{}", encrypted.port));
    let conf = dir.path().join("registries.conf");
    let pull = |registry: &Registry, settings: &str| {
        fs::write(&conf, settings).unwrap();
        let state = tempfile::tempdir().unwrap();
        let mut command = child(&format!("{ip}:{}/app:v1", registry.port), state.path());
        said(command.env("HOME", &home).env("CONTAINERS_REGISTRIES_CONF", &conf).output().unwrap())
    };
    let insecure = |port| format!("[[registry]]\nlocation = '{ip}:{port}'\ninsecure = true\n");
    let refused = pull(&encrypted, "");
    assert!(refused.starts_with("FAILED") && refused.contains("certificate"), "{refused}");
    let refused = pull(&plain, "");
    assert!(
        refused.starts_with("FAILED") && refused.contains("cannot connect"),
        "never http by itself: {refused}"
    );
    let taken = pull(&encrypted, &insecure(encrypted.port));
    assert!(taken.starts_with("PULLED"), "{taken}");
    let taken = pull(&plain, &insecure(plain.port));
    assert!(taken.starts_with("PULLED"), "{taken}");
    // The pull uses a mirror, because the server of this name does not exist.
    let mirrored = format!(
        "[[registry]]\nprefix = '{ip}:{}'\nlocation = 'nowhere.invalid'\n[[registry.mirror]]\nlocation = '{ip}:{}'\ninsecure = true\n",
        encrypted.port, plain.port
    );
    let taken = pull(&encrypted, &mirrored);
    assert!(taken.starts_with("PULLED"), "{taken}");
    // With the CA installed, no check must be disabled.
    fs::create_dir_all(&trusted).unwrap();
    fs::copy(encrypted.dir.join("cert.pem"), trusted.join("ca.crt")).unwrap();
    let taken = pull(&encrypted, "");
    assert!(taken.starts_with("PULLED"), "{taken}");
}
