//! Label selectors over typed objects: which pods or replica sets a controller's selector means.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// Whether `labels` satisfy `selector`. An empty selector matches everything; an operator that is
/// not known matches nothing.
pub(crate) fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, expected)| value(key) == Some(expected));
    equal
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| {
                let found = value(&requirement.key);
                let listed = |wanted: &String| {
                    requirement
                        .values
                        .iter()
                        .flatten()
                        .any(|value| value == wanted)
                };
                match requirement.operator.as_str() {
                    "In" => found.is_some_and(listed),
                    "NotIn" => !found.is_some_and(listed),
                    "Exists" => found.is_some(),
                    "DoesNotExist" => found.is_none(),
                    _ => false,
                }
            })
}

/// Whether a selector has no requirement at all.
pub(crate) fn is_empty(selector: &LabelSelector) -> bool {
    selector
        .match_labels
        .as_ref()
        .is_none_or(BTreeMap::is_empty)
        && selector
            .match_expressions
            .as_ref()
            .is_none_or(Vec::is_empty)
}

/// Whether `labels` hold every pair of a service-style selector.
pub(crate) fn contains_all(selector: &Labels, labels: Option<&Labels>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
        LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
            }]),
            match_labels: None,
        }
    }

    #[test]
    fn operators() {
        let pod = labels(&[("app", "web"), ("tier", "front")]);
        let pod = Some(&pod);
        assert!(matches(&LabelSelector::default(), pod));
        assert!(matches(&expression("app", "In", &["web", "api"]), pod));
        assert!(!matches(&expression("app", "NotIn", &["web"]), pod));
        assert!(matches(&expression("zone", "NotIn", &["web"]), pod));
        assert!(matches(&expression("tier", "Exists", &[]), pod));
        assert!(matches(&expression("zone", "DoesNotExist", &[]), pod));
        assert!(!matches(&expression("zone", "Exists", &[]), None));
        assert!(!matches(&expression("app", "Like", &["web"]), pod));
    }

    #[test]
    fn service_selectors() {
        let pod = labels(&[("app", "web"), ("tier", "front")]);
        assert!(contains_all(&labels(&[("app", "web")]), Some(&pod)));
        assert!(!contains_all(&labels(&[("app", "api")]), Some(&pod)));
        assert!(!contains_all(&labels(&[("app", "web")]), None));
    }
}
