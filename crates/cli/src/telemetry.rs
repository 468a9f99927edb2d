//! Telemetry of a server: its log, the recorded steps of requests, and traces for a collector.
//!
//! ```text
//! spans that are steps ─▶ recorder (always) ─▶ `bellglass trace`
//!                      └▶ exporter (where `traces` is configured) ─queue─▶ a thread ─▶ OTLP over HTTP
//! everything else      ─▶ log
//! ```
//!
//! Requests never wait for a collector. Spans that do not fit into the queue are dropped. If a collector does
//! not respond, one line is logged, and another line when it responds again. The exporter runs in its own
//! thread, which sends through this process's async runtime.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Error;
use api::trace::STEP;
use async_trait::async_trait;
use bytes::Bytes;
use control::trace::{PARENT_HEADER, Recorder, Steps, Traces};
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue, propagation::TextMapPropagator as _};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::filter::{FilterFn, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use crate::configuration::Log;

/// Timeout for sending a batch to a collector.
const EXPORT_WITHIN: Duration = Duration::from_secs(5);
/// Interval between two batches. It is short so that traces appear in the collector soon.
const EXPORT_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of queued steps. It is enough for a hundred create requests. Further steps are dropped.
const QUEUE: usize = 4096;
/// Timeout for sending the last batch at shutdown.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);
/// Maximum size of a collector's response in bytes. The response contains at most an error message.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Path of a collector's trace endpoint.
const PATH: &str = "/v1/traces";

/// Telemetry of a running server.
pub struct Telemetry {
    /// Recorded traces. The server's API returns them.
    pub traces: Traces,
    exporter: Option<SdkTracerProvider>,
}

/// HTTP client that sends batches of spans to the collector.
#[derive(Debug)]
struct Sender {
    http: reqwest::Client,
    runtime: tokio::runtime::Handle,
    to: String,
    /// True if the collector did not accept the last batch.
    away: AtomicBool,
}

impl Telemetry {
    /// Starts the log in this format and the recording of steps. If a collector is configured, also starts
    /// the export to it.
    pub fn begin(form: Log, collector: Option<&str>) -> Result<Self, Error> {
        let recorder = Recorder::default();
        let exporter = collector.map(exporter).transpose()?;
        let started = tracing_subscriber::registry()
            .with(recorder.clone().with_filter(Steps))
            .with(exporter.as_ref().map(exporting))
            .with(written(form, std::io::stderr))
            .try_init();
        // This fails if a subscriber is already set, in which case that subscriber writes the log.
        drop(started);
        let join = exporter.as_ref().map(|_| join as control::trace::Join);
        Ok(Self { traces: Traces { recorder, join }, exporter })
    }

    /// Sends the remaining spans. Takes at most `FLUSH_WITHIN`.
    pub async fn end(self) {
        let Some(exporter) = self.exporter else { return };
        // The shutdown blocks its thread, and needs other threads to complete.
        let _ = tokio::task::spawn_blocking(move || exporter.shutdown_with_timeout(FLUSH_WITHIN)).await;
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        // The exporter's thread has no async runtime of its own.
        let sent = self.runtime.spawn(async move { send(&http, request).await }).await?;
        match &sent {
            Ok(answer) if answer.status().is_success() => self.taken(),
            Ok(answer) => self.lost(&format!("status {}", answer.status())),
            Err(error) => self.lost(&chain(error.as_ref())),
        }
        sent
    }
}

impl Sender {
    fn taken(&self) {
        if self.away.swap(false, Ordering::AcqRel) {
            tracing::info!(collector = self.to, "the collector accepts traces again");
        }
    }

    fn lost(&self, why: &str) {
        if !self.away.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                collector = self.to,
                error = why,
                "the collector does not accept traces; the server drops all traces until the collector accepts them again"
            );
        }
    }
}

/// Returns the layer that writes the log in this format. The layer ignores steps, so that they add nothing to
/// the log's lines.
fn written<S, W>(form: Log, to: W) -> Option<Box<dyn Layer<S> + Send + Sync>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(to).with_target(false);
    match form {
        Log::Text => Some(layer.with_ansi(false).with_filter(no_steps()).boxed()),
        Log::Json => Some(layer.json().flatten_event(true).with_filter(no_steps()).boxed()),
        Log::None => None,
    }
}

fn no_steps() -> FilterFn {
    let logged: fn(&tracing::Metadata<'_>) -> bool =
        |metadata| metadata.target() != STEP && *metadata.level() <= tracing::Level::INFO;
    filter_fn(logged).with_max_level_hint(LevelFilter::INFO)
}

/// Returns the layer that exports steps as OpenTelemetry traces.
fn exporting<S: Subscriber + for<'a> LookupSpan<'a>>(exporter: &SdkTracerProvider) -> impl Layer<S> + use<S> {
    tracing_opentelemetry::layer()
        .with_tracer(exporter.tracer("bellglass"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(Steps)
}

/// Returns the provider that sends spans to a collector in batches, in the background.
fn exporter(collector: &str) -> Result<SdkTracerProvider, Error> {
    let to = format!("{}{PATH}", collector.trim_end_matches('/'));
    let wrong = |why: String| {
        Error::invalid(
            format!("cannot send traces to {collector:?}: {why}"),
            "Correct `traces` in the configuration, or remove it.",
        )
    };
    let http = http(to.starts_with("https://")).map_err(&wrong)?;
    let (runtime, away) = (tokio::runtime::Handle::current(), AtomicBool::new(false));
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Sender { http, runtime, to: to.clone(), away })
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(to)
        .with_timeout(EXPORT_WITHIN)
        .build()
        .map_err(|error| wrong(error.to_string()))?;
    let batches =
        BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_scheduled_delay(EXPORT_EVERY).build();
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Ok(SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
        .with_resource(Resource::builder().with_service_name("bellglass").with_attribute(version).build())
        .build())
}

/// Returns the HTTP client for a collector. Without TLS, the client loads no certificates, so it also works
/// on a machine that has none installed.
fn http(encrypted: bool) -> Result<reqwest::Client, String> {
    let said = |error: rustls::Error| error.to_string();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(said)?;
    let builder = match encrypted {
        true => builder.with_platform_verifier().map_err(said)?,
        false => builder.with_root_certificates(RootCertStore::empty()),
    };
    let tls = builder.with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // Traces are sent only to the configured address, so redirects and proxies are disabled.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(EXPORT_WITHIN)
        .build()
        .map_err(|error| chain(&error))
}

async fn send(http: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let mut answer = http.execute(request.try_into()?).await?;
    let mut body = Vec::new();
    while let Some(bytes) = answer.chunk().await? {
        if body.len() + bytes.len() > ANSWER_BYTES_MAX {
            break;
        }
        body.extend_from_slice(&bytes);
    }
    Ok(Response::builder().status(answer.status()).body(body.into())?)
}

/// Makes a span part of the trace that a `traceparent` value identifies. An invalid value is ignored.
fn join(span: &Span, parent: &str) {
    let said = HashMap::from([(PARENT_HEADER.to_owned(), parent.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &said);
    if context.span().span_context().is_valid() {
        // This cannot fail, because the span was just created and has not started.
        let _ = span.set_parent(context);
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    node::error::chain(error)
}
