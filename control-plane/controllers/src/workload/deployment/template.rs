//! When two pod templates are the same, and the hash that names the replica set of a template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

/// The label that tells the pods of one replica set of a deployment from those of another.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";

/// Whether two templates describe the same pods; the hash label does not count, nor does the
/// difference between an empty list and none.
pub(crate) fn equal(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    let (a, b) = (without_hash(a), without_hash(b));
    a == b || normal(&a) == normal(&b)
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(labels) = template
        .metadata
        .as_mut()
        .and_then(|meta| meta.labels.as_mut())
    {
        labels.remove(HASH_LABEL);
    }
    template
}

fn normal(template: &PodTemplateSpec) -> Option<Value> {
    let mut value = serde_json::to_value(template).ok()?;
    normalise(&mut value);
    Some(value)
}

/// Fields that are maps or structs by value: empty and absent are the same there. (An empty
/// `emptyDir` or `securityContext`, on the other hand, says something.)
const EMPTY_IS_ABSENT: [&str; 7] = [
    "metadata",
    "labels",
    "annotations",
    "nodeSelector",
    "resources",
    "limits",
    "requests",
];

fn normalise(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for field in fields.values_mut() {
                normalise(field);
            }
            fields.retain(|key, field| match field {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::String(text) => !text.is_empty(),
                Value::Object(inner) => {
                    !(inner.is_empty() && EMPTY_IS_ABSENT.contains(&key.as_str()))
                }
                Value::Bool(_) | Value::Number(_) => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        _ => {}
    }
}

/// The template with the hash label set.
pub(crate) fn with_hash(template: &PodTemplateSpec, hash: &str) -> PodTemplateSpec {
    let mut template = template.clone();
    template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default()
        .insert(HASH_LABEL.to_owned(), hash.to_owned());
    template
}

/// The selector with the hash label required.
pub(crate) fn selector_with_hash(selector: &LabelSelector, hash: &str) -> LabelSelector {
    let mut selector = selector.clone();
    selector
        .match_labels
        .get_or_insert_with(BTreeMap::new)
        .insert(HASH_LABEL.to_owned(), hash.to_owned());
    selector
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        Container, EmptyDirVolumeSource, PodSpec, ResourceRequirements, Volume,
    };

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        PodTemplateSpec {
            metadata: None,
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "web".into(),
                    image: Some(image.into()),
                    ..Container::default()
                }],
                ..PodSpec::default()
            }),
        }
    }

    #[test]
    fn the_hash_label_and_empty_fields_do_not_count() {
        let plain = template("nginx:1.27");
        let mut dressed = with_hash(&plain, "abc");
        assert!(equal(&plain, &dressed));
        if let Some(spec) = &mut dressed.spec {
            spec.volumes = Some(Vec::new());
            spec.containers[0].resources = Some(ResourceRequirements::default());
        }
        assert!(equal(&plain, &dressed));
        assert!(!equal(&plain, &template("nginx:1.28")));
    }

    #[test]
    fn an_empty_volume_source_counts() {
        let with = |source: Option<EmptyDirVolumeSource>| {
            let mut template = template("nginx");
            if let Some(spec) = &mut template.spec {
                spec.volumes = Some(vec![Volume {
                    name: "v".into(),
                    empty_dir: source,
                    ..Volume::default()
                }]);
            }
            template
        };
        assert!(!equal(
            &with(None),
            &with(Some(EmptyDirVolumeSource::default()))
        ));
    }
}
