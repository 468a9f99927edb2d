//! Control of a running exec: its standard input, its terminal, signals, and its cancellation.

use std::time::Duration;

use api::exec::SignalRequest;
use api::terminal::TerminalSize;
use bytes::Bytes;
use host::error::Error;
use hyper::Method;

use super::{ANSWER_WITHIN, Exec};
use crate::link::GuestRequest;

impl Exec {
    /// Sends bytes to standard input at an offset, and closes standard input if `last` is true. Waits while
    /// the process does not read.
    ///
    /// # Errors
    /// Returns an error if the process has closed its standard input or if the exec is unknown.
    pub async fn write_stdin(
        &self,
        offset: u64,
        bytes: Bytes,
        last: bool,
        within: Duration,
    ) -> Result<u64, Error> {
        let last = if last { "&last=1" } else { "" };
        let path = format!("/execs/{}/stdin?offset={offset}{last}", self.id);
        self.home.link.call(&GuestRequest { method: Method::PUT, path, body: bytes }, within).await
    }

    /// Changes the size of the exec's terminal.
    ///
    /// # Errors
    /// Returns an error if the exec has no terminal, the size is invalid, or the exec is unknown.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        size.check().map_err(Error::Request)?;
        let body = serde_json::to_vec(&size).map_err(|error| Error::Protocol(error.to_string()))?;
        let path = format!("/execs/{}/size", self.id);
        let request = GuestRequest { method: Method::PUT, path, body: body.into() };
        self.home.link.call(&request, ANSWER_WITHIN).await
    }

    /// Sends a signal to all processes of the exec, and returns the number of processes.
    ///
    /// # Errors
    /// Returns an error if the signal number is invalid or if the exec is unknown.
    pub async fn signal(&self, signal: i32) -> Result<u32, Error> {
        let body =
            serde_json::to_vec(&SignalRequest { signal }).map_err(|e| Error::Protocol(e.to_string()))?;
        let path = format!("/execs/{}/signal", self.id);
        let request = GuestRequest { method: Method::POST, path, body: body.into() };
        self.home.link.call(&request, ANSWER_WITHIN).await
    }

    /// Cancels the exec. Its outcome will be `cancelled`, unless the exec has already ended.
    ///
    /// # Errors
    /// Returns an error if the exec is unknown or if the sandbox has ended.
    pub async fn cancel(&self) -> Result<(), Error> {
        let path = format!("/execs/{}", self.id);
        let ask = GuestRequest { method: Method::DELETE, path, body: Bytes::new() };
        self.home.link.call(&ask, ANSWER_WITHIN).await
    }

    /// Reports to the guest that all output below these offsets has been consumed, so that an exec in mode
    /// `block` can continue.
    ///
    /// # Errors
    /// Returns an error if the exec is unknown or if the sandbox has ended.
    pub async fn take(&self, stdout: u64, stderr: u64) -> Result<(), Error> {
        let path = format!("/execs/{}/read?stdout={stdout}&stderr={stderr}", self.id);
        let request = GuestRequest { method: Method::PUT, path, body: Bytes::new() };
        self.home.link.call(&request, ANSWER_WITHIN).await
    }
}
