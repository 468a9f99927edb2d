//! Tests of the client against servers with trusted and untrusted certificates.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, Error, Options};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Starts a server that returns an empty list. Writes the server's certificate to a file.
async fn server() -> (String, tempfile::NamedTempFile) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(made.cert.pem().as_bytes()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 12\r\n\r\n{\"items\":[]}";
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (url, file)
}

#[tokio::test]
async fn a_server_is_trusted_by_the_certificates_that_were_named() {
    let (url, file) = server().await;
    let options = Options { ca_file: Some(file.path().to_owned()), ..Options::default() };
    let client = Client::with(&url, "secret", options).unwrap();
    assert_eq!(client.sandboxes(false).await.unwrap(), []);
}

/// The retry time of one minute is meant for servers that are unavailable, not for untrusted ones.
#[tokio::test]
async fn a_stranger_is_refused_at_once() {
    let ((url, _), (_, other)) = (server().await, server().await);
    let options = Options { ca_file: Some(other.path().to_owned()), ..Options::default() };
    let client = Client::with(&url, "secret", options).unwrap();
    let began = Instant::now();
    let error = client.sandboxes(false).await.unwrap_err();
    assert!(matches!(&error, Error::Distrusted { why, .. } if why.contains("certificate")), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10));
}
