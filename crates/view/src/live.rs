//! The live view on a terminal: decides when to draw, and draws.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use outrigger_lifecycle::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::PodView;
use crate::chunk::{Chunk, Now};
use crate::frame::{Size, frame};
use crate::ledger::Ledger;
use crate::line::Look;
use crate::painter::Painter;

/// The pause between two frames: 20 frames per second are smooth enough.
const PAUSE: Duration = Duration::from_millis(50);
/// How often times are updated, while something is in progress and while nothing is.
const TICK_MOVING: Duration = Duration::from_millis(250);
const TICK_STEADY: Duration = Duration::from_secs(1);
/// If a wait took this much longer than planned, the process was probably stopped.
const LATE: Duration = Duration::from_millis(300);
/// If more text than this has scrolled, it is written without waiting for the next frame.
const SCROLLED_MAX: usize = 64 << 10;

/// The state of a run. Workers write it, the view reads it.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    pub(crate) ledger: Ledger,
    /// The state of each pod. Empty without a live view.
    pub(crate) pods: Vec<PodView>,
    /// The width of the column of names in front of lines.
    pub(crate) label: usize,
    /// The files that were written, each with a description and its path.
    pub(crate) written: Vec<(String, String)>,
}

/// The scene, shared between threads.
#[derive(Clone, Default)]
pub(crate) struct Stage {
    scene: Arc<Mutex<Scene>>,
    /// Whether the view was notified of a change and has not drawn it yet.
    told: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
    /// The clock of the run.
    now: Arc<OnceLock<Now>>,
}

impl Stage {
    /// Locks the scene, to read or change it.
    pub(crate) fn scene(&self) -> MutexGuard<'_, Scene> {
        // A panic in another thread does not leave the scene in an invalid state.
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock of the run.
    pub(crate) fn set_clock(&self, now: Now) {
        // The first clock stays, because a run has one clock.
        let _ = self.now.set(now);
    }

    /// The current time of the run.
    pub(crate) fn now(&self) -> Time {
        self.now.get().map_or(Time(0), |now| now())
    }

    /// Whether the view must be notified of a change. False if it was already notified and has not drawn yet.
    pub(crate) fn must_tell(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// Marks the run as over, so that the view makes room for the summary.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the run is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// The terminal on which the view is drawn.
pub(crate) trait Terminal {
    /// The current size.
    fn size(&self) -> Size;
    /// Writes the whole text.
    fn write(&mut self, text: &str) -> io::Result<()>;
    /// How many times Enter was pressed since the last call.
    fn enters(&mut self) -> usize {
        0
    }
}

/// The terminal at standard output.
pub(crate) struct Stdout(File);

impl Stdout {
    /// Opens standard output without a buffer, because each frame must arrive as a whole.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Stdout(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }
}

/// The size of the terminal at standard output.
pub(crate) fn size() -> Size {
    match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            Size { columns: size.ws_col.into(), rows: size.ws_row.into() }
        }
        _ => Size::DEFAULT,
    }
}

impl Terminal for Stdout {
    fn size(&self) -> Size {
        size()
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())
    }

    fn enters(&mut self) -> usize {
        let stdin = rustix::stdio::stdin();
        let mut enters = 0;
        // A process in the background would be stopped if it read from the terminal.
        while rustix::termios::tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp()) {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let is_ready = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
            if !is_ready || !fds[0].revents().contains(PollFlags::IN) {
                break;
            }
            let mut typed = [0; 256];
            match rustix::io::read(stdin, &mut typed) {
                Ok(read @ 1..) => enters += typed[..read].iter().filter(|b| **b == b'\n').count(),
                _ => break,
            }
        }
        enters
    }
}

/// Calls `tell` whenever a key is pressed. So the view is redrawn before repeated Enters move it off the
/// screen.
pub(crate) fn wait_for_keys(tell: impl Fn()) {
    let stdin = rustix::stdio::stdin();
    // Without a terminal, there are no keys. In the background, keys are for another process.
    while let Ok(group) = rustix::termios::tcgetpgrp(stdin) {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        if group != rustix::process::getpgrp() || poll(&mut fds, None).is_err() {
            std::thread::park_timeout(TICK_STEADY);
        } else if fds[0].revents().contains(PollFlags::IN) {
            tell();
            // The input is read when the view is drawn.
            std::thread::park_timeout(PAUSE);
        } else {
            return;
        }
    }
}

/// Draws until all senders are dropped.
pub(crate) fn run(rx: Receiver<Chunk>, stage: &Stage, look: Look, terminal: impl Terminal) {
    let mut view = Live {
        painter: Painter::new(look, terminal.size()),
        terminal,
        stage,
        scrolled: String::new(),
        taken: Vec::new(),
        drawn: Instant::now(),
        broken: false,
    };
    let mut due: Option<Instant> = None;
    loop {
        let wait = match due {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => view.tick(),
        };
        let began = Instant::now();
        let next = rx.recv_timeout(wait);
        // After such a delay, the process may have been stopped, and another one may have used the terminal.
        // If so, a message about it is handled first.
        if began.elapsed() > wait + LATE {
            due = Some(Instant::now() + PAUSE);
        }
        match next {
            Ok(chunk) => view.take(chunk),
            Err(RecvTimeoutError::Timeout) => {
                due.get_or_insert(Instant::now());
            }
            Err(RecvTimeoutError::Disconnected) => return view.draw(),
        }
        let at = *due.get_or_insert(view.drawn + PAUSE);
        if at <= Instant::now() || view.scrolled.len() > SCROLLED_MAX {
            view.draw();
            due = None;
        }
    }
}

struct Live<'a, T> {
    painter: Painter,
    terminal: T,
    stage: &'a Stage,
    /// The lines to show above the view.
    scrolled: String,
    /// The values to drop after these lines are shown.
    taken: Vec<Box<dyn Send>>,
    drawn: Instant,
    /// Whether the terminal is closed. The pods continue.
    broken: bool,
}

impl<T: Terminal> Live<'_, T> {
    fn tick(&self) -> Duration {
        let scene = self.stage.scene();
        let counts_down = scene.ledger.next_pods().next().is_some();
        match counts_down || scene.pods.iter().any(PodView::is_moving) {
            true => TICK_MOVING,
            false => TICK_STEADY,
        }
    }

    fn take(&mut self, chunk: Chunk) {
        match chunk {
            Chunk::Out(bytes, taken) => {
                self.scrolled.push_str(&String::from_utf8_lossy(&bytes));
                self.taken.extend(taken);
            }
            Chunk::Err(bytes) => self.scrolled.push_str(&String::from_utf8_lossy(&bytes)),
            Chunk::Changed => {}
            Chunk::Continued => self.painter.forget(),
            Chunk::Close(bytes, done) => {
                self.scrolled.push_str(&String::from_utf8_lossy(&bytes));
                self.draw();
                // The receiver may be dropped.
                let _ = done.send(());
            }
        }
    }

    fn draw(&mut self) {
        let size = self.terminal.size();
        let view = match self.stage.is_closed() {
            true => Vec::new(),
            false => {
                let now = self.stage.now();
                let scene = self.stage.scene();
                self.stage.told.store(false, Ordering::Release);
                frame(&scene.pods, scene.ledger.next_pods(), now, size)
            }
        };
        self.painter.moved_down(self.terminal.enters());
        let text = self.painter.paint(&self.scrolled, view, size);
        if !text.is_empty() && !self.broken {
            self.broken = self.terminal.write(&text).is_err();
        }
        self.scrolled.clear();
        self.taken.clear();
        self.drawn = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tokio::sync::oneshot;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<String>>>);

    impl Terminal for Screen {
        fn size(&self) -> Size {
            Size { columns: 40, rows: 10 }
        }

        fn write(&mut self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push(text.to_owned());
            Ok(())
        }
    }

    #[test]
    fn a_flood_of_changes_is_few_drawings_and_nothing_is_lost() {
        let (tx, rx) = mpsc::channel();
        let (screen, stage) = (Screen::default(), Stage::default());
        let room = Arc::new(());
        let lines = 2_000;
        for i in 0..lines {
            tx.send(Chunk::Out(format!("line {i}\n").into_bytes(), Some(Box::new(room.clone())))).unwrap();
            tx.send(Chunk::Changed).unwrap();
        }
        let (done, mut closed) = oneshot::channel();
        tx.send(Chunk::Close(b"the end\n".to_vec(), done)).unwrap();
        drop(tx);
        stage.close();
        let began = Instant::now();
        run(rx, &stage, Look { colors: false, unicode: true }, screen.clone());
        let most = 3 + began.elapsed().as_millis() / PAUSE.as_millis();
        assert_eq!(closed.try_recv(), Ok(()));
        assert_eq!(Arc::strong_count(&room), 1, "all room is given back");
        let writes = screen.0.lock().unwrap();
        assert!((writes.len() as u128) <= most, "{} drawings, {most} expected", writes.len());
        let text: String = writes.concat();
        assert_eq!(text.matches("line ").count(), lines);
        assert!(text.contains("the end\n"));
    }
}
