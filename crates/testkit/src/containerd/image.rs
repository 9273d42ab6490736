//! Writes test images in the format of `docker save`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The images in the archive.
pub const NAMES: [&str; 3] = ["localhost/busybox:1", "localhost/web:1", "localhost/pause:1"];

/// Writes an archive with the image of the pods, and the pause image.
pub fn write_archive(path: &Path) {
    let configs = [
        json!({"Cmd": ["sh"]}),
        json!({"Cmd": ["sh"], "User": "web", "Env": ["PATH=/bin", "FROM=image"], "WorkingDir": "/home/web"}),
        json!({"Cmd": ["sleep", "2147483647"]}),
    ];
    write(path, NAMES.into_iter().zip(configs), 0);
}

/// Writes `images`, each with busybox and a file of `ballast` incompressible bytes.
pub fn write<'a>(path: &Path, images: impl Iterator<Item = (&'a str, Value)>, ballast: usize) {
    let layer = layer(ballast);
    let diff_id = format!("sha256:{}", hex(&layer));
    let mut archive = tar::Builder::new(Vec::new());
    add(&mut archive, "layer.tar", &layer);
    let mut manifest = Vec::new();
    for (name, mut config) in images {
        if config["Env"].is_null() {
            config["Env"] = json!(["PATH=/bin"]);
        }
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        });
        let config = config.to_string();
        let file = format!("{}.json", hex(config.as_bytes()));
        add(&mut archive, &file, config.as_bytes());
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}));
    }
    add(&mut archive, "manifest.json", Value::from(manifest).to_string().as_bytes());
    fs::write(path, archive.into_inner().expect("an archive")).expect("write the archive");
}

fn add(archive: &mut tar::Builder<Vec<u8>>, name: &str, data: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, data).expect("an entry");
}

/// A layer with busybox, links for all its commands, and a user.
fn layer(ballast: usize) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    for (dir, mode) in [("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("home/web", 0o755)] {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(mode);
        header.set_size(0);
        layer.append_data(&mut header, dir, &[][..]).expect("a directory");
    }
    add(&mut layer, "etc/passwd", b"root:x:0:0::/root:/bin/sh\nweb:x:33:34::/home/web:/bin/sh\n");
    add(&mut layer, "etc/group", b"root:x:0:\nweb:x:34:\n");
    let mut header = tar::Header::new_ustar();
    let busybox = fs::read("/bin/busybox").expect("busybox-static is installed");
    header.set_size(busybox.len() as u64);
    header.set_mode(0o755);
    layer.append_data(&mut header, "bin/busybox", &busybox[..]).expect("busybox");
    let applets = Command::new("/bin/busybox").arg("--list").output().expect("busybox").stdout;
    for applet in String::from_utf8(applets).expect("names").lines().filter(|name| *name != "busybox") {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        layer.append_link(&mut header, format!("bin/{applet}"), "busybox").expect("a link");
    }
    let noise = (0..ballast.div_ceil(32)).flat_map(|block| Sha256::digest(block.to_le_bytes()));
    add(&mut layer, "ballast", &noise.take(ballast).collect::<Vec<u8>>());
    layer.into_inner().expect("a layer")
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
