//! System calls that neither std nor rustix has in the form needed here.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

pub(crate) use outrigger_runtime::errno::errno_text;
use outrigger_runtime::rootless;
use rustix::mount::{OpenTreeFlags, open_tree};

/// The result of [`clone3`].
pub(crate) enum Cloned {
    /// This process is the child.
    Child,
    /// This process is the parent.
    Parent {
        /// The child's pid, as this process sees it.
        pid: i32,
        /// A handle that never refers to another process.
        pidfd: OwnedFd,
    },
}

/// Forks with new namespaces, and into a cgroup of the unified hierarchy if one is given.
///
/// The caller must be single-threaded, because the child continues to allocate memory and to use std.
pub(crate) fn clone3(namespaces: i32, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    /// `CLONE_INTO_CGROUP`, which does not fit the `c_int` of libc's constants.
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: namespaces as u64 | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: the arguments live until the call returns. Without CLONE_VM, the child gets its own copy of
    // everything. The caller is single-threaded, so no lock can be held by a thread that the child does not
    // have.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        // SAFETY: the kernel has just stored a fresh descriptor that nobody else owns.
        pid => Ok(Cloned::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// Forks a process into new namespaces. It only keeps them alive until it is killed or the calling thread
/// ends. The caller may have other threads.
pub(crate) fn hold_namespaces(namespaces: i32) -> io::Result<(i32, OwnedFd)> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set before it is read, and pthread_sigmask initialises the set that
    // it returns.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        // A signal for this process must not run its handlers in the other process, which has the same
        // descriptors.
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: plain system call.
    let parent = unsafe { libc::getpid() };
    let cloned = clone3(namespaces, None);
    if let Ok(Cloned::Child) = cloned {
        // SAFETY: plain system calls, which allocate nothing. This matters because another thread may have
        // held the allocator's lock.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            // If the parent ended before the call, there is no signal.
            while libc::getppid() == parent {
                libc::pause();
            }
            libc::_exit(0);
        }
    }
    // SAFETY: the mask was stored by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    match cloned? {
        Cloned::Parent { pid, pidfd } => Ok((pid, pidfd)),
        Cloned::Child => exit_now(1),
    }
}

/// The pid of a process that another process forked, in shared memory. No system call is needed to pass it,
/// because a filter might refuse one by then.
pub(crate) struct PidSlot(std::ptr::NonNull<AtomicI32>);

impl PidSlot {
    /// Creates an empty slot. Must be called before the fork of the process that fills it.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping that nothing else refers to. Its pages are filled with zeros.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<AtomicI32>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        match std::ptr::NonNull::new(page.cast::<AtomicI32>()) {
            Some(page) if page.as_ptr().cast() != libc::MAP_FAILED => Ok(PidSlot(page)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The pid, if the process exists.
    pub(crate) fn get(&self) -> Option<i32> {
        // SAFETY: the mapping lives as long as this value, and is only ever used as an atomic number.
        let pid = unsafe { self.0.as_ref() }.load(Ordering::Acquire);
        (pid > 0).then_some(pid)
    }
}

impl Drop for PidSlot {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<AtomicI32>()) };
    }
}

/// Flags of [`fork_sibling`].
pub(crate) const SIBLING_FLAGS: i32 = libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;

/// Forks a child of the caller's parent, in the pid namespace of the caller's children. Stores the child's
/// pid, as the caller sees it, in `slot`. Returns whether this is the child.
///
/// The caller must be single-threaded, because the child continues to allocate memory and to use std.
pub(crate) fn fork_sibling(slot: &PidSlot) -> io::Result<bool> {
    // This does not use clone3, because filters cannot read its arguments and therefore refuse it.
    // SAFETY: without CLONE_VM the child has a copy of everything, including its stack. The slot outlives the
    // call. The first three arguments are the same on every architecture.
    let pid = unsafe { libc::syscall(libc::SYS_clone, SIBLING_FLAGS, 0, slot.0.as_ptr(), 0, 0) };
    check(pid as i32)?;
    Ok(pid == 0)
}

/// Does something as another user. Only the calling thread changes its user.
pub(crate) fn as_user(uid: u32, task: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // This uses the system call, because libc's function changes the user of all threads.
    let set = |uid: u32| {
        // SAFETY: plain system call; minus one keeps the other ids.
        check(unsafe { libc::syscall(libc::SYS_setresuid, -1_i32, uid, -1_i32) } as i32)
    };
    set(uid)?;
    let result = task();
    // This also restores the capabilities.
    set(0)?;
    result
}

/// Replaces the inherited session keyring with a new, private one.
pub(crate) fn join_new_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: no name is passed, so nothing is read.
    let result = unsafe {
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
    match check(if result < 0 { -1 } else { 0 }) {
        // A kernel without keyrings has none to leave.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result,
    }
}

/// Moves the calling thread into existing namespaces.
pub(crate) fn setns(fd: BorrowedFd<'_>, kinds: i32) -> io::Result<()> {
    // SAFETY: plain system call on a descriptor that the caller owns.
    check(unsafe { libc::setns(fd.as_raw_fd(), kinds) })
}

/// Moves the calling thread into new namespaces.
pub(crate) fn unshare(kinds: i32) -> io::Result<()> {
    // SAFETY: callers pass only namespace flags (and CLONE_FS), which no other thread can observe.
    check(unsafe { libc::unshare(kinds) })
}

/// Whether a namespace belongs to the caller's user namespace, so that its root has privileges over it.
pub(crate) fn owns_namespace(namespace: BorrowedFd<'_>) -> bool {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: the request takes no argument. It returns a fresh descriptor, or -1 for a namespace that
    // belongs to others.
    unsafe {
        let fd = libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _);
        fd >= 0 && {
            drop(OwnedFd::from_raw_fd(fd));
            true
        }
    }
}

/// The changes to a mount, for [`mount_setattr`].
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct MountAttr {
    /// The `MOUNT_ATTR_*` flags to set.
    pub(crate) set: u64,
    /// The `MOUNT_ATTR_*` flags to clear.
    pub(crate) clear: u64,
    /// `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED` or 0.
    pub(crate) propagation: u64,
    /// The user namespace of an id-mapped mount.
    pub(crate) userns_fd: u64,
}

/// The mount is read-only.
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 0x1;
/// Device nodes cannot be opened.
pub(crate) const MOUNT_ATTR_NODEV: u64 = 0x4;
/// The ids are mapped by a user namespace.
pub(crate) const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

/// Programs do not get the user of their set-user-id bit.
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 0x2;
/// Programs cannot be executed.
pub(crate) const MOUNT_ATTR_NOEXEC: u64 = 0x8;

/// Changes a mount that is open as `mount`, and all mounts below it if `recursive`.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, recursive: bool, attr: MountAttr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a NUL-terminated constant and the structure lives until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    check(result as i32)
}

/// A detached copy of the mount at `source`, with the mounts below it if `recursive`.
pub(crate) fn clone_mount(source: &Path, recursive: bool) -> io::Result<OwnedFd> {
    Ok(open_tree(rustix::fs::CWD, source, clone_flags(recursive))?)
}

/// Like [`clone_mount`], for an open file or directory.
pub(crate) fn clone_mount_fd(source: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(open_tree(source, "", clone_flags(false) | OpenTreeFlags::AT_EMPTY_PATH)?)
}

fn clone_flags(recursive: bool) -> OpenTreeFlags {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive { flags | OpenTreeFlags::AT_RECURSIVE } else { flags }
}

/// Closes all descriptors except the standard ones and `kept`, which an exec closes.
///
/// For a process that no longer uses the others. The destructors of their owners must not run.
pub(crate) fn keep_only(kept: BorrowedFd<'_>) -> io::Result<()> {
    let number = kept.as_raw_fd() as u32;
    let close = |first: u32, last: u32, flags: libc::c_uint| -> io::Result<()> {
        if first > last {
            return Ok(());
        }
        // SAFETY: callers end or execute another program, without returning to the owners of these
        // descriptors.
        check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } as i32)
    };
    close(3, number.saturating_sub(1), 0)?;
    close(number.max(2) + 1, u32::MAX, 0)?;
    close(number, number, libc::CLOSE_RANGE_CLOEXEC as libc::c_uint)
}

/// Closes all descriptors from `first` on.
///
/// For a process that has just started, or that runs forever and uses none of them. The destructors of their
/// owners must not run.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: callers have no owners of these descriptors yet, or never return to them.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } as i32)
}

/// Closes all descriptors from `first` on, except the kept ones.
///
/// For a process that no longer uses them, and ends without running the destructors of their owners.
pub(crate) fn close_all_but(first: RawFd, mut kept: Vec<RawFd>) -> io::Result<()> {
    kept.sort_unstable();
    let mut next = first;
    for fd in kept {
        if fd > next {
            // SAFETY: the only caller uses no other descriptors than the kept ones.
            check(unsafe { libc::syscall(libc::SYS_close_range, next, fd - 1, 0) } as i32)?;
        }
        next = next.max(fd + 1);
    }
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_close_range, next, u32::MAX, 0) } as i32)
}

/// A descriptor that becomes readable when one of `signals` is pending. The signals are blocked for the
/// process.
pub(crate) fn signalfd(signals: &[i32]) -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before it is read; signalfd returns a fresh descriptor.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(fd)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Blocks `signals` and waits until one of them is pending.
pub(crate) fn wait_signal(signals: &[i32]) -> i32 {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut signal = 0;
    // SAFETY: sigemptyset initialises the set before it is read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::sigwait(&set, &mut signal);
    }
    signal
}

/// Resets every signal to its default action and unblocks all, as a new program expects.
pub(crate) fn reset_signals() {
    // The kernel's format is handler, flags, restorer, mask. All zero means the default action.
    let default = [0_u64; 4];
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action installs no handler. The system call is used because libc reserves the
        // first real-time signals and would leave them ignored. The kernel refuses KILL and STOP, which is
        // fine.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                8_usize,
            )
        };
    }
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before sigprocmask reads it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Ignores a signal.
pub(crate) fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN installs no handler of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Undoes [`ignore_signal`].
pub(crate) fn default_signal(signal: i32) {
    // SAFETY: SIG_DFL installs no handler of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// The addresses of this process's arguments, set when [`replace_last_arguments`] has found them. Forked
/// processes inherit them.
static ARGUMENTS: OnceLock<(usize, usize)> = OnceLock::new();

/// Overwrites the last arguments of this process, as others see them. They have `room` bytes, including their
/// terminating zeros.
///
/// Must be called from the only thread. `room` must be exact, because the bytes before it are arguments too.
pub(crate) fn replace_last_arguments(room: usize, with: &[u8]) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 48 and 49. The name, field 2, may contain anything.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(45);
    let mut address = || fields.next().and_then(|field| field.parse::<usize>().ok());
    let (Some(start), Some(end)) = (address(), address()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if start == 0 || end.saturating_sub(start) < room || with.len() >= room {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let _ = ARGUMENTS.set((start, end));
    // SAFETY: as in `hide_arguments`, for the end of the same memory.
    let area = unsafe { std::slice::from_raw_parts_mut((end - room) as *mut u8, room) };
    area[..with.len()].copy_from_slice(with);
    area[with.len()..].fill(0);
    Ok(())
}

/// Hides the arguments of this process from others. Must be called from the only thread.
pub(crate) fn hide_arguments() {
    let Some(&(start, end)) = ARGUMENTS.get() else { return };
    // SAFETY: the kernel has put the arguments there, in writable memory of this process. std copies the
    // arguments that it returns, so nothing refers to this memory, and there is no other thread.
    unsafe { std::slice::from_raw_parts_mut(start as *mut u8, end - start) }.fill(0);
}

/// How a child ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reaped {
    /// The pid of the child.
    pub(crate) pid: i32,
    /// The exit code; 128 + signal if a signal ended it.
    pub(crate) code: i32,
    /// The signal, if one ended it.
    pub(crate) signal: Option<i32>,
}

/// Reaps one ended child, if there is one. A `pid` of -1 means any child. Blocks only if requested.
pub(crate) fn reap(pid: i32, block: bool) -> Option<Reaped> {
    loop {
        let mut status = 0;
        // SAFETY: status lives until the call returns.
        let got = unsafe { libc::waitpid(pid, &mut status, if block { 0 } else { libc::WNOHANG }) };
        if got == -1 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        if got <= 0 {
            return None;
        }
        if libc::WIFEXITED(status) {
            return Some(Reaped { pid: got, code: libc::WEXITSTATUS(status), signal: None });
        }
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            return Some(Reaped { pid: got, code: 128 + signal, signal: Some(signal) });
        }
    }
}

/// Replaces this process. Returns only if that fails.
pub(crate) fn execve(program: &CString, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both lists are NULL-terminated and point to strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process immediately, without running any code of the process that it was forked from.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// `prctl` with a number as its argument.
pub(crate) fn prctl(option: i32, value: u64) -> io::Result<()> {
    // SAFETY: callers use options whose arguments are plain numbers.
    check(unsafe { libc::prctl(option, value as libc::c_ulong, 0, 0, 0) })
}

/// `prctl` that returns a number.
pub(crate) fn prctl_get(option: i32) -> io::Result<i32> {
    // SAFETY: callers use options that take no argument.
    let value = unsafe { libc::prctl(option, 0, 0, 0, 0) };
    check(value).map(|()| value)
}

/// The bounding and the ambient set of capabilities.
pub(crate) fn capability_limits() -> io::Result<(u64, u64)> {
    let (mut bounding, mut ambient) = (0, 0);
    for number in 0..64_u64 {
        // SAFETY: both options take plain numbers.
        let (bound, is_ambient) = unsafe {
            let is_set = libc::PR_CAP_AMBIENT_IS_SET;
            match libc::prctl(libc::PR_CAPBSET_READ, number, 0, 0, 0) {
                -1 => (-1, 0),
                bound => (bound, libc::prctl(libc::PR_CAP_AMBIENT, is_set, number, 0, 0)),
            }
        };
        match (bound, is_ambient) {
            // The kernel has no capability with this number or a higher one.
            (-1, _) if number > 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) => break,
            (-1, _) | (_, -1) => return Err(io::Error::last_os_error()),
            (bound, is_ambient) => {
                bounding |= u64::from(bound == 1) << number;
                ambient |= u64::from(is_ambient == 1) << number;
            }
        }
    }
    Ok((bounding, ambient))
}

/// The real, effective and saved ids of this process, for users and groups.
pub(crate) fn ids() -> io::Result<([u32; 3], [u32; 3])> {
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let ([ruid, euid, suid], [rgid, egid, sgid]) = (&mut uids, &mut gids);
    // SAFETY: the numbers live until the calls return.
    unsafe {
        check(libc::getresuid(ruid, euid, suid))?;
        check(libc::getresgid(rgid, egid, sgid))?;
    }
    Ok((uids, gids))
}

/// The open descriptors below `limit`, found without a /proc that lists them.
pub(crate) fn open_descriptors(limit: usize) -> io::Result<Vec<i32>> {
    // One call accepts as many descriptors as the process may open.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let chunk = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(limit).clamp(1, 1024);
    let mut open = Vec::new();
    for first in (0..limit).step_by(chunk) {
        let last = limit.min(first + chunk);
        let mut asked: Vec<libc::pollfd> =
            (first..last).map(|fd| libc::pollfd { fd: fd as i32, events: 0, revents: 0 }).collect();
        // SAFETY: the list lives until the call returns, which happens at once.
        check(unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 0) })?;
        open.extend(asked.iter().filter(|fd| fd.revents & libc::POLLNVAL == 0).map(|fd| fd.fd));
    }
    Ok(open)
}

/// Whether an exec closes a descriptor.
pub(crate) fn closes_on_exec(fd: RawFd) -> io::Result<bool> {
    // SAFETY: plain system call on a number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    check(flags).map(|()| flags & libc::FD_CLOEXEC != 0)
}

/// Whether a descriptor refers to a directory.
pub(crate) fn is_directory(fd: RawFd) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the structure when it returns 0.
    unsafe {
        libc::fstat(fd, stat.as_mut_ptr()) == 0 && stat.assume_init().st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// Loads a classic BPF program as a seccomp filter, without changing `no_new_privs`.
pub(crate) fn seccomp_load(program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program before the call returns and never writes to it.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    check(result as i32)
}

/// Sets the real, effective and saved ids and the groups of the only thread, in an order that keeps the
/// privilege to do so.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the slice outlives the call. Raw calls are correct here because the process is single-threaded.
    unsafe {
        match check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as i32) {
            // With only one mapped id, groups cannot be changed.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && rootless::one_id_only() => {}
            result => result?,
        }
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid) as i32)?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid) as i32)
    }
}

/// Becomes id 0 of the user namespace into which this process has just been mapped.
pub(crate) fn become_root() -> io::Result<()> {
    // SAFETY: plain system calls. Raw calls are correct here because the process is single-threaded.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, 0, 0, 0) as i32)?;
        check(libc::syscall(libc::SYS_setresuid, 0, 0, 0) as i32)
    }
}

/// Creates a character or block device node, or a whiteout (0, 0).
pub(crate) fn mknodat(dir: BorrowedFd<'_>, name: &Path, mode: u32, device: u64) -> io::Result<()> {
    let name = cstring(name)?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    check(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, device) })
}

/// Makes `fd` the controlling terminal of the session that this process leads.
pub(crate) fn set_controlling_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY, 0) })
}

/// A path as a C string.
pub(crate) fn cstring(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The start time of a process in clock ticks after boot. Together with the pid, it identifies a process
/// permanently. `None` if the process has ended.
pub(crate) fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain spaces and brackets, so the fields start after the last bracket.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The time of day in nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
