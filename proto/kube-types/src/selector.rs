//! Label and field selectors: parsing, and matching against labels and fields.
//!
//! Pure. The API filters lists and watches with them, controllers find their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use crate::names;

/// A selector that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text is not of a selector's shape.
    #[error("unable to parse requirement: found '{found}', expected: {expected}")]
    Syntax {
        /// What stands there.
        found: String,
        /// What might.
        expected: &'static str,
    },
    /// A key that is no label key.
    #[error("unable to parse requirement: <nil>: Invalid value: {key:?}: {why}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value that is no label value.
    #[error("unable to parse requirement: values[0][{key}]: Invalid value: {value:?}: {why}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// `>` and `<` want one integer.
    #[error(
        "unable to parse requirement: values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
    )]
    NotAnInteger {
        /// The value.
        value: String,
    },
    /// An operator of a typed selector that does not exist.
    #[error("{operator:?} is not a valid label selector operator")]
    Operator {
        /// The operator.
        operator: String,
    },
    /// A typed selector whose values do not fit the operator.
    #[error("{key}: values do not fit operator {operator}")]
    Values {
        /// The key.
        key: String,
        /// The operator.
        operator: String,
    },
    /// A term of a field selector without an operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    FieldTerm {
        /// The whole selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// A broken escape in a field selector.
    #[error("invalid field selector: invalid escape sequence: {sequence}")]
    FieldEscape {
        /// The sequence.
        sequence: String,
    },
}

/// How a requirement compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// One of these values.
    In(BTreeSet<String>),
    /// None of these values, or no such key.
    NotIn(BTreeSet<String>),
    /// Any value.
    Exists,
    /// No such key.
    DoesNotExist,
    /// An integer greater than this.
    GreaterThan(i64),
    /// An integer less than this.
    LessThan(i64),
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// What it must be.
    pub operator: Operator,
}

impl Requirement {
    /// Whether a value (or its absence) meets the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|v| values.contains(v)),
            Operator::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number().is_some_and(|n| n > *bound),
            Operator::LessThan(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

/// A label selector: all requirements must be met; none means everything.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects nothing.
    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    /// Selects what has all of these labels; an empty set selects everything.
    pub fn from_set<K: Into<String>, V: Into<String>>(
        set: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut requirements: Vec<Requirement> = set
            .into_iter()
            .map(|(k, v)| Requirement {
                key: k.into(),
                operator: Operator::In(BTreeSet::from([v.into()])),
            })
            .collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self {
            requirements,
            nothing: false,
        }
    }

    /// From the selector of an object: absent selects nothing, empty everything.
    pub fn from_typed(selector: Option<&meta::LabelSelector>) -> Result<Self, SelectorError> {
        let Some(selector) = selector else {
            return Ok(Self::nothing());
        };
        let mut result = Self::from_set(selector.match_labels.clone().unwrap_or_default());
        for expression in selector.match_expressions.iter().flatten() {
            let values: BTreeSet<String> = expression.values.iter().flatten().cloned().collect();
            let fits = match expression.operator.as_str() {
                "In" | "NotIn" => !values.is_empty(),
                _ => values.is_empty(),
            };
            let operator = match expression.operator.as_str() {
                "In" => Operator::In(values),
                "NotIn" => Operator::NotIn(values),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError::Operator {
                        operator: other.to_owned(),
                    });
                }
            };
            if !fits {
                return Err(SelectorError::Values {
                    key: expression.key.clone(),
                    operator: expression.operator.clone(),
                });
            }
            result.requirements.push(Requirement {
                key: expression.key.clone(),
                operator,
            });
        }
        result.requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(result)
    }

    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser {
            tokens: lex(text),
            next: 0,
        };
        let mut requirements = parser.selector()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self {
            requirements,
            nothing: false,
        })
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// True where everything is selected.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Whether labels, looked up by `get`, are selected.
    pub fn matches_by<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(get(&r.key)))
    }

    /// Whether labels are selected.
    pub fn matches(&self, labels: &BTreeMap<&str, &str>) -> bool {
        self.matches_by(|key| labels.get(key).copied())
    }

    /// Whether the labels of a typed object are selected.
    pub fn matches_labels(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.matches_by(|key| labels?.get(key).map(String::as_str))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let key = &requirement.key;
            let set =
                |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
            match &requirement.operator {
                Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", set(values))?,
                Operator::In(values) => write!(f, "{key} in ({})", set(values))?,
                Operator::NotIn(values) if values.len() == 1 => {
                    write!(f, "{key}!={}", set(values))?;
                }
                Operator::NotIn(values) => write!(f, "{key} notin ({})", set(values))?,
                Operator::Exists => f.write_str(key)?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
                Operator::GreaterThan(bound) => write!(f, "{key}>{bound}")?,
                Operator::LessThan(bound) => write!(f, "{key}<{bound}")?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'a str),
    End,
}

fn lex(text: &str) -> Vec<Token<'_>> {
    const SYMBOLS: &[char] = &['=', '!', '(', ')', ',', '>', '<'];
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let symbol = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"]
            .into_iter()
            .find(|s| rest.starts_with(s));
        if let Some(symbol) = symbol {
            tokens.push(Token::Symbol(&rest[..symbol.len()]));
            rest = &rest[symbol.len()..];
        } else {
            let end = rest
                .find(|c: char| c.is_ascii_whitespace() || SYMBOLS.contains(&c))
                .unwrap_or(rest.len());
            // At least one character, so that other white space cannot stop us.
            let end = end.max(rest.chars().next().map_or(1, char::len_utf8));
            tokens.push(Token::Word(&rest[..end]));
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    tokens.push(Token::End);
    tokens
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.next).copied().unwrap_or(Token::End)
    }

    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn unexpected<T>(token: Token<'_>, expected: &'static str) -> Result<T, SelectorError> {
        let found = match token {
            Token::Word(text) | Token::Symbol(text) => text.to_owned(),
            Token::End => String::new(),
        };
        Err(SelectorError::Syntax { found, expected })
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        if self.peek() == Token::End {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.take() {
                Token::End => return Ok(requirements),
                Token::Symbol(",") => {
                    if !matches!(self.peek(), Token::Word(_) | Token::Symbol("!")) {
                        return Self::unexpected(self.peek(), "identifier after ','");
                    }
                }
                other => return Self::unexpected(other, "',' or 'end of string'"),
            }
        }
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        let Token::Word(key) = self.peek() else {
            return Self::unexpected(self.peek(), "identifier");
        };
        self.next += 1;
        let errors = names::qualified_name(key);
        if errors.is_empty() {
            Ok(key.to_owned())
        } else {
            Err(SelectorError::Key {
                key: key.to_owned(),
                why: errors.join("; "),
            })
        }
    }

    fn checked(key: &str, value: &str) -> Result<String, SelectorError> {
        let errors = names::label_value(value);
        if errors.is_empty() {
            Ok(value.to_owned())
        } else {
            Err(SelectorError::Value {
                key: key.to_owned(),
                value: value.to_owned(),
                why: errors.join("; "),
            })
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        if self.peek() == Token::Symbol("!") {
            self.next += 1;
            return Ok(Requirement {
                key: self.key()?,
                operator: Operator::DoesNotExist,
            });
        }
        let key = self.key()?;
        let operator = match self.peek() {
            Token::End | Token::Symbol(",") => Operator::Exists,
            Token::Symbol("=" | "==") => {
                self.next += 1;
                Operator::In(BTreeSet::from([self.exact(&key)?]))
            }
            Token::Symbol("!=") => {
                self.next += 1;
                Operator::NotIn(BTreeSet::from([self.exact(&key)?]))
            }
            Token::Symbol(symbol @ (">" | "<")) => {
                self.next += 1;
                let value = self.exact(&key)?;
                let Ok(bound) = value.parse::<i64>() else {
                    return Err(SelectorError::NotAnInteger { value });
                };
                if symbol == ">" {
                    Operator::GreaterThan(bound)
                } else {
                    Operator::LessThan(bound)
                }
            }
            Token::Word("in") => {
                self.next += 1;
                Operator::In(self.values(&key)?)
            }
            Token::Word("notin") => {
                self.next += 1;
                Operator::NotIn(self.values(&key)?)
            }
            other => {
                return Self::unexpected(other, "in, notin, =, ==, !=, gt, lt");
            }
        };
        Ok(Requirement { key, operator })
    }

    fn exact(&mut self, key: &str) -> Result<String, SelectorError> {
        match self.peek() {
            // `a=` selects the empty value.
            Token::End | Token::Symbol(",") => Ok(String::new()),
            Token::Word(value) => {
                self.next += 1;
                Self::checked(key, value)
            }
            other @ Token::Symbol(_) => Self::unexpected(other, "identifier"),
        }
    }

    fn values(&mut self, key: &str) -> Result<BTreeSet<String>, SelectorError> {
        match self.take() {
            Token::Symbol("(") => {}
            other => return Self::unexpected(other, "'('"),
        }
        let mut values = BTreeSet::new();
        loop {
            match self.take() {
                Token::Word(value) => {
                    values.insert(Self::checked(key, value)?);
                    match self.take() {
                        Token::Symbol(",") => {
                            if self.peek() == Token::Symbol(")") {
                                values.insert(String::new());
                            }
                        }
                        Token::Symbol(")") => return Ok(values),
                        other => return Self::unexpected(other, "',' or ')'"),
                    }
                }
                Token::Symbol(",") => {
                    values.insert(String::new());
                }
                Token::Symbol(")") => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    return Ok(values);
                }
                other => return Self::unexpected(other, "',', ')' or identifier"),
            }
        }
    }
}

/// One term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// The field such as `metadata.name`.
    pub field: String,
    /// The value.
    pub value: String,
    /// True for `=`, false for `!=`.
    pub equal: bool,
}

/// A field selector: all terms must be met; none means everything.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FieldSelector {
    /// The terms.
    pub terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Parses `metadata.name=web,status.phase!=Running`, with `\\`, `\,` and `\=` as escapes.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let (field, value, equal) =
                split_term(term).ok_or_else(|| SelectorError::FieldTerm {
                    selector: text.to_owned(),
                    term: term.to_owned(),
                })?;
            terms.push(FieldTerm {
                field: field.to_owned(),
                value: unescape(value)?,
                equal,
            });
        }
        Ok(Self { terms })
    }

    /// True where everything is selected.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value a field must have, where the selector wants exactly one.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|t| t.equal && t.field == field)
            .map(|t| t.value.as_str())
    }

    /// Whether fields, looked up by `get` (absent is empty), are selected.
    pub fn matches_by<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms
            .iter()
            .all(|t| (get(&t.field).unwrap_or("") == t.value) == t.equal)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let value = term
                .value
                .replace('\\', "\\\\")
                .replace(',', "\\,")
                .replace('=', "\\=");
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{}{operator}{value}", term.field)?;
        }
        Ok(())
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, byte) in text.bytes().enumerate() {
        if escaped {
            escaped = false;
        } else if byte == b'\\' {
            escaped = true;
        } else if byte == b',' {
            parts.push(&text[start..i]);
            start = i + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_term(term: &str) -> Option<(&str, &str, bool)> {
    term.bytes().enumerate().find_map(|(i, _)| {
        let rest = term.get(i..)?;
        [("!=", false), ("==", true), ("=", true)]
            .into_iter()
            .find(|(operator, _)| rest.starts_with(operator))
            .map(|(operator, equal)| (&term[..i], &rest[operator.len()..], equal))
    })
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut result = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => result.push(next),
                other => {
                    return Err(SelectorError::FieldEscape {
                        sequence: format!("\\{}", other.map(String::from).unwrap_or_default()),
                    });
                }
            },
            '=' | ',' => {
                return Err(SelectorError::FieldEscape {
                    sequence: c.to_string(),
                });
            }
            other => result.push(other),
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        LabelSelector::parse(selector)
            .expect(selector)
            .matches(&labels.iter().copied().collect())
    }

    #[test]
    fn selects_by_equality_and_set() {
        let labels = [("app", "web"), ("tier", ""), ("n", "5")];
        for good in [
            "",
            "app=web",
            "app==web",
            "app!=db",
            "app in (web, db)",
            "app notin (db)",
            "app",
            "!other",
            "tier=",
            "tier in ()",
            "n>4,n<6",
            "other!=x",
            " app = web , n ",
            "x notin (a,b)",
        ] {
            assert!(selects(good, &labels), "{good}");
        }
        for bad in [
            "app=db",
            "other",
            "!app",
            "app in (db)",
            "n>5",
            "app>1",
            "other=x",
        ] {
            assert!(!selects(bad, &labels), "{bad}");
        }
    }

    #[test]
    fn refuses_nonsense() {
        for bad in [
            "app=web,", ",a", "a in b", "a in (b", "a b", "=a", "a=b=c", "a/b/c=d", "a>b", "a=b c",
        ] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn typed_selectors() {
        assert!(
            !LabelSelector::from_typed(None)
                .expect("valid")
                .matches(&BTreeMap::new())
        );
        assert!(
            LabelSelector::from_typed(Some(&meta::LabelSelector::default()))
                .expect("valid")
                .is_everything()
        );
        let typed = meta::LabelSelector {
            match_labels: Some(BTreeMap::from([("a".to_owned(), "b".to_owned())])),
            match_expressions: Some(vec![meta::LabelSelectorRequirement {
                key: "c".to_owned(),
                operator: "DoesNotExist".to_owned(),
                values: None,
            }]),
        };
        let selector = LabelSelector::from_typed(Some(&typed)).expect("valid");
        assert_eq!(selector.to_string(), "a=b,!c");
        assert!(selector.matches(&BTreeMap::from([("a", "b")])));
    }

    #[test]
    fn field_selectors() {
        let selector =
            FieldSelector::parse(r"metadata.name=we\,b,status.phase!=Running").expect("valid");
        assert_eq!(selector.required("metadata.name"), Some("we,b"));
        assert!(selector.matches_by(|f| (f == "metadata.name").then_some("we,b")));
        assert!(!selector.matches_by(|f| (f != "metadata.name").then_some("Running")));
        assert_eq!(
            FieldSelector::parse("nonsense")
                .expect_err("no operator")
                .to_string(),
            "invalid selector: 'nonsense'; can't understand 'nonsense'"
        );
        assert!(FieldSelector::parse(r"a=b\c").is_err());
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(
            set in proptest::collection::btree_map("[a-z]{1,8}", "[a-z0-9]{0,8}", 0..4),
            other in "[a-z]{1,8}",
        ) {
            let selector = LabelSelector::from_set(set.clone());
            let again = LabelSelector::parse(&selector.to_string()).expect("parses");
            prop_assert_eq!(&again, &selector);
            prop_assert!(selector.matches_labels(Some(&set)));
            let negative = LabelSelector::parse(&format!("!{other}")).expect("parses");
            prop_assert_eq!(negative.matches_labels(Some(&set)), !set.contains_key(&other));
        }

        #[test]
        fn never_panics(text in "\\PC{0,32}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert!(LabelSelector::parse(&selector.to_string()).is_ok());
            }
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert!(FieldSelector::parse(&selector.to_string()).is_ok());
            }
        }
    }
}
