//! What happens to files, as it happens.

use api::files::{Change, FileEvent, FilePath, WatchLine};

use super::Files;
use crate::error::Error;
use crate::execs::last_words;
use crate::lines::{Broken, Lines};
use crate::link::Ask;
use crate::patience::Attempts;

/// A reader of what happens to files. What happens while it is not connected is lost, and said to be.
pub struct Watch {
    files: Files,
    path: FilePath,
    deep: bool,
    lines: Option<Lines<WatchLine>>,
    attempts: Attempts,
    /// Whether it was connected before: a new connection then means that events were missed.
    connected: bool,
}

impl Files {
    /// What happens to a file or a directory, with `deep` also below its directories. [`Watch::begin`] connects.
    pub fn watch(&self, path: &FilePath, deep: bool) -> Watch {
        let attempts = self.client.link.attempts();
        let (files, path) = (self.clone(), path.clone());
        Watch { files, path, deep, lines: None, attempts, connected: false }
    }
}

impl Watch {
    /// Waits until it is connected: what happens from then on is told.
    ///
    /// # Errors
    /// There is nothing at the path, or the server does not answer.
    pub async fn begin(&mut self) -> Result<(), Error> {
        while !self.connected {
            if self.step().await?.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next event. After a connection that broke it is `overflow`: nobody knows what was missed. Can be dropped and asked
    /// again.
    ///
    /// # Errors
    /// The sandbox is gone, or the server does not answer any more.
    pub async fn next(&mut self) -> Result<FileEvent, Error> {
        loop {
            if let Some(event) = self.step().await? {
                return Ok(event);
            }
        }
    }

    async fn step(&mut self) -> Result<Option<FileEvent>, Error> {
        let link = &self.files.client.link;
        let silence = link.options.silence_max;
        let Some(lines) = &mut self.lines else {
            let route = self.files.route("/watch", &[("path", &self.path)]);
            let ask =
                Ask::get(format!("{route}&deep={}", self.deep)).accept(api::output::NDJSON).within(silence);
            match link.open(&ask).await {
                Ok(response) => self.lines = Some(Lines::new(response)),
                Err(failure) => link.pause(&mut self.attempts, failure).await?,
            }
            return Ok(None);
        };
        let failure = match lines.next(silence).await {
            Ok(WatchLine::Watching) => {
                self.attempts.progress();
                let again = std::mem::replace(&mut self.connected, true);
                let missed = FileEvent { event: Change::Overflow, path: None, path_encoded: None };
                return Ok(again.then_some(missed));
            }
            Ok(WatchLine::Heartbeat) => {
                self.attempts.progress();
                return Ok(None);
            }
            Ok(WatchLine::Changed { event }) => {
                self.attempts.progress();
                return Ok(Some(event));
            }
            Ok(WatchLine::Error { error }) => last_words(error),
            Err(Broken::Cut(why)) => link.cut(why),
            Err(Broken::Nonsense(what)) => {
                self.lines = None;
                return Err(link.protocol(what));
            }
        };
        self.lines = None;
        link.pause(&mut self.attempts, failure).await.map(|()| None)
    }
}
