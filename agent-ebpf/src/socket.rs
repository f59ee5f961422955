//! Services at the socket: translation when a process connects or sends.
//!
//! Watches FRONTENDS, BACKENDS, NAMESPACES and UDP_FLOWS. Changes the destination in `bpf_sock_addr`, and
//! remembers in PEERS what the process asked for, so that `recvfrom` and `getpeername` show it
//! the address it knows. A Service without backends is refused here: the process sees
//! ECONNREFUSED from the very call (bpf_set_retval, Linux 5.18).

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{
    bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_get_socket_cookie, bpf_set_retval,
};
use aya_ebpf::programs::SockAddrContext;
use pintle_ebpf_abi::{Backend, Frontend, FrontendKey, Peer, PeerKey, UdpFlowKey};

use crate::maps;

/// The system call goes on.
pub(crate) const ALLOW: i32 = 1;
/// The system call fails with what `bpf_set_retval` was given.
const REFUSE: i32 = 0;

const ECONNREFUSED: i32 = 111;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
/// Third word of an IPv4-mapped IPv6 address.
const MAPPED: u32 = 0xffff_u32.to_be();

/// The address in a `bpf_sock_addr`: the IPv4 one, or the IPv4-mapped one of an IPv6 socket.
/// Which of them is settled when the program is compiled: were it a value, the compiler could
/// choose between two offsets into the context, which the verifier refuses.
pub(crate) struct Sock<const MAPPED_ADDRESS: bool> {
    ctx: SockAddrContext,
}

impl Sock<false> {
    #[inline(always)]
    pub(crate) fn v4(ctx: SockAddrContext) -> Self {
        Self { ctx }
    }
}

impl Sock<true> {
    /// `None` when the address is a real IPv6 one.
    #[inline(always)]
    pub(crate) fn mapped(ctx: SockAddrContext) -> Option<Self> {
        let raw: *mut bpf_sock_addr = ctx.sock_addr;
        // SAFETY: the context is valid for the whole program.
        let third = unsafe { (&raw const (*raw).user_ip6[2]).read_volatile() };
        // SAFETY: as above.
        let first = unsafe { (&raw const (*raw).user_ip6[0]).read_volatile() };
        // SAFETY: as above.
        let second = unsafe { (&raw const (*raw).user_ip6[1]).read_volatile() };
        (third == MAPPED && first == 0 && second == 0).then_some(Self { ctx })
    }
}

impl<const MAPPED_ADDRESS: bool> Sock<MAPPED_ADDRESS> {
    // The reads and writes are volatile so that the compiler keeps them apart: the verifier
    // only takes accesses of whole fields of the context.

    #[inline(always)]
    fn address(&self) -> u32 {
        let raw = self.ctx.sock_addr;
        if MAPPED_ADDRESS {
            // SAFETY: the context is valid for the whole program.
            unsafe { (&raw const (*raw).user_ip6[3]).read_volatile() }
        } else {
            // SAFETY: as above.
            unsafe { (&raw const (*raw).user_ip4).read_volatile() }
        }
    }

    #[inline(always)]
    fn port(&self) -> u16 {
        let raw = self.ctx.sock_addr;
        // SAFETY: the context is valid for the whole program.
        unsafe { (&raw const (*raw).user_port).read_volatile() as u16 }
    }

    #[inline(always)]
    fn protocol(&self) -> u32 {
        let raw = self.ctx.sock_addr;
        // SAFETY: the context is valid for the whole program.
        unsafe { (&raw const (*raw).protocol).read_volatile() }
    }

    #[inline(always)]
    fn set(&self, address: u32, port: u16) {
        let raw = self.ctx.sock_addr;
        if MAPPED_ADDRESS {
            // SAFETY: the context is valid for the whole program and these fields are writable.
            unsafe { (&raw mut (*raw).user_ip6[3]).write_volatile(address) };
        } else {
            // SAFETY: as above.
            unsafe { (&raw mut (*raw).user_ip4).write_volatile(address) };
        }
        // SAFETY: as above.
        unsafe { (&raw mut (*raw).user_port).write_volatile(u32::from(port)) };
    }

    #[inline(always)]
    fn cookie(&self) -> u64 {
        // SAFETY: the helper takes this context in every program of this file.
        unsafe { bpf_get_socket_cookie(self.ctx.as_ptr()) }
    }

    #[inline(always)]
    fn namespace(&self) -> u64 {
        // SAFETY: the helper takes this context in every program of this file.
        unsafe { bpf_get_netns_cookie(self.ctx.as_ptr()) }
    }

    /// The frontend the socket asks for. An address that is a Service's here means something
    /// else in namespaces that are not this node's: those of containers of other runtimes, or
    /// of another node on the same kernel.
    #[inline(always)]
    fn frontend(&self, protocol: u32) -> Option<(FrontendKey, Frontend)> {
        let key = FrontendKey {
            address: self.address(),
            port: self.port(),
            protocol: protocol as u8,
            scope: 0,
        };
        let frontend = maps::frontend(&key)?;
        maps::has_services(self.namespace()).then_some((key, frontend))
    }
}

/// `connect`: TCP, and UDP sockets that settle for one peer.
#[inline(always)]
pub(crate) fn connect<const M: bool>(sock: &Sock<M>) -> i32 {
    let protocol = sock.protocol();
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return ALLOW;
    }
    let Some((key, frontend)) = sock.frontend(protocol) else {
        return ALLOW;
    };
    let Some(backend) = choose(&frontend) else {
        return refuse(sock);
    };
    translate(sock, sock.cookie(), protocol, &key, &backend);
    ALLOW
}

/// `sendmsg` on an unconnected UDP socket. The socket keeps its backend as long as there is
/// one, as it would behind connection tracking.
#[inline(always)]
pub(crate) fn send<const M: bool>(sock: &Sock<M>) -> i32 {
    let Some((key, frontend)) = sock.frontend(IPPROTO_UDP) else {
        return ALLOW;
    };
    if frontend.count == 0 {
        return refuse(sock);
    }
    let cookie = sock.cookie();
    let flow = UdpFlowKey {
        cookie,
        address: key.address,
        port: key.port,
        flags: 0,
    };
    let backend = match maps::udp_flow(&flow) {
        Some(backend) => backend,
        None => {
            let Some(backend) = choose(&frontend) else {
                return refuse(sock);
            };
            maps::remember_udp_flow(&flow, &backend);
            backend
        }
    };
    translate(sock, cookie, IPPROTO_UDP, &key, &backend);
    ALLOW
}

/// Shows the process the address it sent to in place of the backend's.
#[inline(always)]
pub(crate) fn reverse<const M: bool>(sock: &Sock<M>) {
    let key = PeerKey {
        cookie: sock.cookie(),
        address: sock.address(),
        port: sock.port(),
        protocol: sock.protocol() as u16,
    };
    if let Some(peer) = maps::peer(&key) {
        sock.set(peer.address, peer.port);
    }
}

/// A backend at random. While the agent shrinks a service the last slot can be gone a moment
/// before the count is seen to drop; slot 0 exists as long as there is any.
#[inline(always)]
fn choose(frontend: &Frontend) -> Option<Backend> {
    if frontend.count == 0 {
        return None;
    }
    // SAFETY: the helper has no preconditions.
    let random = unsafe { bpf_get_prandom_u32() };
    let slot = ((u64::from(random) * u64::from(frontend.count)) >> 32) as u32;
    maps::backend(frontend.service, slot).or_else(|| maps::backend(frontend.service, 0))
}

#[inline(always)]
fn translate<const M: bool>(
    sock: &Sock<M>,
    cookie: u64,
    protocol: u32,
    key: &FrontendKey,
    backend: &Backend,
) {
    maps::remember_peer(
        &PeerKey {
            cookie,
            address: backend.address,
            port: backend.port,
            protocol: protocol as u16,
        },
        &Peer {
            address: key.address,
            port: key.port,
            flags: 0,
        },
    );
    trace!(
        &sock.ctx,
        "service {:i} goes to {:i}",
        u32::from_be(key.address),
        u32::from_be(backend.address)
    );
    sock.set(backend.address, backend.port);
}

#[inline(always)]
fn refuse<const M: bool>(_sock: &Sock<M>) -> i32 {
    trace!(
        &_sock.ctx,
        "service {:i} has no endpoint: refused",
        u32::from_be(_sock.address())
    );
    // SAFETY: the helper is there for connect and sendmsg programs since Linux 5.18.
    unsafe { bpf_set_retval(-ECONNREFUSED) };
    REFUSE
}
