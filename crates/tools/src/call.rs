//! A call from a model. Errors in its arguments are worded so that the model can correct them.

use api::Error;
use serde_json::{Map, Value};

/// Maximum size of a reasoning trace in bytes. A longer text is no longer an explanation.
const REASONING_BYTES_MAX: usize = 64 << 10;

/// Arguments of one call, and the model's reason for the call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Arguments by name.
    pub arguments: Map<String, Value>,
    /// Reason that the model gives for the call, for people to read (requirement A6.02).
    pub reasoning_trace: Option<String>,
}

impl Call {
    /// Parses a call to this tool. The body contains either only the arguments, or an object of the form
    /// `{"tool", "parameters", "reasoning_trace"}` (requirement A6.02).
    ///
    /// # Errors
    /// Returns an error if the body has neither of these forms.
    pub fn read(tool: &str, body: Value) -> Result<Self, Error> {
        let Value::Object(mut body) = body else {
            return Err(wrong("the arguments are not an object", "Send the arguments as a JSON object."));
        };
        let Some(parameters) = body.remove("parameters") else {
            return Ok(Self { arguments: body, reasoning_trace: None });
        };
        let Value::Object(arguments) = parameters else {
            return Err(wrong("`parameters` is not an object", "Send the arguments as a JSON object."));
        };
        match body.remove("tool") {
            None => {}
            Some(Value::String(named)) if named == tool => {}
            Some(_) => {
                return Err(wrong(
                    "`tool` differs from the tool in the path",
                    "Name the same tool in `tool` and in the path.",
                ));
            }
        }
        let reasoning_trace = match body.remove("reasoning_trace") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.len() <= REASONING_BYTES_MAX => Some(text),
            Some(_) => {
                let most = format!(
                    "Send a string of at most {REASONING_BYTES_MAX} bytes, or omit `reasoning_trace`."
                );
                return Err(wrong("`reasoning_trace` is not a string, or is too long", most));
            }
        };
        only(&body, &[])?;
        Ok(Self { arguments, reasoning_trace })
    }

    /// Rejects the call if it has arguments that the tool does not have.
    ///
    /// # Errors
    /// Returns an error if the call has an unknown argument. The error names the first such argument.
    pub fn only(&self, known: &[&str]) -> Result<(), Error> {
        only(&self.arguments, known)
    }

    /// Returns a required string argument.
    ///
    /// # Errors
    /// Returns an error if the argument is missing or not a string.
    pub fn text(&self, name: &str) -> Result<&str, Error> {
        match self.arguments.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(wrong(format!("`{name}` is not a string"), format!("Give `{name}` as a string."))),
            None => Err(missing(name)),
        }
    }

    /// Returns an optional argument that must be an array of strings.
    ///
    /// # Errors
    /// Returns an error if the argument is not an array of strings.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<String>>, Error> {
        let refused = || {
            wrong(
                format!("`{name}` is not an array of strings"),
                format!("Give `{name}` as an array of strings."),
            )
        };
        match self.arguments.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => {
                let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
                texts.collect::<Option<Vec<_>>>().map(Some).ok_or_else(refused)
            }
            Some(_) => Err(refused()),
        }
    }

    /// Returns an optional argument that must be a number of seconds.
    ///
    /// # Errors
    /// Returns an error if the argument is not a number, or is outside the range from 1 to `most`.
    pub fn seconds(&self, name: &str, most: u64) -> Result<Option<f64>, Error> {
        let refused =
            |what: String| wrong(what, format!("Give `{name}` as a number of seconds from 1 to {most}."));
        match self.arguments.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(number)) => {
                let seconds = number.as_f64().unwrap_or_default();
                #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
                if (1.0..=most as f64).contains(&seconds) {
                    return Ok(Some(seconds));
                }
                Err(refused(format!("`{name}` is {number}, the maximum is {most}")))
            }
            Some(_) => Err(refused(format!("`{name}` is not a number"))),
        }
    }
}

/// Returns the error for a missing argument.
pub fn missing(name: &str) -> Error {
    wrong(format!("`{name}` is missing"), format!("Give `{name}`."))
}

/// Returns the error for an invalid call.
pub fn wrong(what: impl Into<String>, fix: impl Into<String>) -> Error {
    Error::invalid(what, fix)
}

fn only(arguments: &Map<String, Value>, known: &[&str]) -> Result<(), Error> {
    let Some(other) = arguments.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let shown: String = other.chars().take(100).collect();
    let fix = match known {
        [] => "Omit this argument.".to_owned(),
        known => format!("Omit this argument. The valid arguments are: {}.", known.join(", ")),
    };
    Err(wrong(format!("there is no argument `{shown}`"), fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_comes_as_its_arguments_or_in_an_envelope() {
        // Covers requirement A6.02.
        let bare = Call::read("t", json!({"a": 1})).unwrap();
        assert_eq!((bare.arguments["a"].clone(), bare.reasoning_trace), (json!(1), None));
        let whole = json!({"tool": "t", "parameters": {"a": 1}, "reasoning_trace": "because"});
        let call = Call::read("t", whole).unwrap();
        assert_eq!((call.arguments, call.reasoning_trace.unwrap()), (bare.arguments, "because".to_owned()));
        for bad in [
            json!([]),
            json!({"parameters": 1}),
            json!({"parameters": {}, "tool": "other"}),
            json!({"parameters": {}, "reasoning_trace": 1}),
            json!({"parameters": {}, "session": "another"}),
        ] {
            assert!(Call::read("t", bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let call = Call::read("t", json!({"n": "x", "s": 1, "l": ["a", 1], "big": 301, "none": 0})).unwrap();
        for (error, name) in [
            (call.text("s").unwrap_err(), "`s`"),
            (call.text("gone").unwrap_err(), "`gone`"),
            (call.texts("l").unwrap_err(), "`l`"),
            (call.texts("s").unwrap_err(), "`s`"),
            (call.seconds("n", 300).unwrap_err(), "`n`"),
            (call.seconds("big", 300).unwrap_err(), "`big`"),
            (call.seconds("none", 300).unwrap_err(), "`none`"),
            (call.only(&["n", "s", "l", "big"]).unwrap_err(), "`none`"),
        ] {
            assert!(error.message.contains(name), "{error:?}");
        }
        assert_eq!(call.seconds("gone", 300), Ok(None));
    }
}
