//! A writer to an exec's standard input. Every byte has an offset, so a write whose response was lost can be
//! repeated without duplicating input.

use std::time::{Duration, Instant};

use api::server::Received;
use api::{ErrorCode, ExecId, SandboxId, limits};
use bytes::Bytes;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::link::ApiRequest;

/// Timeout for a write. A write blocks while the process does not read, for at most the maximum lifetime of a
/// process.
const WRITE_WITHIN: Duration = Duration::from_millis(limits::DEADLINE_MS_MAX);

/// Pause before a chunk is sent again because the process did not read it. Prevents a busy loop if the server
/// rejects the chunk immediately.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum size of a chunk. This is the server's limit.
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

    /// Starts writing at this offset instead of at the first byte.
    pub fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// Sends bytes. Waits while the process does not read.
    ///
    /// # Errors
    /// Returns an error if the process has closed its input (`conflict`) or if the exec does not exist.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES_MAX));
            self.send(piece, false).await?;
        }
        Ok(())
    }

    /// Closes standard input: the process reads end of file after the last byte.
    ///
    /// # Errors
    /// Returns an error if the exec does not exist.
    pub async fn close(mut self) -> Result<(), Error> {
        self.send(Bytes::new(), true).await
    }

    async fn send(&mut self, bytes: Bytes, last: bool) -> Result<(), Error> {
        let (Self { client, sandbox, exec, offset }, length) = (&*self, bytes.len() as u64);
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/stdin?offset={offset}&last={last}");
        let ask = ApiRequest::new(Method::PUT, path).raw(bytes).within(WRITE_WITHIN);
        let began = Instant::now();
        let Received { received } = loop {
            match client.link.call(&ask).await {
                // The server limits both how long it holds a request and how many requests it holds. The
                // process may take longer to read, so the chunk is sent again.
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
