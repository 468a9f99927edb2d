//! Tests the connection limits of a sandbox and of a project with a real broker.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use api::policy::Policy;
use egress::gate::upstream::Upstreams;
use egress::{Broker, Gate, Party};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::watch;

/// The connection limits of one sandbox and of a project.
const SANDBOX_MAX: usize = 512;
const PROJECT_MAX: usize = 4096;
/// Timeout for the released slot of a closed connection to become available again.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

fn broker() -> Arc<Broker> {
    let directory = std::env::temp_dir().join(format!("bellglass-places-{}", std::process::id()));
    Arc::new(Broker::new(Gate::new(&directory, Upstreams::default(), 0)))
}

fn party(project: &str) -> Arc<Party> {
    let (_, policy) = watch::channel(Policy::default());
    Arc::new(Party::new(policy, Box::new(|_| {})).of(project))
}

/// Opens connections. The broker accepts connections as long as a slot is free, and waits for the first byte
/// of each.
async fn connect(broker: &Arc<Broker>, party: &Arc<Party>, count: usize) -> Vec<DuplexStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let (near, far) = tokio::io::duplex(512);
        tokio::spawn(Arc::clone(broker).serve(far, Arc::clone(party)));
        streams.push(near);
    }
    tokio::task::yield_now().await;
    streams
}

/// Returns true if the connection was rejected. The broker sends nothing on a connection that it accepted.
async fn is_turned_away(stream: &mut DuplexStream) -> bool {
    let mut said = [0; 16];
    match tokio::time::timeout(Duration::from_millis(200), stream.read(&mut said)).await {
        Ok(read) => read.unwrap() == 0 || said.starts_with(b"HTTP/1.1 429"),
        Err(_) => false,
    }
}

#[tokio::test]
async fn the_sandboxes_of_a_project_share_a_bound_and_another_project_has_its_own() {
    let broker = broker();
    let full = PROJECT_MAX / SANDBOX_MAX;
    let mut held = Vec::new();
    for _ in 0..full {
        held.extend(connect(&broker, &party("pa"), SANDBOX_MAX).await);
    }
    let one_more = party("pa");
    let mut late = connect(&broker, &one_more, 1).await;
    assert!(is_turned_away(&mut late[0]).await, "{PROJECT_MAX} connections are all a project has");
    let mut other = connect(&broker, &party("pb"), 1).await;
    assert!(!is_turned_away(&mut other[0]).await, "another project has places");
    drop(held.pop());
    let freed = async {
        loop {
            let mut again = connect(&broker, &one_more, 1).await;
            if !is_turned_away(&mut again[0]).await {
                return;
            }
        }
    };
    tokio::time::timeout(TOLD_WITHIN, freed).await.expect("a place that was given back is free");
}
