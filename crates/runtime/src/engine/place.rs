//! An engine's address, and the errors for an engine that cannot be reached.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::{ClientVersion, Docker};

use crate::Error;

/// Supported API versions, newest first. Current engines refuse the older version, and the engines in Debian
/// 12 refuse the newer one.
const VERSIONS: [ClientVersion; 2] = [
    ClientVersion { major_version: 1, minor_version: 44 },
    ClientVersion { major_version: 1, minor_version: 41 },
];
/// Timeout for a response. Starting a container on a busy machine takes seconds. Loading an image takes much
/// longer and has a timeout of its own.
const ANSWERS_WITHIN_SECONDS: u64 = 120;

/// Timeout for a probe, which any working engine answers at once.
const PROBED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of characters of an engine's message in an error.
const SAID_CHARS_MAX: usize = 400;

/// A kind of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Podman's service. Preferred, because it does not need root.
    Podman,
    /// Docker's daemon.
    Docker,
}

/// An engine and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEndpoint {
    /// The engine's kind.
    pub kind: EngineKind,
    /// The engine's address, such as `unix:///run/podman/podman.sock` or `tcp://HOST:PORT`.
    pub address: String,
}

impl EngineKind {
    /// All kinds, in order of preference.
    pub const ALL: [Self; 2] = [Self::Podman, Self::Docker];

    /// Returns the engine's name, as shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    /// Returns the name of the environment variable that holds the engine's address.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Podman => "CONTAINER_HOST",
            Self::Docker => "DOCKER_HOST",
        }
    }

    /// Returns instructions for installing the engine's service.
    fn install(self) -> &'static str {
        match self {
            Self::Podman => {
                "Install Podman (`apt-get install podman`) and start its service: `systemctl --user enable --now podman.socket`."
            }
            Self::Docker => "Install Docker (`apt-get install docker.io`, or Docker Desktop) and start it.",
        }
    }

    /// Returns instructions for starting the engine's service.
    fn begin(self) -> &'static str {
        match self {
            Self::Podman => {
                "Start Podman: `systemctl --user start podman.socket`, or `systemctl start podman.socket` as root."
            }
            Self::Docker => "Start Docker: `systemctl start docker`, or open Docker Desktop.",
        }
    }

    /// Returns the usual paths of the engine's socket, starting with the paths of rootless services.
    fn sockets(self) -> Vec<PathBuf> {
        let user = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(
            || PathBuf::from(format!("/run/user/{}", rustix::process::getuid().as_raw())),
            PathBuf::from,
        );
        let home = std::env::var_os("HOME").map(PathBuf::from);
        match self {
            Self::Podman => vec![user.join("podman/podman.sock"), "/run/podman/podman.sock".into()],
            Self::Docker => {
                [Some(user.join("docker.sock")), home.map(|home| home.join(".docker/run/docker.sock"))]
                    .into_iter()
                    .flatten()
                    .chain(["/var/run/docker.sock".into()])
                    .collect()
            }
        }
    }
}

impl EngineEndpoint {
    /// Finds an engine at the address in the kind's environment variable, or at one of the kind's usual
    /// sockets.
    ///
    /// # Errors
    /// Returns an error if no engine of this kind is found.
    pub fn find(kind: EngineKind) -> Result<Self, Error> {
        if let Some(address) = std::env::var(kind.variable()).ok().filter(|address| !address.is_empty()) {
            return Ok(Self { kind, address });
        }
        let sockets = kind.sockets();
        match sockets.iter().find(|path| path.exists()) {
            Some(path) => Ok(Self { kind, address: format!("unix://{}", path.display()) }),
            None => Err(Error::Unavailable {
                what: format!("{} was not found", kind.name()),
                why: format!(
                    "none of its sockets exists ({}), and {} is not set",
                    sockets.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
                    kind.variable()
                ),
                fix: kind.install().into(),
            }),
        }
    }

    /// Returns true if the engine is on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.address.starts_with("unix://")
    }

    /// Connects to the engine with the newest API version that both sides support.
    pub(super) async fn connect(&self) -> Result<Docker, Error> {
        match self.address.strip_prefix("unix://") {
            Some(path) => self.knock(Path::new(path))?,
            None if ["tcp://", "http://"].iter().any(|scheme| self.address.starts_with(scheme)) => {}
            None => {
                return Err(Error::Unavailable {
                    what: format!("{} cannot be reached", self.kind.name()),
                    why: format!("{} is {}, which is neither unix:// nor tcp://", self.kind.variable(), self.address),
                    fix: "Forward the engine's socket (`ssh -L ./engine.sock:/var/run/docker.sock HOST`) and use the forwarded socket with unix://.".into(),
                });
            }
        }
        let mut last = None;
        for version in &VERSIONS {
            let docker = self.open(version).map_err(|error| self.failed("accept a connection", error))?;
            match tokio::time::timeout(PROBED_WITHIN, docker.version()).await {
                Ok(Ok(_)) => return Ok(docker),
                Ok(Err(error)) => last = Some(error),
                Err(_) => return Err(self.silent(format!("it did not respond within {PROBED_WITHIN:?}"))),
            }
        }
        Err(last.map_or_else(
            || self.silent("it supports none of the API versions that Bellglass supports".into()),
            |error| self.failed("accept a connection", error),
        ))
    }

    /// Sends a request to an engine-specific endpoint, outside the common API.
    pub(super) async fn ask<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let failed = |why: String| self.silent(format!("the request for {path} failed: {why}"));
        let client = crate::http::client().map_err(|error| failed(error.to_string()))?;
        let (client, host) = match self.address.strip_prefix("unix://") {
            Some(socket) => (client.unix_socket(Path::new(socket)), "engine"),
            None => (client, self.address.split_once("://").map_or("", |(_, host)| host)),
        };
        let client = client.timeout(PROBED_WITHIN).build().map_err(|error| failed(error.to_string()))?;
        let answer = client.get(format!("http://{host}{path}")).send().await;
        let body = match answer.and_then(reqwest::Response::error_for_status) {
            Ok(answer) => answer.bytes().await,
            Err(error) => Err(error),
        };
        let body = body.map_err(|error| failed(crate::chain(&error)))?;
        serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
    }

    fn open(&self, version: &ClientVersion) -> Result<Docker, bollard::errors::Error> {
        if self.is_local() {
            Docker::connect_with_unix(&self.address, ANSWERS_WITHIN_SECONDS, version)
        } else {
            Docker::connect_with_http(&self.address, ANSWERS_WITHIN_SECONDS, version)
        }
    }

    /// Checks that the socket accepts connections. If it does not, returns an error that explains why,
    /// because the error from a failed request would be less clear.
    fn knock(&self, path: &Path) -> Result<(), Error> {
        let Err(error) = UnixStream::connect(path) else { return Ok(()) };
        let (name, path) = (self.kind.name(), path.display());
        if error.kind() == ErrorKind::NotFound {
            return Err(self.silent(format!("the socket {path} does not exist")));
        }
        if error.kind() != ErrorKind::PermissionDenied {
            return Err(self.silent(format!("its daemon does not respond at {path}: {error}")));
        }
        let fix = match self.kind {
            EngineKind::Docker => {
                "Add yourself to the group `docker` (`sudo usermod -aG docker $USER`) and log in again, or use Podman, which needs no such group."
            }
            EngineKind::Podman => {
                "Use your own user's service: `systemctl --user enable --now podman.socket`."
            }
        };
        Err(Error::Unavailable {
            what: format!("{name} cannot be used"),
            why: format!("permission denied on {path}"),
            fix: fix.into(),
        })
    }

    fn silent(&self, why: String) -> Error {
        Error::Unavailable {
            what: format!("{} is not running", self.kind.name()),
            why,
            fix: self.kind.begin().into(),
        }
    }

    /// Builds the error for a failed operation, with the engine's message or the reason why the engine did
    /// not respond.
    pub(super) fn failed(&self, act: &str, error: bollard::errors::Error) -> Error {
        let what = format!("{} failed to {act}", self.kind.name());
        if let bollard::errors::Error::DockerResponseServerError { status_code, message } = &error {
            let why = format!("it returned {status_code}: {}", start(message.trim()));
            return Error::Unavailable {
                what,
                why,
                fix: "Fix the reported cause, then check with `bellglass doctor`.".into(),
            };
        }
        if let bollard::errors::Error::DockerStreamError { error } = &error {
            let why = start(error.trim());
            return Error::Unavailable { what, why, fix: "Fix the reported cause, then try again.".into() };
        }
        if let bollard::errors::Error::IOError { err: source } = error {
            return Error::System { act: act.to_owned(), source };
        }
        self.silent(format!("the request to {act} failed: {}", crate::chain(&error)))
    }
}

/// Shortens an engine's message to a readable length.
fn start(message: &str) -> String {
    let mut text: String = message.chars().take(SAID_CHARS_MAX).collect();
    if text.len() < message.len() {
        text.push('…');
    }
    text
}
