//! Recognizes commands that run a shell script.

const SHELLS: [&str; 6] = ["sh", "bash", "ash", "dash", "zsh", "ksh"];

/// The script of a command such as `sh -c SCRIPT` or `env bash -ec SCRIPT`; `None` for any other command.
pub(crate) fn script_of<'a>(words: &[&'a str]) -> Option<&'a str> {
    let words = match words {
        [env, rest @ ..] if base_name(env) == "env" => rest,
        words => words,
    };
    match words {
        [shell, option, script, ..]
            if SHELLS.contains(&base_name(shell)) && option.starts_with('-') && option.ends_with('c') =>
        {
            Some(script)
        }
        _ => None,
    }
}

/// The file name of a program, without its directory.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
