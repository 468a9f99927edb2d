//! The requests of a client: tools, tool calls, and artifacts as resources.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use api::{Error, ErrorCode, Layer, Ran, Retry};
use http::request::Parts;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, InitializeRequestParams,
    InitializeResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use super::progress::{self, Teller};
use super::session::McpSession;
use super::{ARTIFACT_BYTES_MAX, Host, answer, resource};

/// Maximum number of concurrent calls and reads of one client. An agent that works in parallel needs only a
/// few, and each of them may hold an answer in memory.
const CALLS_MAX: usize = 16;
/// Latest protocol version that has sessions.
const VERSION: ProtocolVersion = ProtocolVersion::LATEST_WITH_INITIALIZE;

/// Server for one client.
pub(super) struct Server {
    /// Session of the client. Over HTTP, the first request sets it. No request is answered before that.
    session: OnceLock<Arc<McpSession>>,
    calls: Semaphore,
}

impl Server {
    /// Creates the server for a client that already has a session.
    pub(super) fn of(session: Arc<McpSession>) -> Self {
        Self { session: OnceLock::from(session), calls: Semaphore::new(CALLS_MAX) }
    }

    /// Creates the server for a client whose session arrives in the extensions of its first request.
    pub(super) fn unopened() -> Self {
        Self { session: OnceLock::new(), calls: Semaphore::new(CALLS_MAX) }
    }

    fn session(&self) -> Result<&Arc<McpSession>, ErrorData> {
        self.session
            .get()
            .ok_or_else(|| ErrorData::invalid_request("there is no session; send `initialize` first", None))
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let session = self.session()?;
        known(session.host(), &request.name)?;
        let Ok(_place) = self.calls.try_acquire() else {
            return Ok(answer::refused(&busy()).into());
        };
        let asking = session.asking();
        let (sender, receiver) = mpsc::channel(progress::QUEUE);
        let call = session.host().call(&request.name, request.arguments.unwrap_or_default(), sender);
        let teller = context.meta.get_progress_token().map(|token| Teller::new(context.peer.clone(), token));
        let result = tokio::select! {
            biased;
            () = cut(session, context) => return Err(gone()),
            result = progress::follow(call, receiver, teller) => result,
        };
        drop(asking);
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => return Ok(answer::refused(&error).into()),
        };
        if !answer.artifacts.is_empty() {
            // A send error is ignored. A client that misses the notification can still list the artifacts.
            let _ = context.peer.notify_resource_list_changed().await;
        }
        Ok(answer::answered(answer, knows_links(context)).into())
    }

    async fn read(
        &self,
        uri: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let session = self.session()?;
        let name = resource::name(&uri).ok_or_else(|| unknown(&uri))?;
        let Ok(_place) = self.calls.try_acquire() else {
            return Err(fault(&busy()));
        };
        let _asking = session.asking();
        let content = tokio::select! {
            biased;
            () = cut(session, context) => return Err(gone()),
            content = session.host().artifact(&name) => content.map_err(|error| fault(&error))?,
        };
        if u64::try_from(content.bytes.len()).unwrap_or(u64::MAX) > ARTIFACT_BYTES_MAX {
            return Err(fault(&too_large(&name)));
        }
        Ok(ReadResourceResult::new(vec![resource::contents(uri, &content)]).into())
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let able = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_list_changed()
            .build();
        let info = InitializeResult::new(able)
            .with_protocol_version(VERSION)
            .with_server_info(Implementation::new("bellglass", env!("CARGO_PKG_VERSION")));
        match self.session.get() {
            Some(session) => info.with_instructions(session.host().instructions()),
            None => info,
        }
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&VERSION))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let parts = context.extensions.get::<Parts>();
        if let Some(session) = parts.and_then(|parts| parts.extensions.get::<Arc<McpSession>>()) {
            // A repeated `initialize` has no effect, because the session keeps its host.
            let _ = self.session.set(Arc::clone(session));
        }
        self.session()?;
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.session()?.host().tools();
        let shown =
            tools.into_iter().map(|tool| rmcp::model::Tool::new(tool.name, tool.description, tool.schema));
        Ok(ListToolsResult::with_all_items(shown.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.call(request, &context).await
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let session = self.session()?;
        let _asking = session.asking();
        let artifacts = tokio::select! {
            biased;
            () = cut(session, &context) => return Err(gone()),
            artifacts = session.host().artifacts() => artifacts.map_err(|error| fault(&error))?,
        };
        Ok(ListResourcesResult::with_all_items(artifacts.iter().map(resource::described).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.read(request.uri, &context).await
    }
}

impl Drop for Server {
    /// Ends the session, however the connection ended.
    fn drop(&mut self) {
        if let Some(session) = self.session.get() {
            session.end();
        }
    }
}

/// Waits until no response is needed anymore, because the request was cancelled or its session ended.
async fn cut(session: &McpSession, context: &RequestContext<RoleServer>) {
    tokio::select! {
        () = context.ct.cancelled() => {}
        () = session.ended() => {}
    }
}

/// Returns the error for a cancelled request. If the request was cancelled, `rmcp` sends no response. If the
/// session ended, `rmcp` may still send this error.
fn gone() -> ErrorData {
    ErrorData::internal_error("the request was cancelled", None)
}

fn known(host: &dyn Host, name: &str) -> Result<(), ErrorData> {
    let tools = host.tools();
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(());
    }
    let names = tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
    Err(ErrorData::invalid_params(
        format!("there is no tool `{name}`; the available tools are: {names}"),
        None,
    ))
}

fn unknown(uri: &str) -> ErrorData {
    ErrorData::resource_not_found(
        format!("there is no resource {uri}; list the resources to see the valid URIs"),
        None,
    )
}

/// Converts an error to a protocol error, for methods whose result cannot carry an error.
fn fault(error: &Error) -> ErrorData {
    let text = format!("{}. {}", error.message, error.fix);
    let data = Some(json!({ "error": error }));
    if error.code == ErrorCode::NotFound {
        ErrorData::resource_not_found(text, data)
    } else if [ErrorCode::InvalidRequest, ErrorCode::TooLarge, ErrorCode::LimitExceeded].contains(&error.code)
    {
        ErrorData::invalid_params(text, data)
    } else {
        ErrorData::internal_error(text, data)
    }
}

fn knows_links(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2025_06_18.as_str())
}

fn busy() -> Error {
    Error {
        code: ErrorCode::LimitExceeded,
        message: format!("this session already has {CALLS_MAX} calls in progress, the maximum"),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Wait until one of these calls has finished, then retry.".into(),
    }
}

fn too_large(name: &str) -> Error {
    Error {
        code: ErrorCode::TooLarge,
        message: format!(
            "`{name}` is larger than {ARTIFACT_BYTES_MAX} bytes, the maximum size of a resource"
        ),
        layer: Layer::UserCode,
        ran: Ran::No,
        retry: Retry::Useless,
        fix: "Write a smaller file, or download this file with the API or the command line.".into(),
    }
}
