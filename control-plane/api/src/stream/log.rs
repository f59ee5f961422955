//! `GET pods/NAME/log`: a container's log as plain text.
//!
//! Watches and changes no state; the agent reads the log files, this passes the bytes on.

use std::time::Duration;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Response};
use axum::body::{Body, Bytes};
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_proto::node::open_stream::Target;
use pintle_proto::node::stream_frame::Frame;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

use super::{NodeProxy, NodeStream, failure_of, node_of, options};

/// A refusal by the agent that comes this soon becomes the response's status; after it, the
/// response has begun.
const REFUSAL_WINDOW: Duration = Duration::from_millis(500);

pub(super) async fn serve(
    proxy: &dyn NodeProxy,
    pod: &Object,
    query: &str,
) -> Result<Response<Body>, Status> {
    let target = options::logs(pod, query)?;
    let Some(node) = node_of(pod) else {
        // Not bound yet: there is no log, which is no error.
        return Ok(text(Body::empty()));
    };
    options::check_log_exists(pod, &target.container, target.previous)?;
    let mut stream = proxy.open(node, Target::Logs(target)).await?;
    let first = match tokio::time::timeout(REFUSAL_WINDOW, stream.frames_in.recv()).await {
        Ok(frame) => frame.and_then(|frame| frame.frame),
        Err(_elapsed) => return Ok(text(Body::from_stream(bytes(None, stream)))),
    };
    match first {
        Some(Frame::Status(status)) => match failure_of(&status) {
            Some(failure) => Err(failure),
            None => Ok(text(Body::empty())),
        },
        Some(Frame::Data(data)) => Ok(text(Body::from_stream(bytes(Some(data.data), stream)))),
        Some(_) => Ok(text(Body::from_stream(bytes(None, stream)))),
        None => Ok(text(Body::empty())),
    }
}

fn text(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// The log's bytes; dropping the stream ends the agent's side.
fn bytes(
    first: Option<Bytes>,
    stream: NodeStream,
) -> impl Stream<Item = Result<Bytes, Status>> + Send {
    // Held so that the agent does not take the call as ended by us.
    let frames_out = stream.frames_out;
    let rest = ReceiverStream::new(stream.frames_in).filter_map(move |frame| {
        let _open = &frames_out;
        match frame.frame {
            Some(Frame::Data(data)) => Some(Ok(data.data)),
            Some(Frame::Status(status)) => failure_of(&status).map(Err),
            _ => None,
        }
    });
    tokio_stream::iter(first.map(Ok)).chain(rest)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use pintle_proto::node::{StreamData, StreamFrame};
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    /// A node that answers with these frames.
    struct Node(Vec<Frame>);

    #[async_trait]
    impl NodeProxy for Node {
        async fn open(&self, node: &str, target: Target) -> Result<NodeStream, Status> {
            assert_eq!(node, "n1");
            assert!(matches!(target, Target::Logs(t) if t.container == "a"));
            let (to_api, frames_in) = mpsc::channel(16);
            for frame in &self.0 {
                let frame = Some(frame.clone());
                to_api.send(StreamFrame { frame }).await.unwrap();
            }
            Ok(NodeStream {
                frames_in,
                frames_out: mpsc::channel(1).0,
            })
        }
    }

    fn data(text: &'static str) -> Frame {
        Frame::Data(StreamData {
            channel: 2,
            data: Bytes::from_static(text.as_bytes()),
        })
    }

    async fn log_of(pod: serde_json::Value, frames: Vec<Frame>) -> Result<String, Status> {
        let pod = Object::from_value(pod).unwrap();
        let response = serve(&Node(frames), &pod, "container=a").await?;
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        Ok(String::from_utf8(body.unwrap().to_vec()).unwrap())
    }

    fn running() -> serde_json::Value {
        json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"nodeName": "n1", "containers": [{"name": "a"}]},
            "status": {"containerStatuses": [{"name": "a", "state": {"running": {}}}]},
        })
    }

    #[tokio::test]
    async fn bytes_pass_through_until_the_final_status() {
        let success = Frame::Status(Bytes::from_static(br#"{"status":"Success"}"#));
        let frames = vec![data("one\n"), data("two\n"), success];
        assert_eq!(log_of(running(), frames).await.unwrap(), "one\ntwo\n");
        assert_eq!(log_of(running(), vec![]).await.unwrap(), "");
    }

    #[tokio::test]
    async fn an_agents_refusal_is_the_answer() {
        let refusal = json!({"status": "Failure", "reason": "NotFound", "code": 404,
            "message": "no such container"});
        let frames = vec![Frame::Status(Bytes::from(refusal.to_string()))];
        let status = log_of(running(), frames).await.unwrap_err();
        assert_eq!(
            (status.code, status.message.as_str()),
            (404, "no such container")
        );
    }

    #[tokio::test]
    async fn a_pod_without_a_node_has_an_empty_log() {
        let mut pod = running();
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        assert_eq!(log_of(pod, vec![]).await.unwrap(), "");
    }
}
