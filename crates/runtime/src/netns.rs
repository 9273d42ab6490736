//! Opens sockets inside a pod's network, for use from outside of it.
//!
//! A socket stays in the network namespace of the thread that created it. A short-lived thread therefore
//! enters the namespace, creates the socket and returns it. No other thread ever changes its namespace. This
//! costs some tens of microseconds.

use std::fs::File;
use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdTcpStream, UdpSocket as StdUdpSocket,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::oneshot;

use crate::RuntimeError;
use crate::errno::errno_text;

/// Connections over loopback succeed at once, unless nothing accepts them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Enough for a few system calls and for formatting an error.
const STACK_BYTES: usize = 128 * 1024;

/// Runs `f` in the given network namespace (an nsfs file; `None` is the caller's own) and returns its result.
///
/// Intended for creating sockets. `f` should not block, because the caller waits for it.
///
/// # Errors
/// The namespace cannot be opened or entered, or `f` itself failed.
pub fn socket_in<T: Send>(netns: Option<&Path>, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(path) = netns else {
        return f();
    };
    let namespace = open(path)?;
    thread::scope(|scope| {
        thread::Builder::new()
            .name("netns".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || {
                enter(&namespace, path)?;
                f()
            })?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread inside the network namespace panicked")))
    })
}

/// Runs `f` on a thread that stays in the network namespace at `path`. Everything that `f` does happens
/// there, including writes below /proc/sys/net and the commands that it starts.
pub fn inside<T: Send>(path: &Path, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = open(path)?;
    thread::scope(|scope| {
        scope
            .spawn(|| {
                enter(&namespace, path)?;
                f()
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread inside the network namespace panicked")))
    })
}

/// [`socket_in`] for async callers: does not block the calling worker.
pub async fn socket_in_async<T: Send + 'static>(
    netns: Option<&Path>,
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let Some(path) = netns else {
        return f();
    };
    let path = path.to_owned();
    let (answer, result) = oneshot::channel();
    thread::Builder::new().name("netns".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        let made = open(&path).and_then(|namespace| enter(&namespace, &path)).and_then(|()| f());
        // If the caller was dropped, dropping the value closes the socket.
        drop(answer.send(made));
    })?;
    result.await.unwrap_or_else(|_| Err(io::Error::other("the thread inside the network namespace panicked")))
}

/// Connects to a port of the loopback interface of a network namespace (`None` is the host's).
pub async fn connect_loopback(netns: Option<&Path>, port: u16) -> Result<TcpStream, RuntimeError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        match connect_tcp(netns, SocketAddr::new(ip, port), CONNECT_TIMEOUT).await {
            Ok(stream) => return Ok(stream),
            // The error of the first address counts: not every pod has the second.
            Err(error) if ip.is_ipv4() => last = error,
            Err(_) => {}
        }
    }
    Err(RuntimeError::Other(format!("cannot connect to port {port} of the pod: {}", errno_text(&last))))
}

/// Connects to `addr` as seen from inside the given network namespace (`None` is the host's).
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] after `timeout`; otherwise the error of opening the namespace or of
/// connecting.
pub async fn connect_tcp(netns: Option<&Path>, addr: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let connect = async {
        let fd = socket_in_async(netns, move || nonblocking_socket(addr, SocketType::STREAM)).await?;
        TcpSocket::from_std_stream(StdTcpStream::from(fd)).connect(addr).await
    };
    match tokio::time::timeout(timeout, connect).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("connecting to {addr} took longer than {timeout:?}"),
        )),
    }
}

/// A UDP socket inside the given network namespace, connected to `addr`.
pub async fn connect_udp(netns: Option<&Path>, addr: SocketAddr) -> io::Result<UdpSocket> {
    let fd = socket_in_async(netns, move || nonblocking_socket(addr, SocketType::DGRAM)).await?;
    let socket = UdpSocket::from_std(StdUdpSocket::from(fd))?;
    socket.connect(addr).await?;
    Ok(socket)
}

fn nonblocking_socket(addr: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

fn open(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|e| {
        io::Error::new(e.kind(), format!("cannot open network namespace {}: {e}", path.display()))
    })
}

fn enter(namespace: &File, path: &Path) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| {
        let e = io::Error::from(e);
        io::Error::new(e.kind(), format!("cannot enter network namespace {}: {e}", path.display()))
    })
}
