//! Runs the same containers on machines with other cgroups than this one.
//!
//! The runtime uses the mounted hierarchies. A mount namespace with fewer cgroup mounts represents a machine
//! without the others.

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use tokio::process::Command;

outrigger_testkit::trials![v1_only, v2_only, no_cgroups];

const CGROUPS: &str = "/sys/fs/cgroup";

/// Moves this single-threaded process to such a machine.
pub(crate) fn enter(kind: &str) {
    // SAFETY: a new mount namespace cannot surprise another thread, and there is no other thread yet.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.expect("mount namespace");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
    if kind == "v1" {
        // On a machine with only v2, there is nothing to remove and nothing else to test.
        unmount(format!("{CGROUPS}/unified"), UnmountFlags::DETACH).expect("unified");
        return;
    }
    unmount(CGROUPS, UnmountFlags::DETACH).expect("cgroups");
    if kind == "v2" {
        mount("cgroup2", CGROUPS, "cgroup2", MountFlags::empty(), None).expect("cgroup2");
    }
}

/// Runs the tests whose names contain one of the filters on such a machine.
async fn run_on(kind: &str, filters: &[&str]) {
    for filter in filters {
        let run = Command::new("/proc/self/exe")
            .args(["on-machine", kind, filter])
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{filter}: {text}{}", String::from_utf8_lossy(&run.stderr));
        assert!(!text.contains("running 0 tests"), "{filter}");
    }
}

async fn v1_only() {
    if std::path::Path::new(CGROUPS).join("unified").exists() {
        run_on(
            "v1",
            &[
                "attacks::devices",
                "neighbours::nodes",
                "limits::",
                "exec::",
                "orphans_are_removed",
                "a_killed_shim",
                "pids_can_be_shared",
            ],
        )
        .await;
    }
}

async fn v2_only() {
    let tests = [
        "attacks::",
        "neighbours::",
        "limits::devices",
        "limits::everything_dies",
        "exec::",
        "sys_and_cgroups_are_read_only",
        "orphans_are_removed",
        "pids_can_be_shared",
    ];
    run_on("v2", &tests).await;
}

async fn no_cgroups() {
    run_on(
        "none",
        &[
            "attacks::devices",
            "neighbours::nodes",
            "attacks::nothing",
            "exit_codes",
            "a_trap_hears_term",
            "exec::",
            "a_killed_shim",
            "pids_can_be_shared",
        ],
    )
    .await;
}
