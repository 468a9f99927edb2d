//! The way out. What connects to the proxy's port inside is handed to the node, which decides; nothing is understood here.
//!
//! The node asks for the next connection, and the answer to that is the connection: while nobody asks, programs wait in the kernel's
//! queue, also while a server is started anew.

use std::net::Ipv4Addr;

use api::policy::PROXY_PORT;
use api::{Error, ErrorCode, Layer, Ran, Retry};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use crate::ports::{self, Said};

/// Takes the port before any user code can.
pub async fn listen() -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).await.ok()
}

/// Waits for the next connection, and passes on both ways from then on.
///
/// # Errors
/// The port is not ours.
pub async fn next(listener: Option<&TcpListener>, heard: Incoming) -> Result<Said, Error> {
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
