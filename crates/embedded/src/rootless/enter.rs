//! Makes an ordinary user's process root of a user namespace.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::MountPropagationFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{NoRanges, Ranges, has_powers, map_arguments, ranges};
use crate::sys::{self, errno_text};
use outrigger_runtime::RuntimeError;

/// The maximum length of newuidmap's error message that is shown.
const COMPLAINT_MAX: u64 = 4096;

/// Makes an ordinary user's process root of a new user namespace, and executes the program again in it with
/// the same arguments. Returns only if that is not needed or not possible. Pid, terminal, standard streams
/// and working directory stay the same. `note` is called with what will be missing.
///
/// Must be called before the process has a second thread.
///
/// # Errors
/// The machine does not permit this user to create a user namespace. The text says how to fix it.
pub fn enter(note: impl FnOnce(&str)) -> Result<(), RuntimeError> {
    if has_powers() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let missing = move_in(uid, gid, ranges(uid))
        .and_then(|missing| {
            let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", slave)?;
            Ok(missing)
        })
        .map_err(|error| refused(&error))?;
    if let Some(missing) = missing {
        note(&format!("all containers of a pod have the same user, which is user {uid} here: {missing}"));
    }
    Err(RuntimeError::Config(format!("cannot execute this program again: {}", execute_again())))
}

/// Why a user namespace would be refused, determined by trying in a separate process. `None` if it would not
/// be refused.
///
/// Must be called before the process has a second thread.
pub fn why_not_rootless() -> Option<String> {
    let (mut reader, writer) = io::pipe().ok()?;
    let cloned = sys::clone3(0, None).ok()?;
    match cloned {
        sys::Cloned::Child => {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            // One id is enough for the trial.
            let tried = move_in(uid, gid, Err(NoRanges::NoPrograms)).and_then(|_| {
                let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
                Ok(rustix::mount::mount_change("/", slave)?)
            });
            let mut writer = writer;
            if let Err(error) = tried {
                let _ = writer.write_all(reason(&error).as_bytes());
            }
            sys::exit_now(0)
        }
        sys::Cloned::Parent { pid, .. } => {
            drop(writer);
            let mut text = String::new();
            let _ = reader.read_to_string(&mut text);
            sys::reap(pid, true);
            (!text.is_empty()).then_some(text)
        }
    }
}

fn refused(error: &io::Error) -> RuntimeError {
    RuntimeError::Config(format!(
        "{}; or run it with sudo, or have a container runtime of this machine run the pods with --runtime cri \
         (`outrigger doctor` says what this machine can do)",
        reason(error)
    ))
}

fn reason(error: &io::Error) -> String {
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).as_deref() == Some(value);
    let fix = if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "have root run `sysctl -w kernel.unprivileged_userns_clone=1`"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "have root run `sysctl -w user.max_user_namespaces=15000`"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor keeps them from programs it does not know: have root run \
         `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or give this program a profile with `userns,`"
    } else if error.raw_os_error() == Some(libc::ENOSPC) {
        "the limit user.max_user_namespaces is reached"
    } else {
        "the kernel or a sandbox around this process does not let ordinary users have them; inside a container, make \
         that a privileged one"
    };
    format!(
        "user {} cannot create a user namespace: {}; {fix}",
        rustix::process::geteuid().as_raw(),
        errno_text(error)
    )
}

/// Why a process has only one id in its user namespace.
#[derive(Debug, thiserror::Error)]
enum OneId {
    #[error(transparent)]
    NoRanges(NoRanges),
    /// The message of newuidmap or newgidmap.
    #[error("the ranges in /etc/subuid and /etc/subgid cannot be mapped ({0})")]
    Refused(String),
}

/// Moves this process into a new user and mount namespace. If it has only one id there, returns why.
fn move_in(uid: u32, gid: u32, ranges: Result<Ranges, NoRanges>) -> io::Result<Option<OneId>> {
    let missing = match ranges {
        Ok(ranges) => map_ranges(uid, gid, &ranges)?.map(OneId::Refused),
        Err(missing) => {
            sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
            Some(OneId::NoRanges(missing))
        }
    };
    if missing.is_some() {
        map_own("uid_map", uid)?;
        if is_unmapped("gid_map") {
            // The kernel requires this. Otherwise a process could leave a group that denies it something.
            fs::write("/proc/self/setgroups", "deny")?;
        }
        map_own("gid_map", gid)?;
    }
    sys::become_root()?;
    Ok(missing)
}

fn is_unmapped(map: &str) -> bool {
    fs::read_to_string(format!("/proc/self/{map}")).is_ok_and(|text| text.trim().is_empty())
}

fn map_own(map: &str, id: u32) -> io::Result<()> {
    if is_unmapped(map) {
        fs::write(format!("/proc/self/{map}"), format!("0 {id} 1\n"))?;
    }
    Ok(())
}

/// Moves in. A child that stays outside maps the ranges with the set-user-id programs. Returns their error if
/// they refuse.
fn map_ranges(uid: u32, gid: u32, ranges: &Ranges) -> io::Result<Option<String>> {
    let (go, moved) = pipe_with(PipeFlags::CLOEXEC)?;
    let (result, report) = pipe_with(PipeFlags::CLOEXEC)?;
    let target = std::process::id();
    let child = match sys::clone3(0, None)? {
        sys::Cloned::Child => {
            drop((moved, result));
            let mut byte = [0];
            // The parent could not move in and has closed the pipe.
            if fs::File::from(go).read_exact(&mut byte).is_ok() {
                let mapped = newidmap(&ranges.programs.0, target, &map_arguments(uid, &ranges.uids))
                    .and_then(|()| newidmap(&ranges.programs.1, target, &map_arguments(gid, &ranges.gids)));
                if let Err(error) = mapped {
                    let _ = fs::File::from(report).write_all(error.to_string().as_bytes());
                }
            }
            sys::exit_now(0)
        }
        sys::Cloned::Parent { pid, .. } => pid,
    };
    drop((go, report));
    let unshared = sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS);
    if unshared.is_ok() {
        let _ = fs::File::from(moved).write_all(&[0]);
    } else {
        drop(moved);
    }
    let mut complaint = String::new();
    let _ = fs::File::from(result).take(COMPLAINT_MAX).read_to_string(&mut complaint);
    sys::reap(child, true);
    unshared?;
    Ok((!complaint.is_empty()).then_some(complaint))
}

/// Why newuidmap or newgidmap did not map the ranges.
#[derive(Debug, thiserror::Error)]
enum MapError {
    #[error("{}: {error}", program.display())]
    Run {
        program: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The program's own message, which begins with its name.
    #[error("{0}")]
    Refused(String),
    #[error("{}: {text}", program.display())]
    Failed { program: PathBuf, text: String },
}

fn newidmap(program: &Path, target: u32, arguments: &[String]) -> Result<(), MapError> {
    let output = Command::new(program)
        .arg(target.to_string())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| MapError::Run { program: program.to_owned(), error })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim();
    Err(match line.starts_with("new") {
        true => MapError::Refused(line.to_owned()),
        false => MapError::Failed { program: program.to_owned(), text: line.to_owned() },
    })
}

/// Replaces this process with the same program. Returns only if that fails.
fn execute_again() -> io::Error {
    let program = match own_program() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let strings = |list: Vec<std::ffi::OsString>| -> Vec<CString> {
        // These came from the kernel as C strings.
        list.into_iter().filter_map(|text| CString::new(text.into_vec()).ok()).collect()
    };
    let environment = std::env::vars_os()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect();
    match sys::cstring(&program) {
        Ok(path) => sys::execve(&path, &strings(std::env::args_os().collect()), &strings(environment)),
        Err(error) => error,
    }
}

/// The path of the program's own file in this mount namespace. `/proc/self/exe` leads to a mount of the
/// previous one.
fn own_program() -> io::Result<PathBuf> {
    let exe = Path::new("/proc/self/exe");
    let (path, own) = (fs::read_link(exe)?, fs::metadata(exe)?);
    let same = fs::metadata(&path).is_ok_and(|found| found.dev() == own.dev() && found.ino() == own.ino());
    Ok(if same { path } else { exe.to_owned() })
}
