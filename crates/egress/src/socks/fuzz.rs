//! Fuzz target: SOCKS requests.

use api::policy::Policy;
use tokio::sync::watch;

use super::*;

/// Size of the buffer between the program and the proxy, which exceeds every input.
const BUFFER_BYTES: usize = 1 << 16;

/// Returns the destination or the reply code, and the bytes that follow the request.
async fn found(input: &[u8], chunk: usize) -> (Option<Result<String, u8>>, Vec<u8>) {
    let (_policies, policy) = watch::channel(Policy::default());
    let party = Party::new(policy, Box::new(|_| {}));
    let (mut program, mut proxy) = tokio::io::duplex(BUFFER_BYTES);
    let asking = async {
        let asked = ask(&mut proxy, &party).await.ok();
        let asked = asked.map(|asked| asked.map(|asked| destination(&asked)).map_err(|reply| reply as u8));
        let mut rest = Vec::new();
        if asked.is_some() {
            proxy.read_to_end(&mut rest).await.unwrap();
        }
        (asked, rest)
    };
    let sending = async {
        for piece in input.chunks(chunk) {
            program.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        program.shutdown().await.unwrap();
    };
    tokio::join!(asking, sending).0
}

fn destination(asked: &OutboundRequest) -> String {
    assert_ne!(asked.port, 0);
    assert_eq!(Host::with_port(&asked.authority(), None).unwrap(), (asked.host.clone(), asked.port));
    assert_eq!(asked.ask, RequestKind::Tunnel);
    asked.authority()
}

#[test]
fn a_socks_request_in_pieces_is_the_same_as_in_one_piece() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    bolero::check!().with_iterations(200).for_each(move |input: &[u8]| {
        let Some((chunk, bytes)) = input.split_first() else { return };
        let whole = runtime.block_on(found(bytes, bytes.len().max(1)));
        assert_eq!(runtime.block_on(found(bytes, usize::from(*chunk).max(1))), whole);
        assert!(bytes.ends_with(&whole.1) && (whole.0.is_none() || whole.1.len() + 7 <= bytes.len()));
    });
}
