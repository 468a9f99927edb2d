//! What this machine was asked to keep: one file for each sandbox, written before anything of it is made.
//!
//! ```text
//! <data>/node/lock           held by the one server of this data directory
//! <data>/node/<id>.packages  the packages that it was given, a line of JSON each
//! <data>/node/<id>.json      a sandbox that was asked for and whose end nobody has taken note of yet
//! ```
//!
//! A record is replaced as a whole. When the disk is too full for that, it is overwritten in place: it was made with room
//! to spare, so that the end of a sandbox can always be written down.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::SandboxId;
use api::policy::Installed;
use api::sandbox::Sandbox;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::template::Posture;

/// A record is longer than its text by at least this: a reason and an error's text fit in.
const SPARE_BYTES: usize = 2048;
/// A process that a server forked just before it was killed has that server's lock until it is the runtime.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const LOCK_EVERY: Duration = Duration::from_millis(20);
/// What is kept of the packages of one sandbox: some ten thousand.
const PACKAGES_BYTES_MAX: u64 = 4 << 20;
/// Records are whole blocks of the file system.
const BLOCK_BYTES: usize = 4096;

/// What is written down of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The sandbox as it is shown.
    pub sandbox: Sandbox,
    /// The runtime it is made with.
    pub runtime: String,
    /// The keys of its layers; while this record is here, they are in use.
    pub layers: Vec<String>,
    /// The template's variables, as they were when it was made.
    pub env: BTreeMap<String, String>,
    /// The template's directory, likewise.
    pub cwd: Option<String>,
    /// The modules that the template has imported ahead, likewise. A record of a release that had no interpreter has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// How much of its own file system it may change.
    #[serde(default, skip_serializing_if = "Posture::is_default")]
    pub posture: Posture,
    /// Whether root of its own user namespace may run commands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rooted: bool,
    /// Whether it was made ahead and is nobody's yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pooled: bool,
    /// The start of the machine in which it was made.
    pub boot: String,
    /// When its time to live is over, on the clock of that start.
    pub expires_boot_ms: u64,
    /// Who may reach its ports. A record of a release that had none has no token yet.
    #[serde(default)]
    pub ports: Ports,
}

/// Who may reach the ports of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// What opens all of them: 32 random bytes in hexadecimal. An empty one opens nothing.
    pub token: String,
    /// Those that everybody may reach.
    pub public: BTreeSet<u16>,
    /// Whether everybody may reach all of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_public: bool,
}

impl Record {
    /// What a runtime is asked for.
    pub fn profile(&self) -> runtime::Profile {
        if self.rooted { runtime::Profile::Rooted } else { self.posture.profile() }
    }
}

impl Ports {
    /// Whether everybody may reach a port.
    pub fn is_public(&self, port: u16) -> bool {
        self.all_public || self.public.contains(&port)
    }

    /// A fresh token, and nothing public.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn fresh() -> Result<Self, Error> {
        let token = crate::machine::random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token, public: BTreeSet::new(), all_public: false })
    }
}

/// The records of one data directory.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    _lock: File,
}

impl Journal {
    /// Opens the journal for the one server that may write it.
    ///
    /// # Errors
    /// Another server has it, or the directory cannot be written.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let directory = data.join("node");
        fs::create_dir_all(&directory).map_err(failed("make", &directory))?;
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
                message: format!("another server uses {}", data.display()),
                layer: api::Layer::Platform,
                ran: api::Ran::No,
                retry: api::Retry::Safe,
                fix: "Stop it first, or give this one a data directory of its own with --data.".into(),
            })),
            Err(fs::TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
        }
    }

    /// All records, and the ids of those that cannot be understood.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn load(&self) -> Result<(Vec<Record>, Vec<SandboxId>), Error> {
        let (mut records, mut damaged) = (Vec::new(), Vec::new());
        for id in ids(&self.directory)? {
            let path = self.path(&id);
            let text = fs::read(&path).map_err(failed("read", &path))?;
            match serde_json::from_slice::<Record>(&text) {
                Ok(record) if record.sandbox.id == id => records.push(record),
                Ok(_) | Err(_) => damaged.push(id),
            }
        }
        Ok((records, damaged))
    }

    /// Writes a record, in one step.
    ///
    /// # Errors
    /// What the file system said. A record that was there before is then as it was.
    pub fn save(&self, record: &Record) -> Result<(), Error> {
        let path = self.path(&record.sandbox.id);
        let mut text = serde_json::to_vec(record).map_err(io::Error::from).map_err(failed("write", &path))?;
        let whole = (text.len() + SPARE_BYTES).next_multiple_of(BLOCK_BYTES);
        let fresh = self.directory.join(format!("{}.part", record.sandbox.id));
        let length = text.len();
        text.resize(whole, b' ');
        let replaced = replace(&fresh, &path, &text);
        match replaced {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let _ = fs::remove_file(&fresh);
                overwrite(&path, &mut text, length).map_err(failed("write", &path))
            }
            other => other.map_err(failed("write", &path)),
        }
    }

    /// Forgets a sandbox. One that is not known is success.
    ///
    /// # Errors
    /// What the file system said.
    pub fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        for path in [self.packages_path(id), self.path(id)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(failed("remove", &path))?,
            }
        }
        Ok(())
    }

    /// Writes down that a sandbox was given a package.
    ///
    /// # Errors
    /// What the file system said, or there are as many as are kept.
    pub fn add_package(&self, id: &SandboxId, installed: &Installed) -> Result<(), Error> {
        let path = self.packages_path(id);
        let mut line =
            serde_json::to_vec(installed).map_err(io::Error::from).map_err(failed("write", &path))?;
        line.push(b'\n');
        let mut options = OpenOptions::new();
        let mut file =
            options.append(true).create(true).mode(0o600).open(&path).map_err(failed("open", &path))?;
        if file.metadata().map_err(failed("look at", &path))?.len() > PACKAGES_BYTES_MAX {
            return Err(failed("write", &path)(io::ErrorKind::FileTooLarge.into()));
        }
        file.write_all(&line).map_err(failed("write", &path))
    }

    /// The packages that a sandbox was given.
    ///
    /// # Errors
    /// What the file system said.
    pub fn packages(&self, id: &SandboxId) -> Result<Vec<Installed>, Error> {
        let path = self.packages_path(id);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed("read", &path))?,
        };
        // A line that a killed server left half-written is none.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    fn packages_path(&self, id: &SandboxId) -> PathBuf {
        self.directory.join(format!("{id}.packages"))
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }
}

/// The sandboxes that a server of this data directory keeps, whether or not it runs now.
///
/// # Errors
/// The directory cannot be read.
pub fn kept(data: &Path) -> Result<Vec<SandboxId>, Error> {
    ids(&data.join("node"))
}

/// The layers that these sandboxes are made of, or nothing where a record cannot be understood.
///
/// # Errors
/// The directory cannot be read.
pub fn layers_in_use(data: &Path) -> Result<Option<Vec<String>>, Error> {
    #[derive(Deserialize)]
    struct Layers {
        layers: Vec<String>,
    }
    let directory = data.join("node");
    let mut layers = Vec::new();
    for id in ids(&directory)? {
        let Ok(text) = fs::read(directory.join(format!("{id}.json"))) else { continue };
        let Ok(record) = serde_json::from_slice::<Layers>(&text) else { return Ok(None) };
        layers.extend(record.layers);
    }
    Ok(Some(layers))
}

fn ids(directory: &Path) -> Result<Vec<SandboxId>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", directory))?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("list", directory))?.file_name();
        ids.extend(name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok()));
    }
    Ok(ids)
}

fn replace(fresh: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    file.write_all(text)?;
    fs::rename(fresh, path)
}

/// Writes over a record without asking for space. It must be there and large enough.
fn overwrite(path: &Path, text: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    if length > room {
        return Err(io::ErrorKind::StorageFull.into());
    }
    text.resize(room, b' ');
    file.write_all_at(text, 0)
}

fn failed<'a>(act: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::System { act: format!("{act} {}", path.display()), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::sandbox::{EndReason, SandboxState};

    pub fn record(id: &str) -> Record {
        Record {
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
            boot: "b".into(),
            expires_boot_ms: 5,
            ports: Ports::fresh().unwrap(),
        }
    }

    #[test]
    fn records_are_kept_by_id_and_damaged_ones_are_named() {
        let data = tempfile::tempdir().unwrap();
        let journal = Journal::open(data.path()).unwrap();
        journal.save(&record("a")).unwrap();
        journal.save(&record("b")).unwrap();
        fs::write(data.path().join("node/c.json"), "{").unwrap();
        fs::write(data.path().join("node/d.json.part"), "{").unwrap();
        let (records, damaged) = journal.load().unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(damaged, ["c".parse().unwrap()]);
        assert_eq!(
            layers_in_use(data.path()).unwrap(),
            None,
            "who cannot read everything cannot say what is free"
        );
        journal.remove(&"c".parse().unwrap()).unwrap();
        journal.remove(&"c".parse().unwrap()).unwrap();
        assert_eq!(layers_in_use(data.path()).unwrap().unwrap().len(), 2);
    }

    #[test]
    fn a_record_of_a_release_without_ports_has_no_token_that_opens_anything() {
        let mut old = serde_json::to_value(record("a")).unwrap();
        old.as_object_mut().unwrap().remove("ports");
        old.as_object_mut().unwrap().remove("imports");
        let read: Record = serde_json::from_value(old).unwrap();
        assert_eq!(read.ports, Ports::default());
        assert!(read.imports.is_empty());
        assert_eq!(Ports::fresh().unwrap().token.len(), 64);
        assert_ne!(Ports::fresh().unwrap().token, Ports::fresh().unwrap().token);
    }

    #[test]
    fn a_data_directory_has_one_server() {
        // L-06
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
        let mut text = serde_json::to_vec(&record).unwrap();
        let length = text.len();
        overwrite(&path, &mut text, length).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), before);
        assert_eq!(journal.load().unwrap().0, [record]);
    }
}
