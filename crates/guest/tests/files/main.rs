//! Tests of the process that serves file requests. Like process 1, they send requests as parts and receive
//! answers as parts. The tested process has the rights of the user that runs the tests.
//!
//! | module | holds |
//! |---|---|
//! | [`content`] | reading, writing, hashing, editing |
//! | [`tree`] | creating, moving, copying, removing, listing |
//! | [`archive`] | packing and unpacking, including untrusted archives |
//! | [`watch`] | change events and their overflow |

#![cfg(test)]

mod archive;
mod content;
mod tree;
mod watch;

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use api::files::{FileAnswer, FileAsk, FileEnd, FilePath, PART_BYTES_MAX, PART_HEADER_BYTES, Part, PartKind};
use api::{Error, ErrorCode};

/// A request in progress.
struct Served {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

/// One part of an answer.
enum Got {
    Head(FileAnswer),
    Data(Vec<u8>),
    End(FileEnd),
}

impl Served {
    fn new(ask: &FileAsk) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_guest"))
            .arg("files")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut served = Self { child, stdin, stdout };
        served.part(PartKind::Head, &serde_json::to_vec(ask).unwrap());
        served
    }

    /// Sends a part. Ignores errors, because a process that has refused the request reads no more.
    fn part(&mut self, kind: PartKind, payload: &[u8]) {
        let header = Part { kind, length: u32::try_from(payload.len()).unwrap() }.encode();
        let stdin = self.stdin.as_mut().unwrap();
        let _ = stdin.write_all(&header).and_then(|()| stdin.write_all(payload));
    }

    fn data(&mut self, bytes: &[u8]) {
        bytes.chunks(PART_BYTES_MAX).for_each(|chunk| self.part(PartKind::Data, chunk));
    }

    /// Disconnects without an end marker, like a client that vanishes.
    fn cut(&mut self) {
        self.stdin = None;
    }

    /// Returns the next part, or `None` at the end.
    fn next(&mut self) -> Option<Got> {
        let mut header = [0; PART_HEADER_BYTES];
        self.stdout.read_exact(&mut header).ok()?;
        let part = Part::decode(header).unwrap();
        let mut payload = vec![0; part.length as usize];
        self.stdout.read_exact(&mut payload).unwrap();
        Some(match part.kind {
            PartKind::Head => Got::Head(serde_json::from_slice(&payload).unwrap()),
            PartKind::Data => Got::Data(payload),
            PartKind::End => Got::End(serde_json::from_slice(&payload).unwrap()),
        })
    }

    fn head(&mut self) -> Result<FileAnswer, Error> {
        match self.next() {
            Some(Got::Head(FileAnswer::Refused { error })) => Err(error),
            Some(Got::Head(answer)) => Ok(answer),
            Some(Got::Data(_) | Got::End(_)) | None => panic!("no head"),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request without data.
fn ask(ask: &FileAsk) -> Result<FileAnswer, Error> {
    let mut served = Served::new(ask);
    served.part(PartKind::End, b"{}");
    served.head()
}

/// Sends a request with data.
fn send(ask: &FileAsk, bytes: &[u8]) -> Result<FileAnswer, Error> {
    let mut served = Served::new(ask);
    served.data(bytes);
    served.part(PartKind::End, b"{}");
    served.head()
}

/// Sends a request for data, and reads all of it.
fn fetch(ask: &FileAsk) -> Result<(FileAnswer, Vec<u8>, FileEnd), Error> {
    let mut served = Served::new(ask);
    served.part(PartKind::End, b"{}");
    let head = served.head()?;
    let mut bytes = Vec::new();
    loop {
        match served.next() {
            Some(Got::Data(data)) => bytes.extend(data),
            Some(Got::End(end)) => return Ok((head, bytes, end)),
            Some(Got::Head(_)) | None => panic!("no end"),
        }
    }
}

fn path(path: impl AsRef<Path>) -> FilePath {
    FilePath::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

fn code(refused: Result<FileAnswer, Error>) -> ErrorCode {
    refused.unwrap_err().code
}
