//! The names of the events in a trace.

/// The kind of an entry of a pod's trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The containers of the pod; the first entry of a trace that is written to a file.
    Planned,
    /// The sandbox is being created.
    SandboxCreating,
    /// The sandbox is ready.
    SandboxReady,
    /// The sandbox could not be created.
    SandboxFailed,
    /// The sandbox died.
    SandboxLost,
    /// The phase changed.
    Phase,
    /// The pod begins to stop.
    StopBegun,
    /// The grace period of the stop was shortened.
    StopShortened,
    /// Everything is being stopped to start over.
    RerunBegun,
    /// Everything starts over.
    Rerun,
    /// Nothing is running any more or will be started again.
    Finished,
    /// An image is being pulled.
    Pulling,
    /// It was pulled.
    Pulled,
    /// It could not be pulled.
    PullFailed,
    /// The image of the spec changed.
    ImageChanged,
    /// A container is being started.
    Starting,
    /// Its program was executed.
    Started,
    /// It could not be started.
    StartFailed,
    /// Its startup probe passed.
    StartupPassed,
    /// It is ready.
    Ready,
    /// It is no longer ready.
    Unready,
    /// It exited.
    Exited,
    /// The runtime lost track of it.
    Lost,
    /// A probe attempt with new information.
    Probe,
    /// A hook started.
    HookStarted,
    /// A hook ended.
    HookEnded,
    /// A hook was cancelled.
    HookCancelled,
    /// Why a container waits.
    Waiting,
    /// A container is about to be stopped.
    KillBegun,
    /// It was sent its stop signal.
    Terminating,
    /// It was killed.
    Killing,
    /// What a hook printed.
    HookOutput,
    /// The stop signal is ignored.
    StopSignalIgnored,
    /// A line of output.
    Log,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 34] = [
        Kind::SandboxCreating,
        Kind::SandboxReady,
        Kind::SandboxFailed,
        Kind::SandboxLost,
        Kind::Phase,
        Kind::StopBegun,
        Kind::StopShortened,
        Kind::RerunBegun,
        Kind::Rerun,
        Kind::Finished,
        Kind::Pulling,
        Kind::Pulled,
        Kind::PullFailed,
        Kind::ImageChanged,
        Kind::Starting,
        Kind::Started,
        Kind::StartFailed,
        Kind::StartupPassed,
        Kind::Ready,
        Kind::Unready,
        Kind::Exited,
        Kind::Lost,
        Kind::Probe,
        Kind::HookStarted,
        Kind::HookEnded,
        Kind::HookCancelled,
        Kind::Waiting,
        Kind::KillBegun,
        Kind::Terminating,
        Kind::Killing,
        Kind::HookOutput,
        Kind::StopSignalIgnored,
        Kind::Planned,
        Kind::Log,
    ];

    /// The name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Kind::SandboxCreating => "sandbox-creating",
            Kind::SandboxReady => "sandbox-ready",
            Kind::SandboxFailed => "sandbox-failed",
            Kind::SandboxLost => "sandbox-lost",
            Kind::Phase => "phase",
            Kind::StopBegun => "stop-begun",
            Kind::StopShortened => "stop-shortened",
            Kind::RerunBegun => "rerun-begun",
            Kind::Rerun => "rerun",
            Kind::Finished => "finished",
            Kind::Pulling => "pulling",
            Kind::Pulled => "pulled",
            Kind::PullFailed => "pull-failed",
            Kind::ImageChanged => "image-changed",
            Kind::Starting => "starting",
            Kind::Started => "started",
            Kind::StartFailed => "start-failed",
            Kind::StartupPassed => "startup-passed",
            Kind::Ready => "ready",
            Kind::Unready => "unready",
            Kind::Exited => "exited",
            Kind::Lost => "lost",
            Kind::Probe => "probe",
            Kind::HookStarted => "hook-started",
            Kind::HookEnded => "hook-ended",
            Kind::HookCancelled => "hook-cancelled",
            Kind::Waiting => "waiting",
            Kind::KillBegun => "kill-begun",
            Kind::Terminating => "terminating",
            Kind::Killing => "killing",
            Kind::HookOutput => "hook-output",
            Kind::StopSignalIgnored => "stop-signal-ignored",
            Kind::Planned => "planned",
            Kind::Log => "log",
        }
    }
}
