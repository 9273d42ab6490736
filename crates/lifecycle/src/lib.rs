//! The pure core of Outrigger: what a pod means, and what to do next.
//!
//! There is no I/O, no clock, no randomness and no async code. Everything is a function of its arguments: a
//! pod as written becomes a [`Plan`]; a plan, an [`Observation`] and the time become a [`Decision`]; an
//! observation becomes a pod status.
#![forbid(unsafe_code)]

mod action;
mod backoff;
mod cause;
mod check;
mod companions;
mod confinement;
pub mod convert;
mod decision;
mod dialect;
mod engine;
mod explain;
mod finding_names;
mod fold;
mod forgotten;
mod job;
mod observation;
mod overview;
mod plan;
mod probe;
mod replicas;
mod resources;
pub mod rules;
mod shell;
mod source;
mod status;
mod time;
pub mod trace;
mod validate;
pub mod verdict;

pub use action::{Action, Event, ProbeOutcome};
pub use cause::{Cause, Outlook, ProbeCause, PullCause, SandboxCause, StartCause};
pub use check::{CheckedPod, PodOwner, check};
pub use companions::{Companions, ROOT_CA};
pub use confinement::{APP_ARMOR_ANNOTATION, SettingOrigin, app_armor_profile, selinux_options};
pub use decision::{Decision, Wait};
pub use dialect::{Planned, TerminatorMarks, add_levels, annotations, launch_priority, plan, stop_numbers};
pub use engine::{
    CannotRestart, CannotUpdate, Change, Engine, STOP_MIN_MS, StopPlan, StopTurn, can_restart, changes,
    decide, stop_stages, stop_turns,
};
pub use explain::{explain, explain_stop};
pub use forgotten::{forgotten_sidecars, only_forgotten_run};
pub use job::{
    ContainerExit, ExitCodes, FailureAction, FailureRule, Indexes, IndexesError, JobDecision, JobEnd,
    JobObservation, JobOutcome, JobPlan, JobPod, PodOrder, ScheduleError, SuccessRule, check_schedule,
    decide_job, job_status, validate_job_fields,
};
pub use observation::{
    Backoff, Container, Exit, ExitReason, Hook, HookKind, Image, Kill, KillReason, Observation, Probe, Rerun,
    RerunCause, Sandbox, SandboxState, StartFailure, State, Stop, StopCause, Verdict,
};
pub use overview::{StopRule, StopWindow};
pub use plan::{
    BackoffPlan, CONTAINERS_MAX, ContainerPlan, Counts, Dialect, Gate, HookPlan, Need, Plan, PreStopWhen,
    ProbeKind, ProbePlan, Restart, RestartPolicy, RestartRule, Role, RuleAction, VolumeLimit,
};
pub use replicas::{Replica, ReplicaDecision, ReplicaObservation, ReplicaPlan, decide_replicas};
pub use resources::{
    Amount, Amounts, Format, Qos, QuantityError, ResourceTotals, effective, oom_score_adj, parse_quantity,
    qos,
};
pub use source::{ContainerRef, FeatureGates, FieldPath, Finding, List, PodInput, Segment, Severity};
pub use status::{ContainerFacts, Phase, StatusFacts, fails_pod, observe, phase, pod_status, was_stopped};
pub use time::Time;
pub use validate::{
    NAMESPACE_IDS, PodSecurityLevel, is_launch_barrier, validate, validate_job, validate_kruise,
    validate_level, validate_name, validate_plan,
};
