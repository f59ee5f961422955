//! The form of an answer, from the `Accept` header.

use ::http::HeaderMap;
use ::http::header::ACCEPT;
use pintle_kube_types::status::Status;

/// A form the API can answer in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// The object or list itself, as JSON.
    #[default]
    Object,
    /// `as=Table;g=meta.k8s.io;v=v1`.
    Table,
    /// `as=PartialObjectMetadata` or `as=PartialObjectMetadataList`.
    PartialMetadata,
    /// The object or list, as YAML.
    Yaml,
}

/// Media types of plain answers, for the message of a 406.
const MEDIA_TYPES: [&str; 2] = ["application/json", "application/yaml"];

/// The first acceptable form, in the order of preference.
pub fn negotiate(headers: &HeaderMap) -> Result<Form, Status> {
    let mut wanted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(Clause::parse)
        .collect::<Vec<_>>();
    if wanted.is_empty() {
        return Ok(Form::Object);
    }
    // Stable: equal preference keeps the client's order.
    wanted.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    wanted
        .iter()
        .find_map(Clause::form)
        .ok_or_else(|| Status::not_acceptable(&MEDIA_TYPES))
}

struct Clause {
    media_type: String,
    parameters: Vec<(String, String)>,
    quality: f32,
}

impl Clause {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut quality = 1.0;
        let mut parameters = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if name == "q" {
                quality = value.parse().unwrap_or(1.0);
            } else {
                parameters.push((name.to_owned(), value.to_owned()));
            }
        }
        Self {
            media_type,
            parameters,
            quality,
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    fn form(&self) -> Option<Form> {
        let json = match self.media_type.as_str() {
            "application/json" | "*/*" | "application/*" => true,
            "application/yaml" => false,
            _ => return None,
        };
        let meta = self.parameter("g") == Some("meta.k8s.io") && self.parameter("v") == Some("v1");
        match self.parameter("as") {
            None if json => Some(Form::Object),
            None => Some(Form::Yaml),
            Some("Table") if json && meta => Some(Form::Table),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if json && meta => {
                Some(Form::PartialMetadata)
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().expect("a header value"));
        negotiate(&headers).ok()
    }

    #[test]
    fn forms() {
        for (accept, expected) in [
            ("application/json", Some(Form::Object)),
            ("*/*", Some(Form::Object)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Some(Form::Table),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
                Some(Form::PartialMetadata),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some(Form::Object),
            ),
            ("application/json;q=0.5,application/yaml", Some(Form::Yaml)),
            ("application/vnd.kubernetes.protobuf", None),
        ] {
            assert_eq!(form(accept), expected, "{accept}");
        }
    }
}
