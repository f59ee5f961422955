//! /etc/resolv.conf of a pod, from its DNS policy. Pure but for reading the node's own.

use std::net::IpAddr;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::build;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

/// What a resolv.conf says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    /// Addresses to ask.
    pub servers: Vec<String>,
    /// Domains to try.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// The node's own configuration; where a stub on loopback serves the node, what is behind it,
/// for loopback is another one in a pod.
pub fn host_conf() -> Conf {
    let own = read(Path::new("/etc/resolv.conf"));
    let is_stub = |conf: &Conf| {
        !conf.servers.is_empty()
            && conf.servers.iter().all(|server| {
                server
                    .parse::<IpAddr>()
                    .is_ok_and(|address| address.is_loopback())
            })
    };
    if is_stub(&own) {
        let behind = read(Path::new("/run/systemd/resolve/resolv.conf"));
        if !behind.servers.is_empty() {
            return behind;
        }
    }
    own
}

fn read(path: &Path) -> Conf {
    parse(&std::fs::read_to_string(path).unwrap_or_default())
}

/// Reads a resolv.conf.
pub fn parse(text: &str) -> Conf {
    let mut conf = Conf::default();
    for line in text.lines() {
        let mut words = line
            .split(['#', ';'])
            .next()
            .unwrap_or_default()
            .split_whitespace();
        match words.next() {
            Some("nameserver") => conf.servers.extend(words.next().map(str::to_owned)),
            // The last one counts.
            Some("search" | "domain") => {
                conf.searches = words.map(|word| trim_dot(word).to_owned()).collect();
            }
            Some("options") => conf.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    conf
}

fn trim_dot(domain: &str) -> &str {
    if domain == "." {
        domain
    } else {
        domain.trim_end_matches('.')
    }
}

/// The content for a pod.
pub fn resolv_conf(pod: &Pod, host: &Conf, cluster_domain: &str, cluster_dns: IpAddr) -> String {
    render(&conf(pod, host, cluster_domain, cluster_dns))
}

fn conf(pod: &Pod, host: &Conf, cluster_domain: &str, cluster_dns: IpAddr) -> Conf {
    let spec = pod.spec.as_ref();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let policy = spec
        .and_then(|spec| spec.dns_policy.as_deref())
        .unwrap_or("ClusterFirst");
    let mut conf = match policy {
        "None" => Conf::default(),
        "Default" => host.clone(),
        // On the node's network a pod resolves as the node does.
        "ClusterFirst" if build::is_host_network(pod) => host.clone(),
        _ => {
            let mut searches = vec![
                format!("{namespace}.svc.{cluster_domain}"),
                format!("svc.{cluster_domain}"),
                cluster_domain.to_owned(),
            ];
            searches.extend(host.searches.iter().cloned());
            Conf {
                servers: vec![cluster_dns.to_string()],
                searches,
                options: vec!["ndots:5".to_owned()],
            }
        }
    };
    if let Some(own) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        conf.servers
            .extend(own.nameservers.iter().flatten().cloned());
        conf.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            conf.options
                .retain(|known| known.split(':').next().unwrap_or_default() != name);
            conf.options.push(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name,
            });
        }
    }
    deduplicate(&mut conf.servers);
    deduplicate(&mut conf.searches);
    conf.servers.truncate(MAX_SERVERS);
    conf.searches.truncate(MAX_SEARCHES);
    while conf.searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        conf.searches.pop();
    }
    conf
}

fn deduplicate(list: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

fn render(conf: &Conf) -> String {
    let mut lines = Vec::new();
    if !conf.searches.is_empty() {
        lines.push(format!("search {}", conf.searches.join(" ")));
    }
    lines.extend(
        conf.servers
            .iter()
            .map(|server| format!("nameserver {server}")),
    );
    if !conf.options.is_empty() {
        lines.push(format!("options {}", conf.options.join(" ")));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(spec: &serde_json::Value) -> String {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns"}, "spec": spec
        }))
        .unwrap();
        let host = parse("nameserver 192.0.2.53\nsearch example.org.\noptions timeout:1\n");
        resolv_conf(&pod, &host, "cluster.local", "10.96.0.10".parse().unwrap())
    }

    #[test]
    fn policies() {
        let cluster = "search ns.svc.cluster.local svc.cluster.local cluster.local example.org\n\
                       nameserver 10.96.0.10\noptions ndots:5\n";
        let host = "search example.org\nnameserver 192.0.2.53\noptions timeout:1\n";
        for (spec, expected) in [
            (json!({"containers": []}), cluster),
            (
                json!({"containers": [], "dnsPolicy": "ClusterFirst"}),
                cluster,
            ),
            (json!({"containers": [], "dnsPolicy": "Default"}), host),
            (json!({"containers": [], "hostNetwork": true}), host),
            (
                json!({"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
                cluster,
            ),
            (
                json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {
                    "nameservers": ["1.1.1.1"], "searches": ["a.b"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}}),
                "search a.b\nnameserver 1.1.1.1\noptions ndots:2 edns0\n",
            ),
            (
                json!({"containers": [], "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}),
                "search ns.svc.cluster.local svc.cluster.local cluster.local example.org\n\
                 nameserver 10.96.0.10\noptions ndots:1\n",
            ),
        ] {
            assert_eq!(of(&spec), expected, "{spec}");
        }
    }
}
