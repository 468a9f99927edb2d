//! Live events of a project's sandboxes or of a session.

use api::sandbox::SandboxEvent;
use api::session::SessionEvent;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;
use crate::lines::{LineError, Lines};
use crate::link::ApiRequest;
use crate::patience::Attempts;

/// An event reader. Events that occur while the reader is disconnected are lost, and the reader reports the
/// loss.
pub struct Events<T = SandboxEvent> {
    client: Client,
    path: String,
    lines: Option<Lines<T>>,
    attempts: Attempts,
    /// True if the reader has connected before. A new connection is then reported as a loss of events.
    connected: bool,
}

/// An event type that the server streams.
pub trait Telling: DeserializeOwned {
    /// Returns the event that reports the loss of an unknown number of events.
    fn missed() -> Self;

    /// Returns true if the event only shows that the connection is still alive.
    fn is_heartbeat(&self) -> bool;
}

impl Telling for SandboxEvent {
    fn missed() -> Self {
        Self::Missed { count: 0 }
    }

    fn is_heartbeat(&self) -> bool {
        *self == Self::Heartbeat
    }
}

impl Telling for SessionEvent {
    fn missed() -> Self {
        Self::Missed { count: 0 }
    }

    fn is_heartbeat(&self) -> bool {
        *self == Self::Heartbeat
    }
}

impl Client {
    /// Subscribes to future events of all sandboxes. The first call of [`Events::next`] connects.
    pub fn events(&self) -> Events {
        Events::of(self, "/v1/events".into())
    }
}

impl<T: Telling> Events<T> {
    /// Creates a reader for the event stream at this API path.
    pub(crate) fn of(client: &Client, path: String) -> Self {
        let attempts = client.link.attempts();
        Self { client: client.clone(), path, lines: None, attempts, connected: false }
    }

    /// Returns the next event. After a lost connection, this is `Missed` with a count of 0, because the
    /// number of missed events is unknown. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the server no longer responds, or reports that the key is no longer valid.
    pub async fn next(&mut self) -> Result<T, Error> {
        let link = &self.client.link;
        loop {
            let Some(lines) = &mut self.lines else {
                let ask = ApiRequest::get(self.path.as_str())
                    .accept(api::output::NDJSON)
                    .within(link.options.silence_max);
                match link.open(&ask).await {
                    Ok(response) => self.lines = Some(Lines::new(response)),
                    Err(failure) => {
                        link.pause(&mut self.attempts, failure).await?;
                        continue;
                    }
                }
                if std::mem::replace(&mut self.connected, true) {
                    return Ok(T::missed());
                }
                continue;
            };
            match lines.next(link.options.silence_max).await {
                Ok(event) if event.is_heartbeat() => self.attempts.progress(),
                Ok(event) => {
                    self.attempts.progress();
                    return Ok(event);
                }
                Err(LineError::Cut(why)) => {
                    self.lines = None;
                    link.pause(&mut self.attempts, link.cut(why)).await?;
                }
                Err(LineError::Nonsense(what)) => {
                    self.lines = None;
                    return Err(link.protocol(what));
                }
            }
        }
    }
}
