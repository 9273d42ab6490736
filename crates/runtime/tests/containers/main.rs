//! Real containers, made by the embedded runtime. Needs root and a static busybox at /bin/busybox.
//!
//! The test binary is its own shim, as the product's binary is: hence no standard harness.

mod support;

mod exec;
mod lifecycle;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == "shim") {
        return ExitCode::from(outrigger_runtime::embedded::shim_main(args) as u8);
    }
    let trials = [lifecycle::trials(), exec::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit_code()
}
