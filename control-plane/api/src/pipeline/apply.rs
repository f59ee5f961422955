//! Server-side apply: the client says which fields it wants, and owns them.

use pintle_kube_types::patch::apply::{self, Write};
use pintle_kube_types::status::Status;
use pintle_kube_types::{ErrorList, FieldError, GroupKind, Path, defaults, schema};

use super::conform::{check_name, conform};
use super::write::Missing;
use super::{Attributes, Core, Stored};
use crate::clock::rfc3339;
use crate::request::body::{self, Encoding};
use crate::request::options::WriteOptions;

impl Core {
    /// Applies a configuration: merges it into the object, or creates the object.
    pub(super) async fn apply(
        &self,
        attributes: &Attributes,
        options: &WriteOptions,
        configuration: &[u8],
    ) -> Result<Stored, Status> {
        let resource = &attributes.resource;
        if options.field_manager.is_empty() {
            return Err(Status::invalid(
                &GroupKind::new("meta.k8s.io", "PatchOptions"),
                "",
                &ErrorList(vec![FieldError::required(
                    &Path::new("fieldManager"),
                    "is required for apply patch",
                )]),
            ));
        }
        let gvk = resource.gvk();
        let Some(schema) = schema::schema_for(&gvk) else {
            return Err(Status::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
            ]));
        };
        // JSON is YAML, but errors in it read better from its own parser.
        let encoding = if configuration.trim_ascii_start().starts_with(b"{") {
            Encoding::Json
        } else {
            Encoding::Yaml
        };
        let (value, duplicates) = body::decode(configuration, encoding)?;
        let (mut configuration, warnings) =
            conform(resource, value, duplicates, options.field_validation)?;
        // Only what is created has to say its name.
        let unnamed = configuration.name().is_none_or(str::is_empty);
        if unnamed {
            configuration.set_name(attributes.name()?);
        }
        check_name(attributes, &mut configuration)?;
        let time = rfc3339(self.clock().now());
        let version = resource.api_version();
        let write = Write {
            manager: &options.field_manager,
            api_version: &version,
            subresource: attributes.subresource.as_deref().unwrap_or_default(),
            time: &time,
        };
        let missing = match attributes.subresource {
            None => Missing::Apply,
            Some(_) => Missing::NotFound,
        };
        self.mutate(attributes, options, missing, |live| {
            if unnamed && live.is_none() {
                return Err(Status::bad_request("name must be provided"));
            }
            let mut new = apply::apply(live, &configuration, &schema, &write, options.force)?;
            defaults::apply_defaults(&gvk, &mut new);
            Ok((new, warnings.clone()))
        })
        .await
    }
}
