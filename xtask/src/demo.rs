//! `cargo xtask demo`: from a fresh machine to a page, with one command.
//!
//! Installs what is missing, builds, starts a node on the embedded defaults (or uses the one
//! that runs), gets the images, applies tests/manifests/web.yaml and shows it reachable: from
//! the host through the ClusterIP, and from a pod by its DNS name.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{find, is_root, output, run};
use crate::journey::{Journey, Kubectl, fetch_until, travel};
use crate::{build, images, setup};

const KUBECONFIG: &str = "/etc/pintle/admin.kubeconfig";

/// How long a registry may take to answer before the demo goes on without it.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(20);

/// The images of the demo.
const REFERENCES: [&str; 2] = [
    "docker.io/library/nginx:1.27",
    "docker.io/library/busybox:1.36",
];

/// Runs the whole demo.
pub(crate) fn run_demo(workspace: &Path) -> Result<()> {
    if !is_root() {
        bail!("the demo starts a node, which needs root: sudo cargo xtask demo");
    }
    setup::run_setup(workspace)?;
    let pintle = build::run_build(workspace)?;
    start(&pintle)?;
    let kubectl = Kubectl {
        program: kubectl_program(workspace)?,
        kubeconfig: KUBECONFIG.into(),
    };
    bring_images(workspace, &pintle)?;

    println!("demo: kubectl delete -f tests/manifests/web.yaml (leftovers of an earlier run)");
    let manifest = workspace.join("tests/manifests/web.yaml");
    let mut delete = kubectl.command("delete --ignore-not-found --wait -f");
    output(delete.arg(&manifest))?;
    output(&mut kubectl.command("delete pod web-client --ignore-not-found --wait"))?;

    println!("demo: kubectl apply -f tests/manifests/web.yaml");
    let journey = travel(&kubectl, &manifest, 3)?;
    show(&journey);
    let address = journey.address.context("the Service has a ClusterIP")?;
    let page = fetch_until(address, Duration::from_secs(5))?;
    println!(
        "\ndemo: from this host, http://{address}/ answers:\n{}",
        indent(&page)
    );
    println!(
        "demo: from a pod, http://web-api/ answers:\n{}",
        indent(&from_pod(&kubectl)?)
    );
    println!(
        "{}",
        kubectl.output("get deploy,rs,pods,svc,endpointslices -o wide")?
    );
    println!(
        "demo: done. The node keeps running; look around with\n  \
         export KUBECONFIG={KUBECONFIG}\n  kubectl get pods -o wide\n  {} status\n\
         and stop it with `{} down`.",
        pintle.display(),
        pintle.display()
    );
    Ok(())
}

/// Starts the node, or restarts one of an older build on the same data.
fn start(pintle: &Path) -> Result<()> {
    let running = Command::new(pintle)
        .arg("status")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if running.is_ok_and(|status| status.success()) {
        println!("demo: a node is running already; using it");
        return Ok(());
    }
    println!("demo: pintle up --detach");
    let started = Instant::now();
    run(Command::new(pintle).args(["up", "--detach"]))?;
    println!("demo: node Ready after {:.0?}", started.elapsed());
    Ok(())
}

fn kubectl_program(workspace: &Path) -> Result<std::path::PathBuf> {
    find("kubectl").map_or_else(|| setup::debian_kubectl(workspace), Ok)
}

/// Pulls the images where a registry is reachable, otherwise imports the ones built from Debian
/// packages, and says which.
fn bring_images(workspace: &Path, pintle: &Path) -> Result<()> {
    let missing = {
        let have = output(Command::new(pintle).args(["image", "ls"]))?;
        REFERENCES
            .iter()
            .filter(|reference| !have.contains(*reference))
            .count()
    };
    if missing == 0 {
        println!("demo: the images are on the node already");
        return Ok(());
    }
    if REFERENCES.iter().all(|reference| pulls(pintle, reference)) {
        println!("demo: pulled the images from their registry");
        return Ok(());
    }
    println!("demo: no registry is reachable; importing images built from Debian packages");
    let archives = images::run(workspace)?;
    run(Command::new(pintle)
        .args(["image", "import"])
        .args(archives))
}

fn pulls(pintle: &Path, reference: &str) -> bool {
    let pull = Command::new(pintle)
        .args(["image", "pull", reference])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut pull) = pull else { return false };
    let started = Instant::now();
    loop {
        match pull.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if started.elapsed() < REGISTRY_PATIENCE => {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            _ => {
                drop(pull.kill());
                drop(pull.wait());
                return false;
            }
        }
    }
}

/// Fetches the page inside the cluster, by the Service's short name.
fn from_pod(kubectl: &Kubectl) -> Result<String> {
    let mut client =
        kubectl.command("run web-client --image=busybox:1.36 --restart=Never --command --");
    output(client.args(["wget", "-q", "-O-", "http://web-api/"]))?;
    let started = Instant::now();
    loop {
        let phase = kubectl.output("get pod web-client -o jsonpath={.status.phase}")?;
        match phase.as_str() {
            "Succeeded" => break,
            "Failed" => bail!(
                "the client pod failed:\n{}",
                kubectl.output("logs web-client")?
            ),
            _ if started.elapsed() > Duration::from_mins(1) => {
                bail!(
                    "the client pod is {phase}:\n{}",
                    kubectl.output("describe pod web-client")?
                );
            }
            _ => std::thread::park_timeout(Duration::from_millis(50)),
        }
    }
    let page = kubectl.output("logs web-client")?;
    kubectl.output("delete pod web-client --wait=false")?;
    Ok(page)
}

/// Prints the journey's steps with their times.
pub(crate) fn show(journey: &Journey) {
    println!("\n  {:<12} {:>9}", "step", "after");
    let mut steps = journey.steps.clone();
    steps.sort_by_key(|(_, time)| *time);
    for (step, time) in &steps {
        println!("  {step:<12} {:>6.0} ms", time.as_secs_f64() * 1000.0);
    }
    if let Some(inside) = journey.inside() {
        println!(
            "  STORED → REACHABLE: {:.0} ms",
            inside.as_secs_f64() * 1000.0
        );
    }
}

fn indent(text: &str) -> String {
    text.lines()
        .fold(String::new(), |shown, line| shown + "    " + line + "\n")
}
