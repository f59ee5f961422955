//! Registers the node, keeps its status and Lease fresh.
//!
//! Watches the health report, the images and the machine's pressure; changes the Node object
//! and its Lease through the session. The Lease is renewed every 10 s; the status is sent when
//! it changes, and every 5 min.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerImage, NodeStatus};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::health::Health;
use super::host;
use super::object::{self, NodeFacts};
use crate::clock::Clock;
use crate::image::ImageStore;
use crate::session::{ClusterState, ControlPlane, RequestError};
use crate::status::EventSink;

const LEASE_PERIOD: Duration = Duration::from_secs(10);
const LEASE_DURATION_SECONDS: u32 = 40;
const STATUS_PERIOD: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_millis(500);

/// What the heartbeat is told once.
#[derive(Clone, Debug)]
pub struct HeartbeatConfig {
    /// What the node is.
    pub facts: NodeFacts,
    /// For the free space of its file system.
    pub data_dir: PathBuf,
}

/// The task.
pub struct Heartbeat {
    config: HeartbeatConfig,
    health: Health,
    images: ImageStore,
    events: EventSink,
    control_plane: Arc<dyn ControlPlane>,
    state: ClusterState,
    clock: Clock,
    sent: Option<NodeStatus>,
    /// Whether pods could be placed here when it was looked at last.
    open: Option<bool>,
    greeted: bool,
}

impl Heartbeat {
    /// A heartbeat that has not begun.
    pub fn new(
        config: HeartbeatConfig,
        health: Health,
        images: ImageStore,
        events: EventSink,
        control_plane: Arc<dyn ControlPlane>,
        state: ClusterState,
        clock: Clock,
    ) -> Self {
        Self {
            config,
            health,
            images,
            events,
            control_plane,
            state,
            clock,
            sent: None,
            open: None,
            greeted: false,
        }
    }

    /// Beats until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let control_plane = self.control_plane.clone();
            let Some(()) = shutdown
                .run_until_cancelled(control_plane.connected())
                .await
            else {
                return;
            };
            let Some(error) = shutdown.run_until_cancelled(Box::pin(self.beat())).await else {
                return;
            };
            tracing::debug!(%error, "node status");
            if !matches!(error, RequestError::Disconnected)
                && shutdown
                    .run_until_cancelled(tokio::time::sleep(RETRY))
                    .await
                    .is_none()
            {
                return;
            }
        }
    }

    /// Registers, then beats until a request fails.
    async fn beat(&mut self) -> RequestError {
        let mut health = self.health.watch();
        if let Err(error) = self.register().await {
            return error;
        }
        let mut lease = tokio::time::interval(LEASE_PERIOD);
        lease.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut refreshed = Instant::now();
        loop {
            let due = tokio::select! {
                _ = lease.tick() => {
                    if let Err(error) = self.control_plane.renew_lease(LEASE_DURATION_SECONDS).await {
                        return error;
                    }
                    refreshed.elapsed() >= STATUS_PERIOD
                }
                changed = health.changed() => {
                    if changed.is_err() {
                        return RequestError::Disconnected;
                    }
                    false
                }
            };
            match self.refresh(due).await {
                Err(error) => return error,
                Ok(true) => refreshed = Instant::now(),
                Ok(false) => {}
            }
        }
    }

    fn status(&self) -> NodeStatus {
        let node = self.state.node();
        let before = self
            .sent
            .as_ref()
            .or_else(|| node.as_ref().and_then(|node| node.status.as_ref()));
        object::status(
            &self.config.facts,
            &self.health.now(),
            host::pressure(&self.config.data_dir),
            self.container_images(),
            before,
            self.clock.now(),
        )
    }

    async fn register(&mut self) -> Result<(), RequestError> {
        let status = self.status();
        let node = object::node(&self.config.facts, status.clone());
        self.control_plane.register_node(&node).await?;
        if !self.greeted {
            self.greeted = true;
            let node = self.state.node();
            self.events.node(
                node.as_deref(),
                false,
                "Starting",
                "Starting kubelet.".to_owned(),
            );
            let missing = &self.config.facts.missing_controllers;
            if !missing.is_empty() {
                self.events.node(
                    node.as_deref(),
                    true,
                    object::LIMITS_CONDITION,
                    object::limits_message(missing),
                );
            }
        }
        self.accepted(&status);
        Ok(())
    }

    /// Sends the status when it is due or says something new; true when it was sent.
    async fn refresh(&mut self, due: bool) -> Result<bool, RequestError> {
        self.tell_when_cordoned();
        // The control plane thought the node lost: that is what it has to hear the news of.
        if let Some(status) = self.state.node().and_then(|node| node.status.clone())
            && object::is_thought_lost(&status)
        {
            self.sent = Some(status);
        }
        let status = self.status();
        let news = self
            .sent
            .as_ref()
            .is_none_or(|sent| !object::same_news(sent, &status));
        if !news && !due {
            return Ok(false);
        }
        match self.control_plane.update_node_status(&status).await {
            Ok(()) => {}
            // Somebody deleted the Node: it registers again.
            Err(error) if error.is_gone() => {
                self.register().await?;
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
        self.accepted(&status);
        Ok(true)
    }

    /// An Event when somebody cordoned the node, or uncordoned it.
    fn tell_when_cordoned(&mut self) {
        let Some(node) = self.state.node() else {
            return;
        };
        let open = node
            .spec
            .as_ref()
            .is_none_or(|spec| spec.unschedulable != Some(true));
        if self.open.replace(open).is_some_and(|before| before != open) {
            let reason = if open {
                "NodeSchedulable"
            } else {
                "NodeNotSchedulable"
            };
            let message = format!("Node {} status is now: {reason}", self.config.facts.name);
            self.events.node(Some(&node), false, reason, message);
        }
    }

    /// The control plane has this status: Events of what changed, and readiness for all.
    fn accepted(&mut self, status: &NodeStatus) {
        let ready = is_true(status, "Ready");
        let name = &self.config.facts.name;
        let node = self.state.node();
        let before = self.sent.replace(status.clone());
        let held = |type_: &str| before.as_ref().map(|status| is_true(status, type_));
        for (type_, when_true, when_false) in [
            (
                "MemoryPressure",
                "NodeHasInsufficientMemory",
                "NodeHasSufficientMemory",
            ),
            (
                "DiskPressure",
                "NodeHasDiskPressure",
                "NodeHasNoDiskPressure",
            ),
            (
                "PIDPressure",
                "NodeHasInsufficientPID",
                "NodeHasSufficientPID",
            ),
            ("Ready", "NodeReady", "NodeNotReady"),
        ] {
            let now = is_true(status, type_);
            // A node that starts says what it has, but not that it is not ready yet.
            if held(type_) == Some(now) || (held(type_).is_none() && type_ == "Ready" && !now) {
                continue;
            }
            let reason = if now { when_true } else { when_false };
            let message = format!("Node {name} status is now: {reason}");
            self.events.node(node.as_deref(), false, reason, message);
        }
        if before.is_none() || held("Ready") != Some(ready) {
            tracing::info!(node = name, ready, "node status");
        }
        self.health.announce(ready);
    }

    fn container_images(&self) -> Vec<ContainerImage> {
        let mut images: Vec<ContainerImage> = self
            .images
            .list()
            .into_iter()
            .map(|record| ContainerImage {
                names: Some([record.repo_digests, record.repo_tags].concat()),
                size_bytes: i64::try_from(record.size).ok(),
            })
            .collect();
        images.sort_by_key(|image| std::cmp::Reverse(image.size_bytes));
        images
    }
}

fn is_true(status: &NodeStatus, type_: &str) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}
