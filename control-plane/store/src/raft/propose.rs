//! Gathering requests into log entries, on this member or on the one that leads.
//!
//! Watches the queue of submitted requests; changes the log by proposing them; the submitters
//! react to their outcome. This is the group commit: while one batch is being synced and the
//! one before it applied, everything that arrives waits and becomes the next entry, so a sync
//! serves as many requests as arrived during the last one.
//!
//! A member that does not lead sends its batches to the leader. A batch is proposed at most
//! once: it is sent again only while it is certain that it got into nobody's log; otherwise its
//! submitters learn that the outcome is unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use openraft::error::ClientWriteError;
use openraft::impls::OneshotResponder;
use openraft::raft::responder::Responder;
use pintle_proto::raft::{Kind, Reason};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Engine;
use super::group::{BEAT, PATIENCE};
use super::message;
use super::network::MailError;
use super::transport::{Peer, TransportError};
use super::types::{Appended, Proposal, TypeConfig};
use crate::error::StoreError;
use crate::request::{self, Outcome, Request, size_hint};

/// Most requests in one entry.
const BATCH_REQUESTS: usize = 1024;
/// An entry is closed when it reaches this size.
const BATCH_BYTES: usize = 1 << 20;
/// Entries proposed and not answered: one being synced, one being applied.
const IN_FLIGHT: usize = 2;
/// Requests that may wait before submitters do.
const QUEUE: usize = 4096;

/// Submits requests. Clones share the queue.
#[derive(Debug, Clone)]
pub(crate) struct Submitter {
    queue: mpsc::Sender<Submitted>,
}

#[derive(Debug)]
struct Submitted {
    request: Request,
    answer: oneshot::Sender<Result<Outcome, StoreError>>,
}

/// The proposing end of the queue.
#[derive(Debug)]
pub(crate) struct Proposer {
    queue: mpsc::Receiver<Submitted>,
}

/// Makes both ends.
pub(crate) fn queue() -> (Submitter, Proposer) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Submitter { queue: sender }, Proposer { queue: receiver })
}

impl Submitter {
    /// Submits a request and waits for its outcome. If this is cancelled the request may
    /// still be applied.
    pub(crate) async fn submit(&self, request: Request) -> Result<Outcome, StoreError> {
        let (answer, outcome) = oneshot::channel();
        let submitted = Submitted { request, answer };
        if self.queue.send(submitted).await.is_err() {
            return Err(StoreError::Closed);
        }
        outcome.await.unwrap_or(Err(StoreError::Closed))
    }
}

type Answers = Vec<oneshot::Sender<Result<Outcome, StoreError>>>;

impl Proposer {
    /// Proposes until the submitters are gone.
    pub(crate) async fn run(mut self, engine: &Engine) {
        let mut in_flight = FuturesOrdered::new();
        loop {
            tokio::select! {
                biased;
                Some(()) = in_flight.next(), if !in_flight.is_empty() => {}
                submitted = self.queue.recv(), if in_flight.len() < IN_FLIGHT => {
                    let Some(first) = submitted else { return };
                    let (requests, answers) = self.gather(first);
                    in_flight.push_back(propose(engine, requests, answers).await);
                }
            }
        }
    }

    fn gather(&mut self, first: Submitted) -> (Arc<[Request]>, Answers) {
        let mut bytes = size_hint(&first.request);
        let mut requests = vec![first.request];
        let mut answers = vec![first.answer];
        while requests.len() < BATCH_REQUESTS
            && bytes < BATCH_BYTES
            && let Ok(next) = self.queue.try_recv()
        {
            bytes += size_hint(&next.request);
            requests.push(next.request);
            answers.push(next.answer);
        }
        (requests.into(), answers)
    }
}

/// Hands a batch to the core; the future it answers completes when all are told.
async fn propose(
    engine: &Engine,
    requests: Arc<[Request]>,
    answers: Answers,
) -> impl Future<Output = ()> + use<> {
    let engine = engine.clone();
    // Alone there is nobody to forward to and nothing to wait for but the own disk.
    let sent = if engine.group.is_alone() {
        Some(engine.hand_to_core(Arc::clone(&requests)).await)
    } else {
        None
    };
    async move {
        let outcomes = match sent {
            Some(sent) => match sent.answer().await {
                // The group has just grown, or lost this leader.
                Err(Failed::Untouched { .. }) => engine.write(requests).await,
                Ok(written) => Ok(written.outcomes),
                Err(failed) => Err(engine.error(failed)),
            },
            None => engine.write(requests).await,
        };
        match outcomes {
            Ok(outcomes) => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    // The submitter may have gone away; the request is applied all the same.
                    drop(answer.send(Ok(outcome)));
                }
            }
            Err(error) => tell(answers, &error),
        }
    }
}

/// A batch in the core's hands.
struct Sent {
    receiver: Option<Receiver>,
    appended: Appended,
}

type Receiver = <OneshotResponder<TypeConfig> as Responder<TypeConfig>>::Receiver;

/// What became of a batch.
pub(crate) struct Written {
    /// Its entry.
    pub(crate) index: u64,
    pub(crate) outcomes: Vec<Outcome>,
}

/// Why a batch has no outcome.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It is in nobody's log.
    Untouched { leader: Option<u64> },
    /// It may be in somebody's log.
    Unknown { cause: String },
    /// The group refuses this member.
    Refused { cause: String },
    /// The engine stopped.
    Stopped,
}

impl Sent {
    async fn answer(self) -> Result<Written, Failed> {
        let Some(receiver) = self.receiver else {
            return Err(Failed::Stopped);
        };
        match receiver.await {
            Ok(Ok(written)) => Ok(Written {
                index: written.log_id.index,
                outcomes: written.data.0,
            }),
            Ok(Err(error)) => {
                let leader = forward(&error);
                if self.appended.load(Ordering::Acquire) {
                    // Overwritten here; another member may still bring it back.
                    Err(Failed::Unknown {
                        cause: "this member lost the leadership before the write was replicated"
                            .to_owned(),
                    })
                } else {
                    Err(Failed::Untouched { leader })
                }
            }
            Err(_) => Err(Failed::Stopped),
        }
    }
}

fn forward(error: &ClientWriteError<u64, openraft::BasicNode>) -> Option<u64> {
    match error {
        ClientWriteError::ForwardToLeader(forward) => forward.leader_id,
        ClientWriteError::ChangeMembershipError(_) => None,
    }
}

impl Engine {
    async fn hand_to_core(&self, requests: Arc<[Request]>) -> Sent {
        let appended = Arc::new(AtomicBool::new(false));
        let proposal = Proposal::new(requests, Some(Arc::clone(&appended)));
        Sent {
            receiver: self.raft.client_write_ff(proposal).await.ok(),
            appended,
        }
    }

    /// Proposes a batch here, where a quorum is needed beyond this member.
    pub(crate) async fn write_here(&self, requests: Arc<[Request]>) -> Result<Written, Failed> {
        let untouched = Err(Failed::Untouched {
            leader: self.leader().map(|leader| leader.id),
        });
        if !self.is_leader() || self.group.is_handing_over() {
            return untouched;
        }
        if !self.group.is_alone() && !self.group.is_fresh() {
            // It could neither be replicated nor be taken back.
            return untouched;
        }
        let sent = self.hand_to_core(requests).await;
        match timeout(PATIENCE, sent.answer()).await {
            Ok(answer) => answer,
            Err(_) => Err(Failed::Unknown {
                cause: "no quorum of the group has stored the write in time".to_owned(),
            }),
        }
    }

    /// Proposes a batch on the leader, wherever it is, waiting for one for a while.
    async fn write(&self, requests: Arc<[Request]>) -> Result<Vec<Outcome>, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let mut encoded = None;
        loop {
            let failed = if self.is_leader() {
                match self.write_here(Arc::clone(&requests)).await {
                    Ok(written) => return Ok(written.outcomes),
                    Err(failed) => failed,
                }
            } else if let Some(leader) = self.leader() {
                let body = encoded.get_or_insert_with(|| request::encode(&requests));
                match self.write_there(leader, body.clone()).await {
                    Ok(written) => {
                        // What was written is readable here when this returns.
                        self.wait_applied(written.index).await.map_err(|error| {
                            StoreError::OutcomeUnknown {
                                cause: format!("it is written, but not applied here: {error}"),
                            }
                        })?;
                        return Ok(written.outcomes);
                    }
                    Err(failed) => failed,
                }
            } else {
                Failed::Untouched { leader: None }
            };
            let refused = self.group.refusal();
            match (failed, refused) {
                (Failed::Untouched { .. }, Some(cause)) => {
                    return Err(StoreError::Refused { cause });
                }
                (Failed::Untouched { .. }, None)
                    if Instant::now() < deadline && self.failure.text().is_none() => {}
                (failed, _) => return Err(self.error(failed)),
            }
            sleep(BEAT / 2).await;
        }
    }

    async fn write_there(&self, leader: Peer, body: bytes::Bytes) -> Result<Written, Failed> {
        let id = leader.id;
        let sent = self.mail.send(leader, Kind::Propose, body);
        // Longer than the leader waits itself.
        let answer = timeout_at(Instant::now() + PATIENCE * 2, sent.boxed()).await;
        match answer {
            Ok(Ok(body)) => match message::decode_proposed(body) {
                Ok((index, outcomes)) => Ok(Written { index, outcomes }),
                Err(error) => Err(Failed::Unknown {
                    cause: format!("the answer of member {id} cannot be understood: {error}"),
                }),
            },
            Ok(Err(MailError::Refused { refusal, .. })) => Err(match refusal.reason() {
                Reason::NotLeader => Failed::Untouched {
                    leader: (refusal.leader != 0).then_some(refusal.leader),
                },
                Reason::OutcomeUnknown | Reason::Failed | Reason::Unspecified => Failed::Unknown {
                    cause: refusal.text,
                },
                _ => Failed::Refused {
                    cause: refusal.text,
                },
            }),
            Ok(Err(MailError::Transport(TransportError::Unsent { .. }))) => {
                Err(Failed::Untouched { leader: Some(id) })
            }
            Ok(Err(error)) => Err(Failed::Unknown {
                cause: error.to_string(),
            }),
            Err(_) => Err(Failed::Unknown {
                cause: format!("member {id}, which led, has not answered in time"),
            }),
        }
    }

    pub(crate) fn error(&self, failed: Failed) -> StoreError {
        match failed {
            Failed::Untouched { leader } => StoreError::NotLeader { leader },
            Failed::Unknown { cause } => StoreError::OutcomeUnknown { cause },
            Failed::Refused { cause } => StoreError::Refused { cause },
            Failed::Stopped => self.failure.error(),
        }
    }
}

/// The same error for everyone; it has no clones, so its kinds are made anew.
fn tell(answers: Answers, error: &StoreError) {
    for answer in answers {
        drop(answer.send(Err(error.again())));
    }
}
