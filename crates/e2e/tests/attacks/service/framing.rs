//! Attacks O-05 and O-09: output that is not text, and output that imitates its surroundings, on the way to a
//! client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use api::exec::{ExecInfo, Outcome, Stream};
use api::output::{LINE_BYTES_MAX, NDJSON, OutputLine};
use e2e::service::{Service, served};
use serde_json::{Value, json};

use super::ground::{address, ask, head, held, inside, keyed, recovers, tiers};

/// The content of a response with output: the bytes of both streams, all lines, and the outcome.
struct Told {
    bytes: [Vec<u8>; 2],
    lines: Vec<OutputLine>,
    end: Option<Outcome>,
}

/// Parses a body of JSON lines as strictly as possible: every byte belongs to a line, every line has a known
/// type, offsets have no gaps, and nothing follows the end.
fn told(body: &str) -> Told {
    assert!(body.ends_with('\n'), "a line is not whole");
    let lines: Vec<OutputLine> = body
        .split_terminator('\n')
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}")))
        .collect();
    let (mut bytes, mut end) = ([Vec::new(), Vec::new()], None);
    for line in &lines {
        assert!(end.is_none(), "{line:?} after the end");
        match line {
            OutputLine::Data { stream, offset, text, base64 } => {
                let of = &mut bytes[*stream as usize];
                assert_eq!(*offset, of.len() as u64);
                of.extend(match (text, base64) {
                    (Some(text), None) => text.clone().into_bytes(),
                    (None, Some(packed)) => unpacked(packed),
                    _ => panic!("both or neither: {line:?}"),
                });
            }
            OutputLine::End { end: told } => end = Some(told.outcome.clone()),
            OutputLine::Started { .. } | OutputLine::Heartbeat => {}
            OutputLine::Gap { .. } | OutputLine::Result { .. } | OutputLine::Error { .. } => {
                panic!("{line:?}")
            }
        }
    }
    Told { bytes, lines, end }
}

/// Decodes a chunked body. Returns the body and the bytes that follow it.
fn dechunked(mut text: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut body = Vec::new();
    loop {
        let end = text.windows(2).position(|two| two == b"\r\n").expect("the length of a chunk");
        let length = usize::from_str_radix(std::str::from_utf8(&text[..end]).unwrap(), 16).expect("a length");
        text = &text[end + 2..];
        body.extend_from_slice(&text[..length]);
        assert_eq!(&text[length..length + 2], b"\r\n", "a chunk ends elsewhere than it says");
        text = &text[length + 2..];
        if length == 0 {
            return (body, text);
        }
    }
}

fn unpacked(base64: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} in base64"),
    };
    let mut bytes = Vec::new();
    for four in base64.as_bytes().chunks(4) {
        let digits: Vec<u32> =
            four.iter().filter(|byte| **byte != b'=').map(|byte| u32::from(value(*byte))).collect();
        let whole = digits.iter().fold(0, |all, digit| all << 6 | digit) << (6 * (4 - digits.len()));
        bytes.extend_from_slice(&whole.to_be_bytes()[1..digits.len()]);
    }
    bytes
}

/// Starts an exec and reads its output from the response, up to the last chunk.
fn streamed(service: &Service, execs: &str, spec: &Value) -> Told {
    let bearer = format!("Bearer {}", service.key);
    let headers =
        [("authorization", bearer.as_str()), ("content-type", "application/json"), ("accept", NDJSON)];
    let answer = ask(service, "POST", execs, &headers, spec.to_string().as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    let (body, rest) = dechunked(answer.body.as_bytes());
    assert!(rest.is_empty(), "{rest:?} after the body");
    told(std::str::from_utf8(&body).expect("lines of JSON are UTF-8"))
}

/// Verifies that attack O-05 fails: bytes that are not text reach every reader unchanged.
#[test]
#[ignore = "starts real sandboxes"]
fn bytes_that_are_no_text_reach_every_reader_as_they_are() {
    served(async || {
        let service = Service::start();
        let wild = e2e::wild::bytes();
        let hex: String = wild.iter().map(|byte| format!("{byte:02x}")).collect();
        // Control: the bytes are not valid UTF-8, so they cannot be a JSON string.
        assert!(std::str::from_utf8(&wild).is_err());
        e2e::attack::count_control();
        for tier in tiers() {
            let body = json!({ "tier": tier, "limits": e2e::service::small_limits() });
            let made = keyed(&service, &service.key, "POST", "/v1/sandboxes", &body).json();
            let home = made["id"].as_str().unwrap().to_owned();
            let execs = format!("/v1/sandboxes/{home}/execs");
            let spec = inside("O-05", &[&hex]);
            let live = streamed(&service, &execs, &json!(spec));
            assert!(live.bytes.iter().all(|bytes| *bytes == wild), "bytes were changed");
            assert_eq!(live.end, Some(Outcome::Exited { code: 0 }));
            let OutputLine::Started { exec: ExecInfo { id, .. } } = &live.lines[0] else { panic!() };
            // Valid text is sent as text, however the output is divided into lines. Live output is not checked for
            // this, because a slow server may send all of it as one line.
            let text_starts = wild.len() - e2e::wild::TRUNCATED.len() - e2e::wild::tail().len();
            let path = format!("{execs}/{id}/output?stdout={}&stderr={text_starts}", wild.len());
            let answer = keyed(&service, &service.key, "GET", &path, &Value::Null);
            let (body, _) = dechunked(answer.body.as_bytes());
            let texts =
                std::str::from_utf8(&body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap());
            let texts: String = texts
                .filter_map(|line| if let OutputLine::Data { text, .. } = line { text } else { None })
                .collect();
            assert_eq!(texts, e2e::wild::tail());
            // Read from several offsets of the stream that was written byte by byte, including offsets within
            // a character.
            for offset in (0..wild.len()).step_by(401).chain([1, wild.len()]) {
                let path = format!("{execs}/{id}/output?stdout={}&stderr={offset}", wild.len());
                let answer = keyed(&service, &service.key, "GET", &path, &Value::Null);
                assert_eq!(answer.status, 200, "{answer:?}");
                let (body, _) = dechunked(answer.body.as_bytes());
                let mut rest = Vec::new();
                for line in std::str::from_utf8(&body).unwrap().lines() {
                    if let OutputLine::Data { text, base64, stream, .. } = serde_json::from_str(line).unwrap()
                    {
                        assert_eq!(stream, Stream::Stderr);
                        rest.extend(text.map_or_else(|| unpacked(&base64.unwrap()), String::into_bytes));
                    }
                }
                assert!(rest == wild[offset..], "from {offset} on, bytes were changed");
            }
            let words: Vec<&str> = spec.argv.iter().map(String::as_str).collect();
            let plain = service.command(&[&["exec", &home, "--"], &words[..]].concat()).output().unwrap();
            assert!(plain.stdout == wild && plain.stderr == wild, "the command line changed bytes");
            let shown =
                service.command(&[&["exec", "--json", &home, "--"], &words[..]].concat()).output().unwrap();
            let shown: Value = serde_json::from_slice(&shown.stdout).expect("one object");
            assert_eq!(shown["stdout"], String::from_utf8_lossy(&wild).as_ref());
            held(
                "O-05",
                &format!("{tier:?}: {} bytes, live, from every offset, by the command line", wild.len()),
            );
        }
        recovers(&service).await;
    });
}

/// Verifies that attack O-03 fails: the length of a JSON line is limited, although each byte of output can
/// become six bytes of JSON.
#[test]
#[ignore = "starts real sandboxes"]
fn a_line_of_json_is_bounded_whatever_the_output() {
    const BYTES: usize = 20_000_000;
    served(async || {
        let service = Service::start();
        let made = keyed(&service, &service.key, "POST", "/v1/sandboxes", &super::ground::small()).json();
        let execs = format!("/v1/sandboxes/{}/execs", made["id"].as_str().unwrap());
        let mut spec = inside("O-03", &[&BYTES.to_string(), "1"]);
        spec.output_bytes = Some(BYTES as u64);
        let bearer = format!("Bearer {}", service.key);
        let headers =
            [("authorization", bearer.as_str()), ("content-type", "application/json"), ("accept", NDJSON)];
        let answer = ask(&service, "POST", &execs, &headers, json!(spec).to_string().as_bytes());
        let (body, _) = dechunked(answer.body.as_bytes());
        let longest = body.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap();
        let all = told(std::str::from_utf8(&body).unwrap());
        // Control: the output was a single line, and all of it arrived.
        assert!(all.bytes[0] == vec![1; BYTES] && body.len() > 6 * BYTES, "{} bytes", all.bytes[0].len());
        e2e::attack::count_control();
        assert!(longest <= LINE_BYTES_MAX, "a line of {longest} bytes");
        recovers(&service).await;
        held("O-03", &format!("{BYTES} bytes without an end of line, the longest line of JSON {longest}"));
    });
}

/// Verifies that attack O-09 fails: output that imitates lines of the protocol is treated as plain output.
#[test]
#[ignore = "starts real sandboxes"]
fn output_that_imitates_our_lines_is_only_output() {
    served(async || {
        let service = Service::start();
        for tier in tiers() {
            let body = json!({ "tier": tier, "limits": e2e::service::small_limits() });
            let made = keyed(&service, &service.key, "POST", "/v1/sandboxes", &body).json();
            let home = made["id"].as_str().unwrap().to_owned();
            let execs = format!("/v1/sandboxes/{home}/execs");
            let spec = inside("O-09", &[]);
            let live = streamed(&service, &execs, &json!(spec));
            assert_eq!(live.end, Some(Outcome::Exited { code: 7 }));
            let [output, errors] = &live.bytes;
            assert!(output == errors && output.len() > 1000, "{} bytes", output.len());
            is_forged(output);
            let OutputLine::Started { exec: ExecInfo { id, .. } } = &live.lines[0] else { panic!() };
            behind(&service, &format!("{execs}/{id}/output"), output);
            let words: Vec<&str> = spec.argv.iter().map(String::as_str).collect();
            let shown =
                service.command(&[&["exec", "--json", &home, "--"], &words[..]].concat()).output().unwrap();
            let report: Value = serde_json::from_slice(&shown.stdout).expect("one object and nothing else");
            assert_eq!(shown.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(
                (&report["outcome"]["code"], report["stdout"].as_str().map(str::as_bytes)),
                (&json!(7), Some(&output[..]))
            );
            assert_eq!(shown.status.code(), Some(7));
        }
        let audit = service.data().join("audit.log");
        for (what, text) in
            [("log", service.words()), ("audit log", std::fs::read_to_string(&audit).unwrap())]
        {
            assert!(!text.is_empty() && !text.contains("mark"), "the {what} holds output: {text}");
        }
        control::audit::verify(&audit, false, None).expect("the chain of the audit log");
        recovers(&service).await;
        held("O-09", "no line, chunk, answer or record was taken for one of ours");
    });
}

/// Control: on such a stream, these bytes are an end with a false outcome, the end of a body, and a response.
fn is_forged(output: &[u8]) {
    let text = std::str::from_utf8(output).unwrap();
    let ends = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let ends = ends
        .filter(|line| matches!(line, OutputLine::End { end } if end.outcome == Outcome::Exited { code: 0 }));
    assert!(ends.count() > 1, "control: {text}");
    let at = text.find("\r\n0\r\n\r\n").expect("control: the end of a body");
    let (_, rest) = dechunked(&output[at + 2..]);
    assert!(rest.starts_with(b"HTTP/1.1 200 OK\r\n"), "control: {text}");
    e2e::attack::count_control();
}

/// Sends two requests on one connection. Asserts that the second response comes from the server, whatever the
/// first body contains.
fn behind(service: &Service, path: &str, output: &[u8]) {
    let bearer = format!("Bearer {}", service.key);
    let first = head("GET", &format!("{path}?follow=false"), &[("authorization", &bearer)]);
    let first = first.replace("connection: close\r\n", "");
    let second = head("GET", "/v1/node", &[("authorization", &bearer)]);
    let mut stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(format!("{first}\r\n{second}\r\n").as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let at = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let (body, rest) = dechunked(&all[at..]);
    let first = told(std::str::from_utf8(&body).unwrap());
    assert!(first.bytes.iter().all(|bytes| bytes == output));
    let rest = String::from_utf8_lossy(rest);
    let (status, node) = rest.split_once("\r\n\r\n").expect("a second answer");
    assert!(status.starts_with("HTTP/1.1 200"), "{rest}");
    assert!(serde_json::from_str::<Value>(node).unwrap()["draining"].is_boolean(), "{rest}");
}
