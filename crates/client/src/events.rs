//! What happens to the project's sandboxes, or in a session, as it happens.

use api::sandbox::SandboxEvent;
use api::session::SessionEvent;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;
use crate::lines::{Broken, Lines};
use crate::link::Ask;
use crate::patience::Attempts;

/// A reader of events. What happened while it was not connected is lost, and said to be.
pub struct Events<T = SandboxEvent> {
    client: Client,
    path: String,
    lines: Option<Lines<T>>,
    attempts: Attempts,
    /// Whether it was connected before: a new connection then means that events were missed.
    connected: bool,
}

/// What can be told as it happens.
pub trait Telling: DeserializeOwned {
    /// That something was missed, and nobody knows how much.
    fn missed() -> Self;

    /// Whether it only says that the server is there.
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
    /// What happens from now on. The first [`Events::next`] connects.
    pub fn events(&self) -> Events {
        Events::of(self, "/v1/events".into())
    }
}

impl<T: Telling> Events<T> {
    /// What is told at a path of the API.
    pub(crate) fn of(client: &Client, path: String) -> Self {
        let attempts = client.link.attempts();
        Self { client: client.clone(), path, lines: None, attempts, connected: false }
    }

    /// The next event. After a connection that broke it is `Missed` with a count of 0: nobody knows how many. Can be
    /// dropped and asked again.
    ///
    /// # Errors
    /// The server does not answer any more, or says that the key is no longer valid.
    pub async fn next(&mut self) -> Result<T, Error> {
        let link = &self.client.link;
        loop {
            let Some(lines) = &mut self.lines else {
                let ask =
                    Ask::get(self.path.as_str()).accept(api::output::NDJSON).within(link.options.silence_max);
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
                Err(Broken::Cut(why)) => {
                    self.lines = None;
                    link.pause(&mut self.attempts, link.cut(why)).await?;
                }
                Err(Broken::Nonsense(what)) => {
                    self.lines = None;
                    return Err(link.protocol(what));
                }
            }
        }
    }
}
