//! A root file system with only busybox.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const BUSYBOX: &str = "/bin/busybox";

/// Creates the root file system at `dir`.
pub fn make(dir: &Path) -> PathBuf {
    for sub in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        std::fs::create_dir_all(dir.join(sub)).expect("create the root file system");
    }
    std::fs::set_permissions(dir.join("tmp"), PermissionsExt::from_mode(0o1777)).expect("open /tmp to all");
    std::fs::copy(BUSYBOX, dir.join("bin/busybox"))
        .unwrap_or_else(|e| panic!("cannot copy {BUSYBOX} ({e}); install the package busybox-static"));
    let applets = Command::new(BUSYBOX).arg("--list").output().expect("list the applets");
    for applet in String::from_utf8_lossy(&applets.stdout).lines().filter(|a| *a != "busybox") {
        symlink("busybox", dir.join("bin").join(applet)).expect("link an applet");
    }
    dir.to_owned()
}
