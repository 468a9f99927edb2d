//! Passing on the output of an exec on a server, and our input and signals to it.

use std::time::{Duration, Instant};

use api::exec::ExecEnd;
use api::{Error, ExecId, SandboxId};
use client::{Client, Event, Exec};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::connect::explain;
use crate::output::Output;
use crate::show;

/// What is read from our own standard input at once.
const STDIN_CHUNK_BYTES: usize = 64 * 1024;
/// How long our interrupt may take to reach the server before we leave without.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// Interrupts closer together are one: a terminal and whoever started us may both pass on the same.
const SAME_INTERRUPT: Duration = Duration::from_millis(500);

/// What an interrupt of ours means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// The exec is cancelled; a second one leaves without waiting for its end.
    Cancels,
    /// We leave; the exec goes on.
    Leaves,
}

/// How we came to stop following.
pub enum Followed {
    /// The exec has ended.
    Ended(ExecEnd),
    /// What there was so far is told; the exec goes on.
    CaughtUp,
    /// We left; the exec may go on.
    Left,
}

/// One exec and where it is.
pub struct Followee<'a> {
    /// The server.
    pub client: &'a Client,
    /// The sandbox.
    pub sandbox: &'a SandboxId,
    /// Whether our standard input goes to it.
    pub stdin: bool,
    /// What an interrupt means.
    pub interrupt: Interrupt,
}

impl Followee<'_> {
    /// Passes output on until the end, or until an interrupt says to leave.
    pub async fn follow(&self, mut exec: Exec, output: &mut Output) -> Result<Followed, Error> {
        let (mut interrupt, mut terminate) =
            (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
        let id = exec.id().clone();
        let feeding = async {
            if self.stdin {
                feed(self.client, self.sandbox, &id).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(feeding);
        let mut interrupted: Option<Instant> = None;
        loop {
            let event = tokio::select! {
                event = exec.next() => Some(event.map_err(|error| explain(&error))?),
                () = &mut feeding => continue,
                _ = interrupt.recv() => None,
                _ = terminate.recv() => None,
            };
            match event {
                Some(Some(Event::Data { stream, bytes, .. })) => output.take(stream, &bytes)?,
                Some(Some(Event::Gap { stream, from, to })) => output.miss(stream, to - from),
                Some(Some(Event::Result { line, .. })) => output.result(line)?,
                Some(Some(Event::End(end))) => return Ok(Followed::Ended(end)),
                Some(None) => return Ok(Followed::CaughtUp),
                None if self.interrupt == Interrupt::Leaves => return Ok(Followed::Left),
                None if interrupted.is_some_and(|first| first.elapsed() > SAME_INTERRUPT) => {
                    return Ok(Followed::Left);
                }
                None if interrupted.is_some() => {}
                None => {
                    interrupted = Some(Instant::now());
                    let cancelling = self.client.cancel(self.sandbox, &id);
                    note_failure(tokio::time::timeout(CANCEL_WITHIN, cancelling).await);
                }
            }
        }
    }
}

fn note_failure(cancelled: Result<Result<(), client::Error>, tokio::time::error::Elapsed>) {
    let why = match cancelled {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the server does not respond".into(),
    };
    show::note(&format!("cannot cancel the command: {why}; interrupt again to detach"));
}

/// Sends our standard input to the exec until it ends or the exec does not want more.
async fn feed(client: &Client, sandbox: &SandboxId, exec: &ExecId) {
    let (mut ours, mut theirs) = (tokio::io::stdin(), client.stdin(sandbox, exec));
    let mut buffer = vec![0; STDIN_CHUNK_BYTES];
    loop {
        let count = ours.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            // A command that has ended needs no end of its input.
            let _ = theirs.close().await;
            return;
        }
        let bytes = bytes::Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        if theirs.write(bytes).await.is_err() {
            return;
        }
    }
}

/// Watches for a signal from now on.
pub fn watch(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|error| crate::platform(format!("cannot install a signal handler: {error}")))
}
