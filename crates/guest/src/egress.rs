//! Egress: programs in the sandbox connect to the proxy's port, and the guest forwards each connection to the
//! node, which decides whether to allow it. The guest does not parse the forwarded bytes.
//!
//! The node requests the next connection, and the response carries that connection's bytes. While no request
//! is pending, for example during a restart of the server, new connections wait in the kernel's queue.

use std::net::Ipv4Addr;

use api::policy::PROXY_PORT;
use api::{Error, ErrorCode, Layer, Ran, Retry};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use crate::ports::{self, PortOutput};

/// Binds the proxy's port, before any user code can do so. Returns `None` if that fails.
pub async fn listen() -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).await.ok()
}

/// Waits for the next connection to the proxy's port, then forwards bytes between it and the node.
///
/// # Errors
/// The guest could not bind the port, or a connection cannot be accepted.
pub async fn next(listener: Option<&TcpListener>, heard: Incoming) -> Result<PortOutput, Error> {
    let failed = |code: ErrorCode, message: String| Error {
        code,
        message,
        layer: Layer::Sandbox,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "This sandbox has no network access. If you need network access, create another sandbox.".into(),
    };
    let listener = listener.ok_or_else(|| {
        failed(ErrorCode::Unsupported, format!("the guest could not listen on port {PROXY_PORT} at startup"))
    })?;
    let (stream, _) = listener
        .accept()
        .await
        .map_err(|error| failed(ErrorCode::Capacity, format!("cannot accept a connection: {error}")))?;
    Ok(ports::carry(stream, heard, None))
}
