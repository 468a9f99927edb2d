//! What happens to the project's sandboxes, as it happens.

use api::sandbox::SandboxEvent;

use crate::client::Client;
use crate::error::Error;
use crate::lines::{Broken, Lines};
use crate::link::Ask;
use crate::patience::Attempts;

/// A reader of events. What happened while it was not connected is lost, and said to be.
pub struct Events {
    client: Client,
    lines: Option<Lines<SandboxEvent>>,
    attempts: Attempts,
    /// Whether it was connected before: a new connection then means that events were missed.
    connected: bool,
}

impl Client {
    /// What happens from now on. The first [`Events::next`] connects.
    pub fn events(&self) -> Events {
        Events { client: self.clone(), lines: None, attempts: self.link.attempts(), connected: false }
    }
}

impl Events {
    /// The next event. After a connection that broke it is `Missed` with a count of 0: nobody knows how many. Can be
    /// dropped and asked again.
    ///
    /// # Errors
    /// The server does not answer any more, or says that the key is no longer valid.
    pub async fn next(&mut self) -> Result<SandboxEvent, Error> {
        let link = &self.client.link;
        loop {
            let Some(lines) = &mut self.lines else {
                let ask = Ask::get("/v1/events").accept(api::output::NDJSON).within(link.options.silence_max);
                match link.open(&ask).await {
                    Ok(response) => self.lines = Some(Lines::new(response)),
                    Err(failure) => {
                        link.pause(&mut self.attempts, failure).await?;
                        continue;
                    }
                }
                if std::mem::replace(&mut self.connected, true) {
                    return Ok(SandboxEvent::Missed { count: 0 });
                }
                continue;
            };
            match lines.next(link.options.silence_max).await {
                Ok(SandboxEvent::Heartbeat) => self.attempts.progress(),
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
