//! Checks names of objects, containers, ports and labels.

fn is_alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Why a text is not a DNS-1123 label; `None` if it is one.
pub fn dns_label_fault(name: &str) -> Option<&'static str> {
    let inner = |b| is_alphanumeric(b) || b == b'-';
    if name.len() > 63 {
        return Some("is longer than 63 characters");
    }
    let edges =
        name.bytes().next().is_some_and(is_alphanumeric) && name.bytes().last().is_some_and(is_alphanumeric);
    (!edges || !name.bytes().all(inner)).then_some(
        "must consist of lower case letters, digits and `-`, and begin and end with a letter or digit",
    )
}

/// Why a text is not a DNS-1123 subdomain; `None` if it is one.
pub fn dns_subdomain_fault(name: &str) -> Option<&'static str> {
    if name.len() > 253 {
        return Some("is longer than 253 characters");
    }
    let label = |l: &str| {
        l.bytes().next().is_some_and(is_alphanumeric)
            && l.bytes().last().is_some_and(is_alphanumeric)
            && l.bytes().all(|b| is_alphanumeric(b) || b == b'-')
    };
    (!name.split('.').all(label)).then_some(
        "must consist of lower case letters, digits, `-` and `.`, each part beginning and ending with a letter or digit",
    )
}

/// The most similar valid label, for a hint: `My_App` gives `my-app`.
pub fn as_dns_label(name: &str) -> Option<String> {
    let text: String = name
        .chars()
        .take(63)
        .map(|c| match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
            _ => '-',
        })
        .collect();
    let text = text.trim_matches('-');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Why a text is not a port name (IANA_SVC_NAME); `None` if it is one.
pub fn port_name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > 15 {
        return Some("must have 1 to 15 characters");
    }
    if !name.bytes().all(|b| is_alphanumeric(b) || b == b'-') {
        return Some("must consist of lower case letters, digits and `-`");
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return Some("must contain a letter");
    }
    if name.starts_with('-') || name.ends_with('-') || name.contains("--") {
        return Some("must not begin or end with `-` nor contain `--`");
    }
    None
}

/// Why a text is not a key of a label or annotation, or the name of an extended resource (`[domain/]name`);
/// `None` if it is one.
pub fn qualified_name_fault(key: &str) -> Option<&'static str> {
    let name = match key.split_once('/') {
        Some((prefix, name)) => {
            if dns_subdomain_fault(&prefix.to_ascii_lowercase()).is_some() {
                return Some("has a prefix before the `/` that is not a domain name");
            }
            name
        }
        None => key,
    };
    value_fault(name).or_else(|| name.is_empty().then_some("has no name"))
}

/// Why a text is not a label value; `None` if it is one.
pub fn value_fault(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        return Some("is longer than 63 characters");
    }
    let edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (!(edge(value.bytes().next()) && edge(value.bytes().last()) && value.bytes().all(inner))).then_some(
        "must consist of letters, digits, `-`, `_` and `.`, and begin and end with a letter or digit",
    )
}

/// Whether a text can be the name of an object such as a pod or ConfigMap. Names become part of request
/// paths, so any other text must not be used there.
pub fn is_object_name(text: &str) -> bool {
    dns_subdomain_fault(text).is_none()
}

#[cfg(test)]
mod tests {
    use super::is_object_name;

    #[test]
    fn only_names_get_into_paths() {
        for name in ["a", "a-1", "a.b-c", "0"] {
            assert!(is_object_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for text in
            ["", "a?x=y", "a#x", "v%31", "..", "../a", "a/b", "A", "-a", "a-", "a..b", "a b", "ä", &long]
        {
            assert!(!is_object_name(text), "{text}");
        }
    }
}
