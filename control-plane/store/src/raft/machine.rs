//! openraft's state machine over the versioned state.
//!
//! Watches committed entries and snapshots; changes the state; the watch hub and the keeper
//! react. A snapshot is a view of the state database, so building one costs a checkpoint and
//! copies nothing; it is what lets openraft purge the log.

use std::sync::Arc;

use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use openraft::{
    EntryPayload, LogId, OptionalSend, Snapshot, SnapshotMeta, StorageIOError, StoredMembership,
};

use super::group::Group;
use super::types::{
    Applied, RaftEntry, RaftMembership, RaftStorageError, SnapshotData, TypeConfig,
    decode_membership, encode_membership, log_id, position, storage_error,
};
use crate::error::StoreError;
use crate::failure::Failure;
use crate::keeper::Wake;
use crate::mvcc::{self, Machine, apply::Command};
use crate::wal::frame::Position;

type Members = StoredMembership<u64, openraft::BasicNode>;

/// Applies committed entries.
#[derive(Clone)]
pub(crate) struct Applier {
    machine: Arc<Machine>,
    wake: Arc<Wake>,
    failure: Arc<Failure>,
    group: Arc<Group>,
}

impl Applier {
    /// Over this state.
    pub(crate) fn new(
        machine: Arc<Machine>,
        wake: Arc<Wake>,
        failure: Arc<Failure>,
        group: Arc<Group>,
    ) -> Self {
        Self {
            machine,
            wake,
            failure,
            group,
        }
    }

    fn fail(
        &self,
        wrap: impl FnOnce(openraft::AnyError) -> StorageIOError<u64>,
        error: &StoreError,
    ) -> RaftStorageError {
        self.failure.report(error);
        storage_error(wrap, error)
    }

    /// A view of everything applied, as a snapshot.
    fn snapshot(&self) -> Result<Snapshot<TypeConfig>, StoreError> {
        let view = self.machine.view()?;
        let last = view.state()?.applied.map(log_id);
        let meta = SnapshotMeta {
            last_log_id: last,
            last_membership: members(view.membership()?)?,
            snapshot_id: last.map_or_else(|| "empty".to_owned(), |last| last.to_string()),
        };
        Ok(Snapshot {
            meta,
            snapshot: Box::new(SnapshotData::View(view)),
        })
    }

    /// Turns entries into commands. A member that a new membership does not have any more is
    /// removed.
    fn commands<I>(&self, entries: I) -> Result<Vec<(Position, Command)>, StoreError>
    where
        I: IntoIterator<Item = RaftEntry>,
    {
        let mut commands = Vec::new();
        let mut before: Option<RaftMembership> = None;
        for entry in entries {
            let command = match entry.payload {
                EntryPayload::Blank => Command::Blank,
                EntryPayload::Normal(proposal) => Command::Requests(proposal.requests),
                EntryPayload::Membership(membership) => {
                    let before = match before.replace(membership.clone()) {
                        Some(before) => before,
                        None => members(self.machine.applied_state()?.1)?
                            .membership()
                            .clone(),
                    };
                    let gone = before.nodes().map(|(id, _)| *id);
                    Command::Membership {
                        removed: gone
                            .filter(|id| membership.get_node(id).is_none())
                            .collect(),
                        body: encode_membership(&membership)?,
                    }
                }
            };
            commands.push((position(entry.log_id), command));
        }
        Ok(commands)
    }

    /// Puts the state on disk. In a group the thread goes on meanwhile: heartbeats must not
    /// wait for a disk.
    async fn checkpoint(&self) -> Result<(), StoreError> {
        if !self.group.has_peers() {
            return self.machine.checkpoint();
        }
        let machine = Arc::clone(&self.machine);
        tokio::task::spawn_blocking(move || machine.checkpoint())
            .await
            .unwrap_or_else(|error| {
                Err(StoreError::Failed {
                    cause: format!("checkpoint: {error}"),
                })
            })
    }
}

fn members(stored: Option<mvcc::StoredMembership>) -> Result<Members, StoreError> {
    stored.map_or_else(
        || Ok(Members::default()),
        |stored| {
            let membership = decode_membership(&stored.body)?;
            Ok(Members::new(stored.position.map(log_id), membership))
        },
    )
}

impl RaftStateMachine<TypeConfig> for Applier {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, Members), RaftStorageError> {
        let state = || {
            let (applied, stored) = self.machine.applied_state()?;
            Ok((applied.map(log_id), members(stored)?))
        };
        state().map_err(|error| self.fail(StorageIOError::read_state_machine, &error))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, RaftStorageError>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let _writer = self.machine.writer().lock().await;
        let apply = || self.machine.apply(self.commands(entries)?);
        let outcomes =
            apply().map_err(|error| self.fail(StorageIOError::write_state_machine, &error))?;
        if self.machine.leases().lock().take_news() {
            self.wake.now();
        } else {
            self.wake.changed();
        }
        Ok(outcomes.into_iter().map(Applied).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, RaftStorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, openraft::BasicNode>,
        snapshot: Box<SnapshotData>,
    ) -> Result<(), RaftStorageError> {
        let installed = {
            let _writer = self.machine.writer().lock().await;
            match &*snapshot {
                SnapshotData::View(view) => self.machine.install(view),
                SnapshotData::Received(path) => self.machine.install_received(path),
                SnapshotData::Empty => Err(StoreError::Failed {
                    cause: format!("snapshot {} was not received", meta.snapshot_id),
                }),
            }
        };
        let installed = installed.map_err(|error| {
            self.fail(
                |source| StorageIOError::write_snapshot(Some(meta.signature()), source),
                &error,
            )
        });
        // The log waits for this before it lets go of what the snapshot replaces.
        self.machine.expect_install(0);
        installed?;
        self.wake.now();
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<TypeConfig>>, RaftStorageError> {
        if self.machine.durable_next() == 0 {
            return Ok(None);
        }
        self.snapshot().map(Some).map_err(|error| {
            self.fail(|source| StorageIOError::read_snapshot(None, source), &error)
        })
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Applier {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, RaftStorageError> {
        let _writer = self.machine.writer().lock().await;
        // The view first: the checkpoint then covers at least what it shows.
        let built = match self.snapshot() {
            Ok(snapshot) => self.checkpoint().await.map(|()| snapshot),
            Err(error) => Err(error),
        };
        built.map_err(|error| {
            self.fail(
                |source| StorageIOError::write_snapshot(None, source),
                &error,
            )
        })
    }
}
