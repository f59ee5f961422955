//! Image references: the grammar, Docker's short forms, and full names. Pure.

use std::fmt;
use std::str::FromStr;

use super::digest::Digest;
use super::types::ImageError;

/// Registry of names that have none.
pub(crate) const DEFAULT_REGISTRY: &str = "docker.io";

/// A normalised reference: `registry/repository[:tag][@digest]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// `docker.io`, `localhost:5000`, ….
    pub registry: String,
    /// Path in the registry (`library/nginx`).
    pub repository: String,
    /// `latest` when neither tag nor digest is given.
    pub tag: Option<String>,
    /// Wins over the tag when there are both.
    pub digest: Option<Digest>,
}

impl Reference {
    /// `registry/repository`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// `registry/repository:tag`, when there is a tag.
    pub fn tagged(&self) -> Option<String> {
        self.tag
            .as_ref()
            .map(|tag| format!("{}:{tag}", self.name()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(formatter, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let invalid = |reason: &str| ImageError::InvalidReference {
            reference: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let digest = digest.parse().map_err(|_bad| invalid("bad digest"))?;
                (rest, Some(digest))
            }
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return Err(invalid("bad tag"));
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if is_host(first) => (first, path),
            _ => (DEFAULT_REGISTRY, name),
        };
        let registry = match registry {
            "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
            other => other,
        };
        if !registry
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".:-[]_".contains(&b))
        {
            return Err(invalid("bad registry host"));
        }
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(invalid("repository name must be lowercase"));
        }
        if path.is_empty() || path.len() > 255 || !path.split('/').all(is_component) {
            return Err(invalid("bad repository name"));
        }
        let repository = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some("latest".to_owned()),
            (None, Some(_)) => None,
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }
}

/// As Docker tells `localhost/x` and `host.name/x` from `user/x`.
fn is_host(first: &str) -> bool {
    first.contains(['.', ':'])
        || first == "localhost"
        || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// Lower-case words, joined by `.`, `_`, `__` or dashes.
fn is_component(component: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    if !word(*first) || !word(*last) {
        return false;
    }
    bytes.split(|b| word(*b)).all(|separator| {
        separator.is_empty()
            || separator.iter().all(|b| *b == b'-')
            || separator == b"."
            || separator == b"_"
            || separator == b"__"
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_names_become_full() {
        let hex = "a".repeat(64);
        for (short, full) in [
            ("nginx", "docker.io/library/nginx:latest".to_owned()),
            ("nginx:1.27", "docker.io/library/nginx:1.27".to_owned()),
            ("user/app", "docker.io/user/app:latest".to_owned()),
            (
                "index.docker.io/library/x:1",
                "docker.io/library/x:1".to_owned(),
            ),
            ("localhost/x", "localhost/x:latest".to_owned()),
            ("localhost:5000/a/b:t", "localhost:5000/a/b:t".to_owned()),
            (
                "registry.k8s.io/pause:3.9",
                "registry.k8s.io/pause:3.9".to_owned(),
            ),
        ] {
            assert_eq!(short.parse::<Reference>().unwrap().to_string(), full);
        }
        let pinned = format!("nginx@sha256:{hex}");
        let pinned: Reference = pinned.parse().unwrap();
        assert_eq!(pinned.tag, None);
        assert_eq!(
            pinned.to_string(),
            format!("docker.io/library/nginx@sha256:{hex}")
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "Nginx",
            "a//b",
            "a:",
            "a:-x",
            "a@sha256:12",
            "a b",
            "-a",
            "a_-b",
            "host:5000/",
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_is_stable(text in ".{0,80}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let again: Reference = reference.to_string().parse().unwrap();
                prop_assert_eq!(reference, again);
            }
        }
    }
}
