//! `apply` on a node: replaces the manifests of a run.
//!
//! The new manifests are saved before they take effect, together with the objects that are being removed. A
//! process that resumes the run therefore reaches the same result.

use std::collections::BTreeSet;

use outrigger_lifecycle::{Change, Plan};
use outrigger_manifest::compare::{ObjectChange, ObjectKey, Objects, compare, describe};
use outrigger_runtime::Runtime;

use super::run_store::{RECORD, WORKLOADS};
use super::runs::{RunOrder, Update};
use super::{Node, Run, check};
use crate::control::{Applied, AppliedObject, OrderError, PodState};
use crate::record::{Retired, RunRecord, SavedWorkloads};
use crate::work::{PlannedPod, Work};
use crate::workload::Standing;

impl<R: Runtime> Node<R> {
    /// Applies manifests to the run that contains their objects, or to a new run if there is none.
    pub(super) fn apply(&mut self, record: RunRecord, dry_run: bool) -> Result<Applied, OrderError> {
        let work = self.read_new(&record)?;
        let Some(id) = self.run_of(&work)? else {
            let created = |workload| {
                let key = ObjectKey::of_workload(workload);
                applied(&key, &ObjectChange::New, &work)
            };
            let objects = work.workloads.iter().map(created).collect();
            self.names_are_free(&work, None)?;
            let run = if dry_run { None } else { Some(self.add(record, work)?.run) };
            return Ok(Applied { run, objects });
        };
        if let Some(path) = &self.runs[&id].record.manifest {
            return Err(OrderError::ManifestDir(path.clone()));
        }
        self.apply_to(&id, record, work, dry_run)
    }

    /// The run that contains objects of these manifests, if any.
    fn run_of(&self, work: &Work) -> Result<Option<String>, OrderError> {
        let wanted: BTreeSet<ObjectKey> = work.workloads.iter().map(ObjectKey::of_workload).collect();
        let mut found: Option<(String, ObjectKey)> = None;
        // Objects of a run that is being stopped are started again when they are gone. But a run of the
        // manifest directory that is being stopped ends, and its file is then run again.
        let is_live =
            |run: &Run<R>| run.ended.is_none() && !(run.is_stopping && run.record.manifest.is_some());
        for (id, run) in self.runs.iter().filter(|(_, run)| is_live(run)) {
            let there = self.read_accepted(&run.record)?;
            let Some(key) =
                there.workloads.iter().map(ObjectKey::of_workload).find(|key| wanted.contains(key))
            else {
                continue;
            };
            if let Some((other, first)) = &found {
                return Err(OrderError::SeveralRuns(
                    (first.display(), other.clone()),
                    (key.display(), id.clone()),
                ));
            }
            found = Some((id.clone(), key));
        }
        Ok(found.map(|(id, _)| id).or_else(|| self.ended_run_of(&wanted)))
    }

    /// The last run that had some of these objects. Objects that have finished in it are not run again.
    fn ended_run_of(&self, wanted: &BTreeSet<ObjectKey>) -> Option<String> {
        let has_some = |run: &Run<R>| {
            let there = self.read_accepted(&run.record);
            there.is_ok_and(|there| {
                there.workloads.iter().any(|w| wanted.contains(&ObjectKey::of_workload(w)))
            })
        };
        let ended = self.runs.iter().filter_map(|(id, run)| Some((id, run, run.ended.as_ref()?)));
        let had = ended.filter(|(_, run, _)| run.record.manifest.is_none() && has_some(run));
        had.max_by_key(|(_, _, ended)| ended.result.at_ms).map(|(id, ..)| id.clone())
    }

    /// Applies manifests to a run.
    pub(super) fn apply_to(
        &mut self,
        id: &str,
        record: RunRecord,
        work: Work,
        dry_run: bool,
    ) -> Result<Applied, OrderError> {
        let old = &self.runs[id].record;
        let before = self.read_accepted(old)?;
        let mut compared = compare(&objects(&before), &objects(&work));
        let mut objects = Vec::new();
        for (key, change) in &mut compared {
            let mut object = applied(key, change, &work);
            if let Some(why) = starts_again(change, self.runs[id].standings.get(&old.key(key))) {
                object.change = "started again".to_owned();
                (object.details, object.restarted) = (vec![why.to_owned()], Vec::new());
                // The run sees this as another object of the same name, which starts once the first is gone.
                *change = ObjectChange::Replaced { why: Vec::new() };
            }
            objects.push(object);
        }
        let answer = Applied { run: Some(id.to_owned()), objects };
        self.names_are_free(&work, Some(id))?;
        let record = self.succeed(id, record, &compared);
        self.check_new(id, &record, &work, &compared)?;
        if dry_run {
            return Ok(answer);
        }
        self.store.save_run(id, RECORD, &record).map_err(|e| self.cannot_write(e))?;
        self.store.forget_end(id).map_err(|e| self.cannot_write(e))?;
        let Some(run) = self.runs.get_mut(id) else { return Ok(answer) };
        self.registry.run_changes(id);
        let update = Update { keys: record.keys(&work), work, files: record.files.clone() };
        let _ = run.orders.send(RunOrder::Update(Box::new(update)));
        run.record = record;
        run.is_stopping = false;
        if let Some(ended) = run.ended.take() {
            self.registry.run_continues(id);
            self.tasks.spawn(ended.driven.run());
        }
        Ok(answer)
    }

    /// Checks whether new objects can be run at all. Replacements cannot be checked before the old object is
    /// gone, because both may need the same ports.
    fn check_new(
        &self,
        id: &str,
        record: &RunRecord,
        work: &Work,
        compared: &[(ObjectKey, ObjectChange)],
    ) -> Result<(), OrderError> {
        let (driven, _) = self.drive(id, record, work.clone());
        for pod in &work.pods {
            let origin = &pod.manifest.origin;
            let is_it = |key: &ObjectKey| {
                key.kind == origin.kind && key.namespace == origin.namespace && key.name == origin.name
            };
            if compared.iter().any(|(key, change)| *change == ObjectChange::New && is_it(key)) {
                check(&driven, pod)?;
            }
        }
        Ok(())
    }

    /// The record of a run after a change.
    fn succeed(&self, id: &str, record: RunRecord, compared: &[(ObjectKey, ObjectChange)]) -> RunRecord {
        let old = &self.runs[id].record;
        // The manifests of objects that are gone are no longer needed.
        let alive = self.store.load_run::<SavedWorkloads>(id, WORKLOADS);
        let alive = alive.ok().flatten().unwrap_or_default().workloads;
        let mut retired: Vec<Retired> =
            old.retired.iter().filter(|retired| alive.contains_key(&retired.key)).cloned().collect();
        let mut generations = old.generations.clone();
        for (key, change) in compared {
            if !matches!(change, ObjectChange::Replaced { .. } | ObjectChange::Removed) {
                continue;
            }
            retired.push(Retired {
                key: old.key(key),
                sources: old.sources.clone(),
                reading: old.reading.clone(),
            });
            // The next object of this name is a different one.
            *generations.entry(key.id()).or_default() += 1;
        }
        RunRecord {
            retired,
            generations,
            names: old.names.clone(),
            pods: old.pods.clone(),
            manifest: old.manifest.clone(),
            status: old.status.clone(),
            ..record
        }
    }

    /// Checks that no pod and no workload of another run has a name that these manifests use. Generated pod
    /// names do not matter, because each run has its own.
    pub(super) fn names_are_free(&self, work: &Work, run: Option<&str>) -> Result<(), OrderError> {
        for key in work.workloads.iter().map(ObjectKey::of_workload).filter(|key| key.kind != "Pod") {
            let is_there = |(id, other): &(&String, &Run<R>)| {
                run != Some(id.as_str()) && other.ended.is_none() && other.standings.has_live(&key.id())
            };
            if let Some((id, _)) = self.runs.iter().find(is_there) {
                return Err(OrderError::WorkloadExists { object: key.display(), run: id.clone() });
            }
        }
        let there = self.registry.pods();
        for (namespace, name) in work.fixed_pod_names() {
            let is_taken = |p: &PodState| {
                !p.over
                    && p.namespace == namespace
                    && p.name == name
                    && (run.is_none() || p.run.as_deref() != run)
            };
            if there.iter().any(is_taken) {
                return Err(OrderError::PodExists(name));
            }
        }
        Ok(())
    }
}

/// The objects of the manifests, for comparison.
fn objects(work: &Work) -> Objects<'_> {
    Objects {
        pods: work.pods.iter().map(|pod| (&pod.manifest, &pod.plan)).collect(),
        workloads: &work.workloads,
        companions: &work.companions,
    }
}

/// Why an object that is not replaced must be started again; `None` if it must not.
fn starts_again(change: &ObjectChange, standing: Standing) -> Option<&'static str> {
    let is_same = match change {
        ObjectChange::Unchanged => true,
        ObjectChange::Updated(_) | ObjectChange::Scaled { .. } => false,
        ObjectChange::New | ObjectChange::Replaced { .. } | ObjectChange::Removed => return None,
    };
    match standing {
        Standing::Active => None,
        Standing::Stopping => Some("when it is gone, it is being stopped"),
        Standing::Stopped => Some("it was stopped"),
        // Finished work is not repeated, unless the object was changed.
        Standing::Finished if is_same => None,
        Standing::Ended | Standing::Finished => Some("it had ended"),
    }
}

/// The change of an object as it is reported to the client.
fn applied(key: &ObjectKey, change: &ObjectChange, work: &Work) -> AppliedObject {
    let is_it = |pod: &&PlannedPod| {
        key.kind == "Pod" && pod.manifest.name() == key.name && pod.manifest.namespace() == key.namespace
    };
    let plan: Option<&Plan> = work.pods.iter().find(is_it).map(|pod| &pod.plan);
    let (mut details, mut restarted) = (Vec::new(), Vec::new());
    match change {
        ObjectChange::Updated(changes) => {
            for (change, plan) in changes.iter().filter_map(|change| Some((change, plan?))) {
                details.push(describe(change, plan));
                if let Change::Image { container, .. } = change {
                    restarted.push(plan.containers[*container].name.clone());
                }
            }
        }
        ObjectChange::Scaled { from, to } => {
            let pods = if *to == 1 { "pod" } else { "pods" };
            details.push(format!("{to} {pods} (were {from})"));
        }
        ObjectChange::Replaced { why } => {
            // The reason is a field path or a sentence.
            let told = |why: &String| if why.contains(' ') { why.clone() } else { format!("{why} changed") };
            details.extend(why.iter().map(told));
        }
        ObjectChange::Unchanged | ObjectChange::New | ObjectChange::Removed => {}
    }
    AppliedObject {
        object: key.display(),
        namespace: key.namespace.clone(),
        change: change.name().to_owned(),
        details,
        restarted,
    }
}
