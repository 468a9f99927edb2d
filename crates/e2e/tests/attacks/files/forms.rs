//! Attack U-07: request bodies that are forms.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use api::ErrorCode;

use super::ground::{Ground, code, each, path};

/// Maximum memory growth of the server during any of these requests.
const MEMORY_BYTES: u64 = 64 << 20;
const PARTS: usize = 100_000;
const NAME_BYTES: usize = 1 << 30;
const FORM: &str = "multipart/form-data; boundary=edge";

/// A request body in pieces, with its content type and announced length.
struct Sent<'a> {
    kind: &'a str,
    length: usize,
    pieces: &'a mut dyn Iterator<Item = Vec<u8>>,
}

/// Uploads a body as the file `form`. Returns the status and the body of the response.
fn put(ground: &Ground, sent: Sent<'_>) -> (u16, String) {
    let url = ground.service.url();
    let mut stream = TcpStream::connect(url.split_once("://").unwrap().1).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!(
        "PUT /v1/sandboxes/{}/files/content?path=form HTTP/1.1\r\nhost: bellglass\r\nconnection: close\r\n\
         authorization: Bearer {}\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n",
        ground.sandbox, ground.service.key, sent.kind, sent.length
    );
    stream.write_all(head.as_bytes()).unwrap();
    for piece in sent.pieces {
        // After a refusal, the server stops reading and closes the connection.
        if stream.write_all(&piece).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    (status, text.split_once("\r\n\r\n").unwrap_or_default().1.to_owned())
}

fn field(name: &str, value: &str) -> String {
    format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

/// Verifies that attack U-07 fails: the API accepts no forms. It neither parses a form nor stores it as the
/// file itself.
#[test]
#[ignore = "starts real sandboxes"]
fn a_form_is_refused_before_any_of_it_is_read() {
    each(async |ground| {
        let many: String = (0..PARTS).map(|number| field(&number.to_string(), "x")).collect::<String>();
        let split = "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\r\nb: c\"\r\n\r\nx\r\n--edge--\r\n";
        let before = ground.memory_bytes();
        let whole = [
            ("100,000 parts", FORM, many.as_str()),
            ("no boundary", "multipart/form-data", many.as_str()),
            ("a name of two lines", FORM, split),
            ("another case, another form", "Multipart/Mixed; boundary=edge", split),
        ];
        for (what, kind, body) in whole {
            let mut pieces = std::iter::once(body.as_bytes().to_vec());
            let (status, said) = put(ground, Sent { kind, length: body.len(), pieces: &mut pieces });
            assert_eq!(status, 400, "{what}: {said}");
            assert!(
                said.contains("the request body is a form") && said.contains("Send the bytes"),
                "{what}: {said}"
            );
        }
        let mut pieces = std::iter::repeat_n(vec![b'n'; 1 << 20], NAME_BYTES >> 20);
        let (status, said) = put(ground, Sent { kind: FORM, length: NAME_BYTES, pieces: &mut pieces });
        assert_eq!(status, 400, "a name of 1 GiB: {said}");
        let grown = ground.memory_bytes().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{grown}");
        assert_eq!(code(ground.files.stat(&path("form")).await), ErrorCode::NotFound, "it left a file");
        // Control: with a different content type, the same bytes arrive in the sandbox completely.
        let mut pieces = std::iter::once(many.as_bytes().to_vec());
        let kind = "application/octet-stream";
        let (status, said) = put(ground, Sent { kind, length: many.len(), pieces: &mut pieces });
        assert_eq!(status, 200, "{said}");
        assert_eq!(ground.run("grep -c edge form").await, PARTS.to_string());
        e2e::attack::count_control();
        ground.held("U-07", &format!("5 forms refused, {} MiB more", grown >> 20));
    });
}
