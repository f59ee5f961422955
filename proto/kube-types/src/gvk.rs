//! Group, version, kind and resource: how a type is named in URLs and in objects.
//!
//! Pure values; the API's router builds them from paths, the schema registry is keyed by them.

use std::borrow::Cow;
use std::fmt;

/// A group and version such as `apps/v1`, or `v1` for the core group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GroupVersion {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Version within the group.
    pub version: Cow<'static, str>,
}

/// A group and a kind such as `Deployment.apps`, as validation errors name a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GroupKind {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Kind, in CamelCase.
    pub kind: Cow<'static, str>,
}

/// A group and a plural resource such as `deployments.apps`, as "not found" errors name a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GroupResource {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Plural, lower case; with a slash and the subresource where one is meant.
    pub resource: Cow<'static, str>,
}

/// Group, version and kind: the type of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GroupVersionKind {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Version within the group.
    pub version: Cow<'static, str>,
    /// Kind, in CamelCase.
    pub kind: Cow<'static, str>,
}

/// Group, version and plural resource: where objects of a type live in the API.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GroupVersionResource {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Version within the group.
    pub version: Cow<'static, str>,
    /// Plural, lower case.
    pub resource: Cow<'static, str>,
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn qualified(name: &str, group: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(name)?;
    if !group.is_empty() {
        write!(f, ".{group}")?;
    }
    Ok(())
}

impl GroupVersion {
    /// From parts known at compile time.
    pub const fn of(group: &'static str, version: &'static str) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
        }
    }

    /// From parts.
    pub fn new(group: impl Into<Cow<'static, str>>, version: impl Into<Cow<'static, str>>) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
        }
    }

    /// Parses `v1` or `apps/v1`; `None` where there are more than two parts or the version is empty.
    pub fn parse(text: &str) -> Option<Self> {
        let (group, version) = text.split_once('/').unwrap_or(("", text));
        if version.is_empty() || version.contains('/') || (text.contains('/') && group.is_empty()) {
            return None;
        }
        Some(Self::new(group.to_owned(), version.to_owned()))
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// This group and version with a kind.
    pub fn with_kind(&self, kind: impl Into<Cow<'static, str>>) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: kind.into(),
        }
    }

    /// This group and version with a resource.
    pub fn with_resource(&self, resource: impl Into<Cow<'static, str>>) -> GroupVersionResource {
        GroupVersionResource {
            group: self.group.clone(),
            version: self.version.clone(),
            resource: resource.into(),
        }
    }
}

impl GroupKind {
    /// From parts.
    pub fn new(group: impl Into<Cow<'static, str>>, kind: impl Into<Cow<'static, str>>) -> Self {
        Self {
            group: group.into(),
            kind: kind.into(),
        }
    }
}

impl GroupResource {
    /// From parts.
    pub fn new(
        group: impl Into<Cow<'static, str>>,
        resource: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }
}

impl GroupVersionKind {
    /// From parts known at compile time.
    pub const fn of(group: &'static str, version: &'static str, kind: &'static str) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
        }
    }

    /// From parts.
    pub fn new(
        group: impl Into<Cow<'static, str>>,
        version: impl Into<Cow<'static, str>>,
        kind: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }
    }

    /// From an object's `apiVersion` and `kind`.
    pub fn from_api_version(text: &str, kind: &str) -> Option<Self> {
        Some(GroupVersion::parse(text)?.with_kind(kind.to_owned()))
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Without the kind.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion {
            group: self.group.clone(),
            version: self.version.clone(),
        }
    }

    /// Without the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind {
            group: self.group.clone(),
            kind: self.kind.clone(),
        }
    }
}

impl GroupVersionResource {
    /// From parts known at compile time.
    pub const fn of(group: &'static str, version: &'static str, resource: &'static str) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            resource: Cow::Borrowed(resource),
        }
    }

    /// From parts.
    pub fn new(
        group: impl Into<Cow<'static, str>>,
        version: impl Into<Cow<'static, str>>,
        resource: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Without the resource.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion {
            group: self.group.clone(),
            version: self.version.clone(),
        }
    }

    /// Without the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource {
            group: self.group.clone(),
            resource: self.resource.clone(),
        }
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.api_version())
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        qualified(&self.kind, &self.group, f)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        qualified(&self.resource, &self.group, f)
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Resource={}", self.api_version(), self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_api_versions() {
        assert_eq!(GroupVersion::parse("v1"), Some(GroupVersion::of("", "v1")));
        assert_eq!(
            GroupVersion::parse("apps/v1"),
            Some(GroupVersion::of("apps", "v1"))
        );
        for bad in ["", "a/b/c", "/v1", "apps/"] {
            assert_eq!(GroupVersion::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn prints_as_kubernetes_does() {
        assert_eq!(
            GroupKind::new("apps", "Deployment").to_string(),
            "Deployment.apps"
        );
        assert_eq!(GroupResource::new("", "pods").to_string(), "pods");
        assert_eq!(
            GroupVersionKind::of("apps", "v1", "Deployment").to_string(),
            "apps/v1, Kind=Deployment"
        );
    }
}
