//! The decision tables 12.1 to 12.6 of docs/internals/spec/kubelet-lifecycle.md, row by row.
//!
//! Table 12.7 and rows 16 to 18 of 12.2 are about resizing containers in place, which Outrigger does not do:
//! changed resources take effect at the container's next start.

use crate::stage::{Stage, add_ephemeral, differs, planned, play, probe, same};
use outrigger_lifecycle::{Plan, ProbeKind, Verdict};
use serde_json::{Value, json};

fn mains() -> Value {
    json!([
        {"name": "f0"},
        {"name": "f1", "livenessProbe": probe(), "startupProbe": probe()},
        {"name": "f2"},
    ])
}

fn no_inits(policy: &str) -> Stage {
    let mut stage = Stage::new(planned(json!({"restartPolicy": policy, "containers": mains()})));
    stage.running(&["f0", "f1", "f2"]);
    stage
}

#[test]
fn table_12_1_no_init_containers() {
    const NOTHING_TO_KILL: &str = "there is nothing to kill";
    play(
        no_inits,
        &[
            same("12.1/1", "Always", |_| {}, "–"),
            differs(
                "12.1/2",
                "Always",
                |s| {
                    s.no_record("f0").no_record("f1").no_record("f2").no_sandbox();
                },
                "new-sb(0), C:[0,1,2]",
                "kill-pod, new-sb(0), C:[0,1,2]",
                NOTHING_TO_KILL,
            ),
            same(
                "12.1/3",
                "Always",
                |s| {
                    s.exited("f0", 0).exited("f1", 111);
                },
                "C:[0,1]",
            ),
            same(
                "12.1/4",
                "OnFailure",
                |s| {
                    s.exited("f0", 0).exited("f1", 111);
                },
                "C:[1]",
            ),
            same(
                "12.1/5",
                "OnFailure",
                |s| {
                    s.exited("f0", 0).created("f1");
                },
                "C:[1]",
            ),
            same(
                "12.1/6",
                "Never",
                |s| {
                    s.exited("f0", 0).exited("f1", 111);
                },
                "–",
            ),
            same(
                "12.1/7",
                "Always",
                |s| {
                    s.sandbox_lost(0);
                },
                "kill-pod, new-sb(1), C:[0,1,2]",
            ),
            same(
                "12.1/8",
                "OnFailure",
                |s| {
                    s.sandbox_lost(0).exited("f1", 0);
                },
                "kill-pod, new-sb(1), C:[0,2]",
            ),
            same(
                "12.1/9",
                "Always",
                |s| {
                    s.sandbox_lost(0);
                },
                "kill-pod, new-sb(1), C:[0,1,2]",
            ),
            same(
                "12.1/10",
                "Always",
                |s| {
                    s.image_changed("f1");
                },
                "K:[f1], C:[1]",
            ),
            same(
                "12.1/10 R2.10",
                "Never",
                |s| {
                    s.image_changed("f1");
                },
                "K:[f1], C:[1]",
            ),
            same(
                "12.1/11",
                "Always",
                |s| {
                    s.verdict("f1", ProbeKind::Liveness, Verdict::Failure);
                },
                "K:[f1], C:[1]",
            ),
            same(
                "12.1/11 R2.17",
                "Never",
                |s| {
                    s.verdict("f1", ProbeKind::Liveness, Verdict::Failure);
                },
                "K:[f1]",
            ),
            same(
                "12.1/12",
                "Always",
                |s| {
                    s.verdict("f1", ProbeKind::Startup, Verdict::Failure).never_passed("f1");
                },
                "K:[f1], C:[1]",
            ),
            same(
                "12.1/13",
                "Never",
                |s| {
                    s.sandbox_lost(1).exited("f0", 0).exited("f1", 0).exited("f2", 0);
                },
                "kill-pod",
            ),
            same(
                "12.1/14",
                "OnFailure",
                |s| {
                    s.sandbox_lost(1).exited("f0", 0).exited("f1", 0).exited("f2", 0);
                },
                "kill-pod",
            ),
            same(
                "12.1/15",
                "Never",
                |s| {
                    s.sandbox_lost(2).no_record("f0").no_record("f1").no_record("f2");
                },
                "kill-pod, new-sb(3), C:[0,1,2]",
            ),
            same(
                "12.1/16",
                "Never",
                |s| {
                    s.unknown("f1");
                },
                "K:[f1], C:[1]",
            ),
            same(
                "12.1/17",
                "Never",
                |s| {
                    s.created("f1");
                },
                "C:[1]",
            ),
        ],
    );
}

fn three_inits(policy: &str) -> Stage {
    let inits = json!([{"name": "i0"}, {"name": "i1"}, {"name": "i2"}]);
    let mut stage =
        Stage::new(planned(json!({"restartPolicy": policy, "initContainers": inits, "containers": mains()})));
    stage.exited("i0", 0).exited("i1", 0).exited("i2", 0);
    stage
}

#[test]
fn table_12_2_init_containers() {
    play(
        three_inits,
        &[
            same("12.2/1", "Always", |_| {}, "C:[0,1,2]"),
            same(
                "12.2/2",
                "Always",
                |s| {
                    s.no_record("i0").no_record("i1").no_record("i2");
                },
                "I:[0]",
            ),
            same(
                "12.2/3",
                "Always",
                |s| {
                    s.running(&["i2"]).never_passed("i2");
                },
                "–",
            ),
            same(
                "12.2/4",
                "Always",
                |s| {
                    s.sandbox_lost(0);
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.2/5",
                "Always",
                |s| {
                    s.exited("i2", 137);
                },
                "I:[2]",
            ),
            same(
                "12.2/6",
                "OnFailure",
                |s| {
                    s.exited("i2", 137);
                },
                "I:[2]",
            ),
            same(
                "12.2/7",
                "Never",
                |s| {
                    s.exited("i2", 137);
                },
                "kill-pod",
            ),
            same(
                "12.2/8",
                "Always",
                |s| {
                    s.no_record("i2").unknown("i2");
                },
                "K:[i2], I:[2]",
            ),
            same(
                "12.2/9",
                "OnFailure",
                |s| {
                    s.no_record("i2").unknown("i2");
                },
                "K:[i2], I:[2]",
            ),
            differs(
                "12.2/10",
                "Never",
                |s| {
                    s.no_record("i2").unknown("i2");
                },
                "kill-pod, K:[i2]",
                "kill-pod",
                "the lost one is ended first, so that the pod's end finds nothing in doubt",
            ),
            same(
                "12.2/11 G-32",
                "Never",
                |s| {
                    s.sandbox_lost(0);
                },
                "kill-pod",
            ),
            same(
                "12.2/12",
                "Never",
                |s| {
                    s.sandbox_lost(0).no_record("i0").no_record("i1").no_record("i2");
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.2/13",
                "OnFailure",
                |s| {
                    s.sandbox_lost(0).exited("i2", 137);
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.2/14 G-46",
                "Always",
                |s| {
                    s.running(&["i2"]).never_passed("i2");
                    for i in 0..2 {
                        s.obs.containers[i].exit = None;
                    }
                },
                "–",
            ),
            same(
                "12.2/15",
                "Always",
                |s| {
                    s.created("i2");
                },
                "I:[2]",
            ),
        ],
    );
}

fn three_sidecars(policy: &str) -> Stage {
    let sidecar = |name: &str| json!({"name": name, "restartPolicy": "Always", "livenessProbe": probe(), "startupProbe": probe()});
    let inits = json!([{"name": "s0", "restartPolicy": "Always"}, sidecar("s1"), sidecar("s2")]);
    let mut stage =
        Stage::new(planned(json!({"restartPolicy": policy, "initContainers": inits, "containers": mains()})));
    stage.running(&["s0", "s1", "s2"]);
    stage
}

#[test]
fn table_12_3_sidecars() {
    const LATCHED: &str = "it was passed once, and that stays (R1.43, G-34)";
    play(
        three_sidecars,
        &[
            same("12.3/1", "Always", |_| {}, "C:[0,1,2]"),
            same(
                "12.3/2",
                "Always",
                |s| {
                    s.no_record("s0").no_record("s1").no_record("s2");
                },
                "I:[0]",
            ),
            same(
                "12.3/3",
                "Always",
                |s| {
                    s.created("s2");
                },
                "I:[2]",
            ),
            same(
                "12.3/4",
                "Always",
                |s| {
                    s.no_record("s1").no_record("s2");
                },
                "I:[1]",
            ),
            same(
                "12.3/5, 6",
                "Always",
                |s| {
                    s.no_record("s2").verdict("s1", ProbeKind::Liveness, Verdict::Unknown);
                },
                "I:[2]",
            ),
            same(
                "12.3/7",
                "Always",
                |s| {
                    s.no_record("s2");
                },
                "I:[2]",
            ),
            same(
                "12.3/8",
                "Always",
                |s| {
                    s.verdict("s2", ProbeKind::Liveness, Verdict::Failure);
                },
                "K:[s2], I:[2], C:[0,1,2]",
            ),
            same(
                "12.3/9, 10",
                "Always",
                |s| {
                    s.no_record("s2").verdict("s1", ProbeKind::Startup, Verdict::Unknown).never_passed("s1");
                },
                "–",
            ),
            same(
                "12.3/11",
                "Always",
                |s| {
                    s.no_record("s2");
                },
                "I:[2]",
            ),
            same(
                "12.3/12",
                "Always",
                |s| {
                    s.verdict("s2", ProbeKind::Startup, Verdict::Failure).never_passed("s2");
                },
                "K:[s2], I:[2]",
            ),
            same(
                "12.3/13",
                "Always",
                |s| {
                    s.image_changed("s2");
                },
                "K:[s2], I:[2], C:[0,1,2]",
            ),
            same(
                "12.3/14",
                "Always",
                |s| {
                    s.exited("s0", 0).exited("s2", 0).never_passed("s2");
                },
                "I:[0,2]",
            ),
            differs(
                "12.3/14",
                "Always",
                |s| {
                    s.exited("s0", 0).exited("s2", 0);
                },
                "I:[0,2], C:[0,1,2]",
                "I:[0,2]",
                LATCHED,
            ),
            same(
                "12.3/15",
                "Always",
                |s| {
                    s.exited("s0", 0);
                },
                "I:[0], C:[0,1,2]",
            ),
            same(
                "12.3/16",
                "Never",
                |s| {
                    s.sandbox_lost(0).exited("s2", 137);
                },
                "kill-pod",
            ),
            same(
                "12.3/17",
                "Never",
                |s| {
                    s.sandbox_lost(0).no_record("s0").no_record("s1").no_record("s2");
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.3/18",
                "OnFailure",
                |s| {
                    s.sandbox_lost(0).exited("s2", 137);
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.3/19",
                "Always",
                |s| {
                    s.sandbox_lost(0).exited("s2", 137);
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.3/20",
                "Never",
                |s| {
                    s.exited("s2", 137).never_passed("s2");
                },
                "I:[2]",
            ),
            same(
                "12.3/21",
                "Never",
                |s| {
                    s.no_record("s2").unknown("s2");
                },
                "K:[s2], I:[2]",
            ),
            same(
                "12.3/22",
                "Never",
                |s| {
                    s.exited("s2", 137).running(&["f0", "f1", "f2"]);
                },
                "I:[2]",
            ),
            same(
                "12.3/23",
                "Never",
                |s| {
                    s.exited("f0", 0).exited("f1", 0).exited("f2", 0);
                },
                "kill-pod",
            ),
            same(
                "12.3/24",
                "Always",
                |s| {
                    s.record_deleted("s0").record_deleted("s1");
                },
                "I:[0,1], C:[0,1,2]",
            ),
        ],
    );
}

/// A pod with two sidecars, the last of them with a startup probe, and one or two mains.
fn derived(policy: &str) -> Stage {
    let inits = json!([
        {"name": "first", "restartPolicy": "Always"},
        {"name": "last", "restartPolicy": "Always", "startupProbe": probe()},
    ]);
    let mut stage = Stage::new(planned(
        json!({"restartPolicy": policy, "initContainers": inits, "containers": [{"name": "f0"}, {"name": "f1"}]}),
    ));
    stage.running(&["first", "last", "f0", "f1"]);
    stage
}

/// A pod with a sidecar, then an init container.
fn sidecar_then_init(policy: &str) -> Stage {
    let inits = json!([{"name": "sidecar", "restartPolicy": "Always"}, {"name": "init"}]);
    let mut stage = Stage::new(planned(
        json!({"restartPolicy": policy, "initContainers": inits, "containers": [{"name": "f0"}]}),
    ));
    stage.exited("sidecar", 1);
    stage
}

#[test]
fn table_12_3_derived_rows() {
    play(
        derived,
        &[
            differs(
                "12.3/D1",
                "Never",
                |s| {
                    s.exited("last", 1).exited("f0", 0).exited("f1", 0);
                },
                "kill-pod",
                "I:[1]",
                "G-20: completion is decided by the mains alone",
            ),
            differs(
                "12.3/D2",
                "Never",
                |s| {
                    s.verdict("last", ProbeKind::Startup, Verdict::Unknown).exited("f0", 0).exited("f1", 0);
                },
                "kill-pod",
                "–",
                "G-20: completion is decided by the mains alone",
            ),
            same(
                "12.3/D3",
                "Never",
                |s| {
                    s.exited("first", 1).exited("f0", 0).exited("f1", 0);
                },
                "kill-pod",
            ),
            differs(
                "12.3/D4",
                "Always",
                |s| {
                    s.exited("last", 1).exited("f0", 0).exited("f1", 0);
                },
                "I:[1], C:[0,1]",
                "I:[1]",
                "G-21: mains restart without waiting for a sidecar they have seen started",
            ),
            same(
                "12.3/D5",
                "Always",
                |s| {
                    s.exited("last", 1).exited("f1", 0);
                },
                "I:[1], C:[1]",
            ),
        ],
    );
    play(
        sidecar_then_init,
        &[
            same(
                "12.3/D6",
                "Never",
                |s| {
                    s.exited("init", 0).exited("f0", 0);
                },
                "kill-pod",
            ),
            same(
                "12.3/D7",
                "Always",
                |s| {
                    s.running(&["init"]);
                },
                "I:[0]",
            ),
            same(
                "12.3/D8",
                "Always",
                |s| {
                    s.exited("init", 0);
                },
                "I:[0], C:[0]",
            ),
        ],
    );
    let lost_record = |policy: &str| {
        let inits = json!([{"name": "i0"}, {"name": "i1"}]);
        let mut stage = Stage::new(planned(
            json!({"restartPolicy": policy, "initContainers": inits, "containers": [{"name": "f0"}]}),
        ));
        stage.exited("i0", 0).exited("i1", 0).exited("f0", 0);
        stage
    };
    play(
        lost_record,
        &[differs(
            "12.3/D9",
            "Always",
            |s| {
                s.obs.containers[1].exit = None;
            },
            "C:[0]",
            "I:[1]",
            "G-46: what was completed is remembered, whatever the runtime still knows",
        )],
    );
}

fn with_ephemeral(policy: &str) -> Stage {
    let mut plan: Plan = planned(
        json!({"restartPolicy": policy, "initContainers": [{"name": "init"}], "containers": mains()}),
    );
    add_ephemeral(&mut plan, "e0");
    let mut stage = Stage::new(plan);
    stage.exited("init", 0).running(&["f0", "f1", "f2", "e0"]);
    stage
}

#[test]
fn table_12_4_ephemeral_containers() {
    play(
        with_ephemeral,
        &[
            same("12.4/1", "Always", |_| {}, "–"),
            same(
                "12.4/2",
                "Always",
                |s| {
                    s.no_record("e0");
                },
                "E:[0]",
            ),
            same(
                "12.4/3",
                "Always",
                |s| {
                    let kept = s.obs.clone();
                    add_ephemeral(&mut s.plan, "e1");
                    *s = Stage::new(s.plan.clone());
                    s.obs.containers[..kept.containers.len()].clone_from_slice(&kept.containers);
                },
                "E:[1]",
            ),
            same(
                "12.4/4",
                "Always",
                |s| {
                    s.exited("e0", 0);
                },
                "–",
            ),
            same(
                "12.4/5",
                "Always",
                |s| {
                    s.running(&["init"]).no_record("e0");
                },
                "E:[0]",
            ),
            same(
                "12.4/6",
                "OnFailure",
                |s| {
                    s.sandbox_lost(0).exited("init", 137).exited("e0", 0);
                    s.no_record("f0").no_record("f1").no_record("f2");
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.4/7",
                "Always",
                |s| {
                    s.sandbox_lost(0);
                },
                "kill-pod, new-sb(1), I:[0]",
            ),
            same(
                "12.4/8",
                "Never",
                |s| {
                    s.exited("f0", 0).exited("f1", 0).exited("f2", 0);
                },
                "kill-pod",
            ),
            differs(
                "12.4/9",
                "Never",
                |s| {
                    s.unknown("e0");
                },
                "K:[e0]",
                "–",
                "one the runtime lost track of is ended, not left behind; it does not come back",
            ),
        ],
    );
}

#[test]
fn table_12_5_policies_of_single_containers() {
    let with = |pod: &'static str, own: [Option<&'static str>; 2]| {
        move |_: &str| {
            let mut containers = mains();
            for (i, own) in own.iter().enumerate() {
                if let Some(own) = own {
                    containers[i]["restartPolicy"] = json!(own);
                }
            }
            let mut stage = Stage::new(planned(json!({"restartPolicy": pod, "containers": containers})));
            stage.running(&["f0", "f1", "f2"]);
            stage
        }
    };
    let exited: fn(&mut Stage) = |s| {
        s.exited("f0", 0).exited("f1", 111);
    };
    play(with("Never", [Some("Always"); 2]), &[same("12.5/1", "Never", exited, "C:[0,1]")]);
    play(
        with("Never", [Some("OnFailure"); 2]),
        &[
            same("12.5/2", "Never", exited, "C:[1]"),
            same(
                "12.5/3",
                "Never",
                |s| {
                    s.exited("f0", 0).created("f1");
                },
                "C:[1]",
            ),
        ],
    );
    play(with("Always", [Some("Never"); 2]), &[same("12.5/4", "Always", exited, "–")]);
    play(
        with("Always", [None, Some("OnFailure")]),
        &[same(
            "12.5/5",
            "Always",
            |s| {
                s.exited("f1", 0).sandbox_lost(0);
            },
            "kill-pod, new-sb(1), C:[0,2]",
        )],
    );
}

/// The kubelet kills everything at once, without hooks or order, and removes the records. Here, the pod stops
/// in its own order, with hooks and grace period, and then starts over (G-43).
#[test]
fn table_12_6_restart_all_containers() {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let with_rule =
        |name: &str, policy: &str| json!({"name": name, "restartPolicy": policy, "restartPolicyRules": rule});
    let check = |id: &str, spec: Value, state: fn(&mut Stage), stopped: &[&str], done: &str| {
        let mut stage = Stage::new(planned(spec));
        state(&mut stage);
        let result = stage.look();
        assert_eq!(result.to_string(), done, "{id}");
        assert_eq!(result.stopped, stopped, "{id}");
    };
    let sidecars = json!([
        {"name": "s0", "restartPolicy": "Always"},
        {"name": "s1", "restartPolicy": "Always"},
        with_rule("s2", "Always"),
    ]);
    check(
        "12.6/1",
        json!({"restartPolicy": "Never", "containers": mains()}),
        |s| {
            s.running(&["f0", "f1", "f2"]);
        },
        &[],
        "–",
    );
    check(
        "12.6/2",
        json!({"restartPolicy": "Never", "containers": [{"name": "f0"}, {"name": "f1"}, with_rule("f2", "Never")]}),
        |s| {
            s.running(&["f0", "f1"]).exited("f2", 42);
        },
        &["f0", "f1"],
        "kill-pod, C:[0,1,2]",
    );
    check(
        "12.6/3",
        json!({"restartPolicy": "Never", "initContainers": [{"name": "i0"}, {"name": "i1"}, with_rule("i2", "Never")], "containers": [{"name": "f0"}]}),
        |s| {
            s.exited("i0", 0).exited("i1", 0).exited("i2", 42);
        },
        &[],
        "kill-pod, I:[0]",
    );
    check(
        "12.6/4",
        json!({"restartPolicy": "Never", "initContainers": sidecars, "containers": [{"name": "f0"}]}),
        |s| {
            s.running(&["s0", "s1"]).exited("s2", 42);
        },
        &["s1", "s0"],
        "kill-pod, I:[0]",
    );
    check(
        "12.6/5",
        json!({"restartPolicy": "Never", "initContainers": [{"name": "i0"}, {"name": "i1", "restartPolicy": "Always"}, with_rule("i2", "Never")], "containers": [{"name": "f0"}]}),
        |s| {
            s.exited("i0", 0).running(&["i1"]).exited("i2", 42);
        },
        &["i1"],
        "kill-pod, I:[0]",
    );
    check(
        "12.6/6",
        json!({"restartPolicy": "Never", "initContainers": sidecars, "containers": [{"name": "f0"}]}),
        |s| {
            s.running(&["s0", "s1", "f0"]).exited("s2", 42);
        },
        &["f0", "s1", "s0"],
        "kill-pod, I:[0]",
    );
    check(
        "12.6/7",
        json!({"restartPolicy": "Never", "initContainers": [{"name": "s0", "restartPolicy": "Always"}, {"name": "s1", "restartPolicy": "Always"}, {"name": "s2", "restartPolicy": "Always"}],
               "containers": [{"name": "f0"}, {"name": "f1"}, with_rule("f2", "Never")]}),
        |s| {
            s.running(&["s0", "s1", "s2", "f0", "f1"]).exited("f2", 42);
        },
        &["f0", "f1", "s2", "s1", "s0"],
        "kill-pod, I:[0]",
    );
    // Row 8 is about removing records of older instances, of which there are none here. Rows 9 and 10
    // describe how the rows above end: the pod starts from its first init entry, or all its mains start.
}
