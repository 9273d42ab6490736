//! The tasks of a worker, each of which executes one action, and their reports.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outrigger_lifecycle::trace::IgnoredBecause;
use outrigger_lifecycle::{Event, Exit, ExitReason, HookKind, ProbeKind, PullCause, VolumeLimit};
use outrigger_runtime::{ContainerId, Image, ProgressSink, Runtime, RuntimeError, SandboxId};
use tokio::sync::{mpsc, oneshot};

use crate::cause::{self, SandboxError};
use crate::clock::Clock;
use crate::event::{AgentEventKind, Emitter};
use crate::hooks::{self, Ended};
use crate::ignored_signal;
use crate::message;
use crate::pod::{PodContext, PodSandbox};
use crate::prober;

/// Delay before a failed call to the runtime is retried.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Interval of pull progress events.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Interval of measuring volumes with a size limit.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// Measuring uses at most 1/`MEASURE_SHARE` of the time.
const MEASURE_SHARE: u32 = 20;

/// A report from a task to the worker.
pub(crate) enum Report {
    /// An event for the engine.
    Event(Event),
    /// The sandbox, volumes and files are ready.
    PodSandbox(Box<PodSandbox>),
    /// An image pull failed; it will be retried.
    PullFailed {
        /// The container's index.
        container: usize,
        /// The image reference as requested.
        reference: String,
        /// The reason as in Kubernetes.
        reason: Arc<str>,
        /// What failed.
        message: Arc<str>,
        /// Machine-readable cause, if known.
        cause: Option<PullCause>,
    },
    /// An image is available.
    Image {
        /// The container's index.
        container: usize,
        /// The image reference as requested.
        reference: String,
        /// The image.
        image: Box<Image>,
    },
    /// The first process of an instance.
    Process {
        /// The container's index.
        container: usize,
        /// The attempt number of the instance.
        attempt: u32,
        /// The host pid.
        pid: u32,
    },
    /// The stop signal was sent to an instance; reported only if state is persisted.
    Signalled {
        /// The container's index.
        container: usize,
        /// The attempt number of the instance.
        attempt: u32,
    },
    /// The stop signal was sent to an instance, which will ignore it.
    StopSignalIgnored {
        /// The container's index.
        container: usize,
        /// The attempt number of the instance.
        attempt: u32,
        /// The signal, for example `TERM`.
        signal: String,
        /// Why it is ignored.
        why: IgnoredBecause,
        /// Time until the instance is killed.
        grace: Duration,
    },
    /// A hook ended.
    Hook {
        /// The container's index.
        container: usize,
        /// The attempt number of the instance.
        attempt: u32,
        /// Which hook.
        hook: HookKind,
        /// The result.
        ended: Ended,
    },
    /// A task of the pod panicked, so it will not send its own report.
    Panicked,
}

/// Reports a panic of the task that owns it.
struct PanicReport(mpsc::UnboundedSender<Report>);

impl Drop for PanicReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Fails only if the worker has ended; then the report is not needed.
            let _ = self.0.send(Report::Panicked);
        }
    }
}

/// The context shared by all tasks of a pod.
pub(crate) struct Tasks<R> {
    pub(crate) runtime: Arc<R>,
    pub(crate) pod: Arc<PodContext>,
    pub(crate) clock: Clock,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    /// Whether state is persisted, so that another process can resume the pod.
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
    /// Wraps the work of a task so that a panic is reported. Otherwise the worker would wait forever for the
    /// result.
    pub(crate) fn guarded<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F, R> {
        let report = PanicReport(self.reports.clone());
        async move {
            let _report = report;
            work.await
        }
    }

    fn say(&self, report: Report) {
        // Fails only if the worker has ended; then the report is not needed.
        let _ = self.reports.send(report);
    }

    fn happened(&self, event: Event) {
        self.say(Report::Event(event));
    }

    /// Creates the sandbox, volumes and files. With `again`, the remains of an earlier attempt are removed
    /// first.
    pub(crate) async fn create_sandbox(self, again: bool) {
        match self.prepare(again).await {
            Ok(prepared) => self.say(Report::PodSandbox(Box::new(prepared))),
            Err(e) => {
                self.happened(Event::SandboxFailed { message: e.to_string().into(), cause: e.cause() });
            }
        }
    }

    async fn prepare(&self, again: bool) -> Result<PodSandbox, SandboxError> {
        let id: &SandboxId = &self.pod.sandbox_id;
        let failed = |error: RuntimeError| SandboxError::runtime(error, self.pod.spec());
        if again {
            self.runtime.remove_sandbox(id).await.map_err(failed)?;
        }
        let sandbox = self.runtime.create_sandbox(self.pod.sandbox_spec()?).await.map_err(failed)?;
        let pod = self.pod.clone();
        // This walks directory trees for fsGroup and may wait for a slow disk.
        let prepared = tokio::task::spawn_blocking(move || pod.prepared(sandbox)).await;
        prepared?
    }

    /// Waits until the sandbox ends unexpectedly.
    pub(crate) async fn watch_sandbox(self) {
        self.runtime.sandbox_lost(&self.pod.sandbox_id).await;
        self.happened(Event::SandboxLost);
    }

    /// Measures the volumes that have a limit periodically and reports changes. File systems do not notify
    /// about the size of a directory. Quotas would, but few machines have them.
    pub(crate) async fn measure(self, limits: Vec<VolumeLimit>, prepared: Arc<PodSandbox>) {
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
            // Trees that take long to walk are measured less often.
            tokio::time::sleep(MEASURE_EVERY.max(began.elapsed() * MEASURE_SHARE)).await;
        }
    }

    /// Pulls an image.
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
                cause: e.cause,
            }),
        }
    }

    /// Creates an instance ahead, if that does not affect other containers. Returns whether it was created.
    /// An error is ignored, because it occurs again and is reported when the container is started.
    pub(crate) async fn make_ahead(
        self,
        instance: Instance,
        image: Image,
        prepared: Arc<PodSandbox>,
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

    /// Runs one instance: creates it unless that was done `ahead`, starts it and waits for its end.
    pub(crate) async fn live(
        self,
        instance: Instance,
        image: Image,
        prepared: Arc<PodSandbox>,
        ahead: Option<oneshot::Receiver<bool>>,
    ) {
        let (container, attempt) = (instance.container, instance.attempt);
        let id = &instance.id;
        let refused = |reason: &str, message: String, cause| Event::StartFailed {
            container,
            attempt,
            reason: reason.into(),
            message: message.into(),
            cause,
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
                Err(e) => {
                    return self.happened(refused("CreateContainerConfigError", e.to_string(), e.cause()));
                }
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
                e => refused(e.reason(), e.to_string(), cause::of_start(&e, &self.pod.containers[container])),
            });
        }
        self.happened(Event::Started { container, attempt });
        self.see_end(instance).await;
    }

    /// Waits for the end of a started instance and reports it.
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
                    let paths = self.pod.instance_paths(container, attempt);
                    let of = &self.pod.containers[container];
                    let message = message::read(of, &paths.message, &paths.log, failed);
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

    /// Builds an exit that was not reported by the runtime.
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

    /// Removes an instance.
    pub(crate) async fn remove(&self, id: &ContainerId) {
        if let Err(e) = self.runtime.remove_container(id).await {
            tracing::warn!(container = %id, "cannot remove a container: {e}");
        }
    }

    /// Sends the stop signal. Reports if the first process is known to ignore it.
    pub(crate) async fn terminate(
        self,
        instance: Instance,
        signal: String,
        pid: Option<u32>,
        grace: Duration,
    ) {
        let number = ignored_signal::number(&signal);
        // Checked before sending, because the process may be gone afterwards.
        let ignored = pid.zip(number).and_then(|(pid, number)| ignored_signal::why_ignored(pid, number));
        if let Err(e) = self.runtime.terminate(&instance.id, grace).await {
            // It is killed when its grace period ends.
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

    /// Kills a running instance; the task that waits for it reports its end.
    pub(crate) async fn kill(self, id: ContainerId) {
        while let Err(e) = self.runtime.kill(&id).await {
            tracing::warn!(container = %id, "cannot kill a container: {e}");
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Kills an instance that is not running yet, and reports its end.
    pub(crate) async fn kill_unborn(self, instance: Instance) {
        self.clone().kill(instance.id.clone()).await;
        self.remove(&instance.id).await;
        self.happened(Event::Exited {
            container: instance.container,
            attempt: instance.attempt,
            exit: self.exit(137, ExitReason::Error, None),
        });
    }

    /// Performs one probe attempt.
    pub(crate) async fn probe(
        self,
        instance: Instance,
        kind: ProbeKind,
        timeout: Duration,
        prepared: Arc<PodSandbox>,
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
        prepared: Arc<PodSandbox>,
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

/// Emits the progress of a pull, at a limited rate.
fn progress(events: Emitter, container: usize) -> ProgressSink {
    let said: Mutex<Option<Instant>> = Mutex::default();
    Arc::new(move |progress| {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_some_and(|at| at.elapsed() < PROGRESS_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        events.emit(AgentEventKind::Pulling {
            container,
            reference: progress.reference.clone(),
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
        });
    })
}
