//! What is created below a pod or a service account: bindings and tokens (evictions: `evict`).

use pintle_kube_types::gvk::GroupResource;
use pintle_kube_types::status::Status;
use pintle_kube_types::{ErrorList, FieldError, GroupKind, Object, Path};
use serde_json::{Value, json};

use super::persist::Effects;
use super::write::ATTEMPTS;
use super::{Attributes, Core, Stored};
use crate::admission::restrict_token;
use crate::auth::authenticate::TokenSpec;
use crate::clock::rfc3339;
use crate::registry::strategy::pod;
use crate::request::options::WriteOptions;
use crate::storage::key;

/// Shortest life of a token.
const TOKEN_SECONDS_MIN: i64 = 600;
/// Longest life of a token.
const TOKEN_SECONDS_MAX: i64 = 1 << 32;
/// Life of a token whose request does not say.
const TOKEN_SECONDS_DEFAULT: i64 = 3600;

/// A `Status` that says "done".
pub(super) fn success(code: u16) -> Stored {
    let object = Object::from_value(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code,
    }));
    Stored::of(&object.unwrap_or_default(), 0)
}

impl Core {
    /// Assigns a pod to a node.
    pub(super) async fn bind(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        binding: &Object,
    ) -> Result<Stored, Status> {
        let name = attributes.name()?;
        if binding.name().is_some_and(|given| given != name) {
            return Err(Status::bad_request(
                "name in URL does not match name in Binding object",
            ));
        }
        let node = checked_target(name, binding)?;
        let bindings = GroupResource::new("", "pods/binding");
        let conflict = |why: String| Err(Status::conflict(&bindings, name, why));
        let now = rfc3339(self.clock().now());
        for _ in 0..ATTEMPTS {
            let current = self.read_named(attributes)?;
            let mut pod = current.object()?;
            if let Some(uid) = binding.uid().filter(|uid| !uid.is_empty())
                && pod.uid() != Some(uid)
            {
                return conflict(format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    pod.uid().unwrap_or_default()
                ));
            }
            if pod.deletion_timestamp().is_some() {
                return conflict(format!(
                    "pod {name} is being deleted, cannot be assigned to a host"
                ));
            }
            if let Some(assigned) = pod
                .str_at(&["spec", "nodeName"])
                .filter(|node| !node.is_empty())
            {
                return conflict(format!(
                    "pod {name} is already assigned to node {assigned:?}"
                ));
            }
            let gated = pod
                .get_path(&["spec", "schedulingGates"])
                .and_then(Value::as_array)
                .is_some_and(|gates| !gates.is_empty());
            if gated {
                return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
            }
            pod.set_path(&["spec", "nodeName"], json!(node));
            for (annotation, value) in binding.annotations() {
                pod.set_annotation(annotation, value);
            }
            pod::set_condition(&mut pod, "PodScheduled", "True", &now);
            let written = self
                .replace(
                    &attributes.resource,
                    &current,
                    &pod,
                    Effects::default(),
                    options.dry_run,
                )
                .await?;
            if written.is_some() {
                return Ok(success(201));
            }
        }
        conflict(
            "the object has been modified; please apply your changes to the latest version and try again"
                .to_owned(),
        )
    }

    /// Mints a token of a service account.
    pub(super) fn request_token(
        &self,
        attributes: &Attributes,
        mut request: Object,
    ) -> Result<Stored, Status> {
        let name = attributes.name()?;
        let account = self.read_named(attributes)?.object()?;
        let seconds = request
            .get_path(&["spec", "expirationSeconds"])
            .and_then(Value::as_i64)
            .unwrap_or(TOKEN_SECONDS_DEFAULT);
        let path = Path::new("spec").child("expirationSeconds");
        let why = if seconds < TOKEN_SECONDS_MIN {
            Some("may not specify a duration less than 10 minutes")
        } else if seconds > TOKEN_SECONDS_MAX {
            Some("may not specify a duration larger than 2^32 seconds")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Status::invalid(
                &GroupKind::new("authentication.k8s.io", "TokenRequest"),
                name,
                &ErrorList(vec![FieldError::invalid(&path, seconds, why)]),
            ));
        }
        let audiences = match request.get_path(&["spec", "audiences"]) {
            Some(Value::Array(list)) => list
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            _ => Vec::new(),
        };
        let (bound_object, node) = self.bound_object(attributes, &request)?;
        let uid = request.str_at(&["spec", "boundObjectRef", "uid"]);
        restrict_token(
            attributes,
            bound_object.as_ref(),
            uid.unwrap_or_default(),
            node.as_ref().map(|(name, _)| name.as_str()),
        )?;
        let issued = self.config().token_issuer.issue(&TokenSpec {
            namespace: attributes.namespace.clone().unwrap_or_default(),
            service_account: name.to_owned(),
            service_account_uid: account.uid().unwrap_or_default().to_owned(),
            audiences,
            expiration_seconds: seconds,
            bound_object,
            node,
        })?;
        request.set_gvk(&pintle_kube_types::GroupVersionKind::of(
            "authentication.k8s.io",
            "v1",
            "TokenRequest",
        ));
        request.set_name(name);
        request.set_namespace(attributes.namespace.as_deref());
        request.set_creation_timestamp(Some(&rfc3339(self.clock().now())));
        request.set_path(&["spec", "audiences"], json!(issued.audiences));
        request.set_path(&["spec", "expirationSeconds"], json!(seconds));
        request.set_path(
            &["status"],
            json!({"token": issued.token, "expirationTimestamp": rfc3339(issued.expires)}),
        );
        Ok(Stored::of(&request, 0))
    }

    /// The object a token dies with, and the node a bound pod runs on.
    #[expect(clippy::type_complexity, reason = "kind, name and uid; name and uid")]
    fn bound_object(
        &self,
        attributes: &Attributes,
        request: &Object,
    ) -> Result<(Option<(String, String, String)>, Option<(String, String)>), Status> {
        let reference = request.get_path(&["spec", "boundObjectRef"]);
        let Some(reference) = reference.filter(|reference| !reference.is_null()) else {
            return Ok((None, None));
        };
        let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
        let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
        let (plural, namespace) = match kind.as_str() {
            "Pod" => ("pods", attributes.namespace.as_deref()),
            "Secret" => ("secrets", attributes.namespace.as_deref()),
            "Node" => ("nodes", None),
            _ => {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to object of kind {kind:?}",
                    attributes.name()?
                )));
            }
        };
        let resource = GroupResource::new("", plural);
        let found = self
            .read(&key::object(&key::resource("", plural), namespace, &name))?
            .ok_or_else(|| Status::not_found(&resource, &name))?
            .object()?;
        let found_uid = found.uid().unwrap_or_default().to_owned();
        if !uid.is_empty() && uid != found_uid {
            return Err(Status::conflict(
                &resource,
                &name,
                format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
                ),
            ));
        }
        let mut node = None;
        if kind == "Pod" {
            if found.str_at(&["spec", "serviceAccountName"]) != attributes.name.as_deref() {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    attributes.name()?
                )));
            }
            if let Some(on) = found
                .str_at(&["spec", "nodeName"])
                .filter(|on| !on.is_empty())
            {
                let key = key::object(&key::resource("", "nodes"), None, on);
                let uid = match self.read(&key)? {
                    Some(node) => node.object()?.uid().unwrap_or_default().to_owned(),
                    None => String::new(),
                };
                node = Some((on.to_owned(), uid));
            }
        }
        Ok((Some((kind, name, found_uid)), node))
    }
}

fn checked_target<'a>(name: &str, binding: &'a Object) -> Result<&'a str, Status> {
    let kind = binding.str_at(&["target", "kind"]).unwrap_or_default();
    let target = Path::new("target");
    let mut errors = ErrorList::new();
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported(
            &target.child("kind"),
            kind,
            &["Node", "<empty>"],
        ));
    }
    let node = binding.str_at(&["target", "name"]).unwrap_or_default();
    if node.is_empty() {
        errors.push(FieldError::required(&target.child("name"), ""));
    }
    if errors.is_empty() {
        Ok(node)
    } else {
        Err(Status::invalid(
            &GroupKind::new("", "Binding"),
            name,
            &errors,
        ))
    }
}
