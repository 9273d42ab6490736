//! Limits the descriptors that forwarding in user space may use. There is one limit for all published ports
//! of this process, and a smaller one for each address that connects to them. Otherwise a client that
//! connects often enough would leave no descriptors for the control socket, probes and containers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use outrigger_runtime::descriptors;

/// The maximum number of descriptors, even if the process may open more, because each connection needs memory
/// too.
const DESCRIPTORS_MAX: usize = 8192;
/// Forwarding uses one in this many descriptors of the process. The rest is kept for everything else.
const KEPT: usize = 2;
/// One address can use one in this many of these descriptors.
const PER_SOURCE: usize = 4;

/// Descriptors for forwarded connections.
#[derive(Debug)]
pub(super) struct Budget {
    all: usize,
    used: Mutex<Used>,
    returned: Notify,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

impl Budget {
    /// The budget of this process.
    pub(super) fn of_process() -> Arc<Budget> {
        static BUDGET: LazyLock<Arc<Budget>> =
            LazyLock::new(|| Budget::new((descriptors::limit() / KEPT).min(DESCRIPTORS_MAX)));
        Arc::clone(&BUDGET)
    }

    pub(super) fn new(all: usize) -> Arc<Budget> {
        Arc::new(Budget { all, used: Mutex::default(), returned: Notify::new() })
    }

    /// Takes descriptors for a connection from `source`. `None` if there are too few left, or if the source
    /// has too many.
    pub(super) fn take(self: &Arc<Self>, source: IpAddr, descriptors: usize) -> Option<Share> {
        let source = origin(source);
        let mut used = self.used();
        let of_source = used.by_source.get(&source).copied().unwrap_or(0);
        if used.all + descriptors > self.all || of_source + descriptors > self.all / PER_SOURCE {
            return None;
        }
        used.all += descriptors;
        used.by_source.insert(source, of_source + descriptors);
        Some(Share { budget: Arc::clone(self), source, descriptors })
    }

    /// Waits until this many descriptors are available.
    pub(super) async fn room_for(&self, descriptors: usize) {
        loop {
            let returned = self.returned.notified();
            if self.used().all + descriptors <= self.all {
                return;
            }
            returned.await;
        }
    }

    /// Whether idle connections should be closed to make room.
    pub(super) fn is_scarce(&self) -> bool {
        self.used().all > self.all / 2
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Descriptors that are in use until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    source: IpAddr,
    descriptors: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.budget.used();
        used.all -= self.descriptors;
        if let Some(of_source) = used.by_source.get_mut(&self.source) {
            *of_source -= self.descriptors;
            if *of_source == 0 {
                used.by_source.remove(&self.source);
            }
        }
        drop(used);
        self.budget.returned.notify_waiters();
    }
}

/// What counts as one client: an IPv4 address, or an IPv6 network, because a client can choose its addresses
/// in it freely.
fn origin(source: IpAddr) -> IpAddr {
    const NETWORK: u128 = !0 << 64;
    match source.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_takes_all_and_all_take_no_more_than_there_is() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let budget = Budget::new(8);
        let one = budget.take(ip("192.0.2.1"), 2).unwrap();
        assert!(budget.take(ip("192.0.2.1"), 1).is_none(), "a quarter for each");
        assert!(budget.take(ip("::ffff:192.0.2.1"), 1).is_none(), "the same address");
        let six = budget.take(ip("2001:db8::1"), 2).unwrap();
        assert!(budget.take(ip("2001:db8::2"), 1).is_none(), "the same network");
        assert!(!budget.is_scarce());
        let _two = budget.take(ip("192.0.2.2"), 2).unwrap();
        let _three = budget.take(ip("192.0.2.3"), 2).unwrap();
        assert!(budget.is_scarce());
        assert!(budget.take(ip("192.0.2.4"), 1).is_none(), "there are no more");
        drop(six);
        assert!(budget.take(ip("192.0.2.4"), 2).is_some());
        drop(one);
        assert_eq!(budget.used().by_source.len(), 2, "nothing is kept of those that have gone");
    }
}
