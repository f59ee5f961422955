//! Controller references: who manages an object, and how an object is adopted or let go.

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

/// The owner that manages the object, if one does.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .as_ref()?
        .iter()
        .find(|owner| owner.controller == Some(true))
}

/// A reference that makes `owner` the managing owner.
pub(crate) fn controller_reference<K>(owner: &K) -> OwnerReference
where
    K: k8s_openapi::Resource + Metadata<Ty = ObjectMeta>,
{
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: owner.metadata().name.clone().unwrap_or_default(),
        uid: owner.metadata().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The strategic merge patch that adds `owner` to an object with `uid`.
pub(crate) fn adopt_patch(owner: &OwnerReference, uid: &str) -> Value {
    json!({"metadata": {"uid": uid, "ownerReferences": [owner]}})
}

/// The strategic merge patch that removes the owners with `owner_uids` from an object with `uid`.
pub(crate) fn release_patch<'a>(owner_uids: impl IntoIterator<Item = &'a str>, uid: &str) -> Value {
    let removals: Vec<Value> = owner_uids
        .into_iter()
        .map(|owner| json!({"$patch": "delete", "uid": owner}))
        .collect();
    json!({"metadata": {"uid": uid, "ownerReferences": removals}})
}

/// What to do with an object that may belong to a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is ours.
    Keep,
    /// It matches and has no controller: make it ours.
    Adopt,
    /// It is ours but matches no more: let it go.
    Release,
    /// It is none of our business.
    Ignore,
}

/// Decides on an object from its metadata, the uid of the would-be owner, whether that owner is
/// being deleted, and whether the owner's selector matches.
pub(crate) fn claim(
    meta: &ObjectMeta,
    owner_uid: &str,
    owner_deleting: bool,
    selected: bool,
) -> Claim {
    match controller_of(meta) {
        Some(owner) if owner.uid != owner_uid => Claim::Ignore,
        Some(_) if selected => Claim::Keep,
        Some(_) if owner_deleting => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner_deleting || !selected || meta.deletion_timestamp.is_some() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned_by(uid: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            owner_references: uid.map(|uid| {
                vec![OwnerReference {
                    uid: uid.into(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]
            }),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn claims() {
        assert_eq!(claim(&owned_by(Some("a")), "a", false, true), Claim::Keep);
        assert_eq!(
            claim(&owned_by(Some("a")), "a", false, false),
            Claim::Release
        );
        assert_eq!(claim(&owned_by(Some("a")), "a", true, false), Claim::Ignore);
        assert_eq!(claim(&owned_by(Some("b")), "a", false, true), Claim::Ignore);
        assert_eq!(claim(&owned_by(None), "a", false, true), Claim::Adopt);
        assert_eq!(claim(&owned_by(None), "a", false, false), Claim::Ignore);
        assert_eq!(claim(&owned_by(None), "a", true, true), Claim::Ignore);
    }
}
