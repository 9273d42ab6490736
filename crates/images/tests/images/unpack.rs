//! How layers are unpacked to disk, and attacks by hostile layers.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use outrigger_images::{ImageStore, is_opaque, is_whiteout};
use serde_json::json;
use tar::EntryType;

use crate::support::*;

/// Unpacks layers through the public API.
async fn unpacked(dir: &Path, layers: &[BuiltLayer]) -> outrigger_runtime::Image {
    let mut layout = OciLayout::new(dir.join("layout"));
    layout.image("t", json!({}), layers);
    let store = ImageStore::open(&dir.join("state")).unwrap();
    ensure(&store, format!("oci:{}:t", layout.dir.display())).await.unwrap()
}

/// The error for a layer that is refused.
async fn refusal(layer: BuiltLayer) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("t", json!({}), &[layer]);
    let state = dir.path().join("state");
    let store = ImageStore::open(&state).unwrap();
    let text = failure(&store, format!("oci:{}:t", layout.dir.display())).await;
    assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
    assert_eq!(fs::read_dir(state.join("images/layers")).unwrap().count(), 0, "no layer may be kept");
    text
}

#[tokio::test]
async fn everything_a_file_has_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let layer = Layer::new()
        .dir("./", 0o751)
        .dir("d/", 0o1777)
        .file_as("d/su", "x", 0o4755, 1000, 2000)
        .hard_link("d/again", "d/su")
        .symlink("d/link", "/nowhere/at/all")
        .raw("d/fifo", EntryType::Fifo, "", b"", |header| header.set_mode(0o600))
        .raw("d/null", EntryType::Char, "", b"", |header| {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
            header.set_mode(0o666);
        })
        .pax(&[
            ("mtime", b"1500000000.25"),
            ("SCHILY.xattr.user.note", b"kept"),
            ("SCHILY.xattr.security.capability", b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ])
        .file("d/attrs", "y")
        .pax(&[("path", "d/ein sehr langer Name mit Ümläuten, länger als hundert Zeichen, wie ihn der alte Kopf einer tar-Datei nicht fassen könnte".as_bytes())])
        .file("x", "long")
        .file("d/twice", "first")
        .file("d/twice", "second")
        .gzip();
    let image = unpacked(dir.path(), &[layer]).await;
    let root = &image.layers[0];
    let stat = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    assert_eq!(fs::metadata(root).unwrap().mode() & 0o7777, 0o751);
    assert_eq!(stat("d").mode() & 0o7777, 0o1777);
    assert_eq!(stat("d").mtime(), 1_600_000_000, "filling a directory must not change its time");
    let su = stat("d/su");
    assert_eq!((su.mode() & 0o7777, su.uid(), su.gid(), su.nlink()), (0o4755, 1000, 2000, 2));
    assert_eq!(stat("d/again").ino(), su.ino());
    assert_eq!(fs::read_link(root.join("d/link")).unwrap(), Path::new("/nowhere/at/all"));
    assert!(stat("d/fifo").file_type().is_fifo());
    assert_eq!((stat("d/null").rdev(), stat("d/null").mode() & 0o7777), (rustix::fs::makedev(1, 3), 0o666));
    assert_eq!((stat("d/attrs").mtime(), stat("d/attrs").mtime_nsec()), (1_500_000_000, 250_000_000));
    let mut names = [0; 256];
    let n = rustix::fs::llistxattr(root.join("d/attrs"), &mut names[..]).unwrap();
    let mut names: Vec<&str> = str::from_utf8(&names[..n]).unwrap().split_terminator('\0').collect();
    names.sort_unstable();
    assert_eq!(names, ["security.capability", "user.note"], "and none of overlayfs' own");
    assert!(fs::read_dir(root.join("d")).unwrap().flatten().any(|e| e.file_name().len() > 100));
    assert_eq!(fs::read_to_string(root.join("d/twice")).unwrap(), "second");
}

#[tokio::test]
async fn whiteouts_hide_what_is_below_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let lower = Layer::new()
        .file("keep/a", "a1")
        .file("keep/gone", "x")
        .file("opaque/old", "x")
        .file("tree/deep/file", "x")
        .file("redone/old", "x")
        .file("early/old", "x")
        .file("late/old", "x")
        .file("implied/old", "x")
        .gzip();
    let middle = Layer::new()
        .file("keep/.wh.gone", "")
        .file("keep/a", "a2")
        .file("opaque/new", "n") // before the opaque mark, which must not hide it
        .file("opaque/.wh..wh..opq", "")
        .file(".wh.tree", "")
        .file(".wh.early", "") // first the whiteout, then the directory
        .dir("early/", 0o755)
        .file("early/new", "n")
        .dir("late/", 0o755) // first the directory, then the whiteout
        .file("late/new", "n")
        .file(".wh.late", "")
        .file(".wh.implied", "") // with a directory that is not listed
        .file("implied/new", "n")
        .file(".wh..wh.plnk/1.2", "AUFS keeps its books here")
        .build(Compression::Zstd);
    let upper = Layer::new()
        .file("tree/back", "b")
        .file("redone/.wh.old", "")
        .file("redone/new", "n")
        .build(Compression::None);
    let image = unpacked(dir.path(), &[lower, middle, upper]).await;
    assert_eq!(image.layers.len(), 3);
    let merged = Merged::mount(&image, dir.path());
    let wanted = [
        "early",
        "early/new",
        "implied",
        "implied/new",
        "keep",
        "keep/a",
        "late",
        "late/new",
        "opaque",
        "opaque/new",
        "redone",
        "redone/new",
        "tree",
        "tree/back",
    ];
    assert_eq!(merged.tree(), wanted);
    assert_eq!(merged.read("keep/a"), "a2");
}

/// In a container without a volume, the state directory is on overlayfs, which does not support whiteout
/// devices.
#[tokio::test]
async fn whiteouts_on_overlayfs_have_another_form() {
    let dir = tempfile::tempdir().unwrap();
    let below = unpacked(dir.path(), &[]).await;
    let outer = Merged::mount(&below, &dir.path().join("outer"));
    let lower = Layer::new().file("d/gone", "x").file("opaque/old", "x").file("redone/old", "x").gzip();
    let upper = Layer::new()
        .file("d/.wh.gone", "")
        .file("opaque/.wh..wh..opq", "")
        .file(".wh.redone", "")
        .file("redone/new", "n")
        .gzip();
    let image = unpacked(&outer.path, &[lower, upper]).await;
    let upper = &image.layers[1];
    assert!(upper.join("d/gone").is_file(), "not a device");
    assert!(is_whiteout(&upper.join("d/gone")) && !is_whiteout(&upper.join("redone/new")));
    assert!(
        is_opaque(&upper.join("opaque")) && is_opaque(&upper.join("redone")) && !is_opaque(&upper.join("d"))
    );
    // The kernel shows the same, with the upper directory on another file system.
    let merged = Merged::mount(&image, &dir.path().join("inner"));
    assert_eq!(merged.tree(), ["d", "opaque", "redone", "redone/new"]);
}

#[tokio::test]
async fn a_whole_layer_can_hide_all_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let lower = Layer::new().file("old", "x").gzip();
    let upper = Layer::new().file(".wh..wh..opq", "").file("new", "n").gzip();
    let image = unpacked(dir.path(), &[lower, upper]).await;
    assert_eq!(Merged::mount(&image, dir.path()).tree(), ["new"]);
}

#[tokio::test]
async fn a_layer_that_occurs_twice_is_mounted_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Layer::new().file("f", "a").gzip(), Layer::new().file("f", "b").file("g", "b").gzip());
    let image = unpacked(dir.path(), &[a.clone(), b, a]).await;
    assert_eq!(image.layers.len(), 2);
    let merged = Merged::mount(&image, dir.path());
    assert_eq!((merged.read("f").as_str(), merged.read("g").as_str()), ("a", "b"));
}

#[tokio::test]
async fn an_image_without_layers_has_an_empty_root() {
    let dir = tempfile::tempdir().unwrap();
    let image = unpacked(dir.path(), &[]).await;
    assert_eq!(Merged::mount(&image, dir.path()).tree(), [] as [&str; 0]);
}

#[tokio::test]
async fn parents_are_resolved_inside_the_layer() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let layer = Layer::new()
        .symlink("var/run", "/run") // dangling until it is used
        .file("var/run/pid", "1")
        .symlink("up", "../../../../../..")
        .file("up/at-root", "2")
        .symlink("abs", outside.to_str().unwrap())
        .file("abs/inside", "3")
        .symlink("a/b", "../c/d")
        .symlink("c/d/e", "../f")
        .file("a/b/e/chain", "4")
        .symlink("leaf", "/run/leaf-target")
        .file("leaf", "the link itself is replaced")
        .hard_link("linked", "var/run/pid")
        .gzip();
    let image = unpacked(dir.path(), &[layer]).await;
    let root = &image.layers[0];
    let read =
        |name: &str| fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read("run/pid"), "1");
    assert_eq!(read("at-root"), "2");
    assert_eq!(read(outside.join("inside").strip_prefix("/").unwrap().to_str().unwrap()), "3");
    assert_eq!(read("c/f/chain"), "4");
    assert!(root.join("leaf").symlink_metadata().unwrap().is_file());
    assert!(!root.join("run/leaf-target").exists());
    assert_eq!(read("linked"), "1");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "nothing may be written outside");
}

#[tokio::test]
async fn hostile_layers_are_refused() {
    let regular = EntryType::Regular;
    for (layer, says) in [
        (Layer::new().raw("../evil", regular, "", b"x", |_| {}), "leads out of the layer"),
        (Layer::new().raw("a/../../evil", regular, "", b"x", |_| {}), "leads out of the layer"),
        (Layer::new().hard_link("h", "../../../etc/passwd"), "leads out of the layer"),
        (Layer::new().hard_link("h", "/etc/passwd"), "does not contain"),
        (Layer::new().symlink("s", "/etc").hard_link("h", "s/passwd"), "does not contain"),
        (Layer::new().symlink("a", "b").symlink("b", "a").file("a/x", ""), "symbolic link"),
        (Layer::new().file("f", "").file("f/x", ""), "Not a directory"),
        (Layer::new().file(".wh...", ""), "does not name a file"),
        (Layer::new().raw("z", EntryType::new(b'Z'), "", b"", |_| {}), "unknown"),
    ] {
        let text = refusal(layer.gzip()).await;
        assert!(text.contains(says), "{text:?} lacks {says:?}");
    }
}

#[tokio::test]
async fn content_that_is_not_what_it_should_be_is_refused() {
    let good = Layer::new().file("f", "x").gzip();
    let other = Layer::new().file("f", "y").gzip();
    let swapped = BuiltLayer { diff_id: other.diff_id, ..good.clone() };
    assert!(refusal(swapped).await.contains("digest mismatch"));
    let cut = BuiltLayer { bytes: good.bytes[..good.bytes.len() / 2].to_vec(), ..good.clone() };
    assert!(refusal(cut).await.contains("cannot be read"));
    let xz = BuiltLayer { bytes: b"\xfd7zXZ\0....".to_vec(), ..good };
    assert!(refusal(xz).await.contains("gzip, zstd and plain tar"));
}
