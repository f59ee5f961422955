//! Layout of the store's keys.
//!
//! `/registry/RESOURCE[.GROUP]/[NAMESPACE/]NAME` holds objects; `/ranges/POOL/VALUE` holds
//! which object owns a unique value (a cluster IP, a node port), written in the same
//! transaction as the object.

use bytes::Bytes;

/// The first key there can be.
pub const FIRST: &[u8] = &[0];
/// Prefix of objects.
pub const REGISTRY: &str = "/registry/";

/// Prefix of a resource's objects.
pub fn resource(group: &str, plural: &str) -> String {
    if group.is_empty() {
        format!("{REGISTRY}{plural}/")
    } else {
        format!("{REGISTRY}{plural}.{group}/")
    }
}

/// Key of an object below its resource's prefix.
pub fn object(prefix: &str, namespace: Option<&str>, name: &str) -> Bytes {
    match namespace {
        Some(namespace) => format!("{prefix}{namespace}/{name}").into(),
        None => format!("{prefix}{name}").into(),
    }
}

/// Prefix of the objects of one namespace, or of all of them.
pub fn scope(prefix: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("{prefix}{namespace}/"),
        None => prefix.to_owned(),
    }
}

/// The resource prefix a key lies under.
pub fn resource_of(key: &[u8]) -> Option<&str> {
    let rest = key.strip_prefix(REGISTRY.as_bytes())?;
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    std::str::from_utf8(&key[..=REGISTRY.len() + slash]).ok()
}

/// Key that says who owns a cluster IP.
pub fn service_ip(ip: std::net::IpAddr) -> Bytes {
    format!("/ranges/serviceips/{ip}").into()
}

/// Key that says who owns a node port.
pub fn node_port(port: u16) -> Bytes {
    format!("/ranges/nodeports/{port}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_objects_lie_under_their_resource() {
        let prefix = resource("apps", "deployments");
        let key = object(&prefix, Some("default"), "web");
        assert_eq!(&key[..], b"/registry/deployments.apps/default/web");
        assert_eq!(resource_of(&key), Some(prefix.as_str()));
        assert_eq!(resource_of(b"/ranges/nodeports/30000"), None);
    }
}
