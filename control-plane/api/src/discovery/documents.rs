//! The documents of discovery, built from the registry.
//!
//! Pure: the registry in, JSON out.

use serde_json::{Value, json};

use crate::registry::{Registry, Resource, Subresource};

/// `APIVersions` of `/api`.
pub(super) fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            {"clientCIDR": "0.0.0.0/0", "serverAddress": server_address},
        ],
    })
}

/// `APIGroupList` of `/apis`.
pub(super) fn group_list(registry: &Registry) -> Value {
    let groups: Vec<Value> = group_names(registry)
        .iter()
        .filter_map(|name| group_body(registry, name))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `APIGroup` of `/apis/GROUP`.
pub(super) fn group(registry: &Registry, name: &str) -> Option<Value> {
    let mut group = group_body(registry, name).filter(|_| !name.is_empty())?;
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// `APIResourceList` of `/api/v1` or `/apis/GROUP/VERSION`.
pub(super) fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let resources: Vec<Value> = served(registry, group, version)
        .flat_map(|resource| {
            std::iter::once(legacy_resource(resource)).chain(
                resource
                    .subresources
                    .iter()
                    .map(|subresource| legacy_subresource(resource, subresource)),
            )
        })
        .collect();
    if resources.is_empty() {
        return None;
    }
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version(group, version),
        "resources": resources,
    });
    // The core group's list never had it.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// `APIGroupDiscoveryList` of `/api` (the core group) or `/apis` (all others).
pub(super) fn aggregated(registry: &Registry, core: bool, version: &str) -> Value {
    let items: Vec<Value> = if core {
        vec![aggregated_group(registry, "")]
    } else {
        group_names(registry)
            .iter()
            .map(|name| aggregated_group(registry, name))
            .collect()
    };
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn group_names(registry: &Registry) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (group, _) in registry.group_versions() {
        if !group.is_empty() && !names.contains(&group) {
            names.push(group);
        }
    }
    names
}

fn versions(registry: &Registry, group: &str) -> Vec<String> {
    registry
        .group_versions()
        .into_iter()
        .filter(|(of, _)| of == group)
        .map(|(_, version)| version)
        .collect()
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn group_body(registry: &Registry, name: &str) -> Option<Value> {
    let versions: Vec<Value> = versions(registry, name)
        .iter()
        .map(|v| json!({"groupVersion": group_version(name, v), "version": v}))
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({"name": name, "versions": versions, "preferredVersion": preferred}))
}

fn served<'a>(
    registry: &'a Registry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> + 'a {
    registry
        .resources()
        .map(AsRef::as_ref)
        .filter(move |resource| resource.group == group && resource.version == version)
}

fn legacy_resource(resource: &Resource) -> Value {
    let mut entry = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    entry
}

fn legacy_subresource(resource: &Resource, subresource: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.plural, subresource.name),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": subresource.kind,
        "verbs": subresource.verbs,
    });
    if subresource.group != resource.group || subresource.version != resource.version {
        entry["group"] = subresource.group.into();
        entry["version"] = subresource.version.into();
    }
    entry
}

fn aggregated_group(registry: &Registry, group: &str) -> Value {
    let versions: Vec<Value> = versions(registry, group)
        .iter()
        .map(|version| {
            let resources: Vec<Value> = served(registry, group, version)
                .map(aggregated_resource)
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.is_empty() {
        json!({"creationTimestamp": null})
    } else {
        json!({"name": group, "creationTimestamp": null})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": {
            "group": resource.group, "version": resource.version, "kind": resource.kind,
        },
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subresources: Vec<Value> = resource
            .subresources
            .iter()
            .map(|s| {
                json!({
                    "subresource": s.name,
                    "responseKind": {"group": s.group, "version": s.version, "kind": s.kind},
                    "verbs": s.verbs,
                })
            })
            .collect();
        entry["subresources"] = json!(subresources);
    }
    entry
}
