//! The `scale` subresource: the replicas of a workload as `autoscaling/v1` Scale.

use pintle_kube_types::status::Status;
use pintle_kube_types::{
    ErrorList, FieldError, GroupKind, GroupVersionKind, LabelSelector, Object, Path,
};
use serde_json::{Value, json};

use super::conform::{check_name, json_type};
use super::read::no_subresource;
use super::write::{Missing, ParsedPatch};
use super::{Attributes, Core, Stored};
use crate::request::options::{PatchKind, WriteOptions};

const SCALE: GroupVersionKind = GroupVersionKind::of("autoscaling", "v1", "Scale");

/// A workload's scale; the resourceVersion is the workload's.
pub(super) fn view(workload: &Object) -> Object {
    let metadata: serde_json::Map<String, Value> = workload
        .metadata()
        .into_iter()
        .flatten()
        .filter(|(name, _)| {
            matches!(
                name.as_str(),
                "name" | "namespace" | "uid" | "resourceVersion" | "creationTimestamp"
            )
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let selector = workload
        .get_path(&["spec", "selector"])
        .and_then(|selector| serde_json::from_value(selector.clone()).ok())
        .and_then(|selector| LabelSelector::from_typed(Some(&selector)).ok())
        .map(|selector| selector.to_string())
        .unwrap_or_default();
    let count = |path: &[&str]| workload.get_path(path).cloned().unwrap_or(json!(0));
    let mut scale = Object::of_kind(&SCALE);
    scale
        .0
        .insert("metadata".to_owned(), Value::Object(metadata));
    scale.set_path(&["spec", "replicas"], count(&["spec", "replicas"]));
    scale.set_path(&["status", "replicas"], count(&["status", "replicas"]));
    scale.set_path(&["status", "selector"], json!(selector));
    scale
}

impl Core {
    pub(super) async fn update_scale(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        scale: &Object,
    ) -> Result<Stored, Status> {
        self.scale(attributes, options, |_| Ok(scale.clone())).await
    }

    pub(super) async fn patch_scale(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        kind: PatchKind,
        body: &[u8],
    ) -> Result<Stored, Status> {
        let patch = ParsedPatch::parse(kind, body)?;
        self.scale(attributes, options, |scale| {
            let value = patch.apply(&SCALE, &scale.to_value())?;
            Object::from_value(value)
                .ok_or_else(|| Status::bad_request("the patched Scale is no object"))
        })
        .await
    }

    async fn scale(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        make: impl Fn(&Object) -> Result<Object, Status> + Send + Sync,
    ) -> Result<Stored, Status> {
        if attributes.resource.subresource("scale").is_none() {
            return Err(no_subresource(attributes, "scale"));
        }
        let name = attributes.name()?;
        let workload = Attributes {
            subresource: None,
            ..attributes.clone()
        };
        let stored = self
            .mutate(&workload, options, Missing::NotFound, |old| {
                let old = old.cloned().unwrap_or_default();
                let mut scale = make(&view(&old))?;
                check_name(attributes, &mut scale)?;
                let replicas = replicas(name, &scale)?;
                let mut new = old;
                new.set_path(&["spec", "replicas"], json!(replicas));
                new.set_resource_version(scale.resource_version());
                Ok((new, Vec::new()))
            })
            .await?;
        Ok(Stored::of(&view(&stored.object()?), stored.revision()))
    }
}

fn replicas(name: &str, scale: &Object) -> Result<i32, Status> {
    let given = scale.get_path(&["spec", "replicas"]);
    let path = Path::new("spec").child("replicas");
    let refused = |error: FieldError| {
        Status::invalid(
            &GroupKind::new("autoscaling", "Scale"),
            name,
            &ErrorList(vec![error]),
        )
    };
    match given {
        None | Some(Value::Null) => Ok(0),
        Some(value) => match value.as_i64().and_then(|count| i32::try_from(count).ok()) {
            Some(count) if count >= 0 => Ok(count),
            Some(_) => Err(refused(FieldError::invalid(
                &path,
                value,
                "must be greater than or equal to 0",
            ))),
            None => Err(Status::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal {} into Go struct field ScaleSpec.spec.replicas of type int32",
                json_type(value),
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_of_a_workload() {
        let workload = Object::from_value(json!({
            "metadata": {"name": "web", "namespace": "x", "uid": "u", "labels": {"a": "b"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"replicas": 2},
        }))
        .expect("an object");
        let scale = view(&workload).to_value();
        assert_eq!(
            scale,
            json!({
                "kind": "Scale", "apiVersion": "autoscaling/v1",
                "metadata": {"name": "web", "namespace": "x", "uid": "u"},
                "spec": {"replicas": 3},
                "status": {"replicas": 2, "selector": "app=web"},
            })
        );
    }
}
