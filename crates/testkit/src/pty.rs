//! Runs `outrigger` on a real pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::termios::{Winsize, tcsetwinsize};

use crate::screen::Screen;

/// How long a run may take. This is longer than any run takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A run on a terminal.
pub struct Run {
    child: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    pub screen: Screen,
    /// Everything that was written, for messages.
    pub written: Vec<u8>,
    state: Option<tempfile::TempDir>,
}

impl Drop for Run {
    /// Stops the run, so that a failed test leaves nothing running.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(rustix::process::Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Run {
    /// Starts `outrigger run` of a manifest on a new terminal.
    pub fn start(manifest: &Path, size: (u16, u16), args: &[&str], env: &[(&str, &str)]) -> Run {
        let state = tempfile::tempdir().expect("a directory for state");
        let mut command = Command::new(crate::binary());
        command.args(args).arg("run").arg("--state-dir").arg(state.path()).arg(manifest);
        command
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .env("LANG", "C.UTF-8")
            .envs(env.iter().copied());
        let mut run = Run::spawn(command, size);
        run.state = Some(state);
        run
    }

    /// Starts a command on a new terminal.
    pub fn spawn(mut command: Command, size: (u16, u16)) -> Run {
        let (master, slave) = terminal();
        resize(&master, size);
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: all are system calls that touch no memory of the parent and may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The tests may run under nohup, which ignores SIGHUP. A program on its own terminal does
                // not.
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            })
        };
        let child = command.spawn().expect("outrigger starts");
        // Only the run keeps the terminal open now, so reading ends when the run ends.
        drop((command, slave));
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().expect("a descriptor");
        let (tx, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if tx.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let screen = Screen::new(size.0.into(), size.1.into());
        Run { child, keyboard, output, screen, written: Vec::new(), state: None }
    }

    /// Reads until the screen matches.
    pub fn until(&mut self, what: &str, is_there: impl Fn(&Screen) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_there(&self.screen) || self.screen.held {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => {
                    self.written.extend_from_slice(&bytes);
                    self.screen.feed(&bytes);
                }
                Err(e) => panic!("no {what} ({e}) on the screen:\n{}", self.screen.text()),
            }
        }
    }

    /// Types keys.
    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("a keyboard");
    }

    /// Sends a signal to the process itself.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the run is there");
    }

    /// Resizes the window.
    pub fn resize(&mut self, size: (u16, u16)) {
        resize(&self.keyboard, size);
        self.screen.resize(size.0.into(), size.1.into());
    }

    /// Another descriptor of the terminal, for use outside the run.
    pub fn terminal(&self) -> OwnedFd {
        self.keyboard.try_clone().expect("a descriptor").into()
    }

    /// Takes the state directory of the run.
    pub fn take_state(&mut self) -> tempfile::TempDir {
        self.state.take().expect("nobody has taken it")
    }

    /// Reads the output to its end. Returns the exit status, the screen and the output.
    pub fn end(mut self) -> (ExitStatus, Screen, String) {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => {
                    self.written.extend_from_slice(&bytes);
                    self.screen.feed(&bytes);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no end; the screen:\n{}", self.screen.text());
                }
            }
        }
        let status = self.child.wait().expect("the run has ended");
        let written = String::from_utf8_lossy(&self.written).into_owned();
        let screen = std::mem::replace(&mut self.screen, Screen::new(1, 1));
        (status, screen, written)
    }
}

fn resize(terminal: impl std::os::fd::AsFd, (columns, rows): (u16, u16)) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("the terminal takes a size");
}

/// A new terminal.
pub fn fresh() -> OwnedFd {
    terminal().0
}

/// Both ends of a new pseudo-terminal.
fn terminal() -> (OwnedFd, OwnedFd) {
    let master = File::options().read(true).write(true).open("/dev/ptmx").expect("a pseudo-terminal");
    let locked: libc::c_int = 0;
    // SAFETY: the request reads one int, which outlives the call.
    let unlocked = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &locked) };
    assert_eq!(unlocked, 0, "{}", std::io::Error::last_os_error());
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the request takes its flags by value and returns a new descriptor.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    assert!(slave >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    (master.into(), unsafe { OwnedFd::from_raw_fd(slave) })
}
