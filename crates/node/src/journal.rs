//! The journal: one file for each sandbox that this machine is responsible for, written before the sandbox is
//! created.
//!
//! ```text
//! <data>/node/lock           locked by the only server that uses this data directory
//! <data>/node/<id>.packages  the packages that the sandbox received, one line of JSON each
//! <data>/node/<id>.json      the record of the sandbox, from its request until its end is acknowledged
//! <data>/node/<id>.copy      a copy of the record
//! <data>/node/<id>.damaged   an unreadable record, kept for the operator
//! ```
//!
//! If a record cannot be read, its copy is used. If the copy cannot be read either, the record is set aside,
//! and its sandbox is left alone if it is running: a damaged file must not end a user's work (attack L-13).
//!
//! A record is replaced atomically. If the disk is too full for that, the file is overwritten in place, which
//! needs no new space: each record has spare space, so that the end of a sandbox can always be recorded.

mod packages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::policy::Policy;
use api::ports::PUBLIC_MAX;
use api::sandbox::Sandbox;
use host::clock;
use host::error::Error;
use serde::{Deserialize, Serialize};
use template::{InUse, Posture};

use crate::token::{self, Token};

/// Minimum spare space in a record in bytes: enough to add an end reason and an error message.
const SPARE_BYTES: usize = 2048;
/// Maximum time to wait for the lock. If a server is killed just after it forked a child, the child holds the
/// lock until it executes the runtime.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const LOCK_EVERY: Duration = Duration::from_millis(20);
/// Minimum time for which a damaged record is kept, so that the operator can inspect it: one week.
const ASIDE_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Suffixes of records, of their copies, and of damaged records.
const RECORD: &str = "json";
const COPY: &str = "copy";
const ASIDE: &str = "damaged";
/// Block size of the file system. The size of a record is a multiple of it.
const BLOCK_BYTES: usize = 4096;

/// The journal entry of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// The sandbox as clients see it.
    pub sandbox: Sandbox,
    /// Name of the runtime that runs the sandbox.
    pub runtime: String,
    /// Keys of the sandbox's layers, which are in use as long as this record exists.
    pub layers: Vec<String>,
    /// Environment variables from the template, as it was when the sandbox was created, and from the request.
    pub env: BTreeMap<String, String>,
    /// Working directory of the template when the sandbox was created.
    pub cwd: Option<String>,
    /// Modules that the interpreter imports when it starts, from the template when the sandbox was created.
    /// Empty in records from releases without an interpreter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// Posture that decides how much of its root file system the sandbox may change.
    #[serde(default, skip_serializing_if = "Posture::is_default")]
    pub posture: Posture,
    /// True if commands may run as root of the sandbox's own user namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rooted: bool,
    /// True if the sandbox was pre-warmed and has not been claimed yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pooled: bool,
    /// Settings that decide which requests resume the sandbox while it is paused.
    #[serde(default)]
    pub auto_resume: AutoResume,
    /// Boot ID of the machine when the sandbox was created.
    pub boot: String,
    /// End of the sandbox's time to live, in milliseconds since the boot with the ID `boot`.
    pub expires_boot_ms: u64,
    /// Initial policy of the sandbox. A missing policy, as in records from earlier releases, denies
    /// everything.
    #[serde(default)]
    pub first_policy: Policy,
    /// Access to the sandbox's ports. Records from releases without ports have no tokens.
    #[serde(default)]
    pub ports: Ports,
}

/// Settings that decide which requests resume a paused sandbox. Explicit resume requests always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    /// True if requests to ports and requests through the E2B API resume the sandbox. Requests through the
    /// native API always resume it.
    pub enabled: bool,
    /// Minimum time to live in milliseconds after such a request has resumed the sandbox.
    pub ttl_min_ms: u64,
}

impl Default for AutoResume {
    fn default() -> Self {
        Self { enabled: true, ttl_min_ms: 0 }
    }
}

/// Access to the ports of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Token that gives access to all ports.
    pub token: Token<token::AllPorts>,
    /// Token that gives access to the agent to which E2B's SDKs connect. Missing in records from earlier
    /// releases.
    #[serde(default)]
    pub agent: Token<token::Agent>,
    /// Token that E2B's SDKs send to ports and contexts. Missing in records from earlier releases.
    #[serde(default)]
    pub traffic: Token<token::Traffic>,
    /// Public ports, which need no token.
    pub public: BTreeSet<u16>,
    /// True if all ports are public.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_public: bool,
}

impl SandboxRecord {
    /// Returns the runtime profile of the sandbox.
    pub fn profile(&self) -> runtime::Profile {
        if self.rooted { runtime::Profile::Rooted } else { self.posture.profile() }
    }

    /// Sets the time to live, counted from now.
    pub(crate) fn expire_in(&mut self, ttl: Duration) {
        let ttl_ms = clock::millis(ttl);
        self.sandbox.limits.ttl_ms = ttl_ms;
        self.expires_boot_ms = clock::boot_ms().saturating_add(ttl_ms);
    }
}

impl Ports {
    /// Returns true if a port is public.
    pub fn is_public(&self, port: u16) -> bool {
        self.all_public || self.public.contains(&port)
    }

    /// Makes a port public or private.
    ///
    /// # Errors
    /// The sandbox already has [`PUBLIC_MAX`] public ports.
    pub(crate) fn publish(&mut self, port: u16, public: bool) -> Result<(), Error> {
        if !public {
            self.public.remove(&port);
        } else if self.public.len() < PUBLIC_MAX || self.public.contains(&port) {
            self.public.insert(port);
        } else {
            return Err(too_many_public());
        }
        Ok(())
    }

    /// Creates access settings with fresh tokens and no public ports.
    ///
    /// # Errors
    /// The kernel's random number generator is unavailable.
    pub fn fresh() -> Result<Self, Error> {
        Self::default().with_all_tokens()
    }

    /// Creates a fresh token for each missing token.
    ///
    /// # Errors
    /// The kernel's random number generator is unavailable.
    pub fn with_all_tokens(mut self) -> Result<Self, Error> {
        if self.token.is_empty() {
            self.token = Token::fresh()?;
        }
        if self.agent.is_empty() {
            self.agent = Token::fresh()?;
        }
        if self.traffic.is_empty() {
            self.traffic = Token::fresh()?;
        }
        Ok(self)
    }

    /// Returns true if no token is missing.
    pub fn has_all_tokens(&self) -> bool {
        !(self.token.is_empty() || self.agent.is_empty() || self.traffic.is_empty())
    }
}

/// The records of one data directory.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    _lock: File,
}

impl Journal {
    /// Opens the journal and locks it. Only one server may write to it.
    ///
    /// # Errors
    /// Another server holds the lock, or the directory cannot be written.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let directory = data.join("node");
        fs::create_dir_all(&directory).map_err(failed("create", &directory))?;
        let path = directory.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open", &path))?;
        let since = Instant::now();
        let locked = loop {
            match lock.try_lock() {
                Err(fs::TryLockError::WouldBlock) if since.elapsed() < LOCK_WITHIN => {
                    std::thread::sleep(LOCK_EVERY);
                }
                other => break other,
            }
        };
        match locked {
            Ok(()) => Ok(Self { directory, _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::Request(api::Error {
                code: api::ErrorCode::Conflict,
                message: format!("another server is using {}", data.display()),
                layer: api::Layer::Platform,
                ran: api::Ran::No,
                retry: api::Retry::Safe,
                fix:
                    "Stop the other server first, or give this server a separate data directory with --data."
                        .into(),
            })),
            Err(fs::TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
        }
    }

    /// Returns all readable records, including records that were restored from their copies. Unreadable
    /// records are set aside.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn load(&self) -> Result<Vec<SandboxRecord>, Error> {
        let mut records = Vec::new();
        let ids: BTreeSet<_> =
            named(&self.directory, RECORD)?.into_iter().chain(named(&self.directory, COPY)?).collect();
        for id in ids {
            let path = self.path(&id);
            if let Some(record) = read(&path, &id) {
                records.push(record);
                continue;
            }
            if api::defence::is_off("L-13") {
                self.remove(&id)?;
                continue;
            }
            let aside = self.named(&id, ASIDE);
            match fs::rename(&path, &aside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(failed("set aside", &path))?,
            }
            if let Some(record) = read(&self.named(&id, COPY), &id) {
                tracing::error!(sandbox = %id, "sandbox record is unreadable, restored from its copy; the unreadable record is kept as {aside:?}");
                self.save(&record)?;
                records.push(record);
            } else {
                tracing::error!(sandbox = %id, "sandbox record and its copy are both unreadable; the record is kept as {aside:?}");
                self.remove(&id)?;
            }
        }
        Ok(records)
    }

    /// Returns the sandboxes whose record is lost: it was set aside as damaged, and no valid record exists.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn lost(&self) -> Result<BTreeSet<SandboxId>, Error> {
        lost(&self.directory)
    }

    /// Removes records that were set aside more than a week ago, unless `is_there` returns true for their
    /// sandboxes.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn tidy(&self, is_there: impl Fn(&SandboxId) -> bool) -> Result<(), Error> {
        for id in named(&self.directory, ASIDE)? {
            let path = self.named(&id, ASIDE);
            let age = fs::metadata(&path).and_then(|found| found.modified()).map(|at| at.elapsed());
            if matches!(age, Ok(Ok(age)) if age > ASIDE_FOR) && !is_there(&id) {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Writes a record and its copy. Each file is replaced atomically.
    ///
    /// # Errors
    /// A file system operation failed. The previous record is then unchanged, unless an in-place overwrite
    /// failed.
    pub fn save(&self, record: &SandboxRecord) -> Result<(), Error> {
        let id = &record.sandbox.id;
        let path = self.path(id);
        let mut text = serde_json::to_vec(record).map_err(io::Error::from).map_err(failed("write", &path))?;
        let whole = (text.len() + SPARE_BYTES).next_multiple_of(BLOCK_BYTES);
        let length = text.len();
        text.resize(whole, b' ');
        let fresh = self.named(id, "part");
        let write = |path: &Path| match replace(&fresh, path, &text) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let _ = fs::remove_file(&fresh);
                overwrite(path, text.clone(), length)
            }
            other => other,
        };
        write(&path).map_err(failed("write", &path))?;
        let copy = self.named(id, COPY);
        if let Err(error) = write(&copy) {
            // An outdated copy must not remain: it could later be restored as the record.
            tracing::warn!(sandbox = %id, %error, "cannot write the copy of a sandbox record");
            let _ = fs::remove_file(&copy);
        }
        Ok(())
    }

    /// Removes all files of a sandbox except a damaged record. Succeeds if there are none.
    ///
    /// # Errors
    /// A file system operation failed.
    pub fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        for path in [self.packages_path(id), self.named(id, COPY), self.path(id)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(failed("remove", &path))?,
            }
        }
        Ok(())
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.named(id, RECORD)
    }

    fn named(&self, id: &SandboxId, suffix: &str) -> PathBuf {
        self.directory.join(format!("{id}.{suffix}"))
    }
}

fn too_many_public() -> Error {
    Error::Request(api::Error {
        code: api::ErrorCode::LimitExceeded,
        message: format!("the sandbox already has {PUBLIC_MAX} public ports, the maximum"),
        layer: api::Layer::UserCode,
        ran: api::Ran::No,
        retry: api::Retry::Useless,
        fix: "Close one of the public ports first.".into(),
    })
}

/// Returns the sandboxes in the journal of a data directory, even while no server is running.
///
/// # Errors
/// The directory cannot be read.
pub fn kept(data: &Path) -> Result<Vec<SandboxId>, Error> {
    let directory = data.join("node");
    Ok(named(&directory, RECORD)?.into_iter().chain(lost(&directory)?).collect())
}

/// Returns the sandboxes in the journal of a data directory, and their layers.
///
/// # Errors
/// The directory cannot be read.
pub fn in_use(data: &Path) -> Result<InUse, Error> {
    Ok(InUse { sandboxes: kept(data)?, layers: layers_in_use(data)? })
}

/// Returns the layers of all recorded sandboxes, or `None` if a record is lost or cannot be parsed.
fn layers_in_use(data: &Path) -> Result<Option<Vec<String>>, Error> {
    #[derive(Deserialize)]
    struct Layers {
        layers: Vec<String>,
    }
    let directory = data.join("node");
    // The layers of a sandbox whose record is lost are unknown.
    if lost(&directory)?.iter().any(|id| data.join("sandboxes").join(id.as_str()).exists()) {
        return Ok(None);
    }
    let mut layers = Vec::new();
    for id in named(&directory, RECORD)? {
        let Ok(text) = fs::read(directory.join(format!("{id}.json"))) else { continue };
        let Ok(record) = serde_json::from_slice::<Layers>(&text) else { return Ok(None) };
        layers.extend(record.layers);
    }
    Ok(Some(layers))
}

fn lost(directory: &Path) -> Result<BTreeSet<SandboxId>, Error> {
    let known: BTreeSet<_> = named(directory, RECORD)?.into_iter().collect();
    Ok(named(directory, ASIDE)?.into_iter().filter(|id| !known.contains(id)).collect())
}

/// Reads a record. Returns `None` if the file is unreadable or belongs to a different sandbox.
fn read(path: &Path, id: &SandboxId) -> Option<SandboxRecord> {
    let record: SandboxRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (record.sandbox.id == *id).then_some(record)
}

/// Returns the sandboxes that have a file with this suffix.
fn named(directory: &Path, suffix: &str) -> Result<Vec<SandboxId>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", directory))?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("list", directory))?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(suffix)?.strip_suffix('.'));
        ids.extend(id.and_then(|id| id.parse::<SandboxId>().ok()));
    }
    Ok(ids)
}

fn replace(fresh: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    file.write_all(text)?;
    fs::rename(fresh, path)
}

/// Overwrites a record in place, without allocating disk space. The file must exist and be large enough.
fn overwrite(path: &Path, mut text: Vec<u8>, length: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    if length > room {
        return Err(io::ErrorKind::StorageFull.into());
    }
    text.resize(room, b' ');
    file.write_all_at(&text, 0)
}

fn failed<'a>(act: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::System { act: format!("{act} {}", path.display()), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::sandbox::{EndReason, SandboxState};

    pub fn record(id: &str) -> SandboxRecord {
        SandboxRecord {
            sandbox: Sandbox::asked(
                id.parse().unwrap(),
                "p",
                &api::sandbox::CreateSandbox::default(),
                &Default::default(),
                1,
            ),
            runtime: "sim".into(),
            layers: vec!["a".repeat(64)],
            env: BTreeMap::new(),
            cwd: None,
            imports: vec!["json".into()],
            posture: Posture::Run,
            rooted: false,
            pooled: false,
            auto_resume: AutoResume::default(),
            boot: "b".into(),
            expires_boot_ms: 5,
            first_policy: Policy::default(),
            ports: Ports::fresh().unwrap(),
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_is_read_from_its_copy_and_else_set_aside() {
        // Covers attack L-13.
        let data = tempfile::tempdir().unwrap();
        let journal = Journal::open(data.path()).unwrap();
        let at = |name: &str| data.path().join("node").join(name);
        for id in ["a", "b", "c", "d"] {
            journal.save(&record(id)).unwrap();
        }
        fs::write(at("b.json"), "{").unwrap();
        fs::write(at("c.json"), "{").unwrap();
        fs::write(at("c.copy"), "{").unwrap();
        fs::remove_file(at("d.json")).unwrap();
        fs::write(at("e.json.part"), "{").unwrap();
        assert_eq!(
            layers_in_use(data.path()).unwrap(),
            None,
            "who cannot read everything cannot say what is free"
        );
        let ids: Vec<_> = journal.load().unwrap().iter().map(|one| one.sandbox.id.to_string()).collect();
        assert_eq!(ids, ["a", "b", "d"]);
        assert_eq!(fs::read(at("b.damaged")).unwrap(), b"{");
        assert_eq!(fs::read(at("c.damaged")).unwrap(), b"{");
        assert_eq!(journal.lost().unwrap(), BTreeSet::from(["c".parse().unwrap()]));
        assert!(at("b.json").exists() && !at("c.json").exists() && !at("c.copy").exists());
        assert_eq!(layers_in_use(data.path()).unwrap().unwrap().len(), 3, "nothing is left of c");
        fs::create_dir_all(data.path().join("sandboxes/c")).unwrap();
        assert_eq!(layers_in_use(data.path()).unwrap(), None, "c may be alive");
        journal.tidy(|_| false).unwrap();
        assert!(at("c.damaged").exists(), "it is kept for a week");
        let old = std::time::SystemTime::now() - 2 * ASIDE_FOR;
        File::options().write(true).open(at("c.damaged")).unwrap().set_modified(old).unwrap();
        journal.tidy(|_| true).unwrap();
        assert!(at("c.damaged").exists(), "and for as long as its sandbox is there");
        journal.tidy(|_| false).unwrap();
        assert!(!at("c.damaged").exists());
        journal.remove(&"a".parse().unwrap()).unwrap();
        journal.remove(&"a".parse().unwrap()).unwrap();
        assert!(!at("a.copy").exists());
    }

    #[test]
    fn a_record_of_a_release_without_ports_has_no_token_that_opens_anything() {
        let mut old = serde_json::to_value(record("a")).unwrap();
        old.as_object_mut().unwrap().remove("ports");
        old.as_object_mut().unwrap().remove("imports");
        let read: SandboxRecord = serde_json::from_value(old).unwrap();
        assert_eq!(read.ports, Ports::default());
        assert!(read.imports.is_empty());
        let ports = Ports::fresh().unwrap();
        assert!(ports.has_all_tokens());
        let kept = Ports { agent: Token::default(), ..ports.clone() }.with_all_tokens().unwrap();
        assert!(kept.token == ports.token && kept.has_all_tokens() && kept.agent != ports.agent);
    }

    #[test]
    fn a_data_directory_has_one_server() {
        // Covers attack L-06.
        let data = tempfile::tempdir().unwrap();
        let first = Journal::open(data.path()).unwrap();
        let second = Journal::open(data.path()).unwrap_err().to_api();
        assert_eq!(second.code, api::ErrorCode::Conflict);
        drop(first);
        Journal::open(data.path()).unwrap();
    }

    #[test]
    fn an_end_fits_into_the_record_that_is_there() {
        let data = tempfile::tempdir().unwrap();
        let journal = Journal::open(data.path()).unwrap();
        let mut record = record("a");
        journal.save(&record).unwrap();
        let path = journal.path(&record.sandbox.id);
        let before = fs::metadata(&path).unwrap().len();
        record.sandbox.state = SandboxState::Lost;
        record.sandbox.reason = Some(EndReason::Died);
        record.sandbox.ended_at_ms = Some(u64::MAX);
        let text = serde_json::to_vec(&record).unwrap();
        let length = text.len();
        overwrite(&path, text, length).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), before);
        assert_eq!(journal.load().unwrap(), [record]);
    }
}
