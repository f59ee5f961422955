//! Bodies: their size, their encoding, and what they decode to.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use pintle_kube_types::json;
use pintle_kube_types::status::Status;
use serde_json::Value;

use super::options::PatchKind;
use super::protobuf;

/// Largest body (`MaxRequestBodyBytes` of Kubernetes).
pub const MAX_BYTES: usize = 3 * 1024 * 1024;

/// Bytes of a body that is too large which are read and thrown away, so that its sender comes
/// to read why it was refused.
const DISCARDED_BYTES: usize = 32 * 1024 * 1024;

/// Reads a whole body, or 413.
pub async fn read(mut body: Body) -> Result<Bytes, Status> {
    let mut whole = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| Status::bad_request(format!("reading the request body: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len();
        if length <= MAX_BYTES {
            whole.extend_from_slice(&data);
        } else if length > DISCARDED_BYTES {
            break;
        }
    }
    if length > MAX_BYTES {
        return Err(Status::request_entity_too_large(format!(
            "limit is {MAX_BYTES}"
        )));
    }
    Ok(whole.freeze())
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Kubernetes' protobuf.
    Protobuf,
}

/// The encoding a content type names, or 415.
pub fn encoding(content_type: Option<&str>) -> Result<Encoding, Status> {
    match media_type(content_type).as_str() {
        "" | "application/json" => Ok(Encoding::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        _ => Err(Status::unsupported_media_type(&[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ])),
    }
}

/// The patch format a content type names, or 415.
pub fn patch_kind(content_type: Option<&str>) -> Result<PatchKind, Status> {
    match media_type(content_type).as_str() {
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchKind::Strategic),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        _ => Err(Status::unsupported_media_type(&[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ])),
    }
}

fn media_type(content_type: Option<&str>) -> String {
    content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// Most bytes of a body that a message shows.
const SUMMARY: usize = 30;

/// The beginning of a body, for a message: as text when it looks like JSON, else as hex.
pub fn summary(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "<empty>".to_owned();
    }
    let more = if bytes.len() > SUMMARY { " ..." } else { "" };
    let shown = &bytes[..bytes.len().min(SUMMARY)];
    if shown[0] == b'{' {
        format!("{}{more}", String::from_utf8_lossy(shown))
    } else {
        let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or_default();
        let hex: String = shown
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect();
        format!("{hex}{more}")
    }
}

/// Decodes a body; the second answer names fields given twice.
pub fn decode(bytes: &[u8], encoding: Encoding) -> Result<(Value, Vec<String>), Status> {
    match encoding {
        Encoding::Json => json::parse(bytes).map_err(|error| {
            Status::bad_request(format!(
                "couldn't get version/kind; json parse error: {error}"
            ))
        }),
        Encoding::Protobuf => protobuf::decode(bytes)
            .map(|value| (value, Vec::new()))
            .map_err(|error| Status::bad_request(error.to_string())),
        Encoding::Yaml => {
            // As with JSON: the last one counts, and whether that is an error is for
            // `fieldValidation` to say. A message is one line.
            let options = serde_saphyr::options! {
                duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
                with_snippet: false,
            };
            serde_saphyr::with_deserializer_from_slice_with_options(bytes, options, |yaml| {
                json::read(yaml)
            })
            .map_err(|error| {
                Status::bad_request(format!("error converting YAML to JSON: yaml: {error}"))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_kube_types::status::Reason;

    use super::*;

    #[test]
    fn encodings() {
        assert_eq!(encoding(None), Ok(Encoding::Json));
        assert_eq!(
            encoding(Some("application/yaml; charset=utf-8")),
            Ok(Encoding::Yaml)
        );
        let refused = encoding(Some("application/cbor")).expect_err("415");
        assert_eq!(refused.reason, Reason::UnsupportedMediaType);
    }

    #[test]
    fn malformed_bodies_are_bad_requests() {
        for (bytes, encoding) in [(&b"{"[..], Encoding::Json), (b"a: [", Encoding::Yaml)] {
            let refused = decode(bytes, encoding).expect_err("400");
            assert_eq!(refused.code, 400);
        }
        let (value, _) = decode(b"a: 1\n", Encoding::Yaml).expect("yaml");
        assert_eq!(value, serde_json::json!({"a": 1}));
    }
    #[test]
    fn yaml_tells_of_fields_given_twice() {
        let yaml = b"metadata: {name: a}\ndata: {a: b, a: c, n: ~, i: 1, t: 'y', m: [{x: 1}]}\n";
        let (value, duplicates) = decode(yaml, Encoding::Yaml).expect("decodes");
        assert_eq!(
            value,
            serde_json::json!({
                "metadata": {"name": "a"},
                "data": {"a": "c", "n": null, "i": 1, "t": "y", "m": [{"x": 1}]},
            })
        );
        assert_eq!(duplicates, [r#"duplicate field "data.a""#]);
        let refused = decode(b"kind: [a\n b", Encoding::Yaml).expect_err("400");
        assert!(!refused.message.contains('\n'), "{}", refused.message);
    }
}
