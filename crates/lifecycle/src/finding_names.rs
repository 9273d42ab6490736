//! The names that users see for the codes of findings. Codes are rule ids of docs/internals/spec, which mean
//! nothing to the author of a manifest.

/// The rules that findings cite, with the name that users see.
const NAMES: [(&str, &str); 44] = [
    ("G-41", "host-port"),
    ("LP-3", "launch-priority"),
    ("LP-4", "launch-priority"),
    ("LP-5", "launch-priority"),
    ("LP-6", "launch-priority"),
    ("LP-7", "launch-priority"),
    ("LP-8", "launch-priority"),
    ("LP-10", "launch-barrier"),
    ("LP-28", "container-ends"),
    ("R6.1", "probe-port"),
    ("R7.1", "tcp-hook"),
    ("R8.1", "containers"),
    ("R8.2", "duplicate-name"),
    ("R8.3", "init-lifecycle"),
    ("R8.4", "init-probe"),
    ("R8.5", "restart-policy"),
    ("R8.6", "restart-rules"),
    ("R8.7", "restart-rules"),
    ("R8.8", "restart-rules"),
    ("R8.9", "restart-rules"),
    ("R8.10", "restart-rules"),
    ("R8.11", "restart-rules"),
    ("R8.12", "restart-rules"),
    ("R8.13", "restart-policy"),
    ("R8.14", "probe"),
    ("R8.15", "probe"),
    ("R8.16", "probe"),
    ("R8.17", "probe"),
    ("R8.18", "handler"),
    ("R8.19", "handler"),
    ("R8.20", "handler"),
    ("R8.21", "handler"),
    ("R8.22", "hook-sleep"),
    ("R8.23", "stop-signal"),
    ("R8.24", "resize-policy"),
    ("R8.25", "resize-policy"),
    ("R8.26", "host-port"),
    ("R8.27", "grace-period"),
    ("R8.28", "restart-policy"),
    ("R8.29", "init-field"),
    ("R8.32", "restart-policy"),
    ("ST-1", "terminator"),
    ("ST-4", "terminator"),
    ("ST-6", "terminator"),
];

/// The name for a code. A code that is not a rule id is its own name.
pub(crate) fn name(code: &'static str) -> &'static str {
    let known = NAMES.iter().find(|(rule, _)| *rule == code);
    known.map_or(code, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a text is a rule id.
    fn is_rule(text: &str) -> bool {
        let letters: String = text.chars().take_while(char::is_ascii_uppercase).collect();
        let rest = text[letters.len()..].trim_start_matches('-');
        ["R", "G", "LP", "ST", "CRR", "D"].contains(&letters.as_str())
            && !rest.is_empty()
            && rest.chars().all(|c| c.is_ascii_digit() || c == '.')
    }

    #[test]
    fn users_see_no_rules() {
        // Every rule id that a string in the sources of this crate cites must have a name.
        let sources = [
            include_str!("dialect/mod.rs"),
            include_str!("dialect/priority.rs"),
            include_str!("dialect/terminator.rs"),
            include_str!("dialect/options.rs"),
            include_str!("dialect/kep.rs"),
            include_str!("validate/mod.rs"),
            include_str!("validate/container.rs"),
            include_str!("validate/env.rs"),
            include_str!("validate/handler.rs"),
            include_str!("validate/ignored.rs"),
            include_str!("validate/kruise.rs"),
            include_str!("validate/mounts.rs"),
            include_str!("validate/plan.rs"),
            include_str!("validate/pod.rs"),
            include_str!("validate/ports.rs"),
            include_str!("validate/probe.rs"),
            include_str!("validate/resources.rs"),
            include_str!("validate/restart.rs"),
            include_str!("validate/security.rs"),
            include_str!("validate/volumes.rs"),
            include_str!("job/check.rs"),
        ];
        let mut rules = 0;
        for text in sources.iter().flat_map(|source| source.split('"')).filter(|text| is_rule(text)) {
            rules += 1;
            assert!(!is_rule(name(text)), "{text} has no name for users");
        }
        assert!(rules > 50, "only {rules} rules are cited");
        assert_eq!(name("deadlock"), "deadlock");
    }
}
