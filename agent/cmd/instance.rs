//! One running instance: control plane and agent in one process, or an agent alone, and what the
//! admin socket may ask of them.
//!
//! The two meet only over gRPC, as they would on two machines; here they share a process, a
//! supervisor and a shutdown.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use pintle_agent::Agent;
use pintle_agent::image::{ImageRecord, Progress, ProgressFn, PullRequest};
use pintle_control_plane::ControlPlane;
use pintle_control_plane::token::Role;
use pintle_proto::admin::{
    CreateKubeconfigRequest, CreateTokenRequest, CreateTokenResponse, Image, Member,
    StatusResponse, Token,
};
use tokio_util::sync::CancellationToken;

use crate::admin::Report;
use crate::config::Settings;

/// Handle on the running instance. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Running {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    control_plane: Option<ControlPlane>,
    agent: Agent,
    started_at: SystemTime,
    shutdown: CancellationToken,
}

impl Running {
    pub(crate) fn new(
        settings: Settings,
        control_plane: Option<ControlPlane>,
        agent: Agent,
        started_at: SystemTime,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                control_plane,
                agent,
                started_at,
                shutdown,
            }),
        }
    }

    pub(crate) fn status(&self) -> StatusResponse {
        let Inner {
            settings,
            control_plane,
            agent,
            started_at,
            ..
        } = &*self.inner;
        let mut checks = match control_plane {
            Some(control_plane) => control_plane.status(),
            None => Vec::new(),
        };
        checks.extend(agent.status());
        let started = started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: settings.node_name.clone(),
            kubeconfig: settings.kubeconfig.display().to_string(),
            api_address: match control_plane {
                Some(_) => format!(
                    "https://{}",
                    std::net::SocketAddr::new(settings.bind, settings.port)
                ),
                None => agent.config().servers.join(", "),
            },
            pid: std::process::id(),
            started_at_unix_ms: i64::try_from(started.as_millis()).unwrap_or(i64::MAX),
            checks,
            pods: agent.pods(),
        }
    }

    /// With `remove_pods`, takes the node's pods and traces off the host. Follow with
    /// [`Running::shut_down`].
    pub(crate) async fn stop(
        &self,
        remove_pods: bool,
        report: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<()> {
        if remove_pods {
            self.inner.agent.teardown(&report).await?;
        }
        report(match self.inner.control_plane {
            Some(_) => "stopping the control plane and the agent".to_owned(),
            None => "stopping the agent".to_owned(),
        });
        Ok(())
    }

    /// Ends the process's work; pods that still run are left alone.
    pub(crate) fn shut_down(&self) {
        self.inner.shutdown.cancel();
    }

    pub(crate) async fn import_image(&self, path: &Path, report: Report) -> Result<Vec<Image>> {
        let records = self
            .inner
            .agent
            .images()
            .import(path, progress(report))
            .await?;
        Ok(records.iter().map(image).collect())
    }

    pub(crate) async fn pull_image(&self, reference: &str, report: Report) -> Result<Vec<Image>> {
        let request = PullRequest {
            reference: reference.to_owned(),
            ..PullRequest::default()
        };
        let record = self
            .inner
            .agent
            .images()
            .pull(request, progress(report))
            .await?;
        Ok(vec![image(&record)])
    }

    pub(crate) fn list_images(&self) -> Vec<Image> {
        self.inner.agent.images().list().iter().map(image).collect()
    }

    pub(crate) async fn remove_image(&self, reference: &str) -> Result<Vec<String>> {
        let names = self
            .inner
            .agent
            .images()
            .lookup(reference)
            .map(|record| record.repo_tags);
        self.inner.agent.images().remove(reference).await?;
        Ok(names
            .filter(|names| !names.is_empty())
            .unwrap_or_else(|| vec![reference.to_owned()]))
    }
}

/// What only a server does.
impl Running {
    fn control_plane(&self) -> Result<&ControlPlane> {
        self.inner
            .control_plane
            .as_ref()
            .context("this machine is an agent; run the command on a server of the cluster")
    }

    pub(crate) async fn create_token(
        &self,
        request: CreateTokenRequest,
    ) -> Result<CreateTokenResponse> {
        let control_plane = self.control_plane()?;
        let role = Role::parse(&request.role)
            .with_context(|| format!("--role {}: there is no such role", request.role))?;
        let life = Duration::from_secs(request.ttl_seconds);
        let token = control_plane
            .join_tokens()
            .create(role, life, &request.description, SystemTime::now())
            .await?;
        Ok(CreateTokenResponse {
            token: token.to_string(),
            server: control_plane.public_endpoint(),
            loopback_only: control_plane.is_loopback_only(),
        })
    }

    pub(crate) async fn list_tokens(&self) -> Result<Vec<Token>> {
        let now = SystemTime::now();
        let tokens = self.control_plane()?.join_tokens().list().await?;
        Ok(tokens
            .into_iter()
            .map(|token| Token {
                expired: token.has_expired(now),
                expires_at_unix: token.expires.as_second(),
                id: token.id,
                role: token.role,
                description: token.description,
            })
            .collect())
    }

    pub(crate) async fn revoke_token(&self, id: &str) -> Result<()> {
        Ok(self.control_plane()?.join_tokens().revoke(id).await?)
    }

    pub(crate) fn list_members(&self) -> Result<Vec<Member>> {
        let control_plane = self.control_plane()?;
        let own = control_plane.member_id();
        Ok(control_plane
            .members()
            .into_iter()
            .map(|member| Member {
                id: member.id,
                address: member.address,
                voter: member.voter,
                leader: member.leader,
                self_: member.id == own,
            })
            .collect())
    }

    pub(crate) async fn remove_member(&self, id: u64) -> Result<()> {
        let control_plane = self.control_plane()?;
        let members = control_plane.members();
        if !members.iter().any(|member| member.id == id) {
            bail!("there is no member {id}; `pintle member list` shows those there are");
        }
        if members.len() == 1 {
            bail!("member {id} is the only server; `pintle reset` ends the cluster");
        }
        Ok(control_plane.remove_member(id).await?)
    }

    pub(crate) fn create_kubeconfig(&self, request: &CreateKubeconfigRequest) -> Result<String> {
        let life = Duration::from_secs(request.ttl_seconds);
        let control_plane = self.control_plane()?;
        Ok(control_plane.user_kubeconfig(&request.user, &request.groups, life)?)
    }
}

fn image(record: &ImageRecord) -> Image {
    Image {
        id: record.id.clone(),
        repo_tags: record.repo_tags.clone(),
        repo_digests: record.repo_digests.clone(),
        size_bytes: record.size,
    }
}

/// Turns the image store's progress into the admin socket's.
fn progress(report: Report) -> ProgressFn {
    let total = AtomicU64::new(0);
    Arc::new(move |step| match step {
        Progress::Resolved { bytes, .. } => {
            total.store(bytes, Ordering::Relaxed);
            report("Resolving", 0, bytes);
        }
        Progress::Downloaded { bytes } => {
            report("Downloading", bytes, total.load(Ordering::Relaxed));
        }
        Progress::Unpacked { .. } => {
            let total = total.load(Ordering::Relaxed);
            report("Unpacking", total, total);
        }
    })
}
