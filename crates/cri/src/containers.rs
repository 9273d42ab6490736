//! Creates, starts, stops and removes containers. Each step is carried out at most once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::Inner;
use super::client::Fault;
use super::config::{self, LABEL_ID};
use super::hints::HintReceiver;
use super::info::Signals;
use super::leftovers;
use super::native::{self, Trace};
use super::pod::Pod;
use super::wire::{
    CONTAINER_CREATED, CONTAINER_EXITED, CONTAINER_UNKNOWN, Container, ContainerConfig, ContainerFilter,
    ContainerStatsRequest, ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecSyncRequest,
    ListContainersRequest, RemoveContainerRequest, Rpc, StartContainerRequest, StopContainerRequest,
};
use outrigger_runtime::signals;
use outrigger_runtime::{
    ContainerId, ContainerSpec, ExecOutput, ExecRequest, Exit, RuntimeError, SandboxId, Started, Stats,
    UserFault,
};

/// How often a name that is in use is retried with another attempt number.
const NUMBERS_MAX: u32 = 100;

/// How often a failed removal is retried.
const REMOVALS_MAX: u32 = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(100);

/// How often a start in progress is polled.
const START_PAUSE: Duration = Duration::from_millis(50);

/// containerd's exit reason for a container whose program could not be run.
pub(super) const START_ERROR: &str = "StartError";
/// containerd's message if there was no process yet.
const NO_PROCESS: &str = "failed to create containerd task";

/// Exit codes that may come from the program, or from the process that was about to execute it.
const UNCLEAR_CODES: [i32; 3] = [1, 137, 255];

/// The error for a program that a stopping containerd started and killed again.
const UNDONE: &str = "the container runtime was stopped while starting the container, and killed it";

/// The result of a start.
enum Outcome {
    /// The program ran.
    Ran,
    /// It can still be started.
    NotYet,
    /// It did not run and can no longer be started. A new container can.
    Never,
    /// It cannot be run, or it is unknown whether it ran.
    Refused(String),
}

/// A container of this process.
pub(super) struct Slot {
    pub(super) name: ContainerId,
    pub(super) sandbox: SandboxId,
    /// The runtime's id, set when the container is created.
    pub(super) id: OnceLock<String>,
    /// Receives hints that something may have happened to the container.
    pub(super) receiver: Arc<HintReceiver>,
    /// The number of stops in progress.
    pub(super) stops: AtomicU32,
    pub(super) exit: OnceCell<Exit>,
    /// When the runtime confirmed the start.
    pub(super) started: OnceLock<SystemTime>,
    /// The stop signal, if every stop request must contain it.
    signal: Option<u32>,
}

impl Slot {
    /// A slot for a container that is not created yet. `signal` is the stop signal, if every stop request
    /// must contain it.
    pub(super) fn new(name: ContainerId, sandbox: SandboxId, signal: Option<u32>) -> Self {
        Slot {
            name,
            sandbox,
            id: OnceLock::new(),
            receiver: Arc::default(),
            stops: AtomicU32::new(0),
            exit: OnceCell::new(),
            started: OnceLock::new(),
            signal,
        }
    }

    /// The runtime's id.
    pub(super) fn id(&self) -> Result<String, RuntimeError> {
        self.id.get().cloned().ok_or_else(|| missing(&self.name))
    }
}

pub(super) fn missing(name: &ContainerId) -> RuntimeError {
    RuntimeError::NotFound { kind: "container", id: name.0.clone() }
}

impl Inner {
    /// Creates a container. Runs to completion even if the caller goes away.
    pub(super) async fn create_container(
        self: Arc<Self>,
        sandbox: SandboxId,
        spec: ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        let _turn = self.turn(&spec.id.0).await;
        let pod = self.pods().get(&sandbox).cloned();
        let pod = pod.ok_or_else(|| RuntimeError::NotFound { kind: "sandbox", id: sandbox.0.clone() })?;
        if spec.identity.strict_groups && !self.strict_groups {
            return Err(RuntimeError::Config(
                "this container runtime does not know supplementalGroupsPolicy: Strict; use Merge, a newer runtime, or \
                 --runtime embedded"
                    .to_owned(),
            ));
        }
        let config = config::container(&spec, &pod.config)?;
        let signal = self.own_signal(&spec.name, spec.stop_signal.as_deref())?;
        let slot = Arc::new(Slot::new(spec.id.clone(), sandbox, signal));
        let id = match self.make(&pod, config, &spec).await {
            Ok(id) => id,
            Err(error) => return Err(self.unless_lost(&slot.sandbox, Some(&pod), error).await),
        };
        pod.note(&id);
        self.hints.subscribe(&id, slot.receiver.clone());
        slot.id.get_or_init(|| id);
        self.slots().insert(spec.id.clone(), slot);
        Ok(spec.id)
    }

    async fn make(
        &self,
        pod: &Pod,
        mut config: ContainerConfig,
        spec: &ContainerSpec,
    ) -> Result<String, RuntimeError> {
        let failed = |fault: Fault| {
            let detail = format!("cannot create container {:?}: {fault}", spec.name);
            match fault.is_unknown_user() {
                true => RuntimeError::User { cause: UserFault::NoSuchName, detail },
                false => RuntimeError::Create(detail),
            }
        };
        let mut retry = self.client.retry();
        let mut numbers = 0;
        loop {
            let request = CreateContainerRequest {
                pod_sandbox_id: pod.id.clone(),
                config: Some(config.clone()),
                sandbox_config: Some(pod.config.clone()),
            };
            let fault = match self.client.call(request, self.client.limits().work).await {
                Ok(answer) => return Ok(answer.container_id),
                Err(fault) => fault,
            };
            // The name belongs to a container of another pod of the same name, or to one of this pod that is
            // being removed.
            if fault.is_name_taken()
                && numbers < NUMBERS_MAX
                && let Some(metadata) = &mut config.metadata
            {
                metadata.attempt += 1;
                numbers += 1;
                continue;
            }
            if fault.is_unclear() && retry.pause().await {
                for made in self.containers_of(&spec.id).await.map_err(failed)? {
                    // Remove even a container that looks complete. containerd continues for a while after its
                    // caller has gone away. It may have failed to find the sandbox's process, whose
                    // namespaces the container must join.
                    pod.note(&made.id);
                    self.settle(RemoveContainerRequest { container_id: made.id }).await.map_err(failed)?;
                }
                continue;
            }
            return Err(failed(fault));
        }
    }

    /// Starts a container. Runs to completion even if the caller goes away.
    pub(super) async fn start_container(self: Arc<Self>, name: ContainerId) -> Result<Started, RuntimeError> {
        let _turn = self.turn(&name.0).await;
        let slot = self.slot(&name)?;
        let error = match self.start(&slot).await {
            Ok(started) => return Ok(started),
            Err(error) => error,
        };
        let pod = self.pods().get(&slot.sandbox).cloned();
        Err(self.unless_lost(&slot.sandbox, pod.as_deref(), error).await)
    }

    /// Determines the result of a start that another process of the node requested, or finishes the start.
    pub(super) async fn finish_start(
        self: Arc<Self>,
        name: ContainerId,
    ) -> Result<Option<Started>, RuntimeError> {
        let _turn = self.turn(&name.0).await;
        let slot = self.slot(&name)?;
        let id = slot.id()?;
        let failed = |fault: Fault| {
            RuntimeError::Other(format!("cannot finish the start of container {name}: {fault}"))
        };
        let deadline = Instant::now() + self.client.limits().work;
        loop {
            // A start in progress is not repeated, because the runtime refuses a second one.
            let request = StartContainerRequest { container_id: id.clone() };
            let answer = self.client.call(request, self.client.limits().work).await;
            let status = match self.status(&id).await {
                Err(Fault::NotFound(_)) => return Ok(None),
                status => status.map_err(failed)?,
            };
            let outcome = match answer {
                Ok(_) => Outcome::Ran,
                Err(fault) => self.outcome(&slot, &id, &status, &fault).await,
            };
            match outcome {
                Outcome::Ran => {
                    let at = time(status.started_at).unwrap_or_else(SystemTime::now);
                    slot.started.get_or_init(|| at);
                    return Ok(Some(Started { at, pid: 0 }));
                }
                Outcome::NotYet if Instant::now() < deadline => tokio::time::sleep(START_PAUSE).await,
                Outcome::NotYet | Outcome::Never => return Ok(None),
                Outcome::Refused(text) => return Err(RuntimeError::Start(text)),
            }
        }
    }

    async fn start(&self, slot: &Slot) -> Result<Started, RuntimeError> {
        let (name, id) = (&slot.name, slot.id()?);
        let mut retry = self.client.retry();
        let mut is_first = true;
        loop {
            let request = StartContainerRequest { container_id: id.clone() };
            let fault = match self.client.call(request, self.client.limits().work).await {
                Ok(_) => break,
                Err(Fault::NotFound(_)) => return Err(missing(name)),
                Err(fault) => fault,
            };
            // The container's state shows the result of the call. There may have been no answer, and a retry
            // is refused if the first call was carried out.
            let is_clear = is_first && !fault.is_unclear();
            is_first = false;
            let status = self.status(&id).await.map_err(|fault| match fault {
                Fault::NotFound(_) => missing(name),
                fault => RuntimeError::Other(format!("cannot start container {name}: {fault}")),
            })?;
            match self.outcome(slot, &id, &status, &fault).await {
                Outcome::Ran => {
                    if status.state == CONTAINER_EXITED && UNCLEAR_CODES.contains(&status.exit_code) {
                        tracing::warn!(
                            container = %name,
                            "the container runtime was stopped while it started the container; \
                             nobody knows whether its program was run"
                        );
                    }
                    break;
                }
                // A definite error is a refusal, not an interruption. The program cannot be run.
                _ if is_clear && status.state != CONTAINER_UNKNOWN => {
                    return Err(RuntimeError::Start(fault.to_string()));
                }
                Outcome::Refused(text) => return Err(RuntimeError::Start(text)),
                Outcome::Never => {
                    let text = format!("the start of container {name} was interrupted: {fault}");
                    return Err(RuntimeError::Other(text));
                }
                Outcome::NotYet if retry.pause().await => {}
                Outcome::NotYet => {
                    return Err(RuntimeError::Other(format!("cannot start container {name}: {fault}")));
                }
            }
        }
        let at = *slot.started.get_or_init(SystemTime::now);
        Ok(Started { at, pid: 0 })
    }

    /// Determines the result of a start that failed or was not answered.
    async fn outcome(&self, slot: &Slot, id: &str, status: &ContainerStatus, fault: &Fault) -> Outcome {
        match status.state {
            // An event reports the start of the program before the container's state does.
            CONTAINER_CREATED if fault.is_under_way() => Outcome::NotYet,
            CONTAINER_CREATED if slot.receiver.was_started.load(Ordering::Relaxed) => {
                Outcome::Refused(UNDONE.to_owned())
            }
            CONTAINER_CREATED => Outcome::NotYet,
            // containerd abandons a start if its caller goes away. If there was no process yet, the start can
            // be retried with a new container. Otherwise the program may have run.
            CONTAINER_EXITED if status.reason == START_ERROR && status.message.contains(NO_PROCESS) => {
                match native::trace(&self.client, id).await {
                    Ok(Trace::Started | Trace::Undone) => Outcome::Refused(status.message.clone()),
                    _ => broken_off(slot, id).await,
                }
            }
            CONTAINER_EXITED if status.reason == START_ERROR => Outcome::Refused(status.message.clone()),
            CONTAINER_UNKNOWN => match self.is_containerd {
                true => match native::trace(&self.client, id).await {
                    Ok(Trace::Started) => Outcome::Ran,
                    Ok(Trace::Undone) => Outcome::Refused(UNDONE.to_owned()),
                    Ok(Trace::None) => broken_off(slot, id).await,
                    Err(fault) => Outcome::Refused(fault.to_string()),
                },
                false => Outcome::Refused("the runtime lost track of it".to_owned()),
            },
            _ => Outcome::Ran,
        }
    }

    pub(super) async fn status(&self, id: &str) -> Result<ContainerStatus, Fault> {
        let request = ContainerStatusRequest { container_id: id.to_owned() };
        Ok(self.client.ask(request).await?.status.unwrap_or_default())
    }

    /// Stops a container. It is killed after `grace`, or immediately if there is none.
    pub(super) async fn stop(
        self: Arc<Self>,
        name: ContainerId,
        grace: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        let deadline = grace.map(|grace| Instant::now() + grace);
        // If the container is being started, wait for that first.
        let turn = self.turn(&name.0).await;
        let Some(id) = self.find(&name).await? else { return Ok(()) };
        drop(turn);
        let slot = self.slot(&name).ok();
        if let Some(slot) = &slot {
            slot.stops.fetch_add(1, Ordering::Relaxed);
            slot.receiver.wake.notify_one();
        }
        let mut retry = self.client.retry();
        let signal = slot.as_ref().and_then(|slot| slot.signal).filter(|_| grace.is_some());
        let result = loop {
            // Whole seconds, rounded up, because 0 means an immediate kill.
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.map_or(0, |left| seconds(left).max(1));
            let limit = self.client.limits().work + left.unwrap_or_default();
            let done = match signal {
                Some(signal) => native::signal(&self.client, &id, signal).await,
                None => {
                    let request = StopContainerRequest { container_id: id.clone(), timeout };
                    self.client.call(request, limit).await.map(|_| ())
                }
            };
            match done {
                Ok(()) | Err(Fault::NotFound(_)) => break Ok(()),
                Err(fault) if fault.is_unclear() && retry.pause().await => {}
                Err(fault) => {
                    break Err(RuntimeError::Other(format!("cannot stop container {name}: {fault}")));
                }
            }
        };
        if let Some(slot) = &slot {
            slot.stops.fetch_sub(1, Ordering::Relaxed);
            slot.receiver.wake.notify_one();
        }
        result
    }

    /// The stop signal of a container, if its runtime does not store one and would send the image's.
    pub(super) fn own_signal(
        &self,
        container: &str,
        signal: Option<&str>,
    ) -> Result<Option<u32>, RuntimeError> {
        let Some(name) = signal else { return Ok(None) };
        match self.signals {
            Signals::Kept => Ok(None),
            Signals::Sent => {
                signals::number(name).and_then(|number| u32::try_from(number).ok()).map(Some).ok_or_else(
                    || RuntimeError::Config(format!("stop signal {name:?} is not the name of a signal")),
                )
            }
            Signals::Lacking => {
                tracing::warn!(container, "this runtime cannot send {name}: its image's stop signal is sent");
                Ok(None)
            }
        }
    }

    /// Removes a container. Runs to completion even if the caller goes away.
    pub(super) async fn remove_container(self: Arc<Self>, name: ContainerId) -> Result<(), RuntimeError> {
        let _turn = self.turn(&name.0).await;
        if let Some(id) = self.find(&name).await? {
            let removed = self.settle(RemoveContainerRequest { container_id: id.clone() }).await;
            removed
                .map_err(|fault| RuntimeError::Other(format!("cannot remove container {name}: {fault}")))?;
            self.hints.forget(&id);
        }
        self.slots().remove(&name);
        Ok(())
    }

    /// Forgets the containers of a removed sandbox.
    pub(super) fn forget_containers_of(&self, sandbox: &SandboxId) {
        self.slots().retain(|_, slot| {
            if slot.sandbox != *sandbox {
                return true;
            }
            if let Some(id) = slot.id.get() {
                self.hints.forget(id);
            }
            // Wake the tasks that wait for this container.
            slot.receiver.wake.notify_one();
            false
        });
    }

    /// Repeats a removal until it is done. An error may mean that the same removal is still in progress.
    pub(super) async fn settle<Q: Rpc>(&self, request: Q) -> Result<(), Fault> {
        for _ in 1..REMOVALS_MAX {
            match self.client.call_until_answered(request.clone(), self.client.limits().work).await {
                Ok(_) | Err(Fault::NotFound(_)) => return Ok(()),
                Err(Fault::Refused(text)) => {
                    tracing::debug!("{} is refused: {text}", Q::PATH);
                    tokio::time::sleep(REMOVAL_PAUSE).await;
                }
                Err(fault) => return Err(fault),
            }
        }
        match self.client.call_until_answered(request, self.client.limits().work).await {
            Ok(_) | Err(Fault::NotFound(_)) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// The runtime's id of a container that this or another process created.
    async fn find(&self, name: &ContainerId) -> Result<Option<String>, RuntimeError> {
        if let Some(id) = self.slot(name).ok().and_then(|slot| slot.id.get().cloned()) {
            return Ok(Some(id));
        }
        let found = self.containers_of(name).await.map_err(|fault| RuntimeError::Other(fault.to_string()))?;
        Ok(found.into_iter().next().map(|container| container.id))
    }

    /// The runtime's containers with our name.
    async fn containers_of(&self, name: &ContainerId) -> Result<Vec<Container>, Fault> {
        let label_selector: BTreeMap<_, _> = [(LABEL_ID.to_owned(), name.0.clone())].into();
        let filter = ContainerFilter { label_selector, ..ContainerFilter::default() };
        Ok(self.client.ask(ListContainersRequest { filter: Some(filter) }).await?.containers)
    }

    /// The resource usage of a container.
    pub(super) async fn stats(&self, name: &ContainerId) -> Result<Stats, RuntimeError> {
        let request = ContainerStatsRequest { container_id: self.slot(name)?.id()? };
        let answer = self.client.ask(request).await.map_err(|fault| match fault {
            Fault::NotFound(_) => missing(name),
            fault => RuntimeError::Other(format!("cannot tell what container {name} uses: {fault}")),
        })?;
        let stats = answer.stats.unwrap_or_default();
        let cpu = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds);
        let memory = stats.memory.and_then(|memory| memory.working_set_bytes);
        Ok(Stats {
            cpu: cpu.map(|used| Duration::from_nanos(used.value)),
            memory_bytes: memory.map(|used| used.value),
        })
    }

    /// Runs a command. Dropping the call cancels the command.
    pub(super) async fn exec(
        &self,
        name: &ContainerId,
        request: ExecRequest,
    ) -> Result<ExecOutput, RuntimeError> {
        let id = self.slot(name)?.id()?;
        let call = ExecSyncRequest {
            container_id: id,
            cmd: request.command,
            timeout: request.timeout.map_or(0, |limit| seconds(limit).max(1)),
        };
        let limit = request.timeout.unwrap_or(Duration::MAX);
        match self.client.call_once(call, limit).await {
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend(answer.stderr);
                output.truncate(request.output_limit);
                Ok(ExecOutput { code: Some(answer.exit_code), output })
            }
            Err(Fault::Expired) => Ok(ExecOutput { code: None, output: Vec::new() }),
            // The command itself takes this long, unless the runtime cannot be reached.
            Err(Fault::Late(_)) if self.client.is_reachable().await => {
                Ok(ExecOutput { code: None, output: Vec::new() })
            }
            Err(Fault::NotFound(_)) => Err(missing(name)),
            Err(fault @ Fault::Refused(_)) => Err(RuntimeError::Start(fault.to_string())),
            Err(fault) => Err(RuntimeError::Other(fault.to_string())),
        }
    }
}

/// The result of a start that left no known process. Kills the remains of the container.
async fn broken_off(slot: &Slot, id: &str) -> Outcome {
    let id = id.to_owned();
    let was_run = tokio::task::spawn_blocking(move || leftovers::end_start(&id)).await.unwrap_or(true);
    match was_run || slot.receiver.was_started.load(Ordering::Relaxed) {
        true => Outcome::Refused(UNDONE.to_owned()),
        false => Outcome::Never,
    }
}

/// Whole seconds, rounded up.
fn seconds(duration: Duration) -> i64 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

/// A timestamp from the runtime, if it is set.
pub(super) fn time(nanoseconds: i64) -> Option<SystemTime> {
    let nanoseconds = u64::try_from(nanoseconds).ok().filter(|nanoseconds| *nanoseconds > 0)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
}
