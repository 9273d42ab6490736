//! The last steps before the user's program: identity, filter, exec. A container's first process and
//! everything that is exec'd into it use the same code, so that the same limits apply to both.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::thread::CapabilitySet;

use super::user::User;
use super::verify::process as verify;
use crate::caps::CapSet;
use crate::fault::Fault;
use crate::seccomp;
use crate::sys::{self, PidSlot, errno_text};
use outrigger_runtime::ContainerSpec;

/// The `PATH` if neither the image nor the manifest sets it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The settings that all processes of a container have in common.
#[derive(Clone)]
pub(crate) struct Profile {
    /// The capabilities of the bounding set. A root user has them.
    pub(crate) caps: CapSet,
    pub(crate) no_new_privileges: bool,
    /// The AppArmor profile of the user's program.
    pub(crate) apparmor: Option<String>,
    /// The seccomp program.
    pub(crate) filter: Option<Vec<libc::sock_filter>>,
    /// The environment without `HOME`.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
}

/// The container's environment: defaults, then the image's, then the manifest's. The last value of a variable
/// wins, and its first position is kept.
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
    // A map is used because an image may have any number of variables.
    let mut places: HashMap<String, usize> =
        env.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
    for (name, value) in image.chain(spec.env.iter().cloned()) {
        match places.get(&name) {
            Some(place) => env[*place].1 = value,
            None => {
                places.insert(name.clone(), env.len());
                env.push((name, value));
            }
        }
    }
    env
}

impl Profile {
    /// Makes the kernel apply the container's AppArmor profile when the program is executed. This needs the
    /// host's /proc, so it comes before joining the container's namespaces. Forked processes inherit the
    /// setting.
    pub(crate) fn confine_on_exec(&self) -> Result<(), Fault> {
        match &self.apparmor {
            Some(name) => {
                super::apparmor::change_on_exec(name).map_err(step("cannot set the AppArmor profile"))
            }
            None => Ok(()),
        }
    }
}

/// The command line. The manifest's command replaces ENTRYPOINT and drops CMD. Its args replace CMD.
pub(crate) fn command_line(spec: &ContainerSpec) -> Result<Vec<String>, Fault> {
    let line: Vec<String> = match (&spec.command, &spec.args) {
        (Some(command), args) => command.iter().chain(args.iter().flatten()).cloned().collect(),
        (None, Some(args)) => spec.image.entrypoint.iter().chain(args).cloned().collect(),
        (None, None) => spec.image.entrypoint.iter().chain(&spec.image.cmd).cloned().collect(),
    };
    if line.is_empty() {
        return Err(Fault::image(format!(
            "no command specified: image {:?} has neither ENTRYPOINT nor CMD, set command",
            spec.image.reference
        )));
    }
    Ok(line)
}

/// A program to start in a container.
///
/// A process with CAP_SYS_PTRACE in a container may read and change every process that it sees, and
/// everything that such a process still has open. If others share the container's pid namespace, the caller
/// is therefore in all of the container's namespaces except that one. It does everything that is possible out
/// of their sight. Only then does it fork the program's process, which has nothing left to do but to execute
/// the program.
pub(crate) struct Launch<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) user: &'a User,
    pub(crate) command: &'a [String],
    /// Whether standard input is a terminal and becomes the controlling terminal.
    pub(crate) terminal: bool,
    /// Fork the program's process and store its pid here. `None` means that the caller is alone in its pid
    /// namespace and becomes the program itself.
    pub(crate) fork: Option<&'a PidSlot>,
    /// The descriptor for reporting a failure. Apart from the standard streams, only this one stays open.
    pub(crate) report_to: BorrowedFd<'a>,
}

impl Launch<'_> {
    /// Becomes the program, or forks it as a sibling and ends. In both processes, a failure is reported with
    /// `report`.
    pub(crate) fn run(&self, report: impl FnOnce(BorrowedFd<'_>, Fault)) -> ! {
        // The arguments show the name of the container on the host.
        sys::hide_arguments();
        let closed = sys::keep_only(self.report_to).map_err(step("cannot close descriptors"));
        let fault = match closed.and_then(|()| self.launch()) {
            Ok(never) => match never {},
            Err(fault) => fault,
        };
        report(self.report_to, fault);
        sys::exit_now(128)
    }

    fn launch(&self) -> Result<Infallible, Fault> {
        let program = Program::new(self.profile, self.user, self.command)?;
        sys::reset_signals();
        let Some(slot) = self.fork else {
            self.take_terminal()?;
            let before = self.become_user()?;
            self.confine(&before)?;
            return Err(program.exec());
        };
        let before = self.become_user()?;
        let early = self.profile.filter.as_ref().is_none_or(|filter| self.can_launch_under(filter));
        if early {
            self.confine(&before)?;
        }
        if !sys::fork_sibling(slot).map_err(step("cannot fork"))? {
            sys::exit_now(0);
        }
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map_err(step(TIE))?;
        rustix::process::setsid().map_err(|error| step("cannot start a session")(error.into()))?;
        self.take_terminal()?;
        if !early {
            self.confine(&before)?;
        }
        Err(program.exec())
    }

    fn become_user(&self) -> Result<verify::Before, Fault> {
        prepare(self.profile, self.user)?;
        verify::check_identity(self.profile, self.user, self.report_to)
    }

    fn confine(&self, before: &verify::Before) -> Result<(), Fault> {
        confine(self.profile)?;
        verify::check_confinement(self.profile, self.user, before)
    }

    fn take_terminal(&self) -> Result<(), Fault> {
        if self.terminal {
            sys::set_controlling_terminal(rustix::stdio::stdin()).map_err(step("cannot use the terminal"))?;
        }
        Ok(())
    }

    /// Whether the container's own filter allows all remaining steps. If not, the program's process must load
    /// the filter itself, at the very end.
    fn can_launch_under(&self, filter: &[libc::sock_filter]) -> bool {
        let mut calls: Vec<(i64, u64)> = vec![
            (libc::SYS_capset, 0),
            (libc::SYS_clone, sys::SIBLING_FLAGS as u64),
            (libc::SYS_prctl, libc::PR_SET_PDEATHSIG as u64),
            (libc::SYS_setsid, 0),
            (libc::SYS_execve, 0),
            (libc::SYS_sendmsg, 0),
            (libc::SYS_write, 0),
            (libc::SYS_exit_group, 0),
        ];
        if self.terminal {
            calls.push((libc::SYS_ioctl, 0));
        }
        calls.iter().all(|(number, first)| seccomp::allows(filter, *number, &[*first]))
    }
}

const TIE: &str = "cannot tie the process to its shim";

/// Turns an error of one step into a fault.
fn step(what: &'static str) -> impl Fn(io::Error) -> Fault {
    move |error| Fault::start(format!("{what}: {}", errno_text(&error)))
}

/// Becomes the user, in the container's working directory, but keeps all capabilities.
fn prepare(profile: &Profile, user: &User) -> Result<(), Fault> {
    let mut entered = enter(&profile.cwd);

    // Dropping from the bounding set needs SETPCAP, changing ids needs SETUID and SETGID, and a filter
    // without no_new_privs needs SYS_ADMIN. All capabilities are therefore kept until the last moment. The
    // filter applies only to the steps after it.
    let own = permitted()?;
    for (number, wanted) in profile.caps.numbers() {
        if !wanted {
            match sys::prctl(libc::PR_CAPBSET_DROP, u64::from(number)) {
                Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                    return Err(step("cannot drop a capability")(error));
                }
                // This kernel does not know this capability or a higher one.
                _ => {}
            }
        }
    }
    // This comes while the process is still root, because users have a small quota of keys.
    sys::join_new_keyring().map_err(step("cannot leave the session keyring"))?;
    sys::prctl(libc::PR_SET_KEEPCAPS, 1).map_err(step("cannot keep capabilities"))?;
    sys::set_ids(user.uid, user.gid, &user.groups).map_err(step("cannot change user"))?;
    set_caps(own).map_err(step("cannot set capabilities"))?;
    if entered.is_err() {
        // Only the user can enter the directory, for example on a network file system that does not trust
        // root.
        entered = enter(&profile.cwd);
    }
    entered
        .map_err(|error| Fault::start(format!("chdir to cwd ({:?}): {}", profile.cwd, errno_text(&error))))?;
    // Changing the user has undone both settings.
    sys::prctl(libc::PR_SET_DUMPABLE, 0).map_err(step("cannot become undumpable"))?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map_err(step(TIE))
}

/// Permanently drops the privileges that the program must not have.
fn confine(profile: &Profile) -> Result<(), Fault> {
    // This process cannot give more capabilities than it has.
    let caps = CapabilitySet::from_bits_retain(profile.caps.0) & permitted()?;
    if profile.no_new_privileges {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(step("cannot set no_new_privs"))?;
    }
    if let Some(filter) = &profile.filter {
        sys::seccomp_load(filter).map_err(step("cannot load the seccomp filter"))?;
    }
    set_caps(caps).map_err(step("cannot set capabilities"))
}

fn permitted() -> Result<CapabilitySet, Fault> {
    let sets =
        rustix::thread::capabilities(None).map_err(|error| step("cannot read capabilities")(error.into()))?;
    Ok(sets.permitted)
}

fn set_caps(set: CapabilitySet) -> io::Result<()> {
    let inheritable = CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: set, permitted: set, inheritable };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Enters the working directory and checks that it is inside the container.
fn enter(cwd: &str) -> io::Result<()> {
    rustix::process::chdir(cwd)?;
    // A directory outside this mount namespace has a path that starts with "(unreachable)".
    let path = rustix::process::getcwd(Vec::new())?;
    if path.as_bytes().starts_with(b"/") { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOENT)) }
}

/// The program to execute, in the form that the kernel expects.
struct Program {
    name: String,
    /// The possible paths, in the order in which they are tried.
    candidates: Vec<CString>,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn new(profile: &Profile, user: &User, command: &[String]) -> Result<Self, Fault> {
        let name = command.first().cloned().unwrap_or_default();
        if name.is_empty() {
            return Err(Fault::start("exec \"\": the program's name is empty"));
        }
        let nul = |_| Fault::start(format!("exec {name:?}: the command or its environment holds a NUL byte"));
        let args = command
            .iter()
            .map(|arg| CString::new(arg.as_str()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(nul)?;
        let mut env = Vec::with_capacity(profile.env.len() + 1);
        for (name, value) in &profile.env {
            env.push(CString::new(format!("{name}={value}")).map_err(nul)?);
        }
        if !profile.env.iter().any(|(name, _)| name == "HOME") {
            env.push(CString::new(format!("HOME={}", user.home)).map_err(nul)?);
        }
        let candidates = if name.contains('/') {
            vec![args[0].clone()]
        } else {
            let path = profile.env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, value)| value);
            let in_dir = |dir: &str| format!("{}/{name}", if dir.is_empty() { "." } else { dir });
            path.split(':')
                .map(|dir| CString::new(in_dir(dir)))
                .collect::<Result<Vec<_>, _>>()
                .map_err(nul)?
        };
        Ok(Program { name, candidates, args, env })
    }

    /// Becomes the program. Returns only if that fails.
    fn exec(&self) -> Fault {
        let failed = |error: &io::Error| Fault::start(format!("exec {:?}: {}", self.name, errno_text(error)));
        let is_path = self.name.contains('/');
        let mut refused = None;
        for candidate in &self.candidates {
            let error = sys::execve(candidate, &self.args, &self.env);
            match error.raw_os_error() {
                _ if is_path => return failed(&error),
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => refused = Some(error),
                _ => return failed(&error),
            }
        }
        match refused {
            Some(error) => failed(&error),
            None => Fault::start(format!("exec {:?}: executable file not found in $PATH", self.name)),
        }
    }
}
