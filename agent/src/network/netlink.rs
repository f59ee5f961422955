//! Requests to the kernel's routing subsystem, one at a time and synchronous.
//!
//! A [`Netlink`] belongs to the network namespace of the thread that opened it and stays there
//! whoever uses it later: that is how the agent works inside a pod's namespace without leaving
//! its own. Changes links, addresses, routes and neighbours; decides nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::cidr::Cidr;
use crate::sys;

/// `rtm_protocol` of every route made here (`p`): shows who made it.
pub(super) const ROUTE_PROTOCOL: RouteProtocol = RouteProtocol::Other(112);

/// Hardware address.
pub(super) type Mac = [u8; 6];

/// A request the kernel did not carry out.
#[derive(Debug, thiserror::Error)]
#[error("cannot {request}")]
pub struct NetlinkError {
    /// What was asked for, in words.
    pub request: String,
    /// What the kernel said.
    pub source: io::Error,
}

impl NetlinkError {
    /// What was asked to be removed is not there.
    pub(super) fn is_gone(&self) -> bool {
        matches!(
            self.source.raw_os_error(),
            Some(libc::ENODEV | libc::ESRCH | libc::ENOENT | libc::EADDRNOTAVAIL)
        )
    }
}

/// What the agent needs to know of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) alias: Option<String>,
    pub(super) mtu: u32,
    /// Index of the other end, in that end's namespace.
    pub(super) peer: Option<u32>,
    pub(super) address: Option<Mac>,
}

/// A pair of interfaces to be made.
#[derive(Clone, Debug)]
pub(super) struct VethPair<'a> {
    pub(super) host_name: &'a str,
    pub(super) host_mac: Mac,
    pub(super) pod_name: &'a str,
    pub(super) pod_mac: Mac,
    pub(super) pod_netns: RawFd,
    pub(super) mtu: u32,
}

/// A route to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) destination: Cidr,
    pub(super) via: Via,
    /// Source address the host uses.
    pub(super) source: Option<Ipv4Addr>,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Via {
    /// The destination is on that link.
    Link(u32),
    /// A gateway on that link.
    Gateway(Ipv4Addr, u32),
    /// A neighbour on whichever link the kernel reaches it by. The metric tells whose route it
    /// is.
    Neighbour { address: Ipv4Addr, metric: u32 },
    /// Nowhere: senders are told at once. The metric tells whose route it is.
    Unreachable { metric: u32 },
}

/// One socket in one network namespace.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink")
            .field("fd", &self.socket.as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl Netlink {
    /// A socket in the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(Self {
                socket,
                sequence: 0,
            })
        };
        open().map_err(|source| NetlinkError {
            request: "open a netlink socket".to_owned(),
            source,
        })
    }

    /// Cookie of the namespace this socket is in.
    pub(super) fn namespace(&self) -> Result<u64, NetlinkError> {
        sys::netns::cookie(&self.socket).map_err(|source| NetlinkError {
            request: "identify a network namespace".to_owned(),
            source,
        })
    }

    /// The link of that name.
    pub(super) fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let request = RouteNetlinkMessage::GetLink(message);
        match self.request(format!("look up the interface {name}"), request, 0) {
            Ok(answers) => Ok(links(answers).next()),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All links of this namespace.
    pub(super) fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = self.request("list interfaces".to_owned(), request, NLM_F_DUMP)?;
        Ok(links(answers).collect())
    }

    /// Makes both ends of a veth pair, the second one in another namespace and still down: the
    /// kernel cannot take it up before the pair is complete.
    pub(super) fn add_veth(&mut self, pair: &VethPair<'_>) -> Result<(), NetlinkError> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(pair.pod_name.to_owned()),
            LinkAttribute::Address(pair.pod_mac.to_vec()),
            LinkAttribute::Mtu(pair.mtu),
            LinkAttribute::NetNsFd(pair.pod_netns),
        ];
        let mut message = up(LinkMessage::default());
        message.attributes = vec![
            LinkAttribute::IfName(pair.host_name.to_owned()),
            LinkAttribute::Address(pair.host_mac.to_vec()),
            LinkAttribute::Mtu(pair.mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.create(
            format!("create the interface {}", pair.host_name),
            RouteNetlinkMessage::NewLink(message),
        )
    }

    /// Makes a bridge, up. One without ports is a place for addresses.
    pub(super) fn add_bridge(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut message = up(LinkMessage::default());
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ];
        self.create(
            format!("create the bridge {name}"),
            RouteNetlinkMessage::NewLink(message),
        )
    }

    /// Marks a link.
    pub(super) fn set_alias(&mut self, index: u32, alias: &str) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message
            .attributes
            .push(LinkAttribute::IfAlias(alias.to_owned()));
        self.change(
            format!("set the alias {alias}"),
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Takes a link up.
    pub(super) fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut message = up(LinkMessage::default());
        message.header.index = index;
        self.change(
            "take an interface up".to_owned(),
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// Removes a link and with it addresses, routes and neighbours. Takes some 20 ms.
    pub(super) fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        gone_is_fine(self.change(
            "remove an interface".to_owned(),
            RouteNetlinkMessage::DelLink(message),
        ))
    }

    /// Gives a link an address of its own.
    pub(super) fn add_address(
        &mut self,
        index: u32,
        address: Ipv4Addr,
    ) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = 32;
        message.header.scope = AddressScope::Universe;
        message.header.index = index;
        message.attributes = vec![
            AddressAttribute::Local(IpAddr::V4(address)),
            AddressAttribute::Address(IpAddr::V4(address)),
        ];
        self.replace(
            format!("add the address {address}"),
            RouteNetlinkMessage::NewAddress(message),
        )
    }

    /// The IPv4 addresses of a link.
    pub(super) fn addresses(&mut self, index: u32) -> Result<Vec<Ipv4Addr>, NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        let request = RouteNetlinkMessage::GetAddress(message);
        let answers = self.request("list addresses".to_owned(), request, NLM_F_DUMP)?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(message) if message.header.index == index => {
                    message
                        .attributes
                        .into_iter()
                        .find_map(|attribute| match attribute {
                            AddressAttribute::Local(IpAddr::V4(address)) => Some(address),
                            _ => None,
                        })
                }
                _ => None,
            })
            .collect())
    }

    /// Takes an address off a link.
    pub(super) fn delete_address(
        &mut self,
        index: u32,
        address: Ipv4Addr,
    ) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = 32;
        message.header.index = index;
        message.attributes = vec![AddressAttribute::Local(IpAddr::V4(address))];
        gone_is_fine(self.change(
            format!("remove the address {address}"),
            RouteNetlinkMessage::DelAddress(message),
        ))
    }

    /// Makes or replaces a route.
    pub(super) fn add_route(&mut self, route: &Route) -> Result<(), NetlinkError> {
        self.replace(
            format!("add the route to {}", route.destination),
            RouteNetlinkMessage::NewRoute(route.message()),
        )
    }

    /// Removes a route.
    pub(super) fn delete_route(&mut self, route: &Route) -> Result<(), NetlinkError> {
        gone_is_fine(self.change(
            format!("remove the route to {}", route.destination),
            RouteNetlinkMessage::DelRoute(route.message()),
        ))
    }

    /// IPv4 routes of the main table.
    pub(super) fn routes(&mut self) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let request = RouteNetlinkMessage::GetRoute(message);
        let answers = self.request("list routes".to_owned(), request, NLM_F_DUMP)?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewRoute(route)
                    if route.header.table == RouteHeader::RT_TABLE_MAIN =>
                {
                    Some(route)
                }
                _ => None,
            })
            .collect())
    }

    /// Removes a route as the kernel listed it.
    pub(super) fn delete_listed_route(&mut self, route: RouteMessage) -> Result<(), NetlinkError> {
        gone_is_fine(self.change(
            "remove a route".to_owned(),
            RouteNetlinkMessage::DelRoute(route),
        ))
    }

    /// Fixes the hardware address of a neighbour, so that nobody asks for it.
    pub(super) fn add_neighbour(
        &mut self,
        index: u32,
        address: Ipv4Addr,
        mac: Mac,
    ) -> Result<(), NetlinkError> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.replace(
            format!("add the neighbour {address}"),
            RouteNetlinkMessage::NewNeighbour(message),
        )
    }

    fn create(&mut self, what: String, request: RouteNetlinkMessage) -> Result<(), NetlinkError> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.request(what, request, flags).map(drop)
    }

    fn replace(&mut self, what: String, request: RouteNetlinkMessage) -> Result<(), NetlinkError> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(what, request, flags).map(drop)
    }

    fn change(&mut self, what: String, request: RouteNetlinkMessage) -> Result<(), NetlinkError> {
        self.request(what, request, NLM_F_ACK).map(drop)
    }

    fn request(
        &mut self,
        what: String,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.exchange(request, flags)
            .map_err(|source| NetlinkError {
                request: what,
                source,
            })
    }

    /// Sends one request and reads until its end: an acknowledgement, the end of a dump, or
    /// the one answer of a request without either.
    fn exchange(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let is_single = flags & (NLM_F_ACK | NLM_F_DUMP) == 0;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(answers),
                            Some(_) => Err(error.to_io()),
                        };
                    }
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(answer) => {
                        answers.push(answer);
                        if is_single {
                            return Ok(answers);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Route {
    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = ROUTE_PROTOCOL;
        message.header.destination_prefix_length = self.destination.prefix();
        if self.destination.prefix() > 0 {
            message
                .attributes
                .push(RouteAttribute::Destination(RouteAddress::Inet(
                    self.destination.network(),
                )));
        }
        if let Some(source) = self.source {
            message
                .attributes
                .push(RouteAttribute::PrefSource(RouteAddress::Inet(source)));
        }
        message.header.kind = RouteType::Unicast;
        match self.via {
            Via::Link(index) => {
                message.header.scope = RouteScope::Link;
                message.attributes.push(RouteAttribute::Oif(index));
            }
            Via::Gateway(gateway, index) => {
                message.header.scope = RouteScope::Universe;
                message.header.flags = RouteFlags::Onlink;
                message
                    .attributes
                    .push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
                message.attributes.push(RouteAttribute::Oif(index));
            }
            Via::Neighbour { address, metric } => {
                message.header.scope = RouteScope::Universe;
                message
                    .attributes
                    .push(RouteAttribute::Gateway(RouteAddress::Inet(address)));
                message.attributes.push(RouteAttribute::Priority(metric));
            }
            Via::Unreachable { metric } => {
                message.header.kind = RouteType::Unreachable;
                message.header.scope = RouteScope::Universe;
                message.attributes.push(RouteAttribute::Priority(metric));
            }
        }
        message
    }
}

fn up(mut message: LinkMessage) -> LinkMessage {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

fn gone_is_fine(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

fn links(answers: Vec<RouteNetlinkMessage>) -> impl Iterator<Item = Link> {
    answers.into_iter().filter_map(|answer| {
        let RouteNetlinkMessage::NewLink(message) = answer else {
            return None;
        };
        let mut link = Link {
            index: message.header.index,
            ..Link::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Link(peer) => link.peer = Some(peer),
                LinkAttribute::Address(address) => {
                    link.address = <[u8; 6]>::try_from(address.as_slice()).ok();
                }
                _ => {}
            }
        }
        Some(link)
    })
}
