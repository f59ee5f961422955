//! Pintle's BPF programs.
//!
//! Watch the maps of [`maps`], which the agent fills. Change what a process connects or
//! sends to ([`socket`]: a Service's address becomes that of one of its backends, once, so an
//! established flow costs nothing per packet) and where a pod's packets go ([`pod`]: straight
//! into the other pod's interface when it is on this node). Who reacts next: the kernel's
//! network stack. They need Linux 6.1 and keep working while no agent runs.
#![no_std]
#![no_main]
#![cfg_attr(
    not(target_arch = "bpf"),
    expect(unused, reason = "only built for BPF")
)]

#[macro_use]
mod log;
mod maps;
mod pod;
mod socket;

use aya_ebpf::macros::{cgroup_sock_addr, classifier};
use aya_ebpf::programs::{SockAddrContext, TcContext};

/// `connect(2)` on an IPv4 socket.
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    socket::connect(&socket::Sock::v4(ctx))
}

/// `connect(2)` on an IPv6 socket: only IPv4-mapped addresses are of interest.
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    match socket::Sock::mapped(ctx) {
        Some(sock) => socket::connect(&sock),
        None => socket::ALLOW,
    }
}

/// `sendto(2)` and `sendmsg(2)` on an unconnected UDP socket; mapped addresses come here too.
#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    socket::send(&socket::Sock::v4(ctx))
}

/// The sender's address as `recvfrom(2)` shows it.
#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    socket::reverse(&socket::Sock::v4(ctx));
    socket::ALLOW
}

/// The same for IPv4-mapped senders.
#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    if let Some(sock) = socket::Sock::mapped(ctx) {
        socket::reverse(&sock);
    }
    socket::ALLOW
}

/// The peer's address as `getpeername(2)` shows it.
#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    socket::reverse(&socket::Sock::v4(ctx));
    socket::ALLOW
}

/// The same for IPv4-mapped peers.
#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    if let Some(sock) = socket::Sock::mapped(ctx) {
        socket::reverse(&sock);
    }
    socket::ALLOW
}

/// What a pod sends, seen on the host side of its veth.
#[classifier]
pub fn pod_egress(ctx: TcContext) -> i32 {
    pod::egress(&ctx)
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier rejects programs that could get here and spin.
    loop {}
}

/// Lets the programs call helpers the kernel reserves for GPL-compatible ones.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
