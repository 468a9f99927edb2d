//! Local commands. Each has a deadline after which it is killed.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::target::TargetFailure;

/// Maximum number of bytes that a failure quotes from the standard error of a failed command.
const SHOWN_BYTES: usize = 400;

/// Returns a command that is killed when its handle is dropped.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a command whose output is not needed.
pub async fn run(command: &mut Command, within: Duration) -> Result<(), TargetFailure> {
    output(command, within, None).await.map(drop)
}

/// Runs a command and returns its output as text.
pub async fn print(command: &mut Command, within: Duration) -> Result<String, TargetFailure> {
    command.stdout(Stdio::piped());
    Ok(String::from_utf8_lossy(&output(command, within, None).await?).trim().to_owned())
}

/// Runs a command to its end, with optional standard input, and returns its output.
pub async fn output(
    command: &mut Command,
    within: Duration,
    stdin: Option<&[u8]>,
) -> Result<Vec<u8>, TargetFailure> {
    if stdin.is_some() {
        command.stdin(Stdio::piped());
    }
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let started = command.spawn();
    let mut child = started.map_err(|error| TargetFailure::new("not_started", format!("{name}: {error}")))?;
    let feed = child.stdin.take().zip(stdin.map(<[u8]>::to_vec));
    let both = async {
        let feeding = async {
            if let Some((mut pipe, bytes)) = feed {
                // If a command exits before it has read all input, its exit status reports the error.
                let _ = pipe.write_all(&bytes).await;
            }
        };
        tokio::join!(child.wait_with_output(), feeding).0
    };
    match tokio::time::timeout(within, both).await {
        Ok(Ok(output)) if output.status.success() => Ok(output.stdout),
        Ok(Ok(output)) => Err(TargetFailure::new(
            output.status.code().map_or("killed".into(), |code| format!("exit_{code}")),
            format!("{name}: {}", tail(&output.stderr)),
        )),
        Ok(Err(error)) => Err(TargetFailure::new("not_waited_for", format!("{name}: {error}"))),
        Err(_) => {
            Err(TargetFailure::new("deadline", format!("{name} took more than {} s", within.as_secs())))
        }
    }
}

/// Returns the end of a text, because commands usually print the error last.
fn tail(text: &[u8]) -> String {
    let from = text.len().saturating_sub(SHOWN_BYTES);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).trim().replace('\n', " | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_command_gets_its_input_and_its_output_comes_back() {
        let mut cat = command("cat");
        cat.stdout(Stdio::piped());
        assert_eq!(output(&mut cat, SOON, Some(b"all of it")).await.unwrap(), b"all of it");
    }

    #[tokio::test]
    async fn a_failure_keeps_the_status_and_the_last_words() {
        let failed = run(command("sh").args(["-c", "echo why >&2; exit 3"]), SOON).await.unwrap_err();
        assert_eq!((failed.code.as_str(), failed.message.as_str()), ("exit_3", "sh: why"));
        let late = run(command("sleep").arg("60"), Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(late.code, "deadline");
    }
}
