//! The first storage failure, kept so that every later caller learns the cause.
//!
//! Watches the log, the state machine and their syncs, which report here; the proposer and
//! [`StoreHealth`](crate::StoreHealth) read it. After a failure the Raft engine is stopped for
//! good: what is on disk is known only after a restart.

use std::error::Error;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::error::StoreError;

/// Holds the first failure.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    first: OnceLock<Cause>,
}

#[derive(Debug)]
struct Cause {
    text: String,
    full: Option<PathBuf>,
}

impl Failure {
    /// Reports one; only the first counts.
    pub(crate) fn report(&self, error: &StoreError) {
        let first = self.first.set(Cause {
            text: chain(error),
            full: match error {
                StoreError::DiskFull { path } => Some(path.clone()),
                _ => None,
            },
        });
        if first.is_ok() {
            tracing::error!(error = chain(error), "storage failed, the store stops");
        }
    }

    /// Text of the first failure.
    pub(crate) fn text(&self) -> Option<String> {
        self.first.get().map(|cause| cause.text.clone())
    }

    /// What a caller is told when the engine does not answer.
    pub(crate) fn error(&self) -> StoreError {
        match self.first.get() {
            None => StoreError::Closed,
            Some(Cause {
                full: Some(path), ..
            }) => StoreError::DiskFull { path: path.clone() },
            Some(Cause { text, .. }) => StoreError::Failed {
                cause: text.clone(),
            },
        }
    }
}

/// An error and its sources on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
