//! Builds the plan of a pod from its manifest.
//!
//! Each dialect has its own module, and only adds roles and gates. This module has what they share, and
//! derives the stop order from the gates. Dialects used together in one pod add to the same graph. If the
//! graph has a cycle, the pod is refused, and the finding shows all parts of the cycle.

pub mod annotations;
mod base;
mod depends_on;
mod kep;
mod options;
mod priority;
mod terminator;

pub(crate) use depends_on::place_of as depends_on_place;
pub use depends_on::stop_numbers;
pub use priority::{add_levels, launch_priority};
pub use terminator::TerminatorMarks;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::plan::{CONTAINERS_MAX, Counts, Dialect, Gate, Need, Plan, Role, topological};
use crate::source::{ContainerRef, FeatureGates, FieldPath, Finding, List, PodInput, Severity};

/// A plan, and warnings for its author.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Findings that are not errors.
    pub warnings: Vec<Finding>,
}

/// Builds the plan of a pod.
///
/// # Errors
/// All findings, warnings included, if at least one of them is an error.
pub fn plan(input: &PodInput, gates: &FeatureGates) -> Result<Planned, Vec<Finding>> {
    let mut draft = Draft::new(input, *gates)?;
    let explicit = depends_on::read(&mut draft);
    base::gates(&mut draft, &explicit);
    kep::apply(&mut draft);
    terminator::apply(&mut draft);
    priority::apply(&mut draft);
    depends_on::apply(&mut draft, &explicit);
    options::apply(&mut draft);
    draft.finish(&explicit)
}

/// A plan under construction.
struct Draft<'a> {
    input: &'a PodInput,
    spec: &'a PodSpec,
    features: FeatureGates,
    plan: Plan,
    findings: Vec<Finding>,
}

impl<'a> Draft<'a> {
    fn new(input: &'a PodInput, features: FeatureGates) -> Result<Self, Vec<Finding>> {
        let Some(spec) = &input.pod.spec else {
            return Err(vec![Finding::error("R8.1", FieldPath::root().field("spec"), "a pod needs a spec")]);
        };
        let count = spec.containers.len()
            + spec.init_containers.as_ref().map_or(0, Vec::len)
            + spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
        if count > CONTAINERS_MAX {
            return Err(vec![Finding::error(
                "limit",
                FieldPath::spec("containers"),
                format!("a pod may have at most {CONTAINERS_MAX} containers, this one has {count}"),
            )]);
        }
        if spec.containers.is_empty() {
            return Err(vec![
                Finding::error("R8.1", FieldPath::spec("containers"), "a pod needs at least one container")
                    .hint(
                        "add an entry to `spec.containers`; init containers and sidecars alone are not a pod",
                    ),
            ]);
        }
        let plan = base::plan(input, spec, &features);
        Ok(Draft { input, spec, features, plan, findings: Vec::new() })
    }

    fn container(&self, place: ContainerRef) -> Option<&'a Container> {
        match place.list {
            List::Init => self.spec.init_containers.as_ref()?.get(place.index),
            List::Main => self.spec.containers.get(place.index),
            List::Ephemeral => None,
        }
    }

    fn annotation(&self, name: &str) -> Option<&'a str> {
        self.input.pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// The plan indices of the entries of `spec.containers`.
    fn mains(&self) -> Vec<usize> {
        self.of_list(List::Main)
    }

    /// The plan indices of the entries of `spec.initContainers`.
    fn inits(&self) -> Vec<usize> {
        self.of_list(List::Init)
    }

    fn of_list(&self, list: List) -> Vec<usize> {
        (0..self.plan.containers.len()).filter(|&i| self.plan.containers[i].place.list == list).collect()
    }

    fn gate(&mut self, container: usize, on: usize, need: Need, dialect: Option<Dialect>) {
        let gates = &mut self.plan.containers[container].gates;
        if !gates.iter().any(|g| g.on == on && g.need == need) {
            gates.push(Gate { on, need, every_start: false, dialect });
        }
    }

    fn uses(&mut self, dialect: Dialect) {
        if !self.plan.dialects.contains(&dialect) {
            self.plan.dialects.push(dialect);
            self.plan.dialects.sort();
        }
    }

    fn finish(mut self, explicit: &depends_on::Graph) -> Result<Planned, Vec<Finding>> {
        self.refuse_cycles();
        if self.findings.iter().any(|f| f.severity == Severity::Error) {
            return Err(self.findings);
        }
        self.stop_edges(explicit);
        if let Err(cycle) = self.plan.order_stops() {
            let finding = self.cycle("stop-cycle", "the stop order is circular", &cycle);
            self.findings.push(finding);
            return Err(self.findings);
        }
        terminator::restart_crashed(&mut self);
        terminator::retried_do_not_count(&mut self);
        if !self.plan.containers.iter().any(|c| c.keeps_alive) {
            self.findings.push(
                Finding::error(
                    "sidecars-only",
                    FieldPath::spec("containers"),
                    "every container is a sidecar: the pod has no main container",
                )
                .hint("leave at least one container without `lifecycle.type: Sidecar` and without the terminator env"),
            );
            return Err(self.findings);
        }
        Ok(Planned { plan: self.plan, warnings: self.findings })
    }

    /// A container that starts after another stops before it: the stop order is the reverse of the start
    /// order. Launch priority is the exception, it only orders starts, and the stops of sidecars that end with their mains (KD7).
    fn stop_edges(&mut self, explicit: &depends_on::Graph) {
        let n = self.plan.containers.len();
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); n];
        for (i, c) in self.plan.containers.iter().enumerate() {
            for gate in &c.gates {
                let ordered = gate.need != Need::Launched && gate.dialect != Some(Dialect::Priority);
                if ordered && !explicit.numbers_stop(gate.on, i) {
                    after[gate.on].push(i);
                }
            }
        }
        for (first, next) in priority::stop_edges(&self.plan) {
            if !explicit.numbers_stop(next, first) {
                after[next].push(first);
            }
        }
        for &(first, then) in &explicit.stop_edges {
            after[then].push(first);
        }
        if !explicit.is_empty() {
            self.sidecars_outlive_mains(&mut after);
        }
        for (c, mut after) in self.plan.containers.iter_mut().zip(after) {
            after.sort_unstable();
            after.dedup();
            c.stop_after = after;
        }
    }

    /// Lets sidecars stop after the mains, even if no main of a hand-written graph depends on them. A sidecar
    /// that itself depends on a main is the exception.
    fn sidecars_outlive_mains(&self, after: &mut [Vec<usize>]) {
        let ordered = |c: usize| {
            let c = &self.plan.containers[c];
            c.role == Role::Sidecar && c.dialect != Some(Dialect::Terminator)
        };
        for sidecar in (0..after.len()).filter(|&c| ordered(c)) {
            for main in (0..after.len()).filter(|&c| self.plan.containers[c].role == Role::Main) {
                // `sidecar` stops before `main` if a path of stop edges leads from `main` back to it.
                if !reaches(after, main, sidecar) {
                    after[sidecar].push(main);
                }
            }
        }
    }

    fn refuse_cycles(&mut self) {
        let edges: Vec<Vec<usize>> =
            self.plan.containers.iter().map(|c| c.gates.iter().map(|g| g.on).collect()).collect();
        let edges: Vec<&[usize]> = edges.iter().map(Vec::as_slice).collect();
        if let Err(cycle) = topological(&edges) {
            let finding = self.cycle("cycle", "containers wait for each other in a circle", &cycle);
            self.findings.push(finding);
        }
    }

    fn cycle(&self, code: &'static str, what: &str, cycle: &[usize]) -> Finding {
        let name = |i: usize| self.plan.containers[i].name.as_str();
        let mut round: Vec<&str> = cycle.iter().map(|&i| name(i)).collect();
        round.push(name(cycle[0]));
        let places = cycle.iter().zip(cycle.iter().cycle().skip(1)).map(|(&from, &on)| {
            let gate = self.plan.containers[from].gates.iter().find(|g| g.on == on);
            let dialect = gate.and_then(|g| g.dialect);
            let text = match dialect {
                Some(d) => format!("`{}` waits for `{}` ({})", name(from), name(on), d.name()),
                None => format!("`{}` waits for `{}` (list order)", name(from), name(on)),
            };
            (self.origin(from, on, dialect), text)
        });
        let places: Vec<(FieldPath, String)> = places.collect();
        let path = places.first().map(|(path, _)| path.clone()).unwrap_or_default();
        let mut finding = Finding::error(code, path, format!("{what}: {}", round.join(" -> ")))
            .hint("remove one of these dependencies: no container of the circle could ever start");
        finding.related = places;
        finding
    }

    /// The path of the field that makes `container` wait for `on`.
    fn origin(&self, container: usize, on: usize, dialect: Option<Dialect>) -> FieldPath {
        let [place, other] = [container, on].map(|c| self.plan.containers[c].place);
        match dialect {
            Some(Dialect::DependsOn) => {
                let text = self.annotation(annotations::DEPENDS_ON).unwrap_or_default();
                depends_on::place_of(text, &self.plan.containers[container].name)
            }
            Some(Dialect::Priority) if self.annotation(priority::ANNOTATION) == Some("Ordered") => {
                FieldPath::annotation(priority::ANNOTATION)
            }
            // One of the two may have no priority of its own: it then has the default.
            Some(Dialect::Priority) => self
                .env_path(place, &priority::ENVS)
                .or_else(|| self.env_path(other, &priority::ENVS))
                .unwrap_or_else(|| place.path()),
            // A main waits for a sidecar because the sidecar is marked.
            Some(Dialect::Kep) => other.path().field("lifecycle").field("type"),
            _ => place.path(),
        }
    }

    /// The last env entry that has one of these names.
    fn env(
        &self,
        place: ContainerRef,
        names: &[&str],
    ) -> Option<(usize, &'a k8s_openapi::api::core::v1::EnvVar)> {
        let env = self.container(place)?.env.as_ref()?;
        env.iter().enumerate().rev().find(|(_, e)| names.contains(&e.name.as_str()))
    }

    fn env_path(&self, place: ContainerRef, names: &[&str]) -> Option<FieldPath> {
        let (index, _) = self.env(place, names)?;
        Some(place.path().field("env").index(index).field("value"))
    }

    /// Makes a container a sidecar.
    fn make_sidecar(&mut self, container: usize, dialect: Dialect, counts: Counts) {
        let c = &mut self.plan.containers[container];
        c.role = Role::Sidecar;
        c.dialect = Some(dialect);
        c.keeps_alive = false;
        c.counts = counts;
        self.uses(dialect);
    }
}

/// Whether `to` can be reached from `from` along `edges`.
fn reaches(edges: &[Vec<usize>], from: usize, to: usize) -> bool {
    let mut seen = vec![false; edges.len()];
    let mut stack = vec![from];
    while let Some(node) = stack.pop() {
        if node == to {
            return true;
        }
        if !std::mem::replace(&mut seen[node], true) {
            stack.extend(&edges[node]);
        }
    }
    false
}

/// The name that is most similar to a misspelt one, if any is similar enough. Words of one or two letters are
/// too short to guess from.
fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4 && name.len().max(word.len()) > 2)
        .min()
        .map(|(_, name)| name)
}
