//! Tests of file transfers: requests after a disconnect, verification of responses, and cleanup after a
//! failure.

use api::ErrorCode;
use api::files::{FilePath, Hash};
use base64::Engine as _;
use client::Client;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::server::{Answer, Request, Server};

const CONTENT: &str = "0123456789";

fn info() -> Value {
    json!({"path": "/workspace/a", "kind": "file", "size_bytes": CONTENT.len(), "mode": 0o640, "uid": 1000, "gid": 1000,
           "modified_at_ms": 0, "version": "v1"})
}

fn hash(bytes: &str) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn blake3(bytes: &str) -> String {
    blake3::hash(bytes.as_bytes()).to_string()
}

fn digest(bytes: &str) -> String {
    format!("sha-256=:{}:", base64::prelude::BASE64_STANDARD.encode(Sha256::digest(bytes)))
}

fn chunk(bytes: &str) -> String {
    format!("{:x}\r\n{bytes}\r\n", bytes.len())
}

fn head(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ntransfer-encoding: chunked\r\netag: \"v1\"\r\n\r\n")
}

/// Returns a complete response with trailers.
fn whole(status: &str, bytes: &str, blake3: &str, state: &str) -> Answer {
    let end = format!("0\r\nbellglass-blake3: {blake3}\r\nbellglass-file: {state}\r\n\r\n");
    Answer::raw(head(status) + &chunk(bytes) + &end)
}

/// Answers metadata requests and passes content requests to the test's own function.
fn serving(
    content: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> impl Fn(usize, &Request) -> Answer {
    move |_, request| {
        if request.line.contains("/files/hash?") {
            Answer::json("200 OK", &json!({"file": info(), "blake3": blake3(CONTENT)}))
        } else if request.line.contains("/files/content?") {
            content(request)
        } else {
            Answer::json("200 OK", &info())
        }
    }
}

fn path() -> FilePath {
    FilePath::new("a").unwrap()
}

async fn downloaded(server: &Server) -> Result<Vec<u8>, client::Error> {
    let here = tempfile::tempdir().unwrap();
    let target = here.path().join("a");
    let client = Client::new(&server.url(), "secret").unwrap();
    let done = client.files(&"s1".parse().unwrap()).download(&path(), &target, &|_| {}).await;
    let left = std::fs::read_dir(here.path()).unwrap().count();
    assert_eq!(left, usize::from(done.is_ok()), "nothing half-written is left");
    done.map(|_| std::fs::read(target).unwrap())
}

#[tokio::test]
async fn a_file_that_is_cut_goes_on_with_the_rest_of_the_same_version() {
    let server = Server::start(serving(|request| match request.headers.get("range").map(String::as_str) {
        None => Answer::raw(head("200 OK") + &chunk("0123")),
        Some("bytes=4-") => Answer::raw(head("206 Partial Content") + &chunk("45")),
        Some(_) => whole("206 Partial Content", "6789", &blake3("6789"), "whole"),
    }))
    .await;
    assert_eq!(downloaded(&server).await.unwrap(), CONTENT.as_bytes());
    let seen = server.seen();
    let asked: Vec<_> = seen.iter().filter(|request| request.line.contains("/content?")).collect();
    assert_eq!(asked.len(), 3);
    for request in asked {
        assert_eq!(request.headers.get("if-match").map(String::as_str), Some("\"v1\""));
        assert_eq!(request.headers.get("te").map(String::as_str), Some("trailers"));
        assert!(request.line.contains("&digest=blake3"), "{}", request.line);
    }
    assert!(seen.last().unwrap().line.contains("/files/hash?"), "pieces are compared with the whole");
}

#[tokio::test]
async fn a_cut_after_the_last_byte_is_asked_about_and_not_taken_for_the_end() {
    let server = Server::start(serving(|_| Answer::raw(head("200 OK") + &chunk(CONTENT)))).await;
    assert_eq!(downloaded(&server).await.unwrap(), CONTENT.as_bytes());
    assert!(server.seen().last().unwrap().line.contains("/files/hash?"));
}

#[tokio::test]
async fn an_answer_that_does_not_tell_its_hash_is_compared_with_the_file() {
    for (bytes, is_same) in [(CONTENT, true), ("012345678X", false)] {
        let end = "0\r\nbellglass-file: whole\r\n\r\n";
        let server = Server::start(serving(move |_| Answer::raw(head("200 OK") + &chunk(bytes) + end))).await;
        assert_eq!(downloaded(&server).await.is_ok(), is_same, "{bytes}");
        assert!(server.seen().last().unwrap().line.contains("/files/hash?"));
    }
}

#[tokio::test]
async fn bytes_that_are_not_those_that_were_sent_are_never_kept() {
    for (bytes, sum, state) in
        [("012345678X", blake3(CONTENT), "whole"), (CONTENT, blake3(CONTENT), "changed")]
    {
        let server = Server::start(serving(move |_| whole("200 OK", bytes, &sum, state))).await;
        let error = downloaded(&server).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::Conflict), "{error}");
        let tries = server.seen().iter().filter(|request| request.line.contains("/content?")).count();
        assert_eq!(tries, 3, "begun anew, and not for ever");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_short_or_too_long_is_a_broken_promise() {
    for bytes in ["012345678", "0123456789X"] {
        let sum = blake3(bytes);
        let server = Server::start(serving(move |_| whole("200 OK", bytes, &sum, "whole"))).await;
        assert!(matches!(downloaded(&server).await, Err(client::Error::Protocol { .. })), "{bytes}");
    }
}

#[tokio::test]
async fn a_small_file_is_one_request_with_its_digest_and_is_sent_again() {
    let server = Server::start(|number, _| match number {
        0 => Answer::nothing(),
        _ => Answer::json("200 OK", &json!({"file": info(), "sha256": hash(CONTENT)})),
    })
    .await;
    let here = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(here.path(), CONTENT).unwrap();
    let client = Client::new(&server.url(), "secret").unwrap();
    let name = FilePath::new(&b"a \xff&"[..]).unwrap();
    let sent = client.files(&"s1".parse().unwrap()).upload(here.path(), &name, &|_| {}).await.unwrap();
    assert_eq!(sent.hash, Hash::Sha256(hash(CONTENT)));
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    for request in seen {
        assert_eq!(request.line, "PUT /v1/sandboxes/s1/files/content?path=a%20%FF%26&mode=0600");
        assert_eq!(request.headers.get("content-digest"), Some(&digest(CONTENT)));
        assert_eq!(request.body, CONTENT.as_bytes());
    }
}
