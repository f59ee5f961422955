//! How values are written in cells: ages, labels, shortened lists.
//!
//! Pure; the forms are those of Kubernetes' `duration.HumanDuration` and printers.

use std::fmt::Write as _;

use jiff::Timestamp;
use pintle_kube_types::object::Object;
use serde_json::{Map, Value};

/// What stands for a value that does not exist.
pub(super) const NONE: &str = "<none>";
/// What stands for a value nobody reported.
pub(super) const UNKNOWN: &str = "<unknown>";

/// Time since a moment, in at most two units.
pub(super) fn human_duration(seconds: i64) -> String {
    // A clock that runs a second behind is tolerated.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        two(hours / 24, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{}d", hours / 24)
    } else if hours < 24 * 365 * 8 {
        two(hours / 24 / 365, "y", hours / 24 % 365, "d")
    } else {
        format!("{}y", hours / 24 / 365)
    }
}

/// A `metav1.Time` or `MicroTime`.
pub(super) fn parse_time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// Time since a moment; `<unknown>` for none.
pub(super) fn since(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(
        || UNKNOWN.to_owned(),
        |time| human_duration(now.duration_since(time).as_secs()),
    )
}

/// The Age column.
pub(super) fn age(object: &Object, now: Timestamp) -> Value {
    since(parse_time(object.creation_timestamp()), now).into()
}

/// The Name column.
pub(super) fn name(object: &Object) -> Value {
    object.name().unwrap_or_default().into()
}

/// Text at a path, empty when there is none.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Text of an object at a path, empty when there is none.
pub(super) fn object_text<'a>(object: &'a Object, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A number of an object at a path, 0 when there is none.
pub(super) fn object_number(object: &Object, pointer: &str) -> i64 {
    object
        .pointer(pointer)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// The list of an object at a path, empty when there is none.
pub(super) fn object_list<'a>(object: &'a Object, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The text, or what stands for its absence.
pub(super) fn or<'a>(text: &'a str, absent: &'a str) -> &'a str {
    if text.is_empty() { absent } else { text }
}

/// `a=1,b=2`; `<none>` for an empty map.
pub(super) fn labels(map: Option<&Map<String, Value>>) -> String {
    let mut pairs: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort_unstable();
    or(&pairs.join(","), NONE).to_owned()
}

/// A `metav1.LabelSelector` as a selector's text: requirements in the order of keys.
pub(super) fn label_selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector.filter(|s| !s.is_null()) else {
        return NONE.to_owned();
    };
    let mut requirements: Vec<(String, String)> = Vec::new();
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        for (key, value) in labels {
            let value = value.as_str().unwrap_or_default();
            requirements.push((key.clone(), format!("{key}={value}")));
        }
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for expression in expressions.into_iter().flatten() {
        let key = text(expression, "/key");
        let mut values: Vec<&str> = expression
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        let shown = match text(expression, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        requirements.push((key.to_owned(), shown));
    }
    requirements.sort();
    let shown: Vec<String> = requirements.into_iter().map(|(_, shown)| shown).collect();
    or(&shown.join(","), NONE).to_owned()
}

/// At most three, then how many more; `absent` when there are none.
pub(super) fn first_three(items: &[String], absent: &str) -> String {
    const MAX: usize = 3;
    if items.is_empty() {
        return absent.to_owned();
    }
    let mut shown = items[..items.len().min(MAX)].join(",");
    if items.len() > MAX {
        // Writing to a String cannot fail.
        let _written = write!(shown, " + {} more...", items.len() - MAX).is_ok();
    }
    shown
}

/// Names and images of a pod template's containers.
pub(super) fn containers_and_images(object: &Object) -> (String, String) {
    let containers = object_list(object, "/spec/template/spec/containers");
    let all = |field: &str| {
        containers
            .iter()
            .map(|container| text(container, field))
            .collect::<Vec<_>>()
            .join(",")
    };
    (all("/name"), all("/image"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        let (minute, hour, day) = (60, 3600, 24 * 3600);
        for (seconds, shown) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (10 * minute, "10m"),
            (179 * minute, "179m"),
            (3 * hour, "3h"),
            (3 * hour + minute, "3h1m"),
            (8 * hour + 5 * minute, "8h"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day + hour, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (731 * day, "2y1d"),
            (365 * 8 * day, "8y"),
        ] {
            assert_eq!(human_duration(seconds), shown, "{seconds}");
        }
    }

    #[test]
    fn selectors_are_in_the_order_of_keys() {
        let selector = json!({
            "matchLabels": {"tier": "web", "app": "shop"},
            "matchExpressions": [
                {"key": "env", "operator": "In", "values": ["b", "a"]},
                {"key": "old", "operator": "DoesNotExist"}],
        });
        assert_eq!(
            label_selector(Some(&selector)),
            "app=shop,env in (a,b),!old,tier=web"
        );
        assert_eq!(label_selector(None), NONE);
        assert_eq!(label_selector(Some(&json!({}))), NONE);
    }

    #[test]
    fn long_lists_are_cut() {
        let items: Vec<String> = (1..=5).map(|n| n.to_string()).collect();
        assert_eq!(first_three(&items, NONE), "1,2,3 + 2 more...");
        assert_eq!(first_three(&items[..3], NONE), "1,2,3");
        assert_eq!(first_three(&[], NONE), NONE);
    }
}
