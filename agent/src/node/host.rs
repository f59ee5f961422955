//! Facts of the machine, read from the kernel.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

/// What the machine is; read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInfo {
    /// Number of CPUs.
    pub cpus: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Size of the file system of the data directory, in bytes.
    pub disk: u64,
    /// `uname -r`.
    pub kernel: String,
    /// `PRETTY_NAME` of os-release.
    pub os_image: String,
    /// Go's name of the architecture.
    pub architecture: String,
    /// /etc/machine-id.
    pub machine_id: String,
    /// UUID of the board.
    pub system_uuid: String,
    /// Id of this boot.
    pub boot_id: String,
    /// Addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Host name.
    pub hostname: String,
}

/// What the machine has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Memory is short.
    pub memory: bool,
    /// Disk is short.
    pub disk: bool,
    /// Process ids are short.
    pub pids: bool,
}

/// The kubelet's `memory.available` threshold.
const MEMORY_LEAST: u64 = 100 << 20;
/// Free part of the disk below which it is short, in percent.
const DISK_LEAST_PERCENT: u64 = 5;
/// Free part of the process ids below which they are short, in percent.
const PIDS_LEAST_PERCENT: u64 = 5;

impl HostInfo {
    /// Looks at the machine.
    pub fn read(data_dir: &Path, address: Option<IpAddr>) -> Self {
        let uname = rustix::system::uname();
        let file = |path: &str| {
            std::fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let text = |value: &std::ffi::CStr| value.to_string_lossy().into_owned();
        let machine = text(uname.machine());
        Self {
            cpus: cpus(&file("/proc/cpuinfo")),
            memory: meminfo(&file("/proc/meminfo"), "MemTotal").unwrap_or_default(),
            disk: disk(data_dir).map_or(0, |(total, _)| total),
            kernel: text(uname.release()),
            os_image: os_name(&file("/etc/os-release")),
            architecture: match machine.as_str() {
                "x86_64" => "amd64".to_owned(),
                "aarch64" => "arm64".to_owned(),
                _ => machine,
            },
            machine_id: file("/etc/machine-id"),
            system_uuid: file("/sys/class/dmi/id/product_uuid"),
            boot_id: file("/proc/sys/kernel/random/boot_id"),
            addresses: vec![address.unwrap_or_else(default_address)],
            hostname: text(uname.nodename()),
        }
    }
}

/// What is short now.
pub fn pressure(data_dir: &Path) -> Pressure {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number =
        |path: &str| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
    let running = std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| {
            let total = text.split_whitespace().nth(3)?.split('/').nth(1)?;
            total.parse::<u64>().ok()
        });
    Pressure {
        memory: meminfo(&memory, "MemAvailable").is_some_and(|free| free < MEMORY_LEAST),
        disk: disk(data_dir).is_some_and(|(total, free)| free * 100 < total * DISK_LEAST_PERCENT),
        pids: match (number("/proc/sys/kernel/pid_max"), running) {
            (Some(most), Some(used)) => most.saturating_sub(used) * 100 < most * PIDS_LEAST_PERCENT,
            _ => false,
        },
    }
}

fn cpus(cpuinfo: &str) -> u64 {
    let listed = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    u64::try_from(listed.max(1)).unwrap_or(1)
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Size and free bytes of the file system of a path.
fn disk(path: &Path) -> Option<(u64, u64)> {
    let info = rustix::fs::statvfs(path).ok()?;
    Some((info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize))
}

fn os_name(release: &str) -> String {
    release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or_else(
            || "Linux".to_owned(),
            |name| name.trim_matches('"').to_owned(),
        )
}

/// The source address of the default route: asked of the kernel by connecting a datagram
/// socket, which sends nothing.
pub fn default_address() -> IpAddr {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let ask = |from: &str, to: &str| -> Option<IpAddr> {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    // Addresses of documentation (RFC 5737, RFC 3849): nobody is there.
    ask("0.0.0.0:0", "192.0.2.1:9")
        .or_else(|| ask("[::]:0", "[2001:db8::1]:9"))
        .filter(|address| !address.is_unspecified())
        .unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        assert_eq!(cpus("processor\t: 0\nmodel: x\nprocessor\t: 1\n"), 2);
        assert_eq!(cpus(""), 1);
        let memory = "MemTotal:       1024 kB\nMemAvailable:   512 kB\n";
        assert_eq!(meminfo(memory, "MemAvailable"), Some(512 * 1024));
        assert_eq!(meminfo(memory, "Mem"), None);
        assert_eq!(os_name("NAME=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
    }
}
