//! The workers of a run: pods come and go while it lasts.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use outrigger_lifecycle::Phase;
use outrigger_manifest::Companions;
use outrigger_runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};

use crate::clock::Clock;
use crate::fields::Host;
use crate::pod::PodContext;
use crate::run::{PlannedPod, RunOptions};
use crate::worker::{PodResult, Sinks, StopOrder, Worker, remove_pod};

/// What a worker tells of its pod: the status, whenever it changed.
pub(crate) struct News {
    /// Whose.
    pub(crate) pod: usize,
    /// What.
    pub(crate) status: Box<PodStatus>,
    /// It was told to go.
    pub(crate) deleted: bool,
}

/// Something failed that will be tried again.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What, for people.
    pub(crate) text: String,
    /// The exit code, if a container has exited.
    pub(crate) code: Option<i64>,
}

/// The workers of a run.
pub(crate) struct Crew<R> {
    runtime: Arc<R>,
    companions: Arc<Companions>,
    host: Arc<Host>,
    options: Arc<RunOptions>,
    clock: Clock,
    pub(crate) sinks: Sinks,
    workers: JoinSet<PodResult>,
    members: BTreeMap<Id, Member>,
    /// Pods so far: their numbers.
    hired: usize,
    news: (mpsc::UnboundedSender<News>, mpsc::UnboundedReceiver<News>),
    failures: (mpsc::UnboundedSender<Failure>, mpsc::UnboundedReceiver<Failure>),
    /// A worker failed, which is Outrigger's own fault.
    pub(crate) broken: bool,
}

struct Member {
    number: usize,
    context: Arc<PodContext>,
    stop: watch::Sender<StopOrder>,
}

/// What happened to the crew.
pub(crate) enum Happened {
    /// A pod's status changed.
    News(News),
    /// A pod is over, and nothing is left of it.
    Ended(usize, PodResult),
    /// Something failed that will be tried again; told only to who stops at the first failure.
    Failed(Failure),
}

impl<R: Runtime> Crew<R> {
    pub(crate) fn new(
        runtime: Arc<R>,
        companions: Companions,
        options: RunOptions,
        clock: Clock,
        sinks: Sinks,
    ) -> Self {
        Crew {
            runtime,
            companions: Arc::new(companions),
            host: Arc::new(Host::here()),
            options: Arc::new(options),
            clock,
            sinks,
            workers: JoinSet::new(),
            members: BTreeMap::new(),
            hired: 0,
            news: mpsc::unbounded_channel(),
            failures: mpsc::unbounded_channel(),
            broken: false,
        }
    }

    fn context(&self, pod: &PlannedPod) -> Result<PodContext, String> {
        let (companions, host, options) = (self.companions.clone(), self.host.clone(), self.options.clone());
        PodContext::new(pod.manifest.input.clone(), &pod.plan, companions, host, options, self.hired)
    }

    /// Whether a pod can be run at all.
    pub(crate) fn check(&self, pod: &PlannedPod) -> Result<(), String> {
        let context = self.context(pod)?;
        self.runtime.check_sandbox(&context.sandbox_spec()?).map_err(|e| {
            let lessons = self.sinks.lessons.of(&pod.manifest.origin);
            lessons.of_sandbox(&context, &pod.plan, &e.to_string())
        })
    }

    /// Runs a pod; its number is returned. `told` has its news told.
    pub(crate) fn hire(&mut self, pod: PlannedPod, told: bool) -> Result<usize, String> {
        let context = Arc::new(self.context(&pod)?);
        let number = self.hired;
        self.hired += 1;
        let origin = &pod.manifest.origin;
        let workload = (origin.kind != "Pod").then(|| format!("{}/{}", origin.kind, origin.name));
        self.sinks.output.join(context.name(), workload.clone(), &pod.plan);
        self.sinks.roster.join(number, context.clone(), workload, &pod.plan);
        let (stop, orders) = watch::channel(StopOrder::default());
        let mut sinks = self.sinks.clone();
        sinks.news = told.then(|| self.news.0.clone());
        sinks.failures = self.options.fail_fast.then(|| self.failures.0.clone());
        sinks.lessons = sinks.lessons.of(&pod.manifest.origin);
        let worker =
            Worker::new(self.runtime.clone(), context.clone(), pod.plan, number, self.clock, orders, sinks);
        let task = self.workers.spawn(worker.run());
        self.members.insert(task.id(), Member { number, context, stop });
        Ok(number)
    }

    /// Tells a pod to go; `None` is its own grace. A pod that is over does not mind.
    pub(crate) fn stop(&self, number: usize, grace_ms: Option<u64>) {
        for member in self.members.values().filter(|m| m.number == number) {
            member.stop.send_modify(|order| {
                order.times += 1;
                order.grace_ms = grace_ms;
            });
        }
    }

    /// The grace of a stop that was asked for; `None` is each pod's own.
    pub(crate) fn grace_ms(&self) -> Option<u64> {
        self.options.grace_ms
    }

    /// Tells every pod to go.
    pub(crate) fn stop_all(&self, grace_ms: Option<u64>) {
        self.members.values().for_each(|member| self.stop(member.number, grace_ms));
    }

    /// Waits for the next thing that happens; for ever, if nobody works.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            tokio::select! {
                // What a worker had to say comes before its end.
                biased;
                Some(news) = self.news.1.recv() => return Happened::News(news),
                Some(failure) = self.failures.1.recv() => return Happened::Failed(failure),
                Some(ended) = self.workers.join_next_with_id() => match ended {
                    Ok((id, result)) => {
                        if let Some(member) = self.members.remove(&id) {
                            self.sinks.board.is_over(member.number);
                            self.sinks.roster.leave(member.number);
                            return Happened::Ended(member.number, result);
                        }
                    }
                    Err(e) => {
                        tracing::error!("a pod's worker failed: {e}");
                        self.broken = true;
                        if let Some(member) = self.members.remove(&e.id()) {
                            // Nobody looks after its containers any more.
                            remove_pod(&*self.runtime, &member.context).await;
                            self.sinks.roster.leave(member.number);
                            let result = PodResult { phase: Phase::Failed, failed: None };
                            return Happened::Ended(member.number, result);
                        }
                    }
                },
                else => std::future::pending().await,
            }
        }
    }
}
