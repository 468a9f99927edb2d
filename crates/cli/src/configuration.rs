//! Configuration of `bellglass serve`: a TOML file. Each value has a description and a default.
//!
//! A file may omit any value but must not contain unknown values. The server checks the configuration after
//! parsing. If it is invalid, the server exits before it binds a port. The reference in
//! `docs/operate/configuration.md` is generated from [`VALUES`].

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use api::Error;
use node::admission::Bounds;
use node::backend::Backend;
use node::egress::Upstreams;
use serde::{Deserialize, Serialize};
use server::listen::TlsFiles;
use server::ports::name::Domain;

/// Configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// PEM file with the certificate of the server.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// True to allow plain HTTP on addresses that other machines can reach.
    pub plain_http_anywhere: bool,
    /// Domain under which sandbox ports are served.
    pub domain: String,
    /// Maximum number of live sandboxes.
    pub sandboxes_max: u32,
    /// Amount of memory to keep free.
    pub memory_reserve_bytes: u64,
    /// Amount of disk space to keep free.
    pub disk_reserve_bytes: u64,
    /// Time for which artifacts are kept.
    pub artifact_retention_ms: u64,
    /// Maximum time for which a paused sandbox is kept.
    pub paused_max_ms: u64,
    /// Number of pre-warmed sandboxes for each combination of template, tier and limits that clients request.
    pub pool_ready: u32,
    /// Total memory of all pre-warmed sandboxes.
    pub pool_memory_bytes: u64,
    /// Templates that are pre-warmed even without requests.
    pub pool_templates: Vec<String>,
    /// URL of the Python package index.
    pub packages_python: Option<String>,
    /// URL of the npm registry.
    pub packages_node: Option<String>,
    /// URL of the Debian archive.
    pub packages_debian: Option<String>,
    /// URL of the archive with Debian security updates.
    pub packages_debian_security: Option<String>,
    /// Backends to try, in this order.
    pub backends: Vec<Backend>,
    /// Maximum size of the audit log.
    pub audit_bytes_max: u64,
    /// Format of the log.
    pub log: Log,
    /// URL of the trace collector.
    pub traces: Option<String>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Log {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
    /// No log.
    None,
}

/// Minimum time for which a paused sandbox is kept.
const PAUSED_MIN_MS: u64 = 1000;

/// Names and descriptions of all values.
pub const VALUES: [(&str, &str); 21] = [
    ("listen", "Address and port to listen on. Port 0 picks a free port."),
    (
        "tls_certificate",
        "PEM file with the server's certificate chain. Together with `tls_key`, it enables HTTPS.",
    ),
    ("tls_key", "PEM file with the private key of `tls_certificate`."),
    (
        "plain_http_anywhere",
        "Allow plain HTTP on an address that other machines can reach. Keys and output can then be read in transit.",
    ),
    (
        "domain",
        "Domain under which sandbox ports are served, as `8000-SANDBOX.DOMAIN`. Use a separate domain that nothing else uses, with a \
         wildcard certificate and a wildcard DNS record. The server itself is at `api.DOMAIN`. Prefix the domain with `https://` if a proxy terminates TLS for it.",
    ),
    ("sandboxes_max", "Maximum number of live sandboxes. Further sandboxes are refused with `capacity`."),
    (
        "memory_reserve_bytes",
        "Memory to keep free. A new sandbox that would leave less memory free is refused with `capacity`.",
    ),
    (
        "disk_reserve_bytes",
        "Disk space to keep free in the data directory. A new sandbox that would leave less space free is refused with `capacity`. At \
         least 1 GiB is always kept free.",
    ),
    (
        "artifact_retention_ms",
        "How long artifacts are kept after the run that created them, in milliseconds. With 0, the server keeps no artifacts and refuses \
         requests for them.",
    ),
    (
        "paused_max_ms",
        "How long a paused sandbox is kept, in milliseconds. Then it ends with the reason `expired`.",
    ),
    (
        "pool_ready",
        "Number of pre-warmed sandboxes for each combination of template, tier and limits that was requested in the last hour. More are \
         kept for a combination that had more simultaneous requests in the last five minutes. 0 disables pre-warming.",
    ),
    ("pool_memory_bytes", "Total memory limit of all pre-warmed sandboxes."),
    (
        "pool_templates",
        "Templates for which a sandbox with default limits is pre-warmed from server start, even without requests.",
    ),
    (
        "packages_python",
        "URL of the Python package index (simple API) from which the package gate downloads. If unset, the gate uses the index that the \
         server's own pip is configured for.",
    ),
    (
        "packages_node",
        "URL of the npm registry from which the package gate downloads. If unset, the gate uses the registry that the server's npm is \
         configured for.",
    ),
    (
        "packages_debian",
        "URL of the Debian archive from which the package gate downloads. If unset, the gate uses the archive that the server's apt is \
         configured for.",
    ),
    (
        "packages_debian_security",
        "URL of the archive with Debian security updates from which the package gate downloads. If unset, the gate uses the archive \
         that the server's apt is configured for.",
    ),
    (
        "backends",
        "Backends to try, in order: `oci` (OCI runtimes of this machine), `podman`, `docker`, `engine` (podman, then docker) and `daytona` \
         (the account set by `DAYTONA_API_URL` and `DAYTONA_API_KEY`). If empty: Daytona if both variables are set, then OCI runtimes if \
         the server runs as root, otherwise Podman, otherwise Docker.",
    ),
    (
        "audit_bytes_max",
        "Maximum disk space of the audit log. A new file is started when the current file reaches a sixteenth of this size. The oldest file \
         is removed when all files together exceed this size. To keep old entries, copy the files to another machine before they are removed.",
    ),
    ("log", "Format of the log on standard error: `text`, `json` or `none`."),
    (
        "traces",
        "URL of an OpenTelemetry collector that accepts OTLP over HTTP, such as `http://127.0.0.1:4318`. The server sends a trace \
         of every request that creates a sandbox, starts an exec or stops a sandbox. Set headers that the collector requires in the \
         environment variable `OTEL_EXPORTER_OTLP_HEADERS`.",
    ),
];

impl Default for Configuration {
    fn default() -> Self {
        let bounds = Bounds::default();
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            tls_certificate: None,
            tls_key: None,
            plain_http_anywhere: false,
            domain: "sandbox.localhost".into(),
            sandboxes_max: bounds.sandboxes_max,
            memory_reserve_bytes: bounds.memory_reserve_bytes,
            disk_reserve_bytes: bounds.disk_reserve_bytes,
            artifact_retention_ms: bounds.artifact_retention_ms,
            paused_max_ms: bounds.paused_max_ms,
            pool_ready: bounds.pool_ready,
            pool_memory_bytes: bounds.pool_memory_bytes,
            pool_templates: Vec::new(),
            packages_python: None,
            packages_node: None,
            packages_debian: None,
            packages_debian_security: None,
            backends: Vec::new(),
            audit_bytes_max: control::audit::Bounds::default().bytes_max,
            log: Log::Text,
            traces: None,
        }
    }
}

impl Configuration {
    /// Reads a configuration file. Without a path, returns the default configuration.
    pub fn read(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else { return Ok(Self::default()) };
        let wrong = |why: String| {
            Error::invalid(
                format!("cannot use the configuration file {}: {why}", path.display()),
                "Fix the problem named in the message. `bellglass serve --print-config` shows every value.",
            )
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// Checks that a server can run with this configuration.
    pub fn check(&self) -> Result<(), Error> {
        self.domain()?;
        if self.paused_max_ms < PAUSED_MIN_MS {
            return Err(Error::invalid(
                format!("paused_max_ms is {}, the minimum is {PAUSED_MIN_MS}", self.paused_max_ms),
                format!("Use {PAUSED_MIN_MS} or more."),
            ));
        }
        let Self { packages_python, packages_node, packages_debian, packages_debian_security, .. } = self;
        let packages = [packages_python, packages_node, packages_debian, packages_debian_security];
        let web = |address: &&String| address.starts_with("https://") || address.starts_with("http://");
        if let Some(wrong) = packages.into_iter().flatten().find(|address| !web(address)) {
            return Err(Error::invalid(
                format!("{wrong:?} is not a valid package URL"),
                "Use a URL that begins with https://.",
            ));
        }
        if let Some(wrong) = self.traces.as_ref().filter(|address| !web(address)) {
            return Err(Error::invalid(
                format!("{wrong:?} is not a valid collector URL"),
                "Use a URL that begins with http:// or https://, such as http://127.0.0.1:4318.",
            ));
        }
        let tls = self.tls()?;
        if tls.is_none() && !self.listen.ip().is_loopback() && !self.plain_http_anywhere {
            return Err(Error::invalid(
                format!(
                    "{} can be reached from other machines, and no certificate is configured",
                    self.listen
                ),
                "Set tls_certificate and tls_key, listen on 127.0.0.1, or set plain_http_anywhere = true if a proxy in \
                 front of the server terminates TLS.",
            ));
        }
        Ok(())
    }

    /// Returns the domain under which sandbox ports are served.
    pub fn domain(&self) -> Result<Domain, Error> {
        self.domain.parse()
    }

    /// Returns the paths of the certificate and the key, or `None` if neither is set.
    pub fn tls(&self) -> Result<Option<TlsFiles>, Error> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                Ok(Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }))
            }
            (None, None) => Ok(None),
            _ => Err(Error::invalid(
                "tls_certificate and tls_key must be set together",
                "Set both tls_certificate and tls_key, or neither of them.",
            )),
        }
    }

    /// Returns the bounds for the node.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            sandboxes_max: self.sandboxes_max,
            memory_reserve_bytes: self.memory_reserve_bytes,
            disk_reserve_bytes: self.disk_reserve_bytes,
            artifact_retention_ms: self.artifact_retention_ms,
            paused_max_ms: self.paused_max_ms,
            pool_ready: self.pool_ready,
            pool_memory_bytes: self.pool_memory_bytes,
        }
    }

    /// Returns the package sources. A source that is not configured defaults to the source of this machine.
    pub fn upstreams(&self) -> Upstreams {
        let own = Upstreams::of_this_machine();
        let or = |set: &Option<String>, own: String| set.clone().unwrap_or(own);
        Upstreams {
            python: or(&self.packages_python, own.python),
            node: or(&self.packages_node, own.node),
            debian: or(&self.packages_debian, own.debian),
            debian_security: or(&self.packages_debian_security, own.debian_security),
        }
    }

    /// Returns the configuration as a TOML file that contains the description of each value.
    pub fn explained(&self) -> String {
        let values = toml::Table::try_from(self).unwrap_or_default();
        let mut text = String::new();
        for (name, meaning) in VALUES {
            let _ = match values.get(name) {
                Some(value) => writeln!(text, "# {meaning}\n{name} = {value}\n"),
                None => writeln!(text, "# {meaning}\n# {name} =\n"),
            };
        }
        text
    }

    /// Returns the text of the reference page.
    #[cfg(test)]
    fn reference() -> String {
        let values = toml::Table::try_from(Self::default()).unwrap_or_default();
        let mut text = String::from(
            "# Configuration\n\nGenerated from the code. `bellglass serve --print-config` prints the same for the configuration in use.\n\n\
             | value | default | means |\n|---|---|---|\n",
        );
        for (name, meaning) in VALUES {
            let value = values.get(name).map_or("none".to_owned(), |value| format!("`{value}`"));
            let _ = writeln!(text, "| `{name}` | {value} | {meaning} |");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_explained_and_what_is_printed_can_be_read() {
        let configuration = Configuration::default();
        let values = toml::Table::try_from(&configuration).unwrap();
        assert!(values.keys().all(|name| VALUES.iter().any(|(known, _)| known == name)));
        assert_eq!(toml::from_str::<Configuration>(&configuration.explained()).unwrap(), configuration);
    }

    #[test]
    fn the_reference_is_that_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/configuration.md");
        if std::env::var_os("BELLGLASS_WRITE").is_some() {
            std::fs::write(path, Configuration::reference()).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            Configuration::reference(),
            "BELLGLASS_WRITE=1 writes it anew"
        );
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_told_otherwise() {
        // Covers attack D-01.
        let open = Configuration { listen: "0.0.0.0:7070".parse().unwrap(), ..Configuration::default() };
        assert!(open.check().is_err());
        assert!(Configuration { plain_http_anywhere: true, ..open.clone() }.check().is_ok());
        let half = Configuration { tls_key: Some("k".into()), ..Configuration::default() };
        assert!(half.check().is_err());
        assert!(toml::from_str::<Configuration>("insecure = true").is_err());
    }
}
