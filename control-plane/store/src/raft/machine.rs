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

use super::types::{
    Applied, RaftEntry, RaftStorageError, SnapshotData, TypeConfig, decode_membership,
    encode_membership, log_id, position, storage_error,
};
use crate::error::StoreError;
use crate::failure::Failure;
use crate::keeper::Wake;
use crate::mvcc::{self, Machine, apply::Command};

type Members = StoredMembership<u64, openraft::BasicNode>;

/// Applies committed entries.
#[derive(Clone)]
pub(crate) struct Applier {
    machine: Arc<Machine>,
    wake: Arc<Wake>,
    failure: Arc<Failure>,
}

impl Applier {
    /// Over this state.
    pub(crate) fn new(machine: Arc<Machine>, wake: Arc<Wake>, failure: Arc<Failure>) -> Self {
        Self {
            machine,
            wake,
            failure,
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
            snapshot: Box::new(SnapshotData { view: Some(view) }),
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
        let apply = || {
            let mut commands = Vec::new();
            for entry in entries {
                let command = match entry.payload {
                    EntryPayload::Blank => Command::Blank,
                    EntryPayload::Normal(proposal) => Command::Requests(proposal.requests),
                    EntryPayload::Membership(membership) => {
                        Command::Membership(encode_membership(&membership)?)
                    }
                };
                commands.push((position(entry.log_id), command));
            }
            self.machine.apply(commands)
        };
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
        let install = || match &snapshot.view {
            Some(view) => self.machine.install(view),
            None => Err(StoreError::Failed {
                cause: format!("snapshot {} was not received", meta.snapshot_id),
            }),
        };
        install().map_err(|error| {
            self.fail(
                |source| StorageIOError::write_snapshot(Some(meta.signature()), source),
                &error,
            )
        })?;
        self.wake.changed();
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
        // The view first: the checkpoint then covers at least what it shows.
        self.snapshot()
            .and_then(|snapshot| self.machine.checkpoint().map(|()| snapshot))
            .map_err(|error| {
                self.fail(
                    |source| StorageIOError::write_snapshot(None, source),
                    &error,
                )
            })
    }
}
