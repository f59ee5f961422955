//! What happens in a group because of silence: heartbeats, elections, and the end of leading.
//!
//! Watches openraft's metrics and how long the leader has not been heard; changes nothing but
//! [`super::group`]; openraft reacts to what is triggered. It exists for a group of more than
//! one: alone, it waits for the membership to change and costs nothing.
//!
//! ```text
//!   leader     a heartbeat per beat; without answers of a quorum for a lease it does not lead
//!   follower   the leader unheard for a lease and a random while ─▶ would a quorum vote for me?
//!              ─▶ yes: stand    no: ask again after a random while
//! ```
//! Asking first keeps a member that was cut off from disturbing the others with ever higher
//! terms when it comes back. The lease in which a voter turns candidates away is openraft's.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use openraft::raft::VoteRequest;
use openraft::{ServerState, Vote};
use pintle_proto::raft::{Kind, Reason};
use rand::Rng;
use tokio::time::{Instant, sleep_until, timeout};

use super::Engine;
use super::group::{BEAT, LEASE};
use super::message;
use super::network::MailError;
use super::types::log_id;
use super::{ServerMetrics, peer};

/// Members that have not heard the leader stand after a random time up to this, so that two
/// rarely stand at once.
const SPREAD: Duration = Duration::from_millis(100);
/// How long the others have to say whether they would vote.
const CANVASS: Duration = Duration::from_millis(120);
/// Pause of a member that the group refuses.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Runs until the future is dropped.
pub(crate) async fn run(engine: Engine) {
    let mut server = engine.raft.server_metrics();
    let mut metrics = engine.raft.metrics();
    let mut looked = Instant::now();
    let mut acknowledged: Option<Instant> = None;
    let mut next_beat = Instant::now();
    let mut next_try = Instant::now();
    let mut spread = random(SPREAD);
    loop {
        let now = Instant::now();
        let shape = server.borrow_and_update().clone();
        let me = engine.node_id;
        let has_peers = shape.membership_config.nodes().any(|(id, _)| *id != me);
        let leads = shape.state == ServerState::Leader && shape.current_leader == Some(me);
        let due = if leads && has_peers {
            if metrics.has_changed().unwrap_or(false) {
                let millis = metrics.borrow_and_update().millis_since_quorum_ack;
                // The number is as of some time after the last look.
                acknowledged =
                    millis.and_then(|ago| looked.checked_sub(Duration::from_millis(ago)));
            }
            looked = now;
            let fresh = engine.is_quorum(&shape)
                || acknowledged.is_some_and(|at| now.duration_since(at) <= LEASE);
            engine.group.set_fresh(fresh);
            if now >= next_beat {
                next_beat = now + BEAT;
                if !engine.group.is_handing_over()
                    && engine.raft.trigger().heartbeat().await.is_err()
                {
                    return std::future::pending().await;
                }
            }
            Some(next_beat)
        } else {
            acknowledged = None;
            engine.group.set_fresh(false);
            let votes = shape.membership_config.voter_ids().any(|id| id == me);
            if votes && has_peers {
                let due = (engine.group.contact() + LEASE + spread).max(next_try);
                if now >= due {
                    let stood = engine.stand(&shape).await;
                    spread = random(SPREAD);
                    let pause = match stood {
                        Stood::Refused => REFUSED_PAUSE,
                        Stood::Yes => LEASE,
                        Stood::No => BEAT / 2,
                    };
                    next_try = Instant::now() + pause + random(SPREAD);
                    continue;
                }
                Some(due)
            } else {
                None
            }
        };
        let timer = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = server.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
            () = timer => {}
        }
    }
}

fn random(up_to: Duration) -> Duration {
    rand::rng().random_range(Duration::ZERO..up_to)
}

enum Stood {
    Yes,
    No,
    Refused,
}

impl Engine {
    /// Asks whether a quorum would vote for this member, and if so calls an election.
    async fn stand(&self, shape: &ServerMetrics) -> Stood {
        let vote = shape.vote;
        let request = VoteRequest::new(
            Vote::new(vote.leader_id().term + 1, self.node_id),
            self.log.last_position().map(log_id),
        );
        let body = message::encode_vote(&request);
        let membership = shape.membership_config.membership();
        let mut answers = FuturesUnordered::new();
        for id in membership.voter_ids().filter(|id| *id != self.node_id) {
            let Some(peer) = peer(shape, id) else {
                continue;
            };
            let asked = self.mail.send(peer, Kind::PreVote, body.clone());
            answers.push(async move { (id, timeout(CANVASS, asked).await) });
        }
        let mut granted = BTreeSet::from([self.node_id]);
        let is_quorum = |granted: &BTreeSet<u64>| {
            membership.get_joint_config().iter().all(|voters| {
                let of_them = voters.intersection(granted).count();
                of_them * 2 > voters.len()
            })
        };
        while !is_quorum(&granted) {
            let Some((id, answer)) = answers.next().await else {
                return Stood::No;
            };
            match answer {
                Ok(Ok(body))
                    if message::decode_voted(body.clone())
                        .is_ok_and(|voted| voted.vote_granted) =>
                {
                    granted.insert(id);
                }
                Ok(Err(MailError::Refused { refusal, .. }))
                    if refusal.reason() == Reason::Removed =>
                {
                    return Stood::Refused;
                }
                _ => {}
            }
        }
        tracing::info!(term = vote.leader_id().term + 1, "standing for election");
        match self.raft.trigger().elect().await {
            Ok(()) => Stood::Yes,
            Err(_) => Stood::No,
        }
    }

    /// Whether this member would vote for a candidate.
    pub(crate) fn would_vote(&self, request: &VoteRequest<u64>) -> bool {
        let led = if self.is_leader() {
            self.group.is_fresh() && !self.group.is_handing_over()
        } else {
            self.group.hears_leader()
        };
        let term = self.server_metrics().vote.leader_id().term;
        !led && request.vote.leader_id().term > term
            && request.last_log_id >= self.log.last_position().map(log_id)
    }
}
