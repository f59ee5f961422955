//! Fetches an image's documents and blobs from a registry or its mirrors.
//!
//! Changes only the store's blobs. Every document and blob is checked against
//! its digest before it is kept.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::TryStreamExt;
use oci_client::Reference as RemoteReference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use tokio::io::AsyncWriteExt;

use super::archive::Found;
use super::digest::{Digest, Hasher};
use super::login;
use super::manifest::{self, Descriptor, Document, Manifest};
use super::reference::{DEFAULT_REGISTRY, Reference};
use super::store::{Disk, failed, remove};
use super::types::{ImageError, Mirror, Progress, ProgressFn, RegistryLogin};

/// Layers that are downloaded at a time.
const PARALLEL_DOWNLOADS: usize = 3;

/// One place to ask for an image.
pub(super) struct Source {
    client: Client,
    auth: RegistryAuth,
    remote: RemoteReference,
    shown: String,
}

/// Where to ask for a reference, in order.
pub(super) fn sources(
    reference: &Reference,
    mirrors: &[Mirror],
    logins: &[RegistryLogin],
) -> Vec<Source> {
    let login = login::select(logins, reference);
    let auth = login.map_or(RegistryAuth::Anonymous, |login| {
        RegistryAuth::Basic(login.username.clone(), login.password.clone())
    });
    let own = Mirror {
        host: reference.registry.clone(),
        plain_http: is_local(&reference.registry),
    };
    mirrors
        .iter()
        .map(|mirror| (mirror, RegistryAuth::Anonymous))
        .chain(std::iter::once((&own, auth)))
        .map(|(host, auth)| source(reference, host, auth))
        .collect()
}

/// Registries on this machine speak plain HTTP unless told otherwise, as with
/// Docker.
fn is_local(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.starts_with("127.") || host == "[::1]"
}

fn source(reference: &Reference, mirror: &Mirror, auth: RegistryAuth) -> Source {
    let protocol = if mirror.plain_http {
        ClientProtocol::Http
    } else {
        ClientProtocol::Https
    };
    let client = Client::new(ClientConfig {
        protocol,
        platform_resolver: None,
        connect_timeout: Some(Duration::from_secs(15)),
        read_timeout: Some(Duration::from_mins(1)),
        user_agent: concat!("pintle/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    });
    let (host, repository) = (mirror.host.clone(), reference.repository.clone());
    let remote = match (&reference.digest, &reference.tag) {
        (Some(digest), _) => RemoteReference::with_digest(host, repository, digest.to_string()),
        (None, tag) => {
            let tag = tag.clone().unwrap_or_else(|| "latest".to_owned());
            RemoteReference::with_tag(host, repository, tag)
        }
    };
    Source {
        client,
        auth,
        remote,
        shown: reference.to_string(),
    }
}

impl Source {
    /// Finds the manifest for this machine, keeping it and its config.
    pub(super) async fn resolve(&self, disk: &Disk) -> Result<(Digest, Manifest), ImageError> {
        let mut remote = self.remote.clone();
        // An index, and the manifest it names.
        for _ in 0..2 {
            let (bytes, _) = self
                .client
                .pull_manifest_raw(&remote, &self.auth, &manifest::ACCEPTED)
                .await
                .map_err(|error| self.refused(&error))?;
            let digest = Digest::of(&bytes);
            if let Some(expected) = remote.digest()
                && expected != digest.to_string()
            {
                return Err(ImageError::DigestMismatch {
                    what: format!("manifest of {:?}", self.shown),
                    expected: expected.to_owned(),
                    actual: digest.to_string(),
                });
            }
            match manifest::parse("image manifest", &bytes)? {
                Document::Image(manifest) => {
                    disk.write_blob(&digest, &bytes)?;
                    return Ok((digest, manifest));
                }
                Document::Index(index) => {
                    let selected = index.select().ok_or_else(|| self.no_platform())?;
                    remote = remote.clone_with_digest(selected.digest.to_string());
                }
            }
        }
        Err(self.no_platform())
    }

    fn no_platform(&self) -> ImageError {
        ImageError::NoPlatform {
            reference: self.shown.clone(),
            platform: format!("linux/{}", manifest::architecture()),
        }
    }

    /// Brings config and layers into the store.
    pub(super) async fn fetch(
        &self,
        disk: &Disk,
        digest: Digest,
        manifest: &Manifest,
        progress: &ProgressFn,
    ) -> Result<Found, ImageError> {
        manifest.layers.iter().try_for_each(manifest::check_layer)?;
        let missing: Vec<&Descriptor> = std::iter::once(&manifest.config)
            .chain(&manifest.layers)
            .filter(|descriptor| !disk.has_blob(&descriptor.digest))
            .collect();
        progress(Progress::Resolved {
            layers: manifest.layers.len(),
            bytes: missing.iter().map(|descriptor| descriptor.size).sum(),
        });
        let received = std::sync::atomic::AtomicU64::new(0);
        let count = |bytes: u64| {
            let before = received.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            progress(Progress::Downloaded {
                bytes: before + bytes,
            });
        };
        // Boxed, for the compiler cannot see that the mapped futures are Send.
        let downloads: Vec<BoxFuture<'_, _>> = missing
            .into_iter()
            .map(|descriptor| Box::pin(self.download(disk, descriptor, &count)) as _)
            .collect();
        futures_util::stream::iter(downloads)
            .buffer_unordered(PARALLEL_DOWNLOADS)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(Found {
            manifest_digest: digest,
            config: manifest.config.digest.clone(),
            layers: manifest
                .layers
                .iter()
                .map(|layer| layer.digest.clone())
                .collect(),
            size: manifest.config.size
                + manifest.layers.iter().map(|layer| layer.size).sum::<u64>(),
            names: Vec::new(),
        })
    }

    async fn download(
        &self,
        disk: &Disk,
        descriptor: &Descriptor,
        count: &(dyn Fn(u64) + Sync),
    ) -> Result<(), ImageError> {
        // The same layer twice in one image.
        if disk.has_blob(&descriptor.digest) {
            return Ok(());
        }
        let path = disk.temporary();
        let result = self.download_to(&path, descriptor, count).await;
        match result {
            Ok(()) => disk.keep(&path, &descriptor.digest),
            Err(error) => {
                remove(&path)?;
                Err(error)
            }
        }
    }

    async fn download_to(
        &self,
        path: &Path,
        descriptor: &Descriptor,
        count: &(dyn Fn(u64) + Sync),
    ) -> Result<(), ImageError> {
        let wanted = OciDescriptor {
            digest: descriptor.digest.to_string(),
            media_type: descriptor.media_type.clone(),
            ..OciDescriptor::default()
        };
        let mut stream = self
            .client
            .pull_blob_stream(&self.remote, &wanted)
            .await
            .map_err(|error| self.refused(&error))?
            .stream;
        let mut file = tokio::fs::File::create(path)
            .await
            .map_err(failed("create", path))?;
        let mut hasher = Hasher::default();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| ImageError::Registry {
                reference: self.shown.clone(),
                message: error.to_string(),
            })?;
            hasher.update(&chunk);
            file.write_all(&chunk)
                .await
                .map_err(failed("write", path))?;
            count(chunk.len() as u64);
        }
        file.flush().await.map_err(failed("write", path))?;
        let actual = hasher.finish();
        if actual != descriptor.digest {
            return Err(ImageError::DigestMismatch {
                what: format!("blob of {:?}", self.shown),
                expected: descriptor.digest.to_string(),
                actual: actual.to_string(),
            });
        }
        Ok(())
    }

    /// Puts a registry's answer in the words a pod's status shows.
    fn refused(&self, error: &OciDistributionError) -> ImageError {
        let reference = self.shown.clone();
        let not_found = |message| ImageError::RegistryNotFound {
            reference: reference.clone(),
            message,
        };
        let denied = |message| ImageError::Unauthorized {
            reference: reference.clone(),
            message,
        };
        match error {
            OciDistributionError::RegistryError { envelope, .. } => {
                let first = envelope.errors.first();
                let message = first
                    .map(|e| describe(&e.code, &e.message))
                    .unwrap_or_default();
                match first.map(|e| &e.code) {
                    Some(
                        OciErrorCode::ManifestUnknown
                        | OciErrorCode::NameUnknown
                        | OciErrorCode::NotFound
                        | OciErrorCode::BlobUnknown
                        | OciErrorCode::ManifestBlobUnknown,
                    ) => not_found(message),
                    Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => denied(message),
                    _ => ImageError::Registry { reference, message },
                }
            }
            OciDistributionError::ImageManifestNotFoundError(message) => not_found(message.clone()),
            OciDistributionError::ServerError {
                code: 404, message, ..
            } => not_found(if message.is_empty() {
                "not found".to_owned()
            } else {
                message.clone()
            }),
            OciDistributionError::UnauthorizedError { .. } => denied(
                "pull access denied, repository does not exist or may require authorization"
                    .to_owned(),
            ),
            OciDistributionError::AuthenticationFailure(message) => {
                denied(format!("authorization failed: {message}"))
            }
            other => ImageError::Registry {
                reference,
                message: chain(other),
            },
        }
    }
}

/// `manifest unknown: manifest unknown`, as registries and kubelets put it.
fn describe(code: &OciErrorCode, message: &str) -> String {
    let code = match serde_json::to_value(code) {
        Ok(serde_json::Value::String(code)) => code.to_lowercase().replace('_', " "),
        _ => String::new(),
    };
    format!("{code}: {message}")
}

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

/// Whether asking the next source makes sense.
pub(super) fn may_try_next(error: &ImageError) -> bool {
    matches!(
        error,
        ImageError::RegistryNotFound { .. }
            | ImageError::Unauthorized { .. }
            | ImageError::Registry { .. }
    )
}

impl Mirror {
    /// Parses `[http[s]://]host[:port]`.
    pub fn parse(text: &str) -> Option<Self> {
        let (plain_http, host) = match text.split_once("://") {
            Some(("http", host)) => (true, host),
            Some(("https", host)) => (false, host),
            Some(_) => return None,
            None => (is_local(text), text),
        };
        let host = host.trim_end_matches('/');
        let fine = !host.is_empty() && !host.contains('/');
        fine.then(|| Self {
            host: host.to_owned(),
            plain_http,
        })
    }
}

/// The name a mirror configuration uses for a registry.
pub(super) fn mirror_key(registry: &str) -> &str {
    match registry {
        "index.docker.io" => DEFAULT_REGISTRY,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_hosts_with_an_optional_scheme() {
        let mirror = |host: &str, plain_http| {
            Some(Mirror {
                host: host.to_owned(),
                plain_http,
            })
        };
        assert_eq!(
            Mirror::parse("http://10.0.0.1:5000/"),
            mirror("10.0.0.1:5000", true)
        );
        assert_eq!(
            Mirror::parse("https://mirror.example"),
            mirror("mirror.example", false)
        );
        assert_eq!(
            Mirror::parse("localhost:5000"),
            mirror("localhost:5000", true)
        );
        assert_eq!(Mirror::parse("ftp://x"), None);
        assert_eq!(Mirror::parse("https://x/path"), None);
    }

    #[test]
    fn errors_keep_the_registrys_words() {
        let code = OciErrorCode::ManifestUnknown;
        assert_eq!(
            describe(&code, "manifest unknown"),
            "manifest unknown: manifest unknown"
        );
    }
}
