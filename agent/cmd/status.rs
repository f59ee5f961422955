//! `pintle status`: what runs, what is wrong and how to mend it.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use pintle_proto::admin::{Health, StatusRequest, StatusResponse};

use crate::cli::Output;
use crate::{admin, table};

/// Prints the status of the instance at `run_dir`; an error (and so a non-zero exit) when it
/// does not run or something in it has failed.
pub(crate) async fn run(run_dir: &Path, output: Output) -> Result<()> {
    let mut client = admin::connect_running(run_dir).await?;
    let status = client
        .status(StatusRequest {})
        .await
        .map_err(admin::refused)?
        .into_inner();
    match output {
        Output::Json => json(&status)?,
        Output::Text => text(&status)?,
    }
    let failed = status
        .checks
        .iter()
        .filter(|check| check.health() == Health::Failed)
        .count();
    anyhow::ensure!(
        failed == 0,
        "{failed} of {} checks failed",
        status.checks.len()
    );
    Ok(())
}

fn text(status: &StatusResponse) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "node        {} (pintle {}, pid {})",
        status.node_name, status.version, status.pid
    )?;
    writeln!(out, "api         {}", status.api_address)?;
    if !status.kubeconfig.is_empty() {
        writeln!(out, "kubeconfig  {}", status.kubeconfig)?;
    }
    writeln!(out)?;
    drop(out);
    let mut rows = vec![["COMPONENT", "CHECK", "HEALTH", "DETAIL"].map(str::to_owned)];
    for check in &status.checks {
        let row = [
            &check.component,
            &check.name,
            word(check.health()),
            &check.detail,
        ];
        rows.push(row.map(ToOwned::to_owned));
    }
    table::print(&rows)?;
    let mut out = std::io::stdout().lock();
    for check in status.checks.iter().filter(|check| !check.hint.is_empty()) {
        writeln!(
            out,
            "hint: {} {}: {}",
            check.component, check.name, check.hint
        )?;
    }
    writeln!(out)?;
    drop(out);
    let mut rows =
        vec![["NAMESPACE", "POD", "PHASE", "IP", "RESTARTS", "MESSAGE"].map(str::to_owned)];
    for pod in &status.pods {
        let restarts = pod.restarts.to_string();
        let row = [
            &pod.namespace,
            &pod.name,
            &pod.phase,
            &pod.ip,
            &restarts,
            &pod.message,
        ];
        rows.push(row.map(ToOwned::to_owned));
    }
    if rows.len() > 1 {
        return table::print(&rows);
    }
    writeln!(std::io::stdout(), "no pods")?;
    Ok(())
}

fn json(status: &StatusResponse) -> Result<()> {
    let checks: Vec<_> = status
        .checks
        .iter()
        .map(|check| {
            serde_json::json!({
                "component": check.component,
                "name": check.name,
                "health": word(check.health()),
                "detail": check.detail,
                "hint": check.hint,
            })
        })
        .collect();
    let pods: Vec<_> = status
        .pods
        .iter()
        .map(|pod| {
            serde_json::json!({
                "namespace": pod.namespace,
                "name": pod.name,
                "phase": pod.phase,
                "ip": pod.ip,
                "shimPid": pod.shim_pid,
                "restarts": pod.restarts,
                "message": pod.message,
            })
        })
        .collect();
    let value = serde_json::json!({
        "version": status.version,
        "node": status.node_name,
        "kubeconfig": status.kubeconfig,
        "api": status.api_address,
        "pid": status.pid,
        "checks": checks,
        "pods": pods,
    });
    writeln!(
        std::io::stdout(),
        "{}",
        serde_json::to_string_pretty(&value)?
    )?;
    Ok(())
}

fn word(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Degraded => "degraded",
        Health::Failed => "failed",
        Health::Unspecified => "unknown",
    }
}
