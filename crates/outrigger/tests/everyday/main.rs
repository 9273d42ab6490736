//! Tests commands that talk to a run in another terminal, with real containers.

mod command;
mod exec;
mod killed;
mod logs;
mod ports;
mod ps;
mod socket;
mod stop;
mod workloads;

use outrigger_testkit::{leaks, pty, run, server, trials};

fn main() {
    if server::asked_for() {
        return;
    }
    trials::run(
        "everyday",
        trials::RunBy::Root,
        [
            ports::ALL,
            &ps::ALL,
            &logs::ALL,
            &exec::ALL,
            &stop::ALL,
            &workloads::ALL,
            &socket::ALL,
            &killed::ALL,
        ]
        .concat(),
    );
}
