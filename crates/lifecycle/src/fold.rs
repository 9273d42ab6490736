//! Updates the observation, after an event ([`Observation::apply`]) and after an action
//! ([`Observation::mark`]). Both are pure and accept every input, and a repeated event has no effect.

use std::sync::Arc;

use crate::action::{Action, Event};
use crate::backoff;
use crate::engine::{Change, can_restart};
use crate::observation::{
    Container, Exit, ExitReason, Hook, Image, Kill, KillReason, Observation, Rerun, RerunCause, SandboxState,
    StartFailure, State, Stop, StopCause,
};
use crate::plan::{Plan, Role};
use crate::probe;
use crate::rules;
use crate::time::Time;

impl Observation {
    /// Applies an event. Repeated events, and events of another instance than the current one, change
    /// nothing.
    pub fn apply(&mut self, plan: &Plan, event: &Event, now: Time) {
        self.latch_gates(plan);
        match event {
            Event::SandboxReady => self.sandbox_ready(),
            Event::SandboxFailed { message, .. } => self.sandbox_failed(message, now),
            Event::SandboxLost => self.sandbox.state = SandboxState::Lost,
            Event::ImageReady { container } => {
                if let Some(c) = self.containers.get_mut(*container) {
                    c.image = Image::Present;
                    c.image_failures = 0;
                }
            }
            Event::ImageFailed { container, reason, message, .. } => {
                self.image_failed(*container, reason, message, now);
            }
            Event::ImageChanged { container } => self.image_changed(plan, *container),
            Event::Started { container, attempt } => self.started(plan, *container, *attempt, now),
            Event::StartFailed { container, attempt, reason, message, .. } => {
                if let Some(c) = self.current(*container, *attempt) {
                    c.start_failed(reason, message, now);
                }
            }
            Event::Exited { container, attempt, exit } => self.exited(plan, *container, *attempt, exit),
            Event::Lost { container, attempt } => {
                if self.current(*container, *attempt).is_some_and(|c| c.state.is_alive()) {
                    self.latch(plan, *container);
                    self.containers[*container].state = State::Unknown;
                }
            }
            Event::Probed { container, attempt, kind, outcome, message, .. } => {
                if let Some(c) = self.current(*container, *attempt)
                    && let State::Running { since } = c.state
                    && let Some(p) = plan.containers[*container].probe(*kind)
                {
                    let state = &mut c.probes[*kind as usize];
                    state.message.clone_from(message);
                    probe::record(p, state, since, *outcome, now);
                    self.latch(plan, *container);
                }
            }
            Event::HookEnded { container, attempt, hook, error } => {
                if let Some(c) = self.current(*container, *attempt)
                    && c.hook(*hook).is_running()
                {
                    *c.hook_mut(*hook) = match error {
                        None => Hook::Done,
                        Some(message) => Hook::Failed { message: message.clone() },
                    };
                    c.was_launched |= c.post_start.is_over();
                    self.latch(plan, *container);
                }
            }
            Event::VolumeMeasured { volume, bytes } => {
                if let Some(held) = self.volume_bytes.get_mut(*volume) {
                    *held = *bytes;
                }
            }
            Event::RestartRequested { container } => {
                if can_restart(plan, self, *container).is_ok() {
                    self.restart_requested(*container);
                }
            }
            Event::StopRequested { grace_ms } => {
                self.begin_stop(plan, StopCause::Deleted, grace_ms.unwrap_or(plan.grace_ms), now);
            }
            Event::CannotStart { container, grace_ms } => {
                let cause = StopCause::CannotStart { container: *container };
                self.begin_stop(plan, cause, grace_ms.unwrap_or(plan.grace_ms), now);
            }
            Event::NotRetried { container, grace_ms } => {
                let cause = StopCause::NotRetried { container: *container };
                self.begin_stop(plan, cause, grace_ms.unwrap_or(plan.grace_ms), now);
            }
            Event::NodeShutdown { grace_ms } => {
                self.begin_stop(plan, StopCause::NodeShutdown, plan.grace_ms.min(*grace_ms), now);
            }
        }
    }

    /// Marks an action as taken, so that the next decision does not request it again.
    pub fn mark(&mut self, plan: &Plan, action: &Action, now: Time) {
        match *action {
            Action::CreateSandbox { attempt } => {
                self.sandbox.state = SandboxState::Creating;
                self.sandbox.attempt = attempt;
            }
            Action::Pull { container } => self.containers[container].image = Image::Pulling,
            Action::Start { container, attempt } => self.start(plan, container, attempt, now),
            Action::RunHook { container, hook, .. } => {
                *self.containers[container].hook_mut(hook) = Hook::Running { since: now };
            }
            Action::CancelHook { container, hook, .. } => {
                let c = &mut self.containers[container];
                *c.hook_mut(hook) = Hook::Failed { message: Arc::from("given up") };
                c.was_launched |= c.post_start.is_over();
            }
            Action::Probe { container, kind, .. } => {
                self.containers[container].probes[kind as usize].in_flight = Some(now);
            }
            Action::Terminate { container, .. } => {
                if let Some(kill) = &mut self.containers[container].kill {
                    kill.signalled_at = Some(now);
                }
            }
            Action::Kill { container, .. } => {
                if let Some(kill) = &mut self.containers[container].kill {
                    kill.killed_at = Some(now);
                }
            }
            Action::BeginKill { container, reason, deadline } => {
                self.containers[container].kill =
                    Some(Kill { reason, since: now, deadline, signalled_at: None, killed_at: None });
            }
            Action::BeginStop { cause, grace_ms } => self.begin_stop(plan, cause, grace_ms, now),
            Action::BeginRerun { cause, deadline } => self.begin_rerun(plan, cause, deadline, now),
            Action::Rerun => self.rerun(plan, now),
            Action::Finish => self.over = true,
        }
    }

    /// Prepares an observation that was stored before the observer crashed. Nothing that was in progress then
    /// is in progress now. Hooks are not run a second time (G-45). The result of a start is unknown until the
    /// runtime reports it.
    pub fn recover(&mut self) {
        if self.sandbox.state == SandboxState::Creating {
            self.sandbox.state = SandboxState::Absent;
        }
        for c in &mut self.containers {
            if c.image == Image::Pulling {
                c.image = Image::Unknown;
            }
            if matches!(c.state, State::Starting { .. }) {
                c.state = State::Unknown;
            }
            for probe in &mut c.probes {
                probe.in_flight = None;
            }
            // A first start whose hook was running counts as launched. The result of the hook is lost.
            c.was_launched |= c.post_start.is_running();
            for hook in [&mut c.post_start, &mut c.pre_stop, &mut c.first_pre_stop] {
                if hook.is_running() {
                    *hook = Hook::Done;
                }
            }
        }
    }

    /// Undoes a start that was marked but never reached the runtime, because the observer ended in between.
    /// This is not a failure: the container is started as if it had not been marked.
    pub fn take_back_start(&mut self, container: usize) {
        if let Some(c) = self.containers.get_mut(container)
            && matches!(c.state, State::Starting { .. } | State::Unknown)
        {
            c.state = State::Waiting;
            c.kill = None;
        }
    }

    /// Forgets the state of a container's image, so that it is checked before the next start.
    pub fn forget_image(&mut self, container: usize) {
        if let Some(c) = self.containers.get_mut(container)
            && c.image == Image::Present
        {
            c.image = Image::Unknown;
        }
    }

    /// The container, if the event is about its current instance.
    fn current(&mut self, container: usize, attempt: u32) -> Option<&mut Container> {
        self.containers.get_mut(container).filter(|c| c.attempt == attempt)
    }

    fn latch(&mut self, plan: &Plan, container: usize) {
        let p = &plan.containers[container];
        let c = &mut self.containers[container];
        c.was_started |= rules::is_started(p, c);
        c.was_ready |= c.was_started && rules::is_ready(p, c);
    }

    /// Records which containers have open gates, before an event can close these again.
    fn latch_gates(&mut self, plan: &Plan) {
        for (i, p) in plan.containers.iter().enumerate() {
            let c = &self.containers[i];
            if c.state != State::Waiting || c.was_run || c.gates_were_open {
                continue;
            }
            let mut gates = p.gates.iter().filter(|g| rules::opens_once(g));
            self.containers[i].gates_were_open = gates.all(|g| rules::gate_open(plan, self, i, g));
        }
    }

    fn sandbox_ready(&mut self) {
        if self.sandbox.state != SandboxState::Lost {
            self.sandbox.state = SandboxState::Ready;
            self.sandbox.failures = 0;
            self.sandbox.message = None;
        }
    }

    fn sandbox_failed(&mut self, message: &Arc<str>, now: Time) {
        let sandbox = &mut self.sandbox;
        // Otherwise the event is a repetition, or about a sandbox that is already lost.
        if sandbox.state == SandboxState::Creating {
            sandbox.state = SandboxState::Absent;
            sandbox.failures += 1;
            sandbox.retry_at = now + backoff::start_wait_ms(sandbox.failures);
            sandbox.message = Some(message.clone());
        }
    }

    fn image_failed(&mut self, container: usize, reason: &Arc<str>, message: &Arc<str>, now: Time) {
        if let Some(c) = self.containers.get_mut(container)
            && !matches!(c.image, Image::Failed { .. })
        {
            c.image_failures += 1;
            c.image = Image::Failed {
                reason: reason.clone(),
                message: message.clone(),
                retry_at: now + backoff::image_wait_ms(c.image_failures),
            };
        }
    }

    fn started(&mut self, plan: &Plan, container: usize, attempt: u32, now: Time) {
        if let Some(c) = self.current(container, attempt)
            && matches!(c.state, State::Starting { .. } | State::Unknown)
        {
            c.state = State::Running { since: now };
            c.was_run = true;
            c.start_failure = None;
            c.was_launched |= plan.containers[container].post_start.is_none();
            self.latch(plan, container);
        }
    }

    fn exited(&mut self, plan: &Plan, container: usize, attempt: u32, exit: &Exit) {
        if self.current(container, attempt).is_some_and(|c| c.state.is_alive()) {
            // First records the states that it reached while the observer was away (R2.34).
            self.latch(plan, container);
            let c = &mut self.containers[container];
            c.exited(exit.clone());
            if plan.containers[container].pull_always {
                c.image = Image::Unknown;
            }
        }
    }

    fn image_changed(&mut self, plan: &Plan, container: usize) {
        let Some(c) = self.containers.get_mut(container) else {
            return;
        };
        if self.stop.is_some() {
            return;
        }
        c.image = Image::Unknown;
        c.image_failures = 0;
        // R2.5: init containers that run or have completed ignore a new image, but a later start uses it.
        // Ephemeral containers run once (R1.10).
        let looks_back = match plan.containers[container].role {
            Role::Init => !c.was_run,
            Role::Ephemeral => false,
            Role::Sidecar | Role::Main => true,
        };
        c.image_changed = looks_back && c.state.is_alive();
        c.backoff = Default::default(); // R1.64
    }

    /// Applies changes to the observation. `plan` already contains them.
    pub(crate) fn update(&mut self, plan: &Plan, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Image { container, .. } => self.image_changed(plan, container),
                Change::Added { .. } => self.containers.push(Container::new()),
                Change::Grace { .. } | Change::Deadline { .. } => {}
            }
        }
    }

    fn restart_requested(&mut self, container: Option<usize>) {
        let Some(c) = container.and_then(|container| self.containers.get_mut(container)) else {
            self.restart_requested = true;
            return;
        };
        // A requested restart does not wait for the end of a back-off.
        c.backoff = Default::default();
        c.start_failure = None;
        if matches!(c.image, Image::Failed { .. }) {
            c.image = Image::Unknown;
        }
        // A container that is being started needs no other restart.
        c.restart_requested = matches!(c.state, State::Running { .. });
    }

    fn start(&mut self, plan: &Plan, container: usize, attempt: u32, now: Time) {
        let p = &plan.containers[container];
        let started_with = p.restart_with.iter().map(|&on| self.containers[on].attempt).sum();
        let fence_was_open =
            p.fence.iter().all(|&on| rules::is_ready(&plan.containers[on], &self.containers[on]));
        let sandbox = self.sandbox.attempt;
        let c = &mut self.containers[container];
        if let Some(exit) = c.exit.take() {
            backoff::let_through(&p.restart.backoff, &mut c.backoff, exit.finished_at, now);
            c.last_exit = Some(exit);
            c.restarts += 1;
        }
        c.attempt = attempt;
        c.state = State::Starting { since: now };
        c.forget_instance();
        c.image_changed = false;
        c.started_with = started_with;
        c.fence_was_open = fence_was_open;
        c.sandbox = sandbox;
    }

    fn begin_stop(&mut self, plan: &Plan, cause: StopCause, grace_ms: u64, now: Time) {
        let deadline = now + grace_ms;
        match &mut self.stop {
            Some(stop) => {
                if deadline < stop.deadline || grace_ms == 0 {
                    stop.deadline = deadline.min(stop.deadline);
                    stop.grace_ms = grace_ms.min(stop.grace_ms);
                }
            }
            None => {
                let after_mains = rules::all_keepers(plan, self, |p, c| rules::final_exit(p, c).is_some());
                self.stop = Some(Stop { cause, since: now, grace_ms, deadline, after_mains });
                self.rerun = None;
            }
        }
        self.shorten_kills(self.stop.map_or(deadline, |s| s.deadline));
    }

    /// Shortens stops in progress: a container that is already being stopped gets no more time than the others.
    fn shorten_kills(&mut self, limit: Time) {
        for kill in self.containers.iter_mut().filter_map(|c| c.kill.as_mut()) {
            kill.deadline = kill.deadline.min(limit);
        }
    }

    fn begin_rerun(&mut self, plan: &Plan, cause: RerunCause, deadline: Time, now: Time) {
        let not_before = match cause {
            RerunCause::Rule { container } => {
                let finished = self.containers[container].exit.as_ref().map_or(now, |e| e.finished_at);
                let backoff = &plan.containers[container].restart.backoff;
                let at = backoff::ready_at(backoff, &self.rerun_backoff, finished);
                backoff::let_through(backoff, &mut self.rerun_backoff, finished, at.max(now));
                at
            }
            RerunCause::Sandbox | RerunCause::Requested => now,
        };
        self.restart_requested = false;
        self.rerun = Some(Rerun { cause, since: now, deadline, not_before });
        self.shorten_kills(deadline);
    }

    /// Starts over from the first init container (R2.42, R2.53).
    fn rerun(&mut self, plan: &Plan, now: Time) {
        let Some(rerun) = self.rerun.take() else { return };
        let by_rule = matches!(rerun.cause, RerunCause::Rule { .. });
        let sandbox_lost = rerun.cause == RerunCause::Sandbox;
        self.restart_requested = false;
        if sandbox_lost {
            self.sandbox.state = SandboxState::Absent;
            self.sandbox.attempt += 1;
        }
        for (p, c) in plan.containers.iter().zip(&mut self.containers) {
            // R2.54: after a lost sandbox a main that has finished for good stays finished.
            if p.role == Role::Ephemeral
                || (p.run_once && c.was_completed)
                || (sandbox_lost && p.role == Role::Main && rules::final_exit(p, c).is_some())
            {
                continue;
            }
            let ran = c.exit.is_some() || c.was_run;
            // The next start gets a new number, so that late events of a failed start are not applied to it.
            if ran || c.start_failure.is_some() {
                c.attempt += 1;
            }
            if ran {
                c.restarts += 1;
                c.last_exit =
                    if by_rule { Some(restarting_all(now)) } else { c.exit.take().or(c.last_exit.take()) };
            }
            c.exit = None;
            c.state = State::Waiting;
            (c.was_run, c.was_launched, c.was_started, c.was_ready, c.was_completed) =
                (false, false, false, false, false);
            c.gates_were_open = false;
            c.backoff = Default::default();
            c.start_failure = None;
            c.forget_instance();
        }
    }
}

impl Container {
    /// Records that a start failed. The runtime also reports this if a start never happened, when the
    /// observer did not know that because it had crashed.
    fn start_failed(&mut self, reason: &Arc<str>, message: &Arc<str>, now: Time) {
        if !matches!(self.state, State::Starting { .. } | State::Unknown) {
            return;
        }
        let failures = self.start_failure.as_ref().map_or(0, |f| f.failures) + 1;
        self.state = State::Waiting;
        self.kill = None;
        self.start_failure = Some(StartFailure {
            reason: reason.clone(),
            message: message.clone(),
            retry_at: now + backoff::start_wait_ms(failures),
            failures,
        });
        self.was_launched = true;
    }

    fn exited(&mut self, mut exit: Exit) {
        exit.killed_for = self.kill.and_then(|kill| {
            // While a pod stops, a container that exits before it was signalled has exited by itself (G-18).
            let told = kill.signalled_at.is_some() || kill.killed_at.is_some() || self.pre_stop != Hook::Idle;
            (kill.reason != KillReason::PodStop || told).then_some(kill.reason)
        });
        self.was_run = true;
        self.was_launched = true;
        self.was_completed |= !exit.failed();
        self.start_failure = None;
        self.state = State::Exited;
        self.exit = Some(exit);
        self.kill = None;
        self.probes = Default::default();
    }

    fn forget_instance(&mut self) {
        self.probes = Default::default();
        self.post_start = Hook::Idle;
        self.pre_stop = Hook::Idle;
        self.first_pre_stop = Hook::Idle;
        self.kill = None;
        self.restart_requested = false;
    }
}

/// The exit that the kubelet publishes for every container it removes to restart the pod in place (R2.43).
fn restarting_all(now: Time) -> Exit {
    Exit {
        code: 137,
        signal: None,
        reason: ExitReason::RestartingAllContainers,
        started_at: None,
        finished_at: now,
        message: Some(Arc::from("The container is removed because RestartAllContainers in place")),
        killed_for: Some(KillReason::Rerun),
    }
}
