//! `outrigger completions`: prints shell completion scripts.

use clap::Command;
use clap_complete::Shell;

use crate::outcome::{Failure, Outcome};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger completions bash > /etc/bash_completion.d/outrigger
  outrigger completions zsh > \"${fpath[1]}/_outrigger\"
  outrigger completions fish > ~/.config/fish/completions/outrigger.fish")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn execute(args: Args, mut program: Command) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "outrigger", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Fine)
}
