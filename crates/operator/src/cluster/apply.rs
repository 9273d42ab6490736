//! `outrigger operator install` without `-o`: applies the manifests to the cluster.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Error;
use crate::install;

/// The webhook configuration of a Kruise installation.
const KRUISE_WEBHOOKS: &str = "kruise-mutating-webhook-configuration";
/// The field manager of the applied objects.
const MANAGER: &str = "outrigger-install";

/// Objects in the cluster that conflict with an operator in this namespace: both would handle the same pods and requests.
///
/// # Errors
/// The cluster cannot be reached.
pub async fn clashes(client: &Client, namespace: &str) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let held = hooks.get_opt(KRUISE_WEBHOOKS).await.map_err(Error::api("look for OpenKruise"))?;
    if held.is_some() {
        found.push(format!(
            "OpenKruise is installed (MutatingWebhookConfiguration {KRUISE_WEBHOOKS}): its webhook and ours would both write barriers"
        ));
    }
    let held = hooks.get_opt(install::WEBHOOKS).await.map_err(Error::api("look for Outrigger"))?;
    if held.is_some() {
        // The Service of the webhook is no evidence, because an operator that runs outside the cluster has
        // none.
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        let held = bindings.get_opt(install::WEBHOOKS).await.map_err(Error::api("look for Outrigger"))?;
        let mut subjects = held.into_iter().flat_map(|held| held.subjects.unwrap_or_default());
        let other = subjects.find_map(|subject| subject.namespace.filter(|other| other != namespace));
        if let Some(other) = other {
            found.push(format!(
                "Outrigger is installed in namespace {other} (MutatingWebhookConfiguration {}): there can be one in a cluster",
                install::WEBHOOKS
            ));
        }
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let held = crds.get_opt(install::CRD).await.map_err(Error::api("look for OpenKruise"))?;
    let config = held.and_then(|crd| crd.spec.conversion?.webhook?.client_config?.service);
    let Some(service) = config.filter(|service| service.name != "outrigger-webhook") else {
        return Ok(found);
    };
    // The definition may remain for its requests after Kruise is uninstalled. Then there is no conflict,
    // because no controller handles them.
    let services: Api<Service> = Api::namespaced(client.clone(), &service.namespace);
    let held = services.get_opt(&service.name).await.map_err(Error::api("look for OpenKruise"))?;
    if held.is_some() {
        found.push(format!(
            "CustomResourceDefinition {} belongs to the Service {}/{}: its controllers would serve the same requests",
            install::CRD, service.namespace, service.name
        ));
    }
    Ok(found)
}

/// Applies manifests in order. Returns the applied objects.
///
/// # Errors
/// The API server refuses a manifest.
pub async fn apply(client: &Client, manifests: &[String]) -> Result<Vec<String>, Error> {
    let mut applied = Vec::new();
    for text in manifests {
        let bad = |error: String| Error::Setup(format!("a manifest cannot be read: {error}"));
        let value: Value = serde_saphyr::from_str(text).map_err(|error| bad(error.to_string()))?;
        let object: DynamicObject = serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
        let types = object.types.clone().unwrap_or_default();
        let gvk = GroupVersionKind::try_from(&types)
            .map_err(|error| Error::Setup(format!("a manifest has no kind: {error}")))?;
        let resource = ApiResource::from_gvk(&gvk);
        let name = object.metadata.name.clone().unwrap_or_default();
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        if name == install::CRD {
            replace_webhook(&api, &object).await.map_err(Error::api(format!("{} {name}", types.kind)))?;
        }
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .map_err(Error::api(format!("{} {name}", types.kind)))?;
        applied.push(format!("{} {name}", types.kind));
    }
    Ok(applied)
}

/// Points the conversion webhook of an existing definition to ours. An apply would merge both: the Service of
/// the other installation would remain beside our URL, and the API server refuses that.
async fn replace_webhook(api: &Api<DynamicObject>, ours: &DynamicObject) -> Result<(), kube::Error> {
    const CONFIG: &str = "/spec/conversion/webhook/clientConfig";
    let Some(held) = api.get_opt(install::CRD).await? else { return Ok(()) };
    let (Some(held), Some(ours)) = (held.data.pointer(CONFIG), ours.data.pointer(CONFIG)) else {
        return Ok(());
    };
    let is_set = |config: &Value, field: &str| config.get(field).is_some_and(|value| !value.is_null());
    if ["url", "service"].iter().all(|field| is_set(held, field) == is_set(ours, field)) {
        return Ok(());
    }
    let config = json!({"url": ours.get("url"), "service": ours.get("service")});
    let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": config}}}});
    api.patch(install::CRD, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}
