//! Changing the group while it works: a learner first, a voter once it has caught up, removed
//! for ever.
//!
//! Watches calls, here or forwarded by other members; changes the membership through openraft
//! (joint consensus); every member's replication and elections follow it. A leader that is to be
//! removed hands the leadership over first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers};
use pintle_proto::raft::{Kind, Reason};
use tokio::time::{Instant, sleep, timeout};

use super::group::{BEAT, LEASE, PATIENCE};
use super::message::{self, MemberChange};
use super::network::MailError;
use super::transport::TransportError;
use super::{Engine, peer};
use crate::error::StoreError;
use crate::failure::chain;
use crate::key_value::LeaseId;
use crate::lease::LeaseBook;
use crate::raft::reads::Unready;

/// A learner this many entries behind, or fewer, has caught up.
const CAUGHT_UP: u64 = 128;
/// How long a promotion waits for the learner to catch up.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How long a change may take to be stored by a quorum.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);

/// One member of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id; never used again once removed.
    pub id: u64,
    /// Where other members reach it, `HOST:PORT`.
    pub address: String,
    /// It votes; otherwise it is a learner, which only follows.
    pub voter: bool,
    /// It leads, as far as this member knows.
    pub leader: bool,
}

impl MemberChange {
    fn id(&self) -> u64 {
        match self {
            Self::Learner { id, .. } | Self::Promote { id } | Self::Remove { id } => *id,
        }
    }
}

fn refused(cause: String) -> StoreError {
    StoreError::Members { cause }
}

impl Engine {
    /// The members, as this one knows them.
    pub(crate) fn members(&self) -> Vec<Member> {
        let leader = self.refresh().leader;
        let metrics = self.server_metrics();
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        metrics
            .membership_config
            .nodes()
            .map(|(id, node)| Member {
                id: *id,
                address: node.addr.clone(),
                voter: voters.contains(id),
                leader: leader == Some(*id),
            })
            .collect()
    }

    /// Makes a change on the leader, wherever it is.
    pub(crate) async fn change(&self, change: &MemberChange) -> Result<(), StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let changed = if self.is_leader() {
                self.change_here(change).await
            } else {
                self.change_there(change).await
            };
            match changed {
                Err(StoreError::NotLeader { .. })
                    if Instant::now() < deadline && self.failure.text().is_none() => {}
                changed => return changed,
            }
            sleep(BEAT).await;
        }
    }

    async fn change_there(&self, change: &MemberChange) -> Result<(), StoreError> {
        let Some(leader) = self.leader() else {
            return match self.group.refusal() {
                Some(cause) => Err(StoreError::Refused { cause }),
                None => Err(StoreError::NotLeader { leader: None }),
            };
        };
        let id = leader.id;
        let sent = self
            .mail
            .send(leader, Kind::ChangeMembers, message::encode_change(change));
        match timeout(CATCH_UP + CHANGE_LIMIT * 2, sent).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(MailError::Refused { refusal, .. })) => Err(match refusal.reason() {
                Reason::NotLeader => StoreError::NotLeader { leader: None },
                Reason::Members => refused(refusal.text),
                Reason::Removed | Reason::ForeignCluster | Reason::WrongMember => {
                    StoreError::Refused {
                        cause: refusal.text,
                    }
                }
                _ => StoreError::OutcomeUnknown {
                    cause: refusal.text,
                },
            }),
            Ok(Err(MailError::Transport(TransportError::Unsent { .. }))) => {
                Err(StoreError::NotLeader { leader: Some(id) })
            }
            Ok(Err(error)) => Err(StoreError::OutcomeUnknown {
                cause: error.to_string(),
            }),
            Err(_) => Err(StoreError::OutcomeUnknown {
                cause: format!("member {id}, which led, has not answered in time"),
            }),
        }
    }

    /// Makes a change as the leader.
    pub(crate) async fn change_here(&self, change: &MemberChange) -> Result<(), StoreError> {
        let _one_at_a_time = self.changing.lock().await;
        if !self.is_leader() {
            return Err(StoreError::NotLeader {
                leader: self.leader().map(|leader| leader.id),
            });
        }
        if change.id() == 0 {
            return Err(refused("a member's id is never 0".to_owned()));
        }
        match change {
            MemberChange::Learner { id, address } => self.add(*id, address).await,
            MemberChange::Promote { id } => self.promote(*id).await,
            MemberChange::Remove { id } => self.remove(*id).await,
        }
    }

    async fn add(&self, id: u64, address: &str) -> Result<(), StoreError> {
        if self.machine.is_removed(id) {
            return Err(refused(format!(
                "member {id} was removed, and its id is not used again: join with an empty data \
                 directory and another id"
            )));
        }
        if address.is_empty() {
            return Err(refused(format!(
                "member {id} needs an address to be reached at"
            )));
        }
        let members = self.members();
        if let Some(other) = members
            .iter()
            .find(|other| other.id != id && other.address == address)
        {
            return Err(refused(format!(
                "{address} is the address of member {} already",
                other.id
            )));
        }
        let node = BTreeMap::from([(id, BasicNode::new(address))]);
        match members.iter().find(|member| member.id == id) {
            Some(member) if member.address == address => Ok(()),
            Some(_) => {
                self.submit_change(ChangeMembers::SetNodes(node), true)
                    .await
            }
            None => {
                self.submit_change(ChangeMembers::AddNodes(node), true)
                    .await
            }
        }
    }

    async fn promote(&self, id: u64) -> Result<(), StoreError> {
        match self.members().iter().find(|member| member.id == id) {
            None => {
                return Err(refused(format!(
                    "member {id} is not in the group: add it as a learner first"
                )));
            }
            Some(member) if member.voter => return Ok(()),
            Some(_) => {}
        }
        let mut metrics = self.raft.metrics();
        let behind = |metrics: &openraft::RaftMetrics<u64, BasicNode>| {
            let matched = metrics.replication.as_ref()?.get(&id)?.as_ref()?.index;
            Some(metrics.last_log_index?.saturating_sub(matched))
        };
        let caught_up =
            metrics.wait_for(|metrics| behind(metrics).is_some_and(|behind| behind <= CAUGHT_UP));
        if timeout(CATCH_UP, caught_up).await.is_err() {
            let metrics = self.raft.metrics().borrow().clone();
            return Err(refused(match behind(&metrics) {
                Some(entries) => format!(
                    "member {id} is {entries} entries behind: promote it when it has caught up"
                ),
                None => format!(
                    "member {id} has not been reached yet: check that it runs and that its \
                     address is right"
                ),
            }));
        }
        self.submit_change(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true)
            .await
    }

    async fn remove(&self, id: u64) -> Result<(), StoreError> {
        let members = self.members();
        let Some(member) = members.iter().find(|member| member.id == id) else {
            if self.machine.is_removed(id) {
                return Ok(());
            }
            return Err(refused(format!("member {id} is not in the group")));
        };
        if !member.voter {
            let nodes = ChangeMembers::RemoveNodes(BTreeSet::from([id]));
            return self.submit_change(nodes, false).await;
        }
        if members.iter().filter(|member| member.voter).count() == 1 {
            return Err(refused(format!(
                "member {id} is the last that votes: a group cannot be without one"
            )));
        }
        if id == self.node_id {
            self.hand_over().await?;
            // Whoever leads now removes this member.
            return Err(StoreError::NotLeader { leader: None });
        }
        let voters = ChangeMembers::RemoveVoters(BTreeSet::from([id]));
        self.submit_change(voters, false).await
    }

    async fn submit_change(
        &self,
        change: ChangeMembers<u64, BasicNode>,
        retain: bool,
    ) -> Result<(), StoreError> {
        self.group.set_changing(true);
        let changed = timeout(CHANGE_LIMIT, self.raft.change_membership(change, retain)).await;
        self.group.set_changing(false);
        self.refresh();
        match changed {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                // The first of two steps may have been made.
                Err(StoreError::OutcomeUnknown {
                    cause: "this member lost the leadership during the change".to_owned(),
                })
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error)))) => {
                Err(refused(match error {
                    ChangeMembershipError::InProgress(_) => {
                        "another change of the members is not finished: try again soon".to_owned()
                    }
                    error => chain(&error),
                }))
            }
            Ok(Err(RaftError::Fatal(_))) => Err(self.failure.error()),
            Err(_) => Err(StoreError::OutcomeUnknown {
                cause: "no quorum of the group has stored the change in time".to_owned(),
            }),
        }
    }

    /// Lets the voter that has most of the log lead. Nothing is proposed meanwhile, and no
    /// heartbeat sent: the others vote only once they have not heard this member for a lease.
    async fn hand_over(&self) -> Result<(), StoreError> {
        let metrics = self.raft.metrics().borrow().clone();
        let server = self.server_metrics();
        let voters: BTreeSet<u64> = server.membership_config.voter_ids().collect();
        let next = metrics
            .replication
            .iter()
            .flatten()
            .filter(|(id, _)| **id != self.node_id && voters.contains(id))
            .max_by_key(|(_, matched)| **matched)
            .and_then(|(id, _)| peer(&server, *id));
        let Some(next) = next else {
            return Err(refused("no other member could lead".to_owned()));
        };
        let limit = Instant::now() + LEASE * 4;
        self.group.hand_over(Some(limit));
        let mut changes = self.raft.server_metrics();
        let handed = async {
            sleep(LEASE + BEAT).await;
            loop {
                let asked = self
                    .mail
                    .send(next.clone(), Kind::TakeOver, bytes::Bytes::new());
                if let Ok(Err(error)) = timeout(LEASE, asked).await {
                    tracing::warn!(%error, "handing the leadership over");
                }
                let lost = changes.wait_for(|now| now.current_leader != Some(self.node_id));
                if timeout(LEASE, lost).await.is_ok() {
                    return;
                }
            }
        };
        let handed = timeout(LEASE * 4, handed).await;
        self.group.hand_over(None);
        handed.map_err(|_elapsed| {
            refused(format!(
                "member {} did not take the leadership over: try again",
                next.id
            ))
        })
    }

    /// Makes this member known under another address than the group has for it.
    pub(crate) async fn advertise(&self, address: &str) -> Result<(), StoreError> {
        let known = self
            .members()
            .into_iter()
            .find(|member| member.id == self.node_id);
        match known {
            Some(member) if !address.is_empty() && member.address != address => {
                let change = MemberChange::Learner {
                    id: self.node_id,
                    address: address.to_owned(),
                };
                self.change(&change).await
            }
            _ => Ok(()),
        }
    }

    /// As leader: starts a lease's time anew; `None` when there is no such lease.
    pub(crate) async fn keep_alive_here(&self, id: LeaseId) -> Result<Option<Duration>, Unready> {
        // First the proof that nobody else leads: a later leader gives the whole time anew.
        if !self.is_leader() {
            return Err(Unready::NoLeader(self.leader().map(|leader| leader.id)));
        }
        if !self.group.is_alone() {
            let index = self.confirm_leading().await?;
            if self.wait_applied(index).await.is_err() {
                return Err(Unready::NoLeader(None));
            }
        }
        let keep = |book: &mut LeaseBook| book.keep_alive(id, Instant::now());
        let kept = keep(&mut self.machine.leases().lock());
        self.wake.now();
        Ok(kept)
    }

    /// Starts a lease's time anew on the leader, wherever it is.
    pub(crate) async fn keep_alive(&self, id: LeaseId) -> Result<Option<Duration>, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut hint = None;
            if self.is_leader() {
                match self.keep_alive_here(id).await {
                    Ok(kept) => return Ok(kept),
                    Err(Unready::NoLeader(leader)) => hint = leader,
                    Err(Unready::Refused(cause)) => return Err(StoreError::Refused { cause }),
                    Err(Unready::Stopped) => return Err(self.failure.error()),
                }
            } else if let Some(leader) = self.leader() {
                hint = Some(leader.id);
                let sent = self
                    .mail
                    .send(leader, Kind::KeepAlive, message::encode_number(id));
                match timeout(LEASE * 2, sent).await {
                    Ok(Ok(body)) => {
                        if let Ok(millis) = message::decode_number(body) {
                            return Ok(Some(Duration::from_millis(millis)));
                        }
                    }
                    Ok(Err(MailError::Refused { refusal, .. })) => match refusal.reason() {
                        Reason::NoSuchLease => return Ok(None),
                        Reason::NotLeader | Reason::Failed => {}
                        _ => {
                            return Err(StoreError::Refused {
                                cause: refusal.text,
                            });
                        }
                    },
                    // Keeping a lease alive twice does no harm.
                    _ => {}
                }
            }
            if self.failure.text().is_some() {
                return Err(self.failure.error());
            }
            if Instant::now() >= deadline {
                return Err(StoreError::NotLeader { leader: hint });
            }
            sleep(BEAT / 2).await;
        }
    }
}
