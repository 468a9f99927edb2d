//! The channel to the guest, carried by the byte stream of a terminal in the workspace. `guest connect` puts
//! the terminal into raw mode, so that it does not alter bytes.
//!
//! The agent provides no other long-lived connection to a program. It runs a shell on the terminal and sends
//! everything that appears there, such as a prompt and the echo of the input. Therefore all output before the
//! guest's hello is discarded.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::SandboxId;
use api::hello::{HELLO_BYTES, Hello, Kind};
use base64::Engine as _;
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use reqwest::{Method, Upgraded};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::Daytona;
use super::account::Account;
use super::workspace::Workspace;
use crate::Error;
use crate::handshake::greet;

/// Size of the chunks sent to the agent, which accepts up to 64 KiB in one message.
const PIECE_BYTES: usize = 32 * 1024;
/// Maximum size in bytes of the shell's output before the guest's hello.
const PASSED_OVER_MAX: usize = 1 << 20;
/// Name prefix of the terminals that Bellglass opens.
const OURS: &str = "bellglass-";
/// The shell's input, which replaces the shell with the guest. The leading space keeps it out of the shell's
/// history.
const TYPED: &str = " exec /.bellglass/guest connect\n";

type PtySocket = WebSocketStream<Upgraded>;

/// The names of the terminals that this process is using.
#[derive(Clone, Default)]
pub(super) struct Terminals(Arc<Mutex<BTreeSet<String>>>);

/// A terminal in use. Dropping this value releases the terminal's name.
struct TerminalGuard {
    name: String,
    all: Terminals,
}

impl Terminals {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, name: String) -> TerminalGuard {
        self.names().insert(name.clone());
        TerminalGuard { name, all: self.clone() }
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        self.all.names().remove(&self.name);
    }
}

/// The agent's list of terminals.
#[derive(Deserialize)]
struct TerminalList {
    #[serde(default)]
    sessions: Vec<ListedTerminal>,
}

#[derive(Deserialize)]
struct ListedTerminal {
    id: String,
}

impl Daytona {
    /// Makes process 1 connect to the node, and performs the handshake.
    pub(super) async fn dial(&self, id: &SandboxId, deadline: Instant) -> Result<UnixStream, Error> {
        let account = &self.shared.account;
        let workspace = self.find(id).await?.ok_or_else(|| Error::NotFound(id.clone()))?;
        // A terminal that a dead process left behind would occupy the guest's only connection.
        self.remove_old(&workspace).await?;
        let terminal = self.shared.terminals.hold(format!("{OURS}{}", word()?));
        let act = "open a terminal";
        let body =
            json!({ "id": terminal.name, "cwd": "/", "cols": 80, "rows": 24, "lazyStart": true }).to_string();
        let request = account.at(Method::POST, &workspace.toolbox("/process/pty")?);
        account
            .done(act, request.header("content-type", "application/json").body(body), Duration::ZERO)
            .await?;
        let url = workspace.toolbox(&format!("/process/pty/{}/connect", terminal.name))?;
        let socket = upgrade(account, &url).await;
        let (ours, theirs) = UnixStream::pair()
            .map_err(|source| Error::System { act: format!("create a channel to sandbox {id}"), source })?;
        match socket {
            Ok(socket) => {
                let (account, workspace) = (account.clone(), workspace.clone());
                tokio::spawn(async move {
                    pass_on(theirs, socket).await;
                    let _ = remove(&account, &workspace, &terminal.name).await;
                });
            }
            Err(error) => {
                let _ = remove(account, &workspace, &terminal.name).await;
                return Err(error);
            }
        }
        tokio::time::timeout_at(deadline, greet(ours))
            .await
            .map_err(|_| Error::Deadline { what: "the handshake with the guest", after: Duration::ZERO })?
            .map_err(|why| Error::Impostor { id: id.clone(), why })
    }

    /// Closes all Bellglass terminals that this process is not using, which kills the programs on these
    /// terminals.
    async fn remove_old(&self, workspace: &Workspace) -> Result<(), Error> {
        let (account, act) = (&self.shared.account, "list terminals");
        let request = account.at(Method::GET, &workspace.toolbox("/process/pty")?);
        let found: TerminalList =
            account.read(act, account.done(act, request, Duration::ZERO).await?).await?;
        let held = self.shared.terminals.names().clone();
        for old in found.sessions.iter().filter(|one| one.id.starts_with(OURS) && !held.contains(&one.id)) {
            remove(account, workspace, &old.id).await?;
        }
        Ok(())
    }
}

async fn remove(account: &Account, workspace: &Workspace, terminal: &str) -> Result<(), Error> {
    let request = account.at(Method::DELETE, &workspace.toolbox(&format!("/process/pty/{terminal}"))?);
    // This succeeds even if the terminal is already gone.
    account.send("close a terminal", request, Duration::ZERO).await.map(|_| ())
}

async fn upgrade(account: &Account, url: &str) -> Result<PtySocket, Error> {
    let act = "connect to a terminal";
    let key = base64::engine::general_purpose::STANDARD.encode(word()?);
    let request = account
        .at(Method::GET, url)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key);
    let response = account.done(act, request, Duration::ZERO).await?;
    let wrong = |why: String| Error::Unavailable {
        what: format!("Daytona failed to {act}"),
        why,
        fix: "Check that no proxy on the network path blocks WebSockets.".into(),
    };
    let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(|value| value.as_bytes().to_vec());
    if accepted != Some(derive_accept_key(key.as_bytes()).into_bytes()) {
        return Err(wrong("its response is not a valid WebSocket handshake".into()));
    }
    let upgraded = response.upgrade().await.map_err(|error| wrong(crate::chain(&error)))?;
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
}

/// Returns sixteen random hexadecimal digits.
fn word() -> Result<String, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { act: "read random bytes".into(), source: error.into() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Sends the command to the shell, discards all output before the hello, and then copies data in both
/// directions until either side ends.
async fn pass_on(node: UnixStream, socket: PtySocket) {
    let (mut from_node, mut to_node) = node.into_split();
    let (mut heard, mut said) = socket.split();
    if heard.send(Message::binary(TYPED.as_bytes())).await.is_err() {
        return;
    }
    let outwards = async {
        let mut before = Some(Before::default());
        while let Some(Ok(message)) = said.next().await {
            // Text messages come from the agent itself, not from the terminal.
            let Message::Binary(bytes) = message else { continue };
            let bytes = match &mut before {
                None => bytes.to_vec(),
                Some(before) => match before.after(&bytes) {
                    Ok(None) => continue,
                    Ok(Some(bytes)) => bytes,
                    Err(TooMuch) => return,
                },
            };
            before = None;
            if to_node.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let inwards = async {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from_node.read(&mut piece).await {
            let bytes = piece.get(..count).unwrap_or_default().to_vec();
            if heard.send(Message::binary(bytes)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = outwards => {}
        () = inwards => {}
    }
}

/// The shell's output so far, which does not contain the whole hello yet.
#[derive(Default)]
struct Before {
    kept: Vec<u8>,
    seen: usize,
}

/// The error for a shell that prints more than the maximum before the hello.
#[derive(Debug, PartialEq, Eq)]
struct TooMuch;

impl Before {
    /// Returns the data that starts with the hello, or `None` if the hello has not arrived completely. The
    /// hello may begin in the output of earlier calls.
    fn after(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, TooMuch> {
        let greeting = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false }.encode();
        self.seen += bytes.len();
        self.kept.extend_from_slice(bytes);
        if let Some(at) = self.kept.windows(HELLO_BYTES).position(|window| window == greeting) {
            return Ok(Some(self.kept.split_off(at)));
        }
        // The end of the output may be the beginning of the hello, so it is retained.
        let needless = self.kept.len().saturating_sub(HELLO_BYTES - 1);
        self.kept.drain(..needless);
        if self.seen > PASSED_OVER_MAX { Err(TooMuch) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_says_is_passed_over_wherever_it_is_cut() {
        let greeting = Hello { kind: Kind::Serve, cgroups: 0, oom_count: false, oom_event: false }.encode();
        let mut all =
            b"\x1b[?2004hroot@bellglass:/# exec /.bellglass/guest connect\r\n\x1b[?2004l\rb-glass\n".to_vec();
        all.extend_from_slice(&greeting);
        all.extend_from_slice(b"and more");
        for cut in 0..all.len() {
            let mut before = Before::default();
            let mut heard = Vec::new();
            for (number, piece) in [&all[..cut], &all[cut..]].into_iter().enumerate() {
                match before.after(piece) {
                    Ok(Some(bytes)) => {
                        heard = bytes;
                        if number == 0 {
                            heard.extend_from_slice(&all[cut..]);
                            break;
                        }
                    }
                    Ok(None) => {}
                    Err(TooMuch) => panic!("not so much"),
                }
            }
            assert_eq!(heard, all[all.len() - 24..], "cut at {cut}");
        }
        let mut before = Before::default();
        assert_eq!(before.after(&vec![b'x'; PASSED_OVER_MAX + 1]), Err(TooMuch));
    }
}
