//! A writer to one exec. Every byte has an offset, so a write that lost its answer is sent again and arrives once.

use std::time::{Duration, Instant};

use api::server::Received;
use api::{ErrorCode, ExecId, SandboxId, limits};
use bytes::Bytes;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::link::Ask;

/// A write waits while the process does not read, and no process outlives this.
const WRITE_WITHIN: Duration = Duration::from_millis(limits::DEADLINE_MS_MAX);

/// The pause before a piece is sent again that the process did not take, should a server give up on it at once.
const PAUSE: Duration = Duration::from_millis(100);
/// The most that the server takes at once.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// A writer to the standard input of one exec.
pub struct Stdin {
    client: Client,
    sandbox: SandboxId,
    exec: ExecId,
    offset: u64,
}

impl Stdin {
    pub(crate) fn new(client: Client, sandbox: SandboxId, exec: ExecId) -> Self {
        Self { client, sandbox, exec, offset: 0 }
    }

    /// Goes on at this offset instead of the first byte.
    pub fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// Sends bytes; waits while the process does not read.
    ///
    /// # Errors
    /// The process reads no more (`conflict`), or the exec is not known.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES_MAX));
            self.send(piece, false).await?;
        }
        Ok(())
    }

    /// Closes it: the process reads the end of file after the last byte.
    ///
    /// # Errors
    /// The exec is not known.
    pub async fn close(mut self) -> Result<(), Error> {
        self.send(Bytes::new(), true).await
    }

    async fn send(&mut self, bytes: Bytes, last: bool) -> Result<(), Error> {
        let (Self { client, sandbox, exec, offset }, length) = (&*self, bytes.len() as u64);
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/stdin?offset={offset}&last={last}");
        let ask = Ask::new(Method::PUT, path).raw(bytes).within(WRITE_WITHIN);
        let began = Instant::now();
        let Received { received } = loop {
            match client.link.call(&ask).await {
                // The server does not hold a request for as long as a process may choose not to read, nor more of them than it
                // has room for.
                Err(error) if error.code().is_some_and(is_wait) && began.elapsed() < WRITE_WITHIN => {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => break answer?,
            }
        };
        let expected = offset + length;
        if received < expected {
            let what = format!(
                "the server accepted only {received} of {expected} bytes of standard input, but reported no error"
            );
            return Err(client.link.protocol(what));
        }
        self.offset = expected;
        Ok(())
    }
}

fn is_wait(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Deadline | ErrorCode::RateLimited)
}
