//! E2B's API on top of Bellglass sandboxes, for E2B's unmodified SDKs.
//!
//! | module | contents |
//! |---|---|
//! | [`sandboxes`] | sandboxes: create, connect, kill, list, timeout, metrics, logs |
//! | [`list`] | the list of a project's sandboxes, in pages |
//! | [`shown`] | sandboxes as E2B represents them |
//! | [`templates`] | the list of templates |
//! | [`builder`] | requests of the SDKs to build templates |
//! | [`builds`] | the state of template builds |
//! | [`steps`] | conversion of build steps into a recipe |
//! | [`network`] | conversion of network options into a policy |
//! | [`who`] | authorization: finds the sandbox of a request by its headers, host or signature |
//! | [`connect`] | remote procedure calls: messages in JSON, with envelopes on streams |
//! | [`process`] | commands and terminals |
//! | [`input`] | input of commands and terminals |
//! | [`running`] | output of commands and terminals, for any number of listeners |
//! | [`filesystem`] | file operations by path: stat, list, create, move, remove |
//! | [`watch`] | file events |
//! | [`content`] | upload and download of files |
//! | [`form`] | uploads in multipart forms |
//! | [`code`] | code and contexts |
//! | [`results`] | output and results of code, as lines |
//! | [`fault`] | errors in the form that the SDKs understand |
//!
//! Sandboxes contain no additional agent for this API: the server translates each request into operations
//! that the guest already supports. The only additional state is in [`Clients`]: processes, watchers and
//! builds. A sandbox created through this API is an ordinary sandbox, and any sandbox can be used through
//! this API.

#![forbid(unsafe_code)]

mod builder;
mod builds;
mod code;
mod connect;
mod content;
mod fault;
mod filesystem;
mod form;
mod input;
mod list;
mod network;
mod place;
mod process;
mod results;
mod running;
mod sandboxes;
mod shown;
mod steps;
mod templates;
mod time;
mod watch;
mod who;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, FromRef};
use axum::middleware;
use control::Platform;
use server::ports::Ports;
use server::{App, VendorApi};
use tokio::sync::Semaphore;

use server::authority::table::{On, Row, Table};

use builds::Builds;
use running::Processes;
use watch::Watchers;

/// Port of E2B's agent, to which its SDKs send requests for commands and files.
const AGENT_PORT: u16 = 49983;
/// Port of E2B's code interpreter.
const CODE_PORT: u16 = 49999;

/// State of the routes of this crate.
#[derive(Clone)]
struct Adapter {
    platform: Arc<Platform>,
    ports: Arc<Ports>,
    clients: Arc<Clients>,
}

/// State of clients that use E2B's SDKs. It is not part of any sandbox.
struct Clients {
    /// Running processes, and the clients that follow their output.
    processes: Processes,
    /// Watchers that clients poll for changes of files.
    watchers: Watchers,
    /// Template builds.
    builds: Builds,
    /// Permit to search for the sandbox whose token signed a URL. Only one search runs at a time.
    signers: Semaphore,
}

impl Default for Clients {
    fn default() -> Self {
        let (processes, watchers, builds) = (Processes::default(), Watchers::default(), Builds::default());
        Self { processes, watchers, builds, signers: Semaphore::new(1) }
    }
}

impl FromRef<Adapter> for Arc<Platform> {
    fn from_ref(adapter: &Adapter) -> Self {
        Arc::clone(&adapter.platform)
    }
}

/// Returns the routes of E2B's API for a server.
pub fn api(app: &App) -> VendorApi {
    let (platform, ports) = (Arc::clone(&app.platform), Arc::clone(&app.ports));
    let adapter = Adapter { platform, ports, clients: Arc::default() };
    VendorApi {
        routes: outside().with_state(adapter.clone()),
        inside: inside().with_state(adapter),
        inside_ports: &[AGENT_PORT, CODE_PORT],
    }
}

/// Returns all routes of this crate, with the need of each.
pub fn rows() -> Vec<Row> {
    outside().and(inside()).into_rows()
}

/// Returns the routes of E2B's control API, for current and older SDKs.
fn outside() -> Table<Adapter> {
    // Archives are streamed to disk, so the limit on bodies in memory does not apply.
    let uploads = Table::default()
        .route(On::Get, "/templates/{template}/files/{archive}", builder::files)
        .route(On::Put, "/templates/{template}/files/{archive}", builder::receive)
        .layered(|router| router.layer(DefaultBodyLimit::disable()));
    sandbox_routes().and(template_routes()).and(uploads)
}

fn sandbox_routes() -> Table<Adapter> {
    Table::default()
        .route(On::Post, "/v2/sandboxes", sandboxes::create)
        .route(On::Get, "/v2/sandboxes", list::page)
        .route(On::Post, "/sandboxes", sandboxes::create)
        .route(On::Get, "/sandboxes", list::all)
        .route(On::Post, "/v2/sandboxes/{sandbox}/connect", sandboxes::connect)
        .route(On::Post, "/sandboxes/{sandbox}/connect", sandboxes::connect)
        .route(On::Post, "/sandboxes/{sandbox}/resume", sandboxes::resume)
        .route(On::Get, "/sandboxes/{sandbox}", sandboxes::look)
        .route(On::Delete, "/sandboxes/{sandbox}", sandboxes::kill)
        .route(On::Post, "/sandboxes/{sandbox}/timeout", sandboxes::timeout)
        .route(On::Post, "/sandboxes/{sandbox}/pause", sandboxes::pause)
        .route(On::Post, "/sandboxes/{sandbox}/refreshes", sandboxes::refresh)
        .route(On::Get, "/sandboxes/{sandbox}/metrics", sandboxes::metrics)
        .route(On::Put, "/sandboxes/{sandbox}/network", network::put)
        .route(On::Get, "/sandboxes/{sandbox}/logs", sandboxes::logs)
        .route(On::Get, "/v2/sandboxes/{sandbox}/logs", sandboxes::logs)
        .route(On::Post, "/sandboxes/{sandbox}/snapshots", sandboxes::no_snapshots)
        .route(On::Post, "/sandboxes/{sandbox}/fork", sandboxes::no_snapshots)
        .route(On::Get, "/snapshots", sandboxes::no_snapshots)
        .route(On::Get, "/volumes", sandboxes::no_volumes)
        .route(On::Post, "/volumes", sandboxes::no_volumes)
        .route(On::Get, "/volumes/{volume}", sandboxes::no_volumes)
        .route(On::Delete, "/volumes/{volume}", sandboxes::no_volumes)
        .route(On::Get, "/secrets", sandboxes::no_secrets)
        .route(On::Post, "/secrets", sandboxes::no_secrets)
        .route(On::Any, "/secrets/{secret}", sandboxes::no_secrets)
}

fn template_routes() -> Table<Adapter> {
    Table::default()
        .route(On::Get, "/templates", templates::list)
        .route(On::Post, "/templates", templates::not_here)
        .route(On::Get, "/templates/aliases/{alias}", templates::alias)
        .route(On::Post, "/v3/templates", builder::request)
        .route(On::Post, "/v2/templates/{template}/builds/{build}", builder::begin)
        .route(On::Get, "/templates/{template}/builds/{build}/status", builder::status)
        .route(On::Any, "/templates/tags", templates::not_here)
        .route(On::Any, "/templates/{template}/tags", templates::not_here)
        .route(On::Any, "/templates/{template}", templates::not_here)
}

/// Returns the routes of E2B's agent and code interpreter, which act inside a sandbox.
fn inside() -> Table<Adapter> {
    let streams = Table::default()
        .route(On::Post, "/process.Process/Start", process::start)
        .route(On::Post, "/process.Process/Connect", process::connect)
        .route(On::Post, "/process.Process/StreamInput", input::stream_input)
        .route(On::Post, "/filesystem.Filesystem/WatchDir", watch::stream)
        .layered(|router| router.layer(middleware::map_response(connect::as_a_stream)));
    // A file can be as large as the sandbox's disk. The server streams it and never holds all of it in
    // memory, so the limit on bodies in memory does not apply.
    let files = Table::default()
        .route(On::Get, "/files", content::read)
        .route(On::Post, "/files", content::write)
        .layered(|router| router.layer(DefaultBodyLimit::disable()));
    streams
        .and(files)
        .route(On::Get, "/health", content::health)
        .route(On::Post, "/process.Process/List", process::list)
        .route(On::Post, "/process.Process/SendInput", input::send_input)
        .route(On::Post, "/process.Process/SendSignal", process::send_signal)
        .route(On::Post, "/process.Process/CloseStdin", input::close_stdin)
        .route(On::Post, "/process.Process/Update", process::update)
        .route(On::Post, "/filesystem.Filesystem/Stat", filesystem::stat)
        .route(On::Post, "/filesystem.Filesystem/MakeDir", filesystem::make)
        .route(On::Post, "/filesystem.Filesystem/Move", filesystem::rename)
        .route(On::Post, "/filesystem.Filesystem/ListDir", filesystem::list)
        .route(On::Post, "/filesystem.Filesystem/Remove", filesystem::remove)
        .route(On::Post, "/filesystem.Filesystem/CreateWatcher", watch::create)
        .route(On::Post, "/filesystem.Filesystem/GetWatcherEvents", watch::events)
        .route(On::Post, "/filesystem.Filesystem/RemoveWatcher", watch::remove)
        .route(On::Post, "/execute", code::execute)
        .route(On::Get, "/contexts", code::list)
        .route(On::Post, "/contexts", code::create)
        .route(On::Delete, "/contexts/{context}", code::remove)
        .route(On::Post, "/contexts/{context}/restart", code::restart)
}
