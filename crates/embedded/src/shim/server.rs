//! The shim's main loop: one poll for signals, clients and the container's output.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::clients::Client;
use super::create::{Container, Terminal};
use super::exec::Exec;
use crate::fault::Fault;
use crate::protocol::{
    ATTACH_DESCRIPTORS, Reply, Request, ShimConfig, StartedRecord, Streams, attached_to, time,
};
use crate::{layout, socket, sys};
use outrigger_runtime::{Exit, private};

/// How long clients that are attached to an ended container may take to read the rest of its output.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often to retry writing an exit to disk.
const SAVE_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The maximum number of clients at a time.
const CLIENTS_MAX: usize = 16;

struct Shim {
    signals: OwnedFd,
    listener: Option<OwnedFd>,
    clients: Vec<Client>,
    next_token: u64,
    /// The container's directory and the directory of its own layer, when they exist.
    dirs: Option<(PathBuf, PathBuf)>,
    container: Option<Container>,
    execs: Vec<Exec>,
    /// Whether the container has ended but its exit could not be written to disk yet.
    is_unsaved: bool,
    /// Whether there is no more work.
    done: bool,
}

/// Serves one container until its end.
pub(super) fn run(control: OwnedFd) -> io::Result<()> {
    let mut shim = Shim {
        signals: sys::signalfd(&[libc::SIGCHLD])?,
        listener: None,
        clients: vec![Client::new(0, control)?],
        next_token: 1,
        dirs: None,
        container: None,
        execs: Vec::new(),
        is_unsaved: false,
        done: false,
    };
    while !shim.done {
        shim.turn()?;
    }
    Ok(())
}

/// Writes a container's state to disk. Returns whether that fails for now, because the disk is full or
/// read-only.
fn cannot_save_yet(container: &Container) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let failed = container.try_save().err().map(|error| error.kind());
    matches!(failed, Some(QuotaExceeded | ReadOnlyFilesystem | StorageFull))
}

impl Shim {
    fn turn(&mut self) -> io::Result<()> {
        let ready = self.wait()?;
        // Children come first, because a client must not delay an exit.
        if ready.signals {
            let mut info = [0_u8; 128];
            while rustix::io::read(&self.signals, &mut info).is_ok_and(|count| count > 0) {}
            self.reap();
        }
        if self.is_unsaved && !self.container.as_ref().is_some_and(cannot_save_yet) {
            self.leave();
        }
        if self.done {
            return Ok(());
        }
        if let Some(container) = &mut self.container {
            for index in ready.streams {
                container.streams[index].pump(&mut container.log);
            }
            if ready.watchers {
                container.streams.iter_mut().for_each(|stream| stream.watchers.flush());
            }
        }
        self.tell_trouble();
        if ready.listener {
            self.accept();
        }
        for index in ready.clients {
            self.clients[index].receive();
            while let Some((request, fds)) = self.clients[index].next() {
                self.handle(index, request, fds);
                if self.done {
                    return Ok(());
                }
            }
        }
        self.drop_closed_clients();
        Ok(())
    }

    fn wait(&self) -> io::Result<Ready> {
        let read = PollFlags::IN;
        let mut fds = vec![PollFd::new(&self.signals, read)];
        fds.extend(self.listener.iter().map(|fd| PollFd::new(fd, read)));
        let clients = fds.len();
        fds.extend(self.clients.iter().map(|client| PollFd::new(client.fd(), read)));
        let streams = fds.len();
        let open: Vec<usize> = match &self.container {
            Some(container) => {
                (0..container.streams.len()).filter(|index| container.streams[*index].is_open()).collect()
            }
            None => Vec::new(),
        };
        if let Some(container) = &self.container {
            fds.extend(open.iter().map(|index| PollFd::new(container.streams[*index].fd(), read)));
        }
        let watchers = fds.len();
        let waiting = self.container.iter().flat_map(|container| &container.streams);
        fds.extend(
            waiting.flat_map(|stream| stream.watchers.waiting()).map(|fd| PollFd::new(fd, PollFlags::OUT)),
        );
        match poll(&mut fds, self.is_unsaved.then_some(&SAVE_AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |index: usize| !fds[index].revents().is_empty();
        Ok(Ready {
            signals: is_ready(0),
            watchers: (watchers..fds.len()).any(is_ready),
            listener: self.listener.is_some() && is_ready(1),
            clients: (0..self.clients.len()).filter(|index| is_ready(clients + index)).collect(),
            streams: open
                .iter()
                .enumerate()
                .filter(|(at, _)| is_ready(streams + at))
                .map(|(_, index)| *index)
                .collect(),
        })
    }

    /// Reaps every child that has ended.
    fn reap(&mut self) {
        let mut ended = None;
        while let Some(reaped) = sys::reap(-1, false) {
            if self.container.as_ref().is_some_and(|container| container.pid == reaped.pid) {
                ended = Some(reaped);
            } else if let Some(index) = self.execs.iter().position(|exec| exec.ends_with(reaped.pid)) {
                let exec = self.execs.swap_remove(index);
                let (client, id) = (exec.client, exec.id);
                if let Some(oci) = self.container.as_ref().and_then(|container| container.oci.as_ref()) {
                    oci.forget_command(exec.forked());
                }
                let result = exec.finish(reaped.code);
                self.reply_to(client, &Reply::ExecDone { id, result });
            } else {
                self.execs.iter().for_each(|exec| exec.saw_end_of(reaped.pid));
            }
        }
        if let Some(reaped) = ended {
            self.end(reaped);
        }
    }

    /// Handles the end of the container's first process, which is the end of the container.
    fn end(&mut self, reaped: sys::Reaped) {
        let finished_ns = sys::now_ns();
        let Some(container) = &mut self.container else { return };
        if !container.own_pids {
            container.kill_rest();
            // The container's mounts end with it.
            container.mounts = None;
        }
        let Container { streams, log, .. } = container;
        for stream in streams {
            stream.finish(log);
        }
        self.tell_trouble();
        let Some(container) = &mut self.container else { return };
        let exit = Exit {
            code: reaped.code,
            signal: reaped.signal,
            oom_killed: reaped.code != 0 && container.limits.oom_killed(),
            started_at: time(container.state.started.map_or(finished_ns, |started| started.at_ns)),
            finished_at: time(finished_ns),
            detail: None,
        };
        container.state.exit = Some(exit.clone());
        self.is_unsaved = cannot_save_yet(container);
        self.broadcast(&Reply::Exited(exit));
        self.last_words();
        if !self.is_unsaved {
            self.leave();
        }
    }

    /// Gives attached clients a moment to read the rest of the output.
    fn last_words(&mut self) {
        let Some(container) = &mut self.container else { return };
        let deadline = Instant::now() + LAST_WORDS;
        loop {
            container.streams.iter_mut().for_each(|stream| stream.watchers.flush());
            let waiting = container.streams.iter().flat_map(|stream| stream.watchers.waiting());
            let mut fds: Vec<_> = waiting.map(|fd| PollFd::new(fd, PollFlags::OUT)).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else { return };
            if fds.is_empty() || Instant::now() >= deadline || poll(&mut fds, Some(&left)).is_err() {
                return;
            }
        }
    }

    /// Reports that a part of the container's output is lost.
    fn tell_trouble(&mut self) {
        let Some(container) = &mut self.container else { return };
        if let Some(trouble) = container.log.trouble.take() {
            let text = format!("output of container {:?} is lost: its log: {trouble}", container.name);
            self.broadcast(&Reply::Warning(text));
        }
    }

    /// Removes the shim's own files, after all clients have got the exit.
    fn leave(&mut self) {
        // Commands in the container died with it, or were killed with its cgroup. Reaping them empties the
        // cgroup.
        for exec in &mut self.execs {
            exec.kill();
        }
        while sys::reap(-1, false).is_some() {}
        if let Some(container) = &self.container {
            container.remove_cgroup();
        }
        if let Some((dir, layer)) = self.dirs.take() {
            let _ = std::fs::remove_file(dir.join("sock"));
            let waste = layout::discard_layer(&layer).ok().flatten();
            // Nobody has to wait for the rest. Removing a directory takes milliseconds on some file systems.
            self.clients.clear();
            if let Some(waste) = waste {
                let _ = layout::remove_tree(&waste);
            }
        }
        self.done = true;
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let Ok(fd) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else { return };
        // The directory and the socket's mode already keep others out, unless someone has changed them.
        if !socket::is_own(&fd) || self.clients.len() >= CLIENTS_MAX {
            return;
        }
        if let Ok(mut client) = Client::new(self.next_token, fd) {
            self.next_token += 1;
            let state = self.container.as_ref().map(|container| &container.state);
            let exit = state.and_then(|state| state.exit.clone());
            let started = state.and_then(|state| state.started);
            client.send(&exit.map_or_else(|| started.map_or(Reply::Created, Reply::Started), Reply::Exited));
            self.clients.push(client);
        }
    }

    fn drop_closed_clients(&mut self) {
        let (open, closed): (Vec<_>, Vec<_>) = self.clients.drain(..).partition(Client::is_open);
        self.clients = open;
        for client in closed {
            for exec in self.execs.iter_mut().filter(|exec| exec.client == client.token) {
                exec.kill();
            }
        }
        let started = self.container.as_ref().is_some_and(Container::is_started);
        if self.clients.is_empty() && !started {
            // No client is left that could start it.
            if let Some(container) = &mut self.container {
                container.discard();
            }
            self.leave();
        }
    }

    fn handle(&mut self, index: usize, request: Request, fds: Vec<OwnedFd>) {
        match request {
            Request::Create(config) => self.create(index, &config),
            Request::Start => self.start(index),
            Request::Signal(signal) => {
                if let Some(container) = &self.container {
                    container.signal(signal);
                }
            }
            // A client that wants to kill an ended container already knows its exit.
            Request::Kill if self.is_unsaved => self.leave(),
            Request::Kill => {
                if let Some(container) = &self.container {
                    container.kill();
                }
            }
            Request::Exec { id, command, streams } => self.exec(index, id, &command, streams, fds),
            Request::Attach => self.attach(fds),
            Request::CancelExec { id } => {
                let client = self.clients[index].token;
                if let Some(exec) = self.execs.iter_mut().find(|exec| exec.client == client && exec.id == id)
                {
                    exec.kill();
                }
            }
        }
    }

    fn create(&mut self, index: usize, config: &ShimConfig) {
        if self.container.is_some() {
            return self.clients[index]
                .send(&Reply::Failed(Fault::other("the container was created before")));
        }
        self.dirs = Some((config.dir.clone(), config.layer_dir()));
        // Held until the container is created, so that a pod whose owner has died is not removed in the
        // meantime.
        let making = layout::begin_making(&config.sandbox.dir).map_err(|error| {
            let dir = config.sandbox.dir.display();
            Fault::create(format!("{dir} is being removed: {}", sys::errno_text(&error)))
        });
        let _making = match making {
            Ok(making) => making,
            Err(fault) => return self.fail(fault),
        };
        let client = &mut self.clients[index];
        let created = listen(config).and_then(|listener| {
            let container = Container::create(config, &mut |warning| client.send(&Reply::Warning(warning)))?;
            Ok((listener, container))
        });
        match created {
            Ok((listener, container)) => {
                self.listener = Some(listener);
                self.container = Some(container);
                self.clients[index].send(&Reply::Created);
                // From here on, all messages go over the socket. A reader of the agent's standard error would
                // otherwise wait for its end. Standard input is /dev/null.
                let _ = rustix::stdio::dup2_stderr(rustix::stdio::stdin());
            }
            Err(fault) => self.fail(fault),
        }
    }

    fn start(&mut self, index: usize) {
        let Some(container) = &mut self.container else {
            return self.clients[index].send(&Reply::Failed(Fault::other("there is no container to start")));
        };
        match container.start(&mut self.clients) {
            Ok(()) => {
                let started = StartedRecord { at_ns: sys::now_ns(), pid: container.pid as u32 };
                container.state.started = Some(started);
                self.broadcast(&Reply::Started(started));
                if let Some(container) = &self.container {
                    container.save();
                }
            }
            Err(fault) => {
                container.discard();
                self.fail(fault);
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        self.broadcast(&Reply::Failed(fault));
        self.leave();
    }

    fn exec(&mut self, index: usize, id: u64, command: &[String], streams: Streams, fds: Vec<OwnedFd>) {
        let client = self.clients[index].token;
        let started = match &self.container {
            _ if fds.len() != streams.descriptors() => {
                Err(Fault::other("an exec request came without the descriptors for its streams"))
            }
            Some(container) if container.is_started() => {
                Exec::start(container, client, id, command, streams, &fds)
            }
            _ => Err(Fault::other("the container is not running")),
        };
        match started {
            Ok(exec) => self.execs.push(exec),
            Err(fault) => self.clients[index].send(&Reply::ExecDone { id, result: Err(fault) }),
        }
    }

    /// Attaches a client to the container's output and input. If the container does not run, there is no
    /// answer.
    fn attach(&mut self, fds: Vec<OwnedFd>) {
        let Some(container) = self.container.as_mut().filter(|container| container.is_started()) else {
            return;
        };
        let Ok([stdout, stderr, answer]) = <[OwnedFd; ATTACH_DESCRIPTORS]>::try_from(fds) else { return };
        let (word, fd) = match (container.terminal, &container.stdin) {
            (Some(Terminal::Both), _) => {
                (attached_to::TERMINAL, container.streams.first().map(|stream| stream.fd()))
            }
            (Some(Terminal::Screen), _) => {
                (attached_to::SCREEN, container.streams.first().map(|stream| stream.fd()))
            }
            (None, Some(stdin)) => (attached_to::PIPES, Some(stdin)),
            (None, None) => (attached_to::OUTPUT, None),
        };
        let fd: Vec<_> = fd.map(AsFd::as_fd).into_iter().collect();
        if socket::send(answer.as_fd(), &[word], &fd).is_err() {
            return;
        }
        for (stream, fd) in container.streams.iter_mut().zip([stdout, stderr]) {
            stream.watchers.add(fd);
        }
    }

    fn broadcast(&mut self, reply: &Reply) {
        for client in &mut self.clients {
            client.send(reply);
        }
    }

    fn reply_to(&mut self, token: u64, reply: &Reply) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.token == token) {
            client.send(reply);
        }
    }
}

/// The result of poll.
struct Ready {
    signals: bool,
    watchers: bool,
    listener: bool,
    clients: Vec<usize>,
    streams: Vec<usize>,
}

/// Opens the socket through which a restarted agent finds the shim.
fn listen(config: &ShimConfig) -> Result<OwnedFd, Fault> {
    let bound = || -> io::Result<OwnedFd> {
        // Its parents are not created. A pod that was removed in the meantime must not be partly created
        // again.
        private::make(&config.dir)?;
        let dir = layout::open_dir(&config.dir)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The umask ensures that others cannot connect at any moment. The shim has only one thread.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(layout::socket_path(&dir))?);
        rustix::process::umask(mask);
        bound?;
        rustix::net::listen(&socket, 8)?;
        Ok(socket)
    };
    bound().map_err(|error| {
        Fault::create(format!("cannot listen in {}: {}", config.dir.display(), sys::errno_text(&error)))
    })
}
