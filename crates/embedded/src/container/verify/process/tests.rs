use std::os::fd::AsFd;

use super::*;
use rustix::pipe::{PipeFlags, pipe_with};

const CHOWN: u64 = 1;
const ADMIN: u64 = 1 << 21;

fn user() -> User {
    User { uid: 1000, gid: 100, groups: vec![100, 70], home: "/".to_owned() }
}

fn meant(user: &User) -> Meant<'_> {
    Meant { user, caps: CHOWN, no_new_privileges: true, filter: true, report: 5, groups: true }
}

fn identity() -> Identity {
    Identity {
        uids: [1000; 3],
        gids: [100; 3],
        groups: vec![70, 100],
        umask: 0o022,
        dumpable: false,
        cwd: Some(b"/srv".to_vec()),
        bounding: CHOWN,
        ambient: 0,
        held: CHOWN | ADMIN,
        open: vec![0, 1, 2, 5],
        directories: vec![],
        report_closes: true,
    }
}

fn confinement() -> Confinement {
    Confinement {
        effective: Some(CHOWN),
        permitted: Some(CHOWN),
        inheritable: Some(0),
        no_new_privileges: Some(true),
        seccomp: Some(2),
        dumpable: Some(false),
    }
}

#[test]
fn differences_of_the_identity_are_found() {
    let user = user();
    assert_eq!(compare_identity(&meant(&user), &identity()), Ok(()));
    for (found, expected) in [
        (
            Identity { uids: [1000, 0, 1000], ..identity() },
            "its user ids are [1000, 0, 1000] instead of 1000",
        ),
        (Identity { uids: [1000, 1000, 0], ..identity() }, "its user ids are"),
        (Identity { gids: [0, 100, 100], ..identity() }, "its group ids are [0, 100, 100] instead of 100"),
        (
            Identity { groups: vec![0, 70, 100], ..identity() },
            "its supplementary groups are [0, 70, 100] instead",
        ),
        (Identity { groups: vec![100], ..identity() }, "its supplementary groups are [100] instead"),
        (Identity { bounding: CHOWN | ADMIN, ..identity() }, "capabilities that it must not have: SYS_ADMIN"),
        (Identity { bounding: CHOWN | 1 << 60, ..identity() }, "capabilities that it must not have: 60"),
        (Identity { bounding: 0, ..identity() }, "missing from its bounding set: CHOWN"),
        (Identity { ambient: ADMIN, ..identity() }, "it has ambient capabilities: SYS_ADMIN"),
        (Identity { umask: 0, ..identity() }, "its umask is 000 instead of 022"),
        (Identity { dumpable: true, ..identity() }, "other processes could look into it"),
        (
            Identity { cwd: Some(b"(unreachable)/root".to_vec()), ..identity() },
            "working directory is outside its root",
        ),
        (Identity { cwd: None, ..identity() }, "working directory is gone"),
        (Identity { open: vec![0, 1, 2, 3, 5], ..identity() }, "descriptor 3 is left open"),
        (Identity { open: vec![0, 2, 5], ..identity() }, "descriptor 1 is closed"),
        (Identity { directories: vec![0], ..identity() }, "descriptor 0 is a directory"),
        (Identity { report_closes: false, ..identity() }, "descriptor 5 stays open in the program"),
    ] {
        let text = compare_identity(&meant(&user), &found).expect_err(expected).to_string();
        assert!(text.contains(expected), "{text:?} does not say {expected:?}");
    }
    let unset = Identity { groups: vec![65534], ..identity() };
    assert_eq!(compare_identity(&Meant { groups: false, ..meant(&user) }, &unset), Ok(()));
    // A process cannot give more capabilities than it has.
    assert_eq!(compare_identity(&meant(&user), &Identity { bounding: 0, held: 0, ..identity() }), Ok(()));
}

#[test]
fn differences_of_the_confinement_are_found() {
    let user = user();
    let held = CHOWN | ADMIN;
    assert_eq!(compare_confinement(&meant(&user), held, &confinement()), Ok(()));
    assert_eq!(compare_confinement(&meant(&user), held, &Confinement::default()), Ok(()));
    for (found, expected) in [
        (
            Confinement { effective: Some(held), ..confinement() },
            "effective capabilities are CHOWN, SYS_ADMIN instead of CHOWN",
        ),
        (
            Confinement { permitted: Some(held), ..confinement() },
            "its permitted capabilities are CHOWN, SYS_ADMIN",
        ),
        (
            Confinement { permitted: Some(0), ..confinement() },
            "its permitted capabilities are none instead of CHOWN",
        ),
        (
            Confinement { inheritable: Some(CHOWN), ..confinement() },
            "its inheritable capabilities are CHOWN instead of none",
        ),
        (Confinement { no_new_privileges: Some(false), ..confinement() }, "no_new_privs is not set"),
        (Confinement { seccomp: Some(0), ..confinement() }, "its system calls are not filtered"),
        (Confinement { dumpable: Some(true), ..confinement() }, "other processes could look into it"),
    ] {
        let text = compare_confinement(&meant(&user), held, &found).expect_err(expected).to_string();
        assert!(text.contains(expected), "{text:?} does not say {expected:?}");
    }
    let plain = Meant { no_new_privileges: false, filter: false, ..meant(&user) };
    let free = Confinement { no_new_privileges: Some(false), seccomp: Some(0), ..confinement() };
    assert_eq!(compare_confinement(&plain, held, &free), Ok(()));
}

/// Forks, lets the child change something, and returns the resulting error.
fn sabotaged(change: impl FnOnce()) -> String {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (profile, user) = own();
    // SAFETY: libc's fork leaves the child an allocator that works, whatever other threads were doing. The
    // child uses nothing else that has locks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        sys::keep_only(write.as_fd()).unwrap();
        sys::prctl(libc::PR_SET_DUMPABLE, 0).unwrap();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        rustix::process::chdir("/").unwrap();
        change();
        let checked = check_identity(&profile, &user, write.as_fd())
            .and_then(|before| check_confinement(&profile, &user, &before));
        let text = checked.map_or_else(|fault| fault.text, |()| "no difference".to_owned());
        let _ = rustix::io::write(&write, text.as_bytes());
        sys::exit_now(0)
    }
    assert!(pid > 0, "{}", io::Error::last_os_error());
    drop(write);
    let text = io::read_to_string(std::fs::File::from(read)).unwrap();
    sys::reap(pid, true);
    text
}

/// A profile and a user that match this process.
fn own() -> (Profile, User) {
    let sets = rustix::thread::capabilities(None).unwrap();
    let (bounding, _) = sys::capability_limits().unwrap();
    let (uids, gids) = sys::ids().unwrap();
    let groups = rustix::process::getgroups().unwrap();
    let profile = Profile {
        caps: crate::caps::CapSet(bounding | sets.permitted.bits()),
        no_new_privileges: false,
        apparmor: None,
        filter: None,
        env: Vec::new(),
        cwd: "/".to_owned(),
    };
    let groups = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    (profile, User { uid: uids[0], gid: gids[0], groups, home: String::new() })
}

/// Real differences, created in a separate process.
#[test]
fn real_differences_are_found_as_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    assert_eq!(sabotaged(|| {}), "no difference");
    let inherit = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.inheritable = rustix::thread::CapabilitySet::CHOWN;
        rustix::thread::set_capabilities(None, sets).unwrap();
    };
    let ambient = move || {
        inherit();
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, 0, 0, 0) };
    };
    let cases: [(fn(), &str); 6] = [
        // SAFETY: fresh descriptors that nobody owns, in a process that ends.
        (|| _ = unsafe { libc::dup2(1, 1000) }, "descriptor 1000 is left open"),
        // SAFETY: as above.
        (|| _ = unsafe { libc::close(0) }, "descriptor 0 is closed"),
        (|| _ = rustix::process::umask(rustix::fs::Mode::empty()), "its umask is 000"),
        (|| sys::prctl(libc::PR_SET_DUMPABLE, 1).unwrap(), "other processes could look into it"),
        (|| sys::set_ids(0, 0, &[4242]).unwrap(), "its supplementary groups are [4242]"),
        (|| sys::prctl(libc::PR_CAPBSET_DROP, 0).unwrap(), "missing from its bounding set: CHOWN"),
    ];
    for (change, expected) in cases {
        let text = sabotaged(change);
        assert!(text.contains(expected), "{text:?} does not say {expected:?}");
        assert!(text.starts_with("internal error: "), "{text}");
    }
    // A container that shares the volume can remove the directory at this moment.
    let removed = sabotaged(|| {
        let dir = std::ffi::CString::new(format!("/tmp/outrigger-gone-{}", std::process::id())).unwrap();
        rustix::fs::mkdir(&dir, rustix::fs::Mode::from_raw_mode(0o700)).unwrap();
        rustix::process::chdir(&dir).unwrap();
        rustix::fs::rmdir(&dir).unwrap();
    });
    assert!(
        removed.starts_with("refused to start the container: its working directory is gone"),
        "{removed}"
    );
    assert!(sabotaged(inherit).contains("its inheritable capabilities are CHOWN instead of none"));
    assert!(sabotaged(ambient).contains("it has ambient capabilities: CHOWN"));
}

#[test]
fn only_a_namespace_of_the_one_id_will_do() {
    let check = |uids: &str, gids: &str, groups: &str| {
        let read = |name: &str| match name {
            "uid_map" => Ok(uids.to_owned()),
            "gid_map" => Ok(gids.to_owned()),
            "setgroups" => Ok(groups.to_owned()),
            _ => Err(io::Error::other(name)),
        };
        check_one_id((1000, 100), read).map_err(|fault| fault.text)
    };
    let (uids, gids) = ("      1000          0          1\n", "       100          0          1\n");
    assert_eq!(check(uids, gids, "deny\n"), Ok(()));
    for (uids, gids, groups, expected) in [
        (
            "0 61234 1\n",
            gids,
            "deny\n",
            "uid_map of its user namespace is \"0 61234 1\" instead of \"1000 0 1\"",
        ),
        ("1000 0 1\n0 1 1\n", gids, "deny\n", "uid_map of"),
        ("1000 0 2\n", gids, "deny\n", "uid_map of"),
        (uids, "0 0 1\n", "deny\n", "gid_map of"),
        (uids, "", "deny\n", "gid_map of"),
        (uids, gids, "allow\n", "setgroups of"),
    ] {
        let found = check(uids, gids, groups).expect_err(expected);
        assert!(found.contains(expected), "{found}");
    }
}
