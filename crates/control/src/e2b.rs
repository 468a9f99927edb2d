//! The API of E2B over our own sandboxes: its SDKs, unmodified, find what they expect.
//!
//! | module | holds |
//! |---|---|
//! | [`control`] | sandboxes: create, connect, kill, list, timeout, metrics, logs |
//! | [`list`] | those of a project, in pages |
//! | [`shown`] | sandboxes as E2B shows them |
//! | [`templates`] | which templates there are |
//! | [`builder`] | templates that its SDKs build |
//! | [`builds`] | how far those are |
//! | [`steps`] | their steps as a recipe of ours |
//! | [`network`] | its network options as a policy |
//! | [`who`] | whose sandbox a request is for, by headers, by host or by a signature, and whether it may |
//! | [`connect`] | its remote procedure calls: JSON, with envelopes where they stream |
//! | [`process`] | commands and terminals |
//! | [`input`] | their input |
//! | [`running`] | their output, for as many as listen |
//! | [`filesystem`] | files by name: look, list, make, move, remove |
//! | [`watch`] | what happens to files |
//! | [`content`] | files themselves, up and down |
//! | [`form`] | files as parts of a form |
//! | [`code`] | code and contexts |
//! | [`results`] | what code writes and shows, as lines |
//! | [`fault`] | refusals in the words its SDKs understand |
//!
//! There is no second agent inside: everything becomes what the guest knows already. Nothing is kept for it either, but who listens to
//! which process: a sandbox made here is one like any other, and every other one can be reached from here.

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

/// The port of E2B's agent, where its SDKs find commands and files.
pub const AGENT_PORT: u16 = 49983;
/// The port of its code interpreter.
pub const CODE_PORT: u16 = 49999;

/// What is kept for clients of E2B's SDKs.
pub struct State {
    /// Who listens to which process.
    pub processes: Processes,
    /// Who asks again and again what happened to files.
    pub watchers: Watchers,
    /// Templates that are being built.
    pub builds: Builds,
    /// Whoever has it looks for the sandbox that signed an address.
    signers: Semaphore,
}

impl Default for State {
    fn default() -> Self {
        let (processes, watchers, builds) = (Processes::default(), Watchers::default(), Builds::default());
        Self { processes, watchers, builds, signers: Semaphore::new(1) }
    }
}

/// Sandboxes, as its SDKs and the older ones of them ask for them.
pub fn outside() -> Table {
    // An archive is never held whole.
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

/// What is in a sandbox, as its SDKs ask its agent and its code interpreter.
pub fn inside() -> Table {
    let streams = Table::default()
        .route(On::Post, "/process.Process/Start", process::start)
        .route(On::Post, "/process.Process/Connect", process::connect)
        .route(On::Post, "/process.Process/StreamInput", input::stream_input)
        .route(On::Post, "/filesystem.Filesystem/WatchDir", watch::stream)
        .layered(|router| router.layer(middleware::map_response(connect::as_a_stream)));
    // A file may be as long as its disk, and is never held whole.
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
