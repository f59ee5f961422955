//! The stored encoding of an object.
//!
//! The resourceVersion is the revision of the store, which is known only after the value was
//! written. So the value is the object's JSON without it, after a header that says at which
//! byte it belongs; reading splices it in and never decodes:
//!
//! ```text
//! ┌────────┬───────────────┬──────────────────────────────────────────────────────────┐
//! │ 0x01   │ offset u32 LE │ {"kind":"Pod","apiVersion":"v1","metadata":{▲"name":…},… │
//! └────────┴───────────────┴──────────────────────────────────────────────────────────┘
//! ```

use bytes::Bytes;
use pintle_kube_types::object::{Object, ObjectError};
use serde_json::Value;

const FORMAT: u8 = 1;
const HEADER: usize = 5;

/// Why a stored value cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The header is missing or of another format.
    #[error("the stored value has no valid header")]
    Header,
    /// The JSON does not decode.
    #[error("the stored value is no object")]
    Json(#[source] ObjectError),
}

/// An encoded object without its resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    bytes: Bytes,
}

impl Encoded {
    /// Encodes an object; a resourceVersion it carries is left out.
    pub fn encode(object: &Object) -> Self {
        let mut out = Vec::with_capacity(1024);
        out.extend_from_slice(&[FORMAT, 0, 0, 0, 0]);
        out.extend_from_slice(b"{\"kind\":");
        write_string(&mut out, object.kind());
        out.extend_from_slice(b",\"apiVersion\":");
        write_string(&mut out, object.api_version());
        out.extend_from_slice(b",\"metadata\":{");
        let offset = out.len() - HEADER;
        let mut first = true;
        if let Some(metadata) = object.metadata() {
            for (name, value) in metadata {
                if name != "resourceVersion" {
                    write_field(&mut out, &mut first, name, value);
                }
            }
        }
        out.push(b'}');
        let mut first = false;
        for (name, value) in &object.0 {
            if !matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
                write_field(&mut out, &mut first, name, value);
            }
        }
        out.push(b'}');
        // Bodies are limited to 3 MiB, and the offset lies near the start.
        let offset = u32::try_from(offset).unwrap_or_default();
        out[1..HEADER].copy_from_slice(&offset.to_le_bytes());
        Self { bytes: out.into() }
    }

    /// Takes a value read from the store.
    pub fn from_stored(bytes: Bytes) -> Result<Self, ValueError> {
        let encoded = Self { bytes };
        if encoded.bytes.len() <= HEADER
            || encoded.bytes[0] != FORMAT
            || encoded.offset() > encoded.bytes.len() - HEADER
        {
            return Err(ValueError::Header);
        }
        Ok(encoded)
    }

    /// The value to store.
    pub fn stored(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Length of the stored value.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no value (there always is one).
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn offset(&self) -> usize {
        let mut offset = [0; 4];
        offset.copy_from_slice(&self.bytes[1..HEADER]);
        u32::from_le_bytes(offset) as usize
    }

    /// Appends the object's JSON with the given resourceVersion.
    pub fn write_json(&self, revision: u64, out: &mut Vec<u8>) {
        let json = &self.bytes[HEADER..];
        let (head, tail) = json.split_at(self.offset());
        out.reserve(json.len() + 42);
        out.extend_from_slice(head);
        out.extend_from_slice(b"\"resourceVersion\":\"");
        out.extend_from_slice(revision.to_string().as_bytes());
        out.push(b'"');
        if tail.first() != Some(&b'}') {
            out.push(b',');
        }
        out.extend_from_slice(tail);
    }

    /// The object's JSON without a resourceVersion.
    pub fn json_unversioned(&self) -> Bytes {
        self.bytes.slice(HEADER..)
    }

    /// The object's JSON with the given resourceVersion.
    pub fn json(&self, revision: u64) -> Bytes {
        let mut out = Vec::new();
        self.write_json(revision, &mut out);
        out.into()
    }

    /// Decodes the object, without a resourceVersion.
    pub fn object(&self) -> Result<Object, ValueError> {
        Object::from_slice(&self.bytes[HEADER..]).map_err(ValueError::Json)
    }
}

fn write_field(out: &mut Vec<u8>, first: &mut bool, name: &str, value: &Value) {
    if !*first {
        out.push(b',');
    }
    *first = false;
    write_string(out, name);
    out.push(b':');
    out.extend_from_slice(value.to_string().as_bytes());
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(Value::from(text).to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn the_resource_version_is_spliced_in_front_of_the_other_metadata() {
        let encoded = Encoded::encode(&object(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a\"b": "c\n"},
            "metadata": {"name": "x", "resourceVersion": "7"},
        })));
        let read: Value = serde_json::from_slice(&encoded.json(42)).expect("json");
        assert_eq!(
            read["metadata"],
            json!({"name": "x", "resourceVersion": "42"})
        );
        assert_eq!(read["data"], json!({"a\"b": "c\n"}));
        let stored = Encoded::from_stored(encoded.stored()).expect("a valid value");
        assert_eq!(stored.object().expect("an object").resource_version(), None);
    }

    #[test]
    fn empty_metadata_still_gives_valid_json() {
        let encoded = Encoded::encode(&object(json!({"apiVersion": "v1", "kind": "X"})));
        let read: Value = serde_json::from_slice(&encoded.json(1)).expect("json");
        assert_eq!(read["metadata"]["resourceVersion"], "1");
    }

    #[test]
    fn foreign_bytes_are_refused() {
        for bytes in [&b""[..], b"{}", b"\x01\xff\xff\xff\xff{}"] {
            assert!(Encoded::from_stored(Bytes::copy_from_slice(bytes)).is_err());
        }
    }
}
