//! Output of a command, and notes about its outcome that the exit code cannot express.

use std::io::Write as _;
use std::process::ExitCode;

use api::code::ResultLine;
use api::exec::{ExecEnd, Outcome, Stream};
use api::{Error, ErrorCode, Layer, Ran, Retry, SandboxId, limits};

use crate::results::Results;
use crate::show;

/// Destination for the output of one command. The output is either streamed or collected into one JSON
/// object.
pub struct Output {
    json: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Destination for results. With JSON, results are collected in `shown` instead.
    results: Results,
    shown: Vec<ResultLine>,
    /// Bytes of standard output and standard error that were not received.
    missed: [u64; 2],
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self::showing(json, Results::naming())
    }

    /// Creates a destination for the output of code, which can have results.
    pub fn showing(json: bool, results: Results) -> Self {
        Self { json, stdout: Vec::new(), stderr: Vec::new(), results, shown: Vec::new(), missed: [0; 2] }
    }

    /// Shows a result, or collects it for the JSON object.
    pub fn result(&mut self, line: ResultLine) -> Result<(), Error> {
        if !self.json {
            return self.results.show(&line);
        }
        self.shown.push(line);
        Ok(())
    }

    /// Writes a chunk of output, or collects it for the JSON object.
    pub fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Error> {
        match (self.json, stream) {
            (true, Stream::Stdout) => hold(&mut self.stdout, bytes),
            (true, Stream::Stderr) => hold(&mut self.stderr, bytes),
            // The command has run: only its output is lost.
            (false, Stream::Stdout) => show::bytes(bytes).map_err(|error| Error { ran: Ran::Yes, ..error }),
            // Results arrive as lines, through `result`.
            (_, Stream::Results) => Ok(()),
            (false, Stream::Stderr) => {
                let _ = std::io::stderr().lock().write_all(bytes);
                Ok(())
            }
        }
    }

    /// Counts bytes that this client did not receive, because the server had not kept them. They are reported
    /// once, at the end.
    pub fn miss(&mut self, stream: Stream, bytes: u64) {
        match stream {
            Stream::Stdout => self.missed[0] += bytes,
            Stream::Stderr => self.missed[1] += bytes,
            Stream::Results => {}
        }
    }

    /// Reports the outcome and returns the exit code of the command. `memory` is the memory limit in bytes,
    /// if known.
    pub fn finish(&self, sandbox: &SandboxId, end: &ExecEnd, memory: Option<u64>) -> ExitCode {
        if self.json {
            if let Err(error) = show::value(&self.report(sandbox, Some(end))) {
                return crate::failed(&error);
            }
        } else {
            let missed: u64 = self.missed.iter().sum();
            if missed > 0 {
                show::note(&format!("{missed} bytes of output were dropped"));
            }
            explain(end, memory);
            if end.state_lost {
                show::note("the context lost its variables; the next cell starts without them");
            }
        }
        ExitCode::from(u8::try_from(end.outcome.shell_code() & 0xff).unwrap_or(crate::FAILED))
    }

    /// Returns the output and the outcome as one JSON object.
    pub fn report(&self, sandbox: &SandboxId, end: Option<&ExecEnd>) -> serde_json::Value {
        serde_json::json!({
            "sandbox": sandbox,
            "outcome": end.map(|end| &end.outcome),
            "stdout": String::from_utf8_lossy(&self.stdout),
            "stderr": String::from_utf8_lossy(&self.stderr),
            "results": self.shown,
            "stdout_bytes": end.map(|end| end.stdout_bytes),
            // Number of bytes missing from `stdout` above. The server may have dropped further bytes, but
            // only after this client had received them.
            "stdout_dropped": end.map(|_| self.missed[0]),
            "stderr_bytes": end.map(|end| end.stderr_bytes),
            "stderr_dropped": end.map(|_| self.missed[1]),
            "duration_us": end.map(|end| end.duration_us),
            "left_running": end.map(|end| end.left_running),
            "memory": end.map(|end| end.memory),
            "state_lost": end.map(|end| end.state_lost),
        })
    }
}

/// Returns the outcome as a short text for a table.
pub fn word(outcome: Option<&Outcome>) -> String {
    match outcome {
        None => "running".into(),
        Some(Outcome::Exited { code }) => format!("exited {code}"),
        Some(Outcome::Signaled { signal }) => format!("signal {signal}"),
        Some(Outcome::Timeout) => "timeout".into(),
        Some(Outcome::Oom) => "oom".into(),
        Some(Outcome::OutputLimit) => "output_limit".into(),
        Some(Outcome::Cancelled) => "cancelled".into(),
        Some(Outcome::SandboxLost { .. }) => "sandbox_lost".into(),
        Some(Outcome::Unknown) => "unknown".into(),
    }
}

/// Prints a note if the exit code alone does not explain the outcome.
fn explain(end: &ExecEnd, memory: Option<u64>) {
    match &end.outcome {
        Outcome::Exited { .. } => {}
        Outcome::Signaled { signal } => show::note(&format!("signal {signal} killed the command")),
        Outcome::Timeout => {
            show::note("the command exceeded its time limit and was killed (timeout); see --timeout")
        }
        Outcome::Oom => {
            let known = memory.or(end.memory.map(|memory| memory.limit_bytes));
            let limit = known.map(|bytes| format!(" of {}", crate::quantity::show_bytes(bytes)));
            let limit = limit.unwrap_or_default();
            show::note(&format!(
                "the command exceeded the memory limit{limit} and was killed (oom); see --memory"
            ));
        }
        Outcome::OutputLimit => {
            show::note("the command exceeded its output limit and was killed (output_limit); see --output")
        }
        Outcome::Cancelled => show::note("the command was cancelled"),
        Outcome::SandboxLost { cause } => {
            show::note(&format!("the sandbox stopped while the command was running: {cause:?}"))
        }
        Outcome::Unknown => show::note("the outcome of the command is not known"),
    }
}

fn hold(held: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Error> {
    if (held.len() + bytes.len()) as u64 > limits::OUTPUT_BYTES_MAX {
        return Err(Error {
            code: ErrorCode::TooLarge,
            message: format!(
                "the command wrote more than {} bytes, the limit for one JSON object",
                limits::OUTPUT_BYTES_MAX
            ),
            layer: Layer::UserCode,
            ran: Ran::Yes,
            retry: Retry::Useless,
            fix: "Omit --json to stream the output.".into(),
        });
    }
    held.extend_from_slice(bytes);
    Ok(())
}
