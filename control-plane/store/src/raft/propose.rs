//! Gathering requests into log entries.
//!
//! Watches the queue of submitted requests; changes the log by proposing them; the submitters
//! react to their outcome. This is the group commit: while one batch is being synced and the
//! one before it applied, everything that arrives waits and becomes the next entry, so a sync
//! serves as many requests as arrived during the last one.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use openraft::error::ClientWriteError;
use tokio::sync::{mpsc, oneshot};

use super::Engine;
use super::types::Proposal;
use crate::error::StoreError;
use crate::request::{Outcome, Request, size_hint};

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
    let receiver = engine.raft.client_write_ff(Proposal { requests }).await;
    async move {
        let response = match receiver {
            Ok(receiver) => receiver.await.ok(),
            Err(_) => None,
        };
        match response {
            Some(Ok(written)) => {
                for (answer, outcome) in answers.into_iter().zip(written.data.0) {
                    // The submitter may have gone away; the request is applied all the same.
                    drop(answer.send(Ok(outcome)));
                }
            }
            Some(Err(error)) => {
                let leader = forward(&error);
                tell(answers, || StoreError::NotLeader { leader });
            }
            None => tell(answers, || engine.failure.error()),
        }
    }
}

fn forward(error: &ClientWriteError<u64, openraft::BasicNode>) -> Option<u64> {
    match error {
        ClientWriteError::ForwardToLeader(forward) => forward.leader_id,
        ClientWriteError::ChangeMembershipError(_) => None,
    }
}

fn tell(answers: Answers, error: impl Fn() -> StoreError) {
    for answer in answers {
        drop(answer.send(Err(error())));
    }
}
