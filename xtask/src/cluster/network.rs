//! The wires of the cluster: a switch namespace with a bridge, and one namespace per machine.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{output, quiet};

/// Namespaces of ours start so.
const PREFIX: &str = "pintle-";
/// The namespace that holds the bridge.
const SWITCH: &str = "pintle-switch";
/// The host's leg.
const UPLINK: &str = "pintle-up";
/// The host's address on the bridge, and everybody's gateway.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);

/// The network namespace of a machine.
pub(super) fn namespace(machine: &str) -> String {
    format!("/run/netns/{PREFIX}{machine}")
}

/// The bridge and the host's leg.
pub(super) fn switch() -> Result<()> {
    let taken = output(Command::new("ip").args(["-o", "route", "get", "198.19.0.10"]));
    if let Ok(route) = taken
        && !route.contains(" via ")
    {
        bail!(
            "198.19.0.0/24, which the cluster uses, is on a link of this host already: {}",
            route.trim()
        );
    }
    ip(&format!("netns add {SWITCH}"))?;
    ip(&format!("-n {SWITCH} link add br0 type bridge"))?;
    ip(&format!("-n {SWITCH} link set br0 up"))?;
    ip(&format!(
        "link add {UPLINK} type veth peer name host netns {SWITCH}"
    ))?;
    ip(&format!("-n {SWITCH} link set host master br0 up"))?;
    ip(&format!("address add {GATEWAY}/24 dev {UPLINK}"))?;
    ip(&format!("link set {UPLINK} up"))
}

/// A machine's namespace, with `eth0` on the bridge.
pub(super) fn plug(machine: &str, address: Ipv4Addr) -> Result<()> {
    let space = format!("{PREFIX}{machine}");
    ip(&format!("netns add {space}"))?;
    ip(&format!("-n {space} link set lo up"))?;
    ip(&format!(
        "-n {space} link add eth0 type veth peer name {machine} netns {SWITCH}"
    ))?;
    ip(&format!("-n {SWITCH} link set {machine} master br0 up"))?;
    ip(&format!("-n {space} address add {address}/24 dev eth0"))?;
    ip(&format!("-n {space} link set eth0 up"))?;
    ip(&format!("-n {space} route add default via {GATEWAY}"))
}

/// Removes a machine's namespace, and with it its links.
pub(super) fn unplug(machine: &str) -> Result<()> {
    ip(&format!("netns delete {PREFIX}{machine}"))
}

/// Removes the bridge and the host's leg, where they are.
pub(super) fn remove_switch() -> Result<()> {
    // The host's leg goes with its peer, but that may take a moment longer than this program.
    if output(Command::new("ip").args(["-o", "link", "show", UPLINK])).is_ok() {
        ip(&format!("link delete {UPLINK}"))?;
    }
    if spaces()?.iter().any(|name| name == SWITCH) {
        ip(&format!("netns delete {SWITCH}"))?;
    }
    Ok(())
}

/// Names of the machines that are plugged in.
pub(super) fn machines() -> Result<Vec<String>> {
    Ok(spaces()?.iter().filter_map(|name| machine(name)).collect())
}

/// The machine whose namespace has this name.
fn machine(namespace: &str) -> Option<String> {
    let name = namespace.strip_prefix(PREFIX)?;
    let (role, number) = name.split_once('-')?;
    let is_ours = matches!(role, "server" | "agent") && number.parse::<u8>().is_ok();
    is_ours.then(|| name.to_owned())
}

fn spaces() -> Result<Vec<String>> {
    let list = output(Command::new("ip").args(["netns", "list"]))?;
    Ok(list
        .lines()
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect())
}

fn ip(words: &str) -> Result<()> {
    quiet(Command::new("ip").args(words.split(' ')))
}

#[cfg(test)]
mod tests {
    use super::machine;

    #[test]
    fn only_namespaces_of_machines_are_ours() {
        assert_eq!(machine("pintle-server-1").as_deref(), Some("server-1"));
        assert_eq!(machine("pintle-agent-20").as_deref(), Some("agent-20"));
        for other in [
            "pintle-switch",
            "server-1",
            "pintle-agent-x",
            "pintle-pod-1",
        ] {
            assert_eq!(machine(other), None, "{other}");
        }
    }
}
