//! Malicious images and registries.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrigger_images::{ImageLimits, ImageStore};
use serde_json::json;
use tar::EntryType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::*;

/// The error for an image with these layers. Also checks that nothing of the image is kept.
async fn refused(limits: &str, layers: &[BuiltLayer]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("t", json!({}), layers);
    let state = dir.path().join("state");
    let store = ImageStore::open_with(&state, limits.parse::<ImageLimits>().unwrap()).unwrap();
    let text = failure(&store, format!("oci:{}:t", layout.dir.display())).await;
    // Layers that are being unpacked at the same time are cancelled a moment later.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !scratch_entries(&state).is_empty() {
        assert!(Instant::now() < deadline, "{:?} are left", scratch_entries(&state));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    text
}

/// Only a header. The caller adds the content that it announces.
fn header(kind: EntryType, name: &str, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    header
}

/// A gzip layer with some blocks, followed by this many zeros.
fn zeros(blocks: &[u8], count: usize) -> BuiltLayer {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(blocks).unwrap();
    let piece = vec![0; 1 << 20];
    for _ in 0..count >> 20 {
        encoder.write_all(&piece).unwrap();
    }
    let bytes = encoder.finish().unwrap();
    // The layer is refused before the digest is compared.
    BuiltLayer {
        diff_id: sha256(b"never reached"),
        bytes,
        media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
    }
}

/// The peak memory of this process, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn names_and_extensions_of_any_size_take_no_memory() {
    let before = peak_memory();
    for (kind, what) in [('L', "path"), ('K', "link target"), ('x', "extensions"), ('g', "extensions")] {
        let layer =
            zeros(header(EntryType::new(kind as u8), "././@LongLink", 200 << 20).as_bytes(), 200 << 20);
        assert!(layer.bytes.len() < 2 << 20, "a small file");
        let text = refused("", &[layer]).await;
        assert!(text.contains(&format!("{what} has 209715200 bytes")), "{kind}: {text}");
    }
    let grown = peak_memory() - before;
    assert!(grown < 150 << 20, "{} MiB more", grown >> 20);
}

#[tokio::test]
async fn a_file_of_zeros_is_bounded_by_its_ratio_and_its_size() {
    let file = header(EntryType::Regular, "zeros", 1 << 40);
    let text = refused("", &[zeros(file.as_bytes(), 300 << 20)]).await;
    assert!(
        text.contains("more than 200 times its size") && text.contains("--image-limits ratio="),
        "{text}"
    );
    let text = refused("unpacked=100Mi", &[zeros(file.as_bytes(), 150 << 20)]).await;
    assert!(text.contains("more than 100Mi") && text.contains("--image-limits unpacked="), "{text}");
    // The zeros follow the end of the archive, where they become no file.
    let text = refused("unpacked=100Mi", &[zeros(&[0; 1024], 150 << 20)]).await;
    assert!(text.contains("more than 100Mi"), "{text}");
}

/// A sparse file as GNU tar writes it, with one part and holes around it.
fn sparse(size: u64, offset: u64, content: &[u8]) -> Vec<u8> {
    let mut header = header(EntryType::GNUSparse, "sparse", content.len() as u64);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(size);
    for (field, value) in
        [(&mut gnu.sparse[0].offset, offset), (&mut gnu.sparse[0].numbytes, content.len() as u64)]
    {
        field.copy_from_slice(format!("{value:011o}\0").as_bytes());
    }
    header.set_cksum();
    let mut tar = header.as_bytes().to_vec();
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    tar
}

fn layer_of(tar: Vec<u8>) -> BuiltLayer {
    BuiltLayer {
        diff_id: sha256(&tar),
        bytes: tar,
        media_type: "application/vnd.oci.image.layer.v1.tar".to_owned(),
    }
}

#[tokio::test]
async fn sparse_files_stay_sparse_and_count_as_what_they_claim() {
    let dir = tempfile::tempdir().unwrap();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("t", json!({}), &[layer_of(sparse(400 << 20, 100 << 20, b"here"))]);
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let image = ensure(&store, format!("oci:{}:t", layout.dir.display())).await.unwrap();
    let file = fs::File::open(image.layers[0].join("sparse")).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!(meta.len(), 400 << 20);
    assert!(meta.blocks() * 512 < 1 << 20, "{} bytes on disk", meta.blocks() * 512);
    let mut found = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 100 << 20).unwrap();
    assert_eq!(&found, b"here");

    let text = refused("unpacked=300Mi", &[layer_of(sparse(400 << 20, 0, b"x"))]).await;
    assert!(text.contains("more than 300Mi"), "{text}");
    let text = refused("", &[layer_of(sparse(1 << 30, 2 << 30, b"x"))]).await;
    assert!(text.contains("beyond its end"), "{text}");
}

#[tokio::test]
async fn files_depth_layers_and_space_are_bounded() {
    let mut many = Layer::new();
    for n in 0..60 {
        many = many.file(&n.to_string(), "");
    }
    let many = many.gzip();
    // Two layers share the budget.
    let text = refused(
        "files=100",
        &[many.clone(), Layer::new().file("other", "").dir("d/", 0o755).gzip(), {
            let mut more = Layer::new();
            for n in 100..160 {
                more = more.file(&n.to_string(), "");
            }
            more.gzip()
        }],
    )
    .await;
    assert!(text.contains("more than 100 files") && text.contains("--image-limits files="), "{text}");

    let deep = "d/".repeat(300);
    let deep = Layer::new().pax(&[("path", deep.as_bytes())]).dir("x/", 0o755).gzip();
    let text = refused("", std::slice::from_ref(&deep)).await;
    assert!(text.contains("300 directories deep, more than the 256 allowed"), "{text}");
    let text = refused("depth=299", &[deep]).await;
    assert!(text.contains("--image-limits depth=300"), "{text}");

    let long = Layer::new().pax(&[("path", &[b'n'; 5000][..])]).file("x", "").gzip();
    let text = refused("", &[long]).await;
    assert!(text.contains("path has 5000 bytes, more than the 4095 allowed"), "{text}");

    let layers = vec![Layer::new().file("one", "").gzip(); 501];
    let text = refused("", &layers).await;
    assert!(text.contains("has 501 layers, at most 500 are supported"), "{text}");

    let text = refused("free=900Ti", &[many]).await;
    assert!(text.contains("no space left on device") && text.contains("--state-dir"), "{text}");
}

/// The members of a compressed archive count too, before any layer is read.
#[tokio::test]
async fn an_archive_that_inflates_without_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("image.tar.gz");
    fs::write(&archive, zeros(header(EntryType::Regular, "big", 1 << 40).as_bytes(), 150 << 20).bytes)
        .unwrap();
    let state = dir.path().join("state");
    let store = ImageStore::open_with(&state, "unpacked=100Mi".parse().unwrap()).unwrap();
    for kind in ["oci-archive", "docker-archive"] {
        let text = failure(&store, format!("{kind}:{}", archive.display())).await;
        assert!(text.contains("more than 100Mi"), "{text}");
    }
    assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
    // This is a pipe without a writer.
    let pipe = dir.path().join("pipe");
    run("mkfifo", &[pipe.to_str().unwrap()]);
    let text = failure(&store, format!("oci-archive:{}", pipe.display())).await;
    assert!(text.contains("not a regular file"), "{text}");
}

#[tokio::test]
async fn a_parent_that_becomes_a_link_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    let to = outside.path().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let layer = Layer::new()
        .dir("d/", 0o755)
        .file("d/first", "x")
        .symlink("d", to) // the directory that was just filled
        .file("d/evil", "x")
        .symlink("up", "../../../../../../../..")
        .file(&format!("up{to}/evil"), "x")
        .symlink("loop", "loop")
        .symlink("magic", "/proc/self/cwd")
        .file("magic/evil", "x")
        .hard_link("d/linked", "d/evil")
        .raw("d/device", EntryType::Char, "", b"", |header| {
            header.set_device_major(1).unwrap();
            header.set_device_minor(1).unwrap();
        })
        .file("d/.wh.secret", "")
        .file("d/.wh..wh..opq", "")
        .gzip();
    fs::write(outside.path().join("secret"), "untouched").unwrap();
    let before = fs::metadata(outside.path()).unwrap().mtime_nsec();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("t", json!({}), &[layer]);
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let image = ensure(&store, format!("oci:{}:t", layout.dir.display())).await.unwrap();
    let names: Vec<_> = fs::read_dir(outside.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["secret"]);
    assert_eq!(fs::metadata(outside.path()).unwrap().mtime_nsec(), before);
    assert_eq!(fs::metadata(outside.path().join("secret")).unwrap().nlink(), 1);
    // Everything is in the places inside the layer that those links lead to.
    let inside = image.layers[0].join(to.trim_start_matches('/'));
    assert!(inside.join("evil").exists() && inside.join("linked").exists());
    for bad in ["../x", "a/../../x", ".."] {
        let text = refused("", &[Layer::new().file(bad, "x").gzip()]).await;
        assert!(text.contains("leads out of the layer"), "{bad}: {text}");
    }
    let text = refused("", &[Layer::new().hard_link("x", "/etc/passwd").gzip()]).await;
    assert!(text.contains("which this layer does not contain"), "{text}");
}

#[tokio::test]
async fn only_harmless_attributes_are_set() {
    let dir = tempfile::tempdir().unwrap();
    let layer = Layer::new()
        .pax(&[
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.trusted.overlay.metacopy", b""),
            ("SCHILY.xattr.user.overlay.whiteout", b"y"),
            ("SCHILY.xattr.trusted.anything", b"x"),
            ("SCHILY.xattr.security.selinux", b"system_u:object_r:shadow_t:s0"),
            ("SCHILY.xattr.security.ima", b"x"),
            ("SCHILY.xattr.system.posix_acl_access", b"x"),
            ("SCHILY.xattr.user.fine", b"x"),
        ])
        .file("f", "")
        .pax(&[("SCHILY.xattr.trusted.overlay.opaque", b"y")])
        .dir("d/", 0o755)
        .gzip();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("t", json!({}), &[layer]);
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let image = ensure(&store, format!("oci:{}:t", layout.dir.display())).await.unwrap();
    for (name, wanted) in [("f", "user.fine\0"), ("d", "")] {
        let mut names = [0; 512];
        let n = rustix::fs::llistxattr(image.layers[0].join(name), &mut names[..]).unwrap();
        assert_eq!(str::from_utf8(&names[..n]).unwrap(), wanted, "{name}");
    }
}

/// The requests to a fake server, with request lines and headers.
type Asked = Arc<Mutex<Vec<String>>>;

/// A server that answers each path with raw bytes. On request, it then continues forever.
async fn server(
    ip: Ipv4Addr,
    answer: impl Fn(&str, u16) -> (Vec<u8>, bool) + Send + Sync + 'static,
) -> (u16, Asked) {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, answer) = (Asked::default(), Arc::new(answer));
    let told = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (told, answer) = (told.clone(), answer.clone());
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                told.lock().unwrap().push(head);
                let (bytes, endless) = answer(&path, port);
                let mut sent = stream.write_all(&bytes).await;
                while endless && sent.is_ok() {
                    sent = stream.write_all(&[b' '; 16 << 10]).await;
                }
            });
        }
    });
    (port, asked)
}

fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The error of a pull from a server on this machine.
async fn pulled(port: u16) -> String {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = ImageStore::open(&state).unwrap();
    let began = Instant::now();
    let text = failure(&store, format!("127.0.0.1:{port}/app:v1")).await;
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
    assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
    text
}

#[tokio::test]
async fn answers_without_end_are_cut() {
    let chunked = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{".to_vec();
    let (port, _) = server(Ipv4Addr::LOCALHOST, move |_, _| (chunked.clone(), true)).await;
    let text = pulled(port).await;
    assert!(text.contains("larger than 4194304 bytes"), "{text}");
    // The lengths are wrong.
    let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551614\r\n\r\n{".to_vec();
    let (port, _) = server(Ipv4Addr::LOCALHOST, move |_, _| (huge.clone(), true)).await;
    let text = pulled(port).await;
    assert!(text.contains("larger than 4194304 bytes") || text.contains("no answer"), "{text}");
}

/// An image whose manifest says that its layer has ten bytes.
fn small_image() -> (Vec<u8>, Vec<u8>, String) {
    let layer = sha256(b"ten bytes.");
    let config = json!({"architecture": this_architecture(), "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer]}})
    .to_string();
    let manifest = json!({"schemaVersion": 2,
        "config": {"digest": sha256(config.as_bytes()), "size": config.len()},
        "layers": [{"digest": layer, "size": 10}]})
    .to_string();
    (manifest.into_bytes(), config.into_bytes(), layer)
}

/// CVE-2021-41190: one digest means two different images to different readers.
#[tokio::test]
async fn ambiguous_manifests_are_refused() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let (manifest, _, _) = small_image();
    let plain: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let changed = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document = plain.clone();
        change(&mut document);
        document
    };
    let with_manifests = changed(&|document| document["manifests"] = json!([]));
    let says_index = changed(&|document| document["mediaType"] = json!(INDEX));
    for (document, content_type) in [(&with_manifests, MANIFEST), (&says_index, MANIFEST), (&plain, INDEX)] {
        let bytes = document.to_string().into_bytes();
        let (port, asked) = server(Ipv4Addr::LOCALHOST, move |_, _| {
            (response("200 OK", &format!("Content-Type: {content_type}\r\n"), &bytes), false)
        })
        .await;
        let text = pulled(port).await;
        assert!(text.contains("the image manifest is ambiguous"), "{text}");
        let blobs = asked.lock().unwrap().iter().filter(|head| head.contains("/blobs/")).count();
        assert_eq!(blobs, 0, "nothing of it was fetched");
    }

    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    for (document, announced) in [(&with_manifests, MANIFEST), (&says_index, MANIFEST), (&plain, INDEX)] {
        let mut layout = OciLayout::new(dir.path().join("layout"));
        let descriptor = layout.blob(announced, document.to_string().as_bytes());
        layout.tag(descriptor, "t");
        let text = failure(&store, format!("oci:{}:t", layout.dir.display())).await;
        assert!(text.contains("the image manifest is ambiguous"), "{text}");
        let archive = dir.path().join("layout.tar");
        let at = layout.dir.to_str().unwrap();
        run("tar", &["-cf", archive.to_str().unwrap(), "-C", at, "index.json", "oci-layout", "blobs"]);
        let text = failure(&store, format!("oci-archive:{}:t", archive.display())).await;
        assert!(text.contains("the image manifest is ambiguous"), "{text}");
    }
}

/// An image in a layout whose documents are changed as text. `change` gets the name of each document.
fn layout_with(dir: &Path, change: &dyn Fn(&str, String) -> String) -> OciLayout {
    let layout = OciLayout::new(dir);
    let layer = Layer::new().file("file", "x").gzip();
    let config = json!({"architecture": this_architecture(), "os": "linux",
        "config": {"Cmd": ["/right"], "Env": ["A=1"], "Labels": {"cmd": "1", "Cmd": "2"},
            "ExposedPorts": {"80/tcp": {}}},
        "container_config": {"cmd": ["/bin/sh"], "Cmd": []}, "docker_version": "20.10", "Size": 0,
        "history": [{"created_by": "sh", "empty_layer": true}],
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]}});
    let config = change("configuration", config.to_string());
    let config = layout.blob("application/vnd.oci.image.config.v1+json", config.as_bytes());
    let layer = layout.blob(&layer.media_type, &layer.bytes);
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer],
        "annotations": {"digest": "1", "Digest": "2"}});
    let manifest = layout.blob(
        "application/vnd.oci.image.manifest.v1+json",
        change("manifest", manifest.to_string()).as_bytes(),
    );
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.dir.join("index.json"), change("index", index.to_string())).unwrap();
    layout
}

/// Go's decoder ignores the case of names, and uses the last of several.
#[tokio::test]
async fn ambiguous_fields_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let plain = layout_with(&dir.path().join("plain"), &|_, text| text);
    let image = ensure(&store, format!("oci:{}", plain.dir.display())).await.unwrap();
    assert_eq!(image.cmd, ["/right"]);

    let other = format!("\"{}\"", sha256(b"other"));
    let at_start = "{";
    // (document, text before the new field, field, value)
    for (document, before, field, value) in [
        ("manifest", at_start, "layer\u{17f}", "[]"),
        ("manifest", at_start, "manife\u{17f}ts", "[]"),
        ("manifest", at_start, "\\u006danife\\u017fts", "[]"),
        ("manifest", at_start, "Config", "{}"),
        ("manifest", at_start, "layers", "[]"),
        ("manifest", at_start, "Subject", "{}"),
        ("manifest", "\"config\":{", "Digest", &other),
        ("manifest", "\"config\":{", "dige\u{17f}t", &other),
        ("manifest", "\"config\":{", "digest", &other),
        ("manifest", "\"config\":{", "\u{17f}ize", "1"),
        ("manifest", "\"config\":{", "MediaType", "\"text/plain\""),
        ("manifest", "\"layers\":[{", "Digest", &other),
        ("manifest", "\"layers\":[{", "Size", "1"),
        ("manifest", "\"layers\":[{", "URLs", "[]"),
        ("index", at_start, "manife\u{17f}ts", "[]"),
        ("index", at_start, "Manifests", "[]"),
        ("index", "\"manifests\":[{", "Digest", &other),
        ("index", "\"manifests\":[{", "Size", "1"),
        ("index", "\"manifests\":[{", "Platform", "{}"),
        ("index", "\"manifests\":[{", "platform", "{\"OS\":\"linux\"}"),
        ("configuration", at_start, "Config", "{}"),
        ("configuration", at_start, "config", "{}"),
        ("configuration", at_start, "Rootfs", "{}"),
        ("configuration", at_start, "rootf\u{17f}", "{}"),
        ("configuration", at_start, "OS", "\"windows\""),
        ("configuration", ",\"config\":{", "cmd", "[\"/wrong\"]"),
        ("configuration", ",\"config\":{", "ENV", "[]"),
        ("configuration", ",\"config\":{", "user", "\"0\""),
        ("configuration", ",\"config\":{", "\u{17f}hell", "[]"),
        ("configuration", "\"rootfs\":{", "Diff_IDs", "[]"),
        ("configuration", "\"rootfs\":{", "diff_ids", "[]"),
    ] {
        let layout = layout_with(&dir.path().join("layout"), &|name, text| {
            if name != document {
                return text;
            }
            assert!(text.contains(before), "{text}");
            text.replacen(before, &format!("{before}\"{field}\":{value},"), 1)
        });
        let text = failure(&store, format!("oci:{}", layout.dir.display())).await;
        let part = if document == "configuration" { document } else { "manifest" };
        assert!(text.contains(&format!("the image {part} is ambiguous")), "{document} {field}: {text}");
    }

    let layer = Layer::new().file("file", "x").build(Compression::None);
    let config = json!({"os": "linux", "rootfs": {"diff_ids": [layer.diff_id]}}).to_string();
    let archive = Layer::new()
        .file("config.json", &config)
        .file("layer.tar", &layer.bytes)
        .file("manifest.json", r#"[{"Config": "config.json", "Layers": ["layer.tar"], "layers": []}]"#)
        .build(Compression::None);
    let file = dir.path().join("docker.tar");
    fs::write(&file, archive.bytes).unwrap();
    let text = failure(&store, format!("docker-archive:{}", file.display())).await;
    assert!(text.contains("the image manifest is ambiguous"), "{text}");
}

#[tokio::test]
async fn ambiguous_sizes_and_types_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    // The first size in the manifest is that of the configuration.
    for document in ["index", "manifest"] {
        let layout = layout_with(&dir.path().join("layout"), &|name, text| match name == document {
            true => text.replacen("\"size\":", "\"size\":1", 1),
            false => text,
        });
        let text = failure(&store, format!("oci:{}", layout.dir.display())).await;
        assert!(text.contains("the size of sha256:"), "{document}: {text}");
    }
    for (media_type, accepted) in
        [("text/plain", false), ("binary/octet-stream", false), ("application/json", true), ("", true)]
    {
        let layout = layout_with(&dir.path().join("layout"), &|name, text| match name {
            "index" => text.replace("application/vnd.oci.image.manifest.v1+json", media_type),
            _ => text,
        });
        let result = ensure(&store, format!("oci:{}", layout.dir.display())).await;
        assert_eq!(result.is_ok(), accepted, "{media_type}: {result:?}");
    }

    // A registry gives the same result.
    let (manifest, _, _) = small_image();
    let entry = json!({"digest": sha256(&manifest), "size": manifest.len() + 1});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into_bytes();
    let (port, _) = server(Ipv4Addr::LOCALHOST, move |path, _| {
        let body = if path.contains("sha256") { &manifest } else { &index };
        (response("200 OK", "", body), false)
    })
    .await;
    let text = pulled(port).await;
    assert!(text.contains("the size of sha256:"), "{text}");
    let (manifest, config, _) = small_image();
    let manifest = String::from_utf8(manifest).unwrap();
    let size = format!("\"size\":{}", config.len());
    assert!(manifest.contains(&size), "{manifest}");
    let wrong = manifest.replacen(&size, "\"size\":7", 1).into_bytes();
    let (port, _) = server(Ipv4Addr::LOCALHOST, move |path, _| {
        let body = if path.contains("/manifests/") { &wrong } else { &config };
        (response("200 OK", "", body), false)
    })
    .await;
    let text = pulled(port).await;
    assert!(text.contains("the size of sha256:"), "{text}");

    for types in [
        "Content-Type: text/plain; charset=utf-8\r\nContent-Type: application/vnd.oci.image.index.v1+json\r\n",
        "Content-Type: application/vnd.oci.image.manifest.v1+json\r\nContent-Type: application/json\r\n",
        "Content-Type: application/json; a, application/vnd.oci.image.index.v1+json\r\n",
    ] {
        let manifest = manifest.clone();
        let (port, _) =
            server(Ipv4Addr::LOCALHOST, move |_, _| (response("200 OK", types, manifest.as_bytes()), false))
                .await;
        let text = pulled(port).await;
        assert!(text.contains("the image manifest is ambiguous"), "{types}: {text}");
    }
}

/// OCI allows documents without their own media type.
#[tokio::test]
async fn an_image_of_many_platforms_needs_no_media_types() {
    let layer = Layer::new().file("file", "x").gzip();
    let config = json!({"architecture": this_architecture(), "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]}});
    let config = config.to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2,
        "config": {"digest": sha256(&config), "size": config.len()},
        "layers": [{"digest": sha256(&layer.bytes), "size": layer.bytes.len()}]});
    let manifest = manifest.to_string().into_bytes();
    let entry = json!({"digest": sha256(&manifest), "size": manifest.len(),
        "platform": {"os": "linux", "architecture": this_architecture()}});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into_bytes();
    let digest = sha256(&manifest);
    for content_type in ["", "Content-Type: text/plain; charset=utf-8\r\n"] {
        let (config, manifest, index, digest, layer) =
            (config.clone(), manifest.clone(), index.clone(), digest.clone(), layer.clone());
        let (port, _) = server(Ipv4Addr::LOCALHOST, move |path, _| {
            let body = match path {
                _ if path.ends_with(&digest) => &manifest,
                _ if path.contains("/manifests/") => &index,
                _ if path.ends_with(&sha256(&config)) => &config,
                _ => &layer.bytes,
            };
            (response("200 OK", content_type, body), false)
        })
        .await;
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&dir.path().join("state")).unwrap();
        ensure(&store, format!("127.0.0.1:{port}/app:v1")).await.unwrap();
    }
}

#[tokio::test]
async fn a_layer_is_not_larger_than_its_manifest_says() {
    let (port, _) = server(Ipv4Addr::LOCALHOST, |path, _| {
        let (manifest, config, layer) = small_image();
        match path {
            _ if path.contains("manifests") => (response("200 OK", "", &manifest), false),
            _ if path.ends_with(&layer) => (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), true),
            _ => (response("200 OK", "", &config), false),
        }
    })
    .await;
    let text = pulled(port).await;
    assert!(text.contains("larger than the 10 bytes its manifest says"), "{text}");
}

#[tokio::test]
async fn redirects_end() {
    let (port, asked) = server(Ipv4Addr::LOCALHOST, |path, port| {
        let to = format!("Location: http://127.0.0.1:{port}{path}\r\n");
        (response("307 Temporary Redirect", &to, b""), false)
    })
    .await;
    let text = pulled(port).await;
    assert!(text.contains("redirects more than 10 times"), "{text}");
    assert!(asked.lock().unwrap().len() < 30);
}

#[tokio::test]
async fn credentials_stay_with_their_host() {
    let (_, config, _) = small_image();
    let stored = config.clone();
    let (other, seen) =
        server(Ipv4Addr::new(127, 0, 0, 2), move |_, _| (response("200 OK", "", &stored), false)).await;
    let challenged = AtomicBool::new(false);
    let (port, asked) = server(Ipv4Addr::LOCALHOST, move |path, _| {
        let (manifest, _, layer) = small_image();
        match path {
            _ if !challenged.swap(true, Ordering::Relaxed) => {
                (response("401 Unauthorized", "WWW-Authenticate: Basic realm=\"x\"\r\n", b"{}"), false)
            }
            _ if path.contains("manifests") => (response("200 OK", "", &manifest), false),
            _ if path.ends_with(&layer) => (response("404 Not Found", "", b""), false),
            _ => {
                let to = format!("Location: http://127.0.0.2:{other}/blob\r\n");
                (response("307 Temporary Redirect", &to, b""), false)
            }
        }
    })
    .await;
    // Every request without credentials is refused.
    let (front, fronted) = server(Ipv4Addr::LOCALHOST, move |path, _| {
        let to = format!("Location: http://127.0.0.1:{port}{path}\r\n");
        (response("401 Unauthorized", &format!("WWW-Authenticate: Basic realm=\"x\"\r\n{to}"), b"{}"), false)
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    for (port, asked) in [(port, &asked), (front, &fronted)] {
        let auth = json!({"auths": {format!("127.0.0.1:{port}"): {"username": "u", "password": "secret"}}});
        let mut request = request(format!("127.0.0.1:{port}/app:v1"), outrigger_runtime::PullPolicy::Always);
        request.auth = vec![auth.to_string()];
        let error = store.ensure(request, silent()).await.unwrap_err();
        assert!(!asked.lock().unwrap().is_empty(), "{error}");
    }
    let all = seen.lock().unwrap().join("");
    assert!(all.contains("GET /blob"), "it was sent on");
    assert!(!all.to_lowercase().contains("authorization"), "{all}");
    let sent = asked.lock().unwrap().join("").to_lowercase();
    assert!(sent.matches("authorization: basic").count() >= 2, "also with what was sent on: {sent}");
    let sent = fronted.lock().unwrap().join("").to_lowercase();
    assert!(sent.contains("authorization: basic"), "where they belong they were used: {sent}");
}

/// CVE-2020-15157: a host that the registry redirects blob requests to asks for the registry's credentials.
#[tokio::test]
async fn only_the_registry_itself_is_told_who_asks() {
    let (other, seen) = server(Ipv4Addr::new(127, 0, 0, 2), move |path, port| match path {
        _ if path.starts_with("/token") => (response("200 OK", "", br#"{"token": "t"}"#), false),
        _ => {
            let challenge =
                format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.2:{port}/token\",service=\"s\"\r\n");
            (response("401 Unauthorized", &challenge, b""), false)
        }
    })
    .await;
    let (port, asked) = server(Ipv4Addr::LOCALHOST, move |path, _| {
        let (manifest, _, _) = small_image();
        match path {
            _ if path.contains("manifests") => (response("200 OK", "", &manifest), false),
            _ => {
                let to = format!("Location: http://127.0.0.2:{other}/blob\r\n");
                (response("307 Temporary Redirect", &to, b""), false)
            }
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let auth = json!({"auths": {format!("127.0.0.1:{port}"): {"username": "u", "password": "secret"}}});
    let mut request = request(format!("127.0.0.1:{port}/app:v1"), outrigger_runtime::PullPolicy::Always);
    request.auth = vec![auth.to_string()];
    let error = store.ensure(request, silent()).await.unwrap_err();
    assert!(!asked.lock().unwrap().is_empty(), "{error}");
    let all = seen.lock().unwrap().join("");
    assert!(all.contains("GET /blob") && !all.contains("/token"), "{all}");
    assert!(!all.to_lowercase().contains("authorization"), "{all}");
}

#[tokio::test]
async fn https_is_never_left_for_http() {
    let (plain, seen) = server(Ipv4Addr::LOCALHOST, |_, _| (response("200 OK", "", b"{}"), false)).await;
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    run(
        "openssl",
        &[
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-out", cert,
            "-keyout", key,
        ],
    );
    // openssl serves files unchanged, including headers.
    let answer =
        format!("HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: http://127.0.0.1:{plain}/v2/\r\n\r\n");
    let file = dir.path().join("v2/app/manifests/v1");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, answer).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut openssl = std::process::Command::new("openssl")
        .args(["s_server", "-quiet", "-HTTP", "-accept", &port.to_string(), "-cert", cert, "-key", key])
        .current_dir(dir.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("openssl is installed");
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "openssl does not listen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let text = pulled(as_a_registry(port).await).await;
    let _ = openssl.kill();
    let _ = openssl.wait();
    assert!(text.contains("redirects from https to http://127.0.0.1"), "{text}");
    assert_eq!(seen.lock().unwrap().len(), 0, "nobody was asked over http");
    assert!(Path::new(cert).exists());
}

/// A server that answers http like a registry that speaks https, and forwards https.
async fn as_a_registry(tls: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut first = [0];
                let _ = client.peek(&mut first).await;
                if first[0] == 0x16 {
                    let mut server =
                        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, tls)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    return;
                }
                let _ = client.read(&mut [0; 4096]).await;
                let text = b"Client sent an HTTP request to an HTTPS server.\n";
                let _ = client.write_all(&response("400 Bad Request", "", text)).await;
            });
        }
    });
    port
}

/// Knowing the digest of a stored layer does not give access to the layer.
#[tokio::test]
async fn a_layer_is_not_had_by_its_name_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let secret = Layer::new().file("secret", "x").build(Compression::None);
    let other = Layer::new().file("other", "y").build(Compression::None);
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": [secret.diff_id]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": null, "Layers": ["layer.tar"]}]);
    let archive = |name: &str, layer: Option<&BuiltLayer>| {
        let mut archive = Layer::new().file("config.json", config.to_string());
        if let Some(layer) = layer {
            archive = archive.file("layer.tar", &layer.bytes);
        }
        let archive = archive.file("manifest.json", manifest.to_string()).build(Compression::None);
        let file = dir.path().join(name);
        fs::write(&file, archive.bytes).unwrap();
        format!("docker-archive:{}", file.display())
    };
    let honest = archive("honest.tar", Some(&secret));
    ensure(&store, &honest).await.unwrap();
    for (file, layer, complaint) in
        [("other.tar", Some(&other), "digest mismatch"), ("none.tar", None, "has no file layer.tar")]
    {
        let text = failure(&store, archive(file, layer)).await;
        assert!(text.contains(complaint), "{text}");
    }
    // A file is read only once, and again if it was changed.
    assert!(ensure(&store, &honest).await.unwrap().was_present);
    let text = failure(&store, archive("honest.tar", Some(&other))).await;
    assert!(text.contains("digest mismatch"), "{text}");
    // The same holds for a layout: its blob matches its digest, but is not that layer.
    let mut layout = OciLayout::new(dir.path().join("layout"));
    let lying = BuiltLayer { diff_id: secret.diff_id.clone(), ..other };
    layout.image("t", json!({}), &[lying]);
    let text = failure(&store, format!("oci:{}:t", layout.dir.display())).await;
    assert!(text.contains("digest mismatch"), "{text}");
}
