//! openraft's own storage tests over our storage.

use std::sync::Arc;

use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::group::Group;
use super::log::LogStore;
use super::machine::Applier;
use super::types::{RaftStorageError, TypeConfig};
use crate::failure::Failure;
use crate::keeper::Wake;
use crate::mvcc::Machine;
use crate::wal::Wal;
use crate::watch::hub::{Hub, HubLimits};

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, Applier, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, Applier), RaftStorageError> {
        let dir = tempfile::tempdir().expect("temp dir");
        let hub = Arc::new(Hub::new(HubLimits {
            ring_events: 16,
            ring_bytes: 1 << 16,
            buffer: 16,
        }));
        let machine = Machine::open(&dir.path().join("state.redb"), 1 << 20, hub).expect("machine");
        let machine = Arc::new(machine);
        // Small segments, so that purges delete some.
        let wal = Wal::open(dir.path(), 256, false).expect("log");
        let failure = Arc::new(Failure::default());
        let wake = Arc::new(Wake::default());
        let group = Arc::new(Group::default());
        let log = LogStore::new(
            wal,
            Arc::clone(&machine),
            Arc::clone(&failure),
            Arc::clone(&wake),
            Arc::clone(&group),
            u64::MAX,
        )
        .expect("log store");
        Ok((dir, log, Applier::new(machine, wake, failure, group)))
    }
}

#[test]
fn passes_openrafts_storage_suite() {
    Suite::test_all(Builder).expect("suite");
}
