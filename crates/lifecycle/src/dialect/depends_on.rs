//! The annotation `outrigger.dev/depends-on`, which describes the order as a graph.
//!
//! ```text
//! outrigger.dev/depends-on: |
//!   app: proxy ready, migrate completed     # starts once both hold; stops before `proxy`
//!   worker: proxy ready restart             # and restarts whenever `proxy` does
//!   cache: proxy ready fence                # and runs only while `proxy` is ready
//!   loader: none                            # an init container that does not wait
//!   first: start 1, stop 2                  # order numbers: lower starts (stops) first
//!   job: primary                            # the pod is complete when this one is
//!   guard: fatal                            # when it ends, the pod ends
//!   helper: sidecar                         # neither keeps the pod alive nor counts for its result
//! ```
//!
//! There is one entry per line (or entries are separated by `;`), and clauses are separated by commas.
//! Without a condition, a dependency means `completed` for an init container and `started` for any other.
//!
//! An entry of `initContainers` waits for the dependencies on its line instead of the entry before it.
//! Entries of `containers` still wait for all of `initContainers`, but no longer for each other. Stop numbers
//! take precedence over the start order: two containers that have them stop in the order of these numbers.

use std::collections::BTreeMap;

use super::annotations::{DEPENDS_ON, SIDECARS};
use super::{Draft, kep, nearest};
use crate::plan::{Counts, Dialect, Need, RestartPolicy, Role};
use crate::source::{FieldPath, Finding, List};

/// The parsed annotation, by container.
#[derive(Debug, Default)]
pub(super) struct Graph {
    entries: BTreeMap<usize, Entry>,
    /// Init entries that no longer wait for the entry before them.
    unchained: Vec<usize>,
    /// (stops first, stops next)
    pub(super) stop_edges: Vec<(usize, usize)>,
}

impl Graph {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether both containers have stop numbers. Their start order then does not affect their stop order.
    pub(super) fn numbers_stop(&self, a: usize, b: usize) -> bool {
        let numbered = |c: &usize| self.entries.get(c).is_some_and(|e| e.stop.is_some());
        numbered(&a) && numbered(&b)
    }

    /// Whether the graph replaces list order for a container.
    pub(super) fn replaces(&self, container: usize) -> bool {
        self.unchained.contains(&container)
    }
}

#[derive(Debug, Default)]
struct Entry {
    dependencies: Vec<Dependency>,
    start: Option<i64>,
    stop: Option<i64>,
    primary: bool,
    fatal: bool,
    sidecar: bool,
}

#[derive(Debug)]
struct Dependency {
    on: usize,
    need: Option<Need>,
    restart: bool,
    fence: bool,
}

/// Parses the annotation. Problems become findings.
pub(super) fn read(draft: &mut Draft<'_>) -> Graph {
    let mut graph = Graph::default();
    let Some(text) = draft.annotation(DEPENDS_ON) else {
        return graph;
    };
    for (path, line) in lines(text) {
        if let Err((problem, hint)) = read_line(draft, &mut graph, line) {
            let message = format!("cannot read {line:?}: {problem}");
            draft.findings.push(Finding::error("depends-on", path, message).hint(hint));
        }
    }
    if !graph.is_empty() {
        draft.uses(Dialect::DependsOn);
    }
    let order = |f: fn(&Entry) -> Option<i64>| -> Vec<(usize, i64)> {
        graph.entries.iter().filter_map(|(&c, e)| Some((c, f(e)?))).collect()
    };
    let stops = order(|e| e.stop);
    graph.stop_edges = pairs(&stops).collect();
    graph.unchained = graph
        .entries
        .iter()
        .filter(|(c, _)| draft.plan.containers[**c].place.list == List::Init)
        .map(|(c, _)| *c)
        .collect();
    graph
}

/// The entries of the annotation with their positions. Line ends and `;` separate entries; if there are
/// several, an entry's index is part of its path.
fn lines(text: &str) -> impl Iterator<Item = (FieldPath, &str)> {
    let several = text.trim_end().contains(['\n', ';']);
    let mut pieces = 0;
    text.split('\n').flat_map(move |line| {
        let first = pieces;
        pieces += line.split(';').count();
        let entries = line.split('#').next().unwrap_or_default().split(';').map(str::trim).enumerate();
        entries.filter(|(_, entry)| !entry.is_empty()).map(move |(n, entry)| {
            let place = FieldPath::annotation(DEPENDS_ON);
            (if several { place.index(first + n) } else { place }, entry)
        })
    })
}

/// The path of a container's entry in the annotation.
pub(crate) fn place_of(text: &str, container: &str) -> FieldPath {
    let of = |entry: &str| entry.split(':').next().map(str::trim) == Some(container);
    let found = lines(text).find(|(_, entry)| of(entry));
    found.map_or_else(|| FieldPath::annotation(DEPENDS_ON), |(place, _)| place)
}

/// The containers that have a stop number in the annotation.
pub fn stop_numbers(text: &str) -> Vec<&str> {
    let has_number = |clauses: &str| {
        clauses.split(',').any(|clause| matches!(*clause.split_whitespace().collect::<Vec<_>>(), ["stop", _]))
    };
    let entries = lines(text).filter_map(|(_, entry)| entry.split_once(':'));
    entries.filter(|(_, clauses)| has_number(clauses)).map(|(name, _)| name.trim()).collect()
}

type Problem = (String, String);

fn read_line(draft: &Draft<'_>, graph: &mut Graph, line: &str) -> Result<(), Problem> {
    let (subject, clauses) = line
        .split_once(':')
        .ok_or_else(|| ("there is no `:`".to_owned(), "write `CONTAINER: DEPENDENCY, …`".to_owned()))?;
    let subject = find(draft, subject.trim())?;
    if graph.entries.contains_key(&subject) {
        let name = &draft.plan.containers[subject].name;
        return Err((format!("`{name}` has a line already"), "put all its clauses on one line".to_owned()));
    }
    let mut entry = Entry::default();
    for clause in clauses.split(',').map(str::trim) {
        let words: Vec<&str> = clause.split_whitespace().collect();
        match words.as_slice() {
            ["none"] => {}
            ["primary"] => entry.primary = true,
            ["fatal"] => entry.fatal = true,
            ["sidecar"] => entry.sidecar = true,
            ["start", n] => entry.start = Some(number("start", n)?),
            ["stop", n] => entry.stop = Some(number("stop", n)?),
            [] => {
                return Err((
                    "an empty clause".to_owned(),
                    "remove the extra comma, or write `none` to wait for no other container".to_owned(),
                ));
            }
            [name, rest @ ..] => entry.dependencies.push(dependency(draft, subject, name, rest)?),
        }
    }
    if entry.primary && entry.sidecar {
        return Err((
            "`primary` and `sidecar` contradict each other: the pod is complete when its primary container is, \
             whatever its sidecars do"
                .to_owned(),
            "remove one of them".to_owned(),
        ));
    }
    graph.entries.insert(subject, entry);
    Ok(())
}

fn dependency(draft: &Draft<'_>, subject: usize, name: &str, words: &[&str]) -> Result<Dependency, Problem> {
    let on = find(draft, name)?;
    if on == subject {
        return Err((format!("`{name}` cannot wait for itself"), "name another container".to_owned()));
    }
    let mut dependency = Dependency { on, need: None, restart: false, fence: false };
    for word in words {
        match *word {
            "completed" => dependency.need = Some(Need::Completed),
            "started" => dependency.need = Some(Need::Started),
            "ready" => dependency.need = Some(Need::Ready),
            "restart" => dependency.restart = true,
            "fence" => dependency.fence = true,
            other => {
                return Err((
                    format!("unknown word {other:?}"),
                    "after a name come `completed`, `started` or `ready`, then `restart` or `fence`"
                        .to_owned(),
                ));
            }
        }
    }
    Ok(dependency)
}

fn number(word: &str, text: &str) -> Result<i64, Problem> {
    text.parse()
        .map_err(|_| (format!("{text:?} is not a whole number"), format!("write for example `{word} 1`")))
}

fn find(draft: &Draft<'_>, name: &str) -> Result<usize, Problem> {
    draft.plan.find(name).ok_or_else(|| {
        let names = draft.plan.containers.iter().map(|c| c.name.as_str());
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the containers are {}", names.collect::<Vec<_>>().join(", ")),
        };
        (format!("there is no container `{name}`"), hint)
    })
}

/// All pairs (lower, higher) of neighbouring numbers.
fn pairs(numbers: &[(usize, i64)]) -> impl Iterator<Item = (usize, usize)> + '_ {
    numbers.iter().flat_map(move |&(low, n)| {
        let next = numbers.iter().map(|(_, m)| *m).filter(|m| *m > n).min();
        numbers.iter().filter(move |(_, m)| Some(*m) == next).map(move |&(high, _)| (low, high))
    })
}

/// Converts the entries to roles and gates.
pub(super) fn apply(draft: &mut Draft<'_>, graph: &Graph) {
    let dialect = Some(Dialect::DependsOn);
    if !graph.is_empty() {
        // With a graph, mains that it does not mention start together.
        for c in &mut draft.plan.containers {
            c.gates.retain(|g| g.need != Need::Launched);
        }
    }
    for (&container, entry) in &graph.entries {
        if entry.sidecar {
            if let Some(standard) = kep::standard(draft, container) {
                let name = draft.plan.containers[container].name.clone();
                let line = place_of(draft.annotation(DEPENDS_ON).unwrap_or_default(), &name);
                let message = format!("`{name}` is a sidecar in {DEPENDS_ON} and `type: Standard` here");
                let finding = Finding::error("kep-contradiction", standard, message)
                    .related(line, format!("makes `{name}` a sidecar"))
                    .hint("remove one of the two");
                draft.findings.push(finding);
            }
            draft.make_sidecar(container, Dialect::DependsOn, Counts::No);
        }
        for dependency in &entry.dependencies {
            let need = dependency.need.unwrap_or(match draft.plan.containers[dependency.on].role {
                Role::Init => Need::Completed,
                _ => Need::Started,
            });
            draft.gate(container, dependency.on, need, dialect);
            let c = &mut draft.plan.containers[container];
            if dependency.restart {
                c.restart_with.push(dependency.on);
            }
            if dependency.fence {
                c.fence.push(dependency.on);
                for gate in c.gates.iter_mut().filter(|g| g.on == dependency.on) {
                    gate.need = Need::Ready;
                    gate.every_start = true;
                }
            }
        }
        if entry.fatal {
            make_fatal(draft, container);
        }
    }
    let starts: Vec<(usize, i64)> = graph.entries.iter().filter_map(|(&c, e)| Some((c, e.start?))).collect();
    for (low, high) in pairs(&starts) {
        let need =
            if draft.plan.containers[low].role == Role::Init { Need::Completed } else { Need::Started };
        draft.gate(high, low, need, dialect);
    }
    refuse_primary_helpers(draft, graph);
    if graph.entries.values().any(|e| e.primary) {
        for i in draft.mains() {
            let primary = graph.entries.get(&i).is_some_and(|e| e.primary);
            let c = &mut draft.plan.containers[i];
            if c.role == Role::Main && !primary {
                c.keeps_alive = false;
                c.counts = Counts::UnlessStopped;
            }
        }
    }
}

/// Refuses `primary` for containers that are not mains: the pod is complete when its primary container is,
/// whatever its sidecars do.
fn refuse_primary_helpers(draft: &mut Draft<'_>, graph: &Graph) {
    let text = draft.annotation(DEPENDS_ON).unwrap_or_default();
    for (&container, _) in graph.entries.iter().filter(|(_, entry)| entry.primary) {
        let c = &draft.plan.containers[container];
        let (what, hint) = match c.role {
            Role::Main | Role::Ephemeral => continue,
            Role::Init => ("an init container", "remove `primary`, or make it a main container"),
            Role::Sidecar => ("a sidecar", "remove `primary`, or do not make it a sidecar"),
        };
        let name = &c.name;
        let message =
            format!("`{name}` is `primary`, but it is {what}: a pod is complete when a main container is");
        let finding = Finding::error("depends-on", place_of(text, name), message)
            .related(sidecar_mark(draft, container), format!("makes `{name}` {what}"))
            .hint(hint);
        draft.findings.push(finding);
    }
}

/// The field or annotation that gives a container its role.
fn sidecar_mark(draft: &Draft<'_>, container: usize) -> FieldPath {
    let c = &draft.plan.containers[container];
    let place = c.place.path();
    match c.dialect {
        Some(Dialect::Kep) if draft.input.lifecycle_types.contains_key(&c.place) => {
            place.field("lifecycle").field("type")
        }
        Some(Dialect::Kep) => FieldPath::annotation(SIDECARS),
        Some(Dialect::Native) => place.field("restartPolicy"),
        _ => place,
    }
}

/// Makes a container fatal. Under `Always` no container ever ends for good, so a fatal container could never
/// end the pod; without a policy of its own it therefore gets `Never`.
fn make_fatal(draft: &mut Draft<'_>, container: usize) {
    let place = draft.plan.containers[container].place;
    let has_own = draft.container(place).is_some_and(|c| c.restart_policy.is_some());
    let c = &mut draft.plan.containers[container];
    c.fatal = true;
    if !has_own && c.restart.policy == RestartPolicy::Always {
        c.restart.policy = RestartPolicy::Never;
    }
}
