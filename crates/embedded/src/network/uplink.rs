//! Network access for the pods of a run without root.
//!
//! Only root can add interfaces to the machine's network. All pods of such a run are therefore connected by a
//! bridge in the run's own network namespace, not by one at the host. pasta or slirp4netns forwards what
//! leaves that namespace through ordinary sockets of the user. Without either program, pods only reach each
//! other.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use super::link::Links;
use crate::rootless::find_program;
use crate::sys;

/// The outgoing interface.
const INTERFACE: &str = "tap0";
/// Both programs use the same addresses, which are the defaults of slirp4netns.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
/// The user's own name server answers DNS queries to this address.
const NAMESERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// The path of the namespace for the programs, which get it as their standard input.
const NAMESPACE: &str = "/proc/self/fd/0";
/// How long to wait for the program to create its interface.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);
/// How many bytes from the end of the program's output are kept.
const WORDS_MAX: usize = 1024;

/// A network namespace that connects pods, and its uplink. Both exist as long as this value.
#[derive(Debug)]
pub(crate) struct Uplink {
    namespace: File,
    nameserver: Option<IpAddr>,
    watcher: Option<JoinHandle<()>>,
}

impl Drop for Uplink {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            // This closes the socket. The process at its other end then ends, with everything that it has
            // started.
            watcher.abort();
        }
    }
}

impl Uplink {
    /// Creates the namespace and starts a program that connects it. `guard` is the command of a process that
    /// ends the program when this process ends for any reason. What is missing is reported once.
    pub(crate) async fn open(guard: impl Fn() -> Command + Send + 'static) -> io::Result<Uplink> {
        let opened = tokio::task::spawn_blocking(move || {
            let namespace = make_namespace()?;
            let path = path_of(&namespace);
            let led = lead_out(&path, guard);
            io::Result::Ok((namespace, led))
        });
        let (namespace, led) = opened.await.unwrap_or_else(|e| Err(io::Error::other(e)))?;
        let mut uplink = Uplink { namespace, nameserver: None, watcher: None };
        match led {
            Ok((program, words)) => {
                uplink.nameserver = Some(NAMESERVER.into());
                words.set_nonblocking(true)?;
                uplink.watcher = Some(tokio::spawn(watch(program, tokio::net::UnixStream::from_std(words)?)));
            }
            Err(missing) => tracing::warn!(
                "pods can reach only each other: {missing}; `--network host` uses this machine's network"
            ),
        }
        Ok(uplink)
    }

    /// The path of the namespace. Any process of this user namespace can open it.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.namespace)
    }

    /// The name server of the pods.
    pub(crate) fn nameserver(&self) -> Option<IpAddr> {
        self.nameserver
    }
}

fn path_of(namespace: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd()))
}

/// Creates the namespace on a separate thread, which then ends.
fn make_namespace() -> io::Result<File> {
    let made = std::thread::spawn(|| {
        sys::unshare(libc::CLONE_NEWNET)?;
        Links::open(None)?.loopback_up()?;
        File::open("/proc/thread-self/ns/net")
    });
    made.join().unwrap_or_else(|_| Err(io::Error::other("making a network namespace panicked")))
}

/// Why no program connects the pods to the outside.
#[derive(Debug, thiserror::Error)]
enum NoUplink {
    #[error("neither pasta nor slirp4netns is installed (packages passt, slirp4netns)")]
    NotInstalled,
    #[error("{}", .0.iter().map(|(name, error)| format!("{name} failed ({error})")).collect::<Vec<_>>().join(", "))]
    Failed(Vec<(&'static str, io::Error)>),
}

/// Starts the first program that works. Returns its name, and the socket that ends it when it is closed.
fn lead_out(namespace: &Path, guard: impl Fn() -> Command) -> Result<(&'static str, UnixStream), NoUplink> {
    let mut failed = Vec::new();
    for (name, arguments) in [("pasta", pasta()), ("slirp4netns", slirp4netns())] {
        let Some(program) = find_program(name) else { continue };
        match start(guard(), &program, &arguments, namespace) {
            Ok(words) => return Ok((name, words)),
            Err(error) => failed.push((name, error)),
        }
    }
    Err(if failed.is_empty() { NoUplink::NotInstalled } else { NoUplink::Failed(failed) })
}

fn pasta() -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--foreground", "--quiet", "--ipv4-only", "--config-net", "--no-netns-quit"]
            .map(str::to_owned)
            .to_vec();
    // Neither the gateway nor any port leads to services on the machine's loopback.
    arguments.push("--no-map-gw".to_owned());
    for (option, value) in [
        ("--ns-ifname", INTERFACE.to_owned()),
        ("--address", ADDRESS.to_string()),
        ("--netmask", "24".to_owned()),
        ("--gateway", GATEWAY.to_string()),
        ("--dns-forward", NAMESERVER.to_string()),
        ("--tcp-ports", "none".to_owned()),
        ("--udp-ports", "none".to_owned()),
        ("--tcp-ns", "none".to_owned()),
        ("--udp-ns", "none".to_owned()),
        ("--netns", NAMESPACE.to_owned()),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    arguments
}

fn slirp4netns() -> Vec<String> {
    ["--configure", "--disable-host-loopback", "--netns-type=path", NAMESPACE, INTERFACE]
        .map(str::to_owned)
        .to_vec()
}

fn start(
    mut guard: Command,
    program: &Path,
    arguments: &[String],
    namespace: &Path,
) -> io::Result<UnixStream> {
    let (mut ours, theirs) = UnixStream::pair()?;
    guard.arg(namespace).arg(program).args(arguments).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    // The guard forks the process that stays, and ends.
    let status = guard.status()?;
    drop(guard);
    if !status.success() {
        return Err(io::Error::other("it cannot be started"));
    }
    let mut links = Links::open(Some(namespace))?;
    let deadline = Instant::now() + PATIENCE;
    ours.set_read_timeout(Some(LOOK))?;
    let mut words = Vec::new();
    loop {
        if links.routes()?.iter().any(|route| route.to.prefix() == 0) {
            ours.set_read_timeout(None)?;
            return Ok(ours);
        }
        let mut chunk = [0; WORDS_MAX];
        match ours.read(&mut chunk) {
            Ok(0) => return Err(io::Error::other(last_words(&words))),
            Ok(count) => words.extend_from_slice(&chunk[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("it takes longer than {} seconds", PATIENCE.as_secs())));
        }
    }
}

/// Reports if the program ends too early.
async fn watch(program: &'static str, mut words: tokio::net::UnixStream) {
    let mut kept = Vec::new();
    let mut chunk = [0; WORDS_MAX];
    while let Ok(count @ 1..) = words.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..count]);
        let excess = kept.len().saturating_sub(WORDS_MAX);
        kept.drain(..excess);
    }
    tracing::warn!("pods can now reach only each other: {program} exited ({})", last_words(&kept));
}

/// The last meaningful line. pasta adds a line about the system's log to each of its lines.
fn last_words(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let mut lines =
        said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.ends_with("to syslog"));
    let line: String =
        lines.next_back().unwrap_or("it says nothing").chars().filter(|c| !c.is_control()).collect();
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        assert_eq!(last_words(b""), "it says nothing");
        assert_eq!(last_words(b"one\nFailed to send 46 bytes to syslog\ntwo\x1b[1m\n\n"), "two[1m");
    }
}
