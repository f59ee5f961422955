//! Schemas of the built-in kinds: what may be in an object and how its lists merge.
//!
//! Built lazily per kind from `k8s-openapi`'s generated schemas and our own table of merge keys
//! (`schema/keys.rs`), kept without descriptions. The API checks every body against them; patches
//! read the merge keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::gvk::{GroupVersion, GroupVersionKind};

mod build;
mod check;
mod keys;
mod kinds;
mod normal;
mod openapi;

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// Name of the definition such as `io.k8s.api.core.v1.PodSpec`; empty for anonymous types.
    pub name: Box<str>,
    /// What it looks like.
    pub shape: Shape,
    /// Whether server-side apply treats every value of the type as one.
    pub atomic: bool,
}

/// What a value looks like.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A struct with known fields.
    Struct(BTreeMap<Box<str>, Field>),
    /// A map from strings to values of one type.
    Map(Arc<Schema>),
    /// A list.
    List(Arc<Schema>),
    /// Text.
    String,
    /// Base64 of bytes.
    Bytes,
    /// RFC 3339, seconds.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A number.
    Float,
    /// true or false.
    Bool,
    /// An integer or text.
    IntOrString,
    /// A quantity such as `100m` or `1Gi`.
    Quantity,
    /// Anything at all.
    Any,
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its type.
    pub schema: Arc<Schema>,
    /// Whether the API requires it.
    pub required: bool,
    /// How strategic merge patch treats it.
    pub patch: PatchStrategy,
    /// How server-side apply treats it, where it is a list.
    pub list: ListType,
    /// Whether server-side apply treats the struct or map as one value.
    pub atomic: bool,
}

/// How strategic merge patch treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists merge by key (objects) or as sets (scalars); otherwise they are replaced.
    pub merge: bool,
    /// Only the keys in `$retainKeys` stay.
    pub retain_keys: bool,
    /// The field that identifies an element.
    pub merge_key: Option<Box<str>>,
}

/// How server-side apply treats a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// One value.
    #[default]
    Atomic,
    /// Each scalar by itself.
    Set,
    /// Each element by these fields.
    Map(Vec<Box<str>>),
}

/// What is wrong with an object as a value of its schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaReport {
    /// Unknown fields as strict decoding prints them: `unknown field "spec.foo"`.
    pub unknown: Vec<String>,
    /// Fields given twice: `duplicate field "spec.foo"` (filled by [`crate::json::parse`]).
    pub duplicate: Vec<String>,
    /// Wrong types in Go's words: `json: cannot unmarshal string into Go struct field …`.
    pub type_errors: Vec<String>,
}

impl SchemaReport {
    /// The 400 for a wrong type (always), or for unknown and duplicate fields (where `strict`).
    pub fn into_result(
        self,
        gvk: &GroupVersionKind,
        strict: bool,
    ) -> Result<Vec<String>, crate::Status> {
        let prefix = format!(
            "{} in version {:?} cannot be handled as a {}",
            gvk.kind, gvk.version, gvk.kind
        );
        if let Some(first) = self.type_errors.into_iter().next() {
            return Err(crate::Status::bad_request(format!("{prefix}: {first}")));
        }
        let mut warnings = self.duplicate;
        warnings.extend(self.unknown);
        if strict && !warnings.is_empty() {
            return Err(crate::Status::bad_request(format!(
                "{prefix}: strict decoding error: {}",
                warnings.join(", ")
            )));
        }
        Ok(warnings)
    }
}

impl SchemaReport {
    /// Like [`SchemaReport::into_result`] for an object that came of a patch: the 422 shows the patch
    /// (as [`crate::patch::go_text`] prints a strategic one, as JSON text any other).
    pub fn into_patch_result(
        self,
        patch: &str,
        strict: bool,
    ) -> Result<Vec<String>, crate::Status> {
        let rejected = |why: String| {
            let path = crate::Path::new("patch");
            let errors = crate::ErrorList(vec![crate::FieldError::invalid(&path, patch, why)]);
            crate::Status::invalid(&crate::GroupKind::default(), "", &errors)
        };
        if let Some(first) = self.type_errors.into_iter().next() {
            return Err(rejected(first));
        }
        let mut warnings = self.duplicate;
        warnings.extend(self.unknown);
        if strict && !warnings.is_empty() {
            return Err(rejected(format!(
                "strict decoding error: {}",
                warnings.join(", ")
            )));
        }
        Ok(warnings)
    }
}

/// Whether a kind is built in.
pub fn is_known(gvk: &GroupVersionKind) -> bool {
    kinds::find(&gvk.group, &gvk.version, &gvk.kind).is_some()
}

/// The schema of a built-in kind, built on first use.
pub fn schema_for(gvk: &GroupVersionKind) -> Option<Arc<Schema>> {
    build::schema_for(gvk)
}

/// A schema from the OpenAPI v3 schema of a custom resource, with its `x-kubernetes-*` extensions.
pub fn from_openapi(source: &Value) -> Arc<Schema> {
    build::from_openapi(source)
}

/// The built-in kinds there are schemas for.
pub fn known_kinds() -> Vec<GroupVersionKind> {
    kinds::KINDS
        .iter()
        .map(|k| GroupVersionKind::of(k.group, k.version, k.name))
        .collect()
}

/// Compares a value with its schema.
pub fn check(schema: &Schema, value: &Value) -> SchemaReport {
    check::check(schema, value)
}

/// Drops unknown fields and nulls.
pub fn prune(schema: &Schema, value: &mut Value) {
    normal::prune(schema, value);
}

/// Drops unknown fields, nulls and empty optional lists and maps, and writes quantities and times in
/// their canonical form: what Kubernetes' decoding and encoding does to an object.
pub fn normalise(schema: &Schema, value: &mut Value) {
    normal::normalise(schema, value);
}

/// `components.schemas` of one group and version for `/openapi/v3`, with descriptions and
/// `x-kubernetes-*` extensions; `None` where nothing is known of it.
pub fn openapi_definitions(gv: &GroupVersion) -> Option<Value> {
    openapi::definitions(gv)
}

/// The value an element of a keyed list counts as having where it lacks a key field.
pub fn key_default(key: &str) -> Option<&'static str> {
    keys::KEY_DEFAULTS
        .iter()
        .find(|(k, _)| *k == key)
        .map(|(_, value)| *value)
}

impl Schema {
    /// The fields, where this is a struct.
    pub fn fields(&self) -> Option<&BTreeMap<Box<str>, Field>> {
        match &self.shape {
            Shape::Struct(fields) => Some(fields),
            _ => None,
        }
    }

    /// A field, where this is a struct that has it.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields()?.get(name)
    }

    /// The type of a named member: a field of a struct or any value of a map.
    pub fn member(&self, name: &str) -> Option<&Schema> {
        match &self.shape {
            Shape::Struct(fields) => fields.get(name).map(|f| f.schema.as_ref()),
            Shape::Map(values) => Some(values),
            _ => None,
        }
    }

    /// The type of the items, where this is a list.
    pub fn items(&self) -> Option<&Schema> {
        match &self.shape {
            Shape::List(items) => Some(items),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment() -> Arc<Schema> {
        schema_for(&GroupVersionKind::of("apps", "v1", "Deployment")).expect("built in")
    }

    fn type_error(value: &Value) -> String {
        let report = check(&deployment(), value);
        report.type_errors.first().cloned().unwrap_or_default()
    }

    #[test]
    fn every_kind_builds_and_is_cached() {
        for gvk in known_kinds() {
            let schema = schema_for(&gvk).expect("built in");
            assert!(schema.fields().is_some(), "{gvk}");
            assert!(Arc::ptr_eq(&schema, &schema_for(&gvk).expect("built in")));
        }
        assert!(schema_for(&GroupVersionKind::of("apps", "v1", "Nothing")).is_none());
    }

    fn collect(schema: &Arc<Schema>, names: &mut BTreeMap<String, Arc<Schema>>) {
        if !schema.name.is_empty()
            && names
                .insert(
                    build::short_name(&schema.name).to_owned(),
                    Arc::clone(schema),
                )
                .is_some()
        {
            return;
        }
        match &schema.shape {
            Shape::Struct(fields) => fields.values().for_each(|f| collect(&f.schema, names)),
            Shape::Map(inner) | Shape::List(inner) => collect(inner, names),
            _ => {}
        }
    }

    #[test]
    fn every_row_of_the_table_names_a_field() {
        let mut names: BTreeMap<String, Arc<Schema>> = BTreeMap::new();
        for gvk in known_kinds() {
            collect(&schema_for(&gvk).expect("built in"), &mut names);
        }
        for (definition, field, _, _) in keys::MERGE {
            // Types of kinds that are not served are allowed in the table.
            if let Some(schema) = names.get(*definition)
                && !field.is_empty()
            {
                assert!(schema.field(field).is_some(), "{definition}.{field}");
            }
        }
    }

    #[test]
    fn merge_keys_are_there() {
        let schema = deployment();
        let pod = schema
            .member("spec")
            .and_then(|s| s.member("template"))
            .and_then(|s| s.member("spec"))
            .expect("a pod spec");
        let containers = pod.field("containers").expect("a field");
        assert!(containers.patch.merge);
        assert_eq!(containers.patch.merge_key.as_deref(), Some("name"));
        assert_eq!(containers.list, ListType::Map(vec!["name".into()]));
        let volumes = pod.field("volumes").expect("a field");
        assert!(volumes.patch.retain_keys);
        assert!(!pod.field("tolerations").expect("a field").patch.merge);
        let selector = schema
            .member("spec")
            .and_then(|s| s.field("selector"))
            .expect("a field");
        assert!(selector.atomic);
    }

    #[test]
    fn unknown_fields_as_strict_decoding_names_them() {
        let report = check(
            &deployment(),
            &json!({"foo": 1, "metadata": {"labels": {"x": "y"}}, "spec": {"template": {"spec": {"containers": [
                {"name": "a", "imagee": "b"}
            ]}}}}),
        );
        assert_eq!(
            report.unknown,
            [
                r#"unknown field "foo""#,
                r#"unknown field "spec.template.spec.containers[0].imagee""#
            ]
        );
        let gvk = GroupVersionKind::of("apps", "v1", "Deployment");
        let status = report.into_result(&gvk, true).expect_err("strict");
        assert_eq!(status.code, 400);
        assert_eq!(
            status.message,
            r#"Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "foo", unknown field "spec.template.spec.containers[0].imagee""#
        );
    }

    #[test]
    fn rejected_patches_show_the_patch() {
        let patch = json!({"spec": {"replicass": 3, "x": ["a", null]}});
        let text = crate::patch::go_text(&patch);
        let status = check(&deployment(), &json!({"spec": {"replicass": 3}}))
            .into_patch_result(&text, true)
            .expect_err("strict");
        assert_eq!(status.code, 422);
        assert_eq!(
            status.message,
            r#" "" is invalid: patch: Invalid value: "map[spec:map[replicass:3 x:[a <nil>]]]": strict decoding error: unknown field "spec.replicass""#
        );
    }

    #[test]
    fn wrong_types_in_the_words_of_go() {
        for (value, want) in [
            (
                json!({"spec": {"replicas": "3"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"replicas": 1.5}}),
                "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}}}}),
                "json: cannot unmarshal string into Go struct field ContainerPort.spec.template.spec.containers.ports.containerPort of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": {}}}}}),
                "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
            ),
            (
                json!({"spec": "x"}),
                "json: cannot unmarshal string into Go struct field Deployment.spec of type v1.DeploymentSpec",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                json!({"spec": {"template": {"spec": {"restartPolicy": 1}}}}),
                "json: cannot unmarshal number into Go struct field PodSpec.spec.template.spec.restartPolicy of type v1.RestartPolicy",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "1x"}}}]}}}}),
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                json!({"metadata": {"creationTimestamp": "now"}}),
                r#"parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006""#,
            ),
            (
                json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": true}}}}),
                "json: cannot unmarshal bool into Go value of type int32",
            ),
        ] {
            assert_eq!(type_error(&value), want);
        }
        assert_eq!(
            type_error(
                &json!({"spec": {"replicas": null, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}}})
            ),
            ""
        );
    }

    #[test]
    fn bytes_are_base64() {
        let secret = schema_for(&GroupVersionKind::of("", "v1", "Secret")).expect("built in");
        assert!(
            check(&secret, &json!({"data": {"a": "aGk="}}))
                .type_errors
                .is_empty()
        );
        assert_eq!(
            check(&secret, &json!({"data": {"a": "no!"}})).type_errors,
            ["illegal base64 data at input byte 2"]
        );
    }

    #[test]
    fn normalises_as_a_round_trip_through_go() {
        let pod = schema_for(&GroupVersionKind::of("", "v1", "Pod")).expect("built in");
        let mut value = json!({
            "x": 1,
            "metadata": {"creationTimestamp": null, "labels": {}, "deletionTimestamp": "2024-05-06T09:08:09+02:00"},
            "spec": {
                "securityContext": {}, "containers": [], "volumes": [],
                "overhead": {"cpu": "1000m", "memory": 1.5},
            },
        });
        normalise(&pod, &mut value);
        assert_eq!(
            value,
            json!({
                "metadata": {"deletionTimestamp": "2024-05-06T07:08:09Z"},
                "spec": {
                    "securityContext": {}, "containers": [],
                    "overhead": {"cpu": "1", "memory": "1500m"},
                },
            })
        );
    }

    #[test]
    fn openapi_has_what_kubectl_reads() {
        let definitions =
            openapi_definitions(&GroupVersion::of("apps", "v1")).expect("a known group");
        let deployment = &definitions["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(
            deployment["x-kubernetes-group-version-kind"],
            json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
        );
        assert_eq!(
            deployment["properties"]["spec"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"
        );
        assert!(deployment["description"].is_string());
        assert!(deployment.get("required").is_none());
        let containers = &definitions["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
        assert_eq!(containers["x-kubernetes-list-type"], "map");
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        assert!(definitions["io.k8s.api.apps.v1.DeploymentList"].is_object());
        assert!(definitions["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"].is_object());
        // Every reference leads somewhere.
        let text = definitions.to_string();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap_or("");
            assert!(definitions.get(name).is_some(), "{name}");
        }
        assert!(openapi_definitions(&GroupVersion::of("none", "v1")).is_none());
    }
}
