//! The response to a file request. It is read part by part, and accepted only if it matches the request.

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

use super::parts::{DecodedPart, Parts};
use crate::link::GuestLink;

/// Maximum size in bytes of the head or the end of a response, except a page of a listing. Each contains at
/// most a few paths and an error, with worst-case escaping.
const WORDS_BYTES_MAX: usize = 256 << 10;
/// Maximum length in bytes of an error message that is passed on.
const MESSAGE_BYTES_MAX: usize = 2048;
/// Maximum length in bytes of a path as text. Each byte of a path that is not valid UTF-8 becomes three bytes
/// of text.
const SHOWN_BYTES_MAX: usize = 3 * PATH_BYTES_MAX;
/// Maximum length in bytes of a file's version, which consists of a few numbers.
const VERSION_BYTES_MAX: usize = 128;
/// Timeout for the process in the sandbox to exit after its last message. It normally exits at once.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Timeout for finding out whether a connection broke because process 1 died.
const DEATH_WITHIN: Duration = Duration::from_secs(1);

/// A response that is being read.
pub struct FileResponse {
    body: Incoming,
    parts: Parts,
    link: Arc<GuestLink>,
    only_looks: bool,
}

/// The reason why a response is incomplete.
#[derive(Debug)]
pub enum Break {
    /// The connection broke.
    Cut,
    /// The response ended early.
    Short,
    /// Nothing arrived for this duration.
    Silent(Duration),
    /// The response violates the protocol.
    Wrong(Error),
}

impl FileResponse {
    pub fn new(body: Incoming, ask: &FileAsk, link: Arc<GuestLink>) -> Self {
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

    /// Returns the head of the response. Cancel-safe.
    pub async fn head(&mut self, within: Duration) -> Result<FileAnswer, Break> {
        // The timeout is for the whole head: a slow trickle of bytes must not extend it.
        let next = tokio::time::timeout(within, self.next(within));
        match next.await.unwrap_or(Err(Break::Silent(within)))? {
            DecodedPart::Head(head) => Ok(head),
            DecodedPart::Data(_) | DecodedPart::End(_) => Err(Break::Wrong(misplaced())),
        }
    }

    /// Returns the next part. Fails if nothing arrives for the duration `silence`. Cancel-safe: a dropped
    /// future loses no data.
    pub async fn next(&mut self, silence: Duration) -> Result<DecodedPart<FileAnswer>, Break> {
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

    /// Returns true if a part has not been received completely.
    pub fn is_open(&self) -> bool {
        self.parts.is_open()
    }

    /// Waits briefly for the response to end, and rejects any further data.
    pub async fn close(mut self) -> Result<(), Error> {
        self.parts.close();
        match self.next(CLOSE_WITHIN).await {
            Err(Break::Wrong(error)) => Err(error),
            // If the process does not exit, it is killed when this response is dropped.
            Ok(_) | Err(Break::Cut | Break::Short | Break::Silent(_)) => Ok(()),
        }
    }

    /// Returns the error for an incomplete response.
    pub async fn explain(&self, broken: Break) -> Error {
        explain(&self.link, self.only_looks, broken).await
    }
}

/// Returns the error for a missing or incomplete response.
pub async fn explain(link: &GuestLink, only_looks: bool, broken: Break) -> Error {
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

/// Returns the response if it matches the request.
///
/// # Errors
/// Returns an error if the sandbox refused the request or if the response belongs to a different request.
pub fn fitting(ask: &FileAsk, answer: FileAnswer) -> Result<FileAnswer, Error> {
    let fits = match (ask, &answer) {
        (_, FileAnswer::Refused { error }) => return Err(refused(error.clone())),
        (FileAsk::Stat { .. }, FileAnswer::Info { info }) => sound(info),
        (FileAsk::List { limit, .. }, FileAnswer::Page { items, more }) => {
            items.len() <= *limit as usize && items.iter().all(sound) && !(*more && items.is_empty())
        }
        (FileAsk::Read { from: first, to: end, .. }, FileAnswer::Content { info, from, to }) => {
            // A range beyond the end of the file is clipped.
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

/// Parses a file event.
///
/// # Errors
/// Returns an error if the event is malformed.
pub fn event(bytes: &[u8]) -> Result<FileEvent, Error> {
    let wrong = |why: String| Error::Protocol(format!("malformed file event: {why}"));
    let event: FileEvent = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    if let Some(encoded) = &event.path_encoded {
        FilePath::decode(encoded).map_err(|error| wrong(error.message))?;
    }
    Ok(event)
}

/// Returns the error for a refusal by the sandbox, with a truncated message. An error code that a sandbox
/// must not report becomes a protocol error.
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
    // Errors that a sandbox reports are caused by the sandbox or its user, never by the platform.
    if error.layer == Layer::Platform {
        error.layer = Layer::Sandbox;
    }
    error.message = shortened(error.message);
    error.fix = shortened(error.fix);
    Error::Guest(error)
}

/// Checks that a hash is well-formed and of the requested kind.
///
/// # Errors
/// Returns an error if the hash is malformed or not of the requested kind.
pub fn checked_hash(hash: &Hash, wanted: Hashing) -> Result<(), Error> {
    let is_hash = hash.kind() == wanted && are_digits(hash.digits());
    if is_hash { Ok(()) } else { Err(Error::Protocol("malformed hash".into())) }
}

/// Returns the error for a part that does not match the request.
pub fn misplaced() -> Error {
    Error::Protocol("the response does not match the request".into())
}

/// Returns true if this is valid metadata of a file, within the size limits. Callers that store many entries
/// rely on these limits.
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
