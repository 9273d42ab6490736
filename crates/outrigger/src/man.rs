//! `outrigger man`: prints manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::Command;

use crate::outcome::{Failure, Outcome};
use crate::terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outrigger man | man -l -                   reads the manual page
  outrigger man --dir /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// Write a page for the program and one for each command into this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn execute(args: Args, program: Command) -> Result<Outcome, Failure> {
    match args.dir {
        Some(dir) => {
            let shown = dir.display();
            std::fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(program, &dir))
                .with_context(|| format!("cannot write manual pages to {shown}"))
                .map_err(Failure::Input)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page)?;
            terminal::print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Outcome::Fine)
}
