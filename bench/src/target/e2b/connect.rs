//! Streams of the Connect protocol, as the E2B program in a sandbox uses them: JSON messages in envelopes.
//!
//! ```text
//! flags: 1 byte │ length: 4 bytes, big-endian │ JSON        flags 0: a message, 2: the end, with or without an error
//! ```

use serde_json::Value;

use crate::target::TargetFailure;

/// Content type of a stream.
pub(super) const KIND: &str = "application/connect+json";
const END: u8 = 2;

/// Encodes one message as an envelope.
pub(super) fn envelope(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Returns the exit code of the process that the stream describes. A missing code means 0, because this JSON
/// encoding omits fields with the value 0.
pub(super) fn exit_code(stream: &[u8]) -> Result<i64, TargetFailure> {
    let mut rest = stream;
    let mut code = None;
    while let Some((flags, payload, after)) = next(rest) {
        rest = after;
        let message: Value = serde_json::from_slice(payload)
            .map_err(|error| TargetFailure::new("protocol", format!("an envelope without JSON: {error}")))?;
        if let Some(error) = message.get("error").filter(|_| flags == END) {
            let name = error.get("code").and_then(Value::as_str).unwrap_or("unknown");
            let failure = TargetFailure::new(name, error.to_string());
            return Err(TargetFailure { refused: name == "resource_exhausted", ..failure });
        }
        if let Some(end) = message.pointer("/event/end") {
            code = Some(end.get("exitCode").and_then(Value::as_i64).unwrap_or(0));
        }
    }
    code.ok_or_else(|| TargetFailure::new("cut", "the stream has no end event of the process"))
}

fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (flags, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (payload, after) = rest.split_at_checked(length)?;
    Some((*flags, payload, after))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stream(messages: &[(u8, Value)]) -> Vec<u8> {
        let wrapped = messages.iter().map(|(flags, message)| {
            let mut bytes = envelope(message);
            bytes[0] = *flags;
            bytes
        });
        wrapped.flatten().collect()
    }

    #[test]
    fn the_end_of_a_process_is_found_in_its_stream() {
        let start = (0, json!({ "event": { "start": { "pid": 7 } } }));
        let end = (0, json!({ "event": { "end": { "exited": true, "status": "exit status 0" } } }));
        let bytes = stream(&[start.clone(), end, (END, json!({}))]);
        assert_eq!(exit_code(&bytes), Ok(0));
        let failed = (0, json!({ "event": { "end": { "exitCode": 3, "exited": true } } }));
        assert_eq!(exit_code(&stream(&[start.clone(), failed])), Ok(3));
        assert_eq!(exit_code(&stream(&[start])).unwrap_err().code, "cut");
        // The last envelope has 7 bytes, so removing 9 bytes also truncates the end event of the process.
        assert_eq!(exit_code(&bytes[..bytes.len() - 9]).unwrap_err().code, "cut");
    }

    #[test]
    fn an_error_at_the_end_is_an_error() {
        let said = (END, json!({ "error": { "code": "resource_exhausted", "message": "later" } }));
        let failure = exit_code(&stream(&[said])).unwrap_err();
        assert!(failure.refused && failure.code == "resource_exhausted");
    }
}
