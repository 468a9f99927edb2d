//! `bellglass shell`: opens a terminal in a sandbox on a server.
//!
//! The local terminal is in raw mode, so every key, including Ctrl-C, reaches the program in the sandbox. The
//! previous mode is restored on every exit path. To detach, the user types the same sequence as in `ssh`:
//! Enter, `~`, `.`. The exec belongs to the sandbox and keeps running. After detaching or a disconnect, the
//! user can reattach to the same screen.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use api::exec::{ExecEnd, ExecSpec};
use api::terminal::{SIDE_MAX, TerminalSize};
use api::{Error, ExecId, SandboxId};
use client::{Client, Terminal, TerminalUpdate};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::connect::{ServerConnection, answer, explain};
use crate::output::Output;
use crate::quantity::{self, Limit};
use crate::{request, show};

/// Size of the buffer for reading the local terminal. A large paste needs several reads.
const KEYS_BYTES: usize = 4096;
/// Maximum number of queued chunks of input. Further input waits in the local terminal's buffer.
const KEYS_WAITING: usize = 4;
/// Number of bytes of earlier output to show after reattaching. They fill many screens, but cause no
/// noticeable delay.
const SCROLLBACK_BYTES: u64 = 256 * 1024;
/// Timeout for sending the last keys when detaching.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// Script that starts bash if the template has it, and sh otherwise.
const SHELL: &str = "if command -v bash >/dev/null; then exec bash; else exec sh; fi";
/// Default size, for a terminal that does not report its size.
const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// Arguments of `bellglass shell`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass shell build\n  bellglass shell build -- python3\n  \
    bellglass shell --exec e4x1 build\n\n\
    To detach, press Enter and type ~. (a tilde and a period). The program keeps running; to reattach, use\n\
    --exec. To send a tilde at the start of a line, type ~~. If the connection breaks, the terminal\n\
    reconnects: no output is lost, and no input is lost or sent twice. The exit code is the program's own,\n\
    or 125 if Bellglass itself fails.")]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Reattach to the terminal of this exec instead of starting a new one.
    #[arg(long, value_name = "EXEC", conflicts_with_all = ["argv", "env", "cwd", "timeout"])]
    exec: Option<ExecId>,
    /// Environment variable for the program. Can be repeated.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Working directory of the program.
    #[arg(long, value_name = "DIRECTORY")]
    cwd: Option<String>,
    /// Wall-clock limit of the program, such as 90s or 5m. With the value `none`, the program can run as long as its sandbox.
    #[arg(long, value_parser = quantity::limit, default_value = "none", value_name = "TIME", allow_hyphen_values = true)]
    timeout: Limit,
    /// Program to run and its arguments. Default: a shell.
    #[arg(last = true, value_name = "COMMAND")]
    argv: Vec<String>,
}

/// Reason why the client left the terminal.
enum Left {
    /// The exec has ended.
    Ended(ExecEnd),
    /// The user detached. The exec keeps running.
    Detached,
    /// A signal arrived, or the local terminal was closed. The exec keeps running.
    Cut,
}

/// Guard that keeps the local terminal in raw mode until it is dropped.
struct Raw {
    before: Termios,
}

/// Detector for the escape sequence in typed keys.
struct Escape {
    state: EscapeState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EscapeState {
    /// At the start of a line.
    Begin,
    /// After a `~` at the start of a line. The `~` is held back.
    Tilde,
    /// Anywhere else.
    Within,
}

/// Signals that the command handles.
struct Signals {
    resized: Signal,
    ended: [Signal; 3],
}

/// Opens a terminal and stays attached to it until the exec ends or the user detaches.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Error::invalid(
            "`bellglass shell` needs a terminal, but standard input or output is not a terminal",
            "Run the command from a terminal. For a command with piped input, use `bellglass exec --stdin`.",
        ));
    }
    let sandbox = arguments.sandbox.clone();
    let mut terminal = open(&client, &arguments).await?;
    let id = terminal.id().clone();
    let left = {
        let raw = Raw::enter()?;
        let left = stay(&mut terminal).await;
        drop(raw);
        left?
    };
    Ok(match left {
        Left::Ended(end) => Output::new(false).finish(&sandbox, &end, None),
        Left::Detached | Left::Cut => {
            show::note(&format!(
                "detached; the program keeps running. To return: bellglass shell --exec {id} {sandbox}"
            ));
            // A disconnect is a failure: the outcome is unknown, and the user did not ask to detach.
            if matches!(left, Left::Cut) { ExitCode::from(crate::FAILED) } else { ExitCode::SUCCESS }
        }
    })
}

async fn open(client: &Client, arguments: &Arguments) -> Result<Terminal, Error> {
    let sandbox = &arguments.sandbox;
    if let Some(exec) = &arguments.exec {
        let info = answer(client, client.exec_info(sandbox, exec)).await?;
        let mut terminal = client.terminal_of(sandbox, exec);
        terminal.seek(info.stdout_bytes.saturating_sub(SCROLLBACK_BYTES));
        return Ok(terminal);
    }
    let shell = || ["sh", "-c", SHELL].map(str::to_owned).to_vec();
    let spec = ExecSpec {
        argv: if arguments.argv.is_empty() { shell() } else { arguments.argv.clone() },
        env: request::pairs("--env", &arguments.env)?,
        cwd: arguments.cwd.clone(),
        deadline_ms: arguments.timeout.0.map(request::millis),
        terminal: Some(size()),
        ..ExecSpec::default()
    };
    answer(client, client.terminal(sandbox, &spec)).await
}

/// Transfers keys and output until the exec ends or the user detaches.
async fn stay(terminal: &mut Terminal) -> Result<Left, Error> {
    let mut signals = Signals::watch()?;
    let (mut keys, mut escape) = (keys(), Escape::new());
    terminal.resize(size());
    loop {
        tokio::select! {
            seen = terminal.next() => match seen.map_err(|error| explain(&error))? {
                Some(seen) => {
                    if let Some(end) = show_seen(seen) {
                        return Ok(Left::Ended(end));
                    }
                }
                None => return Err(crate::platform("the terminal stream closed without an end event".into())),
            },
            typed = keys.recv(), if terminal.room() >= KEYS_BYTES => {
                // The local terminal was closed, so this command ends as well.
                let Some(typed) = typed else { return Ok(Left::Cut) };
                let (bytes, leaves) = escape.typed(&typed);
                terminal.write(&bytes).map_err(|error| explain(&error))?;
                if leaves {
                    return leave(terminal).await;
                }
            }
            _ = signals.resized.recv() => terminal.resize(size()),
            () = until_ended(&mut signals.ended) => return Ok(Left::Cut),
        }
    }
}

async fn until_ended([hangup, terminate, interrupt]: &mut [Signal; 3]) {
    tokio::select! {
        _ = hangup.recv() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Waits briefly until the server has received the last keys.
async fn leave(terminal: &mut Terminal) -> Result<Left, Error> {
    let arriving = async {
        while !terminal.is_received() {
            match terminal.next().await {
                Ok(Some(seen)) => {
                    if let Some(end) = show_seen(seen) {
                        return Some(end);
                    }
                }
                Ok(None) | Err(_) => break,
            }
        }
        None
    };
    let ended = tokio::time::timeout(LEAVE_WITHIN, arriving).await.ok().flatten();
    let _ = std::io::stdout().lock().write_all(b"\r\n");
    Ok(ended.map_or(Left::Detached, Left::Ended))
}

/// Shows a terminal event. If the exec has ended, returns its outcome and totals.
fn show_seen(seen: TerminalUpdate) -> Option<ExecEnd> {
    match seen {
        TerminalUpdate::Output { bytes, .. } => {
            let mut to = std::io::stdout().lock();
            let _ = to.write_all(&bytes).and_then(|()| to.flush());
        }
        TerminalUpdate::Gap { from, to } => say(&format!("{} bytes of output were dropped", to - from)),
        TerminalUpdate::Reconnecting => say("reconnecting…"),
        TerminalUpdate::Connected => {}
        TerminalUpdate::Refused(error) => say(&error.message),
        TerminalUpdate::End(end) => return Some(end),
    }
    None
}

/// Prints a note while the terminal is in raw mode, in which a line feed does not return to the first column.
fn say(text: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\nbellglass: {}\r\n", show::escape(text));
}

/// Returns a channel that delivers typed keys. A separate thread reads them with blocking calls, because a
/// terminal that is shared with the parent process cannot be read in any other way without affecting the
/// parent.
fn keys() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(KEYS_WAITING);
    std::thread::spawn(move || {
        let mut buffer = [0; KEYS_BYTES];
        loop {
            match std::io::stdin().lock().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    let typed = buffer.get(..count).unwrap_or_default().to_vec();
                    if sender.blocking_send(typed).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Returns the size of the local terminal.
fn size() -> TerminalSize {
    let side = |own: u16, usual: u32| if own == 0 { usual } else { u32::from(own).min(SIDE_MAX) };
    tcgetwinsize(rustix::stdio::stdout()).map_or(SIZE, |own| TerminalSize {
        cols: side(own.ws_col, SIZE.cols),
        rows: side(own.ws_row, SIZE.rows),
    })
}

impl Raw {
    fn enter() -> Result<Self, Error> {
        let failed = |error| crate::platform(format!("cannot set the terminal mode: {error}"));
        let before = tcgetattr(rustix::stdio::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

impl Signals {
    fn watch() -> Result<Self, Error> {
        let watch = |kind| {
            signal(kind).map_err(|error| crate::platform(format!("cannot install a signal handler: {error}")))
        };
        Ok(Self {
            resized: watch(SignalKind::window_change())?,
            ended: [
                watch(SignalKind::hangup())?,
                watch(SignalKind::terminate())?,
                watch(SignalKind::interrupt())?,
            ],
        })
    }
}

impl Escape {
    fn new() -> Self {
        Self { state: EscapeState::Begin }
    }

    /// Returns the keys to send to the program, and true if the user detaches after them.
    fn typed(&mut self, keys: &[u8]) -> (Vec<u8>, bool) {
        let mut inside = Vec::with_capacity(keys.len() + 1);
        for key in keys {
            match (self.state, key) {
                (EscapeState::Begin, b'~') => {
                    self.state = EscapeState::Tilde;
                    continue;
                }
                (EscapeState::Tilde, b'.') => return (inside, true),
                (EscapeState::Tilde, b'~') => {}
                (EscapeState::Tilde, _) => inside.push(b'~'),
                (EscapeState::Begin | EscapeState::Within, _) => {}
            }
            inside.push(*key);
            self.state = if matches!(key, b'\r' | b'\n') { EscapeState::Begin } else { EscapeState::Within };
        }
        (inside, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys that are sent when these inputs are typed in sequence, and true if the user detaches.
    fn typed(parts: &[&str]) -> (String, bool) {
        let mut escape = Escape::new();
        let mut inside = Vec::new();
        for part in parts {
            let (bytes, leaves) = escape.typed(part.as_bytes());
            inside.extend(bytes);
            if leaves {
                return (String::from_utf8(inside).unwrap(), true);
            }
        }
        (String::from_utf8(inside).unwrap(), false)
    }

    #[test]
    fn the_way_out_is_a_tilde_and_a_dot_at_the_beginning_of_a_line() {
        assert_eq!(typed(&["ls\r", "~", "."]), ("ls\r".into(), true));
        assert_eq!(typed(&["~.x"]), (String::new(), true));
        assert_eq!(typed(&["cd ~.\r"]), ("cd ~.\r".into(), false));
    }

    #[test]
    fn every_other_tilde_goes_inside() {
        assert_eq!(typed(&["~", "~.\r"]), ("~.\r".into(), false));
        assert_eq!(typed(&["~/bin/x\r"]), ("~/bin/x\r".into(), false));
        assert_eq!(typed(&["a~.\r~", "\r~."]), ("a~.\r~\r".into(), true));
    }
}
