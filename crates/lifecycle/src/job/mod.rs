//! Jobs: which pods to create and delete, and when the Job is over.
//!
//! The structure is that of the engine for pods: a [`JobPlan`], a [`JobObservation`] and the time become a
//! [`JobDecision`]. Everything is derived from the pods of the Job, so a lost event changes nothing. The
//! rules are those of the Job controller of Kubernetes 1.36.

mod check;
mod decide;
mod indexes;
mod observation;
mod plan;
mod policy;
mod schedule;
mod status;
mod tally;

pub use check::validate_job_fields;
pub use decide::{JobDecision, PodOrder, decide_job};
pub use indexes::{Indexes, IndexesError};
pub use observation::{ContainerExit, JobEnd, JobObservation, JobOutcome, JobPod};
pub use plan::{ExitCodes, FailureAction, FailureRule, JobPlan, SuccessRule};
pub use schedule::{ScheduleError, check_schedule};
pub use status::job_status;
