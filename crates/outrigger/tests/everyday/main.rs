//! Commands that talk to a run in another terminal, with real containers.

mod command;
mod exec;
mod killed;
#[path = "../node/leaks.rs"]
mod leaks;
mod logs;
mod ports;
mod ps;
#[path = "../terminal/pty.rs"]
#[allow(dead_code)]
mod pty;
#[path = "../conformance/rootfs.rs"]
mod rootfs;
#[path = "../workloads/run.rs"]
#[allow(dead_code)]
mod run;
#[path = "../terminal/screen.rs"]
#[allow(dead_code)]
mod screen;
#[path = "../fields/server.rs"]
#[allow(dead_code)]
mod server;
mod socket;
mod stop;
#[path = "../workloads/trials.rs"]
mod trials;
mod workloads;

fn main() {
    if server::asked_for() {
        return;
    }
    trials::run(
        "everyday",
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
