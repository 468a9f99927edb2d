//! Attack X-25: refused create requests that cause pre-warming and leave no space in the pool for other
//! projects.

use std::time::Duration;

use api::account::{Quota, Role};
use e2e::service::{PLENTY, Service, served, until};
use serde_json::{Value, json};

use super::ground::{held, keyed, recovers, small};

/// Number of kinds of sandboxes, which exceeds the number of kinds that the pool can hold.
const KINDS: u64 = 70;
const MEMORY: u64 = 96 << 20;
/// Timeout for pre-warming a sandbox on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(20);

fn create(service: &Service, key: &str, memory: u64, ttl_ms: Option<u64>) -> (u16, Value) {
    let mut body = small();
    body["limits"]["memory_bytes"] = json!(memory);
    if let Some(ttl_ms) = ttl_ms {
        body["limits"]["ttl_ms"] = json!(ttl_ms);
    }
    let answer = keyed(service, key, "POST", "/v1/sandboxes", &body);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

fn pool(service: &Service) -> Vec<Value> {
    let node = keyed(service, &service.key, "GET", "/v1/node", &Value::Null).json();
    node["pool"].as_array().unwrap().clone()
}

/// Creates two sandboxes of the same kind, one after the other, and returns how the second was started.
async fn second_start(service: &Service, memory: u64, wait: bool) -> String {
    let (status, first) = create(service, &service.key, memory, None);
    assert_eq!(status, 201, "{first}");
    let ready = async || {
        pool(service).iter().any(|kind| kind["memory_bytes"] == memory && kind["ready"].as_u64() > Some(0))
    };
    if wait {
        until(READY_WITHIN, "one to be ready", ready).await;
    } else {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let (status, second) = create(service, &service.key, memory, None);
    assert_eq!(status, 201, "{second}");
    for one in [first, second.clone()] {
        let path = format!("/v1/sandboxes/{}", one["id"].as_str().unwrap());
        keyed(service, &service.key, "DELETE", &path, &Value::Null);
    }
    second["start"].as_str().unwrap_or_default().to_owned()
}

/// Verifies that attack X-25 fails: refused create requests cause no pre-warming, and leave the pool
/// available to other projects.
#[test]
#[ignore = "starts real sandboxes"]
fn refused_creates_make_nothing_ready_and_close_the_pool_to_nobody() {
    served(async || {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("serve.toml");
        std::fs::write(&config, "pool_ready = 1\npool_memory_bytes = 134217728\n").unwrap();
        let mut service = Service::with(&[], &["--config", config.to_str().unwrap()]);
        let mean = service.key_of("mean", Role::Write, Quota { sandboxes: 0, ..PLENTY }).await;
        let flood = |service: &Service| {
            for number in 0..KINDS {
                let (status, answer) = create(service, &mean, (64 << 20) + number * 4096, None);
                assert_eq!((status, answer["code"].as_str()), (429, Some("quota_exceeded")), "{answer}");
            }
        };
        flood(&service);
        assert_eq!(pool(&service).len(), 0, "{:?}", pool(&service));
        assert_eq!(second_start(&service, MEMORY, true).await, "warm");
        // If a request is refused after it has claimed a pre-warmed sandbox, the sandbox returns to the pool,
        // and its time to live is reset to an hour.
        until(READY_WITHIN, "one to be ready again", async || {
            pool(&service).iter().any(|kind| kind["ready"].as_u64() > Some(0))
        })
        .await;
        for _ in 0..5 {
            assert_eq!(create(&service, &mean, MEMORY, Some(1000)).0, 429);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (_, claimed) = create(&service, &service.key, MEMORY, None);
        assert_eq!(claimed["start"], "warm", "{claimed}");
        recovers(&service).await;

        // Control: without the defence, refused requests fill the pool, and other projects' kinds of
        // sandboxes are never pre-warmed.
        service.undefend("X-25");
        flood(&service);
        let kinds = pool(&service).len();
        assert_eq!(kinds, 64, "control");
        until(READY_WITHIN, "a sandbox that is ready for whoever was refused", async || {
            pool(&service).iter().any(|kind| kind["ready"].as_u64() > Some(0))
        })
        .await;
        assert_eq!(second_start(&service, MEMORY + 4096, false).await, "cold", "control");
        held("X-25", &format!("{KINDS} refused creates: no kind; control: {kinds}"));
    });
}
