//! File transfers over plain HTTP: ranges, versions, digests, and truncated bodies.

use std::time::Duration;

use api::files::FilePath;
use e2e::service::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MOST, on_each, path, put};

/// SHA-256 digest of the ten digits `0123456789`, in the format of RFC 9530.
const DIGEST: &str = "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGflr7bn4gveII=:";

/// Hashes of the same digits, in hexadecimal.
const SHA256: &str = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
const BLAKE3: &str = "53b63a6fc8605d0c0ce559317a00177d72adb24d669235e4c914f443a8831ca1";

/// Sends these bytes and reads the response until the connection ends. If `leaves` is true, the client closes
/// its sending side before it reads.
async fn talk(url: &str, head: &str, body: &[u8], leaves: bool) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    if leaves {
        stream.shutdown().await.unwrap();
    }
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
#[ignore = "starts real sandboxes"]
fn ranges_versions_and_digests_are_those_of_http() {
    on_each(async |service, client, id| {
        let files = client.files(id);
        let name = path("a\"b.txt");
        put(&files, &name, b"0123456789").await;
        let (url, key) = (service.url(), service.key.clone());
        let get = async |extra: &str| {
            let route = format!("/v1/sandboxes/{id}/files/content?path={}", name.encode());
            let head = format!(
                "GET {route} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n{extra}\r\n"
            );
            talk(&url, &head, b"", false).await
        };
        let whole = get("").await;
        assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("0123456789"), "{whole}");
        assert_eq!(header(&whole, "content-length"), Some("10"));
        assert_eq!(header(&whole, "content-disposition"), Some("attachment; filename*=UTF-8''a%22b.txt"));
        assert_eq!(header(&whole, "x-content-type-options"), Some("nosniff"));
        let version = header(&whole, "etag").unwrap().to_owned();
        for (range, wanted, said) in [
            ("0-3", "0123", "bytes 0-3/10"),
            ("8-", "89", "bytes 8-9/10"),
            ("-3", "789", "bytes 7-9/10"),
            ("5-500", "56789", "bytes 5-9/10"),
        ] {
            let part = get(&format!("range: bytes={range}\r\nif-match: {version}\r\n")).await;
            assert!(part.starts_with("HTTP/1.1 206"), "{part}");
            assert!(part.ends_with(&format!("\r\n\r\n{wanted}")), "{part}");
            assert_eq!(header(&part, "content-range"), Some(said));
        }
        let beyond = get("range: bytes=10-\r\n").await;
        assert!(beyond.starts_with("HTTP/1.1 416"), "{beyond}");
        assert_eq!(header(&beyond, "content-range"), Some("bytes */10"));
        let other = get("if-match: \"other\"\r\n").await;
        assert!(other.starts_with("HTTP/1.1 412") && other.contains("\"conflict\""), "{other}");
        let trailed = get("te: trailers\r\n").await;
        assert!(header(&trailed, "content-length").is_none(), "{trailed}");
        assert_eq!(header(&trailed, "content-digest"), Some(DIGEST));
        assert_eq!(header(&trailed, "bellglass-file"), Some("whole"));
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_hash_is_sha256_unless_another_is_asked_for() {
    on_each(async |service, client, id| {
        put(&client.files(id), &path("a"), b"0123456789").await;
        let (url, key) = (service.url(), service.key.clone());
        let ask = async |what: &str, query: &str, extra: &str| {
            let (method, below) = what.split_once(' ').unwrap();
            let head = format!(
                "{method} /v1/sandboxes/{id}/files/{below}?path=a{query} HTTP/1.1\r\nhost: x\r\n\
                 authorization: Bearer {key}\r\nconnection: close\r\n{extra}\r\n"
            );
            talk(&url, &head, if method == "PUT" { b"0123456789" } else { b"" }, false).await
        };
        let blake3 = format!("\"blake3\":\"{BLAKE3}\"");
        for (what, extra) in [("GET hash", ""), ("PUT content", "content-length: 10\r\n")] {
            for query in ["", "&digest=sha256"] {
                let told = ask(what, query, extra).await;
                assert!(
                    told.contains(&format!("\"sha256\":\"{SHA256}\"")) && !told.contains("blake3"),
                    "{told}"
                );
            }
            let told = ask(what, "&digest=blake3", extra).await;
            assert!(told.contains(&blake3) && !told.contains("sha256"), "{told}");
            let refused = ask(what, "&digest=md5", extra).await;
            assert!(
                refused.starts_with("HTTP/1.1 400") && refused.contains("\"invalid_request\""),
                "{refused}"
            );
        }
        let read = ask("GET content", "&digest=blake3", "te: trailers\r\n").await;
        assert_eq!(header(&read, "bellglass-blake3"), Some(BLAKE3), "{read}");
        assert_eq!(header(&read, "trailer"), Some("bellglass-blake3, bellglass-file"), "{read}");
        assert!(header(&read, "content-digest").is_none(), "{read}");
        let range = ask("GET content", "&digest=blake3", "te: trailers\r\nrange: bytes=10-\r\n").await;
        assert!(range.starts_with("HTTP/1.1 416"), "{range}");
        // Each transfer computes only one kind of hash, so an announced digest of a different kind cannot be
        // verified.
        let both = format!("content-digest: {DIGEST}\r\ncontent-length: 10\r\n");
        let refused = ask("PUT content", "&digest=blake3", &both).await;
        assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("BLAKE3"), "{refused}");
        assert_eq!(client.files(id).read(&path("a"), MOST).await.unwrap(), b"0123456789");
    });
}

/// Verifies that attack U-08 fails: a body that is shorter than announced, or whose digest does not match,
/// changes nothing.
#[test]
#[ignore = "starts real sandboxes"]
fn a_body_that_breaks_off_or_is_another_writes_nothing() {
    on_each(async |service, client, id| {
        let files = client.files(id);
        put(&files, &path("kept"), b"kept").await;
        let (url, key) = (service.url(), service.key.clone());
        let send = async |name: &FilePath, query: &str, extra: &str, body: &[u8], leaves: bool| {
            let route = format!("/v1/sandboxes/{id}/files/content?path={}{query}", name.encode());
            let head = format!(
                "PUT {route} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n{extra}\r\n"
            );
            talk(&url, &head, body, leaves).await
        };
        let kept = path("kept");
        send(&kept, "", "content-length: 100\r\n", b"short", true).await;
        send(&kept, "", "transfer-encoding: chunked\r\n", b"5\r\nshort\r\n", true).await;
        let other = format!("content-digest: {DIGEST}\r\ncontent-length: 5\r\n");
        let answer = send(&kept, "", &other, b"other", false).await;
        assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
        assert_eq!(files.read(&kept, MOST).await.unwrap(), b"kept");
        // A write at an offset keeps the bytes that arrived, and never leaves a hole in the file.
        send(&path("part"), "&offset=0", "content-length: 100\r\n", b"01234", true).await;
        // The client has disconnected, so no response shows when the bytes have been written.
        let part = path("part");
        until(Duration::from_secs(10), "what arrived to be there", async || {
            files.read(&part, MOST).await.is_ok_and(|bytes| bytes == b"01234")
        })
        .await;
        let answer = send(&path("part"), "&offset=9", "content-length: 1\r\n", b"x", false).await;
        assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
        let answer = send(&path("part"), "&offset=5", "content-length: 5\r\n", b"56789", false).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(files.read(&path("part"), MOST).await.unwrap(), b"0123456789");
        until(Duration::from_secs(10), "everything half-written to be gone", async || {
            let names = files.list(&path("."), 1).await.unwrap().into_iter().map(|info| info.path);
            names.collect::<Vec<_>>() == ["/workspace/kept", "/workspace/part"]
        })
        .await;
    });
}
