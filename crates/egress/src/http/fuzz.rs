//! Fuzz target: requests to the proxy.

use std::sync::Mutex;

use tokio::io::AsyncReadExt as _;

use super::*;

/// Size of the buffer between the program and the proxy, which exceeds every input.
const BUFFER_BYTES: usize = 1 << 20;

/// The requests that the proxy finds in a connection's bytes: method, destination and body.
type Found = Vec<(String, Result<String, String>, Vec<u8>)>;

async fn found(input: &[u8], chunk: usize) -> Found {
    let all = Arc::new(Mutex::new(Found::new()));
    let (mut program, proxy) = tokio::io::duplex(BUFFER_BYTES);
    let service = service_fn(|request: Request<Incoming>| {
        let all = Arc::clone(&all);
        async move {
            let method = request.method().to_string();
            let destination = asked(&request).map(|asked| destination(&asked)).map_err(|refusal| refusal.why);
            // A request inside a tunnel is checked in another way, but must be for the same host.
            if let Ok(inner) = inside(&request, &Host::Name("a.org".into()), CLEAR_PORT) {
                assert_eq!(inner.authority(), "a.org:80");
            }
            let body = request.into_body().collect().await.map(|body| body.to_bytes().to_vec());
            all.lock().unwrap().push((method, destination, body.unwrap_or_default()));
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok::<_, Infallible>(response)
        }
    });
    let serving = server().serve_connection(TokioIo::new(proxy), service);
    let sending = async {
        for piece in input.chunks(chunk) {
            // The proxy closes the connection after a malformed request.
            if program.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        // The clock is paused: this time passes as soon as nothing else can happen. If the program closed its
        // side earlier, the proxy would abandon a request that it is serving.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let _ = program.shutdown().await;
        let mut answers = Vec::new();
        let _ = program.read_to_end(&mut answers).await;
    };
    let _ = tokio::join!(serving, sending);
    all.lock().unwrap().clone()
}

fn destination(asked: &OutboundRequest) -> String {
    assert_ne!(asked.port, 0);
    assert_eq!(Host::with_port(&asked.authority(), None).unwrap(), (asked.host.clone(), asked.port));
    let shown = match &asked.ask {
        RequestKind::Tunnel => "tunnel".to_owned(),
        RequestKind::Request { method, path } => format!("{method} {path}"),
    };
    assert!(!shown.contains(['\r', '\n', '\0']), "{shown:?}");
    format!("{} {shown}", asked.authority())
}

#[test]
fn requests_in_pieces_are_the_same_as_requests_in_one_piece() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    bolero::check!().with_iterations(200).for_each(move |input: &[u8]| {
        let Some((chunk, bytes)) = input.split_first() else { return };
        let whole = runtime.block_on(found(bytes, bytes.len().max(1)));
        assert_eq!(runtime.block_on(found(bytes, usize::from(*chunk).max(1))), whole);
    });
}
