//! `pintle down` and `pintle reset`: off this host, with or without the data.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use pintle_proto::admin::StopRequest;

use crate::cli::Instance;
use crate::config::{Role, Settings};
use crate::{admin, node};

/// Stops the instance if it runs, and in any case removes what it left on the host.
pub(crate) async fn down(instance: &Instance) -> Result<()> {
    let run_dir = std::path::absolute(&instance.run_dir)?;
    if let Some(mut client) = admin::connect(&run_dir).await? {
        let mut steps = client
            .stop(StopRequest { remove_pods: true })
            .await
            .map_err(|status| anyhow::anyhow!("{}", status.message()))?
            .into_inner();
        loop {
            match steps.message().await {
                Ok(Some(step)) => say(&step.step)?,
                Ok(None) => break,
                // The instance closes the socket as it ends; what it left is removed below.
                Err(status) if status.code() == tonic::Code::Unavailable => break,
                Err(status) => bail!("{}", status.message()),
            }
        }
    }
    let Some(settings) = Settings::load(instance)? else {
        say("nothing to stop")?;
        return Ok(());
    };
    wait_for_end(&settings.run_dir).await?;
    let host = pintle_agent::preflight::cgroup_root(settings.cgroup_parent.as_deref())?;
    let report = |step: String| drop(say(&step));
    pintle_agent::cleanup_host(&node::offline_agent_config(&settings, host), &report)
        .await
        .context("removing what the instance left on this host")?;
    match std::fs::remove_dir_all(&settings.run_dir) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("removing {}", settings.run_dir.display()));
        }
    }
    say("down")
}

/// [`down`], then the data directory and the kubeconfig go.
pub(crate) async fn reset(instance: &Instance, yes: bool) -> Result<()> {
    let shown = instance.data_dir.display();
    let settings = Settings::load(instance)?;
    let is_agent = settings.as_ref().is_some_and(|s| s.role == Role::Agent);
    let what = if is_agent {
        "this node's place in its cluster"
    } else {
        "the cluster"
    };
    if !yes {
        if !std::io::stdin().is_terminal() {
            bail!("`pintle reset` deletes {shown} and with it {what}; say so with --yes");
        }
        eprint!("Delete {shown} and with it {what}? [y/N] ");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !answer.trim().eq_ignore_ascii_case("y") {
            bail!("nothing was deleted");
        }
    }
    down(instance).await?;
    let Some(settings) = settings else {
        return Ok(());
    };
    let kubeconfig = (!is_agent).then_some(settings.kubeconfig.as_path());
    for path in kubeconfig.into_iter().chain([settings.data_dir.as_path()]) {
        remove(path).with_context(|| format!("removing {}", path.display()))?;
    }
    if is_agent {
        say(&format!(
            "the cluster still has the node; remove it there with `kubectl delete node {}`",
            settings.node_name
        ))?;
    }
    say("reset")
}

fn remove(path: &Path) -> std::io::Result<()> {
    let removed = if path.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Waits until the instance's process has let go of its lock.
async fn wait_for_end(run_dir: &Path) -> Result<()> {
    let path = run_dir.join("pintle.lock");
    tokio::task::spawn_blocking(move || {
        let Ok(file) = std::fs::File::open(&path) else {
            return Ok(());
        };
        nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive)
            .map(drop)
            .map_err(|(_file, error)| error)
    })
    .await
    .context("waiting for the instance to end")?
    .context("waiting for the instance to end")
}

fn say(step: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{step}").context("writing to standard output")
}
