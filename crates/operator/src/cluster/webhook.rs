//! Answers the API server about pods and container recreate requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::metrics::Metrics;
use super::reason;
use super::server::Bodies;
use super::store::Agents;
use crate::decide::admit::{
    Admitted, Launch, OwnRestartPolicies, SUFFIX_LEN, admit, job_sidecars, readiness_gate,
};
use crate::decide::request::{Author, Found, check_names, check_size, create, update, warnings};
use crate::decide::terminate;
use crate::decide::{Refusal, convert, without_controls};
use crate::names;

/// What the webhook needs to answer.
pub(crate) struct Webhook {
    pub(crate) client: Client,
    pub(crate) metrics: Arc<Metrics>,
    /// The user name of the operator itself.
    pub(crate) own_user: String,
    pub(crate) agents: Agents,
    pub(crate) requesters: Requesters,
    pub(crate) launch: Launch,
    /// Whether the API server accepts restart policies of single containers.
    pub(crate) takes_own_policies: AtomicBool,
    /// The memory for the bodies of reviews.
    pub(crate) bodies: Bodies,
}

/// Who may create container recreate requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Requesters {
    /// Users who may create requests and who may also delete the pod or execute commands in it (KD19).
    #[default]
    WithRightsOnPod,
    /// All users who may create requests, as in OpenKruise (CRR-16).
    All,
}

/// The changed object and warnings for its author.
type Answer = Result<(Value, Vec<String>), Refusal>;

impl Webhook {
    /// Answers one call. `None` for an unknown path or an invalid body.
    pub(crate) async fn answer(&self, path: &str, body: &[u8]) -> Option<Value> {
        let begun = Instant::now();
        let mut review: Value = serde_json::from_slice(body).ok()?;
        let request = review.get_mut("request")?.take();
        let response = match path {
            "/mutate-pods" => {
                self.review(&request, pods(&request, |object| admit(object, &suffix(), self.launch)))
            }
            "/mutate-job-sidecars" => {
                let own_policies = match self.takes_own_policies.load(Ordering::Relaxed) {
                    true => OwnRestartPolicies::Taken,
                    false => OwnRestartPolicies::Refused,
                };
                let changed = |object: &Value| job_sidecars(object, own_policies, self.launch);
                self.review(&request, pods(&request, changed))
            }
            "/inject-readiness-gate" => {
                self.review(&request, pods(&request, |object| Ok(readiness_gate(object))))
            }
            "/keep-results" => {
                let kept = terminate::keep_result(&request["oldObject"], &request["object"]);
                self.review(&request, Ok((kept, Vec::new())))
            }
            "/mutate-requests" => {
                let answer = self.requests(&request).await;
                self.review(&request, answer)
            }
            "/convert" => conversion(&request),
            _ => return None,
        };
        self.metrics.webhook_seconds.observe(begun.elapsed().as_secs_f64());
        Some(json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}))
    }

    /// Asks the API server for its version, which changes when it is updated.
    pub(crate) async fn check_version(&self) {
        match self.client.apiserver_version().await {
            Ok(version) => {
                // Some vendors add a plus sign.
                let minor = version.minor.trim_end_matches('+').parse().unwrap_or(0);
                let takes_own_policies = OwnRestartPolicies::of_minor(minor) == OwnRestartPolicies::Taken;
                self.takes_own_policies.store(takes_own_policies, Ordering::Relaxed);
            }
            Err(error) => tracing::warn!(error = reason(&error), "the API server's version cannot be read"),
        }
    }

    fn review(&self, request: &Value, answer: Answer) -> Value {
        let mut response = json!({"uid": request["uid"], "allowed": answer.is_ok()});
        match answer {
            Ok((object, warnings)) => {
                let patch = json_patch::diff(&request["object"], &object);
                if !patch.0.is_empty() {
                    let patch = serde_json::to_vec(&patch).unwrap_or_default();
                    response["patchType"] = json!("JSONPatch");
                    response["patch"] = json!(STANDARD.encode(patch));
                }
                if !warnings.is_empty() {
                    response["warnings"] = json!(warnings);
                }
            }
            Err(refusal) => {
                self.metrics.refused.inc();
                let reason = match refusal.code {
                    403 => "Forbidden",
                    422 => "Invalid",
                    400 => "BadRequest",
                    _ => "InternalError",
                };
                response["status"] =
                    json!({"code": refusal.code, "reason": reason, "message": refusal.message});
            }
        }
        response
    }

    async fn requests(&self, request: &Value) -> Answer {
        let object = &request["object"];
        if is_subresource(request) {
            return Ok((object.clone(), Vec::new()));
        }
        match request["operation"].as_str() {
            Some("UPDATE") => {
                let author = self.author(request);
                update(&request["oldObject"], object, author).map(|object| (object, Vec::new()))
            }
            Some("CREATE") => {
                if self.agents == Agents::NotInstalled {
                    // CRR-8
                    return Err(Refusal::new(
                        403,
                        "no node has an agent that could serve the request: the operator was installed without it",
                    ));
                }
                let author = self.author(request);
                check_names(object, author)?;
                check_size(&Value::Null, object, author)?;
                let namespace = request["namespace"].as_str().unwrap_or_default();
                self.check_requester(request, namespace).await?;
                let (pod, node) = self.find(namespace, object).await?;
                let warnings = pod.as_ref().map(|pod| warnings(object, pod)).unwrap_or_default();
                let object = create(object, Found { pod: pod.as_ref(), node })?;
                check_size(&Value::Null, &object, author)?;
                Ok((object, warnings))
            }
            _ => Ok((object.clone(), Vec::new())),
        }
    }

    fn author(&self, request: &Value) -> Author {
        match request["userInfo"]["username"].as_str() == Some(self.own_user.as_str()) {
            true => Author::Operator,
            false => Author::User,
        }
    }

    /// Checks the user's permissions (KD19). A request restarts containers, so the user needs a permission on
    /// the pod that allows as much.
    async fn check_requester(&self, request: &Value, namespace: &str) -> Result<(), Refusal> {
        let user = request["userInfo"]["username"].as_str().unwrap_or_default();
        let pod = request["object"]["spec"]["podName"].as_str().unwrap_or_default();
        if self.requesters == Requesters::All || user == self.own_user || pod.is_empty() {
            return Ok(());
        }
        let failed = |error: kube::Error| {
            Refusal::new(500, format!("cannot ask what the user may do: {}", reason(&error)))
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        for (verb, sub) in [("delete", ""), ("create", "exec")] {
            let review = access_review(&request["userInfo"], namespace, pod, verb, sub);
            let answer = reviews.create(&PostParams::default(), &review).await.map_err(failed)?;
            if answer.status.is_some_and(|status| status.allowed) {
                return Ok(());
            }
        }
        Err(Refusal::new(
            403,
            format!(
                "user {user:?} may neither delete pod {pod} nor execute commands in it, so it may not restart its containers either; grant one of the two"
            ),
        ))
    }

    /// Returns the pod that a request names, and the kind of its node.
    async fn find(
        &self,
        namespace: &str,
        object: &Value,
    ) -> Result<(Option<Pod>, Option<terminate::Node>), Refusal> {
        let failed =
            |error: kube::Error| Refusal::new(500, format!("cannot look for the pod: {}", reason(&error)));
        let name = object["spec"]["podName"].as_str().unwrap_or_default();
        if !outrigger_text::name::is_object_name(name) {
            return Ok((None, None));
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(name).await.map_err(failed)?;
        let node =
            pod.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.clone()).filter(|node| !node.is_empty());
        let Some(node) = node else { return Ok((pod, Some(terminate::Node::Machine))) };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_opt(&node).await.map_err(failed)?.map(|node| {
            let labels = node.metadata.labels.unwrap_or_default();
            match labels.get(names::NODE_TYPE.0).is_some_and(|value| value == names::NODE_TYPE.1) {
                true => terminate::Node::Virtual,
                false => terminate::Node::Machine,
            }
        });
        Ok((pod, node))
    }
}

/// Asks whether a user may do something to a pod.
fn access_review(user: &Value, namespace: &str, pod: &str, verb: &str, sub: &str) -> SubjectAccessReview {
    let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user["username"].as_str().map(str::to_owned),
            uid: user["uid"].as_str().map(str::to_owned),
            groups: serde_json::from_value(user["groups"].clone()).ok(),
            extra: serde_json::from_value(user["extra"].clone()).ok(),
            resource_attributes: Some(ResourceAttributes {
                namespace: text(namespace),
                name: text(pod),
                resource: text("pods"),
                subresource: text(sub),
                verb: text(verb),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    }
}

fn is_subresource(request: &Value) -> bool {
    request["subResource"].as_str().is_some_and(|name| !name.is_empty())
}

/// Handles a review of a pod. Only pods that are being created are changed (LP-1, LP-W-11).
fn pods(request: &Value, admit: impl FnOnce(&Value) -> Result<Admitted, Refusal>) -> Answer {
    let object = &request["object"];
    if request["operation"] != "CREATE"
        || request["resource"]["resource"] != "pods"
        || is_subresource(request)
    {
        return Ok((object.clone(), Vec::new()));
    }
    let admitted = admit(object)?;
    // Each warning is one line in the terminal. The API server shortens warnings that are too long or too
    // many.
    let short = |warning: String| {
        let short: String = warning.chars().take(250).collect();
        without_controls(&short)
    };
    Ok((admitted.pod, admitted.warnings.into_iter().take(8).map(short).collect()))
}

/// Random letters and digits, so that no other user can create the ConfigMap in advance.
fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bytes = [0_u8; SUFFIX_LEN];
    let random = rustls::crypto::ring::default_provider().secure_random;
    if random.fill(&mut bytes).is_err() {
        // No random numbers are available. Use the time, which is at least unique.
        let nanos = k8s_openapi::jiff::Timestamp::now().as_nanosecond().to_le_bytes();
        bytes.iter_mut().zip(nanos).for_each(|(byte, n)| *byte = n);
    }
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

fn conversion(request: &Value) -> Value {
    let wanted = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let converted: Option<Vec<Value>> =
        objects.iter().map(|object| convert::convert(object, wanted)).collect();
    match converted {
        Some(objects) => {
            json!({"uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"}})
        }
        None => json!({
            "uid": request["uid"], "convertedObjects": [],
            "result": {"status": "Failure", "message": format!("cannot convert to {wanted}")},
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_names() {
        let (one, other) = (suffix(), suffix());
        assert_ne!(one, other);
        assert!(one.len() == SUFFIX_LEN && one.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    }

    #[test]
    fn only_pods_that_are_made_are_changed() {
        // LP-W-11
        let env = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "env": env}, {"name": "b"}]}});
        let request = |operation: &str, sub: &str| json!({"operation": operation, "resource": {"resource": "pods"}, "subResource": sub, "object": pod});
        let admitted = |object: &Value| admit(object, &suffix(), Launch::Barrier);
        assert_ne!(pods(&request("CREATE", ""), admitted).expect("allowed").0, pod);
        for (operation, sub) in [("UPDATE", ""), ("CREATE", "ephemeralcontainers"), ("DELETE", "")] {
            assert_eq!(
                pods(&request(operation, sub), admitted).expect("allowed").0,
                pod,
                "{operation} {sub}"
            );
        }
    }

    #[tokio::test]
    async fn requests_are_refused_where_no_agent_is_installed() {
        super::super::install_crypto();
        // Nothing listens at this address, and the client never calls it.
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("an address"));
        let webhook = |agents, requesters| Webhook {
            client: Client::try_from(config.clone()).expect("a client"),
            metrics: Arc::default(),
            own_user: "operator".to_owned(),
            agents,
            requesters,
            launch: Launch::Barrier,
            takes_own_policies: AtomicBool::new(false),
            bodies: Bodies::default(),
        };
        let object = json!({"apiVersion": "apps.kruise.io/v1beta1", "spec": {"podName": "p", "containers": [{"name": "a"}]}});
        let request = json!({
            "uid": "u", "operation": "CREATE", "namespace": "ns", "object": object, "userInfo": {"username": "dev"},
        });
        let body = json!({"apiVersion": "v1", "kind": "AdmissionReview", "request": request}).to_string();
        let hook = webhook(Agents::NotInstalled, Requesters::All);
        let answer = hook.answer("/mutate-requests", body.as_bytes()).await.expect("an answer");
        assert_eq!(answer["response"]["status"]["code"], 403, "CRR-W-11, CRR-8: {answer}");
        // If the API server cannot be asked about the user, the request is denied (KD19).
        let hook = webhook(Agents::Installed, Requesters::WithRightsOnPod);
        let answer = hook.answer("/mutate-requests", body.as_bytes()).await.expect("an answer");
        assert_eq!(
            (&answer["response"]["allowed"], &answer["response"]["status"]["code"]),
            (&json!(false), &json!(500))
        );
        for nonsense in ["", "{}", "[]", "{\"request\": 1}", "\u{0}"] {
            let _ = hook.answer("/mutate-pods", nonsense.as_bytes()).await;
            let _ = hook.answer("/mutate-requests", nonsense.as_bytes()).await;
            let _ = hook.answer("/convert", nonsense.as_bytes()).await;
        }
    }

    #[test]
    fn conversions_are_all_or_nothing() {
        let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "spec": {"podName": "p"}});
        let ask =
            |wanted: &str| conversion(&json!({"uid": "u", "desiredAPIVersion": wanted, "objects": [object]}));
        assert_eq!(
            ask("apps.kruise.io/v1beta1")["convertedObjects"][0]["apiVersion"],
            "apps.kruise.io/v1beta1"
        );
        assert_eq!(ask("apps.kruise.io/v2")["result"]["status"], "Failure");
    }
}
