//! Options of the streaming subresources, from the query, checked as Kubernetes checks them;
//! and which container they mean.
//!
//! Pure.

use jiff::Timestamp;
use pintle_kube_types::field::{ErrorList, FieldError, Path};
use pintle_kube_types::gvk::GroupKind;
use pintle_kube_types::object::Object;
use pintle_kube_types::status::Status;
use pintle_proto::node::open_stream::Target;
use pintle_proto::node::{AttachTarget, ExecTarget, LogsTarget};
use serde_json::Value;

/// The options of `log` as a target for the agent.
pub(super) fn logs(pod: &Object, query: &str) -> Result<LogsTarget, Status> {
    let query = Query::parse(query);
    let mut target = LogsTarget {
        namespace: pod.namespace().unwrap_or_default().to_owned(),
        pod: pod.name().unwrap_or_default().to_owned(),
        pod_uid: pod.uid().unwrap_or_default().to_owned(),
        container: String::new(),
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        since_seconds: query.integer("sinceSeconds")?,
        since_time: query.first("sinceTime").unwrap_or_default().to_owned(),
        tail_lines: query.integer("tailLines")?,
        limit_bytes: query.integer("limitBytes")?,
        stream: query.first("stream").unwrap_or_default().to_owned(),
    };
    if !target.since_time.is_empty() && target.since_time.parse::<Timestamp>().is_err() {
        return Err(Status::bad_request(format!(
            "parsing time {:?}: not an RFC 3339 time",
            target.since_time
        )));
    }
    let errors = log_errors(&target);
    if !errors.is_empty() {
        let kind = GroupKind::new("", "PodLogOptions");
        return Err(Status::invalid(&kind, &target.pod, &errors));
    }
    target.container = container(pod, query.first("container").unwrap_or_default())?;
    Ok(target)
}

fn log_errors(options: &LogsTarget) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut refuse = |error: FieldError| errors.push(error);
    let field = Path::new;
    if let Some(lines) = options.tail_lines.filter(|n| *n < 0) {
        refuse(FieldError::invalid(
            &field("tailLines"),
            lines,
            "must be greater than or equal to 0",
        ));
    }
    if let Some(bytes) = options.limit_bytes.filter(|n| *n < 1) {
        refuse(FieldError::invalid(
            &field("limitBytes"),
            bytes,
            "must be greater than 0",
        ));
    }
    match options.since_seconds {
        Some(_) if !options.since_time.is_empty() => refuse(FieldError::forbidden(
            &field("sinceSeconds"),
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        )),
        Some(seconds) if seconds < 1 => refuse(FieldError::invalid(
            &field("sinceSeconds"),
            seconds,
            "must be greater than 0",
        )),
        _ => {}
    }
    match options.stream.as_str() {
        "Stdout" | "Stderr" if options.tail_lines.is_some() => refuse(FieldError::forbidden(
            &field(""),
            "`tailLines` and specific `stream` are mutually exclusive for now",
        )),
        "" | "All" | "Stdout" | "Stderr" => {}
        other => refuse(FieldError::not_supported(
            &field("stream"),
            other,
            &["All", "Stderr", "Stdout"],
        )),
    }
    errors
}

/// The options of `exec`.
pub(super) fn exec(pod: &Object, query: &str) -> Result<Target, Status> {
    let query = Query::parse(query);
    let command: Vec<String> = query.all("command").map(str::to_owned).collect();
    let streams = Streams::of(&query);
    let mut errors = streams.errors();
    if command.is_empty() {
        errors.push(FieldError::required(&Path::new("command"), ""));
    }
    if !errors.is_empty() {
        let kind = GroupKind::new("", "PodExecOptions");
        let name = pod.name().unwrap_or_default();
        return Err(Status::invalid(&kind, name, &errors));
    }
    Ok(Target::Exec(ExecTarget {
        namespace: pod.namespace().unwrap_or_default().to_owned(),
        pod: pod.name().unwrap_or_default().to_owned(),
        pod_uid: pod.uid().unwrap_or_default().to_owned(),
        container: container(pod, query.first("container").unwrap_or_default())?,
        command,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        tty: streams.tty,
    }))
}

/// The options of `attach`.
pub(super) fn attach(pod: &Object, query: &str) -> Result<Target, Status> {
    let query = Query::parse(query);
    let streams = Streams::of(&query);
    let errors = streams.errors();
    if !errors.is_empty() {
        let kind = GroupKind::new("", "PodAttachOptions");
        let name = pod.name().unwrap_or_default();
        return Err(Status::invalid(&kind, name, &errors));
    }
    Ok(Target::Attach(AttachTarget {
        namespace: pod.namespace().unwrap_or_default().to_owned(),
        pod: pod.name().unwrap_or_default().to_owned(),
        pod_uid: pod.uid().unwrap_or_default().to_owned(),
        container: container(pod, query.first("container").unwrap_or_default())?,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        tty: streams.tty,
    }))
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "the four flags of PodExecOptions"
)]
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    fn of(query: &Query) -> Self {
        let tty = query.flag("tty");
        Self {
            stdin: query.flag("stdin"),
            stdout: query.flag("stdout"),
            // A terminal has one output.
            stderr: query.flag("stderr") && !tty,
            tty,
        }
    }

    fn errors(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        if !(self.stdin || self.stdout || self.stderr) {
            errors.push(FieldError::forbidden(
                &Path::new(""),
                "must specify at least one of `stdin`, `stdout`, `stderr`",
            ));
        }
        errors
    }
}

fn names<'a>(pod: &'a Object, list: &str) -> Vec<&'a str> {
    pod.get_path(&["spec", list])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|container| container.get("name").and_then(Value::as_str))
        .collect()
}

/// The container that is meant: the one named, or the only one.
pub(super) fn container(pod: &Object, wanted: &str) -> Result<String, Status> {
    let pod_name = pod.name().unwrap_or_default();
    let containers = names(pod, "containers");
    if wanted.is_empty() {
        return match containers.as_slice() {
            [only] => Ok((*only).to_owned()),
            [] => Err(Status::bad_request(format!(
                "a container name must be specified for pod {pod_name}"
            ))),
            several => {
                let mut message = format!(
                    "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                    several.join(" ")
                );
                let init = names(pod, "initContainers");
                if !init.is_empty() {
                    let init = init.join(" ");
                    message = format!("{message} or one of the init containers: [{init}]");
                }
                Err(Status::bad_request(message))
            }
        };
    }
    let known = containers
        .iter()
        .chain(&names(pod, "initContainers"))
        .chain(&names(pod, "ephemeralContainers"))
        .any(|name| *name == wanted);
    if known {
        Ok(wanted.to_owned())
    } else {
        Err(Status::bad_request(format!(
            "container {wanted} is not valid for pod {pod_name}"
        )))
    }
}

/// 400 when a container cannot have a log yet, in the kubelet's words.
pub(super) fn check_log_exists(
    pod: &Object,
    container: &str,
    previous: bool,
) -> Result<(), Status> {
    let pod_name = pod.name().unwrap_or_default();
    let refuse = |what: &str| {
        Err(Status::bad_request(format!(
            "container {container:?} in pod {pod_name:?} {what}"
        )))
    };
    let status = [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ]
    .iter()
    .filter_map(|list| pod.get_path(&["status", list])?.as_array())
    .flatten()
    .find(|status| status.get("name").and_then(Value::as_str) == Some(container));
    let Some(status) = status else {
        return refuse("is waiting to start: PodInitializing");
    };
    let ran_before = status
        .pointer("/lastState/terminated/containerID")
        .and_then(Value::as_str)
        .is_some_and(|id| !id.is_empty());
    if previous {
        if ran_before {
            return Ok(());
        }
        return Err(Status::bad_request(format!(
            "previous terminated container {container:?} in pod {pod_name:?} not found"
        )));
    }
    let has = |state: &str| status.pointer(state).is_some_and(|s| !s.is_null());
    if ran_before || has("/state/running") || has("/state/terminated") {
        return Ok(());
    }
    let waiting = status
        .pointer("/state/waiting/reason")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match waiting {
        "ErrImagePull" => refuse("is waiting to start: image can't be pulled"),
        "ImagePullBackOff" => refuse("is waiting to start: trying and failing to pull image"),
        "" => refuse("is waiting to start - no logs yet"),
        reason => refuse(&format!("is waiting to start: {reason}")),
    }
}

/// A decoded query; names may repeat.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: &str) -> Self {
        let pairs = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(name), decode(value))
            })
            .collect();
        Self(pairs)
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0
            .iter()
            .filter(move |(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    fn first<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// As Kubernetes reads booleans of a query: anything but `false` and `0` is true.
    fn flag(&self, name: &str) -> bool {
        self.first(name)
            .is_some_and(|value| !matches!(value.to_lowercase().as_str(), "false" | "0"))
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, Status> {
        self.first(name)
            .map(|value| {
                value.parse().ok().ok_or_else(|| {
                    Status::bad_request(format!(
                        "strconv.ParseInt: parsing {value:?}: invalid syntax"
                    ))
                })
            })
            .transpose()
    }
}

/// `application/x-www-form-urlencoded`, lossy where it is no UTF-8.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 3;
            }
            (b'+', _, _) => {
                decoded.push(b' ');
                at += 1;
            }
            (other, _, _) => {
                decoded.push(other);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod(containers: &[&str], init: &[&str], status: &Value) -> Object {
        let named = |names: &[&str]| names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
        Object::from_value(json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "u"},
            "spec": {"containers": named(containers), "initContainers": named(init)},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_container_has_to_be_clear() {
        let one = pod(&["a"], &["i"], &json!({}));
        let two = pod(&["a", "b"], &["i"], &json!({}));
        assert_eq!(container(&one, "").unwrap(), "a");
        assert_eq!(container(&two, "i").unwrap(), "i");
        assert_eq!(
            container(&two, "").unwrap_err().message,
            "a container name must be specified for pod web, choose one of: [a b] or one of the \
             init containers: [i]"
        );
        let unknown = container(&one, "x").unwrap_err();
        assert_eq!(
            (unknown.code, unknown.message.as_str()),
            (400, "container x is not valid for pod web")
        );
    }

    #[test]
    fn log_options_are_validated() {
        let pod = pod(&["a"], &[], &json!({}));
        let ok = logs(
            &pod,
            "follow=true&tailLines=10&timestamps&sinceTime=2026-01-01T00%3A00%3A00Z",
        )
        .unwrap();
        assert!(ok.follow && ok.timestamps && !ok.previous);
        assert_eq!((ok.tail_lines, ok.container.as_str()), (Some(10), "a"));
        for (query, code, message) in [
            ("tailLines=-1", 422, "must be greater than or equal to 0"),
            ("limitBytes=0", 422, "must be greater than 0"),
            ("sinceSeconds=0", 422, "must be greater than 0"),
            (
                "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
                422,
                "at most one of",
            ),
            ("stream=Both", 422, "Unsupported value"),
            (
                "tailLines=x",
                400,
                "strconv.ParseInt: parsing \"x\": invalid syntax",
            ),
            ("sinceTime=yesterday", 400, "yesterday"),
        ] {
            let status = logs(&pod, query).unwrap_err();
            assert_eq!(status.code, code, "{query}");
            assert!(
                status.message.contains(message),
                "{query}: {}",
                status.message
            );
        }
    }

    #[test]
    fn a_log_that_cannot_exist_is_refused() {
        let refused = |status: Value, previous| {
            let status = json!({"containerStatuses": [status]});
            check_log_exists(&pod(&["a"], &[], &status), "a", previous).map_err(|s| s.message)
        };
        let waiting = |reason: &str| json!({"name": "a", "state": {"waiting": {"reason": reason}}});
        let running = json!({"name": "a", "state": {"running": {}}});
        assert_eq!(refused(running.clone(), false), Ok(()));
        assert_eq!(
            refused(waiting("ContainerCreating"), false).unwrap_err(),
            "container \"a\" in pod \"web\" is waiting to start: ContainerCreating"
        );
        assert_eq!(
            refused(waiting("ImagePullBackOff"), false).unwrap_err(),
            "container \"a\" in pod \"web\" is waiting to start: trying and failing to pull image"
        );
        assert_eq!(
            refused(running, true).unwrap_err(),
            "previous terminated container \"a\" in pod \"web\" not found"
        );
        let crashed = json!({"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"containerID": "pintle://x"}}});
        assert_eq!(refused(crashed.clone(), false), Ok(()));
        assert_eq!(refused(crashed, true), Ok(()));
    }

    #[test]
    fn exec_takes_a_command_and_streams() {
        let pod = pod(&["a"], &[], &json!({}));
        let target = exec(
            &pod,
            "command=sh&command=-c&command=echo+a%26b&stdout=true&stderr=1&tty=0",
        );
        let Ok(Target::Exec(target)) = target else {
            panic!("{target:?}")
        };
        assert_eq!(target.command, ["sh", "-c", "echo a&b"]);
        assert!(target.stdout && target.stderr && !target.stdin && !target.tty);
        assert_eq!(exec(&pod, "command=sh").unwrap_err().code, 422);
        assert_eq!(exec(&pod, "stdout=true").unwrap_err().code, 422);
    }

    proptest! {
        #[test]
        fn any_query_is_parsed(query in ".{0,64}") {
            let _parsed = Query::parse(&query);
        }
    }
}
