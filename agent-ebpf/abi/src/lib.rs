//! Keys and values shared by the BPF programs and the agent.
//!
//! Watches and changes nothing: it fixes the layout of the map entries through which the
//! agent (`service`, `network`) tells the BPF programs what to do. Who reacts next: the
//! programs of `agent-ebpf`, at the next packet or system call.
//!
//! Addresses are `u32` and ports `u16` holding the bytes as they are on the wire (network
//! byte order in memory), because that is how both `bpf_sock_addr` and packets show them.
//! The agent handles entries as plain byte arrays ([`Entry`]), so neither side needs a
//! transmute.
//!
//! [`VERSION`] is part of the path under which maps are pinned. Any change of a layout, of a
//! map's type or of its meaning takes a new number; the old maps then serve until the new
//! ones are filled.
#![no_std]

/// Version of everything below.
pub const VERSION: u32 = 1;

/// Most frontends (address, port, protocol) the node can hold.
pub const MAX_FRONTENDS: u32 = 131_072;
/// Most backends of all frontends together.
pub const MAX_BACKENDS: u32 = 524_288;
/// Most pods of one node with an entry on the fast path.
pub const MAX_PODS: u32 = 4_096;
/// Network namespaces in which Services exist: the pods' and the host's.
pub const MAX_NAMESPACES: u32 = MAX_PODS + 4;
/// Translated sockets remembered for the way back; the least recently used go first.
pub const MAX_PEERS: u32 = 32_768;
/// Unconnected UDP sockets whose choice of backend is remembered.
pub const MAX_UDP_FLOWS: u32 = 16_384;

/// Names of the maps in the object, also their pins.
pub mod map {
    /// `FrontendKey` → `Frontend`.
    pub const FRONTENDS: &str = "FRONTENDS";
    /// `BackendKey` → `Backend`.
    pub const BACKENDS: &str = "BACKENDS";
    /// `PeerKey` → `Peer`.
    pub const PEERS: &str = "PEERS";
    /// `UdpFlowKey` → `Backend`.
    pub const UDP_FLOWS: &str = "UDP_FLOWS";
    /// Address of a pod on this node → `Pod`.
    pub const PODS: &str = "PODS";
    /// Cookie of a network namespace → address of the pod it belongs to, 0 for the host's.
    pub const NAMESPACES: &str = "NAMESPACES";
}

/// Names of the programs in the object.
pub mod program {
    /// Programs on the cgroup hook, which are also the names of their link pins.
    pub const CGROUP: [&str; 7] = [
        "connect4",
        "connect6",
        "sendmsg4",
        "recvmsg4",
        "recvmsg6",
        "getpeername4",
        "getpeername6",
    ];
    /// Program on the host side of every pod's veth, for packets the pod sends.
    pub const POD_EGRESS: &str = "pod_egress";
}

/// A map key or value with a fixed layout, seen as bytes.
pub trait Entry: Sized {
    /// `[u8; size_of::<Self>()]`.
    type Bytes: AsRef<[u8]> + Copy;
    /// The bytes as they stand in the map.
    fn to_bytes(&self) -> Self::Bytes;
    /// What the bytes in the map mean.
    fn from_bytes(bytes: Self::Bytes) -> Self;
}

/// Declares a `#[repr(C)]` struct without implicit padding, its size assertion and [`Entry`].
macro_rules! entry {
    ($(#[$meta:meta])* $name:ident, $size:literal { $($(#[$fmeta:meta])* $field:ident: $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),+ }

        const _: () = assert!(core::mem::size_of::<$name>() == $size);
        // No padding: the fields fill the struct exactly.
        const _: () = assert!(0 $(+ core::mem::size_of::<$ty>())+ == $size);

        impl Entry for $name {
            type Bytes = [u8; $size];

            fn to_bytes(&self) -> [u8; $size] {
                let mut out = [0; $size];
                let mut at = 0;
                $(
                    let field = self.$field.to_ne_bytes();
                    out[at..at + field.len()].copy_from_slice(&field);
                    at += field.len();
                )+
                debug_assert!(at == $size);
                out
            }

            fn from_bytes(bytes: [u8; $size]) -> Self {
                let mut at = 0;
                $(
                    let mut field = [0; core::mem::size_of::<$ty>()];
                    field.copy_from_slice(&bytes[at..at + core::mem::size_of::<$ty>()]);
                    let $field = <$ty>::from_ne_bytes(field);
                    at += core::mem::size_of::<$ty>();
                )+
                debug_assert!(at == $size);
                Self { $($field),+ }
            }
        }
    };
}

entry! {
    /// What a client connects or sends to.
    FrontendKey, 8 {
        /// Virtual address.
        address: u32,
        /// Virtual port.
        port: u16,
        /// `IPPROTO_TCP` or `IPPROTO_UDP`.
        protocol: u8,
        /// Kind of lookup; 0: from anywhere.
        scope: u8,
    }
}

entry! {
    /// Where the connections of a frontend go.
    Frontend, 12 {
        /// First half of the keys of its backends.
        service: u32,
        /// Number of backends: slots `0..count` exist.
        count: u32,
        /// Reserved for affinity and algorithms.
        flags: u32,
    }
}

entry! {
    /// One slot of a service.
    BackendKey, 8 {
        /// [`Frontend::service`].
        service: u32,
        /// `0..count`.
        slot: u32,
    }
}

entry! {
    /// One endpoint.
    Backend, 8 {
        /// Its address.
        address: u32,
        /// Its port.
        port: u16,
        /// Reserved.
        flags: u16,
    }
}

entry! {
    /// A socket and the backend it talks to.
    PeerKey, 16 {
        /// `bpf_get_socket_cookie`.
        cookie: u64,
        /// Address of the backend.
        address: u32,
        /// Port of the backend.
        port: u16,
        /// Protocol.
        protocol: u16,
    }
}

entry! {
    /// What the socket believes it talks to.
    Peer, 8 {
        /// Virtual address.
        address: u32,
        /// Virtual port.
        port: u16,
        /// Reserved.
        flags: u16,
    }
}

entry! {
    /// An unconnected UDP socket and the frontend it sends to.
    UdpFlowKey, 16 {
        /// `bpf_get_socket_cookie`.
        cookie: u64,
        /// Virtual address.
        address: u32,
        /// Virtual port.
        port: u16,
        /// Reserved.
        flags: u16,
    }
}

/// A pod of this node, by its address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Index of the host side of its veth.
    pub ifindex: u32,
    /// Reserved for the pod's identity (policy).
    pub identity: u32,
    /// Address of the interface in the pod.
    pub pod_mac: [u8; 6],
    /// Address of the host side.
    pub host_mac: [u8; 6],
}

const _: () = assert!(core::mem::size_of::<Pod>() == 20);

impl Entry for Pod {
    type Bytes = [u8; 20];

    fn to_bytes(&self) -> [u8; 20] {
        let mut out = [0; 20];
        out[0..4].copy_from_slice(&self.ifindex.to_ne_bytes());
        out[4..8].copy_from_slice(&self.identity.to_ne_bytes());
        out[8..14].copy_from_slice(&self.pod_mac);
        out[14..20].copy_from_slice(&self.host_mac);
        out
    }

    fn from_bytes(bytes: [u8; 20]) -> Self {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut pod = Self {
            ifindex: word(0),
            identity: word(4),
            ..Self::default()
        };
        pod.pod_mac.copy_from_slice(&bytes[8..14]);
        pod.host_mac.copy_from_slice(&bytes[14..20]);
        pod
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_way_through_bytes() {
        let key = FrontendKey {
            address: u32::from_ne_bytes([10, 96, 0, 1]),
            port: 443u16.to_be(),
            protocol: 6,
            scope: 0,
        };
        assert_eq!(key.to_bytes()[..6], [10, 96, 0, 1, 1, 187]);
        assert_eq!(FrontendKey::from_bytes(key.to_bytes()), key);
        let pod = Pod {
            ifindex: 7,
            identity: 9,
            pod_mac: [1, 2, 3, 4, 5, 6],
            host_mac: [7, 8, 9, 10, 11, 12],
        };
        assert_eq!(Pod::from_bytes(pod.to_bytes()), pod);
    }
}
