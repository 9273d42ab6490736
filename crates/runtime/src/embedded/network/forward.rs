//! Published ports: connections to a port of the host are forwarded to a port of the pod.
//!
//! Done in user space with sockets created inside the pod's network, so it needs no packet filter, works for
//! pods that have loopback only, and reaches programs that listen on loopback only.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::enter::{connect_tcp, connect_udp};
use crate::{NetworkMode, PublishedPort, RuntimeError};

/// Maximum connections per port; more wait in the listen queue.
const CONNECTIONS_MAX: usize = 1024;
/// Maximum peers per UDP port; datagrams of more are dropped.
const PEERS_MAX: usize = 1024;
/// A UDP peer is forgotten after this long without a datagram either way.
const PEER_IDLE: Duration = Duration::from_secs(90);
/// Datagrams that wait for a peer's socket.
const QUEUE_MAX: usize = 64;
const DATAGRAM_BYTES: usize = 64 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after an error of `accept` that is not about one connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a port may still be in use when it is opened. A closed port stays in use while a process that is
/// about to be started has a copy of the socket, between its fork and its exec.
const CLOSING_MAX: Duration = Duration::from_millis(200);
const CLOSING_PAUSE: Duration = Duration::from_millis(10);

/// The published ports of one pod. Dropping it closes them and every connection through them.
#[derive(Debug, Default)]
pub struct Forwarders {
    addresses: Vec<SocketAddr>,
    tasks: JoinSet<()>,
}

impl Forwarders {
    /// Opens the ports at the host and forwards them into the network namespace at `netns` (`None`: the host's own), to
    /// the pod's addresses and then to its loopback, whichever answers first.
    ///
    /// # Errors
    /// A port cannot be opened, usually because it is in use. Then none stays open.
    pub async fn start(
        netns: Option<&Path>,
        pod_ips: &[IpAddr],
        ports: &[PublishedPort],
    ) -> Result<Forwarders, RuntimeError> {
        let mut forwarders = Forwarders::default();
        for port in ports {
            if netns.is_none() && is_its_own(port) {
                continue;
            }
            let ips = pod_ips.iter().copied().filter(|ip| !ip.is_loopback());
            let target = Arc::new(Target {
                netns: netns.map(Path::to_owned),
                addresses: ips
                    .chain([IpAddr::V4(Ipv4Addr::LOCALHOST)])
                    .map(|ip| SocketAddr::new(ip, port.pod_port))
                    .collect(),
            });
            let opened = forwarders.open(port, target).await;
            forwarders.addresses.push(opened.map_err(|e| refused(port, e))?);
        }
        Ok(forwarders)
    }

    /// Checks whether the ports could be opened now.
    pub(crate) fn check(network: NetworkMode, ports: &[PublishedPort]) -> Result<(), RuntimeError> {
        for port in ports.iter().filter(|port| network != NetworkMode::Host || !is_its_own(port)) {
            let opened = match port.udp {
                true => std::net::UdpSocket::bind(port.host).map(drop),
                false => std::net::TcpListener::bind(port.host).map(drop),
            };
            opened.map_err(|e| refused(port, e))?;
        }
        Ok(())
    }

    /// The addresses of the open ports, in the given order.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    async fn open(&mut self, port: &PublishedPort, target: Arc<Target>) -> io::Result<SocketAddr> {
        if port.udp {
            let socket = once_closed(|| UdpSocket::bind(port.host)).await?;
            let address = socket.local_addr()?;
            self.tasks.spawn(forward_udp(Arc::new(socket), target));
            return Ok(address);
        }
        let listener = once_closed(|| TcpListener::bind(port.host)).await?;
        let address = listener.local_addr()?;
        self.tasks.spawn(forward_tcp(listener, target));
        Ok(address)
    }
}

/// Opens a port that may have been closed a moment ago.
async fn once_closed<T, F: Future<Output = io::Result<T>>>(open: impl Fn() -> F) -> io::Result<T> {
    let deadline = tokio::time::Instant::now() + CLOSING_MAX;
    loop {
        match open().await {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(CLOSING_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// On the host network the program itself listens there.
fn is_its_own(port: &PublishedPort) -> bool {
    port.host.port() == port.pod_port
}

fn refused(port: &PublishedPort, error: io::Error) -> RuntimeError {
    let (number, protocol) = (port.host.port(), if port.udp { "udp" } else { "tcp" });
    let ip = port.host.ip();
    let detail = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "host port {number} is already in use: {protocol} {ip} cannot be opened for pod port {}",
            port.pod_port
        ),
        io::ErrorKind::PermissionDenied => {
            format!(
                "host port {number} needs more privileges: {protocol} {ip}: {error}; publish a port from 1024 up"
            )
        }
        _ => format!("host port {number} cannot be opened: {protocol} {ip}: {error}"),
    };
    RuntimeError::HostPort { port: number, detail, source: error }
}

/// A port of the pod.
#[derive(Debug)]
struct Target {
    netns: Option<PathBuf>,
    addresses: Vec<SocketAddr>,
}

impl Target {
    async fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in &self.addresses {
            match connect_tcp(self.netns.as_deref(), *address, CONNECT_TIMEOUT).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

async fn forward_tcp(listener: TcpListener, target: Arc<Target>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        // Finished connections are removed when new ones come.
        while connections.try_join_next().is_some() {}
        let mut client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(e) => {
                tracing::debug!(error = %e, "accepting a connection for a published port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let target = Arc::clone(&target);
        connections.spawn(async move {
            let _slot = slot;
            match target.connect().await {
                Ok(mut pod) => {
                    // Small messages must not wait for more data; a failure only costs time.
                    let _ = client.set_nodelay(true).and(pod.set_nodelay(true));
                    // Either end may go away at any time; there is nobody to report it to.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut pod).await;
                }
                Err(e) => {
                    tracing::debug!(error = %e, target = ?target.addresses, "published port not answered in the pod");
                    // The client sees a reset, as from a port without a listener, not an orderly end.
                    let _ = client.set_zero_linger();
                }
            }
        });
    }
}

type Peers = Arc<Mutex<HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>>>;

async fn forward_udp(socket: Arc<UdpSocket>, target: Arc<Target>) {
    let peers = Peers::default();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        while tasks.try_join_next().is_some() {}
        let (len, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(e) => {
                // Errors of datagrams sent earlier are reported here; the socket itself is fine.
                tracing::debug!(error = %e, "receiving for a published port");
                continue;
            }
        };
        let queue = {
            let mut known = peers.lock().unwrap_or_else(PoisonError::into_inner);
            match known.get(&peer) {
                Some(queue) => queue.clone(),
                None if known.len() >= PEERS_MAX => continue,
                None => {
                    let (queue, datagrams) = mpsc::channel(QUEUE_MAX);
                    known.insert(peer, queue.clone());
                    let (socket, target) = (Arc::clone(&socket), Arc::clone(&target));
                    let forget = Forget { peers: Arc::clone(&peers), peer };
                    tasks.spawn(async move {
                        let forget = forget;
                        if let Err(e) = serve_peer(&socket, forget.peer, &target, datagrams).await {
                            tracing::debug!(error = %e, peer = %forget.peer, "forwarding datagrams");
                        }
                    });
                    queue
                }
            }
        };
        // If the queue is full the datagram is lost, as with a full socket.
        drop(queue.try_send(buffer[..len].to_vec()));
    }
}

/// Removes a peer from the list when its task ends, in any way.
struct Forget {
    peers: Peers,
    peer: SocketAddr,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.peer);
    }
}

/// Forwards the datagrams of one peer in both directions until they stop.
async fn serve_peer(
    outside: &UdpSocket,
    peer: SocketAddr,
    target: &Target,
    mut datagrams: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    // Sent, and neither answered nor refused so far.
    let mut unanswered: Option<Vec<u8>> = None;
    for address in &target.addresses {
        let inside = connect_udp(target.netns.as_deref(), *address).await?;
        if let Some(datagram) = &unanswered {
            inside.send(datagram).await?;
        }
        let refused = loop {
            let next = async {
                tokio::select! {
                    datagram = datagrams.recv() => Next::Send(datagram),
                    received = inside.recv(&mut buffer) => Next::Received(received),
                }
            };
            match tokio::time::timeout(PEER_IDLE, next).await {
                Err(_) | Ok(Next::Send(None)) => return Ok(()),
                Ok(Next::Send(Some(datagram))) => {
                    let sent = inside.send(&datagram).await;
                    unanswered = Some(datagram);
                    if let Err(e) = sent {
                        break e;
                    }
                }
                Ok(Next::Received(Ok(len))) => {
                    unanswered = None;
                    outside.send_to(&buffer[..len], peer).await?;
                }
                Ok(Next::Received(Err(e))) => break e,
            }
        };
        // Nothing listens at this address of the pod: send the data to the next one. Any other error ends it.
        if refused.kind() != io::ErrorKind::ConnectionRefused {
            return Err(refused);
        }
    }
    Ok(())
}

enum Next {
    Send(Option<Vec<u8>>),
    Received(io::Result<usize>),
}
