//! Images in local directories and archives.

use std::fs;
use std::io::Write;
use std::path::Path;

use outrigger_images::ImageStore;
use outrigger_runtime::{PullCause, PullPolicy};
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn rootfs_is_a_directory_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let image = store.ensure(request("rootfs:/", PullPolicy::Never), silent()).await.unwrap();
    assert_eq!((image.layers, image.id.as_str(), image.was_present), (vec!["/".into()], "rootfs:/", true));
    let text = failure(&store, "rootfs:/no/such/dir").await;
    assert!(text.contains("/no/such/dir does not exist"), "{text}");
    assert!(failure(&store, "rootfs:/etc/passwd").await.contains("not a directory"));
    let bad = ensure(&store, "rootfs:tmp").await.unwrap_err();
    assert_eq!(bad.cause, Some(PullCause::InvalidName), "{bad}");
    assert_eq!(bad.reason(), "InvalidImageName");
}

fn layout(dir: &Path) -> OciLayout {
    let mut layout = OciLayout::new(dir.join("layout"));
    let config = json!({
        "Entrypoint": ["/bin/busybox"], "Cmd": ["echo", "hi"], "Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/srv",
        "User": "1000:1001", "StopSignal": "SIGQUIT",
    });
    layout.image("v1", config, &[busybox().gzip(), Layer::new().file("etc/v", "1").build(Compression::None)]);
    layout
}

/// Uses a new store for each call, so that nothing comes from an earlier one.
async fn check(dir: &Path, reference: &str) {
    let place = tempfile::tempdir_in(dir).unwrap();
    let store = ImageStore::open(&place.path().join("state")).unwrap();
    let image = ensure(&store, reference).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(!image.was_present, "{reference}");
    assert_eq!(image.entrypoint, ["/bin/busybox"]);
    assert_eq!(image.cmd, ["echo", "hi"]);
    assert_eq!(image.env, ["PATH=/bin", "A=b=c"]);
    assert_eq!(image.working_dir.as_deref(), Some("/srv"));
    assert_eq!(image.user.as_deref(), Some("1000:1001"));
    assert_eq!(image.stop_signal.as_deref(), Some("SIGQUIT"));
    assert!(image.id.starts_with("sha256:"));
    let merged = Merged::mount(&image, place.path());
    assert_eq!(merged.read("etc/v"), "1");
    let said = run("chroot", &[merged.path.to_str().unwrap(), "/bin/busybox", "echo", "it runs"]);
    assert_eq!(said, "it runs\n");
    assert!(ensure(&store, reference).await.unwrap().was_present, "{reference} the second time");
}

#[tokio::test]
async fn layouts_and_archives_by_skopeo() {
    let dir = tempfile::tempdir().unwrap();
    let layout = layout(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let from = format!("oci:{}:v1", layout.dir.display());
    let copy = |to: &str| run("skopeo", &["copy", "-q", "--insecure-policy", &from, to]);
    copy(&format!("oci-archive:{}:v1", at("oci.tar")));
    copy(&format!("docker-archive:{}:example.com/app:v1", at("docker.tar")));
    run("gzip", &["-k", &at("docker.tar")]);
    for reference in [
        from.clone(),
        format!("oci:{}", layout.dir.display()),
        format!("oci-archive:{}", at("oci.tar")),
        format!("oci-archive:{}:v1", at("oci.tar")),
        format!("docker-archive:{}", at("docker.tar")),
        format!("docker-archive:{}:example.com/app:v1", at("docker.tar")),
        format!("docker-archive:{}", at("docker.tar.gz")),
    ] {
        check(dir.path(), &reference).await;
    }
}

/// Before version 1.10 of its format, docker wrote a directory per layer, and links for layers that it had
/// already written.
#[tokio::test]
async fn docker_archives_with_linked_layers() {
    let dir = tempfile::tempdir().unwrap();
    let layer = Layer::new().file("f", "x").build(Compression::None);
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": [layer.diff_id, layer.diff_id]}});
    let config = config.to_string();
    let manifest = json!([{"Config": format!("{}.json", &sha256(config.as_bytes())[7..]), "RepoTags": null,
        "Layers": ["aaa/layer.tar", "bbb/layer.tar"]}]);
    let archive = Layer::new()
        .symlink("bbb/layer.tar", "../aaa/layer.tar")
        .file("aaa/layer.tar", &layer.bytes)
        .file(manifest[0]["Config"].as_str().unwrap(), &config)
        .file("manifest.json", manifest.to_string());
    let file = dir.path().join("old.tar");
    fs::write(&file, archive.build(Compression::None).bytes).unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let image = ensure(&store, format!("docker-archive:{}", file.display())).await.unwrap();
    assert_eq!(image.id, sha256(config.as_bytes()));
    assert_eq!(Merged::mount(&image, dir.path()).tree(), ["f"]);
}

#[tokio::test]
async fn what_is_not_there_is_said_plainly() {
    let dir = tempfile::tempdir().unwrap();
    let mut layout = layout(dir.path());
    layout.image("v2", json!({}), &[Layer::new().file("f", "2").gzip()]);
    let at = layout.dir.display().to_string();
    let junk = dir.path().join("junk.tar");
    fs::File::create(&junk).unwrap().write_all(&[7; 4096]).unwrap();
    let junk = junk.display().to_string();
    let empty = dir.path().join("empty.tar");
    fs::write(&empty, Layer::new().file("x", "").build(Compression::None).bytes).unwrap();
    let empty = empty.display().to_string();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    for (reference, says) in [
        (format!("oci:{at}"), "holds 2 images, say which with a tag: v1, v2"),
        (format!("oci:{at}:v3"), "no image with the tag \"v3\"; it has: v1, v2"),
        (format!("oci:{at}/nowhere"), "No such file"),
        (format!("oci:{at}/blobs"), "no index.json"),
        (format!("oci:{junk}"), "oci-archive:"),
        (format!("oci-archive:{at}"), "use oci:"),
        (format!("oci-archive:{junk}"), "as a tar file"),
        (format!("oci-archive:{empty}"), "no index.json"),
        (format!("docker-archive:{empty}"), "no manifest.json"),
        (format!("docker-archive:{at}/nowhere:x"), "No such file"),
    ] {
        let text = failure(&store, &reference).await;
        assert!(text.contains(says), "{reference}: {text:?} lacks {says:?}");
    }
    assert!(ensure(&store, format!("oci:{at}:v2")).await.is_ok());
}

#[tokio::test]
async fn damage_in_a_layout_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    let layer = Layer::new().file("f", vec![b'x'; 5000]).build(Compression::None);
    layout.image("v1", json!({}), std::slice::from_ref(&layer));
    let blob = layout.dir.join("blobs/sha256").join(&sha256(&layer.bytes)[7..]);
    let mut bytes = layer.bytes.clone();
    bytes[1000] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let text = failure(&store, format!("oci:{}", layout.dir.display())).await;
    assert!(text.contains("digest mismatch") && text.contains(&sha256(&layer.bytes)), "{text}");
    fs::write(&blob, &layer.bytes).unwrap();
    assert!(ensure(&store, format!("oci:{}", layout.dir.display())).await.is_ok(), "repaired, it works");
}
