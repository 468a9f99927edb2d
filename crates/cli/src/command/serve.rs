//! `bellglass serve`: runs the Bellglass server on this machine.
//!
//! ```text
//! check configuration ─▶ open machine, take over running sandboxes ─▶ update store ─▶ listen
//! ```
//!
//! A shutdown does not stop sandboxes: a signal ends only the server, and the next `serve` takes over the
//! running sandboxes.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Error;
use api::account::{CreateKey, NewKey, Quota, Role};
use control::audit::{Act, Audit, Bounds, Entry, verify};
use control::store::Store;
use control::{Platform, account, follow};
use node::egress::Gate;
use node::{Machine, Node, clock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::{App, listen, routes};

use crate::configuration::Configuration;
use crate::telemetry::Telemetry;
use crate::{LocalOptions, platform, show};

/// Project that the first key belongs to.
const FIRST_PROJECT: &str = "default";

/// Timeout for the store at startup. On a busy machine, the store takes a second or two to respond.
const STORE_WITHIN: Duration = Duration::from_secs(15);
const STORE_AGAIN: Duration = Duration::from_millis(100);
/// Timeout for removing unused pre-warmed sandboxes at shutdown. Removing one takes milliseconds.
const POOL_WITHIN: Duration = Duration::from_secs(5);

/// Arguments of `bellglass serve`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass serve\n  bellglass serve --listen 127.0.0.1:0 --first-key /root/bellglass.key\n  \
    bellglass serve --config /etc/bellglass.toml\n  bellglass serve --print-config"
)]
pub struct Arguments {
    /// Configuration file. Settings that are missing in the file have their default values.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on, instead of the configured address. With port 0, the server chooses a free port and prints it.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// File to write the first key to, instead of printing the key. Only the owner of the file can read it. Ignored if the
    /// server already has keys.
    #[arg(long, value_name = "FILE")]
    first_key: Option<PathBuf>,
    /// Print the effective configuration, with the meaning of each value, and exit.
    #[arg(long)]
    print_config: bool,
}

/// Runs the server until a signal arrives.
pub async fn run(place: &LocalOptions, arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut configuration = Configuration::read(arguments.config.as_deref())?;
    if let Some(listen) = arguments.listen {
        configuration.listen = listen;
    }
    if !place.backends.is_empty() {
        configuration.backends.clone_from(&place.backends);
    }
    configuration.check()?;
    if arguments.print_config {
        show::line(configuration.explained().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let telemetry = Telemetry::begin(configuration.log, configuration.traces.as_deref())?;
    more_descriptors();
    no_core_files();
    let served = serve(&place.data, &configuration, arguments, &telemetry).await;
    telemetry.end().await;
    served
}

async fn serve(
    data: &Path,
    configuration: &Configuration,
    arguments: &Arguments,
    telemetry: &Telemetry,
) -> Result<ExitCode, Error> {
    let acceptor = configuration.tls()?.map(|files| listen::tls(&files));
    let acceptor = acceptor.transpose().map_err(|error| platform(node::error::chain(&error)))?;
    let machine = Machine::open(data).map_err(|error| error.to_api())?;
    let gate =
        Gate::new(&node::egress::packages(data), configuration.upstreams(), configuration.disk_reserve_bytes);
    // The server starts even without a working backend, so that it can explain why it cannot create sandboxes
    // (requirement A12.01).
    let choice = machine.choose(&configuration.backends).await;
    choice.log();
    let node = Node::open(&machine, choice, configuration.bounds(), gate).await;
    let node = node.map_err(|error| error.to_api())?;
    let store = patiently(async || Store::open(&data.join("bellglass.db")).await).await?;
    let log = data.join(crate::command::audit::LOG);
    let bounds = Bounds { bytes_max: configuration.audit_bytes_max };
    let audit =
        Audit::open(&log, clock::wall_ms(), bounds).map_err(|error| platform(node::error::chain(&error)))?;
    let new = first_key(&store).await?;
    let platform = Arc::new(Platform::new(node, store, audit).traced_by(telemetry.traces.clone()));
    let app = App::new(Arc::clone(&platform), configuration.domain()?);
    patiently(async || follow::begin(&platform).await).await?;
    let listener = listen::bind(configuration.listen).map_err(|error| Error {
        fix: "Stop the program that uses this address, or choose another address with --listen.".into(),
        ..crate::platform(format!("cannot listen on {}: {error}", configuration.listen))
    })?;
    let address = listener.local_addr().unwrap_or(configuration.listen);
    tokio::spawn(follow::follow(Arc::clone(&platform)));
    tokio::spawn(follow::look_after(Arc::clone(&platform)));
    tokio::spawn(follow::tidy(Arc::clone(&platform)));
    tokio::spawn(follow::note_use(Arc::clone(&platform)));
    tokio::spawn(follow::write_down(Arc::clone(&platform)));
    let trying = Arc::clone(&platform);
    tokio::spawn(async move { trying.try_sandboxes().await });
    tokio::spawn(listen::serve(listener, acceptor, routes::router(&app, &e2b::api(&app))));
    check_audit(platform.audit.clone(), log);
    platform.node.keep_ready(&configuration.pool_templates);
    platform.audit.record(Entry::new(clock::wall_ms(), Act::ServerStart));
    let scheme = if configuration.tls()?.is_some() { "https" } else { "http" };
    // The handler is installed before the address is printed, so that a signal immediately afterwards does
    // not kill the server.
    let signalled = crate::signalled()?;
    announce(&format!("{scheme}://{address}"), new.as_ref(), arguments)?;
    signalled.await;
    // The next server removes any pre-warmed sandboxes that remain.
    let _ = tokio::time::timeout(POOL_WITHIN, platform.node.close_pool()).await;
    let live = platform.node.status().sandboxes;
    if live > 0 {
        show::note(&format!(
            "{live} sandboxes keep running; the next `bellglass serve` takes over these sandboxes"
        ));
    }
    platform.audit.record(Entry::new(clock::wall_ms(), Act::ServerStop));
    platform.audit.flush().await;
    Ok(ExitCode::SUCCESS)
}

/// Verifies the audit log in the background, and logs an error if the log is damaged. The server keeps
/// running in that case, because it can still record new actions.
fn check_audit(audit: Audit, log: PathBuf) {
    tokio::task::spawn_blocking(move || {
        if let Err(damaged) = verify(&log, false, None) {
            tracing::error!("{damaged}; `bellglass audit verify` shows whether the log was repaired");
            let entry = Entry::new(clock::wall_ms(), Act::AuditBroken);
            audit.record(entry.detail(&format!("{}, line {}: {}", damaged.file, damaged.line, damaged.what)));
        }
    });
}

/// Retries an operation while the store does not respond. A startup may wait longer than a request.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, control::store::Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(value) => return Ok(value),
            Err(control::store::Error::Unavailable { .. }) if begun.elapsed() < STORE_WITHIN => {
                tokio::time::sleep(STORE_AGAIN).await;
            }
            Err(error) => return Err(platform(node::error::chain(&error))),
        }
    }
}

/// Creates the first key if the store has no keys. Without a key, the server could not be used.
async fn first_key(store: &Store) -> Result<Option<NewKey>, Error> {
    let failed = |error: control::store::Error| platform(node::error::chain(&error));
    if store.has_keys().await.map_err(failed)? {
        return Ok(None);
    }
    let now = clock::wall_ms();
    store.put_project(FIRST_PROJECT, &Quota::default(), now).await.map_err(failed)?;
    let label = "first".to_owned();
    let ask = CreateKey { project: FIRST_PROJECT.into(), role: Role::Admin, label, valid_ms: None };
    let (new, hash) = account::mint(&ask, now).map_err(|fault| fault.error().clone())?;
    store.create_key(&new.key, &hash).await.map_err(failed)?;
    Ok(Some(new))
}

fn announce(url: &str, new: Option<&NewKey>, arguments: &Arguments) -> Result<(), Error> {
    if let Some(new) = new {
        match &arguments.first_key {
            Some(path) => write_key(path, &new.secret)?,
            None => show::line(&format!(
                "First key (role admin, project {FIRST_PROJECT}). It is shown only once.\n\n  \
                 export BELLGLASS_SERVER={url}\n  export BELLGLASS_API_KEY={}\n",
                new.secret
            ))?,
        }
    }
    // The server keeps running even if this line cannot be written.
    let _ = show::line(&format!("bellglass serves {url}"));
    Ok(())
}

fn write_key(path: &Path, secret: &str) -> Result<(), Error> {
    // An existing file may be open in another process, or may be a symlink to a different file. A new file
    // therefore replaces it.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let write = || {
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&fresh)?;
        writeln!(file, "{secret}")?;
        std::fs::rename(&fresh, path)
    };
    write().map_err(|error| Error {
        fix: "The key is lost. Fix the path, move bellglass.db out of the data directory and start the server again.".into(),
        ..platform(format!("cannot write the first key to {}: {error}", path.display()))
    })
}

/// Raises the limit on open descriptors to its maximum. Each sandbox needs four descriptors and each
/// connection needs one, so the usual limit is far too low for a full machine.
fn more_descriptors() {
    let now = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: now.maximum, maximum: now.maximum };
    let _ = setrlimit(Resource::Nofile, wanted);
}

/// Disables core files, because the memory of this process contains secrets.
fn no_core_files() {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
