//! Template builds by E2B's SDKs: request, upload of files, start and status.
//!
//! All projects share the same templates, so only an administrator's key may build one. The steps run in
//! sandboxes that are created only for the build. These sandboxes can reach only package registries, unless
//! the project may have open egress.

use std::sync::Arc;

use api::limits::WantedLimits;
use api::policy::{Policy, Preset};
use api::{Error, ErrorCode, Layer, Ran, Retry};
use axum::Json;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use node::clock;
use node::template::recipe::Ground;
use node::template::sent::Archives;
use node::template::{BuildOrder, Builder, Store, Template, shipped};
use serde::Deserialize;
use serde_json::{Value, json};

use control::audit::{Act, hex};
use control::authority::grant::States;
use control::credential::Ticket;
use control::platform::Platform;
use server::authority::caller::{peer, remember};
use server::authority::{Admin, Caller, Credential, Grant, Need, Reach};
use server::listen::Encrypted;
use server::ports::name::authority;
use server::routes::files::flow::Coming;

use super::Adapter;
use super::builds::Build;
use super::fault::{By, E2bRejection, E2bResult, Given, not_offered};
use super::shown::{ours, theirs};
use super::steps::{Plan, StartBuildRequest};

/// Limits on the network traffic of a build's steps: bytes per second, and total bytes.
const BYTES_PER_SECOND: u64 = 1 << 30;
const BYTES_MAX: u64 = 64 << 30;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTemplateRequest {
    /// Name of the template. Older clients send it as `alias`.
    #[serde(alias = "alias")]
    name: String,
    #[serde(default)]
    tags: Option<Vec<String>>,
    cpu_count: Option<u64>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
    min_free_disk_mb: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BuildStatusQuery {
    logs_offset: usize,
}

#[derive(Deserialize)]
struct Shown {
    ticket: String,
}

/// Upload request that has redeemed a ticket for one archive.
pub struct Uploader {
    archive: String,
}

impl States for Uploader {
    const NEED: Need = Need::Ticket;
}

impl FromRequestParts<Adapter> for Uploader {
    type Rejection = E2bRejection;

    async fn from_request_parts(parts: &mut Parts, adapter: &Adapter) -> E2bResult<Self> {
        let Adapter { platform, clients, .. } = adapter;
        let from = peer(parts);
        let refuse = || platform.accounts.refuse(from);
        let path = Path::<(String, String)>::from_request_parts(parts, &()).await;
        let Path((_, archive)) = path.map_err(|_| refuse())?;
        let query = Query::<Shown>::from_request_parts(parts, &()).await;
        let Query(Shown { ticket }) = query.map_err(|_| refuse())?;
        let ticket = Ticket::parse(&ticket).ok_or_else(refuse)?;
        let now_ms = platform.store.now_ms(clock::wall_ms());
        let account = clients.builds.take(ticket.hash(), &archive, now_ms).ok_or_else(refuse)?;
        let reach = Reach::Archive(archive.clone());
        remember(parts, &Grant { credential: Credential::Ticket, account, reach })?;
        Ok(Self { archive })
    }
}

/// Registers a build. The build does not start yet.
pub async fn request(
    _: By<Caller<Admin>>,
    State(Adapter { clients, .. }): State<Adapter>,
    Given(asked): Given<NewTemplateRequest>,
) -> E2bResult<(StatusCode, Json<Value>)> {
    let name = asked.check()?;
    let limits = WantedLimits {
        cpu_millis: asked.cpu_count.map(|count| count.saturating_mul(1000)),
        memory_bytes: asked.memory_mb.map(|count| count.saturating_mul(1 << 20)),
        disk_bytes: asked
            .min_free_disk_mb
            .filter(|count| *count > 0)
            .map(|count| count.saturating_mul(1 << 20)),
        ..WantedLimits::default()
    };
    let id = uuid()?;
    clients.builds.add(id.clone(), name.clone(), limits);
    let shown = theirs(&name);
    let body = json!({
        "templateID": shown,
        "buildID": id,
        "public": false,
        "names": [shown],
        "tags": ["default"],
        "aliases": [shown],
    });
    Ok((StatusCode::ACCEPTED, Json(body)))
}

/// Returns a URL for uploading the files of a step, and whether the server already has the files.
pub async fn files(
    By(caller): By<Caller<Admin>>,
    State(Adapter { platform, ports, clients }): State<Adapter>,
    Path((template, archive)): Path<(String, String)>,
    request: Request,
) -> E2bResult<(StatusCode, Json<Value>)> {
    Template::check_name(ours(&template))?;
    let present = Archives::open(platform.node.data())?.has(&archive).await?;
    let (parts, _) = request.into_parts();
    let encrypted = parts.extensions.get::<Encrypted>().is_some_and(|encrypted| encrypted.0);
    let scheme = if ports.domain.encrypted().unwrap_or(encrypted) { "https" } else { "http" };
    let host = authority(&parts)?.unwrap_or_default();
    let ticket = Ticket::fresh()?;
    let now_ms = platform.store.now_ms(clock::wall_ms());
    clients.builds.admit(ticket.hash(), &archive, &caller.account, now_ms);
    let ticket = ticket.reveal();
    let url = format!("{scheme}://{host}/templates/{template}/files/{archive}?ticket={ticket}");
    Ok((StatusCode::CREATED, Json(json!({ "present": present, "url": url }))))
}

/// Receives the files of a step. The ticket in the upload URL authorizes the request.
pub async fn receive(
    Uploader { archive }: Uploader,
    State(platform): State<Arc<Platform>>,
    request: Request,
) -> E2bResult<StatusCode> {
    let length = length(request.headers());
    let mut coming = Coming::of(request)?;
    let archives = Archives::open(platform.node.data())?;
    let mut receiving = match archives.receive(&archive, length).await {
        Ok(receiving) => receiving,
        Err(error) => return Err(coming.refuse(error).await.into()),
    };
    while let Some(bytes) = coming.next().await? {
        if let Err(error) = receiving.push(&bytes).await {
            return Err(coming.refuse(error).await.into());
        }
    }
    receiving.finish().await?;
    Ok(StatusCode::OK)
}

/// Starts a build that was registered by an earlier request.
pub async fn begin(
    By(caller): By<Caller<Admin>>,
    State(Adapter { platform, clients, .. }): State<Adapter>,
    Path((template, build)): Path<(String, String)>,
    Given(wanted): Given<StartBuildRequest>,
) -> E2bResult<StatusCode> {
    let build = clients.builds.find(ours(&template), &build)?;
    let ground = wanted.ground()?;
    let store = Store::new(platform.node.data());
    let standing = match &ground {
        Ground::Named(name) if !name.contains(['/', ':']) => Some(store.load(name)?),
        Ground::Named(_) | Ground::Debian(_) => None,
    };
    let plan = wanted.plan(ground, standing, build.limits)?;
    clients.builds.check_room()?;
    if !build.begin() {
        let fix = "Request a new build.";
        let error =
            Error { code: ErrorCode::Conflict, ..Error::invalid("this build was already started", fix) };
        return Err(error.into());
    }
    platform.note(&caller, Act::TemplateBuild, |entry| entry.detail(&build.template));
    let reach = reach(caller.quota.open);
    // The build continues if the client disconnects.
    tokio::spawn(async move {
        let Ok(_turn) = clients.builds.turn.acquire().await else { return };
        build.starts();
        match made(&platform, &build, plan, reach).await {
            Ok(()) => build.end(Ok(())),
            Err(error) => build.end(Err(&error)),
        }
    });
    Ok(StatusCode::ACCEPTED)
}

/// Returns the status of a build.
pub async fn status(
    _: By<Caller<Admin>>,
    State(Adapter { clients, .. }): State<Adapter>,
    Path((template, build)): Path<(String, String)>,
    Query(from): Query<BuildStatusQuery>,
) -> E2bResult<Json<Value>> {
    let build = clients.builds.find(ours(&template), &build)?;
    Ok(Json(build.shown(from.logs_offset)))
}

impl NewTemplateRequest {
    /// Returns the name of the template without its tag, if the request is valid.
    fn check(&self) -> E2bResult<String> {
        let (name, tag) = self.name.split_once(':').unwrap_or((&self.name, "default"));
        let others = self.tags.iter().flatten().any(|tag| tag != "default");
        if tag != "default" || others {
            return Err(not_offered("tags", "Give each template a separate name, such as `tools-v2`."));
        }
        Template::check_name(ours(name))?;
        if shipped::names().contains(&ours(name)) {
            let what = format!("the template {name} is built into Bellglass and cannot be replaced");
            return Err(Error::invalid(what, "Choose another name for your template.").into());
        }
        Ok(name.to_owned())
    }
}

/// Builds the template. If the build fails, stops all sandboxes that the build left running.
async fn made(platform: &Platform, build: &Arc<Build>, plan: Plan, reach: Policy) -> Result<(), Error> {
    let data = platform.node.data();
    let (builder, home) = Builder::below(data)
        .and_then(|builder| Ok((Arc::new(builder), shipped::lay_out(data)?)))
        .map_err(|error| error.to_api())?;
    if plan.as_root {
        build.warn(
            "sandboxes of this template run as `user`, although the last USER step of the template sets root",
        );
    }
    let (with, of) = (Arc::clone(&builder), Arc::clone(build));
    // Build in a separate task, so that the cleanup below runs even if the build panics.
    let making = tokio::spawn(async move {
        let order = BuildOrder {
            unwritten: plan.unwritten,
            reach: Some(&reach),
            fresh: plan.fresh,
            ..BuildOrder::new(&of.template, &plan.recipe, &home)
        };
        with.build(&order, &|progress| of.hear(progress)).await
    });
    let error = match making.await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_api(),
        Err(_) => interrupted(),
    };
    // Sandboxes that cannot be stopped now are removed when the server starts again.
    let _ = builder.abandon().await;
    Err(error)
}

/// Returns the egress policy for the commands of a build: package registries, or all hosts if the project may
/// have open egress.
fn reach(open: bool) -> Policy {
    let presets = [Preset::DebianPackages, Preset::PythonPackages, Preset::NodePackages];
    Policy {
        presets: presets.into_iter().collect(),
        open,
        bytes_per_second: BYTES_PER_SECOND,
        bytes_max: BYTES_MAX,
        ..Policy::default()
    }
}

/// Returns the length of the body from the `Content-Length` header, or 0 if there is no valid header.
fn length(headers: &HeaderMap) -> u64 {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Returns a random ID in the form of a UUID, which clients expect.
fn uuid() -> Result<String, E2bRejection> {
    let digits = hex(&node::machine::random::<16>()?);
    let part = |range: std::ops::Range<usize>| digits.get(range).unwrap_or_default().to_owned();
    // Set version 4 and variant 1. Some clients check both fields.
    Ok([part(0..8), part(8..12), format!("4{}", part(13..16)), format!("a{}", part(17..20)), part(20..32)]
        .join("-"))
}

fn interrupted() -> Error {
    Error {
        code: ErrorCode::Platform,
        message: "the build stopped unexpectedly".into(),
        layer: Layer::Platform,
        ran: Ran::Unknown,
        retry: Retry::Safe,
        fix: "Build again. Completed steps are cached.".into(),
    }
}
