//! Tests with real containers that the embedded runtime creates. They need root and a static busybox at
//! /bin/busybox.
//!
//! The test binary is its own shim, like the product's binary, so it does not use the standard harness.

mod users;

mod attach;
mod attacks;
mod cves;
mod edges;
mod exec;
mod filesystem;
mod filter;
mod identity;
mod lifecycle;
mod limits;
mod machines;
mod neighbours;
mod oci;
mod ownership;
mod pods;

use std::process::ExitCode;

use outrigger_testkit::streams;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    match args
        .next_if(|arg| ["shim", "on-machine", "own-a-pod", "be-root-of"].iter().any(|role| arg == role))
        .as_ref()
        .and_then(|arg| arg.to_str())
    {
        Some("shim") => return ExitCode::from(outrigger_embedded::shim_main(args) as u8),
        Some("on-machine") => machines::enter(args.next().expect("a kind").to_str().expect("a name")),
        Some("own-a-pod") => ownership::own_a_pod(
            &args.next().expect("an owner"),
            args.next().expect("a state directory").as_ref(),
        ),
        Some("be-root-of") => {
            let mut process = || args.next().expect("a process").into_string().expect("a number");
            neighbours::be_root_of(&process(), &process())
        }
        _ => {}
    }
    let arguments = libtest_mimic::Arguments::from_iter(std::iter::once("containers".into()).chain(args));
    let all = [
        lifecycle::trials(),
        exec::trials(),
        attach::trials(),
        identity::trials(),
        filesystem::trials(),
        filter::trials(),
        limits::trials(),
        pods::trials(),
        ownership::trials(),
        attacks::trials(),
        cves::trials(),
        machines::trials(),
        oci::trials(),
        edges::trials(),
        users::trials(),
        neighbours::trials(),
    ];
    libtest_mimic::run(&arguments, all.into_iter().flatten().collect()).exit_code()
}
