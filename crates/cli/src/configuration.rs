//! The configuration of `belljar serve`: a TOML file, each value with its meaning and its default.
//!
//! *As written* it may lack anything and hold nothing unknown; *as checked* it can be served. A wrong one stops the server before
//! a port is bound. The reference in `docs/operate/configuration.md` is made from [`VALUES`] here.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use api::Error;
use control::listen::TlsFiles;
use control::ports::name::Domain;
use node::admission::Bounds;
use node::backend::Backend;
use node::egress::Upstreams;
use serde::{Deserialize, Serialize};

/// The configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The certificate of the server, as a PEM file.
    pub tls_certificate: Option<PathBuf>,
    /// Its key.
    pub tls_key: Option<PathBuf>,
    /// Whether plain HTTP may be spoken to other machines.
    pub plain_http_anywhere: bool,
    /// The domain of ports.
    pub domain: String,
    /// Sandboxes at once.
    pub sandboxes_max: u32,
    /// Memory that stays free.
    pub memory_reserve_bytes: u64,
    /// Disk that stays free.
    pub disk_reserve_bytes: u64,
    /// How long artifacts are kept.
    pub artifact_retention_ms: u64,
    /// Sandboxes that are ready of each kind that is asked for.
    pub pool_ready: u32,
    /// Memory for all of those together.
    pub pool_memory_bytes: u64,
    /// Templates that are ready before anybody asks.
    pub pool_templates: Vec<String>,
    /// Where Python packages come from.
    pub packages_python: Option<String>,
    /// Where npm packages come from.
    pub packages_node: Option<String>,
    /// Where Debian packages come from.
    pub packages_debian: Option<String>,
    /// Where security updates of Debian packages come from.
    pub packages_debian_security: Option<String>,
    /// What isolates, in this order.
    pub backends: Vec<Backend>,
    /// How the log is written.
    pub log: Log,
    /// Where traces are sent.
    pub traces: Option<String>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Log {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
    /// Not at all.
    None,
}

/// Every value: its name, and what it means.
pub const VALUES: [(&str, &str); 19] = [
    ("listen", "The address and port to listen on. Port 0 is any free one."),
    (
        "tls_certificate",
        "The server's certificate chain, as a PEM file. With `tls_key`, the server speaks HTTPS.",
    ),
    ("tls_key", "The key of that certificate, as a PEM file."),
    (
        "plain_http_anywhere",
        "Allows plain HTTP on an address that other machines can reach: keys and output can be read on the way.",
    ),
    (
        "domain",
        "The domain below which ports are reached, as `8000-SANDBOX.DOMAIN`: one of its own, which nothing else uses, with a \
         certificate and a DNS record for all names below it. `api.DOMAIN` is the server itself. With `https://` in front if something \
         else speaks TLS for it.",
    ),
    ("sandboxes_max", "The most sandboxes at once; more are refused with `capacity`."),
    ("memory_reserve_bytes", "Memory that stays free: below it, new sandboxes are refused with `capacity`."),
    ("disk_reserve_bytes", "Disk that stays free in the data directory, likewise. 1 GiB does in any case."),
    (
        "artifact_retention_ms",
        "How long artifacts of a run are kept after it, in milliseconds. 0: none are kept, and asking for them is refused.",
    ),
    (
        "pool_ready",
        "How many sandboxes are ready of each kind (template, tier, limits) that was asked for in the last hour; more where more were \
         asked for at once in the last five minutes. 0: none is made before it is asked for.",
    ),
    ("pool_memory_bytes", "The memory that all ready sandboxes may take together."),
    (
        "pool_templates",
        "Templates of which a sandbox with its usual limits is ready from the start of the server on, whether or not anybody asks.",
    ),
    (
        "packages_python",
        "Where the package gate gets Python packages: the address of a simple API. Without it, what the server's own pip is \
         configured for.",
    ),
    (
        "packages_node",
        "Likewise, npm packages: the address of a registry; else what its npm is configured for.",
    ),
    (
        "packages_debian",
        "Likewise, Debian packages: the address of an archive; else what its apt is configured for.",
    ),
    ("packages_debian_security", "Likewise, their security updates."),
    (
        "backends",
        "What isolates, the first that works first: `oci` (OCI runtimes of this machine), `podman`, `docker`, or `engine` for both in \
         that order, and `daytona` (an account that `DAYTONA_API_URL` and `DAYTONA_API_KEY` name). Empty: Daytona if both are set, and after \
         it OCI runtimes if the server is root, else Podman, else Docker.",
    ),
    ("log", "How the log is written to standard error: `text`, `json` or `none`."),
    (
        "traces",
        "The address of an OpenTelemetry collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`: the steps of every create, \
         exec and stop are sent there. Headers that it wants are in the variable `OTEL_EXPORTER_OTLP_HEADERS`.",
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
            pool_ready: bounds.pool_ready,
            pool_memory_bytes: bounds.pool_memory_bytes,
            pool_templates: Vec::new(),
            packages_python: None,
            packages_node: None,
            packages_debian: None,
            packages_debian_security: None,
            backends: Vec::new(),
            log: Log::Text,
            traces: None,
        }
    }
}

impl Configuration {
    /// Reads a file, or takes the defaults where there is none.
    pub fn read(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else { return Ok(Self::default()) };
        let wrong = |why: String| {
            Error::invalid(
                format!("the configuration {} cannot be used: {why}", path.display()),
                "Mend what the message names; `belljar serve --print-config` shows every value.",
            )
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// Refuses what must not be served.
    pub fn check(&self) -> Result<(), Error> {
        self.domain()?;
        let Self { packages_python, packages_node, packages_debian, packages_debian_security, .. } = self;
        let packages = [packages_python, packages_node, packages_debian, packages_debian_security];
        let web = |address: &&String| address.starts_with("https://") || address.starts_with("http://");
        if let Some(wrong) = packages.into_iter().flatten().find(|address| !web(address)) {
            return Err(Error::invalid(
                format!("{wrong:?} is no address that packages come from"),
                "Write it with https:// in front.",
            ));
        }
        if let Some(wrong) = self.traces.as_ref().filter(|address| !web(address)) {
            return Err(Error::invalid(
                format!("{wrong:?} is no address that traces can be sent to"),
                "Write it with http:// or https:// in front, as in http://127.0.0.1:4318.",
            ));
        }
        let tls = self.tls()?;
        if tls.is_none() && !self.listen.ip().is_loopback() && !self.plain_http_anywhere {
            return Err(Error::invalid(
                format!("{} can be reached from other machines, and there is no certificate", self.listen),
                "Give tls_certificate and tls_key, or listen on 127.0.0.1, or say plain_http_anywhere = true if \
                 something in front of it speaks TLS.",
            ));
        }
        Ok(())
    }

    /// The names under which ports are reached.
    pub fn domain(&self) -> Result<Domain, Error> {
        self.domain.parse()
    }

    /// The certificate and the key, if there are both.
    pub fn tls(&self) -> Result<Option<TlsFiles>, Error> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                Ok(Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }))
            }
            (None, None) => Ok(None),
            _ => Err(Error::invalid("tls_certificate and tls_key belong together", "Give both, or neither.")),
        }
    }

    /// What the machine holds back.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            sandboxes_max: self.sandboxes_max,
            memory_reserve_bytes: self.memory_reserve_bytes,
            disk_reserve_bytes: self.disk_reserve_bytes,
            artifact_retention_ms: self.artifact_retention_ms,
            pool_ready: self.pool_ready,
            pool_memory_bytes: self.pool_memory_bytes,
        }
    }

    /// Where packages come from.
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

    /// The configuration as a file, with what each value means.
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

    /// The page of the reference.
    #[cfg(test)]
    fn reference() -> String {
        let values = toml::Table::try_from(Self::default()).unwrap_or_default();
        let mut text = String::from(
            "# Configuration\n\nMade from the code: `belljar serve --print-config` shows the same for a running configuration.\n\n\
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
        if std::env::var_os("BELLJAR_WRITE").is_some() {
            std::fs::write(path, Configuration::reference()).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            Configuration::reference(),
            "BELLJAR_WRITE=1 writes it anew"
        );
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_told_otherwise() {
        // D-01
        let open = Configuration { listen: "0.0.0.0:7070".parse().unwrap(), ..Configuration::default() };
        assert!(open.check().is_err());
        assert!(Configuration { plain_http_anywhere: true, ..open.clone() }.check().is_ok());
        let half = Configuration { tls_key: Some("k".into()), ..Configuration::default() };
        assert!(half.check().is_err());
        assert!(toml::from_str::<Configuration>("insecure = true").is_err());
    }
}
