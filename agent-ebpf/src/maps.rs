//! The maps, pinned by name under the agent's directory on bpffs.
//!
//! The agent writes [`FRONTENDS`], [`BACKENDS`], [`PODS`] and [`NAMESPACES`]; the programs write [`PEERS`] and
//! [`UDP_FLOWS`], from which the agent removes what points to backends that are gone.
//!
//! The hash maps are not preallocated: an empty node pays nothing for their size, and readers
//! never see one element turn into another while they look at it.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, LruHashMap};
use pintle_ebpf_abi::{
    Backend, BackendKey, Frontend, FrontendKey, MAX_BACKENDS, MAX_FRONTENDS, MAX_NAMESPACES,
    MAX_PEERS, MAX_PODS, MAX_UDP_FLOWS, Peer, PeerKey, Pod, UdpFlowKey,
};

/// Addresses that are translated.
#[map]
static FRONTENDS: HashMap<FrontendKey, Frontend> =
    HashMap::pinned(MAX_FRONTENDS, BPF_F_NO_PREALLOC);

/// Where they are translated to.
#[map]
static BACKENDS: HashMap<BackendKey, Backend> = HashMap::pinned(MAX_BACKENDS, BPF_F_NO_PREALLOC);

/// The way back: what a socket believes it talks to.
#[map]
static PEERS: LruHashMap<PeerKey, Peer> = LruHashMap::pinned(MAX_PEERS, 0);

/// The backend an unconnected UDP socket keeps for a frontend.
#[map]
static UDP_FLOWS: LruHashMap<UdpFlowKey, Backend> = LruHashMap::pinned(MAX_UDP_FLOWS, 0);

/// Pods of this node by address.
#[map]
static PODS: HashMap<u32, Pod> = HashMap::pinned(MAX_PODS, BPF_F_NO_PREALLOC);

/// Network namespaces in which this node's Services exist.
#[map]
static NAMESPACES: HashMap<u64, u32> = HashMap::pinned(MAX_NAMESPACES, BPF_F_NO_PREALLOC);

/// Whether Services exist in the network namespace with that cookie.
#[inline(always)]
pub(crate) fn has_services(namespace: u64) -> bool {
    NAMESPACES.get_ptr(namespace).is_some()
}

/// The frontend at an address, if there is one.
#[inline(always)]
pub(crate) fn frontend(key: &FrontendKey) -> Option<Frontend> {
    // SAFETY: the map is BPF_F_NO_PREALLOC, so the element is not reused before an RCU grace
    // period, and the agent replaces values whole.
    unsafe { FRONTENDS.get(key) }.copied()
}

/// One slot of a service.
#[inline(always)]
pub(crate) fn backend(service: u32, slot: u32) -> Option<Backend> {
    // SAFETY: as for `frontend`.
    unsafe { BACKENDS.get(BackendKey { service, slot }) }.copied()
}

/// The pod at an address, if it is on this node.
#[inline(always)]
pub(crate) fn pod(address: u32) -> Option<&'static Pod> {
    // SAFETY: as for `frontend`.
    unsafe { PODS.get(address) }
}

/// What a socket believes it talks to.
#[inline(always)]
pub(crate) fn peer(key: &PeerKey) -> Option<Peer> {
    // SAFETY: LRU elements can be reused while we look. The key carries the socket's cookie,
    // so the worst is one reply that shows the address of another service.
    unsafe { PEERS.get(key) }.copied()
}

/// Remembers the way back. Failure costs only the reverse view of this socket.
#[inline(always)]
pub(crate) fn remember_peer(key: &PeerKey, peer: &Peer) {
    // Nothing in a BPF program could do better than go on.
    _ = PEERS.insert(key, peer, 0);
}

/// The backend this socket used for the frontend before.
#[inline(always)]
pub(crate) fn udp_flow(key: &UdpFlowKey) -> Option<Backend> {
    // SAFETY: LRU elements can be reused while we look; the worst is one datagram sent to a
    // backend of another service, which UDP clients must cope with.
    unsafe { UDP_FLOWS.get(key) }.copied()
}

/// Remembers the choice. Failure costs only stickiness.
#[inline(always)]
pub(crate) fn remember_udp_flow(key: &UdpFlowKey, backend: &Backend) {
    _ = UDP_FLOWS.insert(key, backend, 0);
}
