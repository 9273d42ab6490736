//! Marks of dialects in unusual places: on every container, on init containers, or blank.

use outrigger_lifecycle::{Action, Decision, FeatureGates, Observation, Role, Time, decide, plan};
use serde_json::{Value, json};

use crate::common::{annotated, input, planned, pod, refused};

const KILL: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";

fn marked(name: &str, value: &str) -> Value {
    json!({"name": name, "env": [{"name": KILL, "value": value}]})
}

fn warnings(spec: Value) -> Vec<&'static str> {
    let planned = plan(&pod(spec), &FeatureGates::default()).unwrap();
    planned.warnings.iter().map(|w| w.code).collect()
}

#[test]
fn a_pod_of_sidecars_only_is_refused_st_9() {
    let kep = |name: &str| json!({"name": name, "lifecycle": {"type": "Sidecar"}});
    let pods = [
        pod(json!({"restartPolicy": "Never", "containers": [marked("a", "true"), marked("b", "true")]})),
        pod(json!({"containers": [kep("a"), kep("b")]})),
        pod(json!({"restartPolicy": "Never", "containers": [kep("a"), marked("b", "true")]})),
        annotated(json!({"outrigger.dev/depends-on": "a: sidecar"}), json!({"containers": [{"name": "a"}]})),
        input(
            json!({"spec": {"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": []}}),
        ),
    ];
    for pod in pods {
        let found = refused(&pod);
        let all: Vec<&str> = found.iter().map(|f| f.message.as_str()).collect();
        assert!(
            all.iter().any(|m| m.contains("every container is") || m.contains("at least one container")),
            "{all:?}"
        );
    }
}

#[test]
fn marks_on_init_containers_do_nothing_or_are_refused() {
    // The terminator and launch priority apply only to mains. On other containers they cause warnings.
    let spec = json!({"restartPolicy": "Never", "initContainers": [marked("i", "true")], "containers": [{"name": "a"}]});
    assert_eq!(warnings(spec.clone()), ["ST-1"]);
    assert_eq!(planned(&pod(spec)).containers[0].role, Role::Init);
    let mut init = marked("i", "1");
    init["env"][0]["name"] = json!("KRUISE_CONTAINER_LAUNCH_PRIORITY");
    assert_eq!(warnings(json!({"initContainers": [init], "containers": [{"name": "a"}]})), ["LP-8"]);
    // `lifecycle.type` has no meaning on an init container.
    let typed = json!({"name": "i", "lifecycle": {"type": "Sidecar"}});
    for (policy, hint) in [
        (json!(null), "write `restartPolicy: Always` instead"),
        (json!("Always"), "remove it: `restartPolicy: Always` makes the container a sidecar already"),
        (json!("Never"), "remove it, and change the container's restartPolicy to `Always`"),
    ] {
        let mut typed = typed.clone();
        typed["restartPolicy"] = policy;
        let found = refused(&pod(json!({"initContainers": [typed], "containers": [{"name": "a"}]})));
        let hints: Vec<&str> =
            found.iter().filter(|f| f.code == "kep-init").filter_map(|f| f.hint.as_deref()).collect();
        assert!(hints.len() == 1 && hints[0].starts_with(hint), "{found:?}");
    }
}

#[test]
fn blank_marks_are_no_marks() {
    for blank in ["", " ", "false", "no"] {
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}, marked("b", blank)]});
        assert_eq!(planned(&pod(spec)).containers[1].role, Role::Main, "{blank:?}");
    }
    let empty = json!({"restartPolicy": "Never", "containers": [{"name": "a"}, {"name": "b", "env": [{"name": KILL}]}]});
    assert_eq!(planned(&pod(empty)).containers[1].role, Role::Main);
    // An empty type counts as absent. Any other must be one of the two valid ones.
    let typed = |text: &str| {
        let blank = json!({"name": "b", "lifecycle": {"type": text}});
        pod(json!({"containers": [{"name": "a"}, blank]}))
    };
    assert_eq!(planned(&typed("")).containers[1].role, Role::Main);
    for blank in [" ", "sidecar"] {
        let found = refused(&typed(blank));
        assert!(found.iter().any(|f| f.code == "kep-type"), "{blank:?}: {found:?}");
    }
    assert_eq!(planned(&typed("Standard")).containers[1].role, Role::Main);
    // An empty graph orders nothing.
    let graph = annotated(
        json!({"outrigger.dev/depends-on": " \n# later\n"}),
        json!({"containers": [{"name": "a"}]}),
    );
    assert!(planned(&graph).containers[0].gates.is_empty());
}

#[test]
fn all_images_are_fetched_when_the_pod_begins_g10() {
    let plan = planned(&pod(json!({
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}, {"name": "b"}],
    })));
    let mut decision = Decision::default();
    decide(&plan, &Observation::new(&plan, Time(0)), Time(0), &mut decision);
    let pulls = decision.actions.iter().filter(|a| matches!(a, Action::Pull { .. })).count();
    assert_eq!(pulls, 4);
}
