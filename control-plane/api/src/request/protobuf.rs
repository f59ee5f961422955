//! Bodies in Kubernetes' protobuf encoding, which typed Go clients (and `kubectl create`) send
//! by preference, to the JSON they stand for.
//!
//! An envelope (`k8s\0`, then the kind and the bytes of the object) holds one message per
//! object. The kind's [`Schema`] says what an object looks like; the one thing it does not know
//! is under which number a field is encoded. That is in `protobuf/numbers.txt`, a message a
//! line, which `cargo xtask codegen` makes:
//!
//! ```text
//! MESSAGE NUMBER:FIELD …
//!   1:name      a field of the object
//!   1:?name     one that is present when it was set, zero or not (otherwise a zero value means
//!               "not set")
//!   1:=MESSAGE  another message whose fields are the object's own
//! ```
//!
//! Answers are JSON: every client that sends protobuf also takes that.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use pintle_kube_types::GroupVersionKind;
use pintle_kube_types::schema::{self, Schema, Shape};
use serde_json::{Map, Value, json};

use crate::clock::{rfc3339, rfc3339_micro};

const MAGIC: &[u8] = b"k8s\0";
/// Deepest nesting of messages; the deepest kind there is has about fifteen.
const DEPTH: usize = 64;

/// Why bytes are no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The envelope's first bytes are others.
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    Magic,
    /// The bytes end within a field.
    #[error("unexpected EOF")]
    Truncated,
    /// A number is longer than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A field is encoded as another type than its own.
    #[error("proto: wrong wireType = {found} for field {field}")]
    WireType {
        /// The field.
        field: String,
        /// What it is encoded as.
        found: u64,
    },
    /// A string is no UTF-8.
    #[error("proto: field {field} contains invalid UTF-8")]
    Utf8 {
        /// The field.
        field: String,
    },
    /// Messages are nested too deeply.
    #[error("proto: nested too deeply")]
    Depth,
    /// The kind is not known.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind {
        /// The kind.
        kind: String,
        /// Its version.
        version: String,
    },
}

/// What a field number of a message stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Field {
        name: &'static str,
        /// Present when set, zero or not; otherwise a zero value means "not set".
        keeps_zero: bool,
    },
    /// A message whose fields are the object's own.
    Part(&'static str),
}

type Entries = HashMap<u64, Entry>;

static MESSAGES: LazyLock<HashMap<&'static str, Entries>> = LazyLock::new(|| {
    include_str!("protobuf/numbers.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let message = words.next()?;
            Some((message, words.filter_map(Entry::parse).collect()))
        })
        .collect()
});

impl Entry {
    fn parse(word: &'static str) -> Option<(u64, Self)> {
        let (number, text) = word.split_once(':')?;
        let entry = match (text.strip_prefix('='), text.strip_prefix('?')) {
            (Some(message), _) => Self::Part(message),
            (None, optional) => Self::Field {
                name: optional.unwrap_or(text),
                keeps_zero: optional.is_some(),
            },
        };
        Some((number.parse().ok()?, entry))
    }
}

/// One encoded field.
#[derive(Debug, Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// Reads the fields of one message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Overflow)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ProtobufError> {
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) = taken.ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(self.take(8)?);
                Wire::Fixed64(u64::from_le_bytes(bytes))
            }
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(self.take(4)?);
                Wire::Fixed32(u32::from_le_bytes(bytes))
            }
            found => {
                return Err(ProtobufError::WireType {
                    field: (tag >> 3).to_string(),
                    found,
                });
            }
        };
        Ok(Some((tag >> 3, wire)))
    }
}

impl<'a> Wire<'a> {
    fn code(self) -> u64 {
        match self {
            Wire::Varint(_) => 0,
            Wire::Fixed64(_) => 1,
            Wire::Bytes(_) => 2,
            Wire::Fixed32(_) => 5,
        }
    }

    fn wrong(self, field: &str) -> ProtobufError {
        ProtobufError::WireType {
            field: field.to_owned(),
            found: self.code(),
        }
    }

    fn bytes(self, field: &str) -> Result<&'a [u8], ProtobufError> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            other => Err(other.wrong(field)),
        }
    }

    fn text(self, field: &str) -> Result<&'a str, ProtobufError> {
        match std::str::from_utf8(self.bytes(field)?) {
            Ok(text) => Ok(text),
            Err(_) => Err(ProtobufError::Utf8 {
                field: field.to_owned(),
            }),
        }
    }

    fn integer(self, field: &str) -> Result<i64, ProtobufError> {
        match self {
            // Negative numbers are sent as the 64 bits of their two's complement.
            Wire::Varint(bits) => Ok(bits.cast_signed()),
            other => Err(other.wrong(field)),
        }
    }
}

/// Decodes an enveloped object to its JSON.
pub fn decode(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::Magic)?;
    let (mut version, mut kind, mut raw) = ("", "", &[][..]);
    let mut reader = Reader(envelope);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => {
                let mut type_meta = Reader(wire.bytes("typeMeta")?);
                while let Some((number, wire)) = type_meta.next()? {
                    match number {
                        1 => version = wire.text("apiVersion")?,
                        2 => kind = wire.text("kind")?,
                        _ => {}
                    }
                }
            }
            2 => raw = wire.bytes("raw")?,
            _ => {}
        }
    }
    let served = match (version, kind) {
        // Clients of before 1.22 evict with this one, which is the same but for its name.
        ("policy/v1beta1", "Eviction") => "policy/v1",
        _ => version,
    };
    let known = GroupVersionKind::from_api_version(served, kind)
        .and_then(|gvk| schema::schema_for(&gvk))
        .and_then(|schema| Some((MESSAGES.get(&*schema.name)?, schema)));
    let Some((entries, schema)) = known else {
        return Err(ProtobufError::Kind {
            kind: kind.to_owned(),
            version: version.to_owned(),
        });
    };
    let mut object = Map::new();
    object.insert("kind".to_owned(), kind.into());
    object.insert("apiVersion".to_owned(), version.into());
    message(&schema, entries, raw, &mut object, DEPTH)?;
    Ok(Value::Object(object))
}

/// Reads a message into the object it is, or is a part of.
fn message(
    schema: &Schema,
    entries: &Entries,
    bytes: &[u8],
    into: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    let depth = depth.checked_sub(1).ok_or(ProtobufError::Depth)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        let (name, keeps_zero) = match entries.get(&number) {
            // A field of a later version: as if it were not there.
            None => continue,
            Some(Entry::Part(part)) => {
                if let Some(entries) = MESSAGES.get(part) {
                    message(schema, entries, wire.bytes(part)?, into, depth)?;
                }
                continue;
            }
            Some(Entry::Field { name, keeps_zero }) => (*name, *keeps_zero),
        };
        let Some(member) = schema.member(name) else {
            continue;
        };
        match &member.shape {
            Shape::List(items) => {
                let list = into.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    repeated(name, items, wire, depth, list)?;
                }
            }
            Shape::Map(values) => {
                let map = into
                    .entry(name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    let (key, value) = entry(name, values, wire, depth)?;
                    map.insert(key, value);
                }
            }
            _ => {
                let value = single(name, member, wire, depth)?;
                if keeps_zero || !is_zero(&value) {
                    into.insert(name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn repeated(
    field: &str,
    items: &Schema,
    wire: Wire<'_>,
    depth: usize,
    list: &mut Vec<Value>,
) -> Result<(), ProtobufError> {
    if let (Shape::Int32 | Shape::Int64, Wire::Bytes(packed)) = (&items.shape, wire) {
        let mut reader = Reader(packed);
        while !reader.0.is_empty() {
            list.push(json!(reader.varint()?.cast_signed()));
        }
    } else {
        list.push(single(field, items, wire, depth)?);
    }
    Ok(())
}

fn entry(
    field: &str,
    values: &Schema,
    wire: Wire<'_>,
    depth: usize,
) -> Result<(String, Value), ProtobufError> {
    let mut key = String::new();
    let mut value = match values.shape {
        Shape::String | Shape::Bytes => json!(""),
        _ => Value::Null,
    };
    let mut reader = Reader(wire.bytes(field)?);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => wire.text(field)?.clone_into(&mut key),
            2 => value = single(field, values, wire, depth)?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn single(
    field: &str,
    schema: &Schema,
    wire: Wire<'_>,
    depth: usize,
) -> Result<Value, ProtobufError> {
    Ok(match &schema.shape {
        Shape::String => json!(wire.text(field)?),
        Shape::Bool => json!(wire.integer(field)? != 0),
        Shape::Int32 | Shape::Int64 => json!(wire.integer(field)?),
        Shape::Float => match wire {
            Wire::Fixed64(bits) => json!(f64::from_bits(bits)),
            Wire::Fixed32(bits) => json!(f32::from_bits(bits)),
            other => return Err(other.wrong(field)),
        },
        Shape::Bytes => json!(STANDARD.encode(wire.bytes(field)?)),
        Shape::Time => time(field, rfc3339, wire)?,
        Shape::MicroTime => time(field, rfc3339_micro, wire)?,
        Shape::Quantity => json!(first_text(field, wire)?),
        Shape::IntOrString => int_or_string(field, wire)?,
        Shape::Any => raw(field, wire)?,
        Shape::Struct(_) => {
            let bytes = wire.bytes(field)?;
            let mut object = Map::new();
            if let Some(entries) = MESSAGES.get(&*schema.name) {
                message(schema, entries, bytes, &mut object, depth)?;
            }
            Value::Object(object)
        }
        // Within a list or a map, a message of nothing but a list or a map.
        Shape::List(items) => {
            let mut list = Vec::new();
            let mut reader = Reader(wire.bytes(field)?);
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    repeated(field, items, wire, depth, &mut list)?;
                }
            }
            Value::Array(list)
        }
        Shape::Map(values) => {
            let mut map = Map::new();
            let mut reader = Reader(wire.bytes(field)?);
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    let (key, value) = entry(field, values, wire, depth)?;
                    map.insert(key, value);
                }
            }
            Value::Object(map)
        }
    })
}

/// JSON within the message: the managed fields, and objects of any kind.
fn raw(field: &str, wire: Wire<'_>) -> Result<Value, ProtobufError> {
    let mut raw = &[][..];
    let mut reader = Reader(wire.bytes(field)?);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            raw = wire.bytes(field)?;
        }
    }
    // What is no JSON shows as a wrong type when the object is checked.
    Ok(serde_json::from_slice(raw)
        .unwrap_or_else(|_| String::from_utf8_lossy(raw).into_owned().into()))
}

fn first_text<'a>(field: &str, wire: Wire<'a>) -> Result<&'a str, ProtobufError> {
    let mut text = "";
    let mut reader = Reader(wire.bytes(field)?);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            text = wire.text(field)?;
        }
    }
    Ok(text)
}

fn time(
    field: &str,
    text: fn(Timestamp) -> String,
    wire: Wire<'_>,
) -> Result<Value, ProtobufError> {
    let bytes = wire.bytes(field)?;
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => seconds = wire.integer(field)?,
            2 => nanos = wire.integer(field)?,
            _ => {}
        }
    }
    // Go's zero time is written as an empty message: there is no time.
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let nanos = i32::try_from(nanos).unwrap_or_default();
    Ok(match Timestamp::new(seconds, nanos) {
        Ok(time) => json!(text(time)),
        Err(_) => Value::Null,
    })
}

fn int_or_string(field: &str, wire: Wire<'_>) -> Result<Value, ProtobufError> {
    let (mut is_string, mut integer, mut text) = (false, 0, "");
    let mut reader = Reader(wire.bytes(field)?);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => is_string = wire.integer(field)? == 1,
            2 => integer = wire.integer(field)?,
            3 => text = wire.text(field)?,
            _ => {}
        }
    }
    Ok(if is_string {
        json!(text)
    } else {
        json!(integer)
    })
}

#[cfg(test)]
mod oracle;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).unwrap());
        out
    }

    fn bytes(number: u64, value: &[u8]) -> Vec<u8> {
        [
            varint(number << 3 | 2),
            varint(value.len() as u64),
            value.to_vec(),
        ]
        .concat()
    }

    fn number(field: u64, value: i64) -> Vec<u8> {
        [varint(field << 3), varint(value.cast_unsigned())].concat()
    }

    fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [bytes(1, version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &type_meta), bytes(2, raw)].concat()
    }

    /// The fields of a message and of its parts.
    fn names(message: &str) -> Vec<&'static str> {
        let entries = MESSAGES[message].values();
        entries
            .flat_map(|entry| match entry {
                Entry::Field { name, .. } => vec![*name],
                Entry::Part(part) => names(part),
            })
            .collect()
    }

    /// Checks that a message says of each of its fields what the schema does.
    fn fits(schema: &Schema, seen: &mut HashSet<Box<str>>) {
        match &schema.shape {
            Shape::Struct(_) if seen.insert(schema.name.clone()) => {
                let message = &*schema.name;
                assert!(MESSAGES.contains_key(message), "{message}");
                for name in names(message) {
                    let field = schema.field(name);
                    assert!(field.is_some(), "{message}.{name}");
                    fits(&field.unwrap().schema, seen);
                }
            }
            Shape::List(inner) | Shape::Map(inner) => fits(inner, seen),
            _ => {}
        }
    }

    #[test]
    fn every_kind_that_is_served_can_be_read() {
        // Not a body but a query.
        let queries = [
            "PodAttachOptions",
            "PodExecOptions",
            "PodPortForwardOptions",
        ];
        let registry = crate::registry::Registry::builtin();
        let mut kinds = vec![GroupVersionKind::of("", "v1", "DeleteOptions")];
        for resource in registry.resources() {
            kinds.push(resource.gvk());
            kinds.extend(
                resource
                    .subresources
                    .iter()
                    .map(|s| GroupVersionKind::of(s.group, s.version, s.kind))
                    .filter(|kind| !queries.contains(&&*kind.kind)),
            );
        }
        let mut seen = HashSet::new();
        for kind in kinds {
            let read = decode(&envelope(&kind.api_version(), &kind.kind, b""));
            assert_eq!(read.map(|_| ()), Ok(()), "{kind}");
            fits(&schema::schema_for(&kind).unwrap(), &mut seen);
        }
        // No line is left over but those of parts, which are no objects themselves.
        let parts: HashSet<&str> = MESSAGES
            .values()
            .flat_map(HashMap::values)
            .filter_map(|entry| match entry {
                Entry::Part(part) => Some(*part),
                Entry::Field { .. } => None,
            })
            .collect();
        for message in MESSAGES.keys() {
            let known = seen.contains(*message) || parts.contains(message);
            assert!(known, "{message}");
        }
    }

    #[test]
    fn a_service() {
        let port = [
            bytes(1, b"http"),
            number(3, 80),
            bytes(4, &[number(1, 1), bytes(3, b"web")].concat()),
            number(5, 0),
        ]
        .concat();
        let spec = [
            bytes(1, &port),
            bytes(2, &[bytes(1, b"app"), bytes(2, b"web")].concat()),
            bytes(4, b"ClusterIP"),
        ]
        .concat();
        let metadata = [bytes(1, b"web"), bytes(3, b""), bytes(8, b"")].concat();
        let raw = [bytes(1, &metadata), bytes(2, &spec), bytes(3, b"")].concat();
        assert_eq!(
            decode(&envelope("v1", "Service", &raw)).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                "spec": {
                    "ports": [{"name": "http", "port": 80, "targetPort": "web"}],
                    "selector": {"app": "web"}, "type": "ClusterIP",
                },
                "status": {},
            })
        );
    }

    #[test]
    fn zero_is_kept_where_it_was_set() {
        let raw = bytes(2, &[number(1, 0), number(5, 0)].concat());
        let object = decode(&envelope("apps/v1", "Deployment", &raw)).unwrap();
        assert_eq!(object["spec"], json!({"replicas": 0}));
    }

    #[test]
    fn inlined_messages_maps_of_bytes_and_times() {
        let volume = [bytes(1, b"v"), bytes(2, &bytes(1, &bytes(1, b"/data")))].concat();
        let raw = bytes(2, &bytes(1, &volume));
        let pod = decode(&envelope("v1", "Pod", &raw)).unwrap();
        assert_eq!(
            pod["spec"]["volumes"],
            json!([{"name": "v", "hostPath": {"path": "/data"}}])
        );
        let entry = [bytes(1, b"key"), bytes(2, b"secret")].concat();
        let metadata = bytes(9, &number(1, 1_700_000_000));
        let raw = [bytes(1, &metadata), bytes(2, &entry)].concat();
        let secret = decode(&envelope("v1", "Secret", &raw)).unwrap();
        assert_eq!(secret["data"], json!({"key": "c2VjcmV0"}));
        assert_eq!(
            secret["metadata"]["deletionTimestamp"],
            "2023-11-14T22:13:20Z"
        );
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(decode(b"{}"), Err(ProtobufError::Magic));
        for (version, kind) in [("v1", "Nothing"), ("apps/v1", "Pod"), ("", "Pod")] {
            assert!(
                matches!(
                    decode(&envelope(version, kind, b"")),
                    Err(ProtobufError::Kind { .. })
                ),
                "{version} {kind}"
            );
        }
        let whole = envelope("v1", "Pod", &bytes(1, b"\x0a\x05short"));
        assert_eq!(decode(&whole).map(|_| ()), Ok(()));
        let cut = envelope("v1", "Pod", &bytes(1, b"\x0a\x06short"));
        assert_eq!(decode(&cut), Err(ProtobufError::Truncated));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _any = decode(&raw);
            let _pod = decode(&envelope("v1", "Pod", &raw));
        }
    }
}
