//! JSON as the API reads it: like `serde_json`, but it tells of fields given twice.
//!
//! Pure; the API's decoder calls it with a request body.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses JSON; of a field given twice the last value counts, and the second answer names it
/// (`duplicate field "spec.replicas"`).
pub fn parse(bytes: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut state = State::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Seed(&mut state).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, state.duplicates))
}

/// Reads the same from another format's deserializer.
pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Value, Vec<String>), D::Error> {
    let mut state = State::default();
    let value = Seed(&mut state).deserialize(deserializer)?;
    Ok((value, state.duplicates))
}

/// Adds `[3]` to a path.
fn push_index(path: &mut String, index: usize) {
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
}

#[derive(Default)]
struct State {
    path: String,
    duplicates: Vec<String>,
}

struct Seed<'a>(&'a mut State);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let length = self.0.path.len();
        loop {
            push_index(&mut self.0.path, list.len());
            let next = seq.next_element_seed(Seed(self.0));
            self.0.path.truncate(length);
            match next? {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.0.path.len();
        while let Some(name) = access.next_key::<String>()? {
            if length > 0 {
                self.0.path.push('.');
            }
            self.0.path.push_str(&name);
            if map.contains_key(&name) {
                let text = format!("duplicate field {:?}", self.0.path);
                if !self.0.duplicates.contains(&text) {
                    self.0.duplicates.push(text);
                }
            }
            let value = access.next_value_seed(Seed(self.0));
            self.0.path.truncate(length);
            map.insert(name, value?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_duplicates() {
        let (value, duplicates) =
            parse(br#"{"spec":{"a":[{"x":1,"x":2}],"b":1.5},"spec2":null}"#).expect("parses");
        assert_eq!(
            value,
            json!({"spec": {"a": [{"x": 2}], "b": 1.5}, "spec2": null})
        );
        assert_eq!(duplicates, [r#"duplicate field "spec.a[0].x""#]);
    }

    #[test]
    fn refuses_trailing_text() {
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"{").is_err());
    }
}
