//! Rules for updates of a running pod, and for requested restarts.
//!
//! In Kubernetes a pod's images, its ephemeral containers and its deadline can change (R8.30); here the grace
//! period can change as well. Any other change needs a new pod.

use crate::observation::Observation;
use crate::plan::{Plan, Role};
use crate::rules;

/// One change of a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A container has a new image. If it is running, it is stopped, and started again with the new image as
    /// soon as that is present (R2.10).
    Image {
        /// The index of the container in the plan.
        container: usize,
        /// The old image.
        from: String,
        /// The new image.
        to: String,
    },
    /// A new ephemeral container.
    Added {
        /// The index of the container in the plan.
        container: usize,
    },
    /// The next stop has a new grace period. A stop that has already begun keeps its own (G-16).
    Grace {
        /// The old grace period.
        from_ms: u64,
        /// The new grace period.
        to_ms: u64,
    },
    /// The pod has a new deadline. It still counts from the beginning.
    Deadline {
        /// The old deadline.
        from_ms: Option<u64>,
        /// The new deadline.
        to_ms: Option<u64>,
    },
}

/// Why a running pod cannot be updated to a new plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotUpdate {
    /// Containers were added that are not ephemeral, or some were removed or moved.
    #[error("its containers are not the same")]
    Containers,
    /// A field other than the image differs.
    #[error("container `{name}` has more changes than its image")]
    Container {
        /// Which container.
        name: String,
    },
    /// A field of the whole pod differs.
    #[error("more changes than images, grace period, deadline and ephemeral containers")]
    Pod,
}

/// Why a container, or all of them, cannot be restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotRestart {
    /// The pod is being stopped, or is over.
    #[error("the pod is stopping or has ended")]
    Stopping,
    /// There is no such container.
    #[error("there is no such container")]
    Unknown,
    /// Init containers and ephemeral containers run once.
    #[error("`{name}` is {role}, which runs once; restart the whole pod to run its init containers again")]
    RunsOnce {
        /// Which container.
        name: String,
        /// Its role.
        role: &'static str,
    },
    /// It has ended and will not run again.
    #[error("`{name}` has ended for good; restart the whole pod to run it again")]
    Ended {
        /// Which container.
        name: String,
    },
}

/// The changes that turn a running pod into `new`.
///
/// # Errors
/// The pod cannot be updated to it.
pub fn changes(old: &Plan, new: &Plan) -> Result<Vec<Change>, CannotUpdate> {
    let count = old.containers.len();
    let added = new.containers.get(count..).ok_or(CannotUpdate::Containers)?;
    let same_names = old.containers.iter().zip(&new.containers).all(|(a, b)| a.name == b.name);
    if !same_names || added.iter().any(|c| c.role != Role::Ephemeral) {
        return Err(CannotUpdate::Containers);
    }
    let mut out = Vec::new();
    // The new plan with all permitted changes undone.
    let mut rest = new.clone();
    rest.containers.truncate(count);
    rest.stop_order.retain(|i| *i < count);
    (rest.grace_ms, rest.active_deadline_ms) = (old.grace_ms, old.active_deadline_ms);
    for (i, (was, is)) in old.containers.iter().zip(&mut rest.containers).enumerate() {
        if was.image != is.image {
            let to = std::mem::replace(&mut is.image, was.image.clone());
            out.push(Change::Image { container: i, from: was.image.clone(), to });
            // Whether the image is pulled at every start depends on its tag, so this follows from the new
            // image.
            is.pull_always = was.pull_always;
        }
        if was != is {
            return Err(CannotUpdate::Container { name: was.name.clone() });
        }
    }
    if rest != *old {
        return Err(CannotUpdate::Pod);
    }
    out.extend((count..new.containers.len()).map(|container| Change::Added { container }));
    if old.grace_ms != new.grace_ms {
        out.push(Change::Grace { from_ms: old.grace_ms, to_ms: new.grace_ms });
    }
    if old.active_deadline_ms != new.active_deadline_ms {
        out.push(Change::Deadline { from_ms: old.active_deadline_ms, to_ms: new.active_deadline_ms });
    }
    Ok(out)
}

/// Whether a container, or all of them if none is given, can be restarted now.
///
/// # Errors
/// Why it cannot.
pub fn can_restart(plan: &Plan, obs: &Observation, container: Option<usize>) -> Result<(), CannotRestart> {
    if obs.over || obs.stop.is_some() {
        return Err(CannotRestart::Stopping);
    }
    let Some(container) = container else { return Ok(()) };
    let (Some(p), Some(c)) = (plan.containers.get(container), obs.containers.get(container)) else {
        return Err(CannotRestart::Unknown);
    };
    match p.role {
        // A running init container that is stopped may exit with 0 and then count as completed.
        Role::Init => {
            return Err(CannotRestart::RunsOnce { name: p.name.clone(), role: "an init container" });
        }
        Role::Ephemeral => {
            return Err(CannotRestart::RunsOnce { name: p.name.clone(), role: "an ephemeral container" });
        }
        Role::Sidecar | Role::Main => {}
    }
    if rules::is_ending_for_good(p, c) {
        return Err(CannotRestart::Ended { name: p.name.clone() });
    }
    Ok(())
}
