//! The last steps before the user's program: identity, filter, exec. One way for a container's first process and for
//! everything exec'd into it, so that no limit holds for one and not for the other.

use std::ffi::CString;
use std::io;

use super::caps::CapSet;
use super::user::User;
use crate::ContainerSpec;
use crate::embedded::fault::Fault;
use crate::embedded::sys::{self, errno_text};

/// `PATH` where neither image nor manifest says one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What all processes of a container have in common.
#[derive(Clone)]
pub(crate) struct Profile {
    /// Capabilities of the bounding set; a root user has them.
    pub(crate) caps: CapSet,
    pub(crate) no_new_privileges: bool,
    /// AppArmor profile that the user's program gets.
    pub(crate) apparmor: Option<String>,
    /// seccomp program.
    pub(crate) filter: Option<Vec<libc::sock_filter>>,
    /// Environment without `HOME`.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
}

/// The container's environment: defaults, then the image's, then the manifest's; the last word wins, the first place
/// stays.
pub(crate) fn environment(spec: &ContainerSpec, hostname: &str) -> Vec<(String, String)> {
    let mut env =
        vec![("PATH".to_owned(), DEFAULT_PATH.to_owned()), ("HOSTNAME".to_owned(), hostname.to_owned())];
    if spec.tty {
        env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let image = spec.image.env.iter().map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.to_owned())
    });
    for (name, value) in image.chain(spec.env.iter().cloned()) {
        match env.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => env.push((name, value)),
        }
    }
    env
}

/// The command line: the manifest's command replaces ENTRYPOINT and drops CMD, its args replace CMD.
pub(crate) fn command_line(spec: &ContainerSpec) -> Result<Vec<String>, Fault> {
    let line: Vec<String> = match (&spec.command, &spec.args) {
        (Some(command), args) => command.iter().chain(args.iter().flatten()).cloned().collect(),
        (None, Some(args)) => spec.image.entrypoint.iter().chain(args).cloned().collect(),
        (None, None) => spec.image.entrypoint.iter().chain(&spec.image.cmd).cloned().collect(),
    };
    if line.is_empty() {
        return Err(Fault::create(format!(
            "no command specified: image {:?} has neither ENTRYPOINT nor CMD, set command",
            spec.image.reference
        )));
    }
    Ok(line)
}

/// Becomes the user's program. Returns only when that failed.
pub(crate) fn run_program(profile: &Profile, user: &User, command: &[String]) -> Fault {
    match prepare(profile, user).and_then(|()| exec(profile, user, command)) {
        Ok(never) => match never {},
        Err(fault) => fault,
    }
}

fn prepare(profile: &Profile, user: &User) -> Result<(), Fault> {
    let step =
        |what: &'static str| move |error: io::Error| Fault::start(format!("{what}: {}", errno_text(&error)));
    let mut entered = enter(&profile.cwd);

    // Dropping from the bounding set needs SETPCAP, changing ids SETUID and SETGID, a filter without no_new_privs
    // SYS_ADMIN: so everything is kept until the last moment, and the filter gets to see only what comes after it.
    let own =
        rustix::thread::capabilities(None).map_err(|error| step("cannot read capabilities")(error.into()))?;
    for (number, wanted) in profile.caps.numbers() {
        if !wanted {
            match sys::prctl(libc::PR_CAPBSET_DROP, u64::from(number)) {
                Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                    return Err(step("cannot drop a capability")(error));
                }
                // A number past the last capability this kernel knows.
                _ => {}
            }
        }
    }
    sys::prctl(libc::PR_SET_KEEPCAPS, 1).map_err(step("cannot keep capabilities"))?;
    sys::set_ids(user.uid, user.gid, &user.groups).map_err(step("cannot change user"))?;
    set_caps(own.permitted).map_err(step("cannot set capabilities"))?;
    if entered.is_err() {
        // A directory only the user can enter (a network file system that does not trust root).
        entered = enter(&profile.cwd);
    }
    entered
        .map_err(|error| Fault::start(format!("chdir to cwd ({:?}): {}", profile.cwd, errno_text(&error))))?;

    // Changing the user has undone both of these.
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(step("cannot become undumpable"))?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)
        .map_err(step("cannot tie the process to its shim"))?;

    if let Some(name) = &profile.apparmor {
        super::apparmor::change_on_exec(name).map_err(step("cannot set the AppArmor profile"))?;
    }
    if profile.no_new_privileges {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(step("cannot set no_new_privs"))?;
    }
    if let Some(filter) = &profile.filter {
        sys::seccomp_load(filter).map_err(step("cannot load the seccomp filter"))?;
    }
    // What this process does not have it cannot give.
    let caps = rustix::thread::CapabilitySet::from_bits_retain(profile.caps.0) & own.permitted;
    set_caps(caps).map_err(step("cannot set capabilities"))
}

fn set_caps(set: rustix::thread::CapabilitySet) -> io::Result<()> {
    let inheritable = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: set, permitted: set, inheritable };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Enters the working directory and makes sure that it is one of the container's.
fn enter(cwd: &str) -> io::Result<()> {
    rustix::process::chdir(cwd)?;
    // A directory outside this mount namespace has a path that starts with "(unreachable)".
    let path = rustix::process::getcwd(Vec::new())?;
    if path.as_bytes().starts_with(b"/") { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOENT)) }
}

fn exec(profile: &Profile, user: &User, command: &[String]) -> Result<std::convert::Infallible, Fault> {
    let program = &command[0];
    let nul = |_| Fault::start(format!("exec {program:?}: the command or its environment holds a NUL byte"));
    let args =
        command.iter().map(|arg| CString::new(arg.as_str())).collect::<Result<Vec<_>, _>>().map_err(nul)?;
    let mut env = Vec::with_capacity(profile.env.len() + 1);
    for (name, value) in &profile.env {
        env.push(CString::new(format!("{name}={value}")).map_err(nul)?);
    }
    if !profile.env.iter().any(|(name, _)| name == "HOME") {
        env.push(CString::new(format!("HOME={}", user.home)).map_err(nul)?);
    }
    if program.is_empty() {
        return Err(Fault::start("exec \"\": the program's name is empty"));
    }
    if program.contains('/') {
        let error = sys::execve(&args[0], &args, &env);
        return Err(Fault::start(format!("exec {program:?}: {}", errno_text(&error))));
    }
    let path = profile.env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
    let mut refused = None;
    for dir in path.split(':') {
        let candidate =
            CString::new(format!("{}/{program}", if dir.is_empty() { "." } else { dir })).map_err(nul)?;
        let error = sys::execve(&candidate, &args, &env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => refused = Some(error),
            _ => return Err(Fault::start(format!("exec {program:?}: {}", errno_text(&error)))),
        }
    }
    Err(Fault::start(match refused {
        Some(error) => format!("exec {program:?}: {}", errno_text(&error)),
        None => format!("exec {program:?}: executable file not found in $PATH"),
    }))
}
