//! The names of the events in a trace.

use super::event::{ContainerEvent, PodEvent, TraceEvent};
use super::workload::WorkloadEvent;

/// Defines an enum of event kinds, its list of values, their names, and the kind of each event. All come from
/// one list. An event that is missing from the list does not compile.
macro_rules! kinds {
    ($(#[$about:meta])* $kind:ident { $($event:ident { $($variant:ident = $name:literal,)+ })+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $kind {
            $($(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )+)+
        }

        impl $kind {
            /// All kinds.
            pub const ALL: &'static [$kind] = &[$($($kind::$variant),+),+];

            /// The name in the trace.
            pub fn name(self) -> &'static str {
                match self {
                    $($($kind::$variant => $name,)+)+
                }
            }
        }

        $(
            impl $event {
                /// The kind of the event, without its details.
                pub fn kind(&self) -> $kind {
                    match self {
                        $($event::$variant { .. } => $kind::$variant,)+
                    }
                }

                /// Its name in the trace.
                pub fn name(&self) -> &'static str {
                    self.kind().name()
                }
            }
        )+
    };
}

impl TraceEvent {
    /// The kind of the event, without its details.
    pub fn kind(&self) -> Kind {
        match self {
            TraceEvent::Pod(event) => event.kind(),
            TraceEvent::Container(event) => event.kind(),
        }
    }

    /// Its name in the trace.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

kinds! {
    /// The kinds of events of a pod.
    Kind {
        PodEvent {
            Planned = "planned",
            SandboxCreating = "sandbox-creating",
            SandboxReady = "sandbox-ready",
            SandboxFailed = "sandbox-failed",
            SandboxLost = "sandbox-lost",
            Phase = "phase",
            StopBegun = "stop-begun",
            StopShortened = "stop-shortened",
            RerunBegun = "rerun-begun",
            Rerun = "rerun",
            Finished = "finished",
        }
        ContainerEvent {
            Pulling = "pulling",
            Pulled = "pulled",
            PullFailed = "pull-failed",
            ImageChanged = "image-changed",
            Starting = "starting",
            Started = "started",
            StartFailed = "start-failed",
            StartupPassed = "startup-passed",
            Ready = "ready",
            Unready = "unready",
            Exited = "exited",
            Lost = "lost",
            Probe = "probe",
            HookStarted = "hook-started",
            HookEnded = "hook-ended",
            HookCancelled = "hook-cancelled",
            HookOutput = "hook-output",
            Waiting = "waiting",
            KillBegun = "kill-begun",
            Terminating = "terminating",
            StopSignalIgnored = "stop-signal-ignored",
            Killing = "killing",
            Log = "log",
        }
    }
}

kinds! {
    /// The kinds of events of a workload.
    WorkloadKind {
        WorkloadEvent {
            JobStarted = "job-started",
            WorkloadStarted = "workload-started",
            PodCreated = "pod-created",
            PodWaiting = "pod-waiting",
            PodDeleted = "pod-deleted",
            JobBackOff = "job-back-off",
            SuccessCriteriaMet = "success-criteria-met",
            FailureTarget = "failure-target",
            JobComplete = "job-complete",
            JobFailed = "job-failed",
            JobSuspended = "job-suspended",
            JobStopped = "job-stopped",
        }
    }
}
