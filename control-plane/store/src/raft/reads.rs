//! Linearizable reads: how far must the log be applied before one may be answered?
//!
//! Watches reads that wait; changes nothing; they go on when the local state has caught up.
//! The leader confirms with a round of heartbeats that it leads, then its commit index answers
//! every read that was waiting before the round began: one round serves them all. A follower
//! asks the leader, likewise once for all that wait.

use std::sync::Arc;

use openraft::error::{CheckIsLeaderError, RaftError};
use parking_lot::Mutex;
use pintle_proto::raft::{Kind, Reason};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::Engine;
use super::group::{ANSWER, BEAT, PATIENCE};
use super::message;
use super::network::MailError;
use crate::error::StoreError;

/// Reads that wait for the next round.
#[derive(Clone, Default)]
pub(crate) struct Reads {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<oneshot::Sender<Result<u64, Unready>>>,
    /// A task runs rounds.
    running: bool,
}

/// Why a read cannot be answered.
#[derive(Debug, Clone)]
pub(crate) enum Unready {
    /// No leader was found in time, or none that a quorum follows.
    NoLeader(Option<u64>),
    /// The group refuses this member.
    Refused(String),
    /// The engine stopped.
    Stopped,
}

impl Reads {
    /// The index that must be applied before a read that begins now may be answered.
    pub(crate) async fn index(&self, engine: &Engine) -> Result<u64, StoreError> {
        let (answer, index) = oneshot::channel();
        let start = {
            let mut queue = self.queue.lock();
            queue.waiting.push(answer);
            !std::mem::replace(&mut queue.running, true)
        };
        if start {
            tokio::spawn(rounds(engine.clone()));
        }
        index
            .await
            .unwrap_or(Err(Unready::Stopped))
            .map_err(|unready| match unready {
                Unready::NoLeader(leader) => StoreError::NotLeader { leader },
                Unready::Refused(cause) => StoreError::Refused { cause },
                Unready::Stopped => engine.failure.error(),
            })
    }
}

/// Runs rounds until nobody waits.
async fn rounds(engine: Engine) {
    loop {
        let waiting = {
            let mut queue = engine.reads.queue.lock();
            if queue.waiting.is_empty() {
                queue.running = false;
                return;
            }
            std::mem::take(&mut queue.waiting)
        };
        let index = engine.find_read_index().await;
        for answer in waiting {
            // Who asked may have gone away.
            drop(answer.send(index.clone()));
        }
    }
}

impl Engine {
    /// Finds the read index here or on the leader, waiting for one for a while.
    async fn find_read_index(&self) -> Result<u64, Unready> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let hint = if self.is_leader() {
                match self.confirm_leading().await {
                    Err(Unready::NoLeader(hint)) => hint,
                    found => return found,
                }
            } else if let Some(leader) = self.leader() {
                let id = leader.id;
                let asked = self.mail.send(leader, Kind::ReadIndex, bytes::Bytes::new());
                match timeout(ANSWER * 2, asked).await {
                    Ok(Ok(body)) => {
                        if let Ok(index) = message::decode_number(body) {
                            return Ok(index);
                        }
                    }
                    Ok(Err(MailError::Refused { refusal, .. }))
                        if refusal.reason() != Reason::NotLeader
                            && refusal.reason() != Reason::Failed =>
                    {
                        return Err(Unready::Refused(refusal.text));
                    }
                    _ => {}
                }
                Some(id)
            } else {
                None
            };
            if self.failure.text().is_some() {
                return Err(Unready::Stopped);
            }
            if let Some(refusal) = self.group.refusal() {
                return Err(Unready::Refused(refusal));
            }
            if Instant::now() >= deadline {
                return Err(Unready::NoLeader(hint));
            }
            sleep(BEAT / 2).await;
        }
    }

    /// As leader: a round of heartbeats, and the index committed before it.
    pub(crate) async fn confirm_leading(&self) -> Result<u64, Unready> {
        match self.raft.get_read_log_id().await {
            Ok((read, _)) => Ok(read.map_or(0, |read| read.index)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                Err(Unready::NoLeader(forward.leader_id))
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                Err(Unready::NoLeader(None))
            }
            Err(RaftError::Fatal(_)) => Err(Unready::Stopped),
        }
    }
}
