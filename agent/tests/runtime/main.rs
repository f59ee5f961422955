//! The runtime against real shims: start, exit, logs, exec, adoption, removal.
//!
//! Needs root and /bin/busybox (a static one). The binary is its own shim:
//! `runtime shim DIR`. `runtime NAME` runs the cases whose name contains NAME.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test reports and fails loudly"
)]

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use pintle_agent::runtime::{
    ContainerStatus, ExecSpec, Mount, Propagation, RuntimeError, RuntimeEvent, Seccomp,
};
use support::{Fixture, free};

type Case = (
    &'static str,
    fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>,
);

macro_rules! cases {
    ($($name:ident)*) => { &[$((stringify!($name), || Box::pin($name()))),*] };
}

const CASES: &[Case] = cases![
    runs_and_logs
    exit_codes_and_signals
    names_what_cannot_be_executed
    isolates_the_container
    applies_user_and_capabilities
    filters_system_calls
    mounts_volumes
    propagates_mounts
    keeps_devices_away
    gives_privileged_containers_the_host
    sizes_shared_memory_and_sets_sysctls
    rotates_logs
    execs_with_pipes
    execs_on_a_terminal
    runs_on_a_terminal
    attaches
    stops_gracefully_then_hard
    shares_namespaces_between_containers
    shares_one_pid_namespace
    survives_the_agent
    cleans_up_after_a_dead_shim
    start_is_fast
];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    if first.as_deref() == Some("shim".as_ref()) {
        return pintle_shim::main(args);
    }
    let filter = first
        .and_then(|arg| arg.into_string().ok())
        .unwrap_or_default();
    if filter == "--list" {
        for (name, _) in CASES {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return ExitCode::SUCCESS;
    }
    if !std::path::Path::new("/bin/busybox").exists() {
        println!("skipped: no /bin/busybox");
        return ExitCode::SUCCESS;
    }
    let filter = if filter.starts_with('-') {
        String::new()
    } else {
        filter
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(&filter)) {
        let start = Instant::now();
        runtime.block_on(case());
        println!("{name} ... ok ({:?})", start.elapsed());
    }
    ExitCode::SUCCESS
}

async fn runs_and_logs() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let exit = f
        .run("a", "echo out; echo err >&2; printf last; cat /etc/made")
        .await;
    assert_eq!((exit.code, exit.signal), (0, None));
    let log = f.log("a");
    assert!(log.contains(" stdout F out\n"), "{log}");
    assert!(log.contains(" stderr F err\n"), "{log}");
    // Each stream is in order; two pipes are not ordered against each other.
    let last = log.lines().rfind(|line| line.contains(" stdout "));
    assert!(
        last.is_some_and(|line| line.ends_with(" stdout F lastmade")),
        "{log}"
    );
    let listed = f.runtime.list();
    let [sandbox] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert!(sandbox.alive);
    assert!(matches!(
        sandbox.containers[0].state,
        ContainerStatus::Exited(_)
    ));
    f.runtime.remove_container("a", "a-main").await.unwrap();
    assert!(f.runtime.sandbox("a").unwrap().containers.is_empty());
    f.finish().await;
}

async fn exit_codes_and_signals() {
    let f = Fixture::new();
    f.sandbox("a").await;
    assert_eq!(f.run("a", "exit 7").await.code, 7);
    f.runtime.remove_container("a", "a-main").await.unwrap();
    let mut spec = f.container("a", &["sleep", "1000"]);
    "a-two".clone_into(&mut spec.id);
    f.runtime.create_container("a", spec).await.unwrap();
    f.runtime
        .signal_container("a", "a-two", libc::SIGKILL)
        .await
        .unwrap();
    let exit = f.wait("a-two").await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    f.finish().await;
}

async fn names_what_cannot_be_executed() {
    let f = Fixture::new();
    f.sandbox("a").await;
    for (program, words) in [
        (
            "nonesuch",
            r#"exec: "nonesuch": executable file not found in $PATH"#,
        ),
        (
            "/nonesuch",
            r#"exec: "/nonesuch": stat /nonesuch: no such file or directory"#,
        ),
        ("/etc/made", r#"exec: "/etc/made": permission denied"#),
        ("/etc", r#"exec: "/etc": is a directory"#),
    ] {
        let error = f
            .runtime
            .create_container("a", f.container("a", &[program]))
            .await;
        let Err(error @ RuntimeError::Refused(_)) = error else {
            panic!("{error:?}")
        };
        assert_eq!(error.to_string(), words);
    }
    let mut spec = f.container("a", &["true"]);
    spec.user.user = Some("nobody".to_owned());
    let error = f.runtime.create_container("a", spec).await.unwrap_err();
    assert!(
        error.to_string().contains("unable to find user nobody"),
        "{error}"
    );
    let mut spec = f.container("a", &["true"]);
    spec.mounts = vec![Mount {
        source: "/nonesuch".into(),
        target: "/x".into(),
        ..Mount::default()
    }];
    let error = f.runtime.create_container("a", spec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "mount source /nonesuch: no such file or directory"
    );
    assert!(f.runtime.sandbox("a").unwrap().containers.is_empty());
    f.finish().await;
}

async fn isolates_the_container() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let script = "hostname; echo pid=$$; ls /dev | tr '\\n' ' '; echo; cat /proc/1/cgroup; \
        ls /sys/class/net; touch /proc/sys/kernel/x 2>&1; cat /proc/timer_list | wc -c; \
        mkdir /sys/fs/cgroup/x 2>&1; ls / | tr '\\n' ' '; echo; pwd; echo $HOME $HOSTNAME $PATH; \
        umask; echo fds=$(ls /proc/self/fd | wc -l)";
    f.run("a", script).await;
    let log = f.log("a");
    for expected in [
        "F pod-a",
        "F pid=1",
        "F core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero",
        "F 0::/",
        "F lo",
        "F 0\n",
        "F bin dev etc link proc sys tmp work",
        "F /work",
        "F / pod-a /bin",
        "F 0022\n",
        // The three streams, the listed directory, and none of the shim's.
        "F fds=4",
        "Read-only file system",
    ] {
        assert!(log.contains(expected), "no {expected:?} in\n{log}");
    }
    f.finish().await;
}

async fn applies_user_and_capabilities() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let mut spec = f.shell("a", "id; grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs|Groups' /proc/self/status; echo hi >/dev/stderr");
    spec.user.user = Some("web".to_owned());
    spec.user.supplementary_groups = vec![2000];
    spec.no_new_privs = true;
    f.run_spec("a", spec).await;
    let log = f.log("a");
    assert!(
        log.contains("uid=101(web) gid=102(www) groups=7(logs),102(www),2000"),
        "{log}"
    );
    assert!(log.contains("CapEff:\t0000000000000000"), "{log}");
    assert!(log.contains("CapBnd:\t00000000a80425fb"), "{log}");
    assert!(log.contains("NoNewPrivs:\t1"), "{log}");
    assert!(log.contains("stderr F hi"), "{log}");
    f.runtime.remove_container("a", "a-main").await.unwrap();
    let mut spec = f.shell("a", "grep Cap /proc/self/status");
    spec.capabilities_drop = vec!["ALL".to_owned()];
    spec.capabilities_add = vec!["NET_BIND_SERVICE".to_owned()];
    f.run_spec("a", spec).await;
    let log = f.log("a");
    assert!(log.contains("CapEff:\t0000000000000400"), "{log}");
    assert!(log.contains("CapInh:\t0000000000000000"), "{log}");
    f.finish().await;
}

async fn filters_system_calls() {
    let f = Fixture::new();
    f.sandbox("a").await;
    for no_new_privs in [false, true] {
        let mut spec = f.shell(
            "a",
            "grep Seccomp: /proc/self/status; unshare -U true || echo refused; mount -t tmpfs x /tmp || echo no; id -u",
        );
        spec.seccomp = Seccomp::RuntimeDefault;
        spec.no_new_privs = no_new_privs;
        f.run_spec("a", spec).await;
        let log = f.log("a");
        assert!(log.contains("Seccomp:\t2"), "{log}");
        assert!(
            log.contains("F refused") && log.contains("F no") && log.contains("F 0\n"),
            "{log}"
        );
        f.runtime.remove_container("a", "a-main").await.unwrap();
    }
    f.finish().await;
}

async fn mounts_volumes() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let host = f.path("volume");
    std::fs::create_dir_all(host.join("sub")).unwrap();
    std::fs::write(host.join("file"), "content").unwrap();
    let mount = |source: &str, target: &str, readonly| Mount {
        source: host.join(source),
        target: target.into(),
        readonly,
        propagation: Propagation::Private,
    };
    let mut spec = f.shell(
        "a",
        "cat /etc/file; echo; echo new > /data/written && cat /data/written; \
         touch /ro/x 2>&1; touch /data/sub/y 2>&1; cat /link/in/file; touch /bin/x 2>&1; ls -d /escape-host/in",
    );
    spec.mounts = vec![
        mount("sub", "/data/sub", true),
        mount("", "/data", false),
        mount("file", "/etc/file", true),
        mount("", "/ro", true),
        mount("", "/link/in", true),
    ];
    spec.read_only_rootfs = true;
    f.run_spec("a", spec).await;
    let log = f.log("a");
    assert!(log.contains("F content") && log.contains("F new"), "{log}");
    assert!(log.contains("/ro/x: Read-only file system"), "{log}");
    assert!(log.contains("/data/sub/y: Read-only file system"), "{log}");
    assert!(log.contains("/bin/x: Read-only file system"), "{log}");
    assert!(log.contains("F /escape-host/in"), "{log}");
    assert!(!std::path::Path::new("/escape-host").exists());
    assert_eq!(
        std::fs::read_to_string(host.join("written")).unwrap(),
        "new\n"
    );
    f.finish().await;
}

async fn propagates_mounts() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let host = f.path("volume");
    let mounted = support::SharedMount::new(&host);
    let script = "while ! test -e /slave/later/x; do sleep 0.01; done; echo slave; \
        test -e /private/later/x || echo private; test -e /ro/below/x && echo below; \
        touch /ro/below/y 2>&1; mount -t tmpfs both /shared/from && touch /shared/from/z; \
        while ! test -e /slave/done; do sleep 0.01; done";
    let mut spec = f.shell("a", script);
    spec.capabilities_add = vec!["SYS_ADMIN".to_owned()];
    let mount = |target: &str, propagation, readonly| Mount {
        source: host.clone(),
        target: target.into(),
        readonly,
        propagation,
    };
    spec.mounts = vec![
        mount("/slave", Propagation::HostToContainer, false),
        mount("/private", Propagation::Private, false),
        mount("/shared", Propagation::Bidirectional, false),
        mount("/ro", Propagation::Private, true),
    ];
    mounted.mount("below", "x");
    f.runtime.create_container("a", spec).await.unwrap();
    mounted.mount("later", "x");
    let seen = async {
        while !host.join("from/z").exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen)
        .await
        .expect("a mount of the container reaches the host");
    std::fs::write(host.join("done"), "").unwrap();
    f.wait("a-main").await;
    let log = f.log("a");
    for expected in [
        "F slave",
        "F private",
        "F below",
        "y: Read-only file system",
    ] {
        assert!(log.contains(expected), "no {expected:?} in\n{log}");
    }
    drop(mounted);
    f.finish().await;
}

async fn gives_privileged_containers_the_host() {
    let f = Fixture::new();
    f.sandbox_with("a", |spec| {
        spec.host_network = true;
        spec.host_pid = true;
        spec.host_ipc = true;
    })
    .await;
    let mut spec = f.shell(
        "a",
        "echo pid=$$; hostname; readlink /proc/self/ns/net; readlink /proc/self/ns/ipc; \
         mount -t tmpfs x /tmp && echo mounted; grep CapEff /proc/self/status; \
         head -c 1 /proc/timer_list | wc -c; ls /dev/kmsg; sleep 1000 & exit 0",
    );
    spec.privileged = true;
    spec.seccomp = Seccomp::RuntimeDefault;
    f.run_spec("a", spec).await;
    let log = f.log("a");
    let own = |file: &str| {
        std::fs::read_link(file)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert!(log.contains(&own("/proc/self/ns/net")), "{log}");
    assert!(log.contains(&own("/proc/self/ns/ipc")), "{log}");
    assert!(
        log.contains("F mounted") && log.contains("F /dev/kmsg"),
        "{log}"
    );
    assert!(!log.contains("F pid=1\n"), "{log}");
    let caps = std::fs::read_to_string("/proc/self/status").unwrap();
    let caps = caps
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:\t"))
        .unwrap();
    assert!(log.contains(&format!("CapEff:\t{caps}")), "{log}");
    // What it left behind is killed although the PID namespace is the host's.
    f.finish().await;
}

async fn sizes_shared_memory_and_sets_sysctls() {
    let f = Fixture::new();
    f.sandbox_with("a", |spec| {
        spec.shm_size = Some(1 << 20);
        spec.sysctls
            .insert("net.core.somaxconn".to_owned(), "777".to_owned());
        spec.sysctls
            .insert("kernel.shm_rmid_forced".to_owned(), "1".to_owned());
    })
    .await;
    let script = "df /dev/shm | tail -1; cat /proc/sys/net/core/somaxconn \
        /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start";
    f.run("a", script).await;
    let log = f.log("a");
    assert!(log.contains(" 1024 "), "{log}");
    assert!(
        log.contains("F 777\n") && log.contains("F 1\n") && log.contains("F 0\n"),
        "{log}"
    );
    let refused = f.runtime.run_sandbox(pintle_agent::runtime::SandboxSpec {
        pod_uid: "b".to_owned(),
        sysctls: [("no.such".to_owned(), "1".to_owned())].into(),
        ..pintle_agent::runtime::SandboxSpec::default()
    });
    let error = refused.await.unwrap_err();
    assert!(error.to_string().contains("set sysctl no.such"), "{error}");
    assert!(!f.runtime.sandbox_dir("b").exists());
    f.finish().await;
}

async fn rotates_logs() {
    let f = Fixture::new();
    f.sandbox("a").await;
    // 12 MiB of 1023-byte lines, of which the log makes a little more.
    let script = "head -c 12582912 /dev/zero | tr '\\0' 'x' | fold -w 1023; echo; echo last";
    f.run("a", script).await;
    let size = |name: &str| {
        std::fs::metadata(f.path("logs/a").join(name)).map_or(0, |metadata| metadata.len())
    };
    assert!(
        size("0.log.1") > 9 << 20 && size("0.log.1") <= 10 << 20,
        "{}",
        size("0.log.1")
    );
    assert!(size("0.log") > 2 << 20 && size("0.log.2") == 0);
    assert!(f.log("a").ends_with("stdout F last\n"));
    f.finish().await;
}

async fn keeps_devices_away() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let script = "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem 2>&1; echo x > /dev/null && \
        head -c 4 /dev/urandom | wc -c; mknod /tmp/null c 1 3 && echo y > /tmp/null && echo fine";
    f.run("a", script).await;
    let log = f.log("a");
    assert!(log.contains("Operation not permitted"), "{log}");
    assert!(log.contains("F 4") && log.contains("F fine"), "{log}");
    f.finish().await;
}

async fn execs_with_pipes() {
    let f = Fixture::new();
    f.sandbox("a").await;
    f.runtime
        .create_container("a", f.container("a", &["sleep", "1000"]))
        .await
        .unwrap();
    let spec = ExecSpec {
        args: ["sh", "-c", "cat; echo $EXTRA $$ >&2; hostname; exit 3"]
            .map(str::to_owned)
            .to_vec(),
        env: vec!["EXTRA=extra".to_owned()],
        stdin: true,
        ..ExecSpec::default()
    };
    let mut session = f.runtime.exec("a", "a-main", spec).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"typed\n")
        .await
        .unwrap();
    drop(stdin);
    let out = support::read_all(session.stdout.take().unwrap()).await;
    let err = support::read_all(session.stderr.take().unwrap()).await;
    assert_eq!(out, "typed\npod-a\n");
    assert!(err.starts_with("extra "), "{err}");
    assert_eq!(session.exit.await.unwrap().code, 3);
    let missing = ExecSpec {
        args: vec!["nonesuch".to_owned()],
        ..ExecSpec::default()
    };
    let error = f.runtime.exec("a", "a-main", missing).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"exec: "nonesuch": executable file not found in $PATH"#
    );
    // Its own children of the shim still get their own PID namespace.
    let mut second = f.shell("a", "echo pid=$$");
    "a-second".clone_into(&mut second.id);
    f.run_spec("a", second).await;
    assert!(f.log("a").contains("pid=1\n"));
    f.finish().await;
}

async fn execs_on_a_terminal() {
    let f = Fixture::new();
    f.sandbox("a").await;
    f.runtime
        .create_container("a", f.container("a", &["sleep", "1000"]))
        .await
        .unwrap();
    let spec = ExecSpec {
        args: [
            "sh",
            "-c",
            "tty; stty size; read line; echo got $line; stty size",
        ]
        .map(str::to_owned)
        .to_vec(),
        tty: true,
        stdin: true,
        size: Some((100, 30)),
        ..ExecSpec::default()
    };
    let session = f.runtime.exec("a", "a-main", spec).await.unwrap();
    let terminal = session.terminal.unwrap();
    let seen = support::read_until(&terminal, "30 100").await;
    assert!(seen.contains("/dev/pts/0"), "{seen}");
    terminal.resize(120, 40).unwrap();
    terminal.write_all(b"hello\n").await.unwrap();
    let seen = support::read_until(&terminal, "40 120").await;
    assert!(seen.contains("got hello"), "{seen}");
    assert_eq!(session.exit.await.unwrap().code, 0);
    f.finish().await;
}

async fn runs_on_a_terminal() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let mut spec = f.shell(
        "a",
        "tty; echo $TERM; echo on console > /dev/console; read x; echo got $x",
    );
    spec.tty = true;
    spec.stdin = true;
    f.runtime.create_container("a", spec).await.unwrap();
    let session = f.runtime.attach("a", "a-main").await.unwrap();
    session
        .terminal
        .as_ref()
        .unwrap()
        .write_all(b"attached\n")
        .await
        .unwrap();
    f.wait("a-main").await;
    let log = f.log("a");
    assert!(log.contains("/dev/pts/0") && log.contains("xterm"), "{log}");
    assert!(
        log.contains("on console") && log.contains("got attached"),
        "{log}"
    );
    f.finish().await;
}

async fn attaches() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let mut spec = f.shell("a", "while read line; do echo got $line; done; echo end");
    spec.stdin = true;
    spec.stdin_once = true;
    f.runtime.create_container("a", spec).await.unwrap();
    let mut session = f.runtime.attach("a", "a-main").await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"one\ntwo\n")
        .await
        .unwrap();
    drop(stdin);
    let out = support::read_all(session.stdout.take().unwrap()).await;
    assert_eq!(out, "got one\ngot two\nend\n");
    assert_eq!(f.wait("a-main").await.code, 0);
    assert!(f.log("a").contains("stdout F got two"));
    f.finish().await;
}

async fn stops_gracefully_then_hard() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let script = "trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 1 & wait $!; done";
    f.runtime
        .create_container("a", f.shell("a", script))
        .await
        .unwrap();
    f.wait_log("a", "ready").await;
    let grace = Duration::from_secs(30);
    let exit = f
        .runtime
        .stop_container("a", "a-main", libc::SIGTERM, grace)
        .await
        .unwrap();
    assert_eq!(exit.code, 5);
    let again = f
        .runtime
        .stop_container("a", "a-main", libc::SIGTERM, grace)
        .await
        .unwrap();
    assert_eq!(again, exit);
    let mut deaf = f.shell("a", "trap '' TERM; echo deaf; while :; do sleep 1; done");
    "a-deaf".clone_into(&mut deaf.id);
    f.runtime.create_container("a", deaf).await.unwrap();
    f.wait_log("a", "deaf").await;
    let long = f
        .runtime
        .stop_container("a", "a-deaf", libc::SIGTERM, grace);
    let short = f
        .runtime
        .stop_container("a", "a-deaf", libc::SIGTERM, Duration::from_millis(50));
    let (long, short) = tokio::join!(long, short);
    assert_eq!(long.unwrap().signal, Some(9));
    assert_eq!(short.unwrap().code, 137);
    f.finish().await;
}

async fn shares_namespaces_between_containers() {
    let f = Fixture::new();
    f.sandbox("a").await;
    let first = f.shell(
        "a",
        "echo shared > /dev/shm/x; readlink /proc/self/ns/net; sleep 1000",
    );
    f.runtime.create_container("a", first).await.unwrap();
    f.wait_log("a", "net:[").await;
    let mut second = f.shell(
        "a",
        "cat /dev/shm/x; readlink /proc/self/ns/net; df /dev/shm | tail -1",
    );
    "a-second".clone_into(&mut second.id);
    f.run_spec("a", second).await;
    let log = f.log("a");
    assert!(log.contains("F shared"), "{log}");
    assert!(log.contains("65536"), "{log}");
    let nets: Vec<&str> = log
        .lines()
        .filter_map(|l| l.split_once("net:"))
        .map(|x| x.1)
        .collect();
    assert_eq!(nets.len(), 2, "{log}");
    assert_eq!(nets[0], nets[1]);
    let host = std::fs::read_link("/proc/self/ns/net").unwrap();
    let pod = std::fs::read_link(f.runtime.sandbox("a").unwrap().sandbox.unwrap().netns).unwrap();
    assert_ne!(host, pod);
    assert!(pod.to_str().unwrap().ends_with(nets[0]));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(f.path("").to_str().unwrap()),
        "a mount leaked to the host"
    );
    f.finish().await;
}

async fn shares_one_pid_namespace() {
    let f = Fixture::new();
    f.sandbox_with("a", |spec| spec.share_process_namespace = true)
        .await;
    let first = f.container("a", &["sleep", "12345"]);
    f.runtime.create_container("a", first).await.unwrap();
    let mut second = f.shell(
        "a",
        "ps | grep -c 'sleep 1234[5]'; echo me=$$; sleep 999 & exit 0",
    );
    "a-second".clone_into(&mut second.id);
    f.run_spec("a", second).await;
    let log = f.log("a");
    assert!(log.contains("F 1\n") && !log.contains("me=1\n"), "{log}");
    f.finish().await;
}

async fn survives_the_agent() {
    let mut f = Fixture::new();
    f.sandbox("a").await;
    f.sandbox("b").await;
    let go = f.path("go");
    std::fs::create_dir(&go).unwrap();
    let mut spec = f.shell(
        "a",
        "while ! test -e /go/now; do sleep 0.01; done; echo went; exit 9",
    );
    spec.mounts = vec![Mount {
        source: go.clone(),
        target: "/go".into(),
        ..Mount::default()
    }];
    let before = f.runtime.create_container("a", spec).await;
    let before = before.unwrap();
    f.restart_agent();
    std::fs::write(go.join("now"), "").unwrap();
    let adopted = f.runtime.adopt().await.unwrap();
    assert_eq!(adopted.len(), 2);
    assert!(adopted.iter().all(|sandbox| sandbox.alive));
    let exit = f.wait("a-main").await;
    assert_eq!(exit.code, 9);
    assert!(f.log("a").contains("went"));
    let state = f.runtime.sandbox("a").unwrap();
    assert_eq!(state.containers[0].started_at, before.started_at);
    f.finish().await;
}

async fn cleans_up_after_a_dead_shim() {
    let mut f = Fixture::new();
    f.sandbox("a").await;
    f.runtime
        .create_container("a", f.container("a", &["sleep", "1000"]))
        .await
        .unwrap();
    let mut events = f.runtime.events();
    let shim = f.runtime.sandbox("a").unwrap().sandbox.unwrap().shim_pid;
    support::kill(shim);
    loop {
        if let RuntimeEvent::SandboxGone { pod_uid } = events.recv().await.unwrap() {
            assert_eq!(pod_uid, "a");
            break;
        }
    }
    let state = f.runtime.sandbox("a").unwrap();
    assert!(!state.alive);
    assert!(matches!(&state.containers[0].state, ContainerStatus::Exited(e) if e.code == 137));
    // The next agent finds the record, and the pod can start anew.
    f.restart_agent();
    let adopted = f.runtime.adopt().await.unwrap();
    assert!(!adopted[0].alive && adopted[0].containers.len() == 1);
    f.sandbox("a").await;
    assert_eq!(f.run("a", "exit 4").await.code, 4);
    f.finish().await;
}

async fn start_is_fast() {
    let f = Fixture::new();
    let mut sandboxes = Vec::new();
    let mut containers = Vec::new();
    for n in 0..10 {
        let uid = format!("p{n}");
        let start = Instant::now();
        f.sandbox(&uid).await;
        sandboxes.push(start.elapsed());
        let start = Instant::now();
        f.runtime
            .create_container(&uid, f.container(&uid, &["sleep", "1000"]))
            .await
            .unwrap();
        containers.push(start.elapsed());
    }
    sandboxes.sort();
    containers.sort();
    println!(
        "  sandbox median {:?}, container median {:?}",
        sandboxes[5], containers[5]
    );
    let pss: Vec<u64> = f
        .runtime
        .list()
        .iter()
        .map(|state| support::pss_kib(state.sandbox.as_ref().unwrap().shim_pid))
        .collect();
    println!("  shim PSS {pss:?} KiB");
    assert_eq!(free(&pss), pss.len());
    f.finish().await;
}
