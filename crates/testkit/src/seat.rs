//! Environments of ordinary users, for tests that root runs.

use std::path::Path;
use std::process::Command;

/// A user id that no account has.
const UID: &str = "61234";

/// The environment of an ordinary user.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    /// The name of the environment.
    pub name: &'static str,
    /// The number of subordinate ids of the user, if any.
    pub ids: Option<u32>,
    /// Programs that are not installed.
    pub hidden: &'static str,
    /// The delegated cgroups.
    pub cgroups: Cgroups,
}

/// Cgroups that belong to an ordinary user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    None,
    /// Those of this machine's hierarchies.
    Own,
    /// Cgroup v2, as on a machine without v1.
    OwnV2,
}

/// A machine as a distribution sets it up.
pub const USUAL: Seat = Seat { name: "usual", ids: Some(65_536), hidden: "", cgroups: Cgroups::None };

/// The variable with the name of the seat in which the test program is executed again.
pub const VARIABLE: &str = "OUTRIGGER_TEST_SEAT";

impl Seat {
    /// Runs this program again as the user, with the same arguments. Returns its exit code.
    pub fn run(self) -> i32 {
        let dir = tempfile::Builder::new().prefix("outrigger-seat-").tempdir().expect("a directory");
        let exe = std::env::current_exe().expect("a program");
        let readable = Command::new("setpriv")
            .args(["--reuid", UID, "--regid", UID, "--clear-groups", "test", "-x"])
            .arg(&exe)
            .status()
            .expect("run setpriv");
        assert!(readable.success(), "{} must be in directories that other users can enter", exe.display());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/seat.sh");
        let status = Command::new("bash")
            .arg(script)
            .arg(&exe)
            .args(std::env::args_os().skip(1))
            .env("SEAT_DIR", dir.path())
            .env("SEAT_UID", UID)
            .env("SEAT_RANGES", self.ids.map(|count| count.to_string()).unwrap_or_default())
            .env("SEAT_HIDE", self.hidden)
            .env(
                "SEAT_CGROUPS",
                match self.cgroups {
                    Cgroups::None => "",
                    Cgroups::Own => "1",
                    Cgroups::OwnV2 => "v2",
                },
            )
            .env("SEAT_WORLD", format!("env {VARIABLE}=world {}", exe.display()))
            .env(VARIABLE, self.name)
            .status()
            .expect("run a shell");
        status.code().unwrap_or(1)
    }
}

/// The seat of this program, if it is executed in one.
pub fn taken() -> Option<String> {
    std::env::var(VARIABLE).ok()
}
