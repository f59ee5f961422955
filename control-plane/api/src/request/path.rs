//! Paths and query strings of resource requests.
//!
//! ```text
//! /api/v1/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE[/…]]]
//! /apis/GROUP/VERSION/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE[/…]]]
//! /api/v1/watch/… and /apis/GROUP/VERSION/watch/…: the same, watching (from before ?watch=1)
//! ```

use pintle_kube_types::status::Status;

/// The parts of a resource's path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourcePath {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Whether the path begins with the old `watch` prefix.
    pub watch: bool,
    /// Namespace.
    pub namespace: Option<String>,
    /// Plural name of the resource.
    pub resource: String,
    /// Name of the object.
    pub name: Option<String>,
    /// Subresource.
    pub subresource: Option<String>,
}

impl ResourcePath {
    /// Parses a path; `None` when it names no resource.
    pub fn parse(path: &str) -> Option<Self> {
        let mut segments = path
            .trim_matches('/')
            .split('/')
            .map(percent_decode)
            .collect::<Vec<_>>()
            .into_iter()
            .peekable();
        let mut found = Self::default();
        match segments.next()?.as_str() {
            "api" => {}
            "apis" => found.group = segments.next()?,
            _ => return None,
        }
        found.version = segments.next()?;
        if segments.peek().is_some_and(|segment| segment == "watch") {
            found.watch = true;
            segments.next();
        }
        let mut rest: Vec<String> = segments.collect();
        if rest.iter().any(String::is_empty) {
            return None;
        }
        // `namespaces/x/pods` is namespaced; `namespaces/x/status` is about the namespace.
        let scoped = rest.len() >= 3
            && rest[0] == "namespaces"
            && !matches!(rest[2].as_str(), "status" | "finalize");
        if scoped {
            rest.remove(0);
            found.namespace = Some(rest.remove(0));
        }
        let mut rest = rest.into_iter();
        found.resource = rest.next()?;
        found.name = rest.next();
        found.subresource = rest.next();
        if rest.next().is_some() {
            // Only proxies take more, and there are none.
            return None;
        }
        Some(found)
    }
}

/// A decoded query string.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the part of a URI after `?`.
    pub fn parse(text: &str) -> Self {
        Self(
            text.split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    let decode = |text: &str| percent_decode(&text.replace('+', " "));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Every value of a parameter.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// A boolean, as Kubernetes reads them: anything but `false` and `0` is true.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Status> {
        Ok(self
            .get(name)
            .map(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0")))
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Status::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax"
                ))),
            },
        }
    }
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    if !bytes.contains(&b'%') {
        return text.to_owned();
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = (bytes[index] == b'%')
            .then(|| bytes.get(index + 1..index + 3))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = escaped {
            out.push(byte);
            index += 3;
        } else {
            out.push(bytes[index]);
            index += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(path: &str) -> String {
        match ResourcePath::parse(path) {
            None => "-".to_owned(),
            Some(found) => format!(
                "{}|{}|{}|{}|{}|{}{}",
                found.group,
                found.version,
                found.namespace.unwrap_or_default(),
                found.resource,
                found.name.unwrap_or_default(),
                found.subresource.unwrap_or_default(),
                if found.watch { "|watch" } else { "" },
            ),
        }
    }

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/api/v1/pods", "|v1||pods||"),
            ("/api/v1/nodes/n1/status", "|v1||nodes|n1|status"),
            ("/api/v1/namespaces", "|v1||namespaces||"),
            ("/api/v1/namespaces/x", "|v1||namespaces|x|"),
            (
                "/api/v1/namespaces/x/finalize",
                "|v1||namespaces|x|finalize",
            ),
            ("/api/v1/namespaces/x/pods/p/log", "|v1|x|pods|p|log"),
            (
                "/apis/apps/v1/namespaces/x/deployments/d/scale",
                "apps|v1|x|deployments|d|scale",
            ),
            (
                "/apis/apps/v1/watch/namespaces/x/deployments/d",
                "apps|v1|x|deployments|d||watch",
            ),
            ("/api/v1/namespaces/x/pods/a%20b", "|v1|x|pods|a b|"),
            ("/api/v1", "-"),
            ("/apis/apps", "-"),
            ("/healthz", "-"),
            ("/api/v1//pods", "-"),
            ("/api/v1/namespaces/x/services/s/proxy/a", "-"),
        ] {
            assert_eq!(parsed(path), expected, "{path}");
        }
    }

    #[test]
    fn queries() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch=true&limit=5&x=1+2&dryRun=All");
        assert_eq!(query.get("labelSelector"), Some("a=b,c"));
        assert_eq!(query.flag("watch"), Ok(Some(true)));
        assert_eq!(query.number("limit"), Ok(Some(5)));
        assert_eq!(query.get("x"), Some("1 2"));
        assert!(Query::parse("limit=x").number("limit").is_err());
    }

    proptest! {
        #[test]
        fn no_path_or_query_panics(text in "\\PC*") {
            let _path = ResourcePath::parse(&text);
            let query = Query::parse(&text);
            let _value = query.get("a");
        }
    }
}
