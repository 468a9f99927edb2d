//! The routes of the public API. A handler reads from top to bottom as the policy it carries out.
//!
//! | module | routes |
//! |---|---|
//! | [`sandboxes`] | create, list, look, stop, lease, policy, packages, usage, trace, events |
//! | [`execs`] | start, list, look, read, write, signal, cancel |
//! | [`contexts`] | interpreters that stay: create, list, look, restart, interrupt, remove, variables |
//! | [`ports`] | how a port is reached, opening it to everybody, tunnels |
//! | [`terminals`] | the WebSocket of a terminal, its size |
//! | [`files`] | look, list, read, write, make, move, copy, remove, edit, watch, archives |
//! | [`artifacts`] | what was kept of the files of execs |
//! | [`datasets`] | put, list, remove |
//! | [`sessions`] | create, list, look, end, clean up, datasets, tool calls, runs, artifacts, events |
//! | [`tools`] | tool sets: definitions and instructions |
//! | [`secrets`] | set, list, remove |
//! | [`admin`] | projects, keys, the machine |
//! | [`health`] | health, metrics, the description of the API |

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
use axum::routing::any;
use tracing::Instrument as _;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::fault::Fault;
use crate::platform::Platform;
use crate::trace::PARENT_HEADER;

#[derive(OpenApi)]
#[openapi(
    info(title = "Belljar", description = "Runs code that nobody has read yet, sealed, on machines you own."),
    components(schemas(Error, TerminalEvent, TerminalRequest)),
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

fn table() -> OpenApiRouter<Arc<Platform>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::look, sandboxes::stop))
        .routes(routes!(sandboxes::lease))
        .routes(routes!(sandboxes::policy))
        .routes(routes!(sandboxes::packages))
        .routes(routes!(sandboxes::usage))
        .routes(routes!(sandboxes::traces))
        .routes(routes!(sandboxes::events))
        .routes(routes!(execs::start, execs::list))
        .routes(routes!(execs::look, execs::cancel))
        .routes(routes!(execs::output))
        .routes(routes!(execs::read))
        .routes(routes!(execs::stdin))
        .routes(routes!(execs::signal))
        .routes(routes!(contexts::create, contexts::list))
        .routes(routes!(contexts::look, contexts::remove))
        .routes(routes!(contexts::restart))
        .routes(routes!(contexts::interrupt))
        .routes(routes!(contexts::variables))
        .routes(routes!(ports::look, ports::put))
        .routes(routes!(ports::tunnel))
        .routes(routes!(terminals::open))
        .routes(routes!(terminals::resize))
        .routes(routes!(files::look, files::remove))
        .routes(routes!(files::list))
        .routes(routes!(files::hash))
        .routes(routes!(files::make))
        .routes(routes!(files::rename))
        .routes(routes!(files::copy))
        .routes(routes!(files::edit))
        .routes(routes!(files::watch::watch))
        .routes(routes!(files::content::read, files::content::write))
        .routes(routes!(files::archive::pack, files::archive::unpack))
        .routes(routes!(artifacts::look))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::read))
        .routes(routes!(datasets::list))
        .routes(routes!(datasets::put, datasets::remove))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::look, sessions::end))
        .routes(routes!(sessions::clean_up))
        .routes(routes!(sessions::put_dataset))
        .routes(routes!(sessions::call))
        .routes(routes!(sessions::runs::list))
        .routes(routes!(sessions::runs::look))
        .routes(routes!(sessions::runs::output))
        .routes(routes!(sessions::artifacts, sessions::clear))
        .routes(routes!(sessions::artifact))
        .routes(routes!(sessions::events::follow))
        .routes(routes!(tools::list))
        .routes(routes!(tools::prompt))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::put, secrets::remove))
        .routes(routes!(admin::projects))
        .routes(routes!(admin::put_project))
        .routes(routes!(admin::keys, admin::create_key))
        .routes(routes!(admin::revoke_key))
        .routes(routes!(admin::node))
        .routes(routes!(admin::drain))
        .routes(routes!(health::health))
        .routes(routes!(health::metrics))
        .routes(routes!(health::description))
}

/// The description of the public API.
pub fn description() -> utoipa::openapi::OpenApi {
    table().into_openapi()
}

/// The whole public API of a platform, and the ports of its sandboxes.
pub fn router(platform: Arc<Platform>) -> Router {
    let (router, _) = table().split_for_parts();
    let attended = |router: Router<Arc<Platform>>| {
        router
            .fallback(|| async { Fault::from(Error::not_found("there is no such route")) })
            .method_not_allowed_fallback(|| async {
                let other = Error::invalid("this route has other methods", "See the API description.");
                (StatusCode::METHOD_NOT_ALLOWED, Fault::from(other)).into_response()
            })
            .layer(middleware::from_fn_with_state(Arc::clone(&platform), attend))
            .with_state(Arc::clone(&platform))
    };
    let api =
        router.route("/mcp", any(crate::mcp::serve)).merge(crate::e2b::outside()).merge(crate::e2b::inside());
    let agent = attended(crate::e2b::inside());
    crate::ports::before(attended(api), agent, Arc::clone(&platform))
}

/// What is done for every request: its version is checked, it is counted, its steps are its own, and one line says how it went.
async fn attend(State(platform): State<Arc<Platform>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let parent = request.headers().get(PARENT_HEADER).and_then(|value| value.to_str().ok());
    let span = platform.traces.of_request(&method, &route, parent);
    let mut response = match spoken(&request) {
        Ok(()) => next.run(request).instrument(span).await,
        Err(fault) => fault.into_response(),
    };
    response.headers_mut().insert(VERSION_HEADER, HeaderValue::from(API_VERSION));
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    platform.metrics.answered(&route, method.as_str(), status, took);
    tracing::info!(%method, route, status, ms = node::clock::millis(took), "answered");
    response
}

/// Refuses a client that speaks another version, before anything is done for it.
fn spoken(request: &Request) -> Result<(), Fault> {
    let Some(version) = request.headers().get(VERSION_HEADER) else { return Ok(()) };
    if version.to_str().ok().and_then(|text| text.parse().ok()) == Some(API_VERSION) {
        return Ok(());
    }
    let shown = version.to_str().unwrap_or("something else").chars().take(20).collect::<String>();
    Err(Error {
        code: ErrorCode::VersionUnsupported,
        ..Error::invalid(
            format!("the client speaks version {shown} of the API, this server speaks {API_VERSION}"),
            "Use a client and a server of releases that belong together.",
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
        if std::env::var_os("BELLJAR_WRITE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == text,
            "docs/openapi.json is old; BELLJAR_WRITE=1 writes it anew"
        );
    }
}
