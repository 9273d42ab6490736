//! Leader election: only the replica that holds the Lease writes.
//!
//! A holder that does not renew the Lease loses it after [`DURATION`]. Each replica measures this with its
//! own clock from the last change it saw, so the replicas' clocks need not agree.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, timeout};

use super::has_code;

/// The name of the Lease.
pub(crate) const NAME: &str = "outrigger-operator";
/// Another replica can take a Lease that was not renewed for this long.
const DURATION: Duration = Duration::from_secs(8);
/// How often the Lease is renewed or checked.
const PAUSE: Duration = Duration::from_secs(2);
/// A leader that could not renew the Lease for this long stops leading, well before another replica can take it.
const HOLD: Duration = Duration::from_secs(6);

pub(crate) struct Leader {
    api: Api<Lease>,
    identity: String,
    /// The last version of another replica's Lease, and when this replica first saw it.
    seen: Option<(String, Instant)>,
}

impl Leader {
    pub(crate) fn new(client: Client, namespace: &str, identity: String) -> Self {
        Leader { api: Api::namespaced(client, namespace), identity, seen: None }
    }

    /// Waits until this replica is the leader. Returns when it sent the request that made it the leader.
    pub(crate) async fn acquire(&mut self) -> Instant {
        loop {
            let asked = Instant::now();
            match timeout(DURATION, self.try_hold()).await {
                Ok(Ok(true)) if asked.elapsed() < HOLD => return asked,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the leader's Lease cannot be read"),
                Err(_) => tracing::warn!("the leader's Lease cannot be read: no answer"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Renews the Lease. Returns when this replica is no longer the leader, before another replica can become
    /// the leader.
    pub(crate) async fn keep(&mut self, mut renewed: Instant) {
        loop {
            tokio::time::sleep(PAUSE.min(HOLD.saturating_sub(renewed.elapsed()))).await;
            let asked = Instant::now();
            // Other replicas measure from the write, which may happen as soon as the request is sent.
            match timeout(HOLD.saturating_sub(renewed.elapsed()), self.try_hold()).await {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "the leader's Lease cannot be renewed"),
                Err(_) => tracing::warn!("the leader's Lease cannot be renewed: no answer"),
            }
            if renewed.elapsed() >= HOLD {
                return;
            }
        }
    }

    /// Releases the Lease, so that another replica need not wait until it expires.
    pub(crate) async fn release(&self) {
        let Ok(mut lease) = self.api.get(NAME).await else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        spec.holder_identity = Some(String::new());
        let _ = self.api.replace(NAME, &PostParams::default(), &lease).await;
    }

    async fn try_hold(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(NAME).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(NAME.to_owned()), ..Default::default() },
                spec: Some(self.spec(0)),
            };
            return took(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() {
            match &self.seen {
                Some((seen, since)) if *seen == version => {
                    if since.elapsed() < DURATION {
                        return Ok(false);
                    }
                }
                _ => {
                    self.seen = Some((version, Instant::now()));
                    return Ok(false);
                }
            }
        }
        let transitions = spec.lease_transitions.unwrap_or(0);
        let mut new = self.spec(if holder == self.identity { transitions } else { transitions + 1 });
        if holder == self.identity {
            new.acquire_time = spec.acquire_time;
        }
        lease.spec = Some(new);
        // The object includes its version: if two replicas try at once, one of them fails.
        took(self.api.replace(NAME, &PostParams::default(), &lease).await)
    }

    fn spec(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..Default::default()
        }
    }
}

fn took(result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if has_code(&error, &[409]) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_that_gets_no_answer_stops_before_others_begin() {
        super::super::install_crypto();
        // The server accepts connections and never answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let config = kube::Config::new(address.parse().expect("an address"));
        let client = Client::try_from(config).expect("a client");
        let mut leader = Leader::new(client, "ns", "a".to_owned());
        let begun = Instant::now();
        leader.keep(begun).await;
        assert!(begun.elapsed() < DURATION, "{:?}", begun.elapsed());
    }
}
