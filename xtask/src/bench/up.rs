//! `cargo xtask bench up`: how fast a node is there, how fast web.yaml is reachable, what an idle
//! node holds.
//!
//! Runs an instance of its own (own folders and port, the real host network), several times over.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::memory::{cpu_ticks, processes, pss_mib};
use super::{Figure, report};
use crate::command::{find, quiet};
use crate::demo::show;
use crate::journey::{Journey, Kubectl, STEPS, fetch, fetch_until, travel};
use crate::{images, setup};

/// Repetitions of what starts from an empty data directory.
const ROUNDS: usize = 5;
/// How long the idle node is watched.
const IDLE: Duration = Duration::from_secs(20);
const PORT: &str = "16443";

/// One instance with folders of its own.
struct Instance<'a> {
    pintle: &'a Path,
    dir: tempfile::TempDir,
    child: Option<Child>,
}

/// Measures everything and reports.
pub(crate) fn run(workspace: &Path, pintle: &Path) -> Result<()> {
    setup::run_setup(workspace)?;
    let archives = images::run(workspace)?;
    let program = find("kubectl").map_or_else(|| setup::debian_kubectl(workspace), Ok)?;
    let manifest = workspace.join("tests/manifests/web.yaml");
    let (mut fresh, mut again, mut journeys) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lost, mut answered) = (0, 0);
    let (mut node_pss, mut shim_pss, mut idle_cpu) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut instance = Instance::new(pintle)?;
        fresh.push(instance.up()?);
        instance.command(&["image", "import"], &archives)?;
        let kubectl = Kubectl {
            program: program.clone(),
            kubeconfig: instance.dir.path().join("kubeconfig"),
        };
        // The first command of a new cluster fills kubectl's discovery cache.
        kubectl.output("get nodes")?;
        let journey = travel(&kubectl, &manifest, 3)?;
        show(&journey);
        let address = journey.address.context("the Service has a ClusterIP")?;
        journeys.push(journey);

        let client = Client::start(address);
        instance.stop()?;
        again.push(instance.up()?);
        fetch_until(address, Duration::from_secs(5))?;
        std::thread::sleep(Duration::from_millis(500));
        let (ok, failed) = client.stop()?;
        answered += ok;
        lost += failed;

        if round == 0 {
            let (cpu, pss, shims) = idle(&instance)?;
            idle_cpu.push(cpu);
            node_pss.push(pss);
            shim_pss.extend(shims);
        }
        instance.down()?;
    }
    println!("\nrestarts: {answered} requests answered, {lost} failed");
    let size = pintle.metadata()?.len() as f64 / 1_048_576.0;
    let ms = |samples: Vec<Duration>| samples.iter().map(|it| it.as_secs_f64() * 1000.0).collect();
    let total: Vec<_> = journeys
        .iter()
        .filter_map(|it| it.at("REACHABLE"))
        .collect();
    let inside: Vec<_> = journeys.iter().filter_map(Journey::inside).collect();
    let mut figures = vec![
        figure(
            "empty data dir → node Ready",
            "ms",
            ms(fresh),
            1000.0,
            2000.0,
        ),
        figure(
            "restart with web-api → node Ready",
            "ms",
            ms(again),
            1000.0,
            1000.0,
        ),
        figure(
            "requests lost in restarts",
            "requests",
            vec![f64::from(lost)],
            0.0,
            0.0,
        ),
        figure("kubectl apply → page", "ms", ms(total), 300.0, 1000.0),
        Figure {
            name: "STORED → page".into(),
            unit: "ms",
            samples: ms(inside),
            aim: None,
            must: None,
        },
        figure(
            "node, idle after the demo (PSS)",
            "MiB",
            node_pss,
            60.0,
            100.0,
        ),
        figure("a pod's shim (PSS)", "MiB", shim_pss, 2.0, 2.0),
        figure("idle CPU", "% of a core", idle_cpu, 1.0, 1.0),
        figure("release binary", "MiB", vec![size], 60.0, 60.0),
    ];
    for step in STEPS {
        let samples: Vec<_> = journeys.iter().filter_map(|it| it.at(step)).collect();
        let name = format!("  kubectl apply → {step}");
        figures.push(Figure {
            name,
            unit: "ms",
            samples: ms(samples),
            aim: None,
            must: None,
        });
    }
    report(workspace, "up", &figures)
}

fn figure(name: &str, unit: &'static str, samples: Vec<f64>, aim: f64, must: f64) -> Figure {
    Figure {
        name: name.to_owned(),
        unit,
        samples,
        aim: Some(aim),
        must: Some(must),
    }
}

/// CPU in percent of a core, PSS of the node and of each shim, over a quiet while.
fn idle(instance: &Instance<'_>) -> Result<(f64, f64, Vec<f64>)> {
    let pid = instance.child.as_ref().context("the instance runs")?.id();
    // Let start-up work (adoption, first informer lists) die down.
    std::thread::sleep(Duration::from_secs(5));
    let (before, started) = (cpu_ticks(pid)?, Instant::now());
    std::thread::sleep(IDLE);
    let ticks = (cpu_ticks(pid)? - before) as f64;
    // USER_HZ is 100 on every Linux that Debian supports (time(7)).
    let cpu = ticks / 100.0 / started.elapsed().as_secs_f64() * 100.0;
    let dir = instance.dir.path().display().to_string();
    let shims: Vec<f64> = processes(&[" shim", &dir])
        .into_iter()
        .map(pss_mib)
        .collect::<Result<_>>()?;
    if shims.is_empty() {
        bail!("no shim process of {dir} was found");
    }
    Ok((cpu, pss_mib(pid)?, shims))
}

impl<'a> Instance<'a> {
    fn new(pintle: &'a Path) -> Result<Self> {
        Ok(Self {
            pintle,
            dir: tempfile::tempdir()?,
            child: None,
        })
    }

    fn base(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.pintle);
        command.args(args);
        command.arg("--data-dir").arg(self.dir.path().join("data"));
        command.arg("--run-dir").arg(self.dir.path().join("run"));
        command
    }

    fn command(&self, args: &[&str], more: &[PathBuf]) -> Result<()> {
        quiet(self.base(args).args(more))
    }

    /// Starts the node and gives the time until it printed `ready`.
    fn up(&mut self) -> Result<Duration> {
        use std::io::BufRead;
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))?;
        let started = Instant::now();
        let mut child = self
            .base(&["up", "--port", PORT, "--node-name", "bench"])
            .arg("--kubeconfig")
            .arg(self.dir.path().join("kubeconfig"))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("starting pintle")?;
        let out = std::io::BufReader::new(child.stdout.take().context("its output")?);
        self.child = Some(child);
        for line in out.lines() {
            if line? == "ready" {
                return Ok(started.elapsed());
            }
        }
        bail!(
            "pintle up ended:\n{}",
            std::fs::read_to_string(self.dir.path().join("log"))?
        );
    }

    /// SIGTERM: the node ends, pods stay.
    fn stop(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            quiet(Command::new("kill").arg(child.id().to_string()))?;
            child.wait()?;
        }
        Ok(())
    }

    fn down(&mut self) -> Result<()> {
        self.command(&["down"], &[])?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        if self.child.is_some() {
            drop(self.down());
        }
    }
}

/// A client that opens a new connection every 10 ms.
struct Client {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(u32, u32)>,
}

impl Client {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut ok, mut failed) = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                match fetch(address) {
                    Ok(_) => ok += 1,
                    Err(error) => {
                        println!("request failed: {error}");
                        failed += 1;
                    }
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            (ok, failed)
        });
        Self { stop, thread }
    }

    fn stop(self) -> Result<(u32, u32)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_panic| anyhow::anyhow!("the client thread panicked"))
    }
}
