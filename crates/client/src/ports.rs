//! Ports of a sandbox: how one is reached, opening it to everybody, and connections to it.

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
use crate::link::Ask;

/// A connection to a port inside a sandbox. It is cut when the server is gone; a new one can be made as soon as it is back.
pub struct Tunnel {
    bytes: reqwest::Upgraded,
}

impl Client {
    /// How a port of a sandbox is reached.
    ///
    /// # Errors
    /// The sandbox does not run, or the key's role does not allow it.
    pub async fn port(&self, sandbox: &SandboxId, port: u16) -> Result<Port, Error> {
        self.link.call(&Ask::get(format!("/v1/sandboxes/{sandbox}/ports/{port}"))).await
    }

    /// Opens a port to everybody who knows its address, or closes it again. Can be repeated.
    ///
    /// # Errors
    /// The sandbox does not run, or the key's role does not allow it.
    pub async fn put_port(&self, sandbox: &SandboxId, port: u16, asked: &PutPort) -> Result<Port, Error> {
        let path = format!("/v1/sandboxes/{sandbox}/ports/{port}");
        self.link.call(&Ask::new(Method::PUT, path).json(asked)?).await
    }

    /// Connects to a port inside a sandbox. A server that is being restarted is waited for.
    ///
    /// # Errors
    /// Nothing listens there, the sandbox does not run, or the server does not answer.
    pub async fn tunnel(&self, sandbox: &SandboxId, port: u16) -> Result<Tunnel, Error> {
        let ask = Ask::get(format!("/v1/sandboxes/{sandbox}/ports/{port}/tunnel"))
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
