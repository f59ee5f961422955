//! One attempt of a probe: exec, HTTP, TCP or gRPC.
//!
//! Asks the container; changes nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, GRPCAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use prost::Message;
use tokio::net::TcpStream;

use super::http::{self, HttpRequest};
use crate::describe;
use crate::pod::machine::ProbeKind;
use crate::pod::seams::Sandboxes;

/// The container that is asked.
#[derive(Clone)]
pub struct Target {
    /// Runs commands in it.
    pub sandboxes: Arc<dyn Sandboxes>,
    /// Its pod.
    pub pod_uid: String,
    /// Its run.
    pub container_id: String,
    /// Its spec, for named ports.
    pub container: Container,
    /// Address of the pod.
    pub pod_ip: Option<IpAddr>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Target")
            .field("container_id", &self.container_id)
            .finish_non_exhaustive()
    }
}

/// How an attempt went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Healthy.
    Success,
    /// Not healthy.
    Failure(String),
    /// It could not be asked.
    Error(String),
}

impl Attempt {
    /// What it says about the container.
    pub fn healthy(&self) -> Option<bool> {
        match self {
            Self::Success => Some(true),
            Self::Failure(_) => Some(false),
            Self::Error(_) => None,
        }
    }

    /// Message of the `Unhealthy` Event.
    pub fn message(&self, kind: ProbeKind) -> Option<String> {
        match self {
            Self::Success => None,
            Self::Failure(words) => Some(format!("{} probe failed: {words}", kind.title())),
            Self::Error(words) => Some(format!(
                "{} probe errored and resulted in unknown state: {words}",
                kind.title()
            )),
        }
    }
}

impl Target {
    /// Port of the container by number or name.
    pub fn port(&self, port: &IntOrString) -> Option<u16> {
        match port {
            IntOrString::Int(number) => u16::try_from(*number).ok(),
            IntOrString::String(name) => self
                .container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name))
                .and_then(|port| u16::try_from(port.container_port).ok())
                .or_else(|| name.parse().ok()),
        }
    }
}

/// Makes one attempt.
pub async fn attempt(probe: &Probe, target: &Target, timeout: Duration) -> Attempt {
    if let Some(exec) = &probe.exec {
        return command(target, exec.command.as_deref().unwrap_or_default(), timeout).await;
    }
    if let Some(action) = &probe.http_get {
        let request = match HttpRequest::new(action, target) {
            Ok(request) => request,
            Err(error) => return Attempt::Error(error.to_string()),
        };
        return match http::get(&request, timeout).await {
            Ok(response) if (200..400).contains(&response) => Attempt::Success,
            Ok(response) => {
                Attempt::Failure(format!("HTTP probe failed with statuscode: {response}"))
            }
            Err(error) => Attempt::Failure(format!(
                "Get \"{}\": {}",
                request.url(),
                describe::chain(&error)
            )),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let Some(port) = target.port(&action.port) else {
            return Attempt::Error("invalid port".to_owned());
        };
        let host = action.host.clone().filter(|host| !host.is_empty());
        return tcp(target, host, port, timeout).await;
    }
    if let Some(action) = &probe.grpc {
        return grpc(target, action, timeout).await;
    }
    Attempt::Error("missing probe handler".to_owned())
}

async fn command(target: &Target, command: &[String], timeout: Duration) -> Attempt {
    let result = target
        .sandboxes
        .run_in(&target.pod_uid, &target.container_id, command, timeout)
        .await;
    match result {
        Err(error) => Attempt::Error(describe::chain(&error)),
        Ok(result) => match result.code {
            Some(0) => Attempt::Success,
            Some(_) => Attempt::Failure(result.output),
            None => Attempt::Failure(format!(
                "command timed out: {:?} timed out after {}s",
                command.join(" "),
                timeout.as_secs()
            )),
        },
    }
}

/// Words of a failed connection, as Go's net package has them.
pub(super) fn dial_error(address: &str, error: &std::io::Error) -> String {
    let words = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        std::io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    };
    format!("dial tcp {address}: {words}")
}

async fn tcp(target: &Target, host: Option<String>, port: u16, timeout: Duration) -> Attempt {
    let Some(host) = host.or_else(|| target.pod_ip.map(|ip| ip.to_string())) else {
        return Attempt::Error("the pod has no address".to_owned());
    };
    let address = format!("{host}:{port}");
    match tokio::time::timeout(timeout, TcpStream::connect((host.as_str(), port))).await {
        Ok(Ok(_)) => Attempt::Success,
        Ok(Err(error)) => Attempt::Failure(dial_error(&address, &error)),
        Err(_) => Attempt::Failure(format!("dial tcp {address}: i/o timeout")),
    }
}

/// grpc.health.v1.HealthCheckRequest.
#[derive(Clone, PartialEq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// grpc.health.v1.HealthCheckResponse; 1 is SERVING.
#[derive(Clone, PartialEq, Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

async fn grpc(target: &Target, action: &GRPCAction, timeout: Duration) -> Attempt {
    let (Some(ip), Ok(port)) = (target.pod_ip, u16::try_from(action.port)) else {
        return Attempt::Error("the pod has no address".to_owned());
    };
    let address = SocketAddr::new(ip, port);
    let service = action.service.clone().unwrap_or_default();
    let call = async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| describe::chain(&error))?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| describe::chain(&error))?;
        let mut client = tonic::client::Grpc::new(channel);
        client
            .ready()
            .await
            .map_err(|error| describe::chain(&error))?;
        let codec = tonic_prost::ProstCodec::<HealthRequest, HealthResponse>::default();
        let path = http::check_path();
        client
            .unary(tonic::Request::new(HealthRequest { service }), path, codec)
            .await
            .map(|response| response.into_inner().status)
            .map_err(|status| format!("rpc error: {}", status.message()))
    };
    match tokio::time::timeout(timeout, Box::pin(call)).await {
        Ok(Ok(1)) => Attempt::Success,
        Ok(Ok(status)) => Attempt::Failure(format!(
            "service unhealthy (responded with {:?})",
            match status {
                0 => "UNKNOWN",
                2 => "NOT_SERVING",
                _ => "SERVICE_UNKNOWN",
            }
        )),
        Ok(Err(words)) => Attempt::Failure(format!("failed to connect service {address}: {words}")),
        Err(_) => Attempt::Failure(format!(
            "timeout: failed to connect service {address} within {}s: context deadline exceeded",
            timeout.as_secs()
        )),
    }
}
