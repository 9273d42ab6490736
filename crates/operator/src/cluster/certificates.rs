//! The webhook's certificate. The operator creates it, keeps it in a Secret that all replicas share, and
//! renews it before it expires.
//!
//! The CA's key is discarded as soon as the certificate is signed. Each new certificate has a new CA. The
//! last two CAs are trusted, so that no call fails while replicas change to the new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;

use super::{Error, has_code};
use crate::install;

/// The name of the Secret.
pub(crate) const SECRET: &str = "outrigger-webhook";
/// The lifetime of a certificate.
const LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);
/// A certificate is renewed when less than this is left of its lifetime.
const LEFT: SignedDuration = SignedDuration::from_hours(24 * 120);
/// A certificate, its key, and the CAs to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    chain: String,
    key: String,
    /// The CA of this certificate and of the previous one.
    pub(crate) authorities: String,
    not_after: Timestamp,
    /// The DNS names it is valid for, separated by commas.
    names: String,
}

impl Certificate {
    /// Creates a certificate for these names.
    pub(crate) fn make(names: &[String], before: Option<&Certificate>) -> Result<Self, Error> {
        let failed = |error: rcgen::Error| Error::Setup(format!("cannot make a certificate: {error}"));
        let now = Timestamp::now();
        let not_after = now + LIFE;
        let date = |time: Timestamp| {
            let date = time.to_zoned(TimeZone::UTC).date();
            let part = |n: i8| u8::try_from(n).unwrap_or(1);
            rcgen::date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
        };
        let mut authority = CertificateParams::new(Vec::new()).map_err(failed)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, format!("outrigger webhook {}", now.as_second()));
        let day = SignedDuration::from_hours(24);
        (authority.not_before, authority.not_after) = (date(now - day), date(not_after + day));
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().map_err(failed)?).map_err(failed)?;
        let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name.push(rcgen::DnType::CommonName, "outrigger-webhook");
        (params.not_before, params.not_after) = (date(now - day), date(not_after));
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &authority).map_err(failed)?;
        let previous = before.map(|before| first_pem(&before.authorities)).unwrap_or_default();
        Ok(Certificate {
            chain: certificate.pem(),
            key: key.serialize_pem(),
            authorities: format!("{}{previous}", authority.pem()),
            not_after,
            names: names.join(","),
        })
    }

    fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |name: &str| String::from_utf8(data.get(name)?.0.clone()).ok();
        Some(Certificate {
            chain: text("tls.crt")?,
            key: text("tls.key")?,
            authorities: text("ca.crt")?,
            not_after: text("not-after")?.parse().ok()?,
            names: text("names").unwrap_or_default(),
        })
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let entry = |name: &str, text: &str| (name.to_owned(), ByteString(text.as_bytes().to_vec()));
        let not_after = self.not_after.to_string();
        [
            entry("tls.crt", &self.chain),
            entry("tls.key", &self.key),
            entry("ca.crt", &self.authorities),
            entry("not-after", &not_after),
            entry("names", &self.names),
        ]
        .into()
    }

    /// Whether the certificate must be replaced: it expires soon, is for other names, or cannot be read.
    fn is_due(&self, names: &[String]) -> bool {
        let is_old = Timestamp::now().checked_add(LEFT).is_ok_and(|then| then >= self.not_after);
        is_old || self.names != names.join(",") || self.server_config().is_err()
    }

    /// The TLS configuration of a server.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, Error> {
        let bad =
            |what: &str| Error::Setup(format!("Secret {SECRET}: {what}; delete it, and it is made anew"));
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(self.chain.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| bad("tls.crt cannot be read"))?;
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| bad("tls.key cannot be read"))?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| bad(&error.to_string()))?;
        Ok(Arc::new(config))
    }
}

fn first_pem(text: &str) -> String {
    let second = text.match_indices("-----BEGIN").nth(1).map_or(text.len(), |(at, _)| at);
    text[..second].to_owned()
}

/// Returns the current certificate from the Secret. Creates or renews it if necessary. The certificate in
/// `served` stays trusted, because calls arrive while it is replaced.
pub(crate) async fn obtain(
    client: &Client,
    namespace: &str,
    names: &[String],
    served: Option<&Certificate>,
) -> Result<Certificate, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    loop {
        let what = || Error::api(format!("Secret {namespace}/{SECRET}"));
        let held = api.get_opt(SECRET).await.map_err(what())?;
        let current = held.as_ref().and_then(Certificate::read);
        if let Some(current) = current.as_ref().filter(|current| !current.is_due(names)) {
            trust(client, current).await?;
            return Ok(current.clone());
        }
        // The CA of an unusable certificate need not stay trusted.
        let before = current.filter(|current| current.server_config().is_ok()).or_else(|| served.cloned());
        let new = Certificate::make(names, before.as_ref())?;
        // Trust it before it is written: a replica may serve it as soon as it is written.
        trust(client, &new).await?;
        let mut secret = held.clone().unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..Default::default() },
            type_: Some("Opaque".to_owned()),
            ..Default::default()
        });
        secret.data = Some(new.data());
        let written = match held {
            Some(_) => api.replace(SECRET, &PostParams::default(), &secret).await,
            None => api.create(&PostParams::default(), &secret).await,
        };
        match written {
            Ok(_) => return Ok(new),
            // Another replica has created it first: use its certificate.
            Err(error) if has_code(&error, &[409]) => {}
            Err(error) => return Err(what()(error)),
        }
    }
}

/// Makes the API server trust the webhook, for admission and conversion. Writes only if there is a
/// difference.
async fn trust(client: &Client, certificate: &Certificate) -> Result<(), Error> {
    let bundle = STANDARD.encode(&certificate.authorities);
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let name = install::WEBHOOKS;
    let what = || Error::api(format!("MutatingWebhookConfiguration {name}"));
    if let Some(held) = hooks.get_opt(name).await.map_err(what())? {
        let is = |hook: &k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
            hook.client_config.ca_bundle.as_ref().is_some_and(|b| b.0 == certificate.authorities.as_bytes())
        };
        let list = held.webhooks.unwrap_or_default();
        let old: Vec<_> = list
            .iter()
            .filter(|hook| !is(hook))
            .map(|hook| json!({"name": hook.name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        if !old.is_empty() {
            let patch = Patch::Strategic(json!({"webhooks": old}));
            hooks.patch(name, &PatchParams::default(), &patch).await.map_err(what())?;
        }
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = install::CRD;
    let what = || Error::api(format!("CustomResourceDefinition {name}"));
    if let Some(held) = crds.get_opt(name).await.map_err(what())? {
        let config = held.spec.conversion.and_then(|c| c.webhook).and_then(|w| w.client_config);
        let is_old =
            config.is_some_and(|c| c.ca_bundle.is_none_or(|b| b.0 != certificate.authorities.as_bytes()));
        if is_old {
            let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}}});
            crds.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(what())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_serves_and_is_kept_and_trusted_over_a_change() {
        super::super::install_crypto();
        let names = ["outrigger-webhook.ns.svc".to_owned(), "127.0.0.1".to_owned()];
        let first = Certificate::make(&names, None).expect("made");
        first.server_config().expect("it serves");
        assert!(!first.is_due(&names));
        assert!(first.is_due(&names[..1]), "it is for other names");
        let old = Certificate { not_after: Timestamp::now() + LEFT, ..first.clone() };
        assert!(old.is_due(&names), "renewed long before its time is over");
        let broken = Certificate { chain: "-----BEGIN nonsense".to_owned(), ..first.clone() };
        assert!(broken.is_due(&names), "a Secret somebody has spoiled is made anew");
        let secret = Secret { data: Some(first.data()), ..Default::default() };
        assert_eq!(Certificate::read(&secret), Some(first.clone()));
        let second = Certificate::make(&names, Some(&first)).expect("made");
        assert!(second.authorities.contains(&first.authorities), "the one before is trusted as well");
        let third = Certificate::make(&names, Some(&second)).expect("made");
        assert!(!third.authorities.contains(&first.authorities), "but not for ever");
        assert_eq!(Certificate::read(&Secret::default()), None);
    }
}
