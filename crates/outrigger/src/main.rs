//! Outrigger runs pods whose containers start, run and stop in the right order.
#![forbid(unsafe_code)]

mod cli;
mod completions;
mod input;
mod man;
mod outcome;
mod plan;
mod terminal;
mod validate;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.color.apply();
    let result = match cli.command {
        Command::Plan(args) => plan::execute(args),
        Command::Validate(args) => validate::execute(args),
        Command::Completions(args) => completions::execute(args),
        Command::Man(args) => man::execute(args),
    };
    outcome::exit_code(result)
}
