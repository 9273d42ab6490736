//! The rows of the OpenKruise specification, by their ids. A test for a row from which we deviate cites the
//! id of the deviation.

mod admit;
mod barrier;
mod convert;
mod explain;
mod native;
mod oversee;
mod request;
mod rows;
mod serve;
mod terminate;

use k8s_openapi::api::core::v1::Pod;
use outrigger_lifecycle::Time;
use serde_json::{Value, json};

use crate::view::ObservedPod;

/// The current time in the tests.
const NOW: Time = Time(1_700_000_100_000);

fn pod(object: Value) -> Pod {
    serde_json::from_value(object).expect("a pod")
}

fn view(object: Value) -> ObservedPod {
    ObservedPod::of_served(&pod(object), NOW).expect("a pod the operator serves")
}

/// A container status: `ready`, `not-ready`, `running`, `unknown`, `waiting:REASON`, or an exit code.
fn status(name: &str, state: &str) -> Value {
    let id = format!("containerd://{name}-0");
    let base = json!({"name": name, "image": "i", "imageID": "", "restartCount": 0, "ready": false});
    let mut status = base;
    match state {
        "ready" => {
            status["ready"] = json!(true);
            status["started"] = json!(true);
            status["containerID"] = json!(id);
            status["state"] = json!({"running": {"startedAt": "2023-11-14T22:13:20Z"}});
        }
        "not-ready" => {}
        "running" => {
            status["containerID"] = json!(id);
            status["started"] = json!(true);
            status["ready"] = json!(true);
            status["state"] = json!({"running": {"startedAt": "2023-11-14T22:13:20Z"}});
        }
        "unknown" => status["containerID"] = json!(id),
        _ => match (state.strip_prefix("waiting:"), state.parse::<i32>()) {
            (Some(reason), _) => status["state"] = json!({"waiting": {"reason": reason}}),
            (_, Ok(code)) => {
                status["containerID"] = json!(id);
                status["state"] =
                    json!({"terminated": {"exitCode": code, "finishedAt": "2023-11-14T22:14:00Z"}});
            }
            _ => panic!("no such state: {state}"),
        },
    }
    status
}

/// An env that refers to a key of the pod's barrier.
fn barrier_env(key: &str) -> Value {
    json!({"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"name": "pod-barrier", "key": key}}})
}
