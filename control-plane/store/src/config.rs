//! What a store is opened with.
//!
//! Watches and changes nothing; [`Store::open`](crate::Store::open) reads it once.

use std::path::PathBuf;
use std::time::Duration;

/// Configuration of one member. `StoreConfig { data_dir, ..Default::default() }` is a
/// complete one.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Directory that holds `identity.json`, `lock`, `state.redb` and `wal/`; created when
    /// missing. Other files in it are left alone.
    pub data_dir: PathBuf,
    /// This member's id within the Raft group; 0 takes the one on disk, or 1 for a new store.
    pub node_id: u64,
    /// Address other members reach this one at; recorded in the membership.
    pub peer_address: String,
    /// Waits to be added to the group of `cluster_id` by one of its members, instead of forming
    /// a group of its own. Remembered in the data directory.
    pub join: bool,
    /// Id the cluster must have. `None` takes the one on disk, or makes one for a new store.
    pub cluster_id: Option<String>,
    /// Memory for pages of the state database.
    pub cache_bytes: usize,
    /// Size at which the log starts a new segment.
    pub segment_bytes: u64,
    /// Log written since the last checkpoint that forces the next one.
    pub checkpoint_bytes: u64,
    /// Log kept behind a checkpoint, while there are other members, for those that are behind;
    /// one that is further behind gets a snapshot.
    pub log_keep_bytes: u64,
    /// A checkpoint is taken this long after the first write that none covers.
    pub checkpoint_delay: Duration,
    /// How long superseded versions are kept for watches and reads at a revision; `None`
    /// keeps them until [`Store::compact`](crate::Store::compact) is called.
    pub history_retention: Option<Duration>,
    /// Events a watcher may lag behind before it is cut off.
    pub watch_buffer: usize,
    /// Recent events kept in memory for watchers that start a little in the past.
    pub watch_ring_events: usize,
    /// Bytes the recent events may hold.
    pub watch_ring_bytes: usize,
    /// How long after a change watchers that did not see it get a progress bookmark.
    pub progress_interval: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/pintle/control-plane"),
            node_id: 0,
            peer_address: String::new(),
            join: false,
            cluster_id: None,
            cache_bytes: 8 << 20,
            segment_bytes: 8 << 20,
            checkpoint_bytes: 16 << 20,
            log_keep_bytes: 64 << 20,
            checkpoint_delay: Duration::from_secs(30),
            history_retention: Some(Duration::from_mins(5)),
            watch_buffer: 4096,
            watch_ring_events: 4096,
            watch_ring_bytes: 4 << 20,
            progress_interval: Duration::from_secs(5),
        }
    }
}
