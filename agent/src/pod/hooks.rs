//! Post-start and pre-stop hooks.
//!
//! Asks the container; what follows from a failure the machine decides.

use std::time::Duration;

use k8s_openapi::api::core::v1::LifecycleHandler;

use crate::describe;
use crate::probe::Target;
use crate::probe::http::{self, HttpError, HttpRequest};
use crate::runtime::RuntimeError;

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command could not be run.
    #[error("cannot run the command")]
    Run(#[from] RuntimeError),
    /// The command failed.
    #[error("command '{command}' exited with {code}: {output}")]
    Exited {
        /// The command.
        command: String,
        /// Its exit code.
        code: i32,
        /// What it printed.
        output: String,
    },
    /// It took longer than it may.
    #[error("the hook did not end in time")]
    Timeout,
    /// The request failed.
    #[error("the request failed")]
    Http(#[from] HttpError),
    /// The server said no.
    #[error("HTTP status code {0}")]
    Status(u16),
}

/// Runs a hook to its end, or for `limit` at most.
pub async fn run(
    handler: &LifecycleHandler,
    target: &Target,
    limit: Duration,
) -> Result<(), HookError> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let result = target
            .sandboxes
            .run_in(&target.pod_uid, &target.container_id, &command, limit)
            .await?;
        return match result.code {
            Some(0) => Ok(()),
            Some(code) => Err(HookError::Exited {
                command: command.join(" "),
                code,
                output: result.output,
            }),
            None => Err(HookError::Timeout),
        };
    }
    if let Some(action) = &handler.http_get {
        let request = HttpRequest::new(action, target)?;
        let status = http::get(&request, limit).await?;
        return if (200..400).contains(&status) {
            Ok(())
        } else {
            Err(HookError::Status(status))
        };
    }
    if let Some(sleep) = &handler.sleep {
        let wanted = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default());
        tokio::time::sleep(wanted.min(limit)).await;
    }
    Ok(())
}

/// The words of a failed hook.
pub fn words(error: &HookError) -> String {
    describe::chain(error)
}
