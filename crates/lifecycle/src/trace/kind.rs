//! The names of the events in a trace.

use super::event::{ContainerEvent, PodEvent, TraceEvent};
use super::workload::WorkloadEvent;

/// The kinds of one or more enums of events: one list gives the enum, all of its values, their names and the kind of an
/// event. An event that is missing from the list does not compile.
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
            /// All of them.
            pub const ALL: &'static [$kind] = &[$($($kind::$variant),+),+];

            /// As it stands in the trace.
            pub fn name(self) -> &'static str {
                match self {
                    $($($kind::$variant => $name,)+)+
                }
            }
        }

        $(
            impl $event {
                /// What it is about, without the details.
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
    /// What it is about, without the details.
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
    /// What an entry of a pod's trace is about.
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
    /// What an entry of a workload is about.
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
