//! Metrics in Prometheus format.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use api::ErrorCode;
use api::sandbox::Sandbox;
use api::server::{NodeStatus, PoolStatus};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, String)>;

/// Histogram buckets in seconds, from a millisecond to half a minute. Starting a sandbox takes 60 ms; waiting
/// in the queue can take seconds.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// HTTP methods that are counted by name. All others are counted together, because clients can invent
/// methods, and each new name would add a permanent counter.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

/// Metrics of the server.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
    creates: Family<Labels, Counter>,
    create_seconds: Histogram,
    ends: Family<Labels, Counter>,
    /// Number of open streams.
    pub streams: Gauge,
    sandboxes: Gauge,
    memory_free: Gauge<u64, AtomicU64>,
    disk_free: Gauge<u64, AtomicU64>,
    pool: Family<Labels, Gauge>,
    claims: Family<Labels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("bellglass");
        let requests = Family::default();
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        let (creates, create_seconds, ends) = (Family::default(), histogram(), Family::default());
        let (streams, sandboxes) = (Gauge::default(), Gauge::default());
        let (memory_free, disk_free) = (Gauge::default(), Gauge::default());
        let (pool, claims) = (Family::default(), Family::default());
        registry.register("requests", "Requests answered", requests.clone());
        registry.register(
            "request_seconds",
            "Time from the request until the response headers are sent",
            seconds.clone(),
        );
        registry.register("creates", "Requests to create a sandbox, by result", creates.clone());
        registry.register(
            "create_seconds",
            "Time from the request until the sandbox runs",
            create_seconds.clone(),
        );
        registry.register("ends", "Ended sandboxes, by reason", ends.clone());
        registry.register("streams", "Open streams", streams.clone());
        registry.register("sandboxes", "Sandboxes that are starting, running or stopping", sandboxes.clone());
        registry.register(
            "memory_free_bytes",
            "Memory of the machine that is free for more sandboxes",
            memory_free.clone(),
        );
        registry.register(
            "disk_free_bytes",
            "Disk space of the machine that is free for more sandboxes",
            disk_free.clone(),
        );
        registry.register(
            "pool",
            "Pre-warmed sandboxes, by template and state: ready, making, wanted",
            pool.clone(),
        );
        registry.register(
            "claims",
            "Requests to create a sandbox, by whether a pre-warmed sandbox was ready: warm, cold",
            claims.clone(),
        );
        Self {
            registry,
            requests,
            seconds,
            creates,
            create_seconds,
            ends,
            streams,
            sandboxes,
            memory_free,
            disk_free,
            pool,
            claims,
        }
    }
}

impl Metrics {
    /// Counts a request that got a response. `route` is the pattern of the route, not the path, so clients
    /// cannot create new label values.
    pub fn answered(&self, route: &str, method: &str, status: u16, took: Duration) {
        let method = if METHODS.contains(&method) { method } else { "other" };
        let labels = vec![("route", route.to_owned()), ("method", method.to_owned())];
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
        let labels = [labels, vec![("status", status.to_string())]].concat();
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a create request that succeeded, and records the time that it took.
    pub fn created(&self, took: Duration) {
        self.create_seconds.observe(took.as_secs_f64());
        self.creates.get_or_create(&vec![("result", "ok".into())]).inc();
    }

    /// Counts a create request that failed.
    pub fn create_failed(&self, code: ErrorCode) {
        self.creates.get_or_create(&vec![("result", code.name().into())]).inc();
    }

    /// Counts a sandbox that has ended. Other state changes have no effect.
    pub fn changed(&self, sandbox: &Sandbox) {
        if let Some(reason) = sandbox.reason.filter(|_| sandbox.state.is_terminal()) {
            self.ends.get_or_create(&vec![("reason", reason.name().into())]).inc();
        }
    }

    /// Returns all metrics as text.
    pub fn render(&self, status: &NodeStatus) -> String {
        self.sandboxes.set(i64::from(status.sandboxes));
        self.memory_free.set(status.memory_free_bytes);
        self.disk_free.set(status.disk_free_bytes);
        self.show_pool(&status.pool);
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = text.write_str("# EOF\n");
        }
        text
    }
}

impl Metrics {
    /// Updates the metrics of the pool. The pool has a separate entry for each template and set of limits.
    /// The metrics show one sum per template, because a template may have many sets of limits.
    fn show_pool(&self, pool: &[PoolStatus]) {
        self.pool.clear();
        for one in pool {
            let counts = [("ready", one.ready), ("making", one.making), ("wanted", one.wanted)];
            for (state, count) in counts {
                let labels = vec![("template", one.template.clone()), ("state", state.to_owned())];
                self.pool.get_or_create(&labels).inc_by(count.into());
            }
        }
        self.claims.clear();
        for one in pool {
            for (start, count) in [("warm", one.warm), ("cold", one.cold)] {
                let labels = vec![("template", one.template.clone()), ("start", start.to_owned())];
                self.claims.get_or_create(&labels).inc_by(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}
