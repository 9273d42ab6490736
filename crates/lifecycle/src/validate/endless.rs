//! Estimates how long a command runs at least. It finds commands such as `sleep infinity`, which service
//! meshes use in preStop hooks.

use crate::shell::{base_name, script_of};

/// The minimum time that a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AtLeast {
    /// This many milliseconds.
    Ms(u64),
    /// It runs until other containers of the pod have ended.
    OthersEnd,
    /// It never ends by itself.
    Forever,
}

impl AtLeast {
    /// Whether the command takes at least this long.
    pub(super) fn takes(self, ms: u64) -> bool {
        self >= AtLeast::Ms(ms)
    }

    fn then(self, next: AtLeast) -> AtLeast {
        match (self, next) {
            (AtLeast::Ms(a), AtLeast::Ms(b)) => AtLeast::Ms(a.saturating_add(b)),
            _ => self.max(next),
        }
    }
}

/// The minimum time that a command runs, as far as the command shows it. In doubt, it is zero.
pub(super) fn command(words: &[String]) -> AtLeast {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        [env, rest @ ..] if base_name(env) == "env" => rest,
        words => words,
    };
    script_of(words).map_or_else(|| simple(words), script)
}

/// The minimum time of a script that runs one command after the other.
fn script(text: &str) -> AtLeast {
    let text = text.replace("&&", ";");
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c == ';').filter(|w| !w.is_empty()).collect();
    let loops = words.windows(2).any(|pair| matches!(pair, ["while", "true" | ":"] | ["until", "false"]));
    if loops {
        return if leaves(&words) { AtLeast::Ms(0) } else { AtLeast::Forever };
    }
    if waits_for_others(&text) {
        return AtLeast::OthersEnd;
    }
    // Commands in the background, in loops or under conditions may not delay the script, or not run at all.
    let control = ["if", "for", "while", "until", "case", "function"];
    if text.contains(['|', '&', '(', '{', '`']) || words.iter().any(|word| control.contains(word)) {
        return AtLeast::Ms(0);
    }
    let pieces = text.split([';', '\n']).map(|piece| piece.split_whitespace().collect::<Vec<_>>());
    let mut all = AtLeast::Ms(0);
    for piece in pieces {
        if matches!(piece.first(), Some(&("exit" | "return"))) {
            break;
        }
        all = all.then(simple(&piece));
    }
    all
}

/// Whether a script has a loop that ends only when other containers have ended. The published work-around of
/// service meshes waits until only the proxy listens (`while [ $(netstat -plunt | grep tcp | grep -v envoy |
/// wc -l) -ne 0 ]`).
fn waits_for_others(text: &str) -> bool {
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || ";|".contains(c)).filter(|w| !w.is_empty()).collect();
    let mut rest = words.as_slice();
    while let Some(at) = rest.iter().position(|word| ["while", "until"].contains(word)) {
        rest = &rest[at + 1..];
        let until = |end: &str| rest.iter().position(|word| *word == end);
        let (Some(begin), Some(end)) = (until("do"), until("done")) else { return false };
        if begin < end && lists_listeners(&rest[..begin]) && !leaves(&rest[begin..end]) {
            return true;
        }
    }
    false
}

/// Whether a loop condition lists listening sockets. Established connections do not count, because they end
/// by themselves.
fn lists_listeners(words: &[&str]) -> bool {
    const PROGRAMS: [&str; 3] = ["netstat", "ss", "lsof"];
    let is_list =
        |word: &&str| PROGRAMS.contains(&base_name(word.trim_start_matches(['$', '(', '`', '"', '!'])));
    let Some(at) = words.iter().position(is_list) else { return false };
    let mut options = words[at + 1..].iter().take_while(|word| word.starts_with('-'));
    let is_for_listeners = options.any(|option| option.contains('l') || option.contains("LISTEN"));
    is_for_listeners && !words.iter().any(|word| word.contains("ESTAB"))
}

/// Whether one of these words ends a loop or a script.
fn leaves(words: &[&str]) -> bool {
    words.iter().any(|word| ["break", "exit", "return", "exec", "kill"].contains(word))
}

/// The minimum time of one command without a shell.
fn simple(words: &[&str]) -> AtLeast {
    let words = match words {
        ["exec", rest @ ..] => rest,
        words => words,
    };
    match words {
        [program, times @ ..] if base_name(program) == "sleep" && !times.is_empty() => {
            times.iter().fold(AtLeast::Ms(0), |all, time| all.then(sleep(time)))
        }
        [program, rest @ ..] if base_name(program) == "tail" => {
            let follows = rest.iter().any(|word| ["-f", "-F", "--follow"].contains(word));
            if follows { AtLeast::Forever } else { AtLeast::Ms(0) }
        }
        [program, ..] if base_name(program) == "pause" => AtLeast::Forever,
        _ => AtLeast::Ms(0),
    }
}

/// The minimum time of `sleep`, whose argument is in seconds or has a unit.
fn sleep(time: &str) -> AtLeast {
    let time = time.trim_matches(['"', '\'']);
    if time.eq_ignore_ascii_case("infinity") || time.eq_ignore_ascii_case("inf") {
        return AtLeast::Forever;
    }
    let units = [('s', 1.0), ('m', 60.0), ('h', 3_600.0), ('d', 86_400.0)];
    let (number, unit) = match units.iter().find(|(letter, _)| time.ends_with(*letter)) {
        Some((_, unit)) => (&time[..time.len() - 1], *unit),
        None => (time, 1.0),
    };
    match number.parse::<f64>() {
        // The cast saturates.
        Ok(number) if number >= 0.0 => AtLeast::Ms((number * unit * 1_000.0) as u64),
        _ => AtLeast::Ms(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_obviously_take_long() {
        /// The hook of Istio's issue 7136, which many manifests have copied.
        const MESH: &str =
            "while [ $(netstat -plunt | grep tcp | grep -v envoy | wc -l | xargs) -ne 0 ]; do sleep 1; done";
        let (forever, others) = (AtLeast::Forever, AtLeast::OthersEnd);
        let seconds = |n: u64| AtLeast::Ms(n * 1_000);
        for (words, expected) in [
            (&["sleep", "infinity"][..], forever),
            (&["/bin/sleep", "inf"], forever),
            (&["/usr/bin/env", "sleep", "infinity"], forever),
            (&["env", "sh", "-c", "sleep infinity"], forever),
            (&["env", "true"], seconds(0)),
            (&["sleep", "1m", "30"], seconds(90)),
            (&["sleep", "0.5h"], seconds(1_800)),
            (&["sleep"], seconds(0)),
            (&["sleep", "-1"], seconds(0)),
            (&["tail", "-f", "/dev/null"], forever),
            (&["tail", "-n1", "/log"], seconds(0)),
            (&["sh", "-c", "sleep infinity"], forever),
            (&["/bin/sh", "-ec", "exec sleep infinity"], forever),
            (&["bash", "-c", "while true; do sleep 1; done"], forever),
            (&["sh", "-c", "while :; do sleep 5; done"], forever),
            (&["sh", "-c", "until false\ndo sleep 5\ndone"], forever),
            (&["sh", "-c", "while true; do curl -f localhost || break; sleep 1; done"], seconds(0)),
            (&["sh", "-c", "while [ -e /run ]; do sleep 1; done"], seconds(0)),
            (&["sh", "-c", "curl -X POST localhost/drain; sleep 3600"], seconds(3_600)),
            (&["sh", "-c", "curl localhost && sleep 20 && sleep 20"], seconds(40)),
            (&["sh", "-c", "if true; then sleep infinity; fi"], seconds(0)),
            (&["/bin/sh", "-c", MESH], others),
            (
                &[
                    "sh",
                    "-c",
                    "sleep 20; while [ $(netstat -plunt|grep tcp|grep -v envoy|wc -l|xargs) -ne 0 ]; do sleep 1; done",
                ],
                others,
            ),
            (
                &[
                    "sh",
                    "-c",
                    "curl -X POST localhost:15000/drain_listeners?inboundonly; while [ \"$(ss -Hltn | grep -vc 150)\" -gt 0 ]; do sleep 1; done",
                ],
                others,
            ),
            (
                &[
                    "bash",
                    "-c",
                    "set -e\nif ! pidof envoy; then exit 0; fi\nwhile [ $(netstat -plunt | grep -vc envoy) -ne 0 ]; do\n  sleep 1;\ndone\nexit 0",
                ],
                others,
            ),
            (&["sh", "-c", "until [ -z \"$(lsof -iTCP -sTCP:LISTEN -P)\" ]; do sleep 1; done"], others),
            (
                &["sh", "-c", "while [ $(netstat -plunt | wc -l) -ne 0 ]; do sleep 1; ready && break; done"],
                seconds(0),
            ),
            (
                &["sh", "-c", "while [ $(netstat -tn | grep -c ESTABLISHED) -gt 0 ]; do sleep 1; done"],
                seconds(0),
            ),
            (
                &["sh", "-c", "until curl -s localhost:15000/clusters | grep rq_active::0; do sleep 1; done"],
                seconds(0),
            ),
            (&["sh", "-c", "netstat -plunt; while [ -e /run ]; do sleep 1; done"], seconds(0)),
            (&["sh", "-c", "sleep infinity &"], seconds(0)),
            (&["sh", "-c", "exit 0; sleep infinity"], seconds(0)),
            (&["sh", "-c", "while [ $(netstat -tn | wc -l) -gt 2 ]; do sleep 1; done"], seconds(0)),
            (&["sh", "-c"], seconds(0)),
            (&["wget", "sleep", "infinity"], seconds(0)),
            (&[], seconds(0)),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(command(&words), expected, "{words:?}");
        }
    }
}
