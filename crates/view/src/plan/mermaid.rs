//! Renders the plan as a Mermaid flowchart, with gates on the left and the stop order on the right.

use outrigger_lifecycle::{Need, Role};

use super::view::View;
use super::words;

/// Renders one pod.
pub fn render(view: &View<'_>) -> String {
    let plan = view.plan;
    let mut out = String::from("flowchart LR\n");
    // Container names are DNS labels and need no escaping.
    out.push_str("  subgraph start [\"start\"]\n    direction LR\n");
    for (i, c) in plan.containers.iter().enumerate() {
        let (name, role) = (&c.name, words::role(c.role));
        let (open, close) = match c.role {
            Role::Init => ("[/", "/]"),
            Role::Sidecar => ("([", "])"),
            Role::Main | Role::Ephemeral => ("[", "]"),
        };
        out.push_str(&format!("    s{i}{open}\"{name}<br/><small>{role}</small>\"{close}:::{role}\n"));
    }
    for i in 0..plan.containers.len() {
        for gate in view.gates(i) {
            let arrow = if gate.need == Need::Launched { "-.->" } else { "-->" };
            out.push_str(&format!("    s{} {arrow}|{}| s{i}\n", gate.on, words::need(gate.need)));
        }
    }
    out.push_str("  end\n  subgraph stop [\"stop\"]\n    direction LR\n");
    for &c in view.stop.iter().flatten() {
        let name = view.name(c);
        let signal = words::signal(view, &plan.containers[c]);
        out.push_str(&format!(
            "    t{c}[\"{name}<br/><small>{signal}</small>\"]:::{}\n",
            words::role(plan.containers[c].role)
        ));
    }
    for &c in view.stop.iter().flatten() {
        for &before in &view.stop_rules[c].after {
            out.push_str(&format!("    t{before} -->|gone| t{c}\n"));
        }
    }
    out.push_str("  end\n  start ~~~ stop\n");
    out.push_str("  classDef init fill:#fef3c7,stroke:#b45309,color:#451a03\n");
    out.push_str("  classDef sidecar fill:#cffafe,stroke:#0e7490,color:#083344\n");
    out.push_str("  classDef main fill:#dbeafe,stroke:#1d4ed8,color:#172554\n");
    out
}
