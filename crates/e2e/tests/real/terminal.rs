//! Terminals as a user sees them, through a server that may be killed.
//!
//! The user is simulated with `tmux`, a real terminal emulator, which starts `bellglass shell`, presses keys
//! and reads the screen.

use std::time::{Duration, Instant};

use api::SandboxId;
use api::exec::ExecSpec;
use api::sandbox::{CreateSandbox, Tier};
use api::terminal::TerminalSize;
use client::{Terminal, TerminalUpdate};
use e2e::lab::{script, wanted};
use e2e::service::{Service, binary, served, small};
use e2e::tmux::Tmux;

const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// Timeout for typed text to appear on a busy machine.
const SHOWS: Duration = Duration::from_secs(30);
/// Python program that draws in the corners of the screen, redraws when the size changes, and exits on `q`.
const DRAW: &str = r#"
import curses

def draw(screen):
    curses.curs_set(0)
    while True:
        rows, cols = screen.getmaxyx()
        screen.erase()
        screen.addstr(0, 0, "top left")
        screen.addstr(rows // 2, 4, f"{cols} by {rows} \u2615")
        screen.insstr(rows - 1, cols - 12, "bottom right")
        screen.refresh()
        key = screen.getch()
        if key == ord("q"):
            return

import locale
locale.setlocale(locale.LC_ALL, "")
curses.wrapper(draw)
"#;

fn on_terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec { terminal: Some(SIZE), ..spec }
}

/// Returns the tiers whose runtimes are under test.
fn tiers() -> Vec<(&'static str, Tier)> {
    let all = [("runc", Tier::Container), ("runsc", Tier::UserKernel)];
    all.into_iter().filter(|(runtime, _)| wanted(runtime)).collect()
}

async fn sandbox_of(service: &Service, tier: Tier) -> SandboxId {
    service.client().create(&CreateSandbox { tier, ..small() }).await.unwrap().id
}

/// Runs `bellglass shell` in a terminal emulator and prints its exit code when it ends.
fn at(service: &Service, sandbox: &SandboxId, options: &str) -> Tmux {
    let command = format!("'{}' shell {options} {sandbox}; echo code $?; exec sleep 600", binary().display());
    let (url, key) = (service.url(), service.key.clone());
    Tmux::run(&command, 100, 30, &[("BELLGLASS_SERVER", &url), ("BELLGLASS_API_KEY", &key)])
}

/// A user can run a full-screen program, resize the terminal, interrupt a command, and continue after a kill
/// of the server.
#[test]
#[ignore = "starts real sandboxes"]
fn a_person_at_a_terminal_sees_the_screen_and_goes_on_after_the_server_was_killed() {
    served(async || {
        for (runtime, tier) in tiers() {
            let mut service = Service::start();
            let client = service.client();
            let sandbox = sandbox_of(&service, tier).await;
            let put = format!("cat > /workspace/draw.py <<'EOF'{DRAW}EOF\n");
            client.exec(&sandbox, &script(&put)).await.unwrap().collect().await.unwrap();
            let tmux = at(&service, &sandbox, "");
            tmux.until(SHOWS, "a prompt", |screen| screen.iter().any(|row| row.contains('$'))).await;
            tmux.line("PS1='> '; V=kept; stty size");
            tmux.row(SHOWS, "30 100").await;
            // Ctrl-C interrupts the running command.
            tmux.line("echo begun; sleep 1000");
            tmux.row(SHOWS, "begun").await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            tmux.keys(&["C-c"]);
            tmux.line("echo was $?");
            tmux.row(SHOWS, "was 130").await;
            // A program draws at two sizes. When it exits, the previous screen is restored.
            tmux.line("python3 /workspace/draw.py");
            drawn(&tmux, 100, 30).await;
            tmux.resize(72, 20);
            drawn(&tmux, 72, 20).await;
            tmux.keys(&["q"]);
            tmux.row(SHOWS, "was 130").await;
            tmux.line("stty size");
            tmux.row(SHOWS, "20 72").await;
            // The user types while the server is down.
            tmux.line("clear");
            service.kill();
            tmux.row(SHOWS, "bellglass: reconnecting…").await;
            tmux.line("echo $V-$((20+3))");
            tokio::time::sleep(Duration::from_millis(300)).await;
            service.begin();
            let began = Instant::now();
            tmux.row(SHOWS, "kept-23").await;
            eprintln!("{runtime}: the terminal was back {:?} after the server", began.elapsed());
            tmux.line("echo end");
            tmux.row(SHOWS, "end").await;
            let history = tmux.history();
            assert_eq!(history.matches("echo $V").count(), 1, "typed twice, or not at all:\n{history}");
            assert_eq!(history.matches("kept-23").count(), 1, "{history}");
            tmux.line("exit 7");
            tmux.row(SHOWS, "code 7").await;
            client.stop(&sandbox).await.unwrap();
            drop(tmux);
            service.assert_nothing_left().await;
        }
    });
}

/// Waits until the screen shows nothing but the picture.
async fn drawn(tmux: &Tmux, cols: usize, rows: usize) {
    let what = format!("the picture in {cols} by {rows}");
    tmux.until(SHOWS, &what, |screen| {
        let middle = format!("    {cols} by {rows} \u{2615}");
        let bottom = format!("{}bottom right", " ".repeat(cols - 12));
        screen.len() == rows
            && screen.iter().enumerate().all(|(row, text)| match row {
                0 => text == "top left",
                _ if row == rows / 2 => *text == middle,
                _ if row == rows - 1 => *text == bottom,
                _ => text.is_empty(),
            })
    })
    .await;
}

#[test]
#[ignore = "starts real sandboxes"]
fn who_leaves_a_terminal_comes_back_to_the_same_screen() {
    served(async || {
        let service = Service::start();
        let client = service.client();
        let sandbox = sandbox_of(&service, Tier::Container).await;
        let tmux = at(&service, &sandbox, "");
        tmux.until(SHOWS, "a prompt", |screen| screen.iter().any(|row| row.contains('$'))).await;
        tmux.line("PS1='> '; V=kept; echo before");
        tmux.row(SHOWS, "before").await;
        tmux.text("~.");
        tmux.until(SHOWS, "our own prompt", |screen| screen.iter().any(|row| row == "code 0")).await;
        assert!(
            tmux.screen().iter().any(|row| row.contains("bellglass shell --exec")),
            "{:?}",
            tmux.screen()
        );
        let exec = client.execs(&sandbox).await.unwrap().remove(0);
        assert_eq!((exec.outcome, exec.terminal), (None, Some(TerminalSize { cols: 100, rows: 30 })));
        let again = at(&service, &sandbox, &format!("--exec {}", exec.id));
        again.row(SHOWS, "before").await;
        again.line("echo $V; exit");
        again.row(SHOWS, "kept").await;
        again.row(SHOWS, "code 0").await;
        // Without a local terminal, `bellglass shell` opens no terminal in the sandbox.
        let refused = service.command(&["shell", sandbox.as_str()]).output().unwrap();
        assert_eq!(refused.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("bellglass exec --stdin"));
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn every_key_arrives_once_though_the_server_is_killed_while_they_are_typed() {
    const KILLS: usize = 5;
    const LINES: usize = 400;
    served(async || {
        for (runtime, tier) in tiers() {
            let mut service = Service::start();
            let client = service.client();
            let sandbox = sandbox_of(&service, tier).await;
            let spec = on_terminal(ExecSpec {
                deadline_ms: None,
                ..script("stty -echo; echo ready; cat > /workspace/typed; cat /workspace/typed; echo over")
            });
            let mut terminal = client.terminal(&sandbox, &spec).await.unwrap();
            let mut screen = String::new();
            see(&mut terminal, &mut screen, "ready").await;
            let typing = tokio::spawn(async move {
                for number in 0..LINES {
                    terminal.write(format!("line {number}\r").as_bytes()).unwrap();
                    // Pause briefly, so that data is in transit at each kill.
                    let pause = tokio::time::sleep(Duration::from_millis(10));
                    tokio::pin!(pause);
                    loop {
                        tokio::select! {
                            seen = terminal.next() => drop(seen.unwrap()),
                            () = &mut pause => break,
                        }
                    }
                }
                terminal.write(&[4]).unwrap();
                terminal
            });
            for _ in 0..KILLS {
                tokio::time::sleep(Duration::from_millis(500)).await;
                service.kill();
                tokio::time::sleep(Duration::from_millis(100)).await;
                service.begin();
            }
            let mut terminal = typing.await.unwrap();
            let mut screen = String::new();
            see(&mut terminal, &mut screen, "over").await;
            let expected: String = (0..LINES).map(|number| format!("line {number}\r\n")).collect();
            assert_eq!(screen, expected + "over\r\n", "{runtime}");
            assert!(matches!(terminal.next().await.unwrap(), Some(TerminalUpdate::End(_))));
            client.stop(&sandbox).await.unwrap();
        }
    });
}

/// Reads until the output on the screen contains this text.
async fn see(terminal: &mut Terminal, screen: &mut String, wanted: &str) {
    let reading = async {
        while !screen.contains(wanted) {
            match terminal.next().await.unwrap().unwrap() {
                TerminalUpdate::Output { bytes, .. } => screen.push_str(&String::from_utf8_lossy(&bytes)),
                TerminalUpdate::Connected | TerminalUpdate::Reconnecting => {}
                other
                @ (TerminalUpdate::Gap { .. } | TerminalUpdate::Refused(_) | TerminalUpdate::End(_)) => {
                    panic!("{other:?} instead of {wanted:?} after {screen:?}")
                }
            }
        }
    };
    tokio::time::timeout(SHOWS, reading).await.unwrap_or_else(|_| panic!("no {wanted:?} in {screen:?}"));
}
