//! Brings a value into the form Kubernetes' decoding and encoding gives it.
//!
//! So that what is stored does not depend on how a client wrote it, and applying the same manifest
//! twice changes nothing.

use serde_json::Value;

use super::{Schema, Shape};
use crate::quantity::Quantity;
use crate::time::{format_micro_time, format_time, parse_time};

/// Drops unknown fields and nulls.
pub(super) fn prune(schema: &Schema, value: &mut Value) {
    match (&schema.shape, value) {
        (Shape::Struct(fields), Value::Object(map)) => {
            map.retain(|name, value| !value.is_null() && fields.contains_key(name.as_str()));
            for (name, value) in map.iter_mut() {
                if let Some(field) = fields.get(name.as_str()) {
                    prune(&field.schema, value);
                }
            }
        }
        (Shape::Map(values), Value::Object(map)) => {
            for value in map.values_mut() {
                prune(values, value);
            }
        }
        (Shape::List(items), Value::Array(list)) => {
            for value in list {
                prune(items, value);
            }
        }
        _ => {}
    }
}

/// Drops unknown fields, nulls and empty optional lists and maps; writes quantities and times in
/// canonical form. Values of the wrong type stay as they are.
pub(super) fn normalise(schema: &Schema, value: &mut Value) {
    match (&schema.shape, &mut *value) {
        (Shape::Struct(fields), Value::Object(map)) => {
            map.retain(|name, value| {
                let Some(field) = fields.get(name.as_str()) else {
                    return false;
                };
                if value.is_null() {
                    return false;
                }
                field.required || !is_empty(&field.schema, value)
            });
            for (name, value) in map.iter_mut() {
                if let Some(field) = fields.get(name.as_str()) {
                    normalise(&field.schema, value);
                }
            }
        }
        (Shape::Map(values), Value::Object(map)) => {
            for value in map.values_mut() {
                if value.is_null() {
                    *value = zero(values);
                } else {
                    normalise(values, value);
                }
            }
        }
        (Shape::List(items), Value::Array(list)) => {
            for value in list {
                if value.is_null() {
                    *value = zero(items);
                } else {
                    normalise(items, value);
                }
            }
        }
        (Shape::Quantity, Value::String(text)) => {
            if let Ok(quantity) = Quantity::parse(text.trim()) {
                let canonical = quantity.to_string();
                if canonical != *text {
                    *text = canonical;
                }
            }
        }
        (Shape::Quantity, Value::Number(number)) => {
            if let Ok(quantity) = Quantity::parse(&number.to_string()) {
                *value = Value::from(quantity.to_string());
            }
        }
        (Shape::Time, Value::String(text)) => {
            if let Some(time) = parse_time(text) {
                *text = format_time(time);
            }
        }
        (Shape::MicroTime, Value::String(text)) => {
            if let Some(time) = parse_time(text) {
                *text = format_micro_time(time);
            }
        }
        _ => {}
    }
}

/// Empty in the sense of Go's `omitempty` for lists and maps; structs are pointers and stay.
fn is_empty(schema: &Schema, value: &Value) -> bool {
    match (&schema.shape, value) {
        (Shape::Map(_), Value::Object(map)) => map.is_empty(),
        (Shape::List(_), Value::Array(list)) => list.is_empty(),
        _ => false,
    }
}

/// What Go makes of a null inside a list or a map.
fn zero(schema: &Schema) -> Value {
    match schema.shape {
        Shape::Struct(_) | Shape::Map(_) => Value::Object(serde_json::Map::new()),
        Shape::String | Shape::Bytes => Value::from(""),
        Shape::Int32 | Shape::Int64 | Shape::Float | Shape::IntOrString => Value::from(0),
        Shape::Bool => Value::from(false),
        Shape::Quantity => Value::from("0"),
        Shape::List(_) | Shape::Time | Shape::MicroTime | Shape::Any => Value::Null,
    }
}
