//! What a server tells of itself: the log, the steps that it keeps, and traces for a collector.
//!
//! ```text
//! spans that are steps ─▶ recorder (always) ─▶ `bellglass trace`
//!                      └▶ exporter (where `traces` is configured) ─queue─▶ a thread ─▶ OTLP over HTTP
//! everything else      ─▶ log
//! ```
//!
//! Nobody waits for a collector. What does not fit the queue is dropped, a collector that is away is named in the log once, and once
//! more when it is back. The exporter has a thread of its own; what it sends goes through this process's runtime.

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

/// A collector that takes longer for a batch has not taken it.
const EXPORT_WITHIN: Duration = Duration::from_secs(5);
/// The time between two batches: whoever looks for a trace finds it soon.
const EXPORT_EVERY: Duration = Duration::from_secs(1);
/// Steps that wait for the next batch: those of a hundred creates. More are dropped.
const QUEUE: usize = 4096;
/// How long an end waits for the last batch.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);
/// What is read of an answer: it says at most what was wrong.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Where a collector takes traces, below its address.
const PATH: &str = "/v1/traces";

/// What a server tells of itself, from the start to the end.
pub struct Telemetry {
    /// What the platform knows of traces.
    pub traces: Traces,
    exporter: Option<SdkTracerProvider>,
}

/// Sends batches.
#[derive(Debug)]
struct Sender {
    http: reqwest::Client,
    runtime: tokio::runtime::Handle,
    to: String,
    /// Whether the last batch was not taken.
    away: AtomicBool,
}

impl Telemetry {
    /// Begins the log, in this form, and the keeping of steps; and sends them to a collector, if there is one.
    pub fn begin(form: Log, collector: Option<&str>) -> Result<Self, Error> {
        let recorder = Recorder::default();
        let exporter = collector.map(exporter).transpose()?;
        let started = tracing_subscriber::registry()
            .with(recorder.clone().with_filter(Steps))
            .with(exporter.as_ref().map(exporting))
            .with(written(form, std::io::stderr))
            .try_init();
        // Somebody else's logger is as good.
        drop(started);
        let join = exporter.as_ref().map(|_| join as control::trace::Join);
        Ok(Self { traces: Traces { recorder, join }, exporter })
    }

    /// Sends what is left, for a moment.
    pub async fn end(self) {
        let Some(exporter) = self.exporter else { return };
        // It blocks, and what it waits for is done by other threads.
        let _ = tokio::task::spawn_blocking(move || exporter.shutdown_with_timeout(FLUSH_WITHIN)).await;
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        // Whoever calls this has a thread, and no runtime.
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

/// The log, in this form. Steps are no part of it, and so add nothing to its lines.
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

/// Steps as an OpenTelemetry trace.
fn exporting<S: Subscriber + for<'a> LookupSpan<'a>>(exporter: &SdkTracerProvider) -> impl Layer<S> + use<S> {
    tracing_opentelemetry::layer()
        .with_tracer(exporter.tracer("bellglass"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(Steps)
}

/// What sends to a collector, in batches, beside everything else.
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

/// What sends. An address without TLS needs no certificates, and a machine without any is no obstacle to it.
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
        // What is sent goes to whom it was meant for, and to nobody else.
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

/// Makes a span a part of the trace that this value of `traceparent` names. One that is not well formed names none.
fn join(span: &Span, parent: &str) {
    let said = HashMap::from([(PARENT_HEADER.to_owned(), parent.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &said);
    if context.span().span_context().is_valid() {
        // It was made just now, and has not begun.
        let _ = span.set_parent(context);
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    node::error::chain(error)
}
