//! One DNS request: from the zone, or forwarded, and the response written.
//!
//! Watches the zone; changes nothing. Who reacts next: the client.

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::timeout;

use super::forward::Forwarder;
use super::zone::{Answer, Reply, Zone};

/// How long a question about the cluster waits after a start for the Services to be known.
const SYNC_PATIENCE: Duration = Duration::from_secs(3);
/// Largest answer by UDP, whatever the client would take.
const PAYLOAD: u16 = 1_232;
/// What a client without EDNS takes (RFC 1035).
const PLAIN_PAYLOAD: u16 = 512;
/// Aliases followed within the cluster before giving up.
const MAX_ALIASES: usize = 8;

/// Answers requests.
#[derive(Debug)]
pub(super) struct Handler {
    zone: Arc<RwLock<Zone>>,
    synced: watch::Receiver<bool>,
    forwarder: Forwarder,
}

/// A reply, and whether this server is the authority for it.
struct Outcome {
    reply: Reply,
    authoritative: bool,
}

impl Handler {
    pub(super) fn new(
        zone: Arc<RwLock<Zone>>,
        synced: watch::Receiver<bool>,
        forwarder: Forwarder,
    ) -> Self {
        Self {
            zone,
            synced,
            forwarder,
        }
    }

    /// Answers one question, following aliases to their end: stub resolvers do not.
    async fn answer(&self, query: &Query, dnssec: bool) -> Outcome {
        let mut aliases = Vec::new();
        let mut name = query.name().clone();
        for _ in 0..MAX_ALIASES {
            match self.look_up(&name, query.query_type()).await {
                Err(code) => return failure(code),
                Ok(Answer::Reply(mut reply)) => {
                    reply.answers.splice(0..0, aliases);
                    return Outcome {
                        reply,
                        authoritative: true,
                    };
                }
                Ok(Answer::Alias(record, target)) => {
                    aliases.push(*record);
                    if query.query_type() == RecordType::CNAME {
                        return Outcome {
                            reply: Reply {
                                answers: aliases,
                                ..Reply::default()
                            },
                            authoritative: true,
                        };
                    }
                    name = target;
                }
                Ok(Answer::Foreign) => {
                    let mut outcome = self.forward(name, query, dnssec).await;
                    outcome.authoritative = !aliases.is_empty();
                    outcome.reply.answers.splice(0..0, aliases);
                    return outcome;
                }
            }
        }
        failure(ResponseCode::ServFail)
    }

    /// What the zone says, once it is known.
    async fn look_up(&self, name: &Name, kind: RecordType) -> Result<Answer, ResponseCode> {
        let answer = self.zone.read().answer(name, kind);
        if *self.synced.borrow() || answer == Answer::Foreign {
            return Ok(answer);
        }
        let mut synced = self.synced.clone();
        match timeout(SYNC_PATIENCE, synced.wait_for(|synced| *synced)).await {
            Ok(Ok(_)) => {}
            _ => return Err(ResponseCode::ServFail),
        }
        Ok(self.zone.read().answer(name, kind))
    }

    async fn forward(&self, name: Name, query: &Query, dnssec: bool) -> Outcome {
        let mut question = query.clone();
        question.set_name(name);
        match self.forwarder.resolve(&question, dnssec).await {
            Ok(message) => Outcome {
                reply: Reply {
                    code: message.metadata.response_code,
                    answers: message.answers,
                    authorities: message.authorities,
                    additionals: message.additionals,
                },
                authoritative: false,
            },
            Err(error) => {
                tracing::debug!(name = %question.name(), %error, "name not resolved");
                failure(ResponseCode::ServFail)
            }
        }
    }
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response_handle: R,
    ) -> ResponseInfo {
        let client = request.edns.as_ref();
        let mut edns = Edns::new();
        edns.set_version(0);
        let payload = client.map_or(PLAIN_PAYLOAD, Edns::max_payload);
        edns.set_max_payload(payload.clamp(PLAIN_PAYLOAD, PAYLOAD));
        let dnssec = client.is_some_and(|edns| edns.flags().dnssec_ok);
        edns.set_dnssec_ok(dnssec);

        let outcome = match request.request_info() {
            _ if request.metadata.op_code != OpCode::Query => failure(ResponseCode::NotImp),
            _ if client.is_some_and(|edns| edns.version() > 0) => failure(ResponseCode::BADVERS),
            Err(_) => failure(ResponseCode::FormErr),
            Ok(info) if info.query.query_class() != DNSClass::IN => failure(ResponseCode::Refused),
            Ok(info) => {
                let mut outcome = self.answer(info.query.original(), dnssec).await;
                spread(&mut outcome.reply, request.metadata.id);
                outcome
            }
        };

        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = outcome.reply.code;
        metadata.authoritative = outcome.authoritative;
        metadata.recursion_available = true;
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if client.is_some() {
            edns.set_rcode_high(outcome.reply.code.high());
            builder.edns(&edns);
        }
        let reply = &outcome.reply;
        let response = builder.build(
            metadata,
            &reply.answers,
            &reply.authorities,
            [],
            &reply.additionals,
        );
        match response_handle.send_response(response).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(client = %request.src(), %error, "DNS answer not sent");
                let mut metadata = Metadata::response_from_request(&request.metadata);
                metadata.response_code = ResponseCode::ServFail;
                hickory_proto::op::Header {
                    metadata,
                    counts: hickory_proto::op::HeaderCounts::default(),
                }
                .into()
            }
        }
    }
}

fn failure(code: ResponseCode) -> Outcome {
    Outcome {
        reply: Reply {
            code,
            ..Reply::default()
        },
        authoritative: false,
    }
}

/// Turns several addresses of one name so that clients that take the first one spread.
fn spread(reply: &mut Reply, id: u16) {
    let is_one_set = reply
        .answers
        .windows(2)
        .all(|pair| pair[0].name == pair[1].name && pair[0].record_type() == RecordType::A);
    if is_one_set && reply.answers.len() > 1 {
        let turn = usize::from(id) % reply.answers.len();
        reply.answers.rotate_left(turn);
    }
}
