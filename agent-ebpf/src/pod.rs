//! What a pod sends, on the host side of its veth.
//!
//! Watches PODS. Drops what does not come from the pod's own address, and moves packets for
//! another pod of this node straight into that pod's interface (bpf_redirect_peer, Linux 5.10),
//! past routing, netfilter and the backlog queue of the host. Everything else takes the host's
//! ordinary way.

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT};
use aya_ebpf::helpers::generated::bpf_redirect_peer;
use aya_ebpf::programs::TcContext;

use crate::maps;

const ETH_P_IP: u32 = 0x0800_u16.to_be() as u32;
const ETH_P_ARP: u32 = 0x0806_u16.to_be() as u32;
/// Offset of the source address of an IPv4 packet; the destination follows it.
const IP_SOURCE: usize = 14 + 12;

#[inline(always)]
pub(crate) fn egress(ctx: &TcContext) -> i32 {
    // SAFETY: the context is valid for the whole program.
    let protocol = unsafe { (*ctx.skb.skb).protocol };
    if protocol == ETH_P_ARP {
        return TC_ACT_OK;
    }
    if protocol != ETH_P_IP {
        return TC_ACT_SHOT;
    }
    let Ok([source, destination]) = ctx.load::<[u32; 2]>(IP_SOURCE) else {
        return TC_ACT_SHOT;
    };
    // SAFETY: as above.
    let ifindex = unsafe { (*ctx.skb.skb).ifindex };
    match maps::pod(source) {
        Some(pod) if pod.ifindex == ifindex => {}
        _ => {
            trace!(
                ctx,
                "dropped: not this pod's address: {:i}",
                u32::from_be(source)
            );
            return TC_ACT_SHOT;
        }
    }
    let Some(pod) = maps::pod(destination) else {
        return TC_ACT_OK;
    };
    // Destination and source of the Ethernet header lie together, and so do the addresses in
    // the entry.
    let mut header = [0_u8; 12];
    header[..6].copy_from_slice(&pod.pod_mac);
    header[6..].copy_from_slice(&pod.host_mac);
    let peer = pod.ifindex;
    if ctx.store(0, &header, 0).is_err() {
        return TC_ACT_SHOT;
    }
    // SAFETY: the helper has no preconditions at TC ingress; an interface that is gone makes
    // it drop the packet.
    unsafe { bpf_redirect_peer(peer, 0) as i32 }
}
