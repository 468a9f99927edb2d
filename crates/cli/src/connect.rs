//! Connection to the configured server: its URL and the API key.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use api::Error;
use client::{Client, Options, Patience};

use crate::quantity;

/// Time to wait for a response before the command prints a note that it is still waiting.
const NOTE_AFTER: Duration = Duration::from_secs(3);
/// Environment variable with the API key. There is no command-line option for the key, because every user of
/// the machine can read command lines.
const KEY: &str = "BELLGLASS_API_KEY";

/// Options that select the server, for every command.
#[derive(clap::Args)]
pub struct ServerConnection {
    /// URL of the server, such as `https://sandboxes.example.org`.
    #[arg(long, global = true, env = "BELLGLASS_SERVER", value_name = "URL", help_heading = "Server")]
    server: Option<String>,
    /// File that contains the API key. Without this option, the key is read from the environment variable
    /// BELLGLASS_API_KEY.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    key_file: Option<PathBuf>,
    /// PEM file with the CA certificates to trust, instead of the CA certificates of this machine.
    #[arg(long, global = true, env = "BELLGLASS_CA_FILE", value_name = "FILE", help_heading = "Server")]
    ca_file: Option<PathBuf>,
    /// How long to wait for a server that does not answer or is restarting.
    #[arg(
        long,
        global = true,
        env = "BELLGLASS_SERVER_WAIT",
        value_parser = quantity::time,
        default_value = "60s",
        value_name = "TIME",
        help_heading = "Server"
    )]
    server_wait: Duration,
}

impl ServerConnection {
    /// Returns a client for the server, for a command that requires a server.
    pub fn client(&self) -> Result<Client, Error> {
        self.configured()?.ok_or_else(|| {
            Error::invalid(
                "this command needs a server, but no server is configured",
                format!(
                    "Start a server with `bellglass serve`, then set BELLGLASS_SERVER (or --server) to its address and {KEY} (or --key-file) to a key."
                ),
            )
        })
    }

    /// Returns a client for the server, or `None` if no server is configured.
    pub fn configured(&self) -> Result<Option<Client>, Error> {
        let Some(url) = self.server.as_deref().filter(|url| !url.is_empty()) else { return Ok(None) };
        let patience = Patience { connection: self.server_wait, ..Patience::default() };
        let options = Options { ca_file: self.ca_file.clone(), patience, ..Options::default() };
        Client::with(url, &self.key()?, options).map(Some).map_err(|error| explain(&error))
    }

    /// Returns the API key, for use in the configuration of other programs.
    pub fn key(&self) -> Result<String, Error> {
        let key = match &self.key_file {
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                Error::invalid(
                    format!("cannot read the key file {}: {error}", path.display()),
                    "Set --key-file to a file that you can read and that contains only the key.",
                )
            })?,
            None => std::env::var(KEY).unwrap_or_default(),
        };
        let key = key.trim();
        if key.is_empty() {
            return Err(Error::invalid(
                "a server is configured, but no key is configured",
                format!(
                    "Set {KEY} to the secret of a key, or --key-file to a file that contains the secret."
                ),
            ));
        }
        Ok(key.to_owned())
    }
}

/// Waits for a response, and prints a note if the response takes long.
pub async fn answer<T>(
    client: &Client,
    asking: impl Future<Output = Result<T, client::Error>>,
) -> Result<T, Error> {
    wait_for(client, Box::pin(asking)).await
}

/// Waits for a response. The future is boxed, so that this function is compiled once for each type of response,
/// and not once for each request.
async fn wait_for<T>(
    client: &Client,
    mut asking: Pin<Box<dyn Future<Output = Result<T, client::Error>> + '_>>,
) -> Result<T, Error> {
    tokio::select! {
        answer = &mut asking => return answer.map_err(|error| explain(&error)),
        () = tokio::time::sleep(NOTE_AFTER) => {
            crate::show::note(&format!("still waiting for a response from {}", client.url()));
        }
    }
    asking.await.map_err(|error| explain(&error))
}

/// Converts a client error to an API error whose suggested fix refers to command-line options.
pub fn explain(error: &client::Error) -> Error {
    let fix = match error {
        client::Error::Unreachable { url, .. } => format!(
            "Check that `bellglass serve` is running and that {url}, from --server or BELLGLASS_SERVER, is the address of the server."
        ),
        client::Error::Distrusted { .. } => {
            "Set --ca-file or BELLGLASS_CA_FILE to the certificate of the CA that signed the server's certificate. If the server has no certificate, write http:// in --server."
                .into()
        }
        client::Error::Configuration { .. } => {
            "Correct --server (BELLGLASS_SERVER), --key-file (BELLGLASS_API_KEY) or --ca-file (BELLGLASS_CA_FILE)."
                .into()
        }
        client::Error::Refused(_) | client::Error::Protocol { .. } | client::Error::Local { .. } => error.to_api().fix,
    };
    Error { fix, ..error.to_api() }
}
