//! Sends the same request for many sandboxes, with limited concurrency.

use std::future::Future;

use api::SandboxId;
use client::{Client, Error};

/// Maximum number of concurrent requests. It is high enough to hide network latency, but low enough not to
/// burden the server.
const AT_ONCE: usize = 16;

/// Sends a request for each sandbox. The results have the same order as the IDs.
pub async fn each<T, F>(
    client: &Client,
    ids: &[SandboxId],
    ask: impl Fn(Client, SandboxId) -> F,
) -> Vec<Result<T, Error>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let mut answers = Vec::with_capacity(ids.len());
    for some in ids.chunks(AT_ONCE) {
        let asked: Vec<_> = some.iter().map(|id| tokio::spawn(ask(client.clone(), id.clone()))).collect();
        for task in asked {
            answers.push(task.await.unwrap_or_else(|error| {
                Err(Error::Configuration { what: "a request".into(), why: error.to_string() })
            }));
        }
    }
    answers
}
