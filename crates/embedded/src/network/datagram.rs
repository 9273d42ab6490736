//! A UDP port that answers from the address that the client sent to.
//!
//! If a port is open on every address, the kernel would choose the source of an answer by its route. Clients
//! drop answers from an address that they have not sent to. An answer must also not reveal another address of
//! the host.

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd as _, RawFd};

use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Space for the control message of one datagram, with the alignment that the kernel requires.
type Control = [u64; 8];

/// An open UDP port of the host.
#[derive(Debug)]
pub(super) struct DatagramSocket {
    socket: UdpSocket,
}

/// The sender of a datagram, and the address of this host that it was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Route {
    /// The client.
    pub(super) peer: SocketAddr,
    /// The address that answers come from. `None` lets the kernel choose it.
    local: Option<Local>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Local {
    address: IpAddr,
    /// The interface, for addresses that are only valid together with one. Otherwise 0.
    interface: u32,
}

impl DatagramSocket {
    pub(super) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        let (level, option) = match address {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            // This also works for clients with IPv4.
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        switch_on(socket.as_raw_fd(), level, option)?;
        Ok(DatagramSocket { socket })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Receives a datagram.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Route)> {
        let fd = self.socket.as_raw_fd();
        self.socket.async_io(Interest::READABLE, || receive(fd, buffer)).await
    }

    /// Answers a client.
    pub(super) async fn answer(&self, datagram: &[u8], route: Route) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        self.socket.async_io(Interest::WRITABLE, || send(fd, datagram, route)).await
    }
}

fn switch_on(fd: RawFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the value lives until the call returns, and the length is the value's length.
    let set = unsafe {
        libc::setsockopt(fd, level, option, (&raw const on).cast(), size_of_val(&on) as libc::socklen_t)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Route)> {
    let mut control = Control::default();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: both consist of plain numbers and pointers, for which zero is a valid value.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of_val(&name) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: everything that the message points to lives until the call returns, and the lengths are
    // correct.
    let received = unsafe { libc::recvmsg(fd, &raw mut message, 0) };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let peer = peer(&name).ok_or(io::ErrorKind::InvalidData)?;
    Ok((len, Route { peer, local: local(&message) }))
}

/// The address that a datagram was sent to, in a form that answers can come from.
fn local(message: &libc::msghdr) -> Option<Local> {
    // SAFETY: the kernel has filled the control buffer of the message, and has set its length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the pointer is null, or points to a header in that buffer.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: the data of a header follows it.
        let data = unsafe { libc::CMSG_DATA(header) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: this kind of message has this content, and it may be unaligned.
                let info: libc::in_pktinfo = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                // `ipi_addr` is not used, because answers cannot come from a broadcast address.
                let address = Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes());
                return Some(Local { address: address.into(), interface: 0 });
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: as above.
                let info: libc::in6_pktinfo = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                let interface = if address.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                return (!address.is_multicast()).then_some(Local { address: address.into(), interface });
            }
            // SAFETY: the header is one of this message.
            _ => next = unsafe { libc::CMSG_NXTHDR(message, header) },
        }
    }
    None
}

fn send(fd: RawFd, datagram: &[u8], route: Route) -> io::Result<()> {
    let mut control = Control::default();
    let mut part = libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
    let (name, name_len) = name(route.peer);
    // SAFETY: it consists of plain numbers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw const name).cast_mut().cast();
    message.msg_namelen = name_len;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(local) = route.local {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        message.msg_controllen = match local.address {
            IpAddr::V4(address) => {
                let spec_dst = libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
                let any = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec_dst, ipi_addr: any };
                put(&message, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
            IpAddr::V6(address) => {
                let address = libc::in6_addr { s6_addr: address.octets() };
                let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: local.interface };
                put(&message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            }
        };
    }
    // SAFETY: everything that the message points to lives until the call returns, and the kernel only reads
    // it.
    match unsafe { libc::sendmsg(fd, &raw const message, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Writes the only control message of `message`, and returns its length.
fn put<T>(message: &libc::msghdr, level: i32, kind: i32, content: T) -> usize {
    const { assert!(size_of::<T>() + size_of::<libc::cmsghdr>() + 8 <= size_of::<Control>()) };
    let size = size_of::<T>() as u32;
    // SAFETY: the control buffer of the message has room for a header with this content, as asserted.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(content);
        libc::CMSG_SPACE(size) as usize
    }
}

fn peer(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this content, and the storage has space for every family.
            let name = unsafe { (&raw const *name).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { (&raw const *name).cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (Ipv6Addr::from(name.sin6_addr.s6_addr), u16::from_be(name.sin6_port));
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn name(peer: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: it consists of plain numbers, for which zero is a valid value.
    let mut name: libc::sockaddr_storage = unsafe { zeroed() };
    let len = match peer {
        SocketAddr::V4(peer) => {
            let of_peer = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: peer.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(peer.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has space for every family, and is aligned for each.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(of_peer) };
            size_of_val(&of_peer)
        }
        SocketAddr::V6(peer) => {
            let of_peer = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: peer.port().to_be(),
                sin6_flowinfo: peer.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: peer.ip().octets() },
                sin6_scope_id: peer.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in6>().write(of_peer) };
            size_of_val(&of_peer)
        }
    };
    (name, len as libc::socklen_t)
}
