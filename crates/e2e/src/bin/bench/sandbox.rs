//! Sandboxes of a lab under names that no other lab gives.

use std::sync::Arc;

use api::limits::Limits;
use e2e::Lab;
use node::Sandbox;

/// Starts a sandbox with the default limits. Labs of one process number theirs alike, so the name is a random one.
pub(crate) async fn start(lab: &Lab) -> Sandbox {
    let id = node::machine::fresh_id().unwrap();
    Sandbox::start(Arc::clone(&lab.runtime), id, &lab.spec(Limits::default()))
        .await
        .unwrap_or_else(|error| panic!("{}: {}", lab.runtime.name(), node::error::chain(&error)))
}
