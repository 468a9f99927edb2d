//! Name resolution with the resolver that this machine is configured to use.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::ResolveHosts;
use tokio::time::Instant;

/// The resolver's configuration file.
const CONFIGURATION: &str = "/etc/resolv.conf";
/// Minimum interval between checks for a changed configuration. A laptop that joins a different network uses
/// the new resolver within this time.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Timeout for one lookup.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of addresses that are used per name.
const ADDRESSES_MAX: usize = 16;

/// The resolver, which is rebuilt when its configuration changes.
#[derive(Default)]
pub struct Names {
    known: Mutex<Option<CachedResolver>>,
}

struct CachedResolver {
    resolver: Option<Arc<TokioResolver>>,
    written: Option<SystemTime>,
    looked: Instant,
}

impl Names {
    /// Returns the addresses of a name. The list is empty if the name has no addresses or the lookup fails.
    pub async fn look_up(&self, name: &str) -> Vec<IpAddr> {
        let Some(resolver) = self.resolver() else { return Vec::new() };
        // The trailing dot makes the name absolute, so that no search domain of this machine is appended.
        match tokio::time::timeout(ANSWER_WITHIN, resolver.lookup_ip(format!("{name}."))).await {
            Ok(Ok(found)) => found.iter().take(ADDRESSES_MAX).collect(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }

    fn resolver(&self) -> Option<Arc<TokioResolver>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let written = || std::fs::metadata(CONFIGURATION).and_then(|known| known.modified()).ok();
        let current = known.as_mut().is_some_and(|known| {
            let fresh = now.duration_since(known.looked) < LOOK_EVERY || written() == known.written;
            if fresh && now.duration_since(known.looked) >= LOOK_EVERY {
                known.looked = now;
            }
            fresh
        });
        if !current {
            *known = Some(CachedResolver { resolver: build(), written: written(), looked: now });
        }
        known.as_ref().and_then(|known| known.resolver.clone())
    }
}

fn build() -> Option<Arc<TokioResolver>> {
    let built = TokioResolver::builder_tokio().and_then(|mut builder| {
        // Entries of this machine's hosts file must not be visible to sandboxes.
        builder.options_mut().use_hosts_file = ResolveHosts::Never;
        builder.build()
    });
    match built {
        Ok(resolver) => Some(Arc::new(resolver)),
        Err(error) => {
            tracing::warn!(%error, "cannot create the DNS resolver; host names cannot be resolved for sandboxes");
            None
        }
    }
}
