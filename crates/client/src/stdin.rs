//! A writer to one exec. Every byte has an offset, so a write that lost its answer is sent again and arrives once.

use std::time::Duration;

use api::{ExecId, SandboxId, limits};
use bytes::Bytes;
use reqwest::Method;

use crate::client::Client;
use crate::error::Error;
use crate::link::Ask;

/// A write waits while the process does not read, and no process outlives this.
const WRITE_WITHIN: Duration = Duration::from_millis(limits::DEADLINE_MS_MAX);

/// A writer to the standard input of one exec.
pub struct Stdin {
    client: Client,
    sandbox: SandboxId,
    exec: ExecId,
    offset: u64,
}

/// What the server says of a write.
#[derive(serde::Deserialize)]
struct Received {
    received: u64,
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
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.send(bytes, false).await
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
        let Received { received } = client.link.call(&ask).await?;
        let expected = offset + length;
        if received < expected {
            let what =
                format!("standard input took {received} of {expected} bytes and said nothing of the rest");
            return Err(client.link.protocol(what));
        }
        self.offset = expected;
        Ok(())
    }
}
