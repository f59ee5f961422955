//! The map synchroniser: changes of the cluster in, writes to the maps out.
//!
//! Owns the index of Services and the table of what the maps hold. Looks for the difference
//! for each Service a change concerns, and writes it. A write that fails is reported and
//! tried again with the next change, because by then there may be room.

use std::collections::{BTreeSet, HashMap};

use super::ServiceStatus;
use super::cluster::ClusterServices;
use super::datapath::{DataPath, DataPathError};
use super::desired;
use super::table::{Op, Table};
use crate::session::ClusterChange;

/// State of the synchroniser's task.
#[derive(Debug)]
pub(crate) struct Synchroniser {
    data_path: DataPath,
    cluster: ClusterServices,
    table: Option<Table>,
    /// Services whose last writes failed, and why.
    failed: HashMap<String, String>,
    /// Why the programs or maps could not be put in place.
    broken: Option<String>,
}

impl Synchroniser {
    pub(crate) fn new(data_path: DataPath) -> Self {
        Self {
            data_path,
            cluster: ClusterServices::default(),
            table: None,
            failed: HashMap::new(),
            broken: None,
        }
    }

    /// Takes changes in their order and returns the state afterwards.
    pub(crate) fn apply(
        &mut self,
        changes: impl IntoIterator<Item = ClusterChange>,
    ) -> ServiceStatus {
        let mut touched = BTreeSet::new();
        let mut synced = false;
        for change in changes {
            synced |= matches!(change, ClusterChange::Synced);
            touched.extend(self.cluster.apply(change));
        }
        if synced && self.table.is_none() {
            self.broken = self.start().err().map(|error| describe(&error));
        } else if self.table.is_some() {
            touched.extend(self.failed.keys().cloned());
            for key in touched {
                self.write_service(&key);
            }
        }
        self.status()
    }

    /// The first complete state is known: adopts the maps, writes what differs, removes what
    /// no Service has, and lets adopted links run this process's programs.
    fn start(&mut self) -> Result<(), DataPathError> {
        self.table = Some(self.data_path.read_table()?);
        let mut keys: Vec<String> = self.cluster.keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            self.write_service(&key);
        }
        if let Some(table) = &mut self.table {
            let ops = table.plan_unclaimed();
            write(&self.data_path, table, &ops)?;
        }
        self.data_path.activate()
    }

    fn write_service(&mut self, key: &str) {
        let Some(table) = &mut self.table else {
            return;
        };
        let wanted = desired::ports(&self.cluster, key);
        let ops = table.plan(key, &wanted);
        match write(&self.data_path, table, &ops) {
            Ok(()) => {
                table.settle(key);
                self.failed.remove(key);
            }
            Err(error) => {
                self.failed.insert(
                    key.to_owned(),
                    format!("Service {key}: {}", describe(&error)),
                );
            }
        }
    }

    fn status(&self) -> ServiceStatus {
        let (frontends, backends) = self.table.as_ref().map_or((0, 0), Table::len);
        ServiceStatus {
            synced: self.table.is_some() && self.broken.is_none(),
            frontends,
            backends,
            problem: self
                .broken
                .clone()
                .or_else(|| self.failed.values().min().cloned()),
        }
    }
}

/// Performs the writes in order up to the first that fails.
fn write(data_path: &DataPath, table: &mut Table, ops: &[Op]) -> Result<(), DataPathError> {
    let touches_udp = table.touches_udp(ops);
    for op in ops {
        data_path.write(op)?;
        table.commit(op);
    }
    if touches_udp {
        data_path.forget_udp_flows(|flow, backend| table.flow_is_valid(flow, backend))?;
    }
    Ok(())
}

/// An error with its causes, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
