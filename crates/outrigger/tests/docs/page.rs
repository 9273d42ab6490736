//! Reads the commands of a page, and compares their output with what the page shows.

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The line number of the command.
    pub(crate) line: usize,
    pub(crate) command: String,
    /// The shown output, if any.
    pub(crate) output: Option<String>,
    /// The expected exit code.
    pub(crate) code: i32,
}

/// The commands of all ```` ```console ```` blocks.
pub(crate) fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (i, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            inside = !inside && line == "```console";
            continue;
        }
        if !inside {
            continue;
        }
        if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
            steps.push(Step { line: i + 1, command: command.to_owned(), output: None, code: 0 });
            continue;
        }
        let Some(step) = steps.last_mut() else { continue };
        match line.strip_prefix("? ").and_then(|code| code.parse().ok()) {
            Some(code) => step.code = code,
            None => {
                let output = step.output.get_or_insert_with(String::new);
                output.push_str(line);
                output.push('\n');
            }
        }
    }
    // A blank line at the end is only layout.
    for output in steps.iter_mut().filter_map(|s| s.output.as_mut()) {
        output.truncate(output.trim_end_matches('\n').len());
    }
    steps
}

/// Whether a text matches the shown one. Otherwise returns the first line that does not match.
pub(crate) fn matches(expected: &str, printed: &str) -> Result<(), String> {
    let expected: Vec<String> = expected.lines().map(plain).collect();
    let printed: Vec<String> = printed.trim_end_matches('\n').lines().map(plain).collect();
    let mut at = 0;
    let mut skipping = false;
    for line in &expected {
        if line == "..." {
            skipping = true;
            continue;
        }
        loop {
            match printed.get(at) {
                Some(found) if like(line, found) => break,
                Some(_) if skipping => at += 1,
                _ => return Err(line.clone()),
            }
        }
        at += 1;
        skipping = false;
    }
    match skipping || at == printed.len() {
        true => Ok(()),
        false => Err(format!("the end: {}", printed[at])),
    }
}

/// A line without the parts that differ in every run.
fn plain(line: &str) -> String {
    let mut line = line.trim_end().to_owned();
    for (pattern, with) in [
        (r"\d\d:\d\d:\d\d\.\d{3}", "CLOCK"),
        (r"\b\d+ min \d+ s\b|\b\d+(\.\d+)? (ms|s|min)\b", "TIME"),
        (r"\breport(-[a-z]+)*-[a-z0-9]{5}\b", "report-POD"),
    ] {
        line = regex_lite::Regex::new(pattern).expect("a pattern").replace_all(&line, with).into_owned();
    }
    line
}

/// Whether a line matches the shown one, in which `[..]` matches anything.
fn like(expected: &str, found: &str) -> bool {
    let mut parts = expected.split("[..]");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = found.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn what_is_shown_is_compared() {
    let table = [
        ("a\nb", "a\nb\n", true),
        ("a", "a\nb\n", false),
        ("a\n...", "a\nb\nc\n", true),
        ("...\nc", "a\nb\nc\n", true),
        ("...\nd", "a\nb\nc\n", false),
        ("ran [..] of it", "ran 3 parts of it\n", true),
        ("ran [..] of it", "ran 3 parts of all\n", false),
        ("took 20 ms", "took 1.5 s\n", true),
        ("00:01:02.003 app  starts", "23:59:59.999 app  starts\n", true),
        ("report-abc12 succeeded", "report-zz9zz succeeded\n", true),
        ("report-abc12 succeeded", "report-zz9zz failed\n", false),
    ];
    for (expected, printed, same) in table {
        assert_eq!(matches(expected, printed).is_ok(), same, "{expected:?} {printed:?}");
    }
}

#[test]
fn commands_are_found() {
    let page = "text\n```console\n$ one  # why\n1\n\n# two\n? 2\n```\n$ no\n```sh\n$ no\n```\n";
    let found = steps(page);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].command.as_str(), found[0].output.as_deref()), ("one  # why", Some("1")));
    assert_eq!((found[1].line, found[1].command.as_str(), found[1].code), (6, "two", 2));
}
