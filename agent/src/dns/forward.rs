//! Names outside the cluster: asked of the host's servers, and remembered.
//!
//! Owns the cache. Watches the servers' answers; changes nothing else.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{LowerName, RData, RecordType};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::resolv::Upstreams;

/// How long one server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Each server is asked so often before the client is told.
const ROUNDS: usize = 2;
/// Largest answer asked for by UDP; passes every path without fragments.
const PAYLOAD: u16 = 1_232;
/// Nothing is remembered longer.
const LONGEST: u32 = 30;
/// Answers remembered at most.
const CACHE_SIZE: usize = 10_000;

/// Why a name could not be resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("the host has no DNS server to ask")]
    NoServers,
    #[error("no DNS server answered")]
    NoAnswer(#[source] io::Error),
}

/// Asks the host's servers.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Upstreams,
    cache: Mutex<HashMap<Key, Entry>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: LowerName,
    kind: RecordType,
    dnssec: bool,
}

#[derive(Debug)]
struct Entry {
    message: Message,
    stored: Instant,
    lifetime: u32,
}

impl Forwarder {
    pub(super) fn new(upstreams: Upstreams) -> Self {
        Self {
            upstreams,
            cache: Mutex::new(HashMap::new()),
        }
    }

    /// The answer to a question, from the cache or from the first server that has one.
    pub(super) async fn resolve(
        &self,
        query: &Query,
        dnssec: bool,
    ) -> Result<Message, ForwardError> {
        let key = Key {
            name: LowerName::new(query.name()),
            kind: query.query_type(),
            dnssec,
        };
        if let Some(message) = self.cached(&key) {
            return Ok(message);
        }
        let message = self.ask(query, dnssec).await?;
        self.remember(key, &message);
        Ok(message)
    }

    fn cached(&self, key: &Key) -> Option<Message> {
        let cache = self.cache.lock();
        let entry = cache.get(key)?;
        let age = u32::try_from(entry.stored.elapsed().as_secs()).unwrap_or(u32::MAX);
        if age >= entry.lifetime {
            return None;
        }
        let mut message = entry.message.clone();
        let sections = [
            &mut message.answers,
            &mut message.authorities,
            &mut message.additionals,
        ];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(message)
    }

    fn remember(&self, key: Key, message: &Message) {
        let Some(lifetime) = lifetime(message) else {
            return;
        };
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_SIZE {
            cache.retain(|_, entry| {
                entry.stored.elapsed() < Duration::from_secs(entry.lifetime.into())
            });
            if cache.len() >= CACHE_SIZE {
                cache.clear();
            }
        }
        cache.insert(
            key,
            Entry {
                message: message.clone(),
                stored: Instant::now(),
                lifetime,
            },
        );
    }

    async fn ask(&self, query: &Query, dnssec: bool) -> Result<Message, ForwardError> {
        let servers = self.upstreams.servers();
        if servers.is_empty() {
            return Err(ForwardError::NoServers);
        }
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        let mut refusal = None;
        for _ in 0..ROUNDS {
            for server in servers.iter() {
                match ask_server(*server, query, dnssec).await {
                    Ok(message) if is_final(message.metadata.response_code) => return Ok(message),
                    Ok(message) => refusal = Some(message),
                    Err(error) => {
                        tracing::debug!(%server, %error, name = %query.name(), "no DNS answer");
                        last = error;
                    }
                }
            }
            // A server that answers with a failure will do so again.
            if let Some(message) = refusal {
                return Ok(message);
            }
        }
        Err(ForwardError::NoAnswer(last))
    }
}

/// Whether another server need not be asked.
fn is_final(code: ResponseCode) -> bool {
    matches!(code, ResponseCode::NoError | ResponseCode::NXDomain)
}

/// Seconds for which an answer may be remembered.
fn lifetime(message: &Message) -> Option<u32> {
    if !is_final(message.metadata.response_code) || message.metadata.truncation {
        return None;
    }
    let seconds = if message.answers.is_empty() {
        // RFC 2308: the SOA record tells how long a "no" holds; without one it does not.
        message
            .authorities
            .iter()
            .find_map(|record| match &record.data {
                RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
                _ => None,
            })?
    } else {
        message.answers.iter().map(|record| record.ttl).min()?
    };
    (seconds > 0).then_some(seconds.min(LONGEST))
}

async fn ask_server(server: SocketAddr, query: &Query, dnssec: bool) -> io::Result<Message> {
    let mut request = Message::query();
    request.metadata.op_code = OpCode::Query;
    request.metadata.recursion_desired = true;
    request.add_query(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD).set_version(0);
    edns.set_dnssec_ok(dnssec);
    request.set_edns(edns);
    let bytes = request.to_vec().map_err(io::Error::other)?;
    let answer = timeout(PATIENCE, ask_udp(server, &request, &bytes)).await??;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    timeout(PATIENCE, ask_tcp(server, &request, &bytes)).await?
}

async fn ask_udp(server: SocketAddr, request: &Message, bytes: &[u8]) -> io::Result<Message> {
    // A port of its own for each question is what makes forged answers hard.
    let local: SocketAddr = if server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match Message::from_vec(&buffer[..length]) {
            Ok(answer) if is_answer(request, &answer) => return Ok(answer),
            Ok(_) => tracing::debug!(%server, "DNS answer to another question"),
            Err(error) => tracing::debug!(%server, %error, "unreadable DNS answer"),
        }
    }
}

async fn ask_tcp(server: SocketAddr, request: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend(bytes);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    let answer = Message::from_vec(&answer).map_err(io::Error::other)?;
    if is_answer(request, &answer) {
        Ok(answer)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn is_answer(request: &Message, answer: &Message) -> bool {
    let same_question = match (&request.queries[..], &answer.queries[..]) {
        ([asked], [answered]) => {
            asked.name().eq_ignore_root(answered.name())
                && asked.query_type() == answered.query_type()
        }
        // Some servers leave the question out of a refusal.
        (_, []) => !is_final(answer.metadata.response_code),
        _ => false,
    };
    request.metadata.id == answer.metadata.id && same_question
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, SOA};
    use hickory_proto::rr::{Name, Record};

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn answers_live_as_long_as_their_shortest_record_and_no_longer_than_half_a_minute() {
        let mut message = Message::response(1, OpCode::Query);
        assert_eq!(lifetime(&message), None, "a bare no is not remembered");
        let soa = SOA::new(name("a."), name("b."), 1, 1, 1, 1, 7);
        message.add_authority(Record::from_rdata(name("."), 60, RData::SOA(soa)));
        message.metadata.response_code = ResponseCode::NXDomain;
        assert_eq!(lifetime(&message), Some(7));
        let record = |ttl| Record::from_rdata(name("x."), ttl, RData::A(A(Ipv4Addr::LOCALHOST)));
        message.metadata.response_code = ResponseCode::NoError;
        message.add_answer(record(300));
        assert_eq!(lifetime(&message), Some(30));
        message.add_answer(record(3));
        assert_eq!(lifetime(&message), Some(3));
        message.metadata.response_code = ResponseCode::ServFail;
        assert_eq!(lifetime(&message), None);
    }

    #[tokio::test]
    async fn without_servers_there_is_an_error_at_once() {
        let forwarder = Forwarder::new(Upstreams::fixed(Vec::new()));
        let query = Query::query(name("example.com."), RecordType::A);
        let error = forwarder.resolve(&query, false).await.unwrap_err();
        assert!(matches!(error, ForwardError::NoServers));
    }
}
