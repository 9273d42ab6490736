//! Renders the plan as a picture. Each container has a lane, from the box where it starts to the box where it
//! stops.
//!
//! A lane is empty to the left of its start and to the right of its stop. So arrows to a start use its own
//! lane, and arrows from a stop use theirs. Both change lanes only between the columns, so no arrow crosses a
//! box.

mod layout;
mod style;

use outrigger_lifecycle::{Need, Role};

use super::view::View;
use super::words;
use layout::Layout;

/// Renders all pods, one below the other.
pub fn render(views: &[View<'_>]) -> String {
    let layouts: Vec<Layout<'_>> = views.iter().map(Layout::new).collect();
    let width = layouts.iter().map(|l| l.width).fold(0.0, f64::max);
    let height: f64 = layouts.iter().map(|l| l.height).sum();
    let mut body = String::new();
    let mut top = 0.0;
    for layout in &layouts {
        body.push_str(&format!("<g transform=\"translate(0 {top})\">\n{}</g>\n", picture(layout, width)));
        top += layout.height;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"100%\" \
         style=\"max-width:{width}px\" preserveAspectRatio=\"xMinYMin meet\" role=\"img\" aria-label=\"start and stop order\">\n{}\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n{body}</svg>\n",
        style::HEAD
    )
}

fn picture(l: &Layout<'_>, width: f64) -> String {
    let mut out = String::new();
    heading(&mut out, l);
    lanes(&mut out, l, width);
    for container in 0..l.view.plan.containers.len() {
        bar(&mut out, l, container);
    }
    for container in 0..l.view.plan.containers.len() {
        gates(&mut out, l, container);
        stop_arrows(&mut out, l, container);
    }
    for container in 0..l.view.plan.containers.len() {
        start_box(&mut out, l, container);
        stop_box(&mut out, l, container);
    }
    legend(&mut out, l);
    out
}

fn heading(out: &mut String, l: &Layout<'_>) {
    let (view, plan) = (l.view, l.view.plan);
    let origin = &view.pod.origin;
    let title = match view.count {
        1 => format!("{} {}", origin.kind, origin.name),
        n => format!("{} {} ({n} identical pods)", origin.kind, origin.name),
    };
    let mut facts: Vec<String> = plan.dialects.iter().map(|d| d.name().to_owned()).collect();
    facts.push(format!("restart policy {:?}", plan.restart_policy));
    facts.push(match plan.sidecar_grace_ms {
        0 => format!("grace period {}", words::duration(plan.grace_ms)),
        ms => format!(
            "grace period {}, {} of it reserved for later stages",
            words::duration(plan.grace_ms),
            words::duration(ms)
        ),
    });
    facts.push(view.qos.name().to_owned());
    for (name, amount) in &view.resources.requests {
        facts.push(format!("{name} {amount}"));
    }
    text(out, layout::MARGIN, 30.0, "title", &title);
    text(out, layout::MARGIN, 50.0, "facts", &facts.join("  ·  "));
    let y = layout::HEAD - 10.0;
    for (i, _) in view.start.iter().enumerate() {
        let label = if i == 0 { "start 1".to_owned() } else { format!("{}", i + 1) };
        text(out, l.start_x(i) + l.start_width(i) / 2.0, y, "column", &label);
    }
    for (i, _) in view.stop.iter().enumerate() {
        let label = if i == 0 { "stop 1".to_owned() } else { format!("{}", i + 1) };
        text(out, l.stop_x(i) + layout::STOP_WIDTH / 2.0, y, "column", &label);
    }
    text(out, (l.runs_from() + l.stop_x(0)) / 2.0, y, "column", "runs");
}

fn lanes(out: &mut String, l: &Layout<'_>, width: f64) {
    for row in (0..l.view.plan.containers.len()).step_by(2) {
        let y = l.middle(row) - layout::LANE / 2.0;
        let (x, w) = (layout::MARGIN / 2.0, width - layout::MARGIN);
        out.push_str(&format!(
            "<rect class=\"lane\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{}\" rx=\"8\"/>\n",
            layout::LANE
        ));
    }
}

/// The bar of a running container.
fn bar(out: &mut String, l: &Layout<'_>, container: usize) {
    let y = l.middle(container);
    let from = l.up(container);
    let role = words::role(l.view.plan.containers[container].role);
    if let Some(column) = l.stop_column[container] {
        let w = l.stop_x(column) - from;
        out.push_str(&format!(
            "<rect class=\"bar {role}\" x=\"{from}\" y=\"{}\" width=\"{w}\" height=\"6\"/>\n",
            y - 3.0
        ));
    } else if l.is_waited_for(container) {
        // An init container has ended here. Only its result is left.
        let w = l.channel(container) - from;
        out.push_str(&format!(
            "<rect class=\"bar {role}\" x=\"{from}\" y=\"{}\" width=\"{w}\" height=\"2\"/>\n",
            y - 1.0
        ));
    }
}

fn gates(out: &mut String, l: &Layout<'_>, container: usize) {
    let (x, middle) = (l.start_x(l.start_column[container]), l.middle(container));
    let gates = l.view.gates(container);
    let needs: Vec<Need> = [Need::Completed, Need::Started, Need::Ready]
        .into_iter()
        .filter(|need| gates.iter().any(|g| g.need == *need))
        .collect();
    for (i, need) in needs.iter().enumerate() {
        // Each kind of arrow has its own height.
        let y = middle + (i as f64 - (needs.len() - 1) as f64 / 2.0) * 14.0;
        let class = words::need(*need);
        for gate in gates.iter().filter(|g| g.need == *need) {
            let (from, channel) = (l.middle(gate.on), l.channel(gate.on));
            let turn = if from < y { -6.0 } else { 6.0 };
            out.push_str(&format!(
                "<path class=\"arrow {class}\" marker-end=\"url(#{class})\" \
                 d=\"M{channel} {from}V{}q0 {} 6 {}H{}\"/>\n",
                y + turn,
                -turn,
                -turn,
                x - 3.0
            ));
            out.push_str(&format!(
                "<circle class=\"dot {class}\" cx=\"{channel}\" cy=\"{from}\" r=\"3.5\"/>\n"
            ));
        }
        let again = gates.iter().any(|g| g.need == *need && g.every_start);
        let label = if again { format!("{class} ⟳") } else { class.to_owned() };
        text(out, x - 9.0, y - 4.0, &format!("need {class}"), &label);
    }
    for gate in gates.iter().filter(|g| g.need == Need::Launched) {
        if l.start_column[gate.on] == l.start_column[container] {
            let (from, to, x) = (l.middle(gate.on), middle, x + 14.0);
            let sign = if from < to { 1.0 } else { -1.0 };
            let half = layout::BOX / 2.0;
            out.push_str(&format!(
                "<path class=\"arrow launched\" marker-end=\"url(#launched)\" d=\"M{x} {}V{}\"/>\n",
                from + sign * half,
                to - sign * (half + 3.0)
            ));
        }
    }
}

/// Arrows from the containers that stop before this one.
fn stop_arrows(out: &mut String, l: &Layout<'_>, container: usize) {
    let Some(column) = l.stop_column[container] else { return };
    let channel = l.stop_x(column) - 18.0;
    let to = l.middle(container);
    for &before in &l.view.stop_rules[container].after {
        let Some(from_column) = l.stop_column[before] else { continue };
        let from = l.middle(before);
        let (turn, stop) = if from < to { (6.0, -6.0) } else { (-6.0, 6.0) };
        out.push_str(&format!(
            "<path class=\"arrow gone\" marker-end=\"url(#gone)\" d=\"M{} {from}H{}q6 0 6 {turn}V{}\"/>\n",
            l.stop_x(from_column) + layout::STOP_WIDTH,
            channel - 6.0,
            to + stop
        ));
    }
}

fn start_box(out: &mut String, l: &Layout<'_>, container: usize) {
    let c = &l.view.plan.containers[container];
    let column = l.start_column[container];
    let (x, y, width) = (l.start_x(column), l.middle(container), l.start_width(column));
    let role = words::role(c.role);
    let mut title = words::starts(l.view, container);
    if let Some(opens) = words::opens(l.view, container) {
        title.push_str(&format!("\n{opens}"));
    }
    title.push_str(&format!("\n{}", words::runs(l.view, container)));
    out.push_str(&format!("<g><title>{}</title>", escape(&format!("{}: {title}", c.name))));
    rect(out, x, y, width, &format!("box {role}"));
    let note = match (c.role, c.dialect) {
        (Role::Sidecar, Some(dialect)) => format!("{role} · {}", dialect.name()),
        _ => role.to_owned(),
    };
    let middle = x + width / 2.0;
    text(out, middle, y - 2.0, "name", &layout::shorten(&c.name));
    text(out, middle, y + 13.0, "note", &note);
    out.push_str("</g>\n");
}

fn stop_box(out: &mut String, l: &Layout<'_>, container: usize) {
    let Some(column) = l.stop_column[container] else { return };
    let c = &l.view.plan.containers[container];
    let (x, y) = (l.stop_x(column), l.middle(container));
    let says = words::stops(l.view, container);
    out.push_str(&format!("<g><title>{}</title>", escape(&format!("{}: {says}", c.name))));
    rect(out, x, y, layout::STOP_WIDTH, &format!("box stop {}", words::role(c.role)));
    let signal = words::signal(l.view, c);
    let head = match (l.view.plan.grace_ms, c.pre_stop.is_some()) {
        (0, _) => "KILL".to_owned(),
        (_, true) => format!("preStop, {signal}"),
        (_, false) => signal,
    };
    let middle = x + layout::STOP_WIDTH / 2.0;
    let window = l.view.plan.stop_window(container, l.view.plan.grace_ms);
    text(out, middle, y - 2.0, "name", &layout::shorten(&head));
    text(out, middle, y + 13.0, "note", &format!("KILL after {}", words::duration(window.kill_ms_max)));
    out.push_str("</g>\n");
}

fn legend(out: &mut String, l: &Layout<'_>) {
    let plan = l.view.plan;
    let y = l.height - 22.0;
    let mut x = layout::MARGIN;
    for role in [Role::Init, Role::Sidecar, Role::Main] {
        if plan.containers.iter().any(|c| c.role == role) {
            let (word, says) = match role {
                Role::Init => ("init", "runs to completion"),
                Role::Sidecar => ("sidecar", "helps, does not keep the pod alive"),
                _ => ("main", "does the work of the pod"),
            };
            out.push_str(&format!(
                "<rect class=\"box {word}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"12\" rx=\"3\"/>\n",
                y - 10.0
            ));
            text(out, x + 20.0, y, "legend", &format!("{word}: {says}"));
            x += 44.0 + 6.0 * (word.len() + says.len()) as f64;
        }
    }
    if l.view.stop.len() > 1 {
        out.push_str(&format!(
            "<path class=\"arrow gone\" marker-end=\"url(#gone)\" d=\"M{x} {0}H{1}\"/>\n",
            y - 4.0,
            x + 18.0
        ));
        text(out, x + 26.0, y, "legend", "stops once that one is gone");
    }
}

fn rect(out: &mut String, x: f64, middle: f64, width: f64, class: &str) {
    let y = middle - layout::BOX / 2.0;
    out.push_str(&format!(
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" rx=\"9\"/>",
        layout::BOX
    ));
}

fn text(out: &mut String, x: f64, y: f64, class: &str, text: &str) {
    out.push_str(&format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", escape(text)));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
