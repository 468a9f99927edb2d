//! One answer about files: read part by part, and believed only where it answers what was asked.

use std::sync::Arc;
use std::time::Duration;

use api::files::{
    FileAnswer, FileAsk, FileEvent, FileInfo, FilePath, Hash, Hashing, PATH_BYTES_MAX, READ_BYTES_MAX,
    are_digits,
};
use api::{ErrorCode, Layer, Ran, Retry, limits};
use host::error::Error;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::parts::{Found, Parts};
use crate::link::Link;

/// A head or an end that is no page of a listing: a path or two and an error, escaped at worst.
const WORDS_BYTES_MAX: usize = 256 << 10;
/// What is passed on of a message.
const MESSAGE_BYTES_MAX: usize = 2048;
/// A path as text: each byte that is no UTF-8 becomes three.
const SHOWN_BYTES_MAX: usize = 3 * PATH_BYTES_MAX;
/// A version is a few numbers.
const VERSION_BYTES_MAX: usize = 128;
/// After its last word a process ends at once; whether it does is not waited for longer.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// When a connection breaks because process 1 died, that is known as soon.
const DEATH_WITHIN: Duration = Duration::from_secs(1);

/// An answer that is being read.
pub struct Answer {
    body: Incoming,
    parts: Parts,
    link: Arc<Link>,
    only_looks: bool,
}

/// Why there is nothing more.
#[derive(Debug)]
pub enum Break {
    /// The connection broke.
    Cut,
    /// The answer ended before it was whole.
    Short,
    /// Nothing came for so long.
    Silent(Duration),
    /// It is not what the protocol allows.
    Wrong(Error),
}

impl Answer {
    pub fn new(body: Incoming, ask: &FileAsk, link: Arc<Link>) -> Self {
        let most = match ask {
            FileAsk::List { .. } => limits::BODY_BYTES_MAX,
            FileAsk::Stat { .. }
            | FileAsk::Read { .. }
            | FileAsk::Write { .. }
            | FileAsk::Hash { .. }
            | FileAsk::Make { .. }
            | FileAsk::Move { .. }
            | FileAsk::Copy { .. }
            | FileAsk::Remove { .. }
            | FileAsk::Edit { .. }
            | FileAsk::Watch { .. }
            | FileAsk::Pack { .. }
            | FileAsk::Unpack { .. } => WORDS_BYTES_MAX,
        };
        Self { body, parts: Parts::new(most), link, only_looks: ask.only_looks() }
    }

    /// The head. Can be dropped and asked again.
    pub async fn head(&mut self, within: Duration) -> Result<FileAnswer, Break> {
        // All of it in time: one byte now and then is no answer.
        let next = tokio::time::timeout(within, self.next(within));
        match next.await.unwrap_or(Err(Break::Silent(within)))? {
            Found::Head(head) => Ok(head),
            Found::Data(_) | Found::End(_) => Err(Break::Wrong(misplaced())),
        }
    }

    /// The next thing, if something comes in time. Can be dropped and asked again: nothing is lost.
    pub async fn next(&mut self, silence: Duration) -> Result<Found<FileAnswer>, Break> {
        loop {
            if let Some(found) = self.parts.next().map_err(Break::Wrong)? {
                return Ok(found);
            }
            match tokio::time::timeout(silence, self.body.frame()).await {
                Err(_) => return Err(Break::Silent(silence)),
                Ok(None) => return Err(Break::Short),
                Ok(Some(Err(_))) => return Err(Break::Cut),
                Ok(Some(Ok(frame))) => self.parts.take(frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// Whether a part has begun and is not whole.
    pub fn is_open(&self) -> bool {
        self.parts.is_open()
    }

    /// Sees the process off that has said its last word.
    pub async fn close(mut self) -> Result<(), Error> {
        self.parts.close();
        match self.next(CLOSE_WITHIN).await {
            Err(Break::Wrong(error)) => Err(error),
            // A process that stays is ended when this answer is dropped.
            Ok(_) | Err(Break::Cut | Break::Short | Break::Silent(_)) => Ok(()),
        }
    }

    /// What to say of an answer that is not whole.
    pub async fn explain(&self, broken: Break) -> Error {
        explain(&self.link, self.only_looks, broken).await
    }
}

/// What to say where there is no answer, or none that is whole.
pub async fn explain(link: &Link, only_looks: bool, broken: Break) -> Error {
    let message = match broken {
        Break::Wrong(error) => return error,
        Break::Silent(after) => return Error::Deadline { what: "the file operation", after },
        Break::Short => "the file-serving process inside the sandbox was killed (out of memory, or a signal)",
        Break::Cut => match tokio::time::timeout(DEATH_WITHIN, link.ended()).await {
            Ok(cause) => return Error::Lost(cause),
            Err(_) => "the connection to the sandbox was lost during the file operation",
        },
    };
    let (ran, retry, fix) = if only_looks {
        (Ran::No, Retry::Safe, "Retry. If the error persists, free memory in the sandbox.")
    } else {
        let fix = "Check the file (`stat`) to see whether the operation took effect, then retry if needed.";
        (Ran::Unknown, Retry::Unknown, fix)
    };
    let (code, layer) = (ErrorCode::Conflict, Layer::Sandbox);
    Error::Request(api::Error { code, message: message.into(), layer, ran, retry, fix: fix.into() })
}

/// The answer, if it is one to this ask.
///
/// # Errors
/// It was refused, or is an answer to something else.
pub fn fitting(ask: &FileAsk, answer: FileAnswer) -> Result<FileAnswer, Error> {
    let fits = match (ask, &answer) {
        (_, FileAnswer::Refused { error }) => return Err(refused(error.clone())),
        (FileAsk::Stat { .. }, FileAnswer::Info { info }) => sound(info),
        (FileAsk::List { limit, .. }, FileAnswer::Page { items, more }) => {
            items.len() <= *limit as usize && items.iter().all(sound) && !(*more && items.is_empty())
        }
        (FileAsk::Read { from: first, to: end, .. }, FileAnswer::Content { info, from, to }) => {
            // What is beyond the end of the file is not there.
            let clipped = end.is_none_or(|end| *to <= end) && *from == *first.min(to);
            sound(info) && clipped && from <= to && to - from <= READ_BYTES_MAX
        }
        (FileAsk::Write { digest, .. } | FileAsk::Hash { digest, .. }, FileAnswer::Whole { info, hash }) => {
            checked_hash(hash, *digest)?;
            sound(info)
        }
        (
            FileAsk::Make { .. } | FileAsk::Move { .. } | FileAsk::Copy { .. } | FileAsk::Remove { .. },
            FileAnswer::Done { .. },
        )
        | (FileAsk::Edit { .. }, FileAnswer::Edited { .. })
        | (FileAsk::Watch { .. } | FileAsk::Pack { .. }, FileAnswer::Streams)
        | (FileAsk::Unpack { .. }, FileAnswer::Unpacked { .. }) => true,
        _ => false,
    };
    if fits { Ok(answer) } else { Err(misplaced()) }
}

/// An event, if it is one.
///
/// # Errors
/// It is none.
pub fn event(bytes: &[u8]) -> Result<FileEvent, Error> {
    let wrong = |why: String| Error::Protocol(format!("malformed file event: {why}"));
    let event: FileEvent = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    if let Some(encoded) = &event.path_encoded {
        FilePath::decode(encoded).map_err(|error| wrong(error.message))?;
    }
    Ok(event)
}

/// What the sandbox refused. What it says is passed on, cut to a bound; what is not its to say is not believed.
pub fn refused(mut error: api::Error) -> Error {
    match error.code {
        ErrorCode::InvalidRequest
        | ErrorCode::LimitExceeded
        | ErrorCode::NotFound
        | ErrorCode::Conflict
        | ErrorCode::NotRegular
        | ErrorCode::Unsupported
        | ErrorCode::Capacity
        | ErrorCode::Forbidden
        | ErrorCode::TooLarge
        | ErrorCode::Deadline
        | ErrorCode::Platform => {}
        ErrorCode::SpawnFailed
        | ErrorCode::QuotaExceeded
        | ErrorCode::RateLimited
        | ErrorCode::Unauthorized
        | ErrorCode::TierUnavailable
        | ErrorCode::VersionUnsupported
        | ErrorCode::StoreUnavailable
        | ErrorCode::PostureMismatch
        | ErrorCode::SandboxLost
        | ErrorCode::Protocol => {
            return Error::Protocol(format!("error code not allowed for a sandbox: {}", error.code.name()));
        }
    }
    // Whose doing it was is either the sandbox's or that of its user, never ours.
    if error.layer == Layer::Platform {
        error.layer = Layer::Sandbox;
    }
    error.message = shortened(error.message);
    error.fix = shortened(error.fix);
    Error::Guest(error)
}

/// # Errors
/// It is no hash, or of another kind than was asked for.
pub fn checked_hash(hash: &Hash, wanted: Hashing) -> Result<(), Error> {
    let is_hash = hash.kind() == wanted && are_digits(hash.digits());
    if is_hash { Ok(()) } else { Err(Error::Protocol("malformed hash".into())) }
}

/// The error for a part that answers something else.
pub fn misplaced() -> Error {
    Error::Protocol("the response does not match the request".into())
}

/// Whether it can be what is at a path. Whoever keeps many of them counts on each being small.
fn sound(info: &FileInfo) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    let short = |text: &str| text.len() <= SHOWN_BYTES_MAX;
    info.exact().is_ok()
        && short(&info.path)
        && info.target.as_deref().is_none_or(short)
        && info.error.as_ref().is_none_or(|error| short(&error.message) && short(&error.fix))
        && info.version.len() <= VERSION_BYTES_MAX
        && info.version.bytes().all(plain)
}

fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
    }
    text
}
