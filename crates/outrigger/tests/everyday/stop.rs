//! `outrigger stop`.

use serde_json::json;

use crate::command::{is_up, pod, say, start};
use crate::run::{Bench, Test};

pub(crate) const ALL: [(&str, Test); 2] =
    [("a_pod_is_stopped_in_order", in_order), ("a_stop_may_be_left_to_itself", no_wait)];

/// Stops when told to, with a message.
const POLITE: &str = "trap 'echo bye; exit 0' TERM; while :; do sleep 0.1; done";

fn in_order(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let mut proxy = bench.container("proxy", POLITE);
    proxy["restartPolicy"] = json!("Always");
    let slow = "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done";
    let spec = json!({"terminationGracePeriodSeconds": 30, "restartPolicy": "Never", "initContainers": [proxy],
        "containers": [bench.container("app", slow)]});
    let mut run = start(bench, name, spec, is_up);
    let said = say(bench, &["stop", &format!("pod/{name}")]);
    assert_eq!(said.code, 0, "{said:?}\n{}", run.account());
    assert!(said.err.contains("waiting for proxy (to stop), app (stopping)"), "{said:?}");
    assert!(said.err.ends_with(&format!("{name} is gone\n")), "{said:?}");
    assert_eq!(run.end(), 0, "{}", run.account());
    let exited = |container: &str| run.must(json!({"event": "exited", "container": container}));
    let signalled = run.must(json!({"event": "terminating", "container": "proxy"}));
    assert!(exited("app") < signalled && signalled < exited("proxy"), "{}", run.account());
}

fn no_wait(bench: &Bench, name: &str) {
    let name = &name.replace('_', "-");
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let spec = json!({"terminationGracePeriodSeconds": 600, "restartPolicy": "Never",
        "containers": [bench.container("app", deaf)]});
    let mut run = start(bench, name, spec, is_up);
    let said = say(bench, &["stop", name, "--no-wait"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    run.wait_for("stop", |_| pod(bench, name).is_some_and(|pod| pod["stopping"] == true));
    let said = say(bench, &["stop", name, "--grace-period", "0"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(run.end(), 137, "{}", run.account());
}
