use super::*;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

fn directory(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn refusal(path: &Path) -> String {
    open_dir(path).map(drop).unwrap_err().to_string()
}

#[test]
fn every_directory_on_the_way_counts() {
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    directory(&at("open"), 0o777);
    directory(&at("open/own"), 0o755);
    directory(&at("sticky"), 0o1777);
    directory(&at("sticky/own"), 0o755);
    directory(&at("plain"), 0o755);
    open_dir(&at("plain")).unwrap();
    open_dir(&at("plain/../plain/.")).unwrap();
    open_dir(&at("sticky/own")).unwrap();
    for (path, blamed) in [("open/own", "open"), ("open", "open"), ("sticky", "sticky")] {
        let said = refusal(&at(path));
        let fix = format!("chmod go-w {}", at(blamed).display());
        assert!(
            said.contains("every user can change what is there") && said.ends_with(&fix),
            "{path}: {said}"
        );
    }
    assert_eq!(open_dir(&at("plain/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    // Both a link and its target are checked.
    symlink(at("plain"), at("good")).unwrap();
    symlink("open/own", at("bad")).unwrap();
    symlink("round", at("round")).unwrap();
    open_dir(&at("good")).unwrap();
    assert!(refusal(&at("bad")).contains("chmod go-w"), "{}", refusal(&at("bad")));
    assert!(open_dir(&at("round")).unwrap_err().raw_os_error() == Some(libc::ELOOP));
}

#[test]
fn directories_and_links_of_others_are_refused_as_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    directory(&at("theirs"), 0o755);
    directory(&at("theirs/ours"), 0o700);
    chown(at("theirs"), Some(1234), None).unwrap();
    directory(&at("sticky"), 0o1777);
    directory(&at("ours"), 0o700);
    symlink(at("ours"), at("sticky/link")).unwrap();
    lchown(at("sticky/link"), Some(1234), None).unwrap();
    let said = refusal(&at("theirs/ours"));
    let fix = format!("chown root {}", at("theirs").display());
    assert!(said.contains("belongs to user 1234") && said.ends_with(&fix), "{said}");
    let said = refusal(&at("sticky/link"));
    assert!(said.contains("chown -h root "), "{said}");
    // A group with other members, and an access list with other users.
    directory(&at("group"), 0o775);
    open_dir(&at("group")).unwrap();
    chown(at("group"), None, Some(4242)).unwrap();
    assert!(refusal(&at("group")).contains("its group can change"), "{}", refusal(&at("group")));
    // Another user's file is not read either.
    fs::write(at("ours/file"), "").unwrap();
    chown(at("ours/file"), Some(1234), None).unwrap();
    let ours = open_dir(&at("ours")).unwrap();
    let said = open_in(ours.as_fd(), &at("ours"), OsStr::new("file")).unwrap_err().to_string();
    assert!(said.contains("belongs to user 1234"), "{said}");
    // A process that has opened a file for writing can still write when the file has a new owner.
    assert!(said.contains("put a copy in its place: cp ") && !said.contains("chown"), "{said}");
    // A state directory is created only where nobody can replace it.
    assert!(make_dir(&at("theirs/new")).is_err());
    make_dir(&at("ours/new/deep")).unwrap();
    make_dir(&at("sticky/new")).unwrap();
}

#[test]
fn files_are_read_inside_of_their_directory() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("dir");
    directory(&dir, 0o755);
    directory(&dir.join("..1"), 0o755);
    fs::write(base.path().join("secret"), "root:x").unwrap();
    fs::write(dir.join("plain"), "").unwrap();
    fs::write(dir.join("..1/map"), "").unwrap();
    fs::write(dir.join("open"), "").unwrap();
    fs::set_permissions(dir.join("open"), PermissionsExt::from_mode(0o666)).unwrap();
    symlink("..1", dir.join("..data")).unwrap();
    symlink("..data/map", dir.join("map")).unwrap();
    symlink("../secret", dir.join("up")).unwrap();
    symlink("/etc/passwd", dir.join("absolute")).unwrap();
    symlink("..1/../../secret", dir.join("around")).unwrap();
    symlink(dir.join("plain"), dir.join("inside")).unwrap();
    symlink(dir.join("..data/map"), dir.join("further")).unwrap();
    symlink(dir.join("../secret"), dir.join("back")).unwrap();
    symlink(base.path().join("secret"), dir.join("beside")).unwrap();
    symlink(&dir, base.path().join("other")).unwrap();
    fs::hard_link(base.path().join("secret"), dir.join("hard")).unwrap();
    symlink("hard", dir.join("to-hard")).unwrap();
    let fd = open_dir(&dir).unwrap();
    let open = |name: &str| open_in(fd.as_fd(), &dir, OsStr::new(name)).map(drop).map_err(|e| e.to_string());
    assert_eq!((open("plain"), open("map")), (Ok(()), Ok(())));
    // An absolute link may lead to the directory itself, by any path.
    assert_eq!((open("inside"), open("further")), (Ok(()), Ok(())));
    open_in(fd.as_fd(), &base.path().join("other"), OsStr::new("inside")).unwrap();
    for (name, why) in [
        ("up", "it is a link to ../secret, which is outside of the directory"),
        ("around", "it is a link to ..1/../../secret, which is outside of the directory"),
        ("back", "../secret, which is outside of the directory"),
        ("beside", "/secret, which is outside of the directory"),
        ("absolute", "it is a link to /etc/passwd, which is outside"),
        ("open", "chmod go-w"),
        ("..1", "it is a directory, not a file"),
        ("hard", "it has 2 names (hard links)"),
        ("to-hard", "it has 2 names (hard links)"),
    ] {
        let said = open(name).unwrap_err();
        assert!(said.contains(why), "{name}: {said}");
    }
    fs::remove_file(base.path().join("secret")).unwrap();
    assert_eq!(open("hard"), Ok(()), "it has no other name any more");
}
