//! Compares a value with its schema, and reports as Kubernetes' decoder would.
//!
//! The words are those of Go's `encoding/json`, of `sigs.k8s.io/json` in strict mode and of the types
//! that decode themselves (quantities, times, int-or-string).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Schema, SchemaReport, Shape, build, keys};
use crate::patch::json_type;
use crate::quantity::Quantity;
use crate::time::parse_time;

/// Compares a value with its schema.
pub(super) fn check(schema: &Schema, value: &Value) -> SchemaReport {
    let mut walker = Walker {
        report: SchemaReport::default(),
        path: String::new(),
        stack: Vec::new(),
        owner: None,
    };
    walker.value(schema, value);
    walker.report
}

struct Walker<'a> {
    report: SchemaReport,
    /// `spec.containers[0].image`: how strict decoding names a field.
    path: String,
    /// `["spec", "containers", "image"]`: how type errors name a field.
    stack: Vec<&'a str>,
    /// The innermost struct and the field of it we are in.
    owner: Option<(&'a Schema, &'a str)>,
}

impl<'a> Walker<'a> {
    fn value(&mut self, schema: &'a Schema, value: &'a Value) {
        if value.is_null() {
            return;
        }
        match (&schema.shape, value) {
            (Shape::Any, _)
            | (Shape::String | Shape::IntOrString, Value::String(_))
            | (Shape::Bool, Value::Bool(_))
            | (Shape::Float, Value::Number(_)) => {}
            (Shape::Struct(fields), Value::Object(map)) => {
                let outer = self.owner;
                for (name, value) in map {
                    let length = self.path.len();
                    if length > 0 {
                        self.path.push('.');
                    }
                    self.path.push_str(name);
                    if let Some(field) = fields.get(name.as_str()) {
                        self.owner = Some((schema, name));
                        self.stack.push(name);
                        self.value(&field.schema, value);
                        self.stack.pop();
                    } else {
                        self.report
                            .unknown
                            .push(format!("unknown field {:?}", self.path));
                    }
                    self.path.truncate(length);
                }
                self.owner = outer;
            }
            (Shape::Map(values), Value::Object(map)) => {
                let owner = self.owner;
                for (name, value) in map {
                    let length = self.path.len();
                    self.path.push('.');
                    self.path.push_str(name);
                    self.value(values, value);
                    self.owner = owner;
                    self.path.truncate(length);
                }
            }
            (Shape::List(items), Value::Array(list)) => {
                let owner = self.owner;
                for (i, value) in list.iter().enumerate() {
                    let length = self.path.len();
                    self.path.push('[');
                    self.path.push_str(&i.to_string());
                    self.path.push(']');
                    self.value(items, value);
                    self.owner = owner;
                    self.path.truncate(length);
                }
            }
            (Shape::Int32, Value::Number(n)) => {
                if n.as_i64().is_none_or(|n| i32::try_from(n).is_err()) {
                    self.mismatch(schema, &format!("number {n}"));
                }
            }
            (Shape::Int64, Value::Number(n)) => {
                if n.as_i64().is_none() {
                    self.mismatch(schema, &format!("number {n}"));
                }
            }
            (Shape::Bytes, Value::String(text)) => {
                if let Some(at) = base64_error(text) {
                    self.report
                        .type_errors
                        .push(format!("illegal base64 data at input byte {at}"));
                }
            }
            (Shape::Quantity, Value::String(_) | Value::Number(_)) => {
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                if let Err(error) = Quantity::parse(text.trim()) {
                    self.report.type_errors.push(error.to_string());
                }
            }
            (Shape::Quantity, other) => {
                if let Err(error) = Quantity::parse(&other.to_string()) {
                    self.report.type_errors.push(error.to_string());
                }
            }
            (Shape::IntOrString, Value::Number(n)) => {
                if n.as_i64().is_none_or(|n| i32::try_from(n).is_err()) {
                    self.report.type_errors.push(format!(
                        "json: cannot unmarshal number {n} into Go value of type int32"
                    ));
                }
            }
            (Shape::IntOrString, other) => {
                self.report.type_errors.push(format!(
                    "json: cannot unmarshal {} into Go value of type int32",
                    json_type(other)
                ));
            }
            (Shape::Time | Shape::MicroTime, Value::String(text)) => {
                if parse_time(text).is_none() {
                    self.report
                        .type_errors
                        .push(time_error(text, schema.shape == Shape::MicroTime));
                }
            }
            (Shape::Time | Shape::MicroTime, other) => {
                self.report.type_errors.push(format!(
                    "json: cannot unmarshal {} into Go value of type string",
                    json_type(other)
                ));
            }
            (_, other) => self.mismatch(schema, json_type(other)),
        }
    }

    fn mismatch(&mut self, schema: &Schema, found: &str) {
        let text = match self.owner {
            Some((owner, field)) => {
                let wanted = named_type(owner, field, schema).unwrap_or_else(|| go_type(schema));
                format!(
                    "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
                    last_segment(&owner.name),
                    self.stack.join("."),
                )
            }
            None => format!(
                "json: cannot unmarshal {found} into Go value of type {}",
                go_type(schema)
            ),
        };
        self.report.type_errors.push(text);
    }
}

fn last_segment(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The named Go type of a field, where what failed is the field itself and not something inside it.
fn named_type(owner: &Schema, field: &str, schema: &Schema) -> Option<String> {
    let name = build::short_name(&owner.name);
    let (_, _, go) = keys::GO_TYPES
        .iter()
        .find(|(t, f, _)| *t == name && *f == field)?;
    let is_list = matches!(schema.shape, Shape::List(_));
    if go.starts_with("[]") && !is_list {
        return Some(go.trim_start_matches("[]").to_owned());
    }
    Some((*go).to_owned())
}

fn go_type(schema: &Schema) -> String {
    match &schema.shape {
        Shape::Struct(_) => {
            let mut segments = schema.name.rsplit('.');
            let kind = segments.next().unwrap_or("");
            let package = segments.next().unwrap_or("v1");
            format!("{package}.{kind}")
        }
        Shape::Map(values) => format!("map[string]{}", go_type(values)),
        Shape::List(items) => format!("[]{}", go_type(items)),
        Shape::String => "string".to_owned(),
        Shape::Bytes => "[]uint8".to_owned(),
        Shape::Time => "v1.Time".to_owned(),
        Shape::MicroTime => "v1.MicroTime".to_owned(),
        Shape::Int32 => "int32".to_owned(),
        Shape::Int64 => "int64".to_owned(),
        Shape::Float => "float64".to_owned(),
        Shape::Bool => "bool".to_owned(),
        Shape::IntOrString => "intstr.IntOrString".to_owned(),
        Shape::Quantity => "resource.Quantity".to_owned(),
        Shape::Any => "interface {}".to_owned(),
    }
}

/// Where base64 goes wrong, as Go counts it.
fn base64_error(text: &str) -> Option<usize> {
    let clean: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match STANDARD.decode(&clean) {
        Ok(_) => None,
        Err(base64::DecodeError::InvalidByte(at, _)) => Some(at),
        Err(base64::DecodeError::InvalidLastSymbol(..)) => Some(clean.len().saturating_sub(4)),
        Err(_) => Some(clean.len() / 4 * 4),
    }
}

fn time_error(text: &str, micro: bool) -> String {
    let layout = if micro {
        "2006-01-02T15:04:05.000000Z07:00"
    } else {
        "2006-01-02T15:04:05Z07:00"
    };
    let digits = |range: std::ops::Range<usize>| {
        text.as_bytes()
            .get(range)
            .is_some_and(|b| b.iter().all(u8::is_ascii_digit))
    };
    let dash = |at: usize| text.as_bytes().get(at) == Some(&b'-');
    // Year, month and day are what people get wrong; the rest is reported as a whole.
    let (at, element) = if !digits(0..4) {
        (0, "2006")
    } else if !dash(4) {
        (4, "-")
    } else if !digits(5..7) {
        (5, "01")
    } else if !dash(7) {
        (7, "-")
    } else if !digits(8..10) {
        (8, "02")
    } else if text.as_bytes().get(10) != Some(&b'T') {
        (10, "T")
    } else {
        (19, "Z07:00")
    };
    let rest = text.get(at..).unwrap_or("");
    format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")
}
