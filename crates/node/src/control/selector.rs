//! Label selectors with kubectl's syntax: `app=web,tier!=db,env in (a, b),!canary`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// A label selector. All requirements must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

/// Why a text is not a label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A parenthesis in the wrong place.
    #[error("unexpected {found:?} in {text:?}")]
    Unexpected {
        /// The parenthesis.
        found: char,
        /// The selector.
        text: String,
    },
    /// A parenthesis that is not closed.
    #[error("a closing parenthesis is missing in {0:?}")]
    Unclosed(String),
    /// A part that is not a requirement.
    #[error(
        "{0:?} is not a label requirement; use KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY"
    )]
    Requirement(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    /// Also matches if the label does not exist.
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Selector {
    /// Whether the labels match.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.test {
                Test::In(values) => value.is_some_and(|v| values.contains(v)),
                Test::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
            }
        })
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let requirements = split(text)?.into_iter().map(requirement).collect::<Result<_, _>>()?;
        Ok(Selector(requirements))
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Result<Vec<&str>, SelectorError> {
    let (mut parts, mut begin, mut is_inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '(' if !is_inside => is_inside = true,
            ')' if is_inside => is_inside = false,
            '(' | ')' => return Err(SelectorError::Unexpected { found: c, text: text.to_owned() }),
            ',' if !is_inside => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    match is_inside {
        true => Err(SelectorError::Unclosed(text.to_owned())),
        false => {
            parts.push(&text[begin..]);
            Ok(parts)
        }
    }
}

fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let text = text.trim();
    let made = |key: &str, test| Ok(Requirement { key: label_key(key, text)?, test });
    if let Some(key) = text.strip_prefix('!') {
        return made(key, Test::Absent);
    }
    if let Some((key, value)) = text.split_once("!=") {
        return made(key, Test::NotIn(vec![label_value(value, text)?]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return made(key, Test::In(vec![label_value(value, text)?]));
    }
    let Some((key, rest)) = text.split_once(char::is_whitespace) else { return made(text, Test::Exists) };
    let rest = rest.trim();
    let (negated, list) = match (rest.strip_prefix("notin"), rest.strip_prefix("in")) {
        (Some(list), _) => (true, list),
        (None, Some(list)) => (false, list),
        (None, None) => return Err(wrong(text)),
    };
    let list = list.trim().strip_prefix('(').and_then(|list| list.strip_suffix(')'));
    let values = list.ok_or_else(|| wrong(text))?.split(',').map(|value| label_value(value, text));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    made(key, if negated { Test::NotIn(values) } else { Test::In(values) })
}

fn label_key(key: &str, of: &str) -> Result<String, SelectorError> {
    let key = key.trim();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    match !key.is_empty() && key.chars().all(allowed) && key.matches('/').count() <= 1 {
        true => Ok(key.to_owned()),
        false => Err(wrong(of)),
    }
}

fn label_value(value: &str, of: &str) -> Result<String, SelectorError> {
    let value = value.trim();
    match value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        true => Ok(value.to_owned()),
        false => Err(wrong(of)),
    }
}

fn wrong(text: &str) -> SelectorError {
    SelectorError::Requirement(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_as_in_kubectl() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("tier", "front"), ("a.example/b", "1"), ("empty", "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        let table = [
            ("app=web", true),
            ("app==web", true),
            ("app = web", true),
            ("app=db", false),
            ("app!=db", true),
            ("app!=web", false),
            ("other!=web", true),
            ("other=web", false),
            ("app=web,tier=front", true),
            ("app=web,tier=back", false),
            ("app in (db, web)", true),
            ("app in(web)", true),
            ("app in (db)", false),
            ("app notin (db,web)", false),
            ("app notin (db)", true),
            ("other notin (db)", true),
            ("app", true),
            ("other", false),
            ("!other", true),
            ("! app", false),
            ("a.example/b=1,app in (web,db),!other", true),
            ("empty=", true),
        ];
        for (selector, expected) in table {
            assert_eq!(selector.parse::<Selector>().unwrap().matches(&labels), expected, "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_says_how_to_write_one() {
        for text in
            ["", "app=web,", "app is web", "app in web", "app in (web", "app=a=b", "=x", "a b=c", "(a)"]
        {
            assert!(text.parse::<Selector>().is_err(), "{text:?}");
        }
        assert!("app is web".parse::<Selector>().unwrap_err().to_string().contains("KEY in (A,B)"));
    }
}
