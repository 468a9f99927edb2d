//! Requests for ports of a sandbox: their addresses, public access, and connections to them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use api::SandboxId;
use api::ports::{Port, PutPort, TUNNEL_PROTOCOL};
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::Client;
use crate::error::Error;
use crate::link::ApiRequest;

/// A connection to a port inside a sandbox. The connection breaks when the server stops; after a restart of
/// the server, a new one can be opened.
pub struct Tunnel {
    bytes: reqwest::Upgraded,
}

impl Client {
    /// Returns the address of a sandbox's port.
    ///
    /// # Errors
    /// Returns an error if the sandbox is not running or if the key's role does not allow this.
    pub async fn port(&self, sandbox: &SandboxId, port: u16) -> Result<Port, Error> {
        self.link.call(&ApiRequest::get(format!("/v1/sandboxes/{sandbox}/ports/{port}"))).await
    }

    /// Makes a port accessible to everyone who knows its address, or makes it private again. This is
    /// idempotent.
    ///
    /// # Errors
    /// Returns an error if the sandbox is not running or if the key's role does not allow this.
    pub async fn put_port(&self, sandbox: &SandboxId, port: u16, asked: &PutPort) -> Result<Port, Error> {
        let path = format!("/v1/sandboxes/{sandbox}/ports/{port}");
        self.link.call(&ApiRequest::new(Method::PUT, path).json(asked)?).await
    }

    /// Connects to a port inside a sandbox. If the server is restarting, waits until it is available.
    ///
    /// # Errors
    /// Returns an error if nothing listens, the sandbox is not running, or the server does not respond.
    pub async fn tunnel(&self, sandbox: &SandboxId, port: u16) -> Result<Tunnel, Error> {
        let ask = ApiRequest::get(format!("/v1/sandboxes/{sandbox}/ports/{port}/tunnel"))
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, TUNNEL_PROTOCOL);
        let mut attempts = self.link.attempts();
        loop {
            let failure = match self.link.send(&ask).await {
                Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    match response.upgrade().await {
                        Ok(bytes) => return Ok(Tunnel { bytes }),
                        Err(error) => self.link.cut(error.to_string()),
                    }
                }
                Ok(response) => self.link.refusal(&ask, response).await,
                Err(failure) => failure,
            };
            self.link.pause(&mut attempts, failure).await?;
        }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(context, into)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}
