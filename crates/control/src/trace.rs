//! Where the time of a request went: what becomes of the spans that are steps ([`api::trace`] says which are).
//!
//! ```text
//! attend: root span ─▶ handler, node, runtime: spans below it ─▶ Recorder: the last requests of each sandbox ─▶ GET …/trace
//!                                                             └▶ an exporter, where one is configured (it is the executable's)
//! ```
//!
//! The recorder keeps them in memory, bounded three times over; nothing is sampled and nothing is written. A step costs
//! 0.8 µs, one of nobody's request 0.2 µs (release build; `a_step_costs_microseconds`), and spans of other targets nothing.

mod recorder;

use api::trace::STEP;
use api::{ExecId, SandboxId};
use axum::http::Method;
use tracing::field::Empty;
use tracing::subscriber::Interest;
use tracing::{Metadata, Span, info_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

pub use recorder::Recorder;

/// The field by which a span is known as the first of a trace.
const ROOT: &str = "sandbox";
/// The header in which a request says of which trace it is a part.
pub const PARENT_HEADER: &str = "traceparent";

/// Makes a span a part of somebody else's trace, as this header value says; nothing if it says nothing.
pub type Join = fn(&Span, &str);

/// What the platform knows of traces.
#[derive(Clone, Default)]
pub struct Traces {
    /// What is kept here, if anything is.
    pub recorder: Recorder,
    /// How a request's own trace is joined, where traces leave this machine.
    pub join: Option<Join>,
}

/// Lets through what belongs to a trace: roots, and steps below one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps;

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Filter<S> for Steps {
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        is_step(metadata) && (is_root(metadata) || context.lookup_current().is_some())
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match (is_step(metadata), is_root(metadata)) {
            (false, _) => Interest::never(),
            (true, true) => Interest::always(),
            (true, false) => Interest::sometimes(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

impl Traces {
    /// The span of a request that acts on a sandbox, part of the trace that it names; of any other, none.
    pub fn of_request(&self, method: &Method, route: &str, parent: Option<&str>) -> Span {
        let span = match (method, route) {
            (&Method::POST, "/v1/sandboxes") => create(),
            (&Method::DELETE, "/v1/sandboxes/{sandbox}") => stop(),
            (&Method::POST, "/v1/sandboxes/{sandbox}/execs") => exec(),
            _ => return Span::none(),
        };
        if let (Some(join), Some(parent)) = (self.join, parent) {
            join(&span, parent);
        }
        span
    }
}

/// The root of a create.
pub fn create() -> Span {
    info_span!(target: STEP, "create", sandbox = Empty, exec = Empty)
}

/// The root of an exec.
pub fn exec() -> Span {
    info_span!(target: STEP, "exec", sandbox = Empty, exec = Empty)
}

/// The root of a stop.
pub fn stop() -> Span {
    info_span!(target: STEP, "stop", sandbox = Empty, exec = Empty)
}

/// Says of the request under way which sandbox it is about. The current span must be its root.
pub fn about(sandbox: &SandboxId) {
    Span::current().record("sandbox", sandbox.as_str());
}

/// Likewise, which exec.
pub fn about_exec(sandbox: &SandboxId, exec: &ExecId) {
    let span = Span::current();
    span.record("exec", exec.as_str());
    span.record("sandbox", sandbox.as_str());
}

fn is_step(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == STEP
}

fn is_root(metadata: &Metadata<'_>) -> bool {
    metadata.fields().field(ROOT).is_some()
}
