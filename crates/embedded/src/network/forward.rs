//! Published ports: forwards connections to a port of the host to a port of the pod.
//!
//! The port is open in this process for as long as it is published, so that no other program can have it. As
//! root, the kernel redirects what it can before it arrives there (`publish.rs`). The rest is forwarded in
//! user space, from the network namespace that has the pods' bridge, so the pod sees the bridge's address.
//! Connections never go to the pod's loopback, because a program that listens there trusts its clients.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::budget::{Budget, Share};
use super::datagram::{DatagramSocket, Route};
use super::enter::{connect_tcp, connect_udp};
use super::idle::{Idle, IdleLimits, Watched};
use super::publish;
use outrigger_runtime::{NetworkMode, PublishedPort, RuntimeError};

/// The number of descriptors of a TCP connection: one to the client and one to the pod.
const CONNECTION: usize = 2;
/// The number of descriptors of a UDP peer.
const PEER: usize = 1;
/// A connection is closed after this time without data in either direction.
const CONNECTION_IDLE: IdleLimits =
    IdleLimits { usual: Duration::from_secs(60 * 60), scarce: Duration::from_secs(60) };
/// A UDP peer is forgotten after this time without a datagram in either direction.
const PEER_IDLE: IdleLimits = IdleLimits { usual: Duration::from_secs(90), scarce: Duration::from_secs(10) };
/// The number of bytes that are read at once from a connection.
const COPY_BYTES: usize = 32 * 1024;
/// The maximum number of datagrams that wait for a peer's socket.
const QUEUE_MAX: usize = 64;
const DATAGRAM_BYTES: usize = 64 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay after an error of `accept` that is not about one connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a port may still be in use when it is opened. If a child process has been forked but has not
/// executed its program yet, it has a copy of the socket. A closed port stays in use until then.
const CLOSING_MAX: Duration = Duration::from_millis(200);
const CLOSING_PAUSE: Duration = Duration::from_millis(10);
/// How often to retry a port of a running pod if another program has taken it.
const TAKEN_PAUSE: Duration = Duration::from_secs(1);

/// The published ports of one pod. Dropping this closes them, and all connections that are forwarded in user
/// space. [`super::unpublish`] ends what the kernel forwards.
#[derive(Debug, Default)]
pub struct Forwarders {
    addresses: Vec<SocketAddr>,
    tasks: JoinSet<()>,
}

impl Forwarders {
    /// Opens the ports at the host and forwards them to the pod with the given address. `bridge` is the
    /// network namespace with the pods' bridge, if it is not the host's.
    ///
    /// # Errors
    /// A port cannot be opened, usually because it is in use. Then none stays open.
    pub async fn start(
        pod: IpAddr,
        bridge: Option<&Path>,
        ports: &[PublishedPort],
    ) -> Result<Forwarders, RuntimeError> {
        let forwarders = Forwarders::open(pod, bridge, ports, &Budget::of_process()).await?;
        forwarders.publish(pod, bridge, ports).await;
        Ok(forwarders)
    }

    /// Like [`start`](Self::start), for a running pod whose ports were open before. A port that cannot be
    /// opened now does not end the pod. The kernel still forwards it, and opening it is retried until the
    /// port is free.
    pub async fn resume(pod: IpAddr, bridge: Option<&Path>, ports: &[PublishedPort]) -> Forwarders {
        let budget = Budget::of_process();
        let mut forwarders = Forwarders::default();
        for port in ports {
            let target = Arc::new(Target::new(pod, bridge, port, &budget));
            let address = match forwarders.open_one(port, Arc::clone(&target)).await {
                Ok(address) => address,
                Err(error) => {
                    let refused = refused(port, error);
                    tracing::warn!(
                        "{refused}; the pod keeps running, and connections to 127.0.0.1 reach it once the port is free"
                    );
                    forwarders.tasks.spawn(forward_once_free(port.clone(), target));
                    port.host
                }
            };
            forwarders.addresses.push(address);
        }
        forwarders.publish(pod, bridge, ports).await;
        forwarders
    }

    /// Lets the kernel forward what it can.
    async fn publish(&self, pod: IpAddr, bridge: Option<&Path>, ports: &[PublishedPort]) {
        if let (IpAddr::V4(pod), None) = (pod, bridge) {
            let mut opened = ports.to_vec();
            for (port, address) in opened.iter_mut().zip(&self.addresses) {
                port.host = *address;
            }
            let published = super::blocking(move || {
                let _lock = super::lock();
                publish::publish_ports(pod, &opened)
            });
            if let Err(error) = published.await {
                tracing::debug!(%error, "published ports are forwarded in user space only");
            }
        }
    }

    pub(super) async fn open(
        pod: IpAddr,
        bridge: Option<&Path>,
        ports: &[PublishedPort],
        budget: &Arc<Budget>,
    ) -> Result<Forwarders, RuntimeError> {
        let mut forwarders = Forwarders::default();
        for port in ports {
            let target = Arc::new(Target::new(pod, bridge, port, budget));
            let opened = forwarders.open_one(port, target).await;
            forwarders.addresses.push(opened.map_err(|e| refused(port, e))?);
        }
        Ok(forwarders)
    }

    /// Checks whether the ports could be opened now.
    pub(crate) fn check(network: NetworkMode, ports: &[PublishedPort]) -> Result<(), RuntimeError> {
        // On the host network, the program itself listens there.
        for port in ports.iter().filter(|_| network == NetworkMode::Private) {
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

    async fn open_one(&mut self, port: &PublishedPort, target: Arc<Target>) -> io::Result<SocketAddr> {
        let socket = once_closed(|| HostSocket::open(port)).await?;
        let address = socket.address()?;
        self.tasks.spawn(socket.forward(target));
        Ok(address)
    }
}

/// An open port of the host.
enum HostSocket {
    Tcp(TcpListener),
    Udp(DatagramSocket),
}

impl HostSocket {
    async fn open(port: &PublishedPort) -> io::Result<HostSocket> {
        match port.udp {
            true => DatagramSocket::bind(port.host).await.map(HostSocket::Udp),
            false => TcpListener::bind(port.host).await.map(HostSocket::Tcp),
        }
    }

    fn address(&self) -> io::Result<SocketAddr> {
        match self {
            HostSocket::Tcp(listener) => listener.local_addr(),
            HostSocket::Udp(socket) => socket.local_addr(),
        }
    }

    async fn forward(self, target: Arc<Target>) {
        match self {
            HostSocket::Tcp(listener) => forward_tcp(listener, target).await,
            HostSocket::Udp(socket) => forward_udp(Arc::new(socket), target).await,
        }
    }
}

/// Forwards a port as soon as it can be opened.
async fn forward_once_free(port: PublishedPort, target: Arc<Target>) {
    loop {
        tokio::time::sleep(TAKEN_PAUSE).await;
        if let Ok(socket) = HostSocket::open(&port).await {
            return socket.forward(target).await;
        }
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
        io::ErrorKind::AddrNotAvailable => {
            format!("host port {number} cannot be opened: {protocol} {ip} is not an address of this machine")
        }
        _ => format!("host port {number} cannot be opened: {protocol} {ip}: {error}"),
    };
    RuntimeError::HostPort { port: number, detail, source: error }
}

/// A port of the pod.
#[derive(Debug)]
struct Target {
    bridge: Option<PathBuf>,
    address: SocketAddr,
    budget: Arc<Budget>,
}

impl Target {
    fn new(pod: IpAddr, bridge: Option<&Path>, port: &PublishedPort, budget: &Arc<Budget>) -> Target {
        Target {
            bridge: bridge.map(Path::to_owned),
            address: SocketAddr::new(pod, port.pod_port),
            budget: Arc::clone(budget),
        }
    }
}

async fn forward_tcp(listener: TcpListener, target: Arc<Target>) {
    let mut connections = JoinSet::new();
    loop {
        // Clients wait in the listen queue in the meantime.
        target.budget.room_for(CONNECTION).await;
        // Finished connections are removed when new ones arrive.
        while connections.try_join_next().is_some() {}
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::debug!(error = %e, "accepting a connection for a published port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match target.budget.take(peer.ip(), CONNECTION) {
            Some(share) => drop(connections.spawn(serve_connection(client, Arc::clone(&target), share))),
            None => {
                tracing::debug!(%peer, "too many connections to published ports");
                reset(client);
            }
        }
    }
}

async fn serve_connection(client: TcpStream, target: Arc<Target>, _share: Share) {
    let pod = match connect_tcp(target.bridge.as_deref(), target.address, CONNECT_TIMEOUT).await {
        Ok(pod) => pod,
        Err(e) => {
            tracing::debug!(error = %e, target = %target.address, "published port not answered in the pod");
            return reset(client);
        }
    };
    // Small messages must not wait for more data. A failure only costs time.
    let _ = client.set_nodelay(true).and(pod.set_nodelay(true));
    let idle = Idle::new();
    let mut client = Watched { stream: client, idle: &idle };
    let mut pod = Watched { stream: pod, idle: &idle };
    tokio::select! {
        // Either end may close the connection at any time, and there is nobody to report it to.
        _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut pod, COPY_BYTES, COPY_BYTES) => {}
        () = idle.too_long(CONNECTION_IDLE, &target.budget) => {}
    }
}

/// Closes a connection with a reset. To the client, this looks like a port without a listener, and not like
/// an orderly end.
fn reset(client: TcpStream) {
    let _ = client.set_zero_linger();
}

type Peers = Arc<Mutex<HashMap<Route, mpsc::Sender<Vec<u8>>>>>;

async fn forward_udp(socket: Arc<DatagramSocket>, target: Arc<Target>) {
    let peers = Peers::default();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        while tasks.try_join_next().is_some() {}
        let (len, route) = match socket.receive(&mut buffer).await {
            Ok(received) => received,
            Err(e) => {
                // Errors of datagrams that were sent earlier are reported here. The socket itself works.
                tracing::debug!(error = %e, "receiving for a published port");
                continue;
            }
        };
        let queue = {
            let mut known = peers.lock().unwrap_or_else(PoisonError::into_inner);
            match known.get(&route) {
                Some(queue) => queue.clone(),
                None => {
                    // With too many peers, a datagram of a new peer is lost, as with a full socket.
                    let Some(share) = target.budget.take(route.peer.ip(), PEER) else { continue };
                    let (queue, datagrams) = mpsc::channel(QUEUE_MAX);
                    known.insert(route, queue.clone());
                    let (socket, target) = (Arc::clone(&socket), Arc::clone(&target));
                    let forget = Forget { peers: Arc::clone(&peers), route, _share: share };
                    tasks.spawn(async move {
                        let forget = forget;
                        if let Err(e) = serve_peer(&socket, forget.route, &target, datagrams).await {
                            tracing::debug!(error = %e, peer = %forget.route.peer, "forwarding datagrams");
                        }
                    });
                    queue
                }
            }
        };
        // If the queue is full, the datagram is lost, as with a full socket.
        drop(queue.try_send(buffer[..len].to_vec()));
    }
}

/// Removes a peer from the list when its task ends for any reason.
struct Forget {
    peers: Peers,
    route: Route,
    _share: Share,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.route);
    }
}

/// Forwards the datagrams of one peer in both directions, until there are no more or the pod refuses them.
async fn serve_peer(
    outside: &DatagramSocket,
    route: Route,
    target: &Target,
    mut datagrams: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let inside = connect_udp(target.bridge.as_deref(), target.address).await?;
    let idle = Idle::new();
    let forward = async {
        loop {
            tokio::select! {
                datagram = datagrams.recv() => match datagram {
                    Some(datagram) => drop(inside.send(&datagram).await?),
                    None => return io::Result::Ok(()),
                },
                ready = inside.readable() => {
                    ready?;
                    // The buffer exists only while it is needed, because there may be thousands of peers.
                    let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
                    match inside.try_recv_buf(&mut buffer) {
                        Ok(_) => outside.answer(&buffer, route).await?,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                        Err(e) => return Err(e),
                    }
                }
            }
            idle.used();
        }
    };
    tokio::select! {
        ended = forward => ended,
        () = idle.too_long(PEER_IDLE, &target.budget) => Ok(()),
    }
}
