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
//! | [`running`] | their output, for as many as listen |
//! | [`filesystem`] | files by name: look, list, make, move, remove |
//! | [`watch`] | what happens to files |
//! | [`content`] | files themselves, up and down |
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

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::{any, delete, get, post, put};

use crate::platform::Platform;

pub use builds::Builds;
pub use running::Processes;
pub use watch::Watchers;
pub use who::{Named, TRAFFIC_TOKEN};

/// The port of E2B's agent, where its SDKs find commands and files.
pub const AGENT_PORT: u16 = 49983;
/// The port of its code interpreter.
pub const CODE_PORT: u16 = 49999;

/// What is kept for clients of E2B's SDKs.
#[derive(Default)]
pub struct State {
    /// Who listens to which process.
    pub processes: Processes,
    /// Who asks again and again what happened to files.
    pub watchers: Watchers,
    /// Templates that are being built.
    pub builds: Builds,
}

/// Sandboxes, as its SDKs and the older ones of them ask for them.
pub fn outside() -> Router<Arc<Platform>> {
    let (create, connect) = (post(control::create), post(control::connect));
    // What is copied is never held whole.
    let files = get(builder::files).put(builder::receive).layer(DefaultBodyLimit::disable());
    Router::new()
        .route("/v2/sandboxes", create.clone().get(list::page))
        .route("/sandboxes", create.get(list::all))
        .route("/v2/sandboxes/{sandbox}/connect", connect.clone())
        .route("/sandboxes/{sandbox}/connect", connect)
        .route("/sandboxes/{sandbox}/resume", post(control::resume))
        .route("/sandboxes/{sandbox}", get(control::look).delete(control::kill))
        .route("/sandboxes/{sandbox}/timeout", post(control::timeout))
        .route("/sandboxes/{sandbox}/pause", post(control::pause))
        .route("/sandboxes/{sandbox}/refreshes", post(control::refresh))
        .route("/sandboxes/{sandbox}/metrics", get(control::metrics))
        .route("/sandboxes/{sandbox}/network", put(network::put))
        .route("/sandboxes/{sandbox}/logs", get(control::logs))
        .route("/v2/sandboxes/{sandbox}/logs", get(control::logs))
        .route("/sandboxes/{sandbox}/snapshots", post(control::no_snapshots))
        .route("/sandboxes/{sandbox}/fork", post(control::no_snapshots))
        .route("/snapshots", get(control::no_snapshots))
        .route("/volumes", get(control::no_volumes).post(control::no_volumes))
        .route("/volumes/{volume}", get(control::no_volumes).delete(control::no_volumes))
        .route("/secrets", get(control::no_secrets).post(control::no_secrets))
        .route("/secrets/{secret}", any(control::no_secrets))
        .route("/templates", get(templates::list).post(templates::not_here))
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/v3/templates", post(builder::request))
        .route("/templates/{template}/files/{archive}", files)
        .route("/v2/templates/{template}/builds/{build}", post(builder::begin))
        .route("/templates/{template}/builds/{build}/status", get(builder::status))
        .route("/templates/tags", any(templates::not_here))
        .route("/templates/{template}/tags", any(templates::not_here))
        .route("/templates/{template}", any(templates::not_here))
}

/// What is in a sandbox, as its SDKs ask its agent and its code interpreter.
pub fn inside() -> Router<Arc<Platform>> {
    let streams = Router::new()
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route("/filesystem.Filesystem/WatchDir", post(watch::stream))
        .layer(middleware::map_response(connect::as_a_stream));
    Router::new()
        .merge(streams)
        .route("/health", get(content::health))
        // A file may be as long as its disk, and is never held whole.
        .route("/files", get(content::read).post(content::write).layer(DefaultBodyLimit::disable()))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/process.Process/Update", post(process::update))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route("/filesystem.Filesystem/CreateWatcher", post(watch::create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watch::events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watch::remove))
        .route("/execute", post(code::execute))
        .route("/contexts", get(code::list).post(code::create))
        .route("/contexts/{context}", delete(code::remove))
        .route("/contexts/{context}/restart", post(code::restart))
}
