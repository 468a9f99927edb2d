//! Fuzz target: the first bytes of a tunnel.

use super::*;

async fn found(input: &[u8], chunk: usize, only_tls: bool) -> Result<BytesMut, TunnelFailure> {
    let (mut program, mut proxy) = tokio::io::duplex(HELLO_BYTES_MAX);
    let sending = async {
        for piece in input.chunks(chunk) {
            program.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        program.shutdown().await.unwrap();
    };
    let host = Host::Name("a.org".into());
    tokio::join!(hello(&mut proxy, &host, only_tls), sending).0
}

#[test]
fn a_hello_in_pieces_is_judged_the_same_as_in_one_piece() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    bolero::check!().with_iterations(200).for_each(move |input: &[u8]| {
        let Some((chunk, bytes)) = input.split_first() else { return };
        for only_tls in [false, true] {
            let whole = runtime.block_on(found(bytes, bytes.len().max(1), only_tls));
            let pieces = runtime.block_on(found(bytes, usize::from(*chunk).max(1), only_tls));
            assert_eq!(pieces.as_ref().err(), whole.as_ref().err());
            for first in [&whole, &pieces].into_iter().flatten() {
                assert!(bytes.starts_with(first));
                assert!(!only_tls || first.first().is_none_or(|kind| *kind == HANDSHAKE));
            }
        }
    });
}
