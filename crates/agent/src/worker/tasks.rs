//! What tasks tell the worker, and the tasks themselves: each carries one action out and reports.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outrigger_lifecycle::trace::IgnoredBecause;
use outrigger_lifecycle::{Event, Exit, ExitReason, HookKind, ProbeKind, PullCause, VolumeLimit};
use outrigger_runtime::{ContainerId, Image, ProgressSink, Runtime, RuntimeError, SandboxId};
use tokio::sync::{mpsc, oneshot};

use crate::cause::{self, SandboxFailure};
use crate::clock::Clock;
use crate::event::{Emitter, PodEventKind};
use crate::hooks::{self, Ended};
use crate::ignored_signal;
use crate::message;
use crate::pod::{PodContext, PreparedPod};
use crate::prober;

/// How long after a failure a runtime is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often the progress of a pull is said.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// How often volumes with a limit are measured.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// Measuring takes at most one part in this many of the time.
const MEASURE_SHARE: u32 = 20;

/// Something a task has to say.
pub(crate) enum Report {
    /// Nothing but what happened.
    Event(Event),
    /// The sandbox, volumes and files are there.
    PreparedPod(Box<PreparedPod>),
    /// An image is not to be had, for now.
    PullFailed {
        /// Whose.
        container: usize,
        /// As it was asked for.
        reference: String,
        /// Kubernetes' word.
        reason: Arc<str>,
        /// What happened.
        message: Arc<str>,
        /// The same for programs, where it is known.
        cause: Option<PullCause>,
    },
    /// An image is there.
    Image {
        /// Whose.
        container: usize,
        /// As it was asked for.
        reference: String,
        /// Which.
        image: Box<Image>,
    },
    /// The first process of an instance, as the host sees it.
    Process {
        /// Whose.
        container: usize,
        /// Of which instance.
        attempt: u32,
        /// Its number.
        pid: u32,
    },
    /// An instance was sent its stop signal; said where that is written down.
    Signalled {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
    },
    /// An instance was sent its stop signal and will ignore it.
    StopSignalIgnored {
        /// Which container.
        container: usize,
        /// Which instance.
        attempt: u32,
        /// The signal, `TERM`.
        signal: String,
        /// Why.
        why: IgnoredBecause,
        /// It is killed after this.
        grace: Duration,
    },
    /// A hook ended.
    Hook {
        /// Whose.
        container: usize,
        /// Of which instance.
        attempt: u32,
        /// Which.
        hook: HookKind,
        /// How.
        ended: Ended,
    },
}

/// What every task of a pod needs.
pub(crate) struct Tasks<R> {
    pub(crate) runtime: Arc<R>,
    pub(crate) pod: Arc<PodContext>,
    pub(crate) clock: Clock,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    /// What is done is written down, for another process to go on with.
    pub(crate) durable: bool,
}

impl<R> Clone for Tasks<R> {
    fn clone(&self) -> Self {
        Tasks {
            runtime: self.runtime.clone(),
            pod: self.pod.clone(),
            clock: self.clock,
            reports: self.reports.clone(),
            durable: self.durable,
        }
    }
}

/// One instance of a container.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) container: usize,
    pub(crate) attempt: u32,
    pub(crate) id: ContainerId,
}

impl<R: Runtime> Tasks<R> {
    fn say(&self, report: Report) {
        // The worker has gone: nobody needs to know.
        let _ = self.reports.send(report);
    }

    fn happened(&self, event: Event) {
        self.say(Report::Event(event));
    }

    /// Makes the sandbox and what is in it. `made` is one whose volumes failed the last time.
    pub(crate) async fn create_sandbox(self, again: bool) {
        match self.prepare(again).await {
            Ok(prepared) => self.say(Report::PreparedPod(Box::new(prepared))),
            Err(SandboxFailure { message, cause }) => {
                self.happened(Event::SandboxFailed { message: message.into(), cause });
            }
        }
    }

    async fn prepare(&self, again: bool) -> Result<PreparedPod, SandboxFailure> {
        let id: &SandboxId = &self.pod.sandbox_id;
        if again {
            self.runtime.remove_sandbox(id).await?;
        }
        let spec = self.pod.sandbox_spec()?;
        let sandbox = self.runtime.create_sandbox(spec).await?;
        let pod = self.pod.clone();
        // Walks trees for fsGroup and may wait for a slow disk.
        let prepared = tokio::task::spawn_blocking(move || pod.prepared(sandbox)).await;
        prepared.map_err(|e| e.to_string())?
    }

    /// Waits for the sandbox to end by itself.
    pub(crate) async fn watch_sandbox(self) {
        self.runtime.sandbox_lost(&self.pod.sandbox_id).await;
        self.happened(Event::SandboxLost);
    }

    /// Measures the volumes that have a limit, again and again, and reports what changed. No file system tells when a
    /// directory grows beyond a size, save by quotas that few machines have.
    pub(crate) async fn measure(self, limits: Vec<VolumeLimit>, prepared: Arc<PreparedPod>) {
        let mut before = vec![0; limits.len()];
        loop {
            let began = tokio::time::Instant::now();
            for (volume, limit) in limits.iter().enumerate() {
                let (prepared, name) = (prepared.clone(), limit.volume.clone());
                let measured = tokio::task::spawn_blocking(move || prepared.volumes.bytes(&name)).await;
                if let Ok(Ok(bytes)) = measured
                    && std::mem::replace(&mut before[volume], bytes) != bytes
                {
                    self.happened(Event::VolumeMeasured { volume, bytes });
                }
            }
            // Trees that take long to walk are walked less often.
            tokio::time::sleep(MEASURE_EVERY.max(began.elapsed() * MEASURE_SHARE)).await;
        }
    }

    /// Makes an image available.
    pub(crate) async fn pull(self, container: usize, events: Emitter) {
        let reference = self.pod.containers[container].image.clone().unwrap_or_default();
        let request = self.pod.pull_request(container);
        match self.runtime.pull_image(request, progress(events, container)).await {
            Ok(image) => self.say(Report::Image { container, reference, image: Box::new(image) }),
            Err(e) => self.say(Report::PullFailed {
                container,
                reference,
                reason: e.reason().into(),
                message: e.to_string().into(),
                cause: cause::of_pull(&e),
            }),
        }
    }

    /// Makes an instance ahead of its time, if that changes nothing for anybody else. Says whether it is there; what
    /// went wrong will go wrong again, and be told, when its time has come.
    pub(crate) async fn make_ahead(
        self,
        instance: Instance,
        image: Image,
        prepared: Arc<PreparedPod>,
    ) -> bool {
        let (container, attempt, id) = (instance.container, instance.attempt, &instance.id);
        if self.pod.follows_files(container) {
            return false;
        }
        let spec = match self.pod.container_spec(container, attempt, id.clone(), image, &prepared) {
            Ok(spec) if self.pod.can_be_made_ahead(&spec) => spec,
            _ => return false,
        };
        let made = self.runtime.create_container(&prepared.sandbox.id, spec).await;
        if made.is_err() {
            self.remove(id).await;
        }
        made.is_ok()
    }

    /// The whole life of an instance: created, unless that was done `ahead`, started, ended.
    pub(crate) async fn live(
        self,
        instance: Instance,
        image: Image,
        prepared: Arc<PreparedPod>,
        ahead: Option<oneshot::Receiver<bool>>,
    ) {
        let (container, attempt) = (instance.container, instance.attempt);
        let id = &instance.id;
        let refused = |reason: &str, message: String| Event::StartFailed {
            container,
            attempt,
            reason: reason.into(),
            message: message.into(),
        };
        let is_made = match ahead {
            Some(ahead) => ahead.await.unwrap_or(false),
            None => false,
        };
        let created = if is_made {
            Ok(())
        } else {
            let spec = match self.pod.container_spec(container, attempt, id.clone(), image, &prepared) {
                Ok(spec) => spec,
                Err(message) => return self.happened(refused("CreateContainerConfigError", message)),
            };
            self.runtime.create_container(&prepared.sandbox.id, spec).await.map(drop)
        };
        let started = match created {
            Ok(()) => self.runtime.start_container(id).await,
            Err(e) => Err(e),
        };
        if let Ok(started) = &started
            && started.pid > 0
        {
            self.say(Report::Process { container, attempt, pid: started.pid });
        }
        if let Err(e) = started {
            self.remove(id).await;
            if let RuntimeError::NotFound { kind: "sandbox", .. } = e {
                self.happened(Event::SandboxLost);
            }
            return self.happened(match e {
                RuntimeError::Start(message) => Event::Exited {
                    container,
                    attempt,
                    exit: self.exit(128, ExitReason::StartError, Some(message)),
                },
                e => refused(e.reason(), e.to_string()),
            });
        }
        self.happened(Event::Started { container, attempt });
        self.see_end(instance).await;
    }

    /// Waits for the end of an instance that was started, and reports it.
    pub(crate) async fn see_end(self, instance: Instance) {
        let exit = self.wait(&instance).await;
        self.happened(Event::Exited { container: instance.container, attempt: instance.attempt, exit });
    }

    async fn wait(&self, instance: &Instance) -> Exit {
        let (container, attempt) = (instance.container, instance.attempt);
        loop {
            match self.runtime.wait(&instance.id).await {
                Ok(exit) => {
                    let now = self.clock.now().time;
                    let reason = match exit.code {
                        _ if exit.oom_killed => ExitReason::OomKilled,
                        0 => ExitReason::Completed,
                        _ => ExitReason::Error,
                    };
                    let failed = reason != ExitReason::Completed;
                    let traces = self.pod.traces(container, attempt);
                    let of = &self.pod.containers[container];
                    let message = message::read(of, &traces.message, &traces.log, failed);
                    return Exit {
                        code: exit.code,
                        signal: exit.signal,
                        reason,
                        started_at: Some(self.clock.noted(exit.started_at, now)),
                        finished_at: self.clock.noted(exit.finished_at, now),
                        message: message.or(exit.detail).map(Into::into),
                        killed_for: None,
                    };
                }
                Err(RuntimeError::NotFound { .. }) => {
                    return self.exit(137, ExitReason::ContainerStatusUnknown, None);
                }
                Err(e) => {
                    tracing::warn!(container = %instance.id, "the runtime lost track of a container: {e}");
                    self.happened(Event::Lost { container, attempt });
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// An end the runtime did not report.
    pub(crate) fn exit(&self, code: i32, reason: ExitReason, message: Option<String>) -> Exit {
        Exit {
            code,
            signal: None,
            reason,
            started_at: None,
            finished_at: self.clock.now().time,
            message: message.map(Into::into),
            killed_for: None,
        }
    }

    /// Removes what is left of an instance.
    pub(crate) async fn remove(&self, id: &ContainerId) {
        if let Err(e) = self.runtime.remove_container(id).await {
            tracing::warn!(container = %id, "cannot remove a container: {e}");
        }
    }

    /// Sends the stop signal. If the first process is known and will ignore it, that is reported.
    pub(crate) async fn terminate(
        self,
        instance: Instance,
        signal: String,
        pid: Option<u32>,
        grace: Duration,
    ) {
        let number = ignored_signal::number(&signal);
        // Asked before, for it may be gone after.
        let ignored = pid.zip(number).and_then(|(pid, number)| ignored_signal::why_ignored(pid, number));
        if let Err(e) = self.runtime.terminate(&instance.id, grace).await {
            // It is killed when its grace is over.
            tracing::warn!(container = %instance.id, "cannot signal a container: {e}");
        }
        let Instance { container, attempt, .. } = instance;
        if self.durable {
            self.say(Report::Signalled { container, attempt });
        }
        if let Some(why) = ignored {
            self.say(Report::StopSignalIgnored { container, attempt, signal, why, grace });
        }
    }

    /// Kills an instance that runs; its end is reported by whoever waits for it.
    pub(crate) async fn kill(self, id: ContainerId) {
        while let Err(e) = self.runtime.kill(&id).await {
            tracing::warn!(container = %id, "cannot kill a container: {e}");
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Kills an instance that has not got as far as running, and reports its end.
    pub(crate) async fn kill_unborn(self, instance: Instance) {
        self.clone().kill(instance.id.clone()).await;
        self.remove(&instance.id).await;
        self.happened(Event::Exited {
            container: instance.container,
            attempt: instance.attempt,
            exit: self.exit(137, ExitReason::Error, None),
        });
    }

    /// Makes one probe attempt.
    pub(crate) async fn probe(
        self,
        instance: Instance,
        kind: ProbeKind,
        timeout: Duration,
        prepared: Arc<PreparedPod>,
    ) {
        let container = &self.pod.containers[instance.container];
        let probe = match kind {
            ProbeKind::Startup => &container.startup_probe,
            ProbeKind::Liveness => &container.liveness_probe,
            ProbeKind::Readiness => &container.readiness_probe,
        };
        let Some(probe) = probe else { return };
        let runtime = &*self.runtime;
        let reach = &prepared.reach;
        let seen = prober::attempt(runtime, &instance.id, container, probe, reach, timeout).await;
        self.happened(Event::Probed {
            container: instance.container,
            attempt: instance.attempt,
            kind,
            outcome: seen.outcome,
            message: seen.message.map(Into::into),
            cause: seen.cause,
        });
    }

    /// Runs a hook.
    pub(crate) async fn hook(
        self,
        instance: Instance,
        hook: HookKind,
        limit: Option<Duration>,
        prepared: Arc<PreparedPod>,
    ) {
        let container = &self.pod.containers[instance.container];
        let lifecycle = container.lifecycle.as_ref();
        let handler = match hook {
            HookKind::PostStart => lifecycle.and_then(|l| l.post_start.as_ref()),
            HookKind::PreStop | HookKind::FirstPreStop => lifecycle.and_then(|l| l.pre_stop.as_ref()),
        };
        let ended = match handler {
            Some(handler) => {
                let runtime = &*self.runtime;
                hooks::run(runtime, &instance.id, container, handler, &prepared.reach, limit).await
            }
            None => Ended::default(),
        };
        self.say(Report::Hook { container: instance.container, attempt: instance.attempt, hook, ended });
    }
}

/// Says how far a pull is, not more often than anybody could look.
fn progress(events: Emitter, container: usize) -> ProgressSink {
    let said: Mutex<Option<Instant>> = Mutex::default();
    Arc::new(move |progress| {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_some_and(|at| at.elapsed() < PROGRESS_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        events.emit(PodEventKind::Pulling {
            container,
            reference: progress.reference.clone(),
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
        });
    })
}
