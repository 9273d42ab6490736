//! Hints that replace the rejected ordering fields of a pod by one annotation `outrigger.dev/depends-on`.

use outrigger_lifecycle::annotations::DEPENDS_ON;
use outrigger_lifecycle::{FieldPath, List};

use super::{field, is_mark, is_named, is_sidecar_word, is_true, lifecycle_type, name, parent};
use crate::tree::{Entry, Node, Value};

/// The rejected fields, in lower case.
pub(super) const FIELDS: [&str; 7] = [
    "primarycontainer",
    "terminationfataltopod",
    "dependson",
    "depends_on",
    "startupphase",
    "startuporder",
    "shutdownorder",
];

/// The hint for one of the fields.
pub(super) fn hint(pod: &FieldPath, entry: &Entry, root: &Node) -> String {
    let pod = Pod::new(pod, root);
    if let Some(why) = pod.says_nothing(entry) {
        return format!("remove it: {why}");
    }
    if pod.wishes().is_empty() {
        return "remove it: it orders nothing".to_owned();
    }
    let left_out = pod.left_out(entry).map(|names| format!("{names}; ")).unwrap_or_default();
    // All fields of the pod share one annotation. The hint of the first field shows it.
    let hint = match pod.first() {
        Some((owner, first)) if first.key_span != entry.key_span => {
            let of = owner.map(|name| format!(" of `{name}`")).unwrap_or_default();
            format!("remove it: the annotation shown for `{}`{of} covers it", first.key)
        }
        _ => pod.annotation(),
    };
    left_out + &hint
}

/// A pod with such fields.
struct Pod<'n> {
    path: &'n FieldPath,
    root: &'n Node,
    containers: Vec<(List, &'n Node)>,
}

impl<'n> Pod<'n> {
    fn new(path: &'n FieldPath, root: &'n Node) -> Self {
        let containers = [List::Init, List::Main].into_iter().flat_map(|list| {
            let items = root.at(&path.clone().field("spec").field(list.field())).and_then(Node::items);
            items.unwrap_or_default().iter().map(move |container| (list, container))
        });
        Pod { path, root, containers: containers.collect() }
    }

    fn has(&self, container: &str) -> bool {
        self.containers.iter().any(|(_, c)| name(c) == Some(container))
    }

    /// The field `primaryContainer: NAME` of the pod, or of its Job, where it is beside the template.
    fn primary(&self) -> Option<&'n Entry> {
        let places = [parent(self.path), self.path.clone().field("spec")];
        places.iter().find_map(|path| {
            field(self.root.at(path)?, "primarycontainer").filter(|entry| self.says_nothing(entry).is_none())
        })
    }

    /// The first field that has an effect, and the name of its container, if it is in one.
    fn first(&self) -> Option<(Option<&'n str>, &'n Entry)> {
        let of_pod = self.primary().map(|entry| (None, entry));
        of_pod.or_else(|| {
            self.containers.iter().find_map(|(_, container)| {
                let entries = container.entries()?.iter();
                let mut fields = entries.filter(|e| FIELDS.contains(&&*e.key.to_ascii_lowercase()));
                fields.find(|e| self.says_nothing(e).is_none()).map(|entry| (name(container), entry))
            })
        })
    }

    /// Why a field has no effect; `None` if it has one.
    fn says_nothing(&self, entry: &Entry) -> Option<String> {
        let text = entry.value.text().unwrap_or_default();
        match entry.key.to_ascii_lowercase().as_str() {
            "primarycontainer" if is_true(text) || self.has(text) => None,
            "primarycontainer" if text.eq_ignore_ascii_case("false") || text.is_empty() => Some(
                self.contradiction(entry, "primary")
                    .unwrap_or_else(|| "no container is the primary one unless the pod says so".to_owned()),
            ),
            "primarycontainer" => Some(format!("the pod has no container `{text}`")),
            "terminationfataltopod" if is_true(text) => None,
            "terminationfataltopod" => Some(self.contradiction(entry, "fatal").unwrap_or_else(|| {
                "the end of a container does not end the pod unless the pod says so".to_owned()
            })),
            "startuporder" | "shutdownorder" if text.parse::<i64>().is_err() => {
                Some(format!("`{text}` is not a whole number"))
            }
            "startuporder" | "shutdownorder" | "startupphase" => self.orders_nothing(entry),
            _ => {
                let names = dependencies(&entry.value);
                if names.iter().any(|dependency| self.has(dependency.name)) {
                    return None;
                }
                Some(match names.first() {
                    Some(Dependency { name, .. }) => format!("the pod has no container `{name}`"),
                    None => "it names no container".to_owned(),
                })
            }
        }
    }

    /// The container that has a field.
    fn owner(&self, entry: &Entry) -> Option<(List, &'n Node)> {
        let has = |container: &Node| {
            container.entries().unwrap_or_default().iter().any(|own| own.key_span == entry.key_span)
        };
        self.containers.iter().copied().find(|(_, container)| has(container))
    }

    /// Why a number or phase of a container orders nothing; `None` if it does.
    fn orders_nothing(&self, entry: &Entry) -> Option<String> {
        let (list, container) = self.owner(entry)?;
        if self.is_sidecar(list, container) {
            return Some("a sidecar starts before the mains and stops after them anyway".to_owned());
        }
        let is_alone = self.ordered(list).count() < 2;
        is_alone.then(|| "there is no other container to be ordered with".to_owned())
    }

    /// Says that the annotation of the pod has a word for the container of a field that denies it.
    fn contradiction(&self, entry: &Entry, word: &str) -> Option<String> {
        let name = name(self.owner(entry)?.1)?;
        let annotation = self.path.clone().field("metadata").field("annotations").field(DEPENDS_ON);
        let text = self.root.at(&annotation)?.text()?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let is_said = lines.flat_map(|line| line.split(';')).any(|part| {
            part.split_once(':').is_some_and(|(subject, clauses)| {
                subject.trim() == name && clauses.split(',').any(|clause| clause.trim() == word)
            })
        });
        is_said.then(|| {
            format!(
                "the annotation {DEPENDS_ON} says `{name}: {word}`; if that is wrong, remove `{word}` there too"
            )
        })
    }

    /// The names in a `dependsOn` that the annotation leaves out, because the pod has no such containers.
    fn left_out(&self, entry: &Entry) -> Option<String> {
        if !["dependson", "depends_on"].contains(&&*entry.key.to_ascii_lowercase()) {
            return None;
        }
        let all = dependencies(&entry.value);
        let (known, unknown): (Vec<_>, Vec<_>) = all.into_iter().partition(|d| self.has(d.name));
        let unknown: Vec<String> = unknown.iter().map(|d| format!("`{}`", d.name)).collect();
        let names = match unknown.as_slice() {
            [] => None,
            [one] => Some(format!("the pod has no container {one}, so it is left out")),
            all => Some(format!("the pod has no containers {}, so they are left out", all.join(", "))),
        };
        let conditions = known.iter().filter_map(|d| match d.need() {
            Ok(_) => None,
            Err(condition) => Some(format!(
                "the condition `{condition}` of `{}` is left out, because there are only `started`, `ready` and \
                 `completed`",
                d.name
            )),
        });
        let parts: Vec<String> = names.into_iter().chain(conditions).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The annotation that replaces all fields of the pod.
    fn annotation(&self) -> String {
        let wishes = self.wishes();
        let annotations = self.path.clone().field("metadata").field("annotations");
        if let Some(node) = self.root.at(&annotations.clone().field(DEPENDS_ON)).filter(|n| !n.is_null()) {
            let text = node.text().unwrap_or_default();
            let merged = merge(text, wishes);
            if merged == text.trim_end().lines().collect::<Vec<_>>() {
                return format!("remove it: the annotation {DEPENDS_ON} says so already");
            }
            let lines = block(&merged, "      ");
            return format!("write this instead, in place of the annotation:\n    {DEPENDS_ON}: |{lines}");
        }
        let lines: Vec<String> =
            wishes.iter().map(|(name, clauses)| format!("{name}: {}", clauses.join(", "))).collect();
        let keys = ["metadata", "annotations"];
        let is_there = |n: usize| {
            let path = keys[..n].iter().fold(self.path.clone(), |path, key| path.field(*key));
            self.root.at(&path).is_some()
        };
        let there = (0..=keys.len()).rev().find(|&n| is_there(n)).unwrap_or(0);
        let place = keys[..there].iter().fold(self.path.clone(), |path, key| path.field(*key));
        let mut out = match place.0.is_empty() {
            true => "write this into the pod instead:".to_owned(),
            false => format!("write this into `{place}` instead:"),
        };
        let mut indent = "    ".to_owned();
        for key in &keys[there..] {
            out.push_str(&format!("\n{indent}{key}:"));
            indent.push_str("  ");
        }
        out.push_str(&format!("\n{indent}{DEPENDS_ON}: |"));
        indent.push_str("  ");
        out.push_str(&block(&lines, &indent));
        out
    }

    /// The clauses that the annotation needs, by container.
    fn wishes(&self) -> Vec<(&'n str, Vec<String>)> {
        let primary = self.primary().and_then(|entry| entry.value.text());
        let named = self.containers.iter().filter_map(|(list, c)| Some((*list, *c, name(c)?)));
        let all = named.map(|(list, container, name)| {
            let mut clauses = self.order(list, container, name);
            if primary == Some(name) || says(container, "primarycontainer") {
                clauses.push("primary".to_owned());
            }
            if says(container, "terminationfataltopod") {
                clauses.push("fatal".to_owned());
            }
            (name, clauses)
        });
        all.filter(|(_, clauses)| !clauses.is_empty()).collect()
    }

    /// The clauses for the order of one container.
    fn order(&self, list: List, container: &Node, own_name: &str) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        if let Some(entry) = field(container, "dependson").or_else(|| field(container, "depends_on")) {
            let known = |d: &Dependency<'_>| d.name != own_name && self.has(d.name);
            let all = dependencies(&entry.value).into_iter().filter(known);
            out.extend(all.map(|d| format!("{}{}", d.name, d.need().unwrap_or_default())));
        }
        // A sidecar starts before the mains and stops after them, which a number would contradict.
        if self.ordered(list).count() < 2 || self.is_sidecar(list, container) {
            return out;
        }
        if let Some(n) = number(container, "startuporder").or(self.other_number(list, "startuporder")) {
            out.push(format!("start {n}"));
        } else if self.ordered(list).any(|c| field(c, "startupphase").is_some()) {
            // Of the proposed phases, only `default` is for main containers.
            let phase = field(container, "startupphase").and_then(|entry| entry.value.text());
            let is_default = phase.unwrap_or("default").eq_ignore_ascii_case("default");
            out.push(format!("start {}", if is_default { 2 } else { 1 }));
        }
        if let Some(n) = number(container, "shutdownorder").or(self.other_number(list, "shutdownorder")) {
            out.push(format!("stop {n}"));
        }
        out
    }

    /// The number for all other containers if only one container of the list has a number, because a single
    /// number orders nothing. If that container is first, the others come after it; otherwise they come
    /// before it.
    fn other_number(&self, list: List, key: &str) -> Option<i64> {
        let mut numbers = self.ordered(list).filter_map(|c| number(c, key));
        let only = numbers.next().filter(|_| numbers.next().is_none())?;
        Some(if only > 1 { 1 } else { only.saturating_add(1) })
    }

    /// The containers of a list that can have order numbers.
    fn ordered(&self, list: List) -> impl Iterator<Item = &'n Node> {
        let all = self.containers.iter().filter(move |(of, c)| *of == list && !self.is_sidecar(list, c));
        all.map(|(_, c)| *c)
    }

    /// Whether a container of `spec.containers` is a sidecar, or becomes one if the other hints are followed.
    fn is_sidecar(&self, list: List, container: &Node) -> bool {
        let is_marked = || container.entries().unwrap_or_default().iter().any(|e| is_mark(e) == Some(true));
        let by_name = || name(container).is_some_and(|name| is_named(name, self.path, self.root));
        list == List::Main
            && (is_marked() || lifecycle_type(container).is_some_and(is_sidecar_word) || by_name())
    }
}

/// Adds clauses to the text of an annotation. Each container gets at most one line.
fn merge(text: &str, mut wishes: Vec<(&str, Vec<String>)>) -> Vec<String> {
    let mut out = Vec::new();
    for line in text.trim_end().lines() {
        let (entries, comment) = match line.find('#') {
            Some(at) => line.split_at(at),
            None => (line, ""),
        };
        let mut changed = false;
        let mut parts: Vec<String> = entries.split(';').map(|entry| entry.trim().to_owned()).collect();
        for part in &mut parts {
            let Some((subject, clauses)) = part.split_once(':') else { continue };
            let Some(at) = wishes.iter().position(|(name, _)| *name == subject.trim()) else { continue };
            let mut all: Vec<String> = clauses.split(',').map(|clause| clause.trim().to_owned()).collect();
            let before = all.clone();
            let (name, new) = wishes.remove(at);
            new.into_iter().for_each(|clause| add(&mut all, clause));
            if all != before {
                *part = format!("{name}: {}", all.join(", "));
                changed = true;
            }
        }
        out.push(match changed {
            true if comment.is_empty() => parts.join("; "),
            true => format!("{} {comment}", parts.join("; ")),
            false => line.to_owned(),
        });
    }
    out.extend(wishes.iter().map(|(name, clauses)| format!("{name}: {}", clauses.join(", "))));
    out
}

/// Adds a clause to those of a container. A number replaces the old one. An existing dependency stays as it
/// is.
fn add(all: &mut Vec<String>, clause: String) {
    let word = |clause: &str| clause.split_whitespace().next().map(str::to_owned);
    let is_number = matches!(word(&clause).as_deref(), Some("start" | "stop")) && clause.contains(' ');
    match all.iter_mut().find(|old| word(old) == word(&clause)) {
        Some(old) if is_number => *old = clause,
        Some(_) => {}
        None => {
            all.retain(|old| old != "none");
            all.push(clause);
        }
    }
}

/// Joins lines to a block; each begins with a line break.
fn block(lines: &[String], indent: &str) -> String {
    lines.iter().map(|line| format!("\n{indent}{line}")).collect()
}

fn number(container: &Node, key: &str) -> Option<i64> {
    field(container, key).and_then(|entry| entry.value.text()).and_then(|n| n.parse().ok())
}

/// Whether a field of a container is `true`.
fn says(container: &Node, key: &str) -> bool {
    field(container, key).and_then(|entry| entry.value.text()).is_some_and(is_true)
}

/// One entry of a `dependsOn`.
struct Dependency<'n> {
    name: &'n str,
    condition: Option<&'n str>,
}

impl<'n> Dependency<'n> {
    fn of(name: &'n str, fields: &'n Node) -> Self {
        Dependency { name, condition: fields.get("condition").and_then(Node::text) }
    }

    /// What follows the name in the annotation, in the words of Compose, ECS or our own; the condition itself if there is
    /// nothing like it.
    fn need(&self) -> Result<&'static str, &'n str> {
        match self.condition.map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "service_started" | "started" | "start" | "running") => Ok(""),
            Some("service_healthy" | "healthy" | "ready") => Ok(" ready"),
            Some("service_completed_successfully" | "completed" | "complete" | "succeeded" | "success") => {
                Ok(" completed")
            }
            Some(_) => Err(self.condition.unwrap_or_default()),
        }
    }
}

/// The entries of a `dependsOn`: one name, a list of names or of maps as in ECS, or a map as in Compose.
fn dependencies(node: &Node) -> Vec<Dependency<'_>> {
    let plain = |name| Dependency { name, condition: None };
    match &node.value {
        Value::Scalar(_) => node.text().filter(|text| !text.is_empty()).map(plain).into_iter().collect(),
        Value::Seq(items) => {
            let of_map = |item| {
                let name = name(item).or_else(|| item.get("containerName").and_then(Node::text))?;
                Some(Dependency::of(name, item))
            };
            items.iter().filter_map(|item| item.text().map(plain).or_else(|| of_map(item))).collect()
        }
        Value::Map(entries) => entries.iter().map(|entry| Dependency::of(&entry.key, &entry.value)).collect(),
    }
}
