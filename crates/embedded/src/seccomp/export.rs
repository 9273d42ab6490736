//! Converts a filter to the `linux.seccomp` object of the OCI runtime specification, for runtimes that
//! compile it themselves.
//!
//! Our rules are tried in order, and the last rule of a call has no conditions. OCI's (libseccomp's) rules
//! have no order, and a rule without conditions overrides those with conditions. The case that all conditions
//! of a call fail is therefore also expressed with conditions.

use serde_json::{Value, json};

use super::oci::arch_name;
use super::policy::{Action, Compare, Condition, Policy, Rule};

const SOCKETCALL: &str = "socketcall";

/// The OCI form of a filter.
pub(super) fn oci_form(policy: &Policy) -> Value {
    let mut rules = Vec::new();
    let mut done: Vec<&str> = Vec::new();
    for rule in &policy.rules {
        if rule.name != SOCKETCALL && !done.contains(&rule.name.as_str()) {
            done.push(&rule.name);
            rules.extend(about_one_call(policy, &rule.name));
        }
    }
    rules.extend(about_socketcall(policy));
    let (action, errno) = action(policy.default);
    let mut form = json!({
        "defaultAction": action,
        "architectures": policy.arches.iter().map(|arch| arch_name(*arch)).collect::<Vec<_>>(),
        "syscalls": together(rules),
    });
    if let Some(errno) = errno.filter(|errno| *errno != libc::EPERM as u16) {
        form["defaultErrnoRet"] = json!(errno);
    }
    form
}

/// The rule for `socketcall`, with which 32-bit x86 also creates sockets. libseccomp copies each rule of
/// `socket` and `socketpair` to it without the rule's conditions, because the family is in memory there. If
/// `socket` is allowed for some families, `socketcall` is therefore allowed for all, whatever rules with
/// conditions say. A rule without conditions overrides the copies. A filter that does not allow all of this
/// call therefore refuses it as a whole.
fn about_socketcall(policy: &Policy) -> Option<Rule> {
    let of_call = || policy.rules.iter().filter(|rule| rule.name == SOCKETCALL);
    let is_open = |action: &Action| matches!(action, Action::Allow | Action::Log);
    let otherwise =
        of_call().find(|rule| rule.conditions.is_empty()).map_or(policy.default, |rule| rule.action);
    let conditional = of_call().filter(|rule| !rule.conditions.is_empty()).map(|rule| rule.action);
    let refusal = conditional.chain([otherwise]).find(|action| !is_open(action));
    // Runtimes leave out a rule with the default action.
    let action = match refusal {
        None => otherwise,
        Some(action) if action != policy.default => action,
        Some(_) => [libc::ENOSYS, libc::EPERM]
            .map(|errno| Action::Errno(errno as u16))
            .into_iter()
            .find(|action| *action != policy.default)?,
    };
    (action != policy.default).then(|| Rule { name: SOCKETCALL.to_owned(), conditions: Vec::new(), action })
}

/// The rules of one call. Each is valid independently of the others.
fn about_one_call(policy: &Policy, name: &str) -> Vec<Rule> {
    let of_call = || policy.rules.iter().filter(|rule| rule.name == name);
    let conditional: Vec<&Rule> = of_call().filter(|rule| !rule.conditions.is_empty()).collect();
    let otherwise =
        of_call().find(|rule| rule.conditions.is_empty()).map_or(policy.default, |rule| rule.action);
    let rule = |conditions: Vec<Condition>, action| Rule { name: name.to_owned(), conditions, action };
    if conditional.iter().all(|rule| rule.action == otherwise) {
        return vec![rule(Vec::new(), otherwise)];
    }
    let special = conditional.iter().filter(|rule| rule.action != policy.default);
    let mut rules: Vec<Rule> = special.map(|rule| (*rule).clone()).collect();
    if otherwise != policy.default {
        match complement(&conditional) {
            Some(rest) => rules.extend(rest.into_iter().map(|condition| rule(vec![condition], otherwise))),
            // This cannot be expressed with conditions, so it is left to the runtime.
            None => return of_call().cloned().collect(),
        }
    }
    rules
}

/// Conditions of which one holds exactly when none of the rules' conditions holds. All conditions must
/// compare the same bits of the same argument.
fn complement(rules: &[&Rule]) -> Option<Vec<Condition>> {
    let mut same = None;
    let mut values = Vec::new();
    for rule in rules {
        let [condition] = rule.conditions[..] else { return None };
        let mask = match condition.compare {
            Compare::Equal => u64::MAX,
            Compare::Masked(mask) => mask,
            _ => return None,
        };
        if *same.get_or_insert((condition.argument, mask)) != (condition.argument, mask) {
            return None;
        }
        values.push(condition.value & mask);
    }
    let (argument, mask) = same?;
    let mut rest = Vec::new();
    // Goes bit by bit from the top. A half of the numbers that contains none of the values is covered as a
    // whole.
    let mut halves = vec![(0_u64, 0_u64)];
    while let Some((seen, prefix)) = halves.pop() {
        if !values.iter().any(|value| value & seen == prefix) {
            rest.push(Condition { argument, compare: Compare::Masked(seen), value: prefix });
            continue;
        }
        let left = mask & !seen;
        if left != 0 {
            let bit = 1 << (63 - left.leading_zeros());
            halves.extend([(seen | bit, prefix), (seen | bit, prefix | bit)]);
        }
    }
    Some(rest)
}

/// Combines calls with the same rule into one entry.
fn together(rules: Vec<Rule>) -> Vec<Value> {
    let mut entries: Vec<(Vec<Condition>, Action, Vec<String>)> = Vec::new();
    for rule in rules {
        let same = entries.iter_mut().find(|(conditions, action, names)| {
            *conditions == rule.conditions && *action == rule.action && !names.contains(&rule.name)
        });
        match same {
            Some((_, _, names)) => names.push(rule.name),
            None => entries.push((rule.conditions, rule.action, vec![rule.name])),
        }
    }
    let entry = |(conditions, act, names): (Vec<Condition>, Action, Vec<String>)| {
        let (action, errno) = action(act);
        let mut entry = json!({ "names": names, "action": action });
        if let Some(errno) = errno {
            entry["errnoRet"] = json!(errno);
        }
        if !conditions.is_empty() {
            entry["args"] = conditions.iter().map(argument).collect();
        }
        entry
    };
    entries.into_iter().map(entry).collect()
}

fn argument(condition: &Condition) -> Value {
    let op = match condition.compare {
        Compare::Equal => "SCMP_CMP_EQ",
        Compare::NotEqual => "SCMP_CMP_NE",
        Compare::Less => "SCMP_CMP_LT",
        Compare::LessOrEqual => "SCMP_CMP_LE",
        Compare::Greater => "SCMP_CMP_GT",
        Compare::GreaterOrEqual => "SCMP_CMP_GE",
        Compare::Masked(mask) => {
            return json!({ "index": condition.argument, "value": mask, "valueTwo": condition.value, "op": "SCMP_CMP_MASKED_EQ" });
        }
    };
    json!({ "index": condition.argument, "value": condition.value, "op": op })
}

fn action(action: Action) -> (&'static str, Option<u16>) {
    match action {
        Action::Allow => ("SCMP_ACT_ALLOW", None),
        Action::Errno(errno) => ("SCMP_ACT_ERRNO", Some(errno)),
        Action::KillThread => ("SCMP_ACT_KILL_THREAD", None),
        Action::KillProcess => ("SCMP_ACT_KILL_PROCESS", None),
        Action::Trap => ("SCMP_ACT_TRAP", None),
        Action::Trace(data) => ("SCMP_ACT_TRACE", Some(data)),
        Action::Log => ("SCMP_ACT_LOG", None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::Arch;
    use super::*;

    const DENIED: Action = Action::Errno(1);

    fn masked(mask: u64, value: u64) -> Condition {
        Condition { argument: 0, compare: Compare::Masked(mask), value }
    }

    fn rule(name: &str, condition: Option<Condition>, action: Action) -> Rule {
        Rule { name: name.to_owned(), conditions: condition.into_iter().collect(), action }
    }

    fn holds(condition: &Value, argument: u64) -> bool {
        assert_eq!(condition["op"], "SCMP_CMP_MASKED_EQ");
        argument & condition["value"].as_u64().unwrap() == condition["valueTwo"].as_u64().unwrap()
    }

    #[test]
    fn what_is_left_when_conditions_fail_is_said_by_conditions() {
        let low = 0xffff_ffff;
        let policy = Policy {
            default: DENIED,
            rules: vec![
                rule("socket", Some(masked(low, 38)), DENIED),
                rule("socket", Some(masked(low, 40)), DENIED),
                rule("socket", None, Action::Allow),
            ],
            arches: vec![Arch::NATIVE],
        };
        let form = oci_form(&policy);
        let entries = form["syscalls"].as_array().unwrap();
        let entries: Vec<&Value> =
            entries.iter().filter(|entry| entry["names"] == json!(["socket"])).collect();
        for argument in (0..300).chain([low, 1 << 32, 38 | 1 << 32, 40 | 7 << 40, 41 | 1 << 63, u64::MAX]) {
            let allowed = entries.iter().filter(|entry| holds(&entry["args"][0], argument)).count();
            let denied = [38, 40].contains(&(argument & low));
            assert_eq!(allowed, usize::from(!denied), "{argument:#x}");
        }
        assert!(entries.len() < 40, "{}", entries.len());
    }

    #[test]
    fn plain_calls_share_an_entry_and_errors_keep_their_number() {
        let policy = Policy {
            default: DENIED,
            rules: vec![
                rule("read", None, Action::Allow),
                rule("write", None, Action::Allow),
                rule("clone", Some(masked(0x7e02_0000, 0)), Action::Allow),
                rule("clone", None, DENIED),
                rule("clone3", None, Action::Errno(38)),
            ],
            arches: vec![Arch::NATIVE],
        };
        let form = oci_form(&policy);
        assert_eq!(form["defaultAction"], "SCMP_ACT_ERRNO");
        let expected = json!([
            { "names": ["read", "write"], "action": "SCMP_ACT_ALLOW" },
            { "names": ["clone"], "action": "SCMP_ACT_ALLOW",
              "args": [{ "index": 0, "value": 0x7e02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }] },
            { "names": ["clone3", "socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38 },
        ]);
        assert_eq!(form["syscalls"], expected);
    }

    #[test]
    fn socketcall_is_allowed_as_a_whole_or_not_at_all() {
        let some = || Some(masked(0xffff_ffff, 1));
        let enosys = Action::Errno(38);
        for (default, rules, expected) in [
            (DENIED, vec![], Some(enosys)),
            (enosys, vec![], Some(DENIED)),
            (DENIED, vec![(some(), DENIED), (None, Action::Allow)], Some(enosys)),
            (DENIED, vec![(some(), Action::Allow)], Some(enosys)),
            (DENIED, vec![(None, Action::Allow)], Some(Action::Allow)),
            (DENIED, vec![(None, Action::KillProcess)], Some(Action::KillProcess)),
            (Action::Allow, vec![], None),
            (Action::Allow, vec![(some(), DENIED)], Some(DENIED)),
        ] {
            let rules =
                rules.into_iter().map(|(condition, action)| rule("socketcall", condition, action)).collect();
            let policy = Policy { default, rules, arches: vec![Arch::NATIVE] };
            let form = oci_form(&policy);
            let entries: Vec<&Value> = form["syscalls"].as_array().unwrap().iter().collect();
            assert!(entries.iter().all(|entry| entry.get("args").is_none()), "{form}");
            let actions: Vec<&Value> = entries.iter().map(|entry| &entry["action"]).collect();
            assert_eq!(
                actions,
                expected.map(|action| json!(super::action(action).0)).iter().collect::<Vec<_>>()
            );
        }
    }
}
