//! `$(VAR)` expansion as in Kubernetes, for commands, arguments, environment values and `subPathExpr`.
//!
//! `$$` is an escaped dollar sign, so `$$(VAR)` becomes `$(VAR)`. References to unknown variables and
//! malformed references are left unchanged.

/// Maximum length of a result. Variables may reference each other, so a few lines of YAML can expand without
/// bound. The kernel limits each argument and variable to 128 KiB, so a longer result could not be used
/// anyway.
const RESULT_MAX: usize = 256 << 10;

/// Expands all references. `lookup` returns the value of a variable, or `None` if it does not exist.
pub(crate) fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        if out.len() > RESULT_MAX {
            return out;
        }
        rest = &rest[at + 1..];
        match rest.as_bytes().first() {
            Some(b'$') => {
                out.push('$');
                rest = &rest[1..];
            }
            Some(b'(') => match rest.find(')') {
                Some(end) => {
                    let name = &rest[1..end];
                    match lookup(name) {
                        Some(value) => out.push_str(value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = &rest[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = &rest[1..];
                }
            },
            _ => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_as_kubernetes_does() {
        let vars =
            [("VAR_A", "A"), ("VAR_B", "B"), ("VAR_C", "C"), ("VAR_REF", "$(VAR_A)"), ("VAR_EMPTY", "")];
        let table = [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("___$(VAR_C)", "___C"),
            ("$(VAR_A)-$(VAR_B)", "A-B"),
            ("$(VAR_A)_1", "A_1"),
            ("foobarbaz_$(VAR_A)", "foobarbaz_A"),
            ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
            ("$$$$(FOO)$(BAR)$(FOO)$$$(BAZ)", "$$(FOO)$(BAR)$(FOO)$$(BAZ)"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$$(VAR_REF)", "$(VAR_REF)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
            ("$$$$$$$(VAR_A)", "$$$A"),
            ("$VAR_A)", "$VAR_A)"),
            ("${VAR_A}", "${VAR_A}"),
            ("$(VAR_A", "$(VAR_A"),
            ("$$(VAR_A", "$(VAR_A"),
            ("$(VAR_B))", "B)"),
            ("$(VAR_DNE)", "$(VAR_DNE)"),
            ("f000-$(VAR_EMPTY)-", "f000--"),
            ("\n$(VAR_A)\n", "\nA\n"),
            ("$", "$"),
            ("a$", "a$"),
            ("$$", "$"),
            ("$()", "$()"),
            ("$(($(VAR_A)))", "$(($(VAR_A)))"),
            ("$ä$(VAR_A)", "$äA"),
            ("$?:$(VAR_A)", "$?:A"),
            ("", ""),
        ];
        for (input, expected) in table {
            let got = expand(input, |name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| *v));
            assert_eq!(got, expected, "{input}");
        }
    }

    #[test]
    fn variables_that_multiply_each_other_end_at_a_limit() {
        let mut value = "x".repeat(10);
        for _ in 0..12 {
            value = expand(&"$(V)".repeat(10), |_| Some(value.as_str()));
        }
        assert!(value.len() > 128 << 10, "the kernel refuses it");
        assert!(value.len() <= 2 * RESULT_MAX + 10, "{}", value.len());
    }
}
