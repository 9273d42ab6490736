//! Sets up the network of a pod directly through the kernel. Nothing needs to be installed.
//!
//! A private pod has loopback and `eth0`. `eth0` is one end of a pair of interfaces. The other end is a port
//! of the bridge `outrigger0` at the host, which all pods of all runs share. Pods reach each other and the
//! host over the bridge, and the outside with the host's address (`nat.rs`). Their packets are checked where
//! they enter the host (`harden.rs`).
//!
//! The kernel is the only registry of addresses. The host's end of a pair is named after the pod's address
//! (`or0a590002` is 10.89.0.2), and creating an interface fails if its name is in use. Two runs can therefore
//! not get the same address, whatever their state directories are, and no lock and no file is needed. An
//! address is free again when its interface is gone. The kernel removes the interface when nothing is left of
//! the pod's network namespace, so a crash leaves no stale allocations behind. The alias of the interface
//! contains the sandbox id, for [`detach`] and for people.

mod budget;
mod conntrack;
mod datagram;
mod forward;
mod harden;
mod idle;
mod link;
mod nat;
mod netlink;
mod nft;
mod publish;
mod subnet;
#[cfg(test)]
mod tests;
mod uplink;

pub use forward::Forwarders;
pub(crate) use harden::{filter_port, unfilter_port};
pub use outrigger_runtime::netns::{connect_tcp, socket_in};
pub use subnet::Subnet;
pub(crate) use subnet::mac_of;
pub(crate) use uplink::Uplink;

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use serde::{Deserialize, Serialize};

use link::Links;
use nft::Nft;
use outrigger_runtime::{NetworkMode, RuntimeError, SandboxId, SandboxSpec, netns as enter};

/// The bridge at the host.
const BRIDGE: &str = "outrigger0";
/// The pod's interface. Programs expect this name.
const POD_INTERFACE: &str = "eth0";
/// The prefix of the alias of a host interface. The sandbox id follows.
const ALIAS_PREFIX: &str = "outrigger:";

/// Locked while a pod joins the network, and while the network is removed after the last pod.
const LOCK: &str = "/run/outrigger/network.lock";

/// How long to wait for a new interface to carry packets.
const OPERATIONAL_MAX: Duration = Duration::from_millis(500);

/// How long the host's network setup stays after the last pod is removed. Creating it again would take 50 ms
/// of a run.
const RELEASED_AFTER: Duration = Duration::from_secs(1);

/// How a pod is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The addresses of the pod, the best first. Empty if it has only loopback.
    pub ips: Vec<IpAddr>,
    /// The host's end of the pod's interface.
    pub host_interface: Option<String>,
    /// The network of the pod's address.
    pub subnet: Option<Subnet>,
    /// Warnings about what the pod lacks although its spec requires it.
    pub warnings: Vec<String>,
}

impl Attachment {
    fn warn(&mut self, id: &SandboxId, warning: String) {
        tracing::warn!(sandbox = %id, "{warning}");
        self.warnings.push(warning);
    }
}

/// Connects the network namespace at `netns` (an nsfs file) as the spec requires. With [`NetworkMode::Host`],
/// it does nothing and ignores `netns`. It does not publish ports: see [`Forwarders`].
///
/// If the machine does not permit a private network, the pod gets only loopback, and the attachment has a
/// warning. The same applies to access to the outside. The call may be repeated.
///
/// # Errors
/// There is no network namespace at `netns`, or it cannot be entered.
pub async fn attach(netns: &Path, spec: &SandboxSpec) -> Result<Attachment, RuntimeError> {
    attach_through(None, netns, spec).await
}

/// Like [`attach`], with the network namespace at `uplink` instead of the host's. Used without root.
pub(crate) async fn attach_through(
    uplink: Option<&Path>,
    netns: &Path,
    spec: &SandboxSpec,
) -> Result<Attachment, RuntimeError> {
    let (netns, id, mode) = (netns.to_owned(), spec.id.clone(), spec.network);
    let uplink = uplink.map(Path::to_owned);
    blocking(move || match uplink {
        Some(uplink) => enter::inside(&uplink, || attach_now(&netns, &id, mode)),
        None => attach_now(&netns, &id, mode),
    })
    .await
    .map_err(|e| RuntimeError::Create(format!("cannot set up the network of sandbox {:?}: {e}", spec.id.0)))
}

/// Removes the sandbox's interface and frees its address. It is idempotent and needs only the id, so it also
/// cleans up after a crash.
///
/// The kernel makes the caller wait about 20 ms for this. The kernel also does it by itself, in the
/// background, when the pod's network namespace has no more users (its file is unmounted, its processes and
/// sockets are closed).
///
/// # Errors
/// The kernel refuses to list or to remove interfaces.
pub async fn detach(id: &SandboxId) -> Result<(), RuntimeError> {
    let alias = alias(id);
    blocking(move || {
        let mut host = Links::open(None)?;
        for link in host.list()?.into_iter().filter(|l| l.alias == alias) {
            host.delete(link.index)?;
        }
        let _lock = lock();
        remove_stale(&mut host)
    })
    .await
    .map_err(|e| RuntimeError::Other(format!("cannot remove the network of sandbox {:?}: {e}", id.0)))
}

/// Removes the rules for pods whose interface no longer exists. The caller holds the lock.
fn remove_stale(host: &mut Links) -> io::Result<()> {
    let removed = Nft::open().and_then(|mut nft| {
        publish::remove_stale(&mut nft, host)?;
        harden::remove_stale(&mut nft, host)
    });
    // Without nf_tables there is nothing to remove.
    removed.or_else(unless_unsupported)
}

/// Ends the kernel's forwarding of published ports to the pod with these addresses. Idempotent.
pub(crate) async fn unpublish(pod: &[IpAddr]) {
    for ip in pod {
        let IpAddr::V4(ip) = *ip else { continue };
        if let Err(error) = blocking(move || publish::unpublish(ip).or_else(unless_unsupported)).await {
            tracing::warn!(%error, "connections to the published ports of {ip} are still forwarded");
        }
    }
}

/// Ignores an error that means that nf_tables is missing or not permitted, because then there are no rules
/// either.
fn unless_unsupported(error: io::Error) -> io::Result<()> {
    use rustix::io::Errno;
    let unsupported = [Errno::PROTONOSUPPORT, Errno::OPNOTSUPP, Errno::INVAL, Errno::PERM];
    match unsupported.into_iter().any(|errno| link::is(&error, errno)) {
        true => Ok(()),
        false => Err(error),
    }
}

/// Whether something on this host may have to be restored when its last pod is gone. This is the case if the
/// bridge exists.
pub(crate) async fn is_changed() -> bool {
    blocking(|| Ok(Links::open(None)?.find(BRIDGE)?.is_some())).await.unwrap_or(false)
}

/// Undoes the changes that pods' networks made to this host, unless a pod still needs them: the rules, the
/// forwarding that was enabled, and the bridge. `leaving` are sandboxes whose interfaces the kernel is about
/// to remove.
///
/// # Errors
/// The kernel refuses to list or to change something.
pub(crate) fn release_now(leaving: &[SandboxId]) -> io::Result<()> {
    let _lock = lock();
    let mut host = Links::open(None)?;
    let Some(bridge) = host.find(BRIDGE)? else { return Ok(()) };
    let leaving: Vec<String> = leaving.iter().map(alias).collect();
    let in_use = |link: &link::Link| link.alias.starts_with(ALIAS_PREFIX) && !leaving.contains(&link.alias);
    if host.list()?.iter().any(in_use) {
        return remove_stale(&mut host);
    }
    nat::restore()?;
    match subnet::is_ours(bridge.mac) {
        true => host.delete(bridge.index),
        // The bridge belongs to someone else.
        false => Ok(()),
    }
}

/// Like [`release_now`], after a delay, for a process that has nothing else to do.
#[expect(clippy::disallowed_methods, reason = "a process of its own that has nothing else to wait for")]
pub(crate) fn release_later(leaving: &[SandboxId]) -> io::Result<()> {
    std::thread::sleep(RELEASED_AFTER);
    release_now(leaving)
}

/// Prevents other processes from changing the host's network. Without the lock, two of them may conflict,
/// which is better than no network.
fn lock() -> Option<OwnedFd> {
    let path = Path::new(LOCK);
    outrigger_runtime::private::make(path.parent()?).ok()?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).ok()?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.ok().map(|()| file),
        }
    }
}

/// The sandboxes of all runs that have an interface at this host. Used to find those without an owner.
///
/// # Errors
/// The kernel refuses to list interfaces.
pub async fn attached() -> Result<Vec<SandboxId>, RuntimeError> {
    blocking(|| {
        let links = Links::open(None)?.list()?;
        Ok(links
            .iter()
            .filter_map(|l| Some(SandboxId(l.alias.strip_prefix(ALIAS_PREFIX)?.to_owned())))
            .collect())
    })
    .await
    .map_err(|e| RuntimeError::Other(format!("cannot list network interfaces: {e}")))
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

fn alias(id: &SandboxId) -> String {
    format!("{ALIAS_PREFIX}{id}")
}

fn attach_now(netns: &Path, id: &SandboxId, mode: NetworkMode) -> io::Result<Attachment> {
    let mut attachment =
        Attachment { ips: Vec::new(), host_interface: None, subnet: None, warnings: Vec::new() };
    if mode == NetworkMode::Host {
        // Pods run even if the host's address cannot be determined.
        attachment.ips = host_address().ok().flatten().map(IpAddr::V4).into_iter().collect();
        return Ok(attachment);
    }
    let mut pod = Links::open(Some(netns))?;
    if let Err(e) = pod.loopback_up() {
        attachment.warn(id, format!("the pod's loopback interface cannot be switched on: {e}"));
    }
    if mode == NetworkMode::None {
        return Ok(attachment);
    }
    let mut host = Links::open(None)?;
    let lock = lock();
    match attach_private(&mut host, &mut pod, netns, id) {
        Ok((address, subnet)) => {
            attachment.ips.push(address.into());
            attachment.host_interface = Some(interface_name(address));
            attachment.subnet = Some(subnet);
            if let Err(missing) = nat::let_out(&mut host, subnet) {
                static ONCE: Once = Once::new();
                let warning = format!("pods can reach only this host: {missing}");
                ONCE.call_once(|| tracing::warn!("{warning}"));
                attachment.warnings.push(warning);
            }
            drop(lock);
            wait_until_operational(&mut host, &interface_name(address))?;
            wait_until_operational(&mut host, BRIDGE)?;
        }
        Err(e) => attachment.warn(id, format!("the pod has no address, only loopback: {e}")),
    }
    Ok(attachment)
}

fn attach_private(
    host: &mut Links,
    pod: &mut Links,
    netns: &Path,
    id: &SandboxId,
) -> io::Result<(Ipv4Addr, Subnet)> {
    // An incomplete attempt has left this interface.
    if let Some(old) = pod.find(POD_INTERFACE)? {
        pod.delete(old.index)?;
    }
    // The kernel removes the interface of a pod only after everything else of the pod is gone.
    if let Err(error) = Nft::open().and_then(|mut nft| harden::remove_stale(&mut nft, host)) {
        tracing::debug!(%error, "filters of pods that are gone stay");
    }
    let (bridge, gateway, subnet) = bridge(host)?;
    let address = add_interface(host, netns, bridge, subnet, id)?;
    let mut connect = || -> io::Result<()> {
        harden::port(address)?;
        if let Err(e) = harden::filter_port(address) {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(
                    "pods on this host can impersonate each other, their ports cannot be filtered: {e}"
                )
            });
        }
        host.up_with_alias(&interface_name(address), &alias(id))?;
        let interface =
            pod.find(POD_INTERFACE)?.ok_or_else(|| io::Error::other("the new interface is gone"))?;
        pod.add_address(interface.index, address, subnet.prefix())?;
        pod.up(interface.index)?;
        pod.add_default_route(interface.index, gateway)
    };
    if let Err(e) = connect() {
        if let Some(link) = host.find(&interface_name(address))? {
            host.delete(link.index)?;
        }
        return Err(e);
    }
    Ok((address, subnet))
}

/// Waits until an interface can carry packets. The kernel notices in the background that both ends of a pair
/// are enabled. Until then packets are silently lost, which costs the sender a second. This takes well under
/// a millisecond on an idle machine.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, waiting microseconds for the kernel")]
fn wait_until_operational(links: &mut Links, name: &str) -> io::Result<()> {
    let deadline = Instant::now() + OPERATIONAL_MAX;
    let mut pause = Duration::from_micros(50);
    while !links.find(name)?.is_some_and(|l| l.operational) && Instant::now() < deadline {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    Ok(())
}

/// Finds or creates the bridge. Returns its index, address and network.
fn bridge(host: &mut Links) -> io::Result<(u32, Ipv4Addr, Subnet)> {
    let named = |what: &str, e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
    let link = match host.find(BRIDGE)? {
        Some(link) => link,
        None => {
            let gateway = free_subnet(host, None)?.gateway();
            // Another run may have created the bridge in the meantime. Its hardware address shows that it is
            // ours: unlike an alias, it is set from the start.
            host.add_bridge(BRIDGE, subnet::mac_of(gateway))
                .map_err(|e| named("cannot create the bridge outrigger0", e))?;
            host.find(BRIDGE)?.ok_or_else(|| io::Error::other("the bridge outrigger0 is gone again"))?
        }
    };
    let index = link.index;
    harden::bridge(subnet::is_ours(link.mac))
        .map_err(|e| named("cannot keep pods from reconfiguring this host", e))?;
    let mut addresses = host.addresses(index)?;
    if addresses.is_empty() {
        let subnet = free_subnet(host, Some(index))?;
        host.add_address(index, subnet.gateway(), subnet.prefix())
            .map_err(|e| named("cannot give the bridge outrigger0 an address", e))?;
        addresses = host.addresses(index)?;
    }
    host.up(index).map_err(|e| named("cannot switch the bridge outrigger0 on", e))?;
    let (gateway, subnet) =
        addresses.first().copied().ok_or_else(|| io::Error::other("the bridge outrigger0 has no address"))?;
    Ok((index, gateway, subnet))
}

fn free_subnet(host: &mut Links, bridge: Option<u32>) -> io::Result<Subnet> {
    let routes = host.routes()?;
    let others = routes.iter().filter(|r| r.interface.is_none() || r.interface != bridge).map(|r| r.to);
    subnet::choose(others).ok_or_else(|| {
        io::Error::other(
            "every network that pods could use collides with a route of this host; \
             create the bridge outrigger0 with an address of your choice to settle it",
        )
    })
}

/// Takes the first address whose name is free by creating the interface.
fn add_interface(
    host: &mut Links,
    netns: &Path,
    bridge: u32,
    subnet: Subnet,
    id: &SandboxId,
) -> io::Result<Ipv4Addr> {
    let namespace = File::open(netns)?;
    for address in subnet.pod_addresses(&id.0) {
        let mac = subnet::mac_of(address);
        let added = host
            .add_veth(&interface_name(address), bridge, POD_INTERFACE, mac, namespace.as_fd())
            .map_err(|e| io::Error::new(e.kind(), format!("cannot create a pair of interfaces: {e}")))?;
        if added {
            return Ok(address);
        }
    }
    Err(io::Error::other(format!("all addresses of {subnet} are in use")))
}

fn interface_name(address: Ipv4Addr) -> String {
    format!("or{:08x}", address.to_bits())
}

/// The address in an [`interface_name`].
fn address_of(interface: &str) -> Option<Ipv4Addr> {
    u32::from_str_radix(interface.strip_prefix("or")?, 16).ok().map(Ipv4Addr::from_bits)
}

/// The address of the interface with the default route.
fn host_address() -> io::Result<Option<Ipv4Addr>> {
    let mut host = Links::open(None)?;
    let Some(index) = host.routes()?.into_iter().filter(|r| r.to.prefix() == 0).find_map(|r| r.interface)
    else {
        return Ok(None);
    };
    Ok(host.addresses(index)?.first().map(|(address, _)| *address))
}

/// Parses any bytes as answers of the kernel.
pub(crate) fn fuzz(bytes: &[u8]) {
    netlink::fuzz(bytes, |payload| {
        link::fuzz(payload);
        let _ = nft::parse_chain(payload);
        let _ = conntrack::redirected_to(payload, Ipv4Addr::LOCALHOST);
        let _ = conntrack::sent_to(payload, 53, &[Ipv4Addr::LOCALHOST]);
    });
}
