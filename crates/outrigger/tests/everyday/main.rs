//! Commands that talk to a run in another terminal, with real containers.

mod command;
mod exec;
mod killed;
#[path = "../node/leaks.rs"]
mod leaks;
mod logs;
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
mod socket;
mod stop;
#[path = "../workloads/trials.rs"]
mod trials;
mod workloads;

fn main() {
    trials::run(
        "everyday",
        [&ps::ALL[..], &logs::ALL, &exec::ALL, &stop::ALL, &workloads::ALL, &socket::ALL, &killed::ALL]
            .concat(),
    );
}
