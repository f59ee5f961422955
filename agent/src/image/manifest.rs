//! The documents of an image: index, manifest, layout and docker manifest.
//!
//! Pure. Only the fields that are used; OCI and Docker names alike.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use super::types::ImageError;

/// Media types a registry may answer with.
pub(super) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// A pointer to content.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    #[serde(default)]
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

/// What an image runs on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Platform {
    pub(super) os: String,
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
}

/// An index or an image manifest; which it is shows in its fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Document {
    Image(Manifest),
    Index(Index),
}

/// An image manifest.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// An image index or manifest list.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

/// One image of a docker archive's manifest.json.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerImage {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

/// Parses a document, naming it when that fails.
pub(super) fn parse<T: serde::de::DeserializeOwned>(
    what: &str,
    bytes: &[u8],
) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|source| ImageError::Malformed {
        what: what.to_owned(),
        source,
    })
}

/// This machine's architecture in Go's words.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "x86" => "386",
        other => other,
    }
}

impl Index {
    /// The manifest for this machine; one without a variant first. Where
    /// nothing names a platform, a single manifest is taken at its word.
    pub(super) fn select(&self) -> Option<&Descriptor> {
        let fits = |descriptor: &&Descriptor| {
            descriptor.platform.as_ref().is_some_and(|platform| {
                platform.os == "linux" && platform.architecture == architecture()
            })
        };
        let plain = |descriptor: &&Descriptor| {
            descriptor
                .platform
                .as_ref()
                .is_some_and(|platform| platform.variant.is_none())
        };
        self.manifests
            .iter()
            .filter(fits)
            .find(plain)
            .or_else(|| self.manifests.iter().find(fits))
            .or_else(|| match self.manifests.as_slice() {
                [only] if only.platform.is_none() => Some(only),
                _ => None,
            })
    }
}

/// Refuses layers whose content is elsewhere or encrypted.
pub(super) fn check_layer(descriptor: &Descriptor) -> Result<(), ImageError> {
    let media_type = &descriptor.media_type;
    let layer = media_type.is_empty()
        || media_type.contains("image.layer.")
        || media_type.contains("image.rootfs.diff.");
    if !layer || media_type.contains("encrypted") || media_type.contains("foreign") {
        return Err(ImageError::UnsupportedMediaType {
            media_type: media_type.clone(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(platforms: &[(&str, &str, Option<&str>)]) -> Index {
        let manifests = platforms
            .iter()
            .enumerate()
            .map(|(n, (os, architecture, variant))| {
                serde_json::json!({
                    "digest": Digest::of(&[u8::try_from(n).unwrap()]),
                    "platform": { "os": os, "architecture": architecture, "variant": variant },
                })
            });
        let value = serde_json::json!({ "manifests": manifests.collect::<Vec<_>>() });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_manifest_of_this_machine_is_selected() {
        let own = architecture();
        let list = index(&[
            ("unknown", "unknown", None),
            ("linux", "other", None),
            ("linux", own, Some("v3")),
            ("linux", own, None),
        ]);
        assert_eq!(list.select().unwrap().digest, Digest::of(&[3]));
        assert!(index(&[("windows", own, None)]).select().is_none());
    }

    #[test]
    fn documents_are_told_apart() {
        let digest = Digest::of(b"x");
        let image =
            format!(r#"{{"schemaVersion":2,"config":{{"digest":"{digest}"}},"layers":[]}}"#);
        assert!(matches!(
            parse("m", image.as_bytes()),
            Ok(Document::Image(_))
        ));
        assert!(matches!(
            parse("m", br#"{"manifests":[]}"#),
            Ok(Document::Index(_))
        ));
        assert!(parse::<Document>("m", b"{}").is_err());
    }
}
