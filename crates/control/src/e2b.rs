//! E2B's API on top of Bellglass sandboxes, for E2B's unmodified SDKs.
//!
//! | module | holds |
//! |---|---|
//! | [`control`] | sandboxes: create, connect, kill, list, timeout, metrics, logs |
//! | [`list`] | the list of a project's sandboxes, in pages |
//! | [`shown`] | sandboxes as E2B represents them |
//! | [`templates`] | the list of templates |
//! | [`builder`] | templates that the SDKs build |
//! | [`builds`] | the state of these builds |
//! | [`steps`] | conversion of build steps into a recipe |
//! | [`network`] | conversion of network options into a policy |
//! | [`who`] | authorization: the sandbox of a request, by headers, by host or by a signature |
//! | [`connect`] | remote procedure calls: JSON, with envelopes on streams |
//! | [`process`] | commands and terminals |
//! | [`input`] | their input |
//! | [`running`] | their output, for any number of listeners |
//! | [`filesystem`] | file operations by path: stat, list, create, move, remove |
//! | [`watch`] | file events |
//! | [`content`] | upload and download of files |
//! | [`form`] | uploads in multipart forms |
//! | [`code`] | code and contexts |
//! | [`results`] | output and results of code, as lines |
//! | [`fault`] | errors in the form that the SDKs understand |
//!
//! A sandbox has no second agent: the server translates each request into operations that the guest already
//! supports. The only extra state is in [`State`]: processes, watchers and builds. A sandbox created here is
//! like any other, and every other sandbox can be used from here.

mod builder;
mod builds;
mod code;
mod connect;
mod content;
mod control;
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
mod shown;
mod steps;
mod templates;
mod time;
mod watch;
mod who;

use axum::extract::DefaultBodyLimit;
use axum::middleware;
use tokio::sync::Semaphore;

use crate::authority::table::{On, Table};

pub use builds::Builds;
pub use running::Processes;
pub use watch::Watchers;
pub use who::{Named, TRAFFIC_TOKEN};

/// Port of E2B's agent, to which its SDKs send requests for commands and files.
pub const AGENT_PORT: u16 = 49983;
/// Port of E2B's code interpreter.
pub const CODE_PORT: u16 = 49999;

/// State of the server for clients of E2B's SDKs.
pub struct State {
    /// Processes, with their listeners.
    pub processes: Processes,
    /// File watchers of clients that poll for events.
    pub watchers: Watchers,
    /// Template builds.
    pub builds: Builds,
    /// Permit to search for the signer of a URL. Only one exists, because a search tries every sandbox.
    signers: Semaphore,
}

impl Default for State {
    fn default() -> Self {
        let (processes, watchers, builds) = (Processes::default(), Watchers::default(), Builds::default());
        Self { processes, watchers, builds, signers: Semaphore::new(1) }
    }
}

/// Returns the routes of E2B's control API, for current and older SDKs.
pub fn outside() -> Table {
    // Archives are streamed to disk, so the limit on bodies in memory does not apply.
    let uploads = Table::default()
        .route(On::Get, "/templates/{template}/files/{archive}", builder::files)
        .route(On::Put, "/templates/{template}/files/{archive}", builder::receive)
        .layered(|router| router.layer(DefaultBodyLimit::disable()));
    sandboxes().and(templates_and_builds()).and(uploads)
}

fn sandboxes() -> Table {
    Table::default()
        .route(On::Post, "/v2/sandboxes", control::create)
        .route(On::Get, "/v2/sandboxes", list::page)
        .route(On::Post, "/sandboxes", control::create)
        .route(On::Get, "/sandboxes", list::all)
        .route(On::Post, "/v2/sandboxes/{sandbox}/connect", control::connect)
        .route(On::Post, "/sandboxes/{sandbox}/connect", control::connect)
        .route(On::Post, "/sandboxes/{sandbox}/resume", control::resume)
        .route(On::Get, "/sandboxes/{sandbox}", control::look)
        .route(On::Delete, "/sandboxes/{sandbox}", control::kill)
        .route(On::Post, "/sandboxes/{sandbox}/timeout", control::timeout)
        .route(On::Post, "/sandboxes/{sandbox}/pause", control::pause)
        .route(On::Post, "/sandboxes/{sandbox}/refreshes", control::refresh)
        .route(On::Get, "/sandboxes/{sandbox}/metrics", control::metrics)
        .route(On::Put, "/sandboxes/{sandbox}/network", network::put)
        .route(On::Get, "/sandboxes/{sandbox}/logs", control::logs)
        .route(On::Get, "/v2/sandboxes/{sandbox}/logs", control::logs)
        .route(On::Post, "/sandboxes/{sandbox}/snapshots", control::no_snapshots)
        .route(On::Post, "/sandboxes/{sandbox}/fork", control::no_snapshots)
        .route(On::Get, "/snapshots", control::no_snapshots)
        .route(On::Get, "/volumes", control::no_volumes)
        .route(On::Post, "/volumes", control::no_volumes)
        .route(On::Get, "/volumes/{volume}", control::no_volumes)
        .route(On::Delete, "/volumes/{volume}", control::no_volumes)
        .route(On::Get, "/secrets", control::no_secrets)
        .route(On::Post, "/secrets", control::no_secrets)
        .route(On::Any, "/secrets/{secret}", control::no_secrets)
}

fn templates_and_builds() -> Table {
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
pub fn inside() -> Table {
    let streams = Table::default()
        .route(On::Post, "/process.Process/Start", process::start)
        .route(On::Post, "/process.Process/Connect", process::connect)
        .route(On::Post, "/process.Process/StreamInput", input::stream_input)
        .route(On::Post, "/filesystem.Filesystem/WatchDir", watch::stream)
        .layered(|router| router.layer(middleware::map_response(connect::as_a_stream)));
    // A file can be as large as the sandbox's disk, and is streamed, never held in memory as a whole.
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
