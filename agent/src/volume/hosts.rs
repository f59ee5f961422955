//! /etc/hosts of a pod, as the kubelet writes it. Pure.

use std::fmt::Write;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::build;

/// The content; `host` gives the node's own file, for pods on its network.
pub fn hosts(
    pod: &Pod,
    ips: &[IpAddr],
    cluster_domain: &str,
    host: impl FnOnce() -> String,
) -> String {
    let mut text = String::new();
    if build::is_host_network(pod) {
        text.push_str("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(&host());
    } else {
        text.push_str(
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        let (name, qualified) = build::host_names(pod, cluster_domain);
        for ip in ips {
            let names = match &qualified {
                Some(full) if *full != name => format!("{full}\t{name}"),
                _ => name.clone(),
            };
            line(&mut text, &ip.to_string(), &names);
        }
    }
    let aliases: Vec<_> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.host_aliases.iter().flatten())
        .collect();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.clone().unwrap_or_default().join("\t");
            line(&mut text, &alias.ip, &names);
        }
    }
    text
}

fn line(text: &mut String, address: &str, names: &str) {
    // Writing to a String cannot fail.
    if writeln!(text, "{address}\t{names}").is_err() {
        tracing::trace!("formatting failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn content() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"containers": [], "subdomain": "s",
                "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["foo", "bar"]}]}
        }))
        .unwrap();
        let text = hosts(
            &pod,
            &["10.244.0.5".parse().unwrap()],
            "cluster.local",
            String::new,
        );
        assert!(text.contains("127.0.0.1\tlocalhost\n"));
        assert!(text.contains("10.244.0.5\tweb.s.ns.svc.cluster.local\tweb\n"));
        assert!(text.ends_with("\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"));
    }
}
