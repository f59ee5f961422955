//! Names: what Kubernetes allows as a name, label, annotation key or port name, and what it says
//! where something else was given.
//!
//! Pure; used by validation, selectors and everything that makes names.

/// Longest DNS-1123 label.
pub const DNS1123_LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain.
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;
/// Longest prefix of a generated name that is kept.
pub const MAX_GENERATED_PREFIX: usize = 58;

const LABEL_MESSAGE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035_MESSAGE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_MESSAGE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const QUALIFIED_SHAPE: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE_MESSAGE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY_MESSAGE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV_MESSAGE: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";

fn max_len(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn is_label(text: &[u8]) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match (text.first(), text.last()) {
        (Some(&first), Some(&last)) => {
            edge(first) && edge(last) && text.iter().all(|&b| edge(b) || b == b'-')
        }
        _ => false,
    }
}

fn is_qualified_part(text: &[u8]) -> bool {
    match (text.first(), text.last()) {
        (Some(first), Some(last)) => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && text
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        }
        _ => false,
    }
}

/// What is wrong with a DNS-1123 label (Namespaces, containers, …).
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_LABEL_MAX {
        errors.push(max_len(DNS1123_LABEL_MAX));
    }
    if !is_label(text.as_bytes()) {
        if is_subdomain(text) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(LABEL_MESSAGE.to_owned());
        }
    }
    errors
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(|part| is_label(part.as_bytes()))
}

/// What is wrong with a DNS-1123 subdomain (most names).
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX {
        errors.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    if !is_subdomain(text) {
        errors.push(SUBDOMAIN_MESSAGE.to_owned());
    }
    errors
}

/// What is wrong with a DNS-1035 label (formerly Services).
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_LABEL_MAX {
        errors.push(max_len(DNS1123_LABEL_MAX));
    }
    let letter = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if !letter || !is_label(text.as_bytes()) {
        errors.push(LABEL_1035_MESSAGE.to_owned());
    }
    errors
}

/// What is wrong with a qualified name: label and annotation keys, finalizers, resources.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = text.split('/');
    let (first, second) = (parts.next().unwrap_or(""), parts.next());
    if parts.next().is_some() {
        return vec![QUALIFIED_SHAPE.to_owned()];
    }
    let name = match second {
        None => first,
        Some(name) => {
            if first.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    dns1123_subdomain(first)
                        .into_iter()
                        .map(|e| format!("prefix part {e}")),
                );
            }
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_len(63)));
    }
    if !is_qualified_part(name.as_bytes()) {
        errors.push(QUALIFIED_MESSAGE.to_owned());
    }
    errors
}

/// What is wrong with a label value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(max_len(63));
    }
    if !text.is_empty() && !is_qualified_part(text.as_bytes()) {
        errors.push(LABEL_VALUE_MESSAGE.to_owned());
    }
    errors
}

/// What is wrong with a port name (IANA_SVC_NAME).
pub fn port_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push("must be no more than 15 characters".to_owned());
    }
    if !text
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        || text.is_empty()
    {
        errors.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// What is wrong with a port number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".to_owned()]
    }
}

/// What is wrong with a key of a ConfigMap or Secret.
pub fn config_map_key(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS1123_SUBDOMAIN_MAX {
        errors.push(max_len(DNS1123_SUBDOMAIN_MAX));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(allowed) {
        errors.push(CONFIG_KEY_MESSAGE.to_owned());
    }
    match text {
        "." => errors.push("must not be '.'".to_owned()),
        ".." => errors.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// What is wrong with the name of an environment variable (relaxed, as since v1.34).
pub fn env_var_name(text: &str) -> Vec<String> {
    if text.is_empty() || !text.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        return vec![ENV_MESSAGE.to_owned()];
    }
    Vec::new()
}

/// What is wrong with a name as a part of a URL path.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ['/', '%']
        .into_iter()
        .filter(|c| text.contains(*c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// A name from `generateName`: the prefix, cut to leave room, and the suffix.
pub fn generate_name(prefix: &str, suffix: &str) -> String {
    let mut end = prefix.len().min(MAX_GENERATED_PREFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &prefix[..end])
}

/// For a generated name: a trailing dash is allowed, since a suffix follows.
pub fn mask_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        for good in ["a", "a-b", "0", "web-api"] {
            assert!(dns1123_label(good).is_empty(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", &"a".repeat(64)] {
            assert!(!dns1123_label(bad).is_empty(), "{bad}");
        }
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert!(dns1123_subdomain("a.b-c.d").is_empty());
        assert_eq!(dns1123_subdomain("Web"), [SUBDOMAIN_MESSAGE]);
        assert_eq!(dns1035_label("1a"), [LABEL_1035_MESSAGE]);
    }

    #[test]
    fn qualified_names() {
        for good in [
            "app",
            "app.kubernetes.io/name",
            "A_b.c",
            "node-role.kubernetes.io/x",
        ] {
            assert!(qualified_name(good).is_empty(), "{good}");
        }
        assert_eq!(qualified_name("a/b/c"), [QUALIFIED_SHAPE]);
        assert_eq!(
            qualified_name("/a"),
            ["prefix part must be non-empty".to_owned()]
        );
        assert_eq!(
            qualified_name("a/"),
            ["name part must be non-empty", QUALIFIED_MESSAGE]
        );
        assert!(label_value("").is_empty());
        assert_eq!(label_value("a b"), [LABEL_VALUE_MESSAGE]);
    }

    #[test]
    fn ports_keys_and_generated_names() {
        assert!(port_name("http-2").is_empty());
        assert!(!port_name("1").is_empty());
        assert!(!port_name("a--b").is_empty());
        assert!(port_number(80).is_empty());
        assert!(!port_number(65536).is_empty());
        assert!(config_map_key("a.b_C-1").is_empty());
        assert_eq!(config_map_key("..a"), ["must not start with '..'"]);
        assert_eq!(generate_name(&"x".repeat(70), "abcde").len(), 63);
        assert_eq!(mask_trailing_dash("web-"), "weba");
    }
}
