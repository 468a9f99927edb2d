//! File requests. Each request is served by a separate process: this program, run as the same user as user
//! code.
//!
//! ```text
//! node ◀──parts──▶ process 1 ◀──pipes──▶ `guest files`: uid 1000 or root, isolated and limited in memory like user code
//! ```
//!
//! The kernel therefore checks the permissions of a request, as it does for code. If a request blocks, is
//! killed or runs out of memory, no other request is affected, and process 1 never waits for a disk. Process
//! 1 does not parse the parts either. The serving process is no more trusted than any other process of its
//! user, so the node validates its messages.
//!
//! | module | holds |
//! |---|---|
//! | [`worker`] | the serving process: reads one request, answers it, exits |
//! | [`assistant`] | starting this process, and limiting the number of them |
//! | [`parts`] | reading and writing the parts of `api::files` |
//! | [`place`] | the location of a file: a directory and a name in it |
//! | [`content`] | reading, writing, hashing and editing one file |
//! | [`digest`] | the requested hash of a file |
//! | [`list`] | listings, page by page |
//! | [`tree`] | creating, moving, copying and removing files and directories |
//! | [`watch`] | reporting changes to files |
//! | [`archive`] | packing and unpacking archives |
//! | [`failure`] | the errors of all these modules |

mod archive;
mod assistant;
mod content;
mod digest;
mod failure;
mod list;
mod parts;
mod place;
mod tree;
mod watch;
pub mod worker;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use api::exec::{ExecSpec, Stream};
use api::{Error, ErrorCode, Layer, Ran, Retry};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use rustix::buffer::spare_capacity;
use tokio::task::JoinHandle;

use crate::launch::{Ends, verdict};
use crate::sweep::{self, Whom};
use crate::watched::Watched;

pub use assistant::Assistants;

use assistant::Assistant;

/// Command line of the process that serves a request.
const WORKER: [&str; 2] = ["/.bellglass/guest", "files"];
/// Grace period for a process to exit after its request was dropped. After that, the process is killed.
const GRACE: Duration = Duration::from_secs(2);
/// Size of one read of an answer: the payload of one frame of the connection.
const CHUNK_BYTES: usize = 256 * 1024;

/// An answer in progress. Dropping it ends the process that produces it.
pub struct FileResponseBody {
    pipe: Rc<Watched>,
    asking: JoinHandle<()>,
    assistant: Assistant,
    ended: bool,
}

/// Starts a process for the request in `body`, as root if `uid` is 0. The process's output is the answer.
pub async fn serve(
    body: Incoming,
    uid: Option<u64>,
    assistants: &Assistants,
) -> Result<FileResponseBody, Error> {
    let uid = uid.map(|uid| u32::try_from(uid).unwrap_or(u32::MAX));
    let argv = WORKER.map(str::to_owned).to_vec();
    // In test builds, the process has the same defences off as this one.
    let env = api::defence::off().map(|attacks| (api::defence::VARIABLE.to_owned(), attacks));
    let spec = ExecSpec { argv, uid, stdin: true, env: env.into_iter().collect(), ..ExecSpec::default() };
    spec.check()?;
    let (launched, assistant) = assistants.start(&spec).await?;
    verdict(&spec, assistant.group(), launched.verdict).await?;
    let Ends { streams, stdin, .. } = launched.ends;
    let stdout = streams.into_iter().find(|(stream, _)| *stream == Stream::Stdout);
    let (Some(stdin), Some((_, pipe))) = (stdin, stdout) else {
        return Err(no_pipe(io::ErrorKind::NotFound.into()));
    };
    let asking = tokio::task::spawn_local(send(body, stdin));
    Ok(FileResponseBody { pipe, asking, assistant, ended: false })
}

/// Forwards the request to the process. The pipe is closed both when the request ends and when it is
/// interrupted. The process recognizes an interruption by the missing end marker.
async fn send(mut body: Incoming, pipe: Rc<Watched>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else { continue };
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            let Ok(mut ready) = pipe.writable().await else { return };
            match ready.try_io(|pipe| Ok(rustix::io::write(pipe.get_ref(), bytes)?)) {
                Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }
}

impl hyper::body::Body for FileResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Reads the next bytes of the answer. If the answer is interrupted, its last part is missing, which
    /// shows the node that the answer is incomplete.
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        while let Ok(mut guard) = ready!(this.pipe.poll_read_ready(context)) {
            match guard.try_io(|pipe| read(pipe.get_ref())) {
                Ok(Ok(bytes)) if bytes.is_empty() => break,
                Ok(Ok(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => break,
                Err(_would_block) => {}
            }
        }
        this.ended = true;
        Poll::Ready(None)
    }
}

impl Drop for FileResponseBody {
    fn drop(&mut self) {
        self.asking.abort();
        if !self.ended {
            let group = self.assistant.group();
            // When its pipes are closed, the process ends between two writes. An immediate kill could
            // interrupt a write halfway.
            tokio::task::spawn_local(async move {
                tokio::time::sleep(GRACE).await;
                sweep::kill(Whom::Group(group)).await;
            });
        }
    }
}

fn read(pipe: &OwnedFd) -> io::Result<Bytes> {
    let mut bytes = Vec::with_capacity(CHUNK_BYTES);
    rustix::io::read(pipe, spare_capacity(&mut bytes))?;
    Ok(Bytes::from(bytes))
}

fn no_pipe(error: io::Error) -> Error {
    Error {
        code: ErrorCode::Platform,
        message: format!("cannot communicate with the file-serving process: {error}"),
        layer: Layer::Sandbox,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Retry. If the error persists, stop the sandbox and create a new one.".into(),
    }
}
