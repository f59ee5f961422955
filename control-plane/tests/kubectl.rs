//! A whole control plane in a temporary directory, driven by the real kubectl.

#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::Pod;
use pintle_api::auth::UserInfo;
use pintle_control_plane::config::Cidr;
use pintle_control_plane::{BuildError, ControlPlane, ControlPlaneConfig};
use tokio_util::sync::CancellationToken;

/// Each test has loopback's own piece of a pod range: the gateway listener is on it.
fn config(dir: &Path, third: u8) -> ControlPlaneConfig {
    ControlPlaneConfig {
        data_dir: dir.join("data"),
        port: 0,
        pod_cidr: Cidr::v4([127, 77, third, 0], 24),
        kubeconfig: dir.join("etc/admin.kubeconfig"),
        node_name: "node-a".to_owned(),
        ..ControlPlaneConfig::default()
    }
}

/// `PINTLE_TEST_KUBECTL`, to try another version, or the installed one.
fn kubectl_path() -> Option<PathBuf> {
    let named = std::env::var_os("PINTLE_TEST_KUBECTL").map(PathBuf::from);
    let path = named.unwrap_or_else(|| PathBuf::from("/usr/bin/kubectl"));
    path.exists().then_some(path)
}

#[derive(Clone)]
struct Kubectl {
    program: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    async fn run(&self, arguments: &[&str], stdin: &str) -> Output {
        let (this, stdin) = (self.clone(), stdin.to_owned());
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        tokio::task::spawn_blocking(move || {
            use std::io::Write as _;
            let mut child = Command::new(&this.program)
                .args(arguments)
                .env("KUBECONFIG", &this.kubeconfig)
                .env("HOME", &this.home)
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(stdin.as_bytes())
                .unwrap();
            child.wait_with_output().unwrap()
        })
        .await
        .unwrap()
    }

    async fn ok(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.run(arguments, stdin).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    async fn refused(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.run(arguments, stdin).await;
        assert!(!output.status.success(), "kubectl {arguments:?} worked");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

struct Running {
    control_plane: ControlPlane,
    kubectl: Kubectl,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Running {
    async fn start(third: u8) -> Option<Self> {
        let Some(program) = kubectl_path() else {
            eprintln!("skipped: no /usr/bin/kubectl");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), third);
        let kubectl = Kubectl {
            program,
            home: dir.path().to_owned(),
            kubeconfig: config.kubeconfig.clone(),
        };
        let control_plane = ControlPlane::build(config).await.unwrap();
        let shutdown = CancellationToken::new();
        let (running, token) = (control_plane.clone(), shutdown.clone());
        let task = tokio::spawn(async move { running.run(token).await.unwrap() });
        Some(Self {
            control_plane,
            kubectl,
            shutdown,
            task,
            _dir: dir,
        })
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n\
                          data: {colour: blue}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_discovers_applies_gets_and_explains() {
    let Some(running) = Running::start(1).await else {
        return;
    };
    let kubectl = &running.kubectl;
    let version = kubectl.ok(&["version"], "").await;
    assert!(version.contains("v1.36"), "{version}");

    let resources = kubectl.ok(&["api-resources"], "").await;
    assert!(resources.contains("deployments"), "{resources}");

    let applied = kubectl.ok(&["apply", "-f", "-"], CONFIG_MAP).await;
    assert_eq!(applied, "configmap/settings created\n");
    let again = kubectl.ok(&["apply", "-f", "-"], CONFIG_MAP).await;
    assert_eq!(again, "configmap/settings unchanged\n");
    let changed = CONFIG_MAP.replace("blue", "red");
    let configured = kubectl.ok(&["apply", "-f", "-"], &changed).await;
    assert_eq!(configured, "configmap/settings configured\n");
    let colour = ["get", "cm", "settings", "-o", "jsonpath={.data.colour}"];
    assert_eq!(kubectl.ok(&colour, "").await, "red");

    let table = kubectl.ok(&["get", "configmaps"], "").await;
    assert!(table.starts_with("NAME"), "{table}");
    assert!(table.contains("settings           1      "), "{table}");
    let services = kubectl.ok(&["get", "svc", "-o", "wide"], "").await;
    assert!(
        services.contains("kubernetes   ClusterIP   10.96.0.1"),
        "{services}"
    );

    let explained = kubectl
        .ok(&["explain", "deployment.spec.strategy"], "")
        .await;
    assert!(explained.contains("rollingUpdate"), "{explained}");

    let unknown = kubectl
        .refused(
            &["apply", "-f", "-"],
            &CONFIG_MAP.replace("\ndata:", "\ndota:"),
        )
        .await;
    assert!(unknown.contains("unknown field \"dota\""), "{unknown}");
    let missing = kubectl.refused(&["get", "pod", "none"], "").await;
    assert_eq!(
        missing,
        "Error from server (NotFound): pods \"none\" not found\n"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_is_applied_patched_and_shown() {
    let Some(running) = Running::start(2).await else {
        return;
    };
    let kubectl = &running.kubectl;
    let manifest = include_str!("../../tests/manifests/web.yaml");
    kubectl.ok(&["apply", "-f", "-"], manifest).await;
    let shown = kubectl.ok(&["get", "deploy", "-o", "wide"], "").await;
    assert!(
        shown.contains("SELECTOR") && shown.contains("nginx:1.27"),
        "{shown}"
    );
    let informer = running
        .control_plane
        .client(UserInfo::apiserver())
        .informer::<Pod>();
    let mut events = informer.subscribe();
    while informer.list().len() < 3 {
        events.next().await.unwrap();
    }
    let pods = kubectl.ok(&["get", "pods", "--no-headers"], "").await;
    assert_eq!(pods.matches("0/1   Pending   0").count(), 3, "{pods}");
    let image = ["set", "image", "deployment/web-api", "web-api=nginx:1.28"];
    kubectl.ok(&image, "").await;
    let shown = kubectl.ok(&["get", "deploy", "-o", "wide"], "").await;
    assert!(shown.contains("nginx:1.28"), "{shown}");
    let described = kubectl.ok(&["describe", "deployment", "web-api"], "").await;
    assert!(described.contains("RollingUpdateStrategy"), "{described}");
    kubectl.ok(&["delete", "-f", "-"], manifest).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_users_are_refused() {
    let Some(running) = Running::start(3).await else {
        return;
    };
    let server = format!("https://{}", running.control_plane.address());
    let anonymous = |path: &'static str| {
        let kubectl = Kubectl {
            kubeconfig: PathBuf::from("/dev/null"),
            ..running.kubectl.clone()
        };
        let server = server.clone();
        async move {
            let arguments = [
                "--server",
                &server,
                "--insecure-skip-tls-verify",
                "--token",
                "none",
                "get",
                "--raw",
                path,
            ];
            kubectl.refused(&arguments, "").await
        }
    };
    let refused = anonymous("/api/v1/namespaces").await;
    assert!(refused.contains("Unauthorized"), "{refused}");
    assert_eq!(
        running.kubectl.ok(&["get", "--raw", "/readyz"], "").await,
        "ok"
    );
    running.stop().await;
}

#[tokio::test]
async fn unusable_options_are_named_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut busy = config(dir.path(), 4);
    busy.port = port;
    let error = ControlPlane::build(busy).await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("--port {port}: ")),
        "{error}"
    );

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut bad_data_dir = config(dir.path(), 4);
    bad_data_dir.data_dir = file.join("data");
    let error = ControlPlane::build(bad_data_dir).await.unwrap_err();
    assert!(
        matches!(
            error,
            BuildError::Path {
                option: "--data-dir",
                ..
            }
        ),
        "{error}"
    );

    let mut bad_kubeconfig = config(dir.path(), 4);
    bad_kubeconfig.kubeconfig = file.join("admin.kubeconfig");
    let error = ControlPlane::build(bad_kubeconfig).await.unwrap_err();
    assert!(
        matches!(
            error,
            BuildError::Path {
                option: "--kubeconfig",
                ..
            }
        ),
        "{error}"
    );

    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
