//! Live file events.

use api::files::{Change, FileEvent, FilePath, WatchLine};

use super::Files;
use crate::error::Error;
use crate::execs::last_words;
use crate::lines::{LineError, Lines};
use crate::link::ApiRequest;
use crate::patience::Attempts;

/// A reader of file events. Events that occur while the reader is disconnected are lost, and the reader
/// reports the loss.
pub struct FileWatch {
    files: Files,
    path: FilePath,
    deep: bool,
    lines: Option<Lines<WatchLine>>,
    attempts: Attempts,
    /// True if the reader has connected before. A new connection is then reported as a loss of events.
    connected: bool,
}

impl Files {
    /// Watches a file or a directory. With `deep`, also watches all of its subdirectories. The watch is
    /// active only after [`FileWatch::begin`] returns.
    pub fn watch(&self, path: &FilePath, deep: bool) -> FileWatch {
        let attempts = self.client.link.attempts();
        let (files, path) = (self.clone(), path.clone());
        FileWatch { files, path, deep, lines: None, attempts, connected: false }
    }
}

impl FileWatch {
    /// Waits until the watch is active. All events from then on are reported.
    ///
    /// # Errors
    /// Returns an error if the path does not exist or if the server does not respond.
    pub async fn begin(&mut self) -> Result<(), Error> {
        while !self.connected {
            if self.step().await?.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the next event. After a lost connection, this is `overflow`, because it is unknown which
    /// events were missed. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the sandbox no longer exists or if the server no longer responds.
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
            let ask = ApiRequest::get(format!("{route}&deep={}", self.deep))
                .accept(api::output::NDJSON)
                .within(silence);
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
            Err(LineError::Cut(why)) => link.cut(why),
            Err(LineError::Nonsense(what)) => {
                self.lines = None;
                return Err(link.protocol(what));
            }
        };
        self.lines = None;
        link.pause(&mut self.attempts, failure).await.map(|()| None)
    }
}
