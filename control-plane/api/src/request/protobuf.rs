//! Bodies in Kubernetes' protobuf encoding, which typed Go clients (and `kubectl create`) send
//! by preference, to the JSON they stand for.
//!
//! An envelope (`k8s\0`, then the kind and the bytes of the object) holds one message per
//! object. `messages.txt` says, a message a line, what each field number is:
//!
//! ```text
//! MESSAGE NUMBER:NAME:[*|?]TYPE …
//!   *  repeated     ?  present only when it was set (otherwise a zero value means "not set")
//!   s string  b bool  i integer  d double  y bytes  m.. map from strings
//!   t time  u time with microseconds  q quantity  o integer or string  r raw JSON object
//!   f field set  Name another message, whose fields are the parent's own where NAME is empty
//! ```
//!
//! Answers are JSON: every client that sends protobuf also takes that.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    String,
    Bool,
    Integer,
    Double,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    Raw,
    FieldSet,
    Message(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A zero value means "not set".
    Plain,
    /// Present when set, zero or not.
    Optional,
    Repeated,
    Map,
}

#[derive(Debug, Clone, Copy)]
struct Field {
    number: u64,
    /// Empty: the message's fields are the parent's own.
    name: &'static str,
    shape: Shape,
    kind: Type,
}

static MESSAGES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    include_str!("protobuf/messages.txt")
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let message = words.next()?;
            Some((message, words.filter_map(Field::parse).collect()))
        })
        .collect()
});

impl Field {
    fn parse(word: &'static str) -> Option<Self> {
        let mut parts = word.splitn(3, ':');
        let number = parts.next()?.parse().ok()?;
        let name = parts.next()?;
        let text = parts.next()?;
        let (shape, text) = match text.split_at_checked(1)? {
            ("*", rest) => (Shape::Repeated, rest),
            ("?", rest) => (Shape::Optional, rest),
            ("m", rest) => (Shape::Map, rest),
            _ => (Shape::Plain, text),
        };
        let kind = match text {
            "s" => Type::String,
            "b" => Type::Bool,
            "i" => Type::Integer,
            "d" => Type::Double,
            "y" => Type::Bytes,
            "t" => Type::Time,
            "u" => Type::MicroTime,
            "q" => Type::Quantity,
            "o" => Type::IntOrString,
            "r" => Type::Raw,
            "f" => Type::FieldSet,
            message => Type::Message(message),
        };
        Some(Self {
            number,
            name,
            shape,
            kind,
        })
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
    let Some(fields) = MESSAGES.get(kind) else {
        return Err(ProtobufError::Kind {
            kind: kind.to_owned(),
            version: version.to_owned(),
        });
    };
    let mut object = Map::new();
    object.insert("kind".to_owned(), kind.into());
    object.insert("apiVersion".to_owned(), version.into());
    message(fields, raw, &mut object, DEPTH)?;
    Ok(Value::Object(object))
}

fn message(
    fields: &[Field],
    bytes: &[u8],
    into: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    let depth = depth.checked_sub(1).ok_or(ProtobufError::Depth)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        // A field of a later version: as if it were not there.
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            continue;
        };
        match (field.shape, field.kind) {
            (_, Type::Message(name)) if field.name.is_empty() => {
                message(known(name), wire.bytes(name)?, into, depth)?;
            }
            (Shape::Plain, kind) => {
                let value = single(field.name, kind, wire, depth)?;
                if !is_zero(&value) {
                    into.insert(field.name.to_owned(), value);
                }
            }
            (Shape::Optional, kind) => {
                let value = single(field.name, kind, wire, depth)?;
                into.insert(field.name.to_owned(), value);
            }
            (Shape::Repeated, kind) => {
                let list = into
                    .entry(field.name)
                    .or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    repeated(field.name, kind, wire, depth, list)?;
                }
            }
            (Shape::Map, kind) => {
                let map = into
                    .entry(field.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    let (key, value) = entry(field.name, kind, wire, depth)?;
                    map.insert(key, value);
                }
            }
        }
    }
    Ok(())
}

fn known(message: &str) -> &'static [Field] {
    MESSAGES.get(message).map_or(&[], Vec::as_slice)
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
    kind: Type,
    wire: Wire<'_>,
    depth: usize,
    list: &mut Vec<Value>,
) -> Result<(), ProtobufError> {
    if let (Type::Integer, Wire::Bytes(packed)) = (kind, wire) {
        let mut reader = Reader(packed);
        while !reader.0.is_empty() {
            list.push(json!(reader.varint()?.cast_signed()));
        }
    } else {
        list.push(single(field, kind, wire, depth)?);
    }
    Ok(())
}

fn entry(
    field: &str,
    kind: Type,
    wire: Wire<'_>,
    depth: usize,
) -> Result<(String, Value), ProtobufError> {
    let mut key = String::new();
    let mut value = match kind {
        Type::String | Type::Bytes => json!(""),
        _ => Value::Null,
    };
    let mut reader = Reader(wire.bytes(field)?);
    while let Some((number, wire)) = reader.next()? {
        match number {
            1 => wire.text(field)?.clone_into(&mut key),
            2 => value = single(field, kind, wire, depth)?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn single(field: &str, kind: Type, wire: Wire<'_>, depth: usize) -> Result<Value, ProtobufError> {
    Ok(match kind {
        Type::String => json!(wire.text(field)?),
        Type::Bool => json!(wire.integer(field)? != 0),
        Type::Integer => json!(wire.integer(field)?),
        Type::Double => match wire {
            Wire::Fixed64(bits) => json!(f64::from_bits(bits)),
            Wire::Fixed32(bits) => json!(f32::from_bits(bits)),
            other => return Err(other.wrong(field)),
        },
        Type::Bytes => json!(STANDARD.encode(wire.bytes(field)?)),
        Type::Time | Type::MicroTime => time(field, kind, wire)?,
        Type::Quantity => json!(first_text(field, wire)?),
        Type::IntOrString => int_or_string(field, wire)?,
        Type::Raw | Type::FieldSet => {
            let mut raw = &[][..];
            let mut reader = Reader(wire.bytes(field)?);
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    raw = wire.bytes(field)?;
                }
            }
            // What is no JSON shows as a wrong type when the object is checked.
            serde_json::from_slice(raw)
                .unwrap_or_else(|_| String::from_utf8_lossy(raw).into_owned().into())
        }
        Type::Message(name) => {
            let mut object = Map::new();
            message(known(name), wire.bytes(field)?, &mut object, depth)?;
            Value::Object(object)
        }
    })
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

fn time(field: &str, kind: Type, wire: Wire<'_>) -> Result<Value, ProtobufError> {
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
        Ok(time) if kind == Type::MicroTime => json!(rfc3339_micro(time)),
        Ok(time) => json!(rfc3339(time)),
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
mod tests {
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

    #[test]
    fn every_message_that_is_named_is_there() {
        for (message, fields) in MESSAGES.iter() {
            assert!(
                !fields.is_empty() || message.ends_with("Source"),
                "{message} is empty"
            );
            for field in fields {
                if let Type::Message(name) = field.kind {
                    assert!(
                        MESSAGES.contains_key(name),
                        "{message}.{}: {name}",
                        field.name
                    );
                }
            }
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
        assert!(matches!(
            decode(&envelope("v1", "Nothing", b"")),
            Err(ProtobufError::Kind { .. })
        ));
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
