//! Routes of the public API. Each handler performs its checks explicitly, from top to bottom.
//!
//! | module | routes |
//! |---|---|
//! | [`sandboxes`] | create, list, get, stop, pause, resume, idle timeout, policy, packages, usage, traces, events |
//! | [`execs`] | start, list, get, read, write, signal, cancel |
//! | [`contexts`] | persistent interpreters: create, list, get, restart, interrupt, remove, list variables |
//! | [`ports`] | URLs of ports, public access to ports, tunnels |
//! | [`terminals`] | WebSockets for terminals, terminal size |
//! | [`files`] | get, list, read, write, make directory, move, copy, remove, edit, watch, archive |
//! | [`artifacts`] | retained files of execs |
//! | [`datasets`] | put, list, remove |
//! | [`sessions`] | create, list, get, end, clean up, datasets, tool calls, runs, artifacts, events |
//! | [`tools`] | tool sets: definitions and instructions |
//! | [`secrets`] | set, list, remove |
//! | [`admin`] | projects, keys, the machine |
//! | [`health`] | health, metrics, the API description |

pub mod admin;
pub mod artifacts;
pub mod contexts;
pub mod datasets;
pub mod execs;
pub mod files;
pub mod health;
pub mod ports;
pub mod sandboxes;
pub mod secrets;
pub mod sessions;
pub mod terminals;
pub mod tools;

use std::sync::Arc;
use std::time::Instant;

use api::server::{API_VERSION, VERSION_HEADER};
use api::terminal::{TerminalEvent, TerminalRequest};
use api::{Error, ErrorCode};
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tracing::Instrument as _;
use utoipa::OpenApi;

use crate::app::App;
use crate::authority::cut::Slot;
use crate::authority::table::{On, Row, Table};
use crate::ports::ServedPorts;
use crate::rejection::Rejection;
use control::Platform;
use control::trace::PARENT_HEADER;

#[derive(OpenApi)]
#[openapi(
    info(title = "Bellglass", description = "Run untrusted code in sealed sandboxes on machines you own."),
    tags(
        (name = "sandboxes", description = "Create, inspect and stop sandboxes; follow their events."),
        (name = "execs", description = "Run commands and code in a sandbox, and read their output."),
        (name = "terminals", description = "Interactive terminals over a WebSocket."),
        (name = "contexts", description = "Persistent interpreters that keep variables between cells."),
        (name = "files", description = "Read, write, list, watch and archive files in a sandbox."),
        (name = "ports", description = "Access to network ports in a sandbox."),
        (name = "policy", description = "Egress policy of a sandbox, and the packages that it received."),
        (name = "artifacts", description = "Files kept from execs, available after the sandbox is gone."),
        (name = "datasets", description = "Files that a project stores, to be copied into sandboxes."),
        (name = "secrets", description = "Values that code can use in requests but cannot read."),
        (name = "sessions", description = "Tool calls of an agent, with their runs, datasets and artifacts."),
        (name = "tools", description = "Tool definitions and instructions for LLMs."),
        (name = "keys", description = "API keys. Requires the role `admin`."),
        (name = "projects", description = "Projects and their quotas. Requires the role `admin`."),
        (name = "machine", description = "Status, health and metrics of the machine."),
    ),
    components(schemas(Error, api::layer::Compression, api::files::Hashing, TerminalEvent, TerminalRequest)),
    modifiers(&Security)
)]
struct Description;

struct Security;

impl utoipa::Modify for Security {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = openapi.components.get_or_insert_with(Default::default);
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
    }
}

/// Returns the route table of the public API.
fn native() -> Table<App> {
    let table = Table::new(Description::openapi());
    with_administration(with_files_and_sessions(with_sandboxes(table)))
}

fn with_sandboxes(table: Table<App>) -> Table<App> {
    table
        .described(sandboxes::__path_create, sandboxes::create)
        .described(sandboxes::__path_list, sandboxes::list)
        .described(sandboxes::__path_look, sandboxes::look)
        .described(sandboxes::__path_stop, sandboxes::stop)
        .described(sandboxes::__path_pause, sandboxes::pause)
        .described(sandboxes::__path_resume, sandboxes::resume)
        .described(sandboxes::__path_lease, sandboxes::lease)
        .described(sandboxes::policy::__path_put, sandboxes::policy::put)
        .described(sandboxes::policy::__path_packages, sandboxes::policy::packages)
        .described(sandboxes::__path_usage, sandboxes::usage)
        .described(sandboxes::__path_traces, sandboxes::traces)
        .described(sandboxes::events::__path_follow, sandboxes::events::follow)
        .described(execs::__path_start, execs::start)
        .described(execs::__path_list, execs::list)
        .described(execs::__path_look, execs::look)
        .described(execs::__path_cancel, execs::cancel)
        .described(execs::__path_output, execs::output)
        .described(execs::__path_read, execs::read)
        .described(execs::__path_stdin, execs::stdin)
        .described(execs::__path_signal, execs::signal)
        .described(contexts::__path_create, contexts::create)
        .described(contexts::__path_list, contexts::list)
        .described(contexts::__path_look, contexts::look)
        .described(contexts::__path_remove, contexts::remove)
        .described(contexts::__path_restart, contexts::restart)
        .described(contexts::__path_interrupt, contexts::interrupt)
        .described(contexts::__path_variables, contexts::variables)
        .described(ports::__path_look, ports::look)
        .described(ports::__path_put, ports::put)
        .described(ports::__path_tunnel, ports::tunnel)
        .described(terminals::__path_open, terminals::open)
        .described(terminals::__path_resize, terminals::resize)
}

fn with_files_and_sessions(table: Table<App>) -> Table<App> {
    table
        .described(files::__path_look, files::look)
        .described(files::__path_remove, files::remove)
        .described(files::__path_list, files::list)
        .described(files::__path_hash, files::hash)
        .described(files::__path_make, files::make)
        .described(files::__path_rename, files::rename)
        .described(files::__path_copy, files::copy)
        .described(files::__path_edit, files::edit)
        .described(files::watch::__path_watch, files::watch::watch)
        .described(files::content::__path_read, files::content::read)
        .described(files::content::__path_write, files::content::write)
        .described(files::archive::__path_pack, files::archive::pack)
        .described(files::archive::__path_unpack, files::archive::unpack)
        .described(artifacts::__path_look, artifacts::look)
        .described(artifacts::__path_list, artifacts::list)
        .described(artifacts::__path_read, artifacts::read)
        .described(datasets::__path_list, datasets::list)
        .described(datasets::__path_put, datasets::put)
        .described(datasets::__path_remove, datasets::remove)
        .described(sessions::__path_create, sessions::create)
        .described(sessions::__path_list, sessions::list)
        .described(sessions::__path_look, sessions::look)
        .described(sessions::__path_end, sessions::end)
        .described(sessions::__path_clean_up, sessions::clean_up)
        .described(sessions::__path_put_dataset, sessions::put_dataset)
        .described(sessions::__path_call, sessions::call)
        .described(sessions::runs::__path_list, sessions::runs::list)
        .described(sessions::runs::__path_look, sessions::runs::look)
        .described(sessions::runs::__path_output, sessions::runs::output)
        .described(sessions::__path_artifacts, sessions::artifacts)
        .described(sessions::__path_clear, sessions::clear)
        .described(sessions::__path_artifact, sessions::artifact)
        .described(sessions::events::__path_follow, sessions::events::follow)
        .described(tools::__path_list, tools::list)
        .described(tools::__path_prompt, tools::prompt)
}

fn with_administration(table: Table<App>) -> Table<App> {
    table
        .described(secrets::__path_list, secrets::list)
        .described(secrets::__path_put, secrets::put)
        .described(secrets::__path_remove, secrets::remove)
        .described(admin::__path_projects, admin::projects)
        .described(admin::__path_put_project, admin::put_project)
        .described(admin::__path_keys, admin::keys)
        .described(admin::__path_create_key, admin::create_key)
        .described(admin::__path_revoke_key, admin::revoke_key)
        .described(admin::__path_rotate_key, admin::rotate_key)
        .described(admin::__path_node, admin::node)
        .described(admin::__path_drain, admin::drain)
        .described(health::__path_health, health::health)
        .described(health::__path_metrics, health::metrics)
        .described(health::__path_description, health::description)
}

/// Returns the description of the public API.
pub fn description() -> utoipa::openapi::OpenApi {
    crate::description::simplify(native().into_description())
}

/// The API of a third-party vendor, which this server offers to that vendor's SDKs.
pub struct VendorApi {
    /// Routes at the API's address.
    pub routes: Table<App>,
    /// Routes inside each sandbox. They are also served at the API's address, where a header names the
    /// sandbox.
    pub inside: Table<App>,
    /// Ports at which `inside` is served for every sandbox.
    pub inside_ports: &'static [u16],
}

/// Returns the routes of this crate.
fn own() -> Table<App> {
    native().route(On::Any, "/mcp", crate::mcp::serve)
}

/// Returns each route of this crate with its need, the credential that it requires.
pub fn rows() -> Vec<Row> {
    own().into_rows()
}

/// Returns the router of the whole server: the public API, the vendor's API, and the ports of sandboxes.
pub fn router(app: &App, vendor: &VendorApi) -> Router {
    let complete = |table: Table<App>| {
        table
            .into_router()
            .fallback(|| async { Rejection::from(Error::not_found("there is no such route")) })
            .method_not_allowed_fallback(|| async {
                let other = Error::invalid(
                    "this route does not support the method of the request",
                    "See the API description.",
                );
                (StatusCode::METHOD_NOT_ALLOWED, Rejection::from(other)).into_response()
            })
            .layer(middleware::from_fn_with_state(Arc::clone(&app.platform), attend))
            .with_state(app.clone())
    };
    let inside = ServedPorts { ports: vendor.inside_ports, routes: complete(vendor.inside.clone()) };
    let table = own().and(vendor.routes.clone()).and(vendor.inside.clone());
    crate::ports::before(complete(table), inside, app)
}

/// Handles every request as middleware. Checks the API version, counts and traces the request, aborts its
/// body and its response when its grant ends, and logs the result in one line.
async fn attend(State(platform): State<Arc<Platform>>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let parent = request.headers().get(PARENT_HEADER).and_then(|value| value.to_str().ok());
    let span = platform.traces.of_request(method.as_str(), &route, parent);
    let slot = Slot::default();
    request.extensions_mut().insert(slot.clone());
    let mut response = match spoken(&request) {
        Ok(()) => slot.guard(next.run(slot.guard_request(request)).instrument(span).await),
        Err(fault) => fault.into_response(),
    };
    response.headers_mut().insert(VERSION_HEADER, HeaderValue::from(API_VERSION));
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    platform.metrics.answered(&route, method.as_str(), status, took);
    tracing::info!(%method, route, status, ms = node::clock::millis(took), "request answered");
    response
}

/// Rejects a client with a different API version before its request is handled.
fn spoken(request: &Request) -> Result<(), Rejection> {
    let Some(version) = request.headers().get(VERSION_HEADER) else { return Ok(()) };
    if version.to_str().ok().and_then(|text| text.parse().ok()) == Some(API_VERSION) {
        return Ok(());
    }
    let shown = version.to_str().unwrap_or("unknown").chars().take(20).collect::<String>();
    Err(Error {
        code: ErrorCode::VersionUnsupported,
        ..Error::invalid(
            format!("the client uses version {shown} of the API, but this server uses version {API_VERSION}"),
            "Use a client and a server of matching releases.",
        )
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_that_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = description().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("BELLGLASS_WRITE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == text,
            "docs/openapi.json is outdated; BELLGLASS_WRITE=1 regenerates it"
        );
    }
}
