//! Converts the output and results of code into the lines that clients of E2B's code interpreter read.

use api::code::{Bundle, Exception, Loss, RunResult};
use api::exec::{ExecEnd, Outcome};
use api::output::OutputLine;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use node::clock;
use serde_json::{Map, Value, json};

use super::time::rfc3339;

/// Returns the text of an output line. Replaces invalid UTF-8, because E2B's clients accept only text.
pub fn written(line: &OutputLine) -> Option<String> {
    let OutputLine::Data { text, base64, .. } = line else { return None };
    let bytes = || base64.as_ref().and_then(|packed| STANDARD.decode(packed).ok()).unwrap_or_default();
    Some(text.clone().unwrap_or_else(|| String::from_utf8_lossy(&bytes()).into_owned()))
}

pub fn text(name: &str, text: &str) -> Value {
    json!({ "type": name, "text": text, "timestamp": rfc3339(clock::wall_ms()) })
}

/// Converts a result into the form that E2B's clients expect. If the clients do not support a kind of result,
/// reports the result on stderr if it matters to users, and drops it otherwise.
pub fn result(result: RunResult) -> Option<Value> {
    match result {
        RunResult::Value(bundle) => Some(bundled(bundle, true)),
        RunResult::Display(bundle) => Some(bundled(bundle, false)),
        RunResult::Error(Exception { name, message, text, .. }) => {
            Some(json!({ "type": "error", "name": name, "value": message, "traceback": text }))
        }
        RunResult::Refused { error } => {
            let told = super::fault::sentence(&error);
            Some(json!({ "type": "error", "name": error.code.name(), "value": told, "traceback": told }))
        }
        RunResult::Restarted { because } => {
            let why = match because {
                Loss::Ended => "it had exited",
                Loss::Killed => "it was killed",
                Loss::Oom => "the sandbox ran out of memory",
                Loss::Restarted => "a client restarted it",
            };
            Some(text("stderr", &format!("[the interpreter was restarted and lost its variables: {why}]\n")))
        }
        RunResult::Omitted { bytes, .. } => {
            Some(text("stderr", &format!("[a result of {bytes} bytes is too large and was omitted]\n")))
        }
        RunResult::Late { stdout, stderr } => {
            let whole = stdout + &stderr;
            (!whole.is_empty()).then(|| text("stdout", &whole))
        }
        RunResult::NotInstalled { module, why, .. } => {
            Some(text("stderr", &format!("[{module} was not installed: {why}]\n")))
        }
        RunResult::Clear { .. } | RunResult::Installed { .. } | RunResult::Plain { .. } => None,
    }
}

fn bundled(bundle: Bundle, is_main: bool) -> Value {
    let mut told =
        Map::from_iter([("type".into(), "result".into()), ("is_main_result".into(), is_main.into())]);
    let mut extra = Map::new();
    for (kind, value) in bundle.data {
        let name = match kind.as_str() {
            "text/plain" => "text",
            "text/html" => "html",
            "text/markdown" => "markdown",
            "image/svg+xml" => "svg",
            "image/png" => "png",
            "image/jpeg" => "jpeg",
            "application/pdf" => "pdf",
            "text/latex" => "latex",
            "application/json" => "json",
            "application/javascript" => "javascript",
            _ => {
                extra.insert(kind, value);
                continue;
            }
        };
        let value = match (name, value) {
            ("text", Value::String(text)) => Value::String(unquoted(&text).to_owned()),
            (_, value) => value,
        };
        told.insert(name.into(), value);
    }
    if let Some(chart) = bundle.chart {
        told.insert("chart".into(), chart);
    }
    if !extra.is_empty() {
        told.insert("extra".into(), Value::Object(extra));
    }
    Value::Object(told)
}

/// Removes the quotes from Python's representation of a string.
fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    inner.unwrap_or(text)
}

/// Returns the error for code that failed without reporting an error as a result. For `SandboxLost` and
/// `Unknown`, returns `None`, because these outcomes break the connection instead.
pub fn ended(end: &ExecEnd, is_python: bool) -> Option<Value> {
    let (name, told) = match &end.outcome {
        Outcome::Exited { code: 0 } | Outcome::SandboxLost { .. } | Outcome::Unknown => return None,
        // IPython reports an exit code in this way.
        Outcome::Exited { code } if is_python => ("SystemExit", code.to_string()),
        Outcome::Exited { code } => ("Error", format!("the program exited with code {code}; see stderr")),
        Outcome::Signaled { signal } => ("KernelDied", format!("the code was killed by signal {signal}")),
        Outcome::Oom => ("MemoryError", "the sandbox ran out of memory".to_owned()),
        Outcome::Timeout => ("TimeoutError", "the code exceeded its time limit".to_owned()),
        Outcome::OutputLimit => ("OutputLimit", "the code exceeded its output limit".to_owned()),
        Outcome::Cancelled => ("KeyboardInterrupt", "the code was interrupted".to_owned()),
    };
    let state = if end.state_lost { "; its variables were lost" } else { "" };
    let told = format!("{told}{state}");
    Some(json!({ "type": "error", "name": name, "value": told, "traceback": told }))
}

/// Encodes a value as a line of JSON in ASCII.
pub fn ascii(value: &Value) -> String {
    let mut line = String::new();
    for character in value.to_string().chars() {
        if character.is_ascii() {
            line.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                line.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn lines_are_ascii_and_mean_the_same() {
        let value = json!({ "text": "☕ é 😀 \n \"" });
        let line = ascii(&value);
        assert!(line.is_ascii() && line.ends_with('\n') && line.lines().count() == 1, "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }

    #[test]
    fn an_exit_code_other_than_zero_is_an_error() {
        let end = |outcome: Outcome| -> ExecEnd {
            let zero = json!({
                "outcome": outcome, "stdout_bytes": 0, "stdout_dropped": 0, "stderr_bytes": 0, "stderr_dropped": 0,
                "duration_us": 0, "left_running": 0
            });
            serde_json::from_value(zero).unwrap()
        };
        assert_eq!(ended(&end(Outcome::Exited { code: 0 }), true), None);
        let python = ended(&end(Outcome::Exited { code: 3 }), true).unwrap();
        assert_eq!((&python["name"], &python["value"]), (&json!("SystemExit"), &json!("3")));
        let other = ended(&end(Outcome::Exited { code: 1 }), false).unwrap();
        assert_eq!(
            (&other["name"], &other["value"]),
            (&json!("Error"), &json!("the program exited with code 1; see stderr"))
        );
    }

    #[test]
    fn a_bundle_is_told_by_short_names() {
        let bundle = Bundle {
            data: BTreeMap::from([
                ("text/plain".into(), json!("'it''s'")),
                ("image/png".into(), json!("aGk=")),
                ("x/y".into(), json!(1)),
            ]),
            chart: Some(json!({ "type": "line" })),
            ..Bundle::default()
        };
        let told = bundled(bundle, true);
        assert_eq!(told["text"], "it''s");
        assert_eq!((&told["png"], &told["extra"]["x/y"]), (&json!("aGk="), &json!(1)));
        assert_eq!((&told["chart"]["type"], &told["is_main_result"]), (&json!("line"), &json!(true)));
    }
}
