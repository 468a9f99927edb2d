//! A Debian system built from packages by `mmdebstrap` and unpacked as one layer.
//!
//! The packages come from Debian and are signed. As in any Debian installation, their scripts run as root;
//! here they run in a directory on this machine, in separate mount and PID namespaces. The mounts of
//! `mmdebstrap` therefore never appear in the host's mount table, and all processes end when the command
//! ends, for whatever reason. The result is unpacked like any other layer.

mod sources;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use api::layer::Compression;
use api::policy::PROXY_PORT;
use api::{ErrorCode, Layer, Ran, Retry};
use egress::gate::HOST;
use host::error::Error;
use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;

use crate::unpack::{Source, SourceMessage, pass_on};
use crate::{failed, layers, unsound};

/// Timeout for the build. With a fast mirror it takes half a minute.
const BUILD_WITHIN: Duration = Duration::from_secs(30 * 60);
/// Maximum number of bytes that are retained from the end of standard error. If the package manager fails,
/// they contain the last screens of its output.
const TAIL_BYTES: usize = 4096;
/// Maximum length of one line of standard error in bytes.
const LINE_BYTES_MAX: u64 = 4096;
/// Interval between checks for the exit of a program that has closed its output.
const WAIT_EVERY: Duration = Duration::from_millis(20);
/// Maximum number of such checks after the program has been killed.
const ENDING_TRIES: u32 = 100;
const PIECES_WAITING: usize = 4;

/// Packages that every Debian base contains in addition to Debian's minimal system (bash, coreutils, apt).
pub(super) const PACKAGES: [&str; 10] = [
    "ca-certificates",
    "curl",
    "git",
    "iproute2",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "unzip",
    "xz-utils",
];
/// Options that leave out files that are of no use in a sandbox. Licences are kept.
const LEFT_OUT: [&str; 6] = [
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/man/*",
];
/// Search path for the build programs. It contains no user directories, because the programs run as root.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Arguments for `unshare`: separate mount and PID namespaces. When the first process exits, all other
/// processes are killed.
const ALONE: [&str; 7] =
    ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"];
/// Environment variables that configure the operator's proxies for package downloads. No other environment
/// variables are passed on.
const PROXIES: [&str; 5] = ["http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"];

/// Definition of a Debian base: its release, package source and additional packages.
#[derive(Clone, Debug)]
pub struct Base {
    /// The Debian release.
    pub suite: String,
    /// The package source: a URL or a complete `deb` line. If `None`, the sources of this machine's own apt
    /// are used if they contain the release, and Debian's servers otherwise.
    pub mirror: Option<String>,
    /// Packages to install in addition to the packages of every base.
    pub packages: Vec<String>,
}

/// Paths of the programs that a build needs.
struct Tools {
    setpriv: PathBuf,
    unshare: PathBuf,
    mmdebstrap: PathBuf,
}

/// A running build program. Dropping it kills the program.
pub(super) struct Building {
    child: Arc<Mutex<Child>>,
    watchdog: tokio::task::JoinHandle<()>,
    scratch: PathBuf,
}

impl Default for Base {
    fn default() -> Self {
        Self { suite: "bookworm".into(), mirror: None, packages: Vec::new() }
    }
}

impl Base {
    /// Starts the build, and returns a source that delivers the archive.
    pub(super) fn start(&self, scratch: PathBuf) -> Result<Source, Error> {
        let tools = Tools::find()?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o711).create(&scratch).map_err(failed("create directory", &scratch))?;
        let mut command = self.command(&tools, &sources::of_this_machine(&self.suite))?;
        command.env("TMPDIR", &scratch);
        let argv = spelled(&command);
        let mut child =
            command.spawn().map_err(|source| Error::System { act: "start mmdebstrap".into(), source })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let late = Arc::new(AtomicBool::new(false));
        let (slow, is_late) = (Arc::clone(&child), Arc::clone(&late));
        let watchdog = tokio::spawn(async move {
            tokio::time::sleep(BUILD_WITHIN).await;
            is_late.store(true, Ordering::Relaxed);
            end(&slow);
        });
        let building = Building { child: Arc::clone(&child), watchdog, scratch };
        let (sender, pieces) = mpsc::channel(PIECES_WAITING);
        let says = sender.clone();
        let tail = std::thread::spawn(move || stderr.map_or_else(Vec::new, |stderr| listen(stderr, &says)));
        tokio::task::spawn_blocking(move || {
            let read =
                stdout.map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), |out| pass_on(out, &sender));
            let last = match (last(read, &child, tail, &argv), late.load(Ordering::Relaxed)) {
                (SourceMessage::Failed(_), true) => {
                    let what = "building with mmdebstrap";
                    SourceMessage::Failed(Error::Deadline { what, after: BUILD_WITHIN })
                }
                (last, _) => last,
            };
            let _ = sender.blocking_send(last);
        });
        Ok(Source { compression: Compression::None, pieces, _program: Some(Box::new(building)) })
    }

    /// Returns everything that affects the content of the built system, except the package source.
    pub(super) fn contents(&self) -> Vec<String> {
        let packages = PACKAGES.into_iter().map(str::to_owned).chain(self.packages.iter().cloned());
        packages.chain(LEFT_OUT.map(str::to_owned)).chain([settings(&self.suite)]).collect()
    }

    fn command(&self, tools: &Tools, lines: &[String]) -> Result<Command, Error> {
        let words = self.packages.iter().chain([&self.suite]);
        if let Some(bad) = words.into_iter().find(|word| !crate::recipe::debian_word(word)) {
            return Err(unsound(
                format!("{bad:?} is not a valid Debian release or package name"),
                "Use a release such as bookworm, and valid package names.",
            ));
        }
        let packages = PACKAGES.into_iter().chain(self.packages.iter().map(String::as_str));
        let mut command = Command::new(&tools.setpriv);
        command.args(["--pdeathsig", "KILL", "--"]).arg(&tools.unshare).args(ALONE).arg(&tools.mmdebstrap);
        command.args(["--variant=minbase", "--format=tar", "--aptopt=Acquire::Retries \"3\""]);
        command.arg(format!("--include={}", packages.collect::<Vec<_>>().join(",")));
        command.args(LEFT_OUT.map(|option| format!("--dpkgopt={option}")));
        command.arg(format!("--customize-hook={}", settings(&self.suite)));
        command.args(["--", &self.suite, "-"]);
        match &self.mirror {
            Some(mirror) if mirror.starts_with("deb ") || mirror.contains("://") => command.arg(mirror),
            Some(mirror) => {
                return Err(unsound(
                    format!("{mirror:?} is not a valid mirror"),
                    "Use a URL or a `deb` line.",
                ));
            }
            None => command.args(lines),
        };
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C.UTF-8");
        let upper = PROXIES.map(str::to_uppercase);
        for name in PROXIES.into_iter().chain(upper.iter().map(String::as_str)) {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A separate process group, so that all processes of the build can be killed together.
        command.process_group(0);
        Ok(command)
    }
}

/// Returns a script that configures programs in the system to use the sandbox's proxy, even when they run
/// without environment variables. The script also removes the package sources of this machine, which may
/// contain passwords.
fn settings(suite: &str) -> String {
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let gate = format!("http://{HOST}");
    let files = [
        (
            "apt/apt.conf.d/80bellglass",
            format!("Acquire::http::Proxy \"{proxy}\";\nAcquire::https::Proxy \"{proxy}\";\n"),
        ),
        (
            "apt/sources.list",
            format!(
                "deb {gate}/debian {suite} main\ndeb {gate}/debian {suite}-updates main\ndeb {gate}/debian-security {suite}-security main\n"
            ),
        ),
        ("pip.conf", format!("[global]\nproxy = {proxy}\n")),
        ("gitconfig", format!("[http]\n\tproxy = {proxy}\n")),
        ("npmrc", format!("proxy={proxy}\nhttps-proxy={proxy}\n")),
    ];
    let mut script = "rm -rf \"$1\"/etc/apt/sources.list.d/*".to_owned();
    for (path, text) in files {
        // None of these texts contains a single quote.
        let _ = write!(script, "; printf '%s' '{text}' > \"$1\"/etc/{path}");
    }
    script
}

impl Drop for Building {
    fn drop(&mut self) {
        self.watchdog.abort();
        end(&self.child);
        let is_gone =
            || !matches!(self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait(), Ok(None));
        for _ in 0..ENDING_TRIES {
            if is_gone() {
                break;
            }
            std::thread::sleep(WAIT_EVERY);
        }
        // Errors are ignored, because a later command removes the directory.
        let _ = layers::remove(&self.scratch);
    }
}

/// Kills the program and all processes that it has started, if the program is still running. Their mounts
/// disappear with them.
fn end(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    // The process ID certainly belongs to the child only until the child has been waited for.
    if let (Ok(None), Some(group)) =
        (child.try_wait(), i32::try_from(child.id()).ok().and_then(Pid::from_raw))
    {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Returns the last message of the source: the archive's digest if the program succeeded, or an error
/// otherwise.
fn last(
    read: io::Result<String>,
    child: &Mutex<Child>,
    tail: JoinHandle<Vec<u8>>,
    argv: &str,
) -> SourceMessage {
    let status = loop {
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        match status {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => std::thread::sleep(WAIT_EVERY),
            Err(error) => break Err(error),
        }
    };
    let tail = tail.join().unwrap_or_default();
    let failed = |status: String| {
        let stderr = String::from_utf8_lossy(&tail).trim().to_owned();
        let argv = argv.to_owned();
        SourceMessage::Failed(Error::Runtime(runtime::Error::Command { argv, status, stderr }))
    };
    match (status, read) {
        (Ok(status), Ok(digest)) if status.success() => SourceMessage::End(digest),
        (Ok(status), _) if !status.success() => failed(say(status)),
        (Ok(_), Err(source)) | (Err(source), _) => {
            SourceMessage::Failed(Error::System { act: "read the archive from mmdebstrap".into(), source })
        }
        (Ok(status), Ok(_)) => failed(say(status)),
    }
}

/// Forwards standard error line by line, and returns its last bytes.
fn listen(stderr: impl Read, says: &mpsc::Sender<SourceMessage>) -> Vec<u8> {
    let mut reader = BufReader::new(stderr);
    let mut tail = Vec::new();
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return tail,
            Ok(_) => {}
        }
        tail.extend(&line);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
        let _ = says.blocking_send(SourceMessage::Says(String::from_utf8_lossy(&line).trim_end().to_owned()));
    }
}

impl Tools {
    fn find() -> Result<Self, Error> {
        let find = |name: &str, package: &str| {
            let mut paths = PATH.split(':').map(|directory| Path::new(directory).join(name));
            paths.find(|path| path.is_file()).ok_or_else(|| missing(name, package))
        };
        Ok(Self {
            setpriv: find("setpriv", "util-linux")?,
            unshare: find("unshare", "util-linux")?,
            mmdebstrap: find("mmdebstrap", "mmdebstrap")?,
        })
    }
}

fn say(status: ExitStatus) -> String {
    match std::os::unix::process::ExitStatusExt::signal(&status) {
        Some(signal) => format!("signal {signal}"),
        None => format!("status {}", status.code().unwrap_or(-1)),
    }
}

fn spelled(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn missing(name: &str, package: &str) -> Error {
    Error::Request(api::Error {
        code: ErrorCode::Unsupported,
        message: format!("{name} is not installed; it is needed to build a Debian system from packages"),
        layer: Layer::Platform,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: format!("Run `apt-get install {package}`."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        Tools { setpriv: "/s".into(), unshare: "/u".into(), mmdebstrap: "/m".into() }
    }

    fn words(base: &Base) -> Vec<String> {
        let command = base.command(&tools(), &["deb http://mirror/debian bookworm main".to_owned()]).unwrap();
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_machines_own_sources_are_used_unless_a_mirror_is_named() {
        let base = Base::default();
        assert!(words(&base).ends_with(&[
            "bookworm".into(),
            "-".into(),
            "deb http://mirror/debian bookworm main".into()
        ]));
        let base = Base { mirror: Some("http://other/debian".into()), ..base };
        assert!(words(&base).ends_with(&["-".into(), "http://other/debian".into()]));
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = missing("mmdebstrap", "mmdebstrap").to_api();
        assert_eq!(
            (error.code, error.fix.as_str()),
            (ErrorCode::Unsupported, "Run `apt-get install mmdebstrap`.")
        );
    }

    #[test]
    fn words_that_would_be_options_are_refused() {
        let fine = |base: Base| base.command(&tools(), &[]).is_ok();
        for bad in ["--hook=x", "", "a,b", "a b", "./x.deb"] {
            assert!(!fine(Base { packages: vec![bad.into()], ..Base::default() }), "{bad}");
        }
        assert!(!fine(Base { mirror: Some("--x".into()), ..Base::default() }));
        assert!(fine(Base { packages: vec!["libstdc++6".into()], ..Base::default() }));
    }

    #[test]
    fn the_end_of_what_a_program_said_is_kept() {
        let (sender, mut pieces) = mpsc::channel(10_000);
        let text: String = (0..5000).map(|number| format!("line {number}\n")).collect();
        let tail = listen(text.as_bytes(), &sender);
        assert_eq!(tail.len(), TAIL_BYTES);
        assert!(tail.ends_with(b"line 4999\n"));
        assert!(matches!(pieces.try_recv(), Ok(SourceMessage::Says(line)) if line == "line 0"));
    }
}
