//! Tests of the trace export, with collectors that respond, are unreachable, or never respond.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span as Sent;
use prost::Message as _;
use tracing::info_span;
use tracing::subscriber::DefaultGuard;

use super::*;

/// Maximum duration of a request even if a collector does not respond.
const UNHINDERED: Duration = Duration::from_secs(2);

/// Starts a collector that accepts everything. Returns its URL and the requests that it receives.
fn collector() -> (String, Receiver<(String, ExportTraceServiceRequest)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            while let Some(heard) = hear(stream.as_ref().unwrap()) {
                let _ = tell.send(heard);
            }
        }
    });
    (address, told)
}

/// Reads one request, and returns its first line and its decoded body.
fn hear(mut stream: &TcpStream) -> Option<(String, ExportTraceServiceRequest)> {
    let mut lines = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    lines.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        match line.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    Some((first, ExportTraceServiceRequest::decode(body.as_slice()).unwrap()))
}

/// Starts exporting the spans of this thread to an address.
fn sending(address: &str) -> (SdkTracerProvider, DefaultGuard) {
    let exporter = exporter(address).unwrap();
    let guard = tracing_subscriber::registry().with(exporting(&exporter)).set_default();
    (exporter, guard)
}

fn request(parent: Option<&str>) {
    let root = control::trace::exec();
    if let Some(parent) = parent {
        join(&root, parent);
    }
    root.in_scope(|| {
        root.record("sandbox", "s1");
        info_span!(target: STEP, "store", what = "look").in_scope(|| {});
        info_span!("of somebody else").in_scope(|| tracing::warn!("of somebody else"));
    });
}

fn spans(told: &Receiver<(String, ExportTraceServiceRequest)>) -> Vec<Sent> {
    let (first, said) = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(first.trim_end(), "POST /v1/traces HTTP/1.1");
    let resource = said.resource_spans[0].resource.as_ref().unwrap();
    let named = |key: &str| resource.attributes.iter().any(|attribute| attribute.key == key);
    assert!(named("service.name") && named("service.version"));
    said.resource_spans.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_the_steps_and_nothing_else() {
    let (address, told) = collector();
    let (_exporter, _on) = sending(&address);
    request(None);
    // This step is outside of any request, so it must not be exported.
    info_span!(target: STEP, "store").in_scope(|| {});
    let spans = spans(&told);
    let [step, root] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!((step.name.as_str(), root.name.as_str()), ("store", "exec"));
    assert_eq!((&step.parent_span_id, &step.trace_id), (&root.span_id, &root.trace_id));
    assert!(root.parent_span_id.is_empty() && root.events.is_empty() && step.events.is_empty());
    assert!(root.attributes.iter().any(|attribute| attribute.key == "sandbox"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_that_a_request_names_is_joined_if_it_is_well_formed() {
    let (address, told) = collector();
    let (_exporter, _on) = sending(&address);
    request(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    for wrong in ["", "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "ff-1-2-3"] {
        request(Some(wrong));
    }
    let spans = spans(&told);
    let parents = spans.iter().filter(|span| span.name == "exec").map(|span| span.parent_span_id.clone());
    let parents: Vec<_> = parents.collect();
    assert_eq!(parents, [b"\xb7\xad\x6b\x71\x69\x20\x33\x31".to_vec(), vec![], vec![], vec![], vec![]]);
    assert_eq!(spans[0].trace_id[..4], [0x0a, 0xf7, 0x65, 0x19]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_collector_that_is_away_or_never_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [&silent, &gone].map(|one| format!("http://{}", one.local_addr().unwrap()));
    drop(gone);
    for address in addresses {
        let (exporter, _on) = sending(&address);
        let begun = Instant::now();
        for _ in 0..2 * QUEUE {
            request(None);
        }
        let each = begun.elapsed() / (2 * u32::try_from(QUEUE).unwrap());
        println!("a request costs {each:?}");
        assert!(begun.elapsed() < 5 * UNHINDERED, "{:?}", begun.elapsed());
        let begun = Instant::now();
        let traces = Traces::default();
        Telemetry { traces, exporter: Some(exporter) }.end().await;
        assert!(begun.elapsed() < FLUSH_WITHIN + UNHINDERED, "{:?}", begun.elapsed());
    }
}

#[test]
fn steps_add_nothing_to_the_log() {
    use std::sync::Mutex;
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for form in [Log::Text, Log::Json] {
        let lines = Lines::default();
        let to = lines.clone();
        let recorder = Recorder::default();
        let _on = tracing_subscriber::registry()
            .with(recorder.clone().with_filter(Steps))
            .with(written(form, move || to.clone()))
            .set_default();
        control::trace::exec().in_scope(|| {
            control::trace::about(&"s1".parse().unwrap());
            tracing::info!(status = 200, "answered");
            tracing::debug!("not said");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("answered") && !text.contains("exec") && !text.contains("span"), "{text}");
        assert_eq!(recorder.traces(&"s1".parse().unwrap(), None).len(), 1);
    }
}
