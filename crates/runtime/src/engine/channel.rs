//! The channel to the guest, carried by the streams of `guest connect`, which the engine runs as an exec
//! inside the container.
//!
//! The rest of the node expects a socket, so it gets one end of a socket pair. A task copies data between the
//! other end and the engine.

use std::time::Duration;

use api::SandboxId;
use api::posture::Posture;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::{Engine, container};
use crate::Error;
use crate::handshake::greet;

/// Buffer size for data from the node. Engines forward 32 KiB at a time.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum size of the guest's report of its privileges and isolation (its posture).
const SAID_BYTES_MAX: usize = 1 << 20;
/// Timeout for a posture report. The guest's program prints one line and exits.
const SAYS_WITHIN: Duration = Duration::from_secs(20);

type ExecOutput = std::pin::Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
type ExecInput = std::pin::Pin<Box<dyn AsyncWrite + Send>>;

impl Engine {
    /// Makes process 1 connect to the node, and performs the handshake.
    pub(super) async fn dial(&self, id: &SandboxId, deadline: Instant) -> Result<UnixStream, Error> {
        let (said, heard) = self.run_inside(id, &["connect"]).await?;
        let (ours, theirs) = UnixStream::pair()
            .map_err(|source| Error::System { act: format!("create a channel to sandbox {id}"), source })?;
        tokio::spawn(pass_on(theirs, said, heard));
        tokio::time::timeout_at(deadline, greet(ours))
            .await
            .map_err(|_| Error::Deadline { what: "the handshake with the guest", after: Duration::ZERO })?
            .map_err(|why| Error::Impostor { id: id.clone(), why })
    }

    /// Returns the posture that process 1 reports about itself.
    pub(super) async fn ask_first(&self, id: &SandboxId) -> Result<Posture, Error> {
        let (mut said, _heard) = self.run_inside(id, &["posture", "first"]).await?;
        let mut text = Vec::new();
        let read = async {
            while let Some(Ok(piece)) = said.next().await {
                if let LogOutput::StdOut { message } = piece {
                    text.extend_from_slice(&message);
                }
                if text.len() > SAID_BYTES_MAX {
                    break;
                }
            }
        };
        let late = |_| Error::Deadline { what: "reading the posture of process 1", after: SAYS_WITHIN };
        tokio::time::timeout(SAYS_WITHIN, read).await.map_err(late)?;
        serde_json::from_slice(&text).map_err(|error| Error::Impostor {
            id: id.clone(),
            why: format!("process 1 returned an invalid posture: {error}"),
        })
    }

    /// Runs the guest's program as root in the sandbox, and returns the program's output and input streams.
    async fn run_inside(&self, id: &SandboxId, words: &[&str]) -> Result<(ExecOutput, ExecInput), Error> {
        let docker = self.docker().await?;
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            tty: Some(false),
            cmd: Some(["/.bellglass/guest"].iter().chain(words).copied().collect()),
            user: Some("0:0"),
            working_dir: Some("/"),
            ..CreateExecOptions::default()
        };
        let made = docker.create_exec(&container::name(id), options).await;
        let made = made.map_err(|error| self.failed("run a command in a container", error))?;
        let started = docker.start_exec(&made.id, Some(StartExecOptions::default())).await;
        match started.map_err(|error| self.failed("run a command in a container", error))? {
            StartExecResults::Attached { output, input } => Ok((output, input)),
            StartExecResults::Detached => Err(Error::Ended(id.clone())),
        }
    }
}

/// Copies data in both directions until either side ends, and then closes both.
async fn pass_on(node: UnixStream, mut said: ExecOutput, mut heard: ExecInput) {
    let (mut from_node, mut to_node) = node.into_split();
    let outwards = async {
        while let Some(Ok(piece)) = said.next().await {
            // The guest's standard error is discarded.
            if let LogOutput::StdOut { message } = piece
                && to_node.write_all(&message).await.is_err()
            {
                return;
            }
        }
    };
    let inwards = async {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from_node.read(&mut piece).await {
            let Some(bytes) = piece.get(..count) else { return };
            if heard.write_all(bytes).await.is_err() || heard.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = outwards => {}
        () = inwards => {}
    }
}
