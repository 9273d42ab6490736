//! Generates files that are checked in: `cargo xtask generate`.

mod cri;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args != ["generate"] {
        eprintln!("usage: cargo xtask generate");
        return ExitCode::from(2);
    }
    let written = cri::generate()
        .and_then(|text| std::fs::write(in_repository(cri::GENERATED), text).map_err(Into::into));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The path of a file in the repository.
fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_generated_is_checked_in() {
        let wanted = cri::generate().expect("the protos are valid");
        let found = std::fs::read_to_string(in_repository(cri::GENERATED)).expect("the generated file");
        assert!(found == wanted, "{} is out of date; run `cargo xtask generate`", cri::GENERATED);
    }
}
