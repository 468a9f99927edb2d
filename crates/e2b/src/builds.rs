//! State of template builds.
//!
//! ```text
//! request ──▶ waiting ──begin──▶ queued ──▶ building ──▶ ready
//!                                              └────────▶ error, with the step
//! ```
//!
//! Builds run one at a time. The state of a build stays in memory until the server restarts or too many newer
//! builds exist. The log of a template's last build is stored with the template.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::limits::WantedLimits;
use api::{Error, ErrorCode, Layer, Ran, Retry};
use node::clock;
use node::template::TemplateProgress;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use control::account::Account;
use control::credential::TicketHash;

use super::fault::sentence;
use super::time::rfc3339;

/// Maximum number of builds whose state is kept.
const BUILDS_MAX: usize = 64;
/// Maximum number of builds that are queued or running. Only one build runs at a time.
const WAITING_MAX: usize = 16;
/// Limits on the output that is kept in memory per build: total bytes, and characters per line. The
/// template's log contains the rest.
const SHOWN_BYTES_MAX: usize = 1 << 20;
const LINE_CHARS_MAX: usize = 2000;
/// Maximum number of lines in one response. Clients request further pages until a page is empty.
const PAGE_LINES: usize = 100;
/// Time for which an upload ticket is valid.
const TICKET_VALID: Duration = Duration::from_secs(3600);
const TICKETS_MAX: usize = 4096;

/// All builds and upload tickets.
pub struct Builds {
    all: Mutex<BTreeMap<u64, Arc<Build>>>,
    tickets: Mutex<HashMap<TicketHash, Ticket>>,
    /// Permit to run a build. Only one permit exists, because builds run one at a time.
    pub turn: Semaphore,
}

/// Permission to upload one archive without a key.
struct Ticket {
    /// Account that requested the ticket. The upload counts against the account's project, and revoking the
    /// account's key invalidates the ticket.
    account: Arc<Account>,
    archive: String,
    until_ms: u64,
}

/// One build.
pub struct Build {
    /// ID that clients use to identify the build.
    pub id: String,
    /// Name of the template.
    pub template: String,
    /// Limits that the client specified for the template's sandboxes.
    pub limits: WantedLimits,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    stage: Stage,
    begun: bool,
    /// Number of the current step; 0 before the first.
    step: usize,
    lines: Vec<BuildLogLine>,
    /// Size of `lines` in bytes; `cut` is true if lines were omitted because the size reached its limit.
    bytes: usize,
    cut: bool,
    /// Incomplete last line of the output so far.
    open: Vec<u8>,
}

#[derive(Clone, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Waiting,
    Building,
    Ready,
    Failed(String),
}

struct BuildLogLine {
    at_ms: u64,
    level: &'static str,
    text: String,
}

impl Default for Builds {
    fn default() -> Self {
        Self { all: Mutex::default(), tickets: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl Builds {
    /// Registers a new build.
    pub fn add(&self, id: String, template: String, limits: WantedLimits) -> Arc<Build> {
        let build = Arc::new(Build { id, template, limits, now: Mutex::default() });
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let next = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(next, Arc::clone(&build));
        // Forget the oldest builds that are neither queued nor running.
        while all.len() > BUILDS_MAX {
            let oldest = all.iter().find(|(_, build)| !build.runs()).map(|(key, _)| *key);
            let Some(oldest) = oldest else { break };
            all.remove(&oldest);
        }
        build
    }

    /// Returns the build of this template with this ID.
    ///
    /// # Errors
    /// Returns an error if the build does not exist.
    pub fn find(&self, template: &str, id: &str) -> Result<Arc<Build>, Error> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.values().find(|build| build.id == id && build.template == template);
        found.cloned().ok_or_else(|| Error {
            fix: "Builds do not survive a restart of the server. If the server was restarted, build again."
                .into(),
            ..Error::not_found("there is no such build of this template")
        })
    }

    /// Checks that one more build can be queued.
    ///
    /// # Errors
    /// Returns `capacity` if too many builds are queued or running.
    pub fn check_room(&self) -> Result<(), Error> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = all.values().filter(|build| build.runs()).count();
        if waiting < WAITING_MAX {
            return Ok(());
        }
        Err(Error {
            code: ErrorCode::Capacity,
            message: format!("{waiting} builds are already queued or running, the maximum"),
            layer: Layer::Platform,
            ran: Ran::No,
            retry: Retry::Safe,
            fix: "Build again when some of these builds have finished.".into(),
        })
    }

    /// Registers a ticket, which permits one upload of this archive. At the limit, drops the ticket that
    /// expires first.
    pub fn admit(&self, ticket: TicketHash, archive: &str, account: &Arc<Account>, now: u64) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|_, ticket| ticket.until_ms > now);
        if tickets.len() >= TICKETS_MAX {
            let oldest = tickets.iter().min_by_key(|(_, ticket)| ticket.until_ms).map(|(name, _)| *name);
            oldest.map(|oldest| tickets.remove(&oldest));
        }
        let until_ms = now.saturating_add(clock::millis(TICKET_VALID));
        let (archive, account) = (archive.to_owned(), Arc::clone(account));
        tickets.insert(ticket, Ticket { archive, account, until_ms });
    }

    /// Redeems a ticket for this archive, and returns the account that requested the ticket. The ticket is
    /// used up even if it was issued for a different archive. A ticket is invalid if its account's key is no
    /// longer valid.
    pub fn take(&self, ticket: TicketHash, archive: &str, now: u64) -> Option<Arc<Account>> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tickets.remove(&ticket)?;
        let works = found.account.works(now) || api::defence::is_off("H-42");
        (found.archive == archive && found.until_ms > now && works).then_some(found.account)
    }
}

impl Build {
    /// Marks the build as started. Returns false if it was started before.
    pub fn begin(&self) -> bool {
        let mut now = self.lock();
        !std::mem::replace(&mut now.begun, true)
    }

    /// Records that the build has left the queue.
    pub fn starts(&self) {
        self.lock().stage = Stage::Building;
    }

    /// Records progress of the build.
    pub fn hear(&self, progress: TemplateProgress<'_>) {
        let mut now = self.lock();
        match progress {
            TemplateProgress::Step { number, count, what, kept } => {
                now.finish_line();
                now.step = number;
                // Step 0 represents all steps that Bellglass added. The user did not write these steps, so
                // show only their failures.
                if number > 0 {
                    let note = if kept { " (cached)" } else { "" };
                    now.say("info", &format!("[{number}/{count}] {what}{note}"));
                }
            }
            TemplateProgress::Layer { number, count, .. } => {
                now.say("info", &format!("[base] layer {number} of {count}"));
            }
            TemplateProgress::Output(bytes) => now.write(bytes),
            TemplateProgress::Says(text) => now.say("info", text),
            TemplateProgress::Kept { .. } | TemplateProgress::Bytes(_) => {}
        }
    }

    /// Adds a warning to the output.
    pub fn warn(&self, text: &str) {
        self.lock().say("warn", text);
    }

    /// Records the result of the build.
    pub fn end(&self, ended: Result<(), &Error>) {
        let mut now = self.lock();
        now.finish_line();
        now.stage = match ended {
            Ok(()) => Stage::Ready,
            Err(error) => {
                let told = sentence(error);
                now.say("error", &told);
                Stage::Failed(told)
            }
        };
    }

    /// Returns the status of the build, and a page of its output that begins at line `offset`.
    pub fn shown(&self, offset: usize) -> Value {
        let now = self.lock();
        let page = now.lines.iter().skip(offset).take(PAGE_LINES);
        let entries: Vec<Value> = page.map(BuildLogLine::shown).collect();
        let texts: Vec<&str> =
            now.lines.iter().skip(offset).take(PAGE_LINES).map(|line| line.text.as_str()).collect();
        let mut shown = json!({
            "templateID": super::shown::theirs(&self.template),
            "buildID": self.id,
            "status": now.stage.name(),
            "logs": texts,
            "logEntries": entries,
        });
        if let Stage::Failed(told) = &now.stage {
            let step = if now.step == 0 { "base".to_owned() } else { now.step.to_string() };
            super::shown::put(
                &mut shown,
                "reason",
                json!({ "message": told, "step": step, "logEntries": [] }),
            );
        }
        shown
    }

    fn runs(&self) -> bool {
        let now = self.lock();
        now.begun && matches!(now.stage, Stage::Waiting | Stage::Building)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed(_) => "error",
        }
    }
}

impl Now {
    fn say(&mut self, level: &'static str, text: &str) {
        let text: String = text.chars().filter(|c| !matches!(c, '\0' | '\r')).take(LINE_CHARS_MAX).collect();
        // Record the final error even if the limit has been reached.
        let over = self.bytes > SHOWN_BYTES_MAX && level != "error";
        self.bytes = self.bytes.saturating_add(text.len() + size_of::<BuildLogLine>());
        let text = match over {
            true if self.cut => return,
            true => "output truncated; see the log of the template for the rest".into(),
            false => text,
        };
        self.cut |= over;
        self.lines.push(BuildLogLine { at_ms: clock::wall_ms(), level, text });
    }

    /// Appends output, and records each line when it is complete.
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.open.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.open.len() >= LINE_CHARS_MAX {
                self.finish_line();
            }
        }
    }

    fn finish_line(&mut self) {
        let line = std::mem::take(&mut self.open);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            self.say("info", text.trim_end());
        }
    }
}

impl BuildLogLine {
    fn shown(&self) -> Value {
        json!({ "timestamp": rfc3339(self.at_ms), "message": self.text, "level": self.level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::account::{CreateKey, Quota, Role};
    use control::account::{Share, mint};
    use control::credential::Ticket;

    fn build() -> Arc<Build> {
        Builds::default().add("b".into(), "t".into(), WantedLimits::default())
    }

    #[test]
    fn what_is_said_comes_in_lines_and_pages_and_a_failure_names_its_step() {
        let build = build();
        assert!(build.begin() && !build.begin(), "it is begun once");
        build.starts();
        build.hear(TemplateProgress::Step { number: 2, count: 3, what: "run x", kept: false });
        build.hear(TemplateProgress::Output(b"one\ntw"));
        build.hear(TemplateProgress::Output(b"o\n\nthree"));
        let shown = build.shown(0);
        assert_eq!(shown["status"], "building");
        assert_eq!(shown["logs"], json!(["[2/3] run x", "one", "two"]));
        build.end(Err(&Error::invalid("it did not work", "Do it again.")));
        let shown = build.shown(3);
        assert_eq!((&shown["status"], &shown["reason"]["step"]), (&json!("error"), &json!("2")));
        assert_eq!(shown["logs"], json!(["three", "it did not work. Do it again."]));
        assert_eq!(build.shown(5)["logs"], json!([]), "clients ask until there are none");
        assert_eq!(build.shown(usize::MAX)["logs"], json!([]));
        for _ in 0..SHOWN_BYTES_MAX {
            build.hear(TemplateProgress::Output(b"xxxxxxxx\n"));
        }
        assert!(build.lock().lines.len() * size_of::<BuildLogLine>() < SHOWN_BYTES_MAX);
        assert!(build.lock().lines.last().unwrap().text.starts_with("output truncated"));
        assert_eq!(build.shown(10)["logs"].as_array().unwrap().len(), PAGE_LINES);
    }

    #[test]
    fn a_ticket_is_for_one_archive_and_once() {
        let builds = Builds::default();
        let ask = CreateKey { project: "p".into(), role: Role::Write, label: String::new(), valid_ms: None };
        let (quota, revoked) = (Quota::default(), Default::default());
        let (new, share) = (mint(&ask, 0).unwrap().0, Arc::new(Share::new(&quota)));
        let account = Arc::new(Account { key: new.key, revoked, quota, share });
        let (ticket, other) = (Ticket::fresh().unwrap(), Ticket::fresh().unwrap());
        builds.admit(ticket.hash(), "a", &account, 1);
        assert!(builds.take(ticket.hash(), "b", 1).is_none(), "it is for another archive");
        assert!(builds.take(ticket.hash(), "a", 1).is_none(), "it is used up");
        builds.admit(ticket.hash(), "a", &account, 1);
        assert!(builds.take(other.hash(), "a", 1).is_none());
        assert!(builds.take(ticket.hash(), "a", 1).is_some() && builds.take(ticket.hash(), "a", 1).is_none());
        builds.admit(ticket.hash(), "a", &account, 1);
        assert!(builds.take(ticket.hash(), "a", clock::millis(TICKET_VALID) + 2).is_none(), "it is too old");
        builds.admit(ticket.hash(), "a", &account, 1);
        account.revoked.cancel();
        assert!(builds.take(ticket.hash(), "a", 1).is_none(), "its key was revoked");
    }

    #[test]
    fn only_builds_that_have_ended_are_forgotten() {
        let builds = Builds::default();
        let first = builds.add("first".into(), "t".into(), WantedLimits::default());
        assert!(first.begin());
        for number in 0..BUILDS_MAX + 8 {
            builds.add(format!("{number}"), "t".into(), WantedLimits::default());
        }
        assert!(builds.find("t", "first").is_ok());
        assert!(builds.find("t", "0").is_err() && builds.find("other", "first").is_err());
    }
}
