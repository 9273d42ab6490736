//! Tests the operator with a real kube-apiserver and etcd.
//!
//! The binaries are found by the convention of envtest: in `KUBEBUILDER_ASSETS`, otherwise in
//! /usr/local/kubebuilder/bin. If they are missing, the tests are shown as ignored, with the reason.

mod breaks;
mod calls;
mod cluster;
mod helm;
mod hostile;
mod many;
mod reports;
mod rights;
mod scenes;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use cluster::{Cluster, Process};
use libtest_mimic::{Arguments, Failed, Trial};

/// The cluster and the operator that runs in it.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) operator: Option<Process>,
    pub(crate) webhook: u16,
    pub(crate) health: u16,
}

type Scene = fn(&mut Stage);

/// Each scene has its own namespace and operator, so that the scenes pass in any order.
const SCENES: [(&str, Scene); 22] = [
    ("installs", scenes::installs),
    ("admits_pods", scenes::admits_pods),
    ("admits_job_sidecars", scenes::admits_job_sidecars),
    ("opens_levels_in_order", scenes::opens_levels_in_order),
    ("serves_gates_and_native_sidecars", scenes::serves_gates_and_native_sidecars),
    ("makes_native_sidecars_of_levels", scenes::makes_native_sidecars_of_levels),
    ("ends_sidecars", scenes::ends_sidecars),
    ("late_reports_start_nothing", reports::late_reports_start_nothing),
    ("a_pod_that_goes_is_no_failure", reports::a_pod_that_goes_is_no_failure),
    ("gives_pods_the_readiness_gate", reports::gives_pods_the_readiness_gate),
    ("keeps_requests_in_order", scenes::keeps_requests_in_order),
    ("goes_on_after_crashes", scenes::goes_on_after_crashes),
    ("another_replica_takes_over", scenes::another_replica_takes_over),
    ("takes_over_from_kruise", hostile::takes_over_from_kruise),
    ("hostile_authors_harm_only_themselves", hostile::hostile_authors_harm_only_themselves),
    ("agents_write_for_their_own_node_only", rights::agents_write_for_their_own_node_only),
    ("requesters_need_rights_on_the_pod", rights::requesters_need_rights_on_the_pod),
    ("certificates_are_renewed", breaks::certificates_are_renewed),
    ("watches_break_and_resume", breaks::watches_break_and_resume),
    ("conflicts_are_resolved", breaks::conflicts_are_resolved),
    ("launches_many_pods", many::launches_many_pods),
    ("calls_all_that_it_may", calls::calls_all_that_it_may),
];

fn main() {
    let mut arguments = Arguments::from_args();
    // All scenes share one cluster, so they run one after the other.
    arguments.test_threads = Some(1);
    let missing = cluster::missing();
    if let Some(missing) = &missing {
        eprintln!("SKIPPED: the operator's tests need a kube-apiserver, kubectl and etcd: {missing}");
    }
    let stage: Arc<Mutex<Option<Stage>>> = Arc::default();
    let trial = |&(name, scene): &(&'static str, Scene)| {
        let stage = stage.clone();
        let run = move || {
            let mut held = stage.lock().unwrap_or_else(PoisonError::into_inner);
            let mut stage = held.take().unwrap_or_else(set);
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                stage.begin(name);
                scene(&mut stage);
                calls::assert_allowed(&stage);
            }));
            match played {
                Ok(()) => {
                    *held = Some(stage);
                    Ok(())
                }
                // After a failure, the next scene gets a new cluster, because this one may be in an
                // unexpected state.
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
                    Err(Failed::from(format!("{text}\n{}", stage.cluster.logs())))
                }
            }
        };
        Trial::test(name, run).with_ignored_flag(missing.is_some())
    };
    let trials = shuffled().iter().map(trial).chain(helm::trials()).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(stage);
    conclusion.exit();
}

/// The scenes in a random order. The seed is printed.
fn shuffled() -> [(&'static str, Scene); SCENES.len()] {
    let given = std::env::var("OUTRIGGER_SCENE_SEED").ok();
    let seed = given.map_or_else(
        || u64::from(std::process::id()),
        |text| text.parse().expect("OUTRIGGER_SCENE_SEED is a number"),
    );
    eprintln!("to repeat this order: OUTRIGGER_SCENE_SEED={seed}");
    let mut scenes = SCENES;
    scenes.sort_by_cached_key(|(name, _)| {
        let mut hasher = DefaultHasher::new();
        (seed, name).hash(&mut hasher);
        hasher.finish()
    });
    scenes
}

/// A cluster with the operator installed.
fn set() -> Stage {
    let cluster = Cluster::start();
    let (webhook, health) = (cluster::free_port(), cluster::free_port());
    let (applied, said) =
        cluster.outrigger(&["operator", "install", "--webhook-url", &format!("https://127.0.0.1:{webhook}")]);
    assert!(applied, "{said}");
    Stage { operator: None, webhook, health, cluster }
}

impl Stage {
    /// Prepares a scene: a new namespace, and an operator without any state.
    pub(crate) fn begin(&mut self, scene: &str) {
        self.operator = None;
        self.cluster.enter(&scene.replace('_', "-"));
        self.start_operator();
    }

    pub(crate) fn start_operator(&mut self) {
        self.start_operator_at(self.cluster.port(), &[]);
    }

    /// Starts the operator with the API server at another port, with more options.
    pub(crate) fn start_operator_at(&mut self, port: u16, more: &[&str]) {
        self.operator = Some(self.cluster.operator_at(port, "first", self.webhook, self.health, more));
        cluster::eventually("the operator is ready and leads", || {
            let ready = many::page(self.health, "/readyz")?;
            let metrics = many::page(self.health, "/metrics")?;
            (ready == "ok" && metrics.contains("outrigger_leader 1")).then_some(())
        });
    }
}
