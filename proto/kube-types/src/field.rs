//! Paths into an object and the errors validation finds there, in Kubernetes' words.
//!
//! Validation fills an [`ErrorList`]; [`crate::Status::invalid`] turns it into the 422 a client sees.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// A path such as `spec.containers[0].ports[1].name` or `metadata.labels[app]`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Path(String);

impl Path {
    /// A path of one field.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The path of the whole object; prints as nothing.
    pub fn root() -> Self {
        Self::default()
    }

    /// A field of this one; dots in `name` are kept, so several steps may be given at once.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            return Self(name.to_owned());
        }
        let mut text = String::with_capacity(self.0.len() + 1 + name.len());
        text.push_str(&self.0);
        text.push('.');
        text.push_str(name);
        Self(text)
    }

    /// An element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str("<nil>")
        } else {
            f.write_str(&self.0)
        }
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// A reference to something that does not exist.
    NotFound,
    /// A value is missing.
    Required,
    /// A value that must be unique occurs twice.
    Duplicate,
    /// A malformed value.
    Invalid,
    /// A value outside an enumeration.
    NotSupported,
    /// A value that may not be set (now, or by this client).
    Forbidden,
    /// Too many bytes.
    TooLong,
    /// Too many items.
    TooMany,
    /// A value of the wrong type.
    TypeInvalid,
    /// The check itself failed.
    Internal,
}

impl ErrorType {
    /// The `reason` of the cause in a Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(
            self,
            Self::Required | Self::Forbidden | Self::TooLong | Self::Internal
        )
    }
}

/// One error of validation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {}", self.body())]
pub struct FieldError {
    /// What kind of error.
    pub kind: ErrorType,
    /// Where.
    pub field: String,
    /// The value found there.
    pub value: Value,
    /// What would be right.
    pub detail: String,
}

fn to_value(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

impl FieldError {
    fn with(kind: ErrorType, path: &Path, value: Value, detail: impl Into<String>) -> Self {
        Self {
            kind,
            field: path.to_string(),
            value,
            detail: detail.into(),
        }
    }

    /// A malformed value, and why.
    pub fn invalid(path: &Path, value: impl Serialize, detail: impl Into<String>) -> Self {
        Self::with(ErrorType::Invalid, path, to_value(value), detail)
    }

    /// A missing value; `detail` may be empty.
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::with(ErrorType::Required, path, Value::Null, detail)
    }

    /// A value that occurs twice.
    pub fn duplicate(path: &Path, value: impl Serialize) -> Self {
        Self::with(ErrorType::Duplicate, path, to_value(value), "")
    }

    /// A value that may not be set.
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::with(ErrorType::Forbidden, path, Value::Null, detail)
    }

    /// A reference to nothing.
    pub fn not_found(path: &Path, value: impl Serialize) -> Self {
        Self::with(ErrorType::NotFound, path, to_value(value), "")
    }

    /// A value outside an enumeration; `supported` in the order it is to be printed.
    pub fn not_supported(path: &Path, value: impl Serialize, supported: &[&str]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::with(ErrorType::NotSupported, path, to_value(value), detail)
    }

    /// A value of more than `max` bytes.
    pub fn too_long(path: &Path, max: usize) -> Self {
        Self::with(
            ErrorType::TooLong,
            path,
            Value::Null,
            format!("may not be more than {max} bytes"),
        )
    }

    /// A list of `actual` items where at most `max` may be.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::with(
            ErrorType::TooMany,
            path,
            to_value(actual),
            format!("must have at most {max} {items}"),
        )
    }

    /// A value of the wrong type.
    pub fn type_invalid(path: &Path, value: impl Serialize, detail: impl Into<String>) -> Self {
        Self::with(ErrorType::TypeInvalid, path, to_value(value), detail)
    }

    /// The check itself failed.
    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self::with(ErrorType::Internal, path, Value::Null, detail)
    }

    /// The text without the field: `Invalid value: -1: must be greater than or equal to 0`.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if self.kind.shows_value() {
            text.push_str(": ");
            match &self.value {
                Value::Null => text.push_str("\"null\""),
                Value::String(s) => text.push_str(&quote(s)),
                other => text.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

/// Go's `%q`: like Rust's debug form, but printable text beyond ASCII stays as it is.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The errors validation found, in the order it found them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorList(pub Vec<FieldError>);

impl ErrorList {
    /// No errors.
    pub fn new() -> Self {
        Self::default()
    }

    /// True where nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many errors there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds one.
    pub fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    /// Adds another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The errors.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a ErrorList {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<FieldError> for ErrorList {
    fn from_iter<I: IntoIterator<Item = FieldError>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl fmt::Display for ErrorList {
    /// One error as it is, several as `[a, b]`, each text once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> = Vec::new();
        for error in &self.0 {
            let text = error.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_kubernetes() {
        let path = Path::new("spec").child("replicas");
        assert_eq!(
            FieldError::invalid(&path, -1, "must be greater than or equal to 0").to_string(),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(
            FieldError::required(&path, "").to_string(),
            "spec.replicas: Required value"
        );
        assert_eq!(
            FieldError::not_supported(&path, "Never", &["Always"]).to_string(),
            "spec.replicas: Unsupported value: \"Never\": supported values: \"Always\""
        );
        assert_eq!(
            FieldError::invalid(
                &Path::new("metadata").child("labels"),
                json!({"app": "x"}),
                "no"
            )
            .to_string(),
            "metadata.labels: Invalid value: {\"app\":\"x\"}: no"
        );
        assert_eq!(
            FieldError::too_long(&Path::new("a").index(2).key("k"), 63).to_string(),
            "a[2][k]: Too long: may not be more than 63 bytes"
        );
        assert_eq!(
            FieldError::invalid(&path, Value::Null, "field is immutable").to_string(),
            "spec.replicas: Invalid value: \"null\": field is immutable"
        );
    }

    #[test]
    fn lists_print_each_text_once() {
        let error = FieldError::required(&Path::new("a"), "");
        let other = FieldError::required(&Path::new("b"), "");
        let list: ErrorList = [error.clone(), error.clone(), other].into_iter().collect();
        assert_eq!(list.to_string(), "[a: Required value, b: Required value]");
        assert_eq!(ErrorList(vec![error]).to_string(), "a: Required value");
    }
}
