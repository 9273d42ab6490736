//! Numbers of signals by name, and sending of signals to process groups and through pidfds.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

const NAMES: [(&str, i32); 31] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

/// The number of a signal given as `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3` or `RTMAX-1`.
pub fn number(name: &str) -> Option<i32> {
    let (first, last) = (34, libc::SIGRTMAX());
    if let Ok(number) = name.parse::<i32>() {
        return (1..=last).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    // This is SIGRTMIN of the container's libc, which is 34 with glibc. Our own libc may reserve other
    // numbers.
    let real_time = if let Some(rest) = bare.strip_prefix("RTMIN") {
        Some(first + if rest.is_empty() { 0 } else { rest.strip_prefix('+')?.parse::<i32>().ok()? })
    } else if let Some(rest) = bare.strip_prefix("RTMAX") {
        Some(last - if rest.is_empty() { 0 } else { rest.strip_prefix('-')?.parse::<i32>().ok()? })
    } else {
        None
    };
    match real_time {
        Some(number) => (first..=last).contains(&number).then_some(number),
        None => NAMES.iter().find(|(known, _)| *known == bare).map(|(_, number)| *number),
    }
}

/// Sends a signal to the process group that a process leads. A missing group is not an error.
pub fn kill_group(leader: i32, signal: i32) -> io::Result<()> {
    if leader <= 1 {
        // To the kernel, these numbers mean the caller's own group and all processes.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: plain system call.
    match done(unsafe { libc::kill(-leader, signal) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

/// Sends a signal through a pidfd. Fails if the process has been reaped.
pub fn pidfd_kill(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: no siginfo is passed, flags are zero.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::c_void>(),
            0,
        )
    };
    done(result as i32)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_understood() {
        for (name, expected) in [
            ("SIGTERM", Some(15)),
            ("TERM", Some(15)),
            ("term", Some(15)),
            ("15", Some(15)),
            ("SIGKILL", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMIN", Some(34)),
            ("SIGRTMAX-1", Some(63)),
            ("SIGRTMIN+31", None),
            ("0", None),
            ("65", None),
            ("SIGFOO", None),
            ("", None),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
    }
}
