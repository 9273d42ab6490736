//! Outrigger runs pods whose containers start, run and stop in the right order.
#![forbid(unsafe_code)]

mod analyze;
mod apply;
mod attach;
mod cli;
mod completions;
mod convert;
mod detach;
mod doctor;
mod exec;
mod input;
mod logging;
mod logs;
mod man;
mod node;
mod operator;
mod outcome;
mod plan;
mod ps;
mod restart;
mod run;
mod runs;
mod runtime;
mod simulate;
mod stop;
mod terminal;
mod timeline;
mod validate;
mod value;

use std::process::ExitCode;

use clap::CommandFactory as _;
use cli::{Cli, Command};

fn main() -> ExitCode {
    // This binary is also a container's shim. A shim forks, so this must run before there is a second thread.
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    if first.as_ref().is_some_and(|first| first == "shim") {
        let code = outrigger_embedded::shim_main(args);
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    if first.is_some_and(|first| first == runtime::HOLD_CONNECTION) {
        outrigger_cri::hold_connection();
        return ExitCode::SUCCESS;
    }
    let args = operator::plugin_args(std::env::args_os().collect());
    let cli = cli::parse(args).unwrap_or_else(|error| error.exit());
    cli.color.apply();
    let result = match cli.command {
        Command::Run(args) => return run::main(*args),
        Command::Node(args) => {
            // `run -d` starts the node through /proc/self/exe, so `ps` would show its name as `exe`.
            let _ = rustix::thread::set_name(c"outrigger");
            node::execute(*args)
        }
        Command::Ps(args) => ps::execute(args),
        Command::Exec(args) => return exec::main(args),
        Command::Attach(args) => return attach::main(args),
        Command::Logs(args) => logs::execute(args),
        Command::Apply(args) => return apply::main(*args),
        Command::Restart(args) => restart::execute(args),
        Command::Stop(args) => stop::execute(args),
        Command::Plan(args) => plan::execute(args),
        Command::Validate(args) => validate::execute(args),
        Command::Convert(args) => convert::execute(args),
        Command::Simulate(args) => simulate::execute(args),
        Command::Timeline(args) => timeline::execute(args),
        Command::Analyze(args) => analyze::execute(args),
        Command::Doctor(args) => doctor::execute(args),
        Command::Operator(args) => operator::execute(args),
        Command::Completions(args) => completions::execute(args, Cli::command()),
        Command::Man(args) => man::execute(args, Cli::command()),
    };
    outcome::exit_code(result)
}
