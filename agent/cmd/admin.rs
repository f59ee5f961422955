//! The running instance's admin socket: `RUN_DIR/pintle.sock`.
//!
//! [`serve`] answers for control plane and agent together; [`connect`] is how every other
//! command reaches it. The socket is root's alone (mode 0600), which is its authorisation.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use pintle_proto::admin::admin_client::AdminClient;
use pintle_proto::admin::admin_server::{Admin, AdminServer};
use pintle_proto::admin::{
    CreateKubeconfigRequest, CreateKubeconfigResponse, CreateTokenRequest, CreateTokenResponse,
    Image, ImageProgress, ImportImageRequest, ListImagesRequest, ListImagesResponse,
    ListMembersRequest, ListMembersResponse, ListTokensRequest, ListTokensResponse,
    PullImageRequest, RemoveImageRequest, RemoveImageResponse, RemoveMemberRequest,
    RemoveMemberResponse, RevokeTokenRequest, RevokeTokenResponse, StatusRequest, StatusResponse,
    StopProgress, StopRequest,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::instance::Running;

/// Name of the socket in the run directory.
const SOCKET: &str = "pintle.sock";

/// Path of an instance's socket.
pub(crate) fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET)
}

/// Reaches the instance that owns `run_dir`; `None` when none runs.
pub(crate) async fn connect(run_dir: &Path) -> Result<Option<AdminClient<Channel>>> {
    let path = socket_path(run_dir);
    match UnixStream::connect(&path).await {
        Ok(_answers) => {}
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("connecting to {}", path.display()));
        }
    }
    let shown = path.display().to_string();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI is never resolved: the connector above ignores it.
    let channel = Endpoint::from_static("http://pintle.sock")
        .connect_timeout(Duration::from_secs(5))
        .connect_with_connector(connector)
        .await
        .with_context(|| format!("connecting to {shown}"))?;
    Ok(Some(AdminClient::new(channel)))
}

/// Reaches the instance that owns `run_dir`, or says that none runs.
pub(crate) async fn connect_running(run_dir: &Path) -> Result<AdminClient<Channel>> {
    connect(run_dir).await?.with_context(|| {
        format!(
            "no instance runs at {}; start one with `pintle up`",
            run_dir.display()
        )
    })
}

/// A refusal of the instance, in its own words.
#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
pub(crate) fn refused(status: Status) -> anyhow::Error {
    anyhow::anyhow!("{}", status.message())
}

/// Answers until `shutdown`; the socket is there before this returns its future's first await.
pub(crate) async fn serve(
    running: Running,
    run_dir: &Path,
    shutdown: CancellationToken,
) -> Result<()> {
    let path = socket_path(run_dir);
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("removing stale {}", path.display()));
        }
    }
    let listener =
        UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("protecting {}", path.display()))?;
    Server::builder()
        .add_service(AdminServer::new(AdminService { running }))
        .serve_with_incoming_shutdown(
            UnixListenerStream::new(listener),
            shutdown.cancelled_owned(),
        )
        .await
        .context("serving the admin socket")
}

struct AdminService {
    running: Running,
}

type ProgressStream<T> = Pin<Box<ReceiverStream<Result<T, Status>>>>;

#[tonic::async_trait]
impl Admin for AdminService {
    type StopStream = ProgressStream<StopProgress>;
    type ImportImageStream = ProgressStream<ImageProgress>;
    type PullImageStream = ProgressStream<ImageProgress>;

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(self.running.status()))
    }

    async fn stop(
        &self,
        request: Request<StopRequest>,
    ) -> Result<Response<Self::StopStream>, Status> {
        let (send, receive) = mpsc::channel(16);
        let running = self.running.clone();
        let remove_pods = request.into_inner().remove_pods;
        tokio::spawn(async move {
            let steps = send.clone();
            let result = running
                .stop(remove_pods, move |step| {
                    let step = StopProgress { step };
                    // A client that went away does not stop the stopping.
                    drop(steps.try_send(Ok(step)));
                })
                .await;
            if let Err(error) = result {
                drop(send.send(Err(Status::internal(format!("{error:#}")))).await);
            }
            drop(send);
            running.shut_down();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }

    async fn import_image(
        &self,
        request: Request<ImportImageRequest>,
    ) -> Result<Response<Self::ImportImageStream>, Status> {
        let path = PathBuf::from(request.into_inner().path);
        let running = self.running.clone();
        Ok(Response::new(progress(move |report| async move {
            running.import_image(&path, report).await
        })))
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<Self::PullImageStream>, Status> {
        let reference = request.into_inner().reference;
        let running = self.running.clone();
        Ok(Response::new(progress(move |report| async move {
            running.pull_image(&reference, report).await
        })))
    }

    async fn list_images(
        &self,
        _: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        Ok(Response::new(ListImagesResponse {
            images: self.running.list_images(),
        }))
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let removed = self
            .running
            .remove_image(&request.into_inner().reference)
            .await
            .map_err(failed)?;
        Ok(Response::new(RemoveImageResponse { removed }))
    }

    async fn create_token(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Result<Response<CreateTokenResponse>, Status> {
        let created = self.running.create_token(request.into_inner()).await;
        created.map(Response::new).map_err(failed)
    }

    async fn list_tokens(
        &self,
        _: Request<ListTokensRequest>,
    ) -> Result<Response<ListTokensResponse>, Status> {
        let tokens = self.running.list_tokens().await.map_err(failed)?;
        Ok(Response::new(ListTokensResponse { tokens }))
    }

    async fn revoke_token(
        &self,
        request: Request<RevokeTokenRequest>,
    ) -> Result<Response<RevokeTokenResponse>, Status> {
        let revoked = self.running.revoke_token(&request.into_inner().id).await;
        revoked.map_err(failed)?;
        Ok(Response::new(RevokeTokenResponse {}))
    }

    async fn create_kubeconfig(
        &self,
        request: Request<CreateKubeconfigRequest>,
    ) -> Result<Response<CreateKubeconfigResponse>, Status> {
        let kubeconfig = self.running.create_kubeconfig(&request.into_inner());
        let kubeconfig = kubeconfig.map_err(failed)?;
        Ok(Response::new(CreateKubeconfigResponse { kubeconfig }))
    }

    async fn list_members(
        &self,
        _: Request<ListMembersRequest>,
    ) -> Result<Response<ListMembersResponse>, Status> {
        let members = self.running.list_members().map_err(failed)?;
        Ok(Response::new(ListMembersResponse { members }))
    }

    async fn remove_member(
        &self,
        request: Request<RemoveMemberRequest>,
    ) -> Result<Response<RemoveMemberResponse>, Status> {
        let removed = self.running.remove_member(request.into_inner().id).await;
        removed.map_err(failed)?;
        Ok(Response::new(RemoveMemberResponse {}))
    }
}

/// What an image job calls with each step: stage, bytes done, bytes in all.
pub(crate) type Report = Box<dyn Fn(&str, u64, u64) + Send + Sync>;

/// Runs an image job and turns its reports and its result into a response stream.
fn progress<F, Fut>(job: F) -> ProgressStream<ImageProgress>
where
    F: FnOnce(Report) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Vec<Image>>> + Send + 'static,
{
    let (send, receive) = mpsc::channel(64);
    let reports = send.clone();
    let report: Report = Box::new(move |stage, done_bytes, total_bytes| {
        let step = ImageProgress {
            stage: stage.to_owned(),
            done_bytes,
            total_bytes,
            images: Vec::new(),
        };
        // Progress is a courtesy: a slow reader misses steps, never the result.
        drop(reports.try_send(Ok(step)));
    });
    tokio::spawn(async move {
        let last = match job(report).await {
            Ok(images) => Ok(ImageProgress {
                stage: "Done".to_owned(),
                images,
                ..ImageProgress::default()
            }),
            Err(error) => Err(failed(error)),
        };
        drop(send.send(last).await);
    });
    Box::pin(ReceiverStream::new(receive))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn failed(error: anyhow::Error) -> Status {
    Status::failed_precondition(format!("{error:#}"))
}
