//! A real terminal emulator for tests: tmux, which runs on its own tmux server, sends keys and reads the
//! screen.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Polling interval while waiting for content on the screen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A tmux window that runs one program. Dropping this value ends the program and the tmux server.
pub struct Tmux {
    name: String,
}

impl Tmux {
    /// Runs a shell command in a window of this size, with these environment variables.
    pub fn run(command: &str, cols: u32, rows: u32, env: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let tmux = Self { name: format!("bellglass-test-{}-{number}", std::process::id()) };
        let (cols, rows) = (cols.to_string(), rows.to_string());
        let mut words = vec!["-f", "/dev/null", "new-session", "-d", "-x", &cols, "-y", &rows];
        let pairs: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for pair in &pairs {
            words.extend(["-e", pair]);
        }
        words.extend(["sh", "-c", command]);
        tmux.ask(&words);
        tmux.ask(&["set-option", "-g", "status", "off"]);
        tmux
    }

    /// Types text literally.
    pub fn text(&self, text: &str) {
        self.ask(&["send-keys", "-l", text]);
    }

    /// Presses keys, given by name: `Enter`, `C-c`.
    pub fn keys(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    /// Types a line.
    pub fn line(&self, text: &str) {
        self.text(text);
        self.keys(&["Enter"]);
    }

    /// Resizes the window.
    pub fn resize(&self, cols: u32, rows: u32) {
        self.ask(&["resize-window", "-x", &cols.to_string(), "-y", &rows.to_string()]);
    }

    /// Returns the content of the screen, one string per row.
    pub fn screen(&self) -> Vec<String> {
        self.ask(&["capture-pane", "-p"]).lines().map(str::to_owned).collect()
    }

    /// Returns the scrollback followed by the screen.
    pub fn history(&self) -> String {
        self.ask(&["capture-pane", "-p", "-S", "-"])
    }

    /// Waits until the screen satisfies a condition.
    pub async fn until(&self, within: Duration, what: &str, so: impl Fn(&[String]) -> bool) {
        let since = Instant::now();
        loop {
            let screen = self.screen();
            if so(&screen) {
                return;
            }
            assert!(
                since.elapsed() < within,
                "waited {within:?} for {what}; the screen is\n{}",
                screen.join("\n")
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until a row equals this text.
    pub async fn row(&self, within: Duration, text: &str) {
        self.until(within, text, |screen| screen.iter().any(|row| row.trim_end() == text)).await;
    }

    fn ask(&self, words: &[&str]) -> String {
        let done = Command::new("tmux").args(["-L", &self.name]).args(words).output().expect("tmux");
        assert!(done.status.success(), "tmux {words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.name, "kill-server"]).output();
    }
}
