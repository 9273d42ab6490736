//! Tests of what ordinary users of the host can access, and of containers that leave files to break the
//! cleanup.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use outrigger_runtime::Runtime as _;

use outrigger_testkit::embedded::{DEADLINE, Pod, eventually};

outrigger_testkit::trials![
    ordinary_users_of_the_host_get_nowhere,
    the_shim_s_socket_is_its_owner_s,
    nested_directories_without_end_are_removed,
];

/// Does something as an unprivileged user of the host. Only this thread changes its user.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: raw calls change only the calling thread, which ends after this.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
            }
            act()
        });
        thread.join().expect("nobody")
    })
}

async fn ordinary_users_of_the_host_get_nowhere() {
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let state = base.path().join("state");
    // Earlier versions left directories with these modes.
    for dir in [state.clone(), state.join("pods"), state.join("images")] {
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let pod = Pod::in_state_dir(&state, |_| {}).await;
    let secret = pod.dir.join("volumes/secret/token");
    fs::create_dir_all(secret.parent().unwrap()).unwrap();
    fs::write(&secret, "s3cret").unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    let spec = pod.script("cp /bin/busybox /evil; chmod 4755 /evil; echo made; sleep 100");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "made").await;
    let evil = pod.layer_dir(&id.0).join("upper/evil");
    let mode = fs::metadata(&evil).expect("root sees it").permissions().mode();
    assert_eq!(mode & 0o7777, 0o4755, "it is there and would make anybody root");
    as_nobody(|| {
        // The user can access the directory above, so the check is meaningful.
        assert!(fs::read_dir(base.path()).is_ok());
        let run = Command::new(&evil).arg("id").output();
        assert!(run.is_err(), "{run:?}");
        for path in [&secret, &log, &evil, &pod.dir.join("sandbox.json")] {
            assert!(fs::File::open(path).is_err(), "{} can be read", path.display());
        }
        for dir in [&state, &state.join("pods"), &state.join("images"), &pod.dir] {
            assert!(fs::read_dir(dir).is_err(), "{} can be listed", dir.display());
        }
    });
    // Each of them is private, not only the first one on the path.
    let (container, layer) = (pod.container_dir(&id.0), pod.layer_dir(&id.0));
    let parents = [&container, &layer].map(|dir| dir.parent().unwrap().to_owned());
    let mut own =
        vec![state.clone(), state.join("pods"), state.join("images"), pod.dir.clone(), container, layer];
    own.extend(parents);
    for dir in own {
        let mode = fs::metadata(&dir).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "{} has mode {mode:o}", dir.display());
    }
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    fs::remove_dir_all(pod.dir.join("volumes")).unwrap();
    pod.finish().await;
}

/// The shim's first message to a new client; empty if it disconnects.
fn greeting(socket: &Path) -> Result<usize, std::io::Error> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.read(&mut [0; 64])
}

async fn the_shim_s_socket_is_its_owner_s() {
    let pod = Pod::new().await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let dir = pod.container_dir(&id.0);
    let socket = dir.join("sock");
    eventually("socket", || socket.exists()).await;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(greeting(&socket).unwrap() > 0, "its owner is told how far the container is");
    // With an open descriptor, the parent directories do not matter.
    let held = fs::File::open(&dir).unwrap();
    let short =
        std::path::PathBuf::from(format!("/proc/self/fd/{}/sock", std::os::fd::AsRawFd::as_raw_fd(&held)));
    assert!(as_nobody(|| greeting(&short)).is_err(), "the mode keeps others out");
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    for dir in dir.ancestors().take_while(|dir| dir.starts_with(pod.dir.parent().unwrap().parent().unwrap()))
    {
        fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let heard = as_nobody(|| greeting(&socket));
    assert!(!matches!(heard, Ok(1..)), "and if it does not, the shim hangs up: {heard:?}");
    assert!(greeting(&socket).unwrap() > 0, "the owner still is served");
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    pod.finish().await;
}

/// 30,000 nested directories once overflowed the stack during removal.
async fn nested_directories_without_end_are_removed() {
    // In memory, because some disks take milliseconds to remove a directory.
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    let pod = Pod::in_state_dir(state.path(), |_| {}).await;
    let volume = pod.scratch("volume");
    // No path can be that long, so it is built from pieces. Each is moved to the bottom of the next.
    let nest = "p=$(printf 'd/%.0s' $(seq 1000)); mkdir -p a/$p; i=0
        while [ $i -lt 30 ]; do mkdir -p b/$p && mv a b/$p && mv b a || exit 1; i=$((i+1)); done";
    let mut spec = pod.script(&format!("cd / && {nest}; cd /volume && {nest}; echo nested"));
    spec.mounts.push(outrigger_runtime::Mount {
        source: volume.clone(),
        target: "/volume".into(),
        read_only: false,
        propagation: outrigger_runtime::Propagation::Private,
    });
    let id = spec.id.clone();
    assert_eq!(pod.output(spec).await, "nested\n");
    pod.runtime.remove_container(&id).await.unwrap();
    outrigger_runtime::tree::remove(&volume).unwrap();
    pod.finish().await;
}
