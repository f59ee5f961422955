//! The masquerade table: pods that talk to the world outside the cluster do so with the
//! node's address.
//!
//! Changes one nf_tables table, `pintle-<instance>`, by netlink; the `nft` program is not
//! needed. The table is replaced as a whole in one transaction, and equals
//!
//! ```text
//! table ip pintle-<instance> {
//!   chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     ip saddr <pod_cidr> ip daddr != <cluster_cidr> ip daddr != 224.0.0.0/4 masquerade fully-random
//!   }
//! }
//! ```

use std::io;
use std::net::Ipv4Addr;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

use super::cidr::Cidr;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLMSG_ERROR: u16 = 2;
const NESTED: u16 = 0x8000;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = (SUBSYSTEM << 8) | 2;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
const IPV4: u8 = 2;
const UNSPECIFIED: u8 = 0;

const CHAIN: &str = "postrouting";
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_SRCNAT: u32 = 100;
const REGISTER: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const SOURCE_OFFSET: u32 = 12;
const DESTINATION_OFFSET: u32 = 16;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const FULLY_RANDOM: u32 = 1 << 4;

/// Puts the table in place, replacing one that is there.
pub(super) fn install(name: &str, pods: Cidr, cluster: Cidr) -> io::Result<()> {
    let multicast = Cidr::around(Ipv4Addr::new(224, 0, 0, 0), 4);
    let mut batch = Batch::default();
    // Made first so that its removal cannot fail, all in one transaction.
    batch.table(NEW_TABLE, name);
    batch.table(DELETE_TABLE, name);
    batch.table(NEW_TABLE, name);
    batch.message(NEW_CHAIN, NLM_F_CREATE, IPV4, |chain| {
        chain.string(1, name);
        chain.string(3, CHAIN);
        chain.nested(4, |hook| {
            hook.word(1, HOOK_POSTROUTING);
            hook.word(2, PRIORITY_SRCNAT);
        });
        chain.string(7, "nat");
    });
    batch.message(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, IPV4, |rule| {
        rule.string(1, name);
        rule.string(2, CHAIN);
        rule.nested(4, |list| {
            list.compare(SOURCE_OFFSET, EQUAL, pods);
            list.compare(DESTINATION_OFFSET, NOT_EQUAL, cluster);
            list.compare(DESTINATION_OFFSET, NOT_EQUAL, multicast);
            list.expression("masq", |masquerade| masquerade.word(1, FULLY_RANDOM));
        });
    });
    batch.commit()
}

/// Removes the table; one that is not there is removed already.
pub(super) fn remove(name: &str) -> io::Result<()> {
    let mut batch = Batch::default();
    batch.table(NEW_TABLE, name);
    batch.table(DELETE_TABLE, name);
    batch.commit()
}

/// One transaction being written.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    messages: u32,
}

impl Batch {
    fn table(&mut self, kind: u16, name: &str) {
        self.message(kind, NLM_F_CREATE, IPV4, |table| table.string(1, name));
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, fill: impl FnOnce(&mut Attributes)) {
        self.messages += 1;
        let start = self.bytes.len();
        self.header(kind, NLM_F_REQUEST | NLM_F_ACK | flags, family, 0);
        let mut attributes = Attributes(std::mem::take(&mut self.bytes));
        fill(&mut attributes);
        self.bytes = attributes.0;
        self.close(start);
    }

    fn header(&mut self, kind: u16, flags: u16, family: u8, resource: u16) {
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.messages.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
    }

    fn close(&mut self, start: usize) {
        // Every message written here is far below 4 GiB.
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sends the transaction and waits for an acknowledgement of each message, or for the
    /// first refusal, which undoes all of it.
    fn commit(self) -> io::Result<()> {
        let mut envelope = Self::default();
        envelope.header(BATCH_BEGIN, NLM_F_REQUEST, UNSPECIFIED, SUBSYSTEM);
        envelope.close(0);
        envelope.bytes.extend(&self.bytes);
        let end = envelope.bytes.len();
        envelope.header(BATCH_END, NLM_F_REQUEST, UNSPECIFIED, SUBSYSTEM);
        envelope.close(end);

        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel answers within the call; the timeout only guards against one that does
        // not know the protocol at all.
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(5))?;
        socket.send(&envelope.bytes, 0)?;
        let mut acknowledged = 0;
        while acknowledged < self.messages {
            let (bytes, _) = socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while let Some((length, kind, error)) = answer(rest) {
                if kind == NLMSG_ERROR {
                    if error != 0 {
                        return Err(io::Error::from_raw_os_error(-error));
                    }
                    acknowledged += 1;
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

/// Length, type and error of the first message in `bytes`.
fn answer(bytes: &[u8]) -> Option<(usize, u16, i32)> {
    let word = |at: usize| <[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok();
    let length = u32::from_ne_bytes(word(0)?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let error = word(16).map_or(0, i32::from_ne_bytes);
    (length >= 16).then_some((length, kind, error))
}

/// Attributes being written behind a header or inside another attribute.
struct Attributes(Vec<u8>);

impl Attributes {
    fn attribute(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0, 0]);
        self.0.extend(kind.to_ne_bytes());
        fill(self);
        // Every attribute written here is far below 64 KiB.
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn string(&mut self, kind: u16, text: &str) {
        self.attribute(kind, |value| {
            value.0.extend(text.as_bytes());
            value.0.push(0);
        });
    }

    fn word(&mut self, kind: u16, word: u32) {
        self.attribute(kind, |value| value.0.extend(word.to_be_bytes()));
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, fill);
    }

    fn data(&mut self, kind: u16, bytes: [u8; 4]) {
        self.nested(kind, |data| {
            data.attribute(1, |value| value.0.extend(bytes));
        });
    }

    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.nested(1, |element| {
            element.string(1, name);
            element.nested(2, fill);
        });
    }

    /// Goes on only when the address at `offset` of the IP header is (not) in the range.
    fn compare(&mut self, offset: u32, operator: u32, range: Cidr) {
        self.expression("payload", |payload| {
            payload.word(1, REGISTER);
            payload.word(2, NETWORK_HEADER);
            payload.word(3, offset);
            payload.word(4, 4);
        });
        self.expression("bitwise", |bitwise| {
            bitwise.word(1, REGISTER);
            bitwise.word(2, REGISTER);
            bitwise.word(3, 4);
            bitwise.data(4, range.netmask().octets());
            bitwise.data(5, [0; 4]);
        });
        self.expression("cmp", |compare| {
            compare.word(1, REGISTER);
            compare.word(2, operator);
            compare.data(3, range.network().octets());
        });
    }
}
