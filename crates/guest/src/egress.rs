//! Egress: each connection to the proxy's port in the sandbox is forwarded to the node, which decides about
//! it. The guest does not parse it.
//!
//! The node requests the next connection, and the response is that connection. While no request is pending,
//! for example during a restart of the server, programs wait in the kernel's queue.

use std::net::Ipv4Addr;

use api::policy::PROXY_PORT;
use api::{Error, ErrorCode, Layer, Ran, Retry};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use crate::ports::{self, PortOutput};

/// Binds the port before any user code can.
pub async fn listen() -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).await.ok()
}

/// Waits for the next connection, and forwards bytes in both directions from then on.
///
/// # Errors
/// If the guest could not bind the port.
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
