//! The four patch types of the API, as pure functions of a current object and a patch.
//!
//! The API's registry reads the object, patches it here, and then defaults, validates and stores the
//! result as it would an update.

pub mod apply;
pub mod fieldset;
pub mod json;
pub mod merge;
pub mod strategic;
mod typed;

/// A patch that cannot be applied. The API answers 400 for what cannot be read, 422 for what does
/// not fit the object, as [`PatchError::is_unprocessable`] says, and 413 for what is too much, as
/// [`PatchError::is_too_large`] says.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The patch is no JSON, or not of the shape its type wants.
    #[error("error decoding patch: {0}")]
    Decode(#[source] serde_json::Error),
    /// The patch is valid JSON, but no object.
    #[error("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
    /// A JSON patch operation failed on this object.
    #[error("the server rejected our request due to an error in our request")]
    Operation(#[source] json_patch::PatchError),
    /// A JSON patch has more operations than allowed.
    #[error("The allowed maximum operations in a JSON patch is {limit}, got {actual}")]
    TooManyOperations {
        /// How many may be.
        limit: usize,
        /// How many there are.
        actual: usize,
    },
    /// The copies of a JSON patch add more bytes than allowed.
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {actual}, exceeding the limit {limit}"
    )]
    CopiedTooMuch {
        /// How many may be.
        limit: usize,
        /// How many there would be.
        actual: usize,
    },
    /// An element of a merge list has no merge key.
    #[error("map: {element} does not contain declared merge key: {key}")]
    NoMergeKey {
        /// The element.
        element: String,
        /// The key it lacks.
        key: String,
    },
    /// A merge list holds something that is no object.
    #[error("invalid type in list {path}: expected an object, found {found}")]
    ListElement {
        /// Where.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// A `$patch` directive nobody knows.
    #[error("unrecognized patch directive {directive} in {path}")]
    Directive {
        /// Where.
        path: String,
        /// The directive.
        directive: String,
    },
    /// `$retainKeys` is malformed, or lacks a key that is present in the patch.
    #[error("invalid $retainKeys list in {path}: {why}")]
    RetainKeys {
        /// Where.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// `$setElementOrder` is malformed, or lacks an element that is present in the patch.
    #[error("invalid $setElementOrder list in {path}: {why}")]
    ElementOrder {
        /// Where.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl PatchError {
    /// True where the patch is well formed but does not fit the object: 422, else 400.
    pub fn is_unprocessable(&self) -> bool {
        matches!(self, Self::Operation(_) | Self::CopiedTooMuch { .. })
    }

    /// True where the patch is more than the API takes at once: 413.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooManyOperations { .. })
    }
}

/// A value as Go's `%+v` prints it (`map[spec:map[replicas:3]]`): how errors show a rejected patch.
pub fn go_text(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let parts: Vec<String> = list.iter().map(go_text).collect();
            format!("[{}]", parts.join(" "))
        }
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort();
            let parts: Vec<String> = names
                .into_iter()
                .map(|name| format!("{name}:{}", map.get(name).map(go_text).unwrap_or_default()))
                .collect();
            format!("map[{}]", parts.join(" "))
        }
        other => other.to_string(),
    }
}

/// How Go's decoder names the type of a JSON value.
pub(crate) fn json_type(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "bool",
        serde_json::Value::Number(_) => "number",
        serde_json::Value::String(_) => "string",
        serde_json::Value::Array(_) => "array",
        serde_json::Value::Object(_) => "object",
    }
}
